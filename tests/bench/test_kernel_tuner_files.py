"""T4 files of `clrope bench` and `clrope tune`, against the schemas of the package kernel-tuner."""

import json
from typing import get_args

import pytest
from made_up_results import made_up

from clrope.benchmark.artifact import installed_packages
from clrope.benchmark.kernel_tuner_files import (
    OF_OUTCOME,
    OF_STATUS,
    Invalidity,
    invalidity_of,
    metadata_here,
    of_bench,
    of_lab_tuning,
    of_tuning,
    t4_metadata,
    write_t4,
)
from clrope.benchmark.workloads import select
from clrope.errors import RopeError
from clrope.kernels.variant import STRIDED
from clrope.select.records import OUTCOMES, TuningKey, TuningRecord, VariantResult


@pytest.fixture(scope="module")
def validate():
    """Check the files of a folder as Kernel Tuner's own schemas say."""
    file_utils = pytest.importorskip("kernel_tuner.file_utils")
    jsonschema = pytest.importorskip("jsonschema")

    def check(paths):
        for path in paths:
            kind = "metadata" if path.name == "metadata.json" else "results"
            version, schema = file_utils.output_file_schema(kind)
            told = json.loads(path.read_text())
            jsonschema.Draft202012Validator(schema).validate(told)
            assert told["schema_version"] == version

    return check


def written(problems, folder):
    result = made_up(workloads=[])
    return write_t4(problems, t4_metadata(result["environment"], result["devices"], {"numpy": "2"}), str(folder))


def bench_result():
    result = made_up(workloads=select(["prefill/f16/neox/out/forward", "decode-1/f32/neox/out/forward"]))
    entries = result["workloads"][0]["entries"]
    for status in ("wrong", "refused", "error"):
        entries.append({"kind": "kernel", "name": f"{status}.cl", "status": status, "reason": "x", "device": "pocl"})
    entries[0]["wall"]["samples"] = [2_000_000, 3_000_000]
    return result


def tuning_record():
    key = TuningKey("f16", "neox", False, "large")
    tried = tuple(VariantResult(STRIDED, outcome, "why", "log") for outcome in OUTCOMES)
    right = VariantResult(STRIDED, "ok", seconds=0.002, gbs=20.0)
    return TuningRecord(key, (right, *tried), 64 << 20, ceiling_gbs=25.0)


def tune_report():
    records = [tuning_record().to_dict()]
    return {"devices": [{"device": "key", "index": "0:0", "records": records, "left": [], "errors": []}]}


def lab_report():
    name = "prefill/f32/neox/out/forward"
    empty = {"gbs": {}, "of_copy": {}, "not_expressible": [], "failed": ""}
    tried = [
        empty | {"setting": {"WIDTH": 4}, "gbs": {name: 20.0}, "of_copy": {name: 0.8}},
        empty | {"setting": {"WIDTH": 8}, "not_expressible": [name]},
        empty | {"setting": {"WIDTH": 16}, "failed": "wrong: NMSE 0.1"},
    ]
    return {"devices": [{"name": "pocl 0:0", "problem": "", "left": [], "tried": tried}]}


def test_files_of_a_bench(validate, tmp_path):
    paths = written(of_bench(bench_result()), tmp_path)
    assert [p.name for p in paths] == [
        "pocl-A-CPU-prefill-f16-neox-out-forward-results.json",
        "intel-A-CPU-prefill-f16-neox-out-forward-results.json",
        "pocl-A-CPU-decode-1-f32-neox-out-forward-results.json",
        "intel-A-CPU-decode-1-f32-neox-out-forward-results.json",
        "metadata.json",
    ]
    validate(paths)


def test_files_of_a_tuning(validate, tmp_path):
    paths = written(of_tuning(tune_report(), ["pocl A CPU"]), tmp_path)
    assert [p.name for p in paths] == ["pocl-A-CPU-f16-neox-out-of-place-large-results.json", "metadata.json"]
    validate(paths)


def test_files_of_a_tuned_kernel_file(validate, tmp_path):
    paths = written(of_lab_tuning(lab_report()), tmp_path)
    assert [p.name for p in paths] == ["pocl-0-0-prefill-f32-neox-out-forward-results.json", "metadata.json"]
    validate(paths)


def test_metadata_of_this_machine(validate, device, tmp_path):
    paths = write_t4([], metadata_here([device], installed_packages()), str(tmp_path))
    validate(paths)
    (told,) = (json.loads(path.read_text()) for path in paths)
    (query,) = told["metadata"]["environment"]["device_query"]["opencl"].values()
    assert query["driver_version"] == device.driver_version
    assert any(line.startswith("numpy==") for line in told["metadata"]["environment"]["requirements"])


