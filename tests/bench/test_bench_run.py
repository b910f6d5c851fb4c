"""A small run of a workload of every family on every device: what is timed is right, results are as the schema says."""

import json
import os
import socket

import jsonschema
import numpy as np
import pytest
from tools import store

from clrope import ConfigError
from clrope.benchmark import results
from clrope.benchmark.entry import rounds
from clrope.benchmark.measure import Options, labels, run
from clrope.benchmark.workloads import WORKLOADS, select


def small(**more):
    return Options(rounds=1, calls=1, latency_calls=2, tiny=True, **more)


def check_schema(result):
    jsonschema.Draft202012Validator(results.schema()).validate(json.loads(results.text_of(result)))


@pytest.fixture(scope="module")
def chosen(seed, pytestconfig):
    """One workload, drawn afresh, of one family in six, with --all of each: all workloads take minutes."""
    rng = np.random.default_rng(seed)
    families = {}
    for workload in [w for w in WORKLOADS if not w.calls]:
        families.setdefault(workload.family, []).append(workload)
    found = [group[rng.integers(len(group))] for group in families.values()]
    return found if pytestconfig.getoption("all") else found[rng.integers(6) :: 6]


@pytest.mark.one_in(8)
def test_every_workload_is_right_on_the_device(device, seed, chosen, tmp_path):
    seen = []
    everything = run(chosen, [device], small(seed=seed, with_peers=False), lambda *args: seen.append(args))
    assert [args[0] for args in seen] == list(range(len(chosen) + 1))
    check_file(everything, tmp_path / "result.json")
    (label,) = everything["devices"]
    assert [w["name"] for w in everything["workloads"]] == [w.name for w in chosen]
    for workload, record in zip(chosen, everything["workloads"], strict=True):
        faults = [e for e in record["entries"] if e["status"] != "ok"]
        assert not faults, f"{record['name']}, seed {everything['options']['seed']}: {faults}"
        names = {(e["kind"], e["name"]) for e in record["entries"] if e.get("device") == label}
        wanted = {("clrope", "arrays")}
        if workload.host:
            wanted |= {("clrope", "numpy plan.run"), ("clrope", "numpy out=")}
            wanted |= set() if workload.in_place else {("clrope", "numpy new")}
        if workload.latency:
            wanted |= {("launch", "raw launch"), ("launch", "pyopencl launch")}
        ceilings = ("scale",) if workload.in_place else ("enqueue_copy", "copy", "stream")
        ceilings += ("windows",) if workload.in_place and workload.family.startswith("partial") else ()
        wanted |= {("ceiling", n) for n in ceilings}
        assert names == wanted, record["name"]
        own = next(e for e in record["entries"] if e["kind"] == "clrope")
        assert own["event"]["n"] >= 1, record["name"]
        assert own["nmse"] <= {"f32": 1e-12, "f16": 6e-8, "bf16": 4e-6}[workload.dtype], record["name"]
        assert own["bytes"] == workload.tiny().bytes_moved
        assert own["launches"] == len(own["variants"]) or own["launches"] >= 1
        assert record["sets"] == (1 if workload.cached else 2)


def check_file(everything, path):
    """It is as the schema says, reads back, and tells no path of this machine."""
    check_schema(everything)
    results.write(everything, path)
    assert results.read_all(path) == [json.loads(json.dumps(everything))]
    # Entries are short lines, the rest is indented.
    text = path.read_text()
    assert max(map(len, text.splitlines())) < 2000
    assert os.path.expanduser("~") + "/" not in text
    assert os.getcwd() not in text
    assert socket.gethostname() not in text or len(socket.gethostname()) < 4


@pytest.mark.one_in(6)
def test_peers_and_devices_in_one_run(devices, seed):
    chosen = select(["decode-1/f32/neox/out/forward", "prefill/f32/normal/out/forward"])
    result = run(chosen, devices, small(seed=seed, peers=("numpy", "onnxruntime"), threads=1))
    assert list(result["devices"]) == labels(devices)
    assert set(result["peers"]) == {"numpy", "onnxruntime"}
    for record in result["workloads"]:
        own = [e["device"] for e in record["entries"] if (e["kind"], e["name"]) == ("clrope", "arrays")]
        assert own == labels(devices)
        found = [e for e in record["entries"] if e["kind"] == "peer"]
        assert {e["name"] for e in found} == {name for name, version in result["peers"].items() if version}
        assert all(e["status"] == "ok" for e in found)
    check_schema(result)
    alone = store.of_device(result, labels(devices)[0])
    check_schema(alone)
    assert list(alone["devices"]) == labels(devices)[:1]
    kept = [e for e in alone["workloads"][0]["entries"] if e["kind"] == "peer"]
    assert kept == [e for e in result["workloads"][0]["entries"] if e["kind"] == "peer"]


