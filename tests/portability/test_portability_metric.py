"""The metric of performance portability, recomputed with the formulas of the p3-analysis library written out."""

import csv
import io

import pytest
from made_up_files import small, spoil
from made_up_results import CEILING, OWN, PEERS, entry

from clrope.portability.p3_files import p3_csv, write_p3
from clrope.portability.platforms import find_platforms
from clrope.portability.portability_metric import (
    cascade,
    efficiencies,
    in_common,
    measurements,
    portability,
    portability_of,
)
from clrope.portability.report_files import ReportInput

PROBLEM = "prefill/f16/neox/out/forward"


def measured(*results):
    found = ReportInput(benches=list(results), origins=[f"{k}.json" for k in range(len(results))])
    return measurements(found, find_platforms(found))


def by_hand(result, application, basis):
    """pp(a, p, H) = |H| / sum of 1 / e_i(a, p) over i in H, and 0 if a is not supported on an i; e_i in [0, 1].

    Written for the made-up results: e_i is fom_best / fom, fom the seconds of a call.
    """
    out = {}
    for workload in result["workloads"]:
        if workload["latency"]:
            continue
        foms, copies = {}, {}
        for e in workload["entries"]:
            if e["kind"] == "clrope" and e["name"] == "arrays":
                foms["clrope", e["device"]] = e["wall"]["median"] if e["status"] == "ok" else None
            if e["kind"] == "peer" and e["status"] == "ok":
                foms |= {(e["name"], device): e["wall"]["median"] for device in OWN}
            if e["kind"] == "ceiling":
                taken = e["wall"]["median"] * workload["bytes_moved"] / e["bytes"]
                copies[e["device"]] = min(taken, copies.get(e["device"], taken))
        shares = []
        for device in OWN:
            fom = foms.get((application, device))
            known = [f for (_, where), f in foms.items() if where == device and f is not None]
            best = copies[device] if basis == "architectural" else min(known)
            shares.append(0.0 if fom is None else min(1.0, best / fom))
        out[workload["name"]] = 0.0 if 0.0 in shares else len(shares) / sum(1 / e for e in shares)
    return out


@pytest.mark.parametrize("basis", ["architectural", "application"])
@pytest.mark.parametrize("application", ["clrope", "numba", "onnxruntime"])
def test_the_metric_is_that_of_p3(application, basis):
    result = small()
    got = portability_of(measured(result), application, basis)
    want = by_hand(result, application, basis)
    # Some peers do not take part in some of the workloads.
    assert got.keys() == want.keys()
    assert got == pytest.approx(want, rel=1e-6)
    assert got[PROBLEM] > 0


def test_known_figures():
    found = measured(small())
    arch, app = efficiencies(found, "architectural"), efficiencies(found, "application")
    for device, rate in OWN.items():
        assert arch[PROBLEM, device, "clrope"] == pytest.approx(rate / CEILING, rel=1e-3)
        assert app[PROBLEM, device, "clrope"] == 1
        assert app[PROBLEM, device, "numba"] == pytest.approx(PEERS["numba"] / rate, rel=1e-3)
    assert all(0 <= share <= 1 for share in (*arch.values(), *app.values()))
    assert portability_of(found, "clrope", "architectural")[PROBLEM] == pytest.approx(2 / (50 / 48 + 50 / 49), rel=1e-3)


def test_the_harmonic_mean():
    assert portability([0.5, 1.0]) == pytest.approx(2 / 3)
    assert portability([0.8]) == pytest.approx(0.8)
    assert portability([0.8, 0.0]) == 0
    assert portability([0.8, None]) == 0
    assert portability([]) == 0


def test_one_wrong_result_makes_all_of_a_platform_worth_nothing():
    found = measured(spoil(small(), where=lambda w: w["name"] == PROBLEM))
    assert set(portability_of(found, "clrope", "architectural").values()) == {0.0}
    assert set(portability_of(found, "clrope", "application").values()) == {0.0}
    # A peer is as good as before, and the fastest application where this package is wrong.
    assert efficiencies(found, "application")[PROBLEM, "intel", "numba"] == 1
    wrong = [m for m in found if m.application == "clrope" and m.platform == "intel"]
    assert wrong
    assert all(m.seconds is None and "NMSE 0.5" in m.reason for m in wrong)


def test_a_speed_beyond_the_ceiling_counts_as_the_ceiling():
    result = small()
    for workload in result["workloads"]:
        for e in workload["entries"]:
            if e["kind"] == "ceiling":
                e["wall"]["median"] *= 2
    assert set(portability_of(measured(result), "clrope", "architectural").values()) == {1.0}


def test_without_a_ceiling_there_is_no_architectural_efficiency():
    result = small()
    for workload in result["workloads"]:
        workload["entries"] = [e for e in workload["entries"] if e["kind"] != "ceiling"]
    found = measured(result)
    assert not any(name == "clrope" for _, _, name in efficiencies(found, "architectural"))
    assert portability_of(found, "clrope", "application")[PROBLEM] == 1


