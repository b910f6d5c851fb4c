"""The parts of a fleet that need no cluster: tasks, bits, files, projections."""

from __future__ import annotations

import builtins
import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import clrope
from clrope.benchmark.buffers import make_inputs
from clrope.benchmark.measure import Options
from clrope.benchmark.results import read_all, records
from clrope.benchmark.workloads import WORKLOADS
from clrope.emulation import emulate_rope
from clrope.errors import ConfigError
from clrope.fleet import BenchTask, FleetResult, VerifyTask, WorkerResult, projection, read_fleet, run_fleet
from clrope.fleet.fleet_result import compare_bits
from clrope.fleet.fleet_task import FleetAnswer
from clrope.suite import conformance
from clrope.testing import digest_of

KEPT = Path(__file__).parents[2] / "bench" / "results" / "intel-amd-epyc.json"


def answer(**digests: str) -> FleetAnswer:
    return FleetAnswer({}, digests)


def test_bits() -> None:
    assert compare_bits([]) is None
    assert compare_bits([("a", answer(x="1", y="2"))]) is None
    same = compare_bits([("a", answer(x="1", y="2")), ("b", answer(x="1", z="3"))])
    assert same is not None
    assert same.to_dict() == {"compared": 1, "identical": True, "different": []}
    three = [("a", answer(x="1", y="2")), ("b", answer(x="1", y="3")), ("c", answer(y="2"))]
    other = compare_bits(three)
    assert other is not None
    assert other.to_dict() == {"compared": 2, "identical": False, "different": ["y: a 2, b 3, c 2"]}


def test_bits_that_are_all_wrong_in_the_same_way() -> None:
    wrong = FleetAnswer({}, {"x": "1"}, {"x": "9"})
    found = compare_bits([("a", wrong), ("b", wrong)])
    assert found is not None
    assert found.different == ["x: a 1, b 1, NumPy 9"]


def test_a_task_travels_and_gives_the_same_anywhere(device: clrope.DeviceInfo) -> None:
    task = pickle.loads(pickle.dumps(VerifyTask(("seed",), 3, "type=f16 mode=2 ff=0 ef=0.0")))
    steps: list[tuple[int, int]] = []
    got = task.run(device, lambda done, total: steps.append((done, total)))
    report = conformance.verify(["seed"], [device.index], seed=3, text=task.text)
    assert got.digests == {f"{r.suite}: {r.case}": r.outcome.digest for r in report.results}
    assert (got.wrong, got.unusable, got.numpy) == ([], [], {})
    assert steps == [(k, len(report.results)) for k in range(len(report.results) + 1)]
    again = VerifyTask((), 3, fuzz=2).run(device, lambda done, total: None)
    assert [r["suite"] for r in again.result["results"]] == ["fuzz", "fuzz"]


def test_wrong_cases_and_their_bits_in_numpy(device: clrope.DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    real = conformance.verify

    def flipped(*rest: Any, **more: Any) -> conformance.Report:
        report = real(*rest, **more)
        report.differing = [f"{r.suite}: {r.case}: {r.device} {'1' * 16}, NumPy {'2' * 16}" for r in report.results]
        return report

    monkeypatch.setattr("clrope.fleet.fleet_task.verify", flipped)
    got = VerifyTask(("seed",), 3, "type=f16 mode=2 ff=0 ef=0.0").run(device, lambda done, total: None)
    assert got.numpy == dict.fromkeys(got.digests, "2" * 16)
    assert len(got.wrong) == len(got.digests)
    assert all(text.startswith("bits differ: seed: ROPE(") for text in got.wrong)


@pytest.mark.one_in(6)
def test_a_benchmark_travels(one: clrope.DeviceInfo) -> None:
    name = "decode-1/f32/neox/out/forward"
    task = pickle.loads(pickle.dumps(BenchTask((name,), Options(rounds=1, with_peers=False, tiny=True, seed=4))))
    got = task.run(one, lambda done, total: None)
    tiny = next(w for w in WORKLOADS if w.name == name).tiny()
    want = emulate_rope(make_inputs(tiny, 4).tensors[0], tiny.position_array(), tiny.config)
    assert got.digests == {name: digest_of([want])}
    assert got.wrong == []


def test_wrong_entries_of_a_benchmark(one: clrope.DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        {"kind": "clrope", "name": "arrays", "status": "error", "reason": "it failed"},
        {"kind": "peer", "name": "torch", "status": "error", "reason": "it failed, too"},
        {"kind": "peer", "name": "ggml", "status": "wrong", "reason": "it differs"},
        {"kind": "clrope", "name": "numpy", "status": "refused", "reason": "no memory"},
    ]
    workloads = [{"name": "w", "entries": entries}]
    monkeypatch.setattr("clrope.fleet.fleet_task.run_bench", lambda *rest: {"workloads": workloads})
    got = BenchTask((), Options()).run(one, lambda done, total: None)
    assert got.wrong == ["w: clrope arrays: it failed", "w: peer ggml: it differs"]


def result(*workers: WorkerResult, **more: Any) -> FleetResult:
    return FleetResult("bench", "2026-01-02T03:04:05+00:00", 1.0, list(workers), **more)


def test_a_result_is_ok_only_if_all_is_well() -> None:
    right = WorkerResult("tcp://a:1", "a", "gpu", "P", "ok")
    assert result(right).ok
    assert not result().ok
    for status in ("wrong", "missing", "error"):
        bad = dataclasses.replace(right, status=status, reason="it is so")  # type: ignore[arg-type]
        assert result(right, bad).failures == [f"worker tcp://a:1 on a, gpu: {status}: it is so"]
    bits = compare_bits([("a", answer(y="2")), ("b", answer(y="3"))])
    assert result(right, bits=bits).failures == ["1 cases differ in their bits"]


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    whole = result(WorkerResult("tcp://a:1", "a", "gpu", "P", "ok")).to_dict()
    path.write_text(json.dumps(whole), encoding="utf-8")
    assert read_fleet(path) == whole
    for text, message in (
        ("{", "holds no JSON"), ("[]", "got schema 'list'"), ('{"schema": "x"}', "got schema 'x'"),
        ('{"schema": "clrope.fleet/1"}', "lacks results"),
    ):  # fmt: skip
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=f"{path}: {message}"):
            read_fleet(path)
    with pytest.raises(ConfigError, match=r"none\.json: cannot be read"):
        read_fleet(tmp_path / "none.json")


