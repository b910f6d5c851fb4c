"""The CSV files for the p3-analysis library: its functions, where it is there, and its formulas find our figures.

The library is on no package index: `PYTHONPATH=.../p3-analysis-library pytest tests/portability/test_p3_analysis.py`.
"""

import csv
import io
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from made_up_results import made_up

from clrope.benchmark.workloads import select
from clrope.portability.p3_files import p3_csv, write_p3
from clrope.portability.platforms import find_platforms
from clrope.portability.portability_metric import OWN, efficiencies, measurements, portability_of
from clrope.portability.report_files import ReportInput

WORKLOADS = ["prefill/f32/neox/out/forward", "prefill/f16/neox/out/forward", "prefill/f16/neox/in/forward"]


def measured(result):
    found = ReportInput(benches=[result], origins=["made-up.json"])
    return measurements(found, find_platforms(found))


def right():
    return made_up(workloads=select(WORKLOADS))


def one_device_wrong():
    result = right()
    entries = result["workloads"][0]["entries"]
    (number,) = (k for k, e in enumerate(entries) if e["name"] == "arrays" and e.get("device") == "pocl")
    entries[number] = {"kind": "clrope", "name": "arrays", "device": "pocl", "status": "wrong", "reason": "NMSE 1"}
    return result


def one_peer_fails():
    result = right()
    for record in result["workloads"]:
        for k, e in enumerate(record["entries"]):
            if e["name"] == "numba":
                record["entries"][k] = {"kind": "peer", "name": "numba", "status": "error", "reason": "x"}
    return result


KINDS = {"right": right, "one device wrong": one_device_wrong, "one peer fails": one_peer_fails}
RESULTS = pytest.mark.parametrize("result", [make() for make in KINDS.values()], ids=KINDS)


@RESULTS
@pytest.mark.filterwarnings("ignore")  # of the library
def test_the_library_finds_the_same_figures(result, tmp_path):
    metrics = pytest.importorskip("p3analysis").metrics
    pandas = pytest.importorskip("pandas")
    found = measured(result)
    ours = {basis: efficiencies(found, basis) for basis in ("architectural", "application")}
    for path in write_p3(found, str(tmp_path)):
        told = pandas.read_csv(path)
        (problem,) = told["problem"].unique()
        for _, row in metrics.application_efficiency(told, foms="lower").iterrows():
            key = row["problem"], row["platform"], row["application"]
            assert row["app eff"] == pytest.approx(ours["application"][key], abs=1e-6)
        for name, basis in (("app", "application"), ("arch", "architectural")):
            table = metrics.pp(told.drop(columns="arch eff" if name == "app" else "app eff"))
            theirs = dict(zip(table["application"], table[f"{name} pp"], strict=True))
            assert set(theirs) == set(told["application"])
            for application, value in theirs.items():
                want = portability_of(found, application, basis)[problem]
                assert value == pytest.approx(want, abs=2e-6), (path.name, application, basis)


@RESULTS
def test_the_formulas_written_out_find_the_same_figures(result):
    found = measured(result)
    files = p3_csv(found)
    assert list(files) == list(dict.fromkeys(m.problem for m in found)) == [w.name for w in select(WORKLOADS)]
    for problem, text in files.items():
        rows = list(csv.DictReader(io.StringIO(text)))
        assert list(rows[0]) == ["problem", "platform", "application", "fom", "arch eff", "app eff"]
        best = {}
        for row in rows:
            assert row["problem"] == problem
            if row["fom"]:
                best[row["platform"]] = min(best.get(row["platform"], 1e9), float(row["fom"]))
        for application in {row["application"] for row in rows}:
            own = {row["platform"]: row for row in rows if row["application"] == application}
            shares = []
            for platform in {row["platform"] for row in rows}:
                row = own.get(platform)
                share = best[platform] / float(row["fom"]) if row and row["fom"] else 0.0
                shares.append(share)
                if row:
                    assert float(row["app eff"]) == pytest.approx(share, abs=1e-6)
            mean = len(shares) / sum(1 / s for s in shares) if all(shares) else 0.0
            assert portability_of(found, application, "application")[problem] == pytest.approx(mean, rel=1e-9)


def test_a_wrong_device_makes_portability_zero():
    found = measured(one_device_wrong())
    for basis in ("application", "architectural"):
        values = portability_of(found, OWN, basis)
        # Nothing of a device with one wrong result counts.
        assert values == dict.fromkeys(WORKLOADS, 0)


@RESULTS
def test_efficiencies_are_shares(result):
    for text in p3_csv(measured(result)).values():
        for row in csv.DictReader(io.StringIO(text)):
            assert 0 <= float(row["arch eff"]) <= 1
            assert 0 <= float(row["app eff"]) <= 1
            assert row["fom"] == "" or float(row["fom"]) > 0