def test_peers_are_missing_on_gpus():
    result = small(kinds={"intel": "gpu"})
    for workload in result["workloads"]:
        for e in workload["entries"]:
            if e.get("device") == "intel" and e["status"] == "ok":
                e["event"] = e["wall"]
    found = measured(result)
    assert portability_of(found, "numba", "application")[PROBLEM] == 0
    assert portability_of(found, "clrope", "application")[PROBLEM] == 1


def test_of_repeats_the_middle_one_counts():
    results = [small() for _ in range(3)]
    for factor, result in zip((1.0, 0.5, 0.8), results, strict=True):
        for workload in result["workloads"]:
            for e in workload["entries"]:
                if e["kind"] == "clrope":
                    e["wall"]["median"] = int(e["wall"]["median"] / factor)
    shares = efficiencies(measured(*results), "architectural")
    assert shares[PROBLEM, "pocl", "clrope"] == pytest.approx(0.8 * OWN["pocl"] / CEILING, rel=1e-3)
    origin = next(m.origin for m in measured(*results) if m.problem == PROBLEM and m.application == "clrope")
    assert origin == f"2.json › {PROBLEM} › clrope arrays"


def test_the_cascade_begins_with_the_best_platform():
    found = measured(small())
    steps = cascade(in_common(found), "clrope", "architectural")
    assert [platform for platform, _, _ in steps] == ["intel", "pocl"]
    shares = [share for _, share, _ in steps]
    assert [mean for _, _, mean in steps] == pytest.approx([shares[0], 2 / (1 / shares[0] + 1 / shares[1])])
    wrong = cascade(measured(spoil(small())), "clrope", "architectural")
    assert wrong[-1] == ("intel", 0.0, 0.0)


def test_only_problems_of_all_platforms_are_in_common():
    fewer = small()
    fewer["environment"] = fewer["environment"] | {"cpu": "Another CPU"}
    fewer["workloads"] = [w for w in fewer["workloads"] if w["name"].startswith("prefill")]
    found = measured(small(), fewer)
    assert {m.platform for m in found} == {"pocl on A", "intel on A", "pocl on Another", "intel on Another"}
    assert {m.problem.split("/")[0] for m in in_common(found)} == {"prefill"}
    del fewer["workloads"][:]
    fewer["workloads"].append(small()["workloads"][-1] | {"name": "own/f32/neox/out/forward"})
    assert len(in_common(measured(small(), fewer))) == len(measured(small(), fewer))


def test_p3_files(tmp_path):
    result = spoil(small(), where=lambda w: w["name"] == PROBLEM)
    found = measured(result)
    texts = p3_csv(found)
    assert set(texts) == {m.problem for m in found}
    rows = list(csv.DictReader(io.StringIO(texts[PROBLEM])))
    assert list(rows[0])[:4] == ["problem", "platform", "application", "fom"]
    assert {row["problem"] for row in rows} == {PROBLEM}
    assert {row["platform"] for row in rows} == {"pocl", "intel"}
    assert all(0 <= float(row[name]) <= 1 for row in rows for name in ("arch eff", "app eff"))
    (wrong,) = [row for row in rows if row["platform"] == "intel" and row["application"] == "clrope"]
    assert wrong["fom"] == ""
    assert float(wrong["app eff"]) == 0
    (right,) = [row for row in rows if row["platform"] == "pocl" and row["application"] == "clrope"]
    moved = next(w for w in result["workloads"] if w["name"] == PROBLEM)["bytes_moved"]
    assert float(right["fom"]) == pytest.approx(moved / OWN["pocl"] / 1e9, rel=1e-3)
    made = write_p3(found, str(tmp_path / "p3"))
    assert len(made) == len(texts)
    assert (tmp_path / "p3" / "prefill-f16-neox-out-forward.csv").read_text() == texts[PROBLEM]


def test_kernel_files_are_applications_of_their_own():
    result = small()
    for workload in result["workloads"]:
        if workload["name"] == PROBLEM:
            moved = workload["bytes_moved"]
            workload["entries"].append(entry("kernel", "mine.cl", moved / 25.0, moved, "pocl"))
            workload["entries"].append(
                {"kind": "kernel", "name": "mine.cl", "status": "wrong", "device": "intel", "reason": "NMSE 1"}
            )
    found = measured(result)
    assert efficiencies(found, "architectural")[PROBLEM, "pocl", "mine.cl"] == pytest.approx(0.5, rel=1e-3)
    # Somebody's wrong kernel says nothing against the platform.
    assert portability_of(found, "mine.cl", "architectural")[PROBLEM] == 0
    assert portability_of(found, "clrope", "architectural")[PROBLEM] > 0.9
