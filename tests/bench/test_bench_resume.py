"""An interrupted run keeps what it measured; the run that continues it ends as one that was not interrupted."""

import copy
import json

import pytest

from clrope import ConfigError
from clrope.benchmark import results
from clrope.benchmark.measure import BenchRun, Options, Watcher, labels, run
from clrope.benchmark.resume import read_unfinished
from clrope.benchmark.workloads import select

NAMES = ["decode-1/f32/neox/out/forward", "size-64KiB/f32/neox/out/forward"]


class Stop(BaseException):
    """As a signal."""


class Stopping(Watcher):
    """Stops the run in the timing of the given measurement."""

    def __init__(self, number):
        self.number, self.seen, self.shares = number, [], []

    def begins(self, done, total, what):
        self.seen.append((done, total, what))

    def doing(self, what, share):
        self.shares.append(share)
        if len(self.seen) == self.number and what.startswith("timing") and share:
            raise Stop


def options(seed, **more):
    return Options(rounds=2, calls=1, latency_calls=2, tiny=True, with_peers=False, seed=seed, **more)


def interrupted(device, seed, number, **more):
    made = BenchRun(select(NAMES), [device], options(seed, **more))
    watcher = Stopping(number)
    with pytest.raises(Stop):
        made.measure_all(watcher)
    return made, watcher


def check_schema(result):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(results.schema()).validate(json.loads(results.text_of(result)))


def form(value):
    """What a value is made of, without its figures; lists of figures whatever their length."""
    if isinstance(value, dict):
        return {name: form(inner) for name, inner in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        return [form(inner) for inner in value]
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


def entries_by_name(result):
    """The order of entries is new, and which ceilings are the best may differ."""
    records = []
    for w in result["workloads"]:
        kept = sorted((e["kind"], e["name"], str(form(e))) for e in w["entries"] if e["kind"] != "ceiling")
        records.append({**w, "entries": kept, "sets": 0})
    return {**result, "workloads": records}


@pytest.mark.one_in(12)
def test_an_interrupted_run_is_continued(device, seed, tmp_path):
    first, watcher = interrupted(device, seed, 4, repeats=2)
    assert watcher.seen == [(k, 4, name) for k, name in enumerate(sorted(NAMES * 2))]
    assert first.missing == [NAMES[1]]
    kept = first.result()
    assert kept["missing"] == [NAMES[1]]
    assert [w["name"] for w in kept["workloads"]] == [NAMES[0], NAMES[0], NAMES[1]]
    check_schema(kept)
    results.write(kept, tmp_path / "r.json")
    unfinished = read_unfinished(str(tmp_path / "r.json"))
    assert list(unfinished.workloads) == select(NAMES)
    assert unfinished.devices_of([device]) == [device]
    assert unfinished.options.repeats == 2
    assert unfinished.options.tiny
    second = BenchRun(unfinished.workloads, [device], unfinished.options, unfinished.result)
    unfinished.check_run(second)
    second.measure_all(Watcher())
    whole = second.result()
    check_schema(whole)
    assert "missing" not in whole
    assert whole["workloads"][:3] == kept["workloads"]
    assert whole["started"] == kept["started"]
    assert whole["seconds"] >= kept["seconds"]
    at_once = run(select(NAMES), [device], options(seed, repeats=2))
    assert form(entries_by_name(whole)) == form(entries_by_name(at_once))


def test_shares_of_the_turns_rise_to_the_whole(device, seed):
    watcher = Stopping(0)
    BenchRun(select(NAMES[:1]), [device], options(seed)).measure_all(watcher)
    assert watcher.shares == sorted(watcher.shares)
    assert watcher.shares[-1] == 1
    assert watcher.seen == [(0, 1, NAMES[0]), (1, 1, "")]


def test_nothing_complete_and_processes_are_missing_by_name(device, seed):
    made, _ = interrupted(device, seed, 1, processes=True)
    (label,) = labels([device])
    assert made.missing == [*NAMES, f"first call {label}", f"peak memory {label}"]
    assert made.result()["workloads"] == []
    check_schema(made.result())
    made.found.append({"kind": "first call", "device": label, "status": "error", "reason": "x"})
    assert made.missing == [*NAMES, f"peak memory {label}"]


@pytest.fixture(scope="module")
def unfinished_result(device, seed):
    return interrupted(device, seed, 2)[0].result()


@pytest.fixture
def unfinished(unfinished_result, tmp_path):
    """Write a changed copy of an interrupted run's file and read it."""

    def make(change=lambda result: None):
        result = copy.deepcopy(unfinished_result)
        change(result)
        results.write(result, tmp_path / "r.json")
        return read_unfinished(str(tmp_path / "r.json"))

    return make


def test_the_same_options_are_taken(unfinished, unfinished_result, device):
    found = unfinished()
    told = unfinished_result["options"]
    found.check_options({"rounds": told["rounds"], "seed": told["seed"], "tiny": True, "peers": [], "calls": None})
    found.check_workloads(select(NAMES))
    assert not found.kernel_files
    assert not found.options.processes
    assert not found.options.with_peers
    assert not found.options.clpeak


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rounds": 7}, "rounds: got 7, the file has 2"),
        ({"peers": ["ggml"]}, r"peers: got \['ggml'\], the file has \[\]"),
        ({"processes": True}, "processes: got True, the file has False"),
        ({"samples": True}, "samples: got True, the file has False"),
    ],
)
def test_other_options_are_refused(unfinished, given, said):
    with pytest.raises(ConfigError, match=f"--resume: .*r.json was measured in another way \\({said}\\)"):
        unfinished().check_options(given)