def test_figures_of_a_bench():
    first = of_bench(bench_result())[0].to_dict()["results"]
    right, failed = first[0], {r["configuration"].get("kernel"): r["invalidity"] for r in first[-3:]}
    assert failed == {"wrong.cl": "correctness", "refused.cl": "constraints", "error.cl": "runtime"}
    assert right["times"]["runtimes"] == [2.0, 3.0]
    assert (right["invalidity"], right["correctness"]) == ("correct", 1)
    measured = {m["name"]: (m["value"], m["unit"]) for m in right["measurements"]}
    moved = select(["prefill/f16/neox/out/forward"])[0].bytes_moved
    assert measured["time"][0] == pytest.approx(moved / 48 / 1e6, rel=1e-6)
    assert measured["bandwidth"] == (pytest.approx(48, rel=1e-6), "GB/s")
    assert measured["share of the fastest copy"][0] == pytest.approx(0.96, rel=1e-6)
    assert [r["correctness"] for r in first[-3:]] == [0, 0, 0]
    assert all("runtimes" in r["times"] and not r["times"]["runtimes"] for r in first[-3:])


def test_figures_of_a_tuning():
    (problem,) = of_tuning(tune_report(), ["pocl"])
    right, *others = problem.to_dict()["results"]
    assert right["configuration"] == STRIDED.to_dict()
    assert right["times"]["runtimes"] == [2.0]
    measured = {m["name"]: m["value"] for m in right["measurements"]}
    assert measured == {"time": 2.0, "bandwidth": 20.0, "share of the fastest copy": 0.8}
    assert [o["invalidity"] for o in others] == [OF_OUTCOME[outcome] for outcome in OUTCOMES]


def test_figures_of_a_tuned_kernel_file():
    (problem,) = of_lab_tuning(lab_report())
    right, unsupported, wrong = problem.to_dict()["results"]
    moved = select(["prefill/f32/neox/out/forward"])[0].bytes_moved
    assert right["times"]["runtimes"] == [pytest.approx(moved / 20 / 1e6)]
    assert [right["invalidity"], unsupported["invalidity"], wrong["invalidity"]] == [
        "correct", "constraints", "correctness",
    ]  # fmt: skip
    assert unsupported["configuration"] == {"WIDTH": 8}


def test_every_reason_has_a_word_of_the_format():
    assert set(OF_OUTCOME) == set(OUTCOMES)
    assert {*OF_OUTCOME.values(), *OF_STATUS.values()} <= set(get_args(Invalidity))
    reasons = {"cannot express x": "constraints", "wrong: NMSE": "correctness", "the kernel did not end: no": "timeout",
               "error: BuildError: x": "compile", "the driver crashed": "runtime"}  # fmt: skip
    assert {reason: invalidity_of(reason) for reason in reasons} == reasons


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RopeError, match="cannot be written"):
        write_t4([], {}, str(tmp_path / "file" / "folder"))


def test_clrope_tune_writes_them(device, validate, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from clrope.cli import tune
    from clrope.cli.main import app
    from clrope.tune.winners import TuningReport

    report = TuningReport("key", [tuning_record()])
    monkeypatch.setattr(tune, "_tuned", lambda *_: report)
    words = ["tune", "--device", device.index, "--t4", str(tmp_path / "t4"), "--json"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["schema"] == "clrope.tune/2"
    paths = sorted((tmp_path / "t4").iterdir())
    assert len(paths) == 2
    validate(paths)


@pytest.mark.one_in(6)
def test_clrope_tune_writes_them_for_a_kernel_file(device, validate, tmp_path):
    from typer.testing import CliRunner

    from clrope.cli.main import app
    from clrope.lab.new_kernel import write_new

    mine = write_new(str(tmp_path / "mine"), "simple")
    mine.write_text(mine.read_text() + "\n// lab: tune UNUSED = 1, 2\n")
    words = ["tune", "--kernel", str(mine), "--device", device.index, "--workload", "decode-64/f32/neox/out/forward"]
    done = CliRunner().invoke(app, [*words, "--t4", str(tmp_path / "t4"), "--quiet"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    paths = sorted((tmp_path / "t4").iterdir())
    assert len(paths) == 2
    validate(paths)
    (results,) = (json.loads(p.read_text())["results"] for p in paths if p.name != "metadata.json")
    assert [r["configuration"] for r in results] in ([{"UNUSED": 1}, {"UNUSED": 2}], [{"UNUSED": 2}, {"UNUSED": 1}])
    assert all(r["invalidity"] == "correct" and r["times"]["runtimes"] for r in results)