def test_projection_from_kept_results(tmp_path: Path) -> None:
    name = "prefill/f16/neox/out/forward"
    record = [r for r in records(read_all(KEPT)) if r.name == name][-1]
    (label,) = record.devices
    taken = record.own(label)
    assert taken is not None
    one, three, many = projection(KEPT, (1, 3, 1000), tokens=10 * 4096, link_gbs=2.0)
    assert (one.calls, one.calls_of_one, three.calls_of_one, many.calls_of_one) == (10, 10, 4, 1)
    assert one.seconds == pytest.approx(10 * taken / 1e9)
    assert many.seconds == pytest.approx(taken / 1e9)
    # Every byte of 10 calls goes there and comes back: 4096 tokens of 32 heads of 128 halves.
    assert one.shipped == pytest.approx(one.seconds + 2 * 10 * 4096 * 32 * 128 * 2 / 2e9)
    assert projection(KEPT, (1,), tokens=1)[0].shipped is None

    fleet = tmp_path / "fleet.json"
    benches = [r | {"worker": "tcp://a:1"} for r in read_all(KEPT)]
    fleet.write_text(json.dumps(result(results=benches).to_dict()), encoding="utf-8")
    assert projection(fleet, (1, 3, 1000), tokens=10 * 4096, link_gbs=2.0) == [one, three, many]
    verified = {"schema": "clrope.verify/1", "worker": "tcp://a:1", "seed": 0, "bits": {"compared": 0, "differing": []},
                "suites": [], "devices": [], "summary": [], "results": []}  # fmt: skip
    fleet.write_text(json.dumps(result(results=[verified]).to_dict()), encoding="utf-8")
    with pytest.raises(ConfigError, match="has no results of clrope bench"):
        projection(fleet)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokens": 0}, "tokens: got 0"), ({"tokens": 1.5}, "tokens: got 1.5"), ({"workers": (1, 0)}, "workers: got 0"),
        ({"link_gbs": 0.0}, "link_gbs: got 0.0"), ({"link_gbs": float("nan")}, "link_gbs: got nan"),
        ({"workload": "prefill"}, "workload: .* has no right result of 'prefill'; it has .*prefill/f16/neox"),
    ],
)  # fmt: skip
def test_projections_that_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        projection(KEPT, **given)


def test_projections_from_damaged_files(tmp_path: Path) -> None:
    name = "prefill/f16/neox/out/forward"
    base: dict[str, Any] = next(r for r in read_all(KEPT) if any(w["name"] == name for w in r["workloads"]))
    workload = next(w for w in base["workloads"] if w["name"] == name)
    path = tmp_path / "other.json"
    for changed in (
        {"workloads": [{"entries": []}]}, {"workloads": [{"name": "x", "entries": []}]}, {"devices": [1]},
        {"workloads": [workload | {"tensors": []}]}, {"workloads": [workload | {"tensor_bytes": "9"}]},
        {"devices": {label: {} for label in base["devices"]}}, {"environment": {}},
    ):  # fmt: skip
        for whole in (base | changed, result(results=[base | {"worker": "a"} | changed]).to_dict()):
            path.write_text(json.dumps(whole), encoding="utf-8")
            with pytest.raises(ConfigError, match=r"other[.]json: "):
                projection(path)
    path.write_text(json.dumps(result(results=[{"schema": "clrope.bench/1"}]).to_dict()), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"other[.]json: "):
        projection(path)


def test_options_without_a_meaning_on_a_fleet(call: Any) -> None:
    for words, name in ((("verify", "--device", "pocl"), "--device"), (("bench", "--kernel", "x.cl"), "--kernel")):
        done = call(*words, "--scheduler", "tcp://127.0.0.1:9")
        assert done.exit_code == 2
        assert f"{name}: given together with --scheduler" in done.stderr
    done = call("verify", "--scheduler", "tcp://127.0.0.1:9", "--filter", "nothing has this")
    assert done.exit_code == 2
    assert "--filter: no case of seed matches 'nothing has this'" in done.stderr


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] in ("dask", "distributed"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"--scheduler: distributed is needed, `pip install 'clrope\[dask\]'`"):
        run_fleet("tcp://127.0.0.1:9", VerifyTask(("seed",), 0))
    from clrope.interop.dask import rope

    with pytest.raises(ConfigError, match=r"dask: the package is needed, `pip install 'clrope\[dask\]'`"):
        rope(None, 0, mode="neox")
