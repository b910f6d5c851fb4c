"""What calls cost: every way in does the same step, a wrong one is not timed, and figures come from rounds."""

import itertools
import json

import jsonschema
import numpy as np
import pytest

from clrope.benchmark import calls, report, results
from clrope.benchmark.entry import BenchmarkEntry, WrongResultError, rounds
from clrope.benchmark.measure import Options, run
from clrope.benchmark.workloads import select

STEP = "calls/f16/normal/out/forward"
ONE_SHOT = {"numpy new", "numpy out=", "numpy in place"}
OWN = {"rope numpy", "rope arrays", "plan.run(positions)", "plan.run()", "numpy plan.run(positions)",
       "numpy plan.run()"}  # fmt: skip


@pytest.mark.one_in(8)
def test_every_way_in_is_right_and_timed(device, seed):
    measured = run(
        select([STEP, "calls-cold/f32", "calls-new", "tokens-4/f32", "tokens-64/f16"]), [device],
        Options(rounds=2, latency_calls=1, call_rounds=2, tiny=True, seed=seed, threads=2),
    )  # fmt: skip
    jsonschema.Draft202012Validator(results.schema()).validate(json.loads(results.text_of(measured)))
    check_tables(measured)
    for record in measured["workloads"]:
        bad = [e for e in record["entries"] if e["status"] not in ("ok", "refused")]
        assert not bad, record["name"]
        right = [e for e in record["entries"] if e["status"] == "ok"]
        assert all(e["wall"]["n"] == len(e["wall"]["turns"]) == 2 for e in right), "each round times each entry once"
        names = {e["name"] for e in right}
        if record["calls"] == "new":
            assert names == {"new array", "out="}
            continue
        installed = {name for name, version in measured["peers"].items() if version}
        assert {"ggml", "torch_eager"} & installed <= names
        if record["calls"] == "one-shot":
            assert names >= ONE_SHOT | {"memcpy"}
        else:
            assert names >= OWN | {"raw launch", "raw launches, one finish"}
            assert ("rope torch" in names) == ("torch_eager" in installed)


def check_tables(measured):
    times, compared, one_shot = report.tables([measured])[:3]
    assert {row[2] for row in times.rows} >= OWN
    (label,) = measured["devices"]
    assert {c.lstrip("#") for c in one_shot.columns} >= {"type", "tokens", "memcpy", f"in place, {label}"}
    assert [row[:2] for row in one_shot.rows] == [("f32", "4"), ("f16", "16")]
    names = {row[2] for row in compared.rows}
    assert {"plan.run(positions) / plan.run()", "plan.run() / raw launch", "new OpenCL array / out="} <= names


@pytest.fixture
def step():
    return calls.make_step(select(["calls/f32/neox"])[0].tiny(), 3)


def test_a_step_at_another_position_is_wrong(step):
    from clrope import reference

    config = step.workload.config
    right = [reference.rope(x, np.array([7]), config).astype(x.dtype) for layer in step.x for x in layer]
    assert step.check(right, 7) < 1e-12
    with pytest.raises(WrongResultError, match="layer 0, position 8"):
        step.check(right, 8)
    with pytest.raises(WrongResultError, match="layer 1"):
        step.check([*right[:-1], right[-1] * np.float32(1.01)], 7)
    with pytest.raises(WrongResultError, match="results for"):
        step.check(right[:-1], 7)


@pytest.mark.parametrize("name", ["numpy new", "numpy out=", "numpy in place"])
def test_a_wrong_one_shot_call_is_not_timed(device, seed, monkeypatch, name):
    """Each way is checked by what it wrote, in place by the inputs themselves."""
    right = calls.rope

    def spoiled(x, position, config, out=None, device=None):
        way = "numpy new" if out is None else "numpy in place" if out[0] is x[0] else "numpy out="
        return right(x, position + (way == name), config, out=out, device=device)

    monkeypatch.setattr(calls, "rope", spoiled)
    step = calls.one_shot_step(select(["tokens-16/f32"])[0].tiny(), seed)
    entries = {entry.name: entry for entry in calls.one_shot_entries(step, device, "it")}
    for other in ONE_SHOT - {name}:
        assert entries[other].check() < 1e-12
        assert entries[other].check() < 1e-12, "in place, the inputs are as before"
    with pytest.raises(WrongResultError, match="tensor 0, sampled tokens"):
        entries[name].check()


def test_other_memory_is_read_before_each_cold_call_and_not_timed(monkeypatch):
    made = []
    entry = BenchmarkEntry("clrope", "x", lambda i: made.append("call"), lambda: None, least_warm_up=2)
    entry.before = lambda: made.append("read")
    rounds([entry], 3)
    assert made == ["read", "call"] * 9
    assert len(entry.wall) == 3
    monkeypatch.setattr(calls, "host_cache_bytes", lambda: 1 << 16)
    seen = []
    monkeypatch.setattr(calls.np, "sum", lambda part: seen.append(part.nbytes))
    calls.read_other_memory()()
    assert sum(seen) > (1 << 18) - 8 * len(seen)


def test_the_position_moves_and_stays_in_the_tables(step):
    seen = [step.move() for _ in range(calls.LAST_POSITION)]
    assert all(a != b for a, b in itertools.pairwise(seen))
    assert (min(seen), max(seen)) == (calls.FIRST_POSITION, calls.LAST_POSITION - 1)


def record_of(entries, layers=32):
    workload = {"name": STEP, "latency": True, "calls": "step", "layers": layers, "rounds": 3, "entries": entries}
    return results.WorkloadRecord({"devices": {"pocl": {"kind": "cpu"}}, "options": {"rounds": 9}}, workload)


def entry(name, turns, kind="clrope", device="pocl"):
    wall = {"median": sorted(turns)[len(turns) // 2], "turns": turns}
    return {"kind": kind, "name": name, "status": "ok", "wall": wall} | ({"device": device} if device else {})


def test_ratios_are_of_each_round():
    record = record_of([entry("a", [10, 30, 100]), entry("b", [10, 10, 50], "peer", None)])
    # Of the medians it would be 3.
    assert record.compared(results.CallComparison("a / b", "a", "b"), "pocl") == 2
    assert record.compared(results.CallComparison("a / c", "a", "c"), "pocl") is None


def test_a_difference_is_in_microseconds_of_a_call():
    record = record_of([entry("a", [64000, 96000, 160000]), entry("b", [0, 0, 32000])])
    assert record.compared(results.CallComparison("a - b", "a", "b", per_call=True), "pocl") == 3


def test_of_entries_of_one_name_the_quickest_counts():
    record = record_of([entry("raw", [9, 9, 9]), entry("raw", [4, 4, 4]), entry("raw", [1, 1, 1], device="intel")])
    assert record.quickest("raw", "pocl")["wall"]["median"] == 4


def test_bare_launches_are_a_bound():
    record = record_of([entry("a", [9, 9, 9]), entry("bare", [4, 4, 4]), entry("b", [2, 2, 2])])
    assert record.least_of(results.CallComparison("a / b", "a", "b", least="bare"), "pocl") == 2
    assert record.least_of(results.CallComparison("a / b", "a", "b"), "pocl") is None