def test_other_workloads_devices_and_environments_are_refused(unfinished, device, seed):
    with pytest.raises(ConfigError, match=r"other workloads than the file has: 'size-64KiB/.*' is in the file only"):
        unfinished().check_workloads(select(NAMES[:1]))
    with pytest.raises(ConfigError, match=r"device: .* is not among these"):
        unfinished().devices_of([])
    with pytest.raises(ConfigError, match=r"device: got a, b, the file has "):
        unfinished().devices_of([device, device], ["a", "b"])
    (label,) = labels([device])
    here = BenchRun(select(NAMES), [device], options(seed))

    def other_driver(result):
        result["devices"][label]["driver_version"] = "0"

    def other_numpy(result):
        result["environment"]["versions"]["numpy"] = "0"

    def other_cpu(result):
        result["environment"]["cpu"] = "Z80"

    def other_peers(result):
        result["peers"] = {"ggml": "1"}

    for change, said in (
        (other_driver, f"{label}: driver_version is .* here, 0 in the file"),
        (other_numpy, "versions: numpy is .* here, 0 in the file"),
        (other_cpu, "cpu is .* here, Z80 in the file"),
        (other_peers, "peers: ggml is None here, 1 in the file"),
    ):
        with pytest.raises(ConfigError, match=said):
            unfinished(change).check_run(here)


def test_files_that_are_not_of_an_interrupted_run_are_refused(unfinished):
    with pytest.raises(ConfigError, match="is complete, nothing is missing"):
        unfinished(lambda result: result.pop("missing"))
    with pytest.raises(ConfigError, match="names 'x/f32/neox/out/forward', which is no workload"):
        unfinished(lambda result: result["missing"].append("x/f32/neox/out/forward"))


@pytest.mark.one_in(8)
def test_the_time_of_every_call_is_kept_where_asked_for(device, seed, tmp_path):
    result = run(select(NAMES[:1]), [device], options(seed, samples=True))
    check_schema(result)
    for entry in result["workloads"][0]["entries"]:
        assert len(entry["wall"]["samples"]) == entry["wall"]["n"]
        assert min(entry["wall"]["samples"]) == entry["wall"]["min"]
    plain = run(select(NAMES[:1]), [device], options(seed))
    assert all("samples" not in entry["wall"] for entry in plain["workloads"][0]["entries"])
    assert "samples" not in plain["options"]