def test_a_wrong_device_result_is_not_timed(device, seed, monkeypatch):
    from clrope.call.runner import Runner

    monkeypatch.setattr(Runner, "run_on_host", lambda *_: None)
    monkeypatch.setattr(Runner, "run_on_device", lambda *_: None)
    result = run(select(["prefill/f32/neox/out/forward"]), [device], small(seed=seed, with_peers=False))
    for entry in result["workloads"][0]["entries"]:
        if entry["kind"] == "clrope":
            assert entry["status"] == "wrong"
            assert "NMSE" in entry["reason"]
            assert "wall" not in entry
    check_schema(result)


def test_what_does_not_fit_the_device_is_refused(device, seed):
    import dataclasses

    small_device = dataclasses.replace(device, max_alloc=1000)
    result = run(select(["prefill/f32/neox/out/forward"]), [small_device], small(seed=seed, with_peers=False))
    own = [e for e in result["workloads"][0]["entries"] if (e["kind"], e["name"]) == ("clrope", "arrays")]
    assert own[0]["status"] == "refused"
    assert "32768 bytes is more than the device's largest allocation, 1000" in own[0]["reason"]


@pytest.mark.parametrize("name", ["rounds", "peer_rounds", "repeats", "calls", "latency_calls"])
def test_options_are_checked(name):
    with pytest.raises(ConfigError, match=f"{name}: got 0, the least allowed is 1"):
        Options(**{name: 0})


def test_labels_of_devices_are_different():
    class Device:
        def __init__(self, platform):
            self.platform = platform

    pocl, other = Device("Portable Computing Language"), Device("Clover 3")
    assert labels([pocl, Device("Intel(R) OpenCL"), pocl, pocl, other]) == [
        "pocl",
        "intel",
        "pocl-2",
        "pocl-3",
        "clover",
    ]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "holds no JSON"),
        ("[]", "got schema 'list'"),
        ('{"schema": "clrope.bench/0"}', "got schema 'clrope.bench/0', allowed is 'clrope.bench/1'"),
        ('{"schema": "clrope.bench/1"}', "lacks started"),
    ],
)
def test_files_that_are_no_results(text, match, tmp_path):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=match):
        results.read_all(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        results.read_all(tmp_path / "none.json")


@pytest.mark.one_in(16)
def test_repeats_are_records_of_their_own(device, seed):
    seen = []
    chosen = select(["decode-1/f32/normal/in/forward", "decode-1/f32/neox/in/forward"])
    result = run(chosen, [device], small(seed=seed, with_peers=False, repeats=3), lambda *args: seen.append(args))
    assert [w["name"] for w in result["workloads"]] == [w.name for w in chosen for _ in range(3)]
    assert [args[:2] for args in seen] == [(k, 6) for k in range(7)]
    assert result["options"]["repeats"] == 3
    check_schema(result)


@pytest.mark.one_in(4)
def test_where_latency_counts_what_uses_a_device_alike_shares_turns(devices, seed, monkeypatch):
    seen = []

    def watched(entries, *rest, **more):
        seen.append({(c.device, c.kind, c.name): c.turn_group for c in entries})
        rounds(entries, *rest, **more)

    monkeypatch.setattr("clrope.benchmark.measure.rounds", watched)
    chosen = select(["decode-1/f32/neox/out/forward", "gqa/f32/neox/out/forward"])
    found = run(chosen, devices, small(seed=seed, with_peers=False))
    by_latency = {workload.latency: taken for workload, taken in zip(chosen, seen, strict=True)}
    short, long = by_latency[True], by_latency[False]
    assert {device for device, _, _ in short} == set(found["devices"])
    for (device, _, name), turn_group in short.items():
        # Calls on host arrays do more than launch, and wait otherwise.
        assert turn_group == (None if name.startswith("numpy") else device), (device, name)
    assert any(name.startswith("numpy") for _, _, name in short)
    assert set(long.values()) == {None}
