"""Tuning on the devices: deliberately broken variants, each in its own way, and what is used afterwards.

The broken ones are texts built in the place of a variant's own (`tune(..., sources=)`): compiled, launched, crashed
and hung by the driver itself.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

import clrope
from clrope import RopeConfig
from clrope.device import child
from clrope.device.cache import largest_cache
from clrope.emulation import emulate_rope
from clrope.errors import DeviceError
from clrope.kernels.variant import STRIDED, Variant, candidates
from clrope.layout import DTYPES
from clrope.select import database
from clrope.select.defaults import default_for
from clrope.select.records import SIZES, TuningKey, VariantResult
from clrope.tune import search, worker
from clrope.tune.search import tune
from clrope.tune.winners import TuningReport

PARAMETERS = (
    "__global const float *x, const long x_offset, const long x_batch, const long x_token, const long x_head, "
    "__global float *y, const long y_offset, const long y_batch, const long y_token, const long y_head, "
    "const int heads, __global const float *x2, const long x2_offset, const long x2_batch, const long x2_token, "
    "const long x2_head, __global float *y2, const long y2_offset, const long y2_batch, const long y2_token, "
    "const long y2_head, const int heads2, __global const float *cosine, const long cosine_offset, "
    "__global const float *sine, const long sine_offset, const long first_row, const long table_row, "
    "const long row_stride, const int tokens, const int tokens_per_item, const int heads_per_item, "
    "const float direction"
)
#: The first element that a work-item has to write.
PLACE = (
    "y[y_offset + get_global_id(2) * y_batch + get_global_id(0) * tokens_per_item * y_token"
    " + get_global_id(1) * heads_per_item * y_head]"
)


def text(body: str) -> str:
    return f"__kernel void rope_rotate_rows({PARAMETERS}) {{ {body} }}\n"


GOOD = Variant(width=4)
BEST = Variant(width=8, access="clang")
BROKEN = {
    Variant(width=2): ("build_error", text("no_such_thing();")),
    Variant(width=2, access="clang"): ("not_run", text("")),
    Variant(width=2, prefetch=64): ("wrong", text(f"{PLACE} = 1.0f;")),
    Variant(width=4, access="clang"): ("crash", text(f"{PLACE} = *(volatile __global float *)((long)heads);")),
}
ENDLESS = Variant(width=8)
KEYS = [TuningKey("f32", "neox", in_place, size) for in_place in (False, True) for size in SIZES]
NBYTES = {"small": 32 << 10, "medium": 1 << 20, "large": 2 << 20}


def tuned(
    device: clrope.DeviceInfo, variants: list[Variant], seconds: float = 30.0, **arguments: object
) -> TuningReport:
    return tune(device, seconds, KEYS, variants=variants, nbytes=NBYTES, **arguments)  # type: ignore[arg-type]


def assert_used(device: clrope.DeviceInfo, variant: Variant, rng: np.random.Generator) -> None:
    """Both sizes, in place and out of it, are rotated by this variant, to the right bits."""
    config = RopeConfig("neox", 128)
    for tokens in (3, 200):
        x = rng.standard_normal((tokens, 32, 128)).astype(np.float32)
        want = emulate_rope(x, 5, config)
        for out in (None, x):
            plan = clrope.Rope(config, device).plan(x, 5, out=out)
            # In caches the kernel computes its angles.
            assert plan.variants == [variant.changed(angles="fused")]
            np.testing.assert_array_equal(plan.run(), want)


@pytest.mark.one_in(24)
def test_broken_variants(device: clrope.DeviceInfo, cache: Path, rng: np.random.Generator, seed: int) -> None:
    if device.kind != "cpu":
        pytest.skip("a kernel that never ends may hang what a GPU shows on the screen")
    order = [STRIDED, *BROKEN, GOOD]
    sources = {variant: source for variant, (_, source) in BROKEN.items()}
    result = tuned(device, order, sources=sources, limit=600.0, seed=seed)
    assert not result.left
    assert not result.errors
    assert [r.key for r in result.records] == KEYS
    for record in result.records:
        found = {o.variant: o for o in record.results}
        assert set(found) == set(order)
        for variant, (kind, _) in BROKEN.items():
            assert found[variant].outcome == kind, f"{variant}: {found[variant]}"
            assert found[variant].reason
            assert found[variant].seconds is None
        assert found[Variant(width=2)].log.count("no_such_thing"), "the compiler's log is kept"
        assert record.winner in (STRIDED, GOOD)
        assert record.checked_against == "emulation"
        assert record.seed == seed
        assert sorted(o.outcome for o in (found[STRIDED], found[GOOD])) == ["ok", "slower"]
        assert all(found[v].seconds and found[v].gbs for v in (STRIDED, GOOD))
        assert record.ceiling_gbs
        assert record.ceiling_gbs > 0
    assert database.known(device, "f32", "neox").broken == {v.compiled for v in BROKEN}
    plan = clrope.Rope(RopeConfig("neox", 128), device).plan(np.zeros((3, 32, 128), np.float32), 0)
    assert plan.variants[0] in (STRIDED, GOOD, GOOD.changed(angles="fused"))


@pytest.mark.one_in(6)
def test_a_variant_that_never_ends(cpu: clrope.DeviceInfo, cache: Path, seed: int) -> None:
    """It is stopped; on a loaded machine the one before it may be, too."""
    source = text(f"volatile int go = 1; while (go) {PLACE} = 1.0f;")
    result = tune(
        cpu, 30.0, KEYS[:1], variants=[STRIDED, ENDLESS], nbytes=NBYTES, sources={ENDLESS: source}, limit=5.0, seed=seed
    )
    assert not result.errors
    (record,) = result.records
    outcomes = {r.variant: r for r in record.results}
    assert outcomes[ENDLESS].outcome == "timeout"
    assert outcomes[ENDLESS].reason
    assert outcomes[ENDLESS].seconds is None
    assert outcomes[STRIDED].outcome in ("ok", "timeout")
    assert database.known(cpu, "f32", "neox").broken >= {ENDLESS.compiled}


@pytest.mark.one_in(8)
def test_the_winner_is_used(device: clrope.DeviceInfo, cache: Path, rng: np.random.Generator, seed: int) -> None:
    # Alone it wins; which of two is faster is this machine's affair.
    result = tuned(device, [BEST], seconds=10.0, seed=seed)
    assert {record.winner for record in result.records} == {BEST}
    assert_used(device, BEST, rng)
    # A caller's own choice goes before it.
    own = clrope.Rope(RopeConfig("neox", 128), device, variant=GOOD)
    assert own.plan(np.zeros((3, 32, 128), np.float32), 0).variants == [GOOD]


def test_the_child_dies_at_each_step(cpu: clrope.DeviceInfo, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variant that had begun is blamed, the others are gone on with, and nothing is tried twice for nothing."""
    jobs = []

    def run(job: dict[str, object], env: object = None, **named: object) -> child.ChildResult:
        jobs.append(job)
        number = len(jobs)
        entries: list[dict[str, object]]
        if number == 1:  # in the middle of the checks
            entries = [{"begin": 0}, {"end": 0, "outcome": "", "reason": "", "log": ""}, {"begin": 1}]
            return child.ChildResult("crash", {}, "the driver crashed with SIGKILL while", "", "last words", entries)
        if number == 2:  # while a right one is timed on the first case
            entries = [{"begin": 2}, {"end": 2, "outcome": "", "reason": "", "log": ""}, {"begin": 2}]
            return child.ChildResult("timeout", {}, "no end", "", "", entries)
        case = {"nbytes": 4096, "ceiling": None, "failed": {}, "seconds": {"0": 1e-3}}
        if number == 3:
            entries = [{"begin": 0}, {"case": 0, **case}, {"begin": "ceiling"}]
            return child.ChildResult("crash", {}, "the driver crashed with SIGSEGV while", "", "", entries)
        entries = [{"case": n, **case} for n in range(5)]
        return child.ChildResult("ok", {}, "", "", "", entries)

    monkeypatch.setattr(child, "run", run)
    result = tuned(cpu, [STRIDED, GOOD, BEST])
    assert [(job["todo"], job["usable"], len(job["cases"]), job["ceiling"]) for job in jobs] == [  # type: ignore[arg-type]
        ([0, 1, 2], [], 6, True), ([2], [0], 6, True), ([], [0], 6, True), ([], [0], 5, False),
    ]  # fmt: skip
    assert len(result.records) == 6
    for record in result.records:
        assert record.winner == STRIDED
        assert VariantResult(GOOD, "crash", "the driver crashed with SIGKILL while", "last words") in record.results
        assert VariantResult(BEST, "timeout", "no end") in record.results
    assert len(result.errors) == 1
    assert "only for comparison" in result.errors[0]


def test_a_driver_that_hangs_at_each_variant(
    cpu: clrope.DeviceInfo, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two may hang after the time is over; then nothing else is tried. Within the time each is."""
    now = 0.0
    variants = [STRIDED, GOOD, BEST, *BROKEN]

    def run(job: dict[str, Any], env: object = None, **named: object) -> child.ChildResult:
        nonlocal now
        now += 30.0
        if not job["todo"]:
            return child.ChildResult("ok")
        return child.ChildResult("timeout", {}, "no end", "", "", [{"begin": job["todo"][0]}])

    monkeypatch.setattr(child, "run", run)
    monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: now, time=lambda: 0.0))
    for seconds, tried in ((2.0, 2), (44.0, 2), (90.0, 3), (1e4, len(variants))):
        result = tuned(cpu, variants, seconds)
        assert [[o.outcome for o in record.results] for record in result.records] == [["timeout"] * tried] * len(KEYS)
        left = len(variants) - tried
        assert result.errors == (
            [f"f32 neox: ended after {tried} variants that hang; {left} were not tried"] if left else []
        )


def test_no_time_to_check_a_variant(cpu: clrope.DeviceInfo, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = {"nbytes": 4096, "ceiling": 1e-3, "failed": {}, "seconds": {}}
    entries = [{"case": n, **case} for n in range(len(KEYS))]
    monkeypatch.setattr(child, "run", lambda *_, **__: child.ChildResult("ok", {}, "", "", "", entries))
    result = tuned(cpu, [STRIDED, GOOD])
    assert (result.records, result.left) == ([], KEYS)


def test_large_is_from_memory(cpu: clrope.DeviceInfo, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets of buffers are used in turn, so many that none is in a cache when it comes again."""
    jobs: list[Any] = []

    def run(job: Any, env: object = None, **named: object) -> child.ChildResult:
        jobs.append(job)
        return child.ChildResult("crash", {}, "enough", "", "", [])

    monkeypatch.setattr(child, "run", run)
    known = replace(cpu, health=replace(cpu.health, copy_gbs=50.0), global_mem=16 << 30)
    tune(known, 10.0, KEYS, variants=[STRIDED])
    cases = dict(zip(KEYS, jobs[0]["cases"], strict=True))
    for key, case in cases.items():
        together = case["sets"] * case["nbytes"] * (1 if key.in_place else 2)
        if key.size == "large":
            assert max(256 << 20, min(4 * largest_cache(cpu), 3 << 30)) <= together <= known.global_mem // 4
        else:
            assert case["sets"] == 1
    # What is slow to fill, or small, has fewer.
    slow = replace(cpu, health=replace(cpu.health, copy_gbs=0.1))
    assert search._sets(slow, 64 << 20) == 1
    assert search._sets(replace(cpu, global_mem=1 << 30), 64 << 20) <= 4


def test_sets_take_turns() -> None:
    """Also from one variant to the next: each goes on where the one before left off."""
    used: list[int] = []
    workload: Any = SimpleNamespace(turns=itertools.cycle(range(3)))
    damaged: list[int] = []
    compared: list[tuple[int, bool]] = []
    workload.damage, workload.verify = damaged.append, lambda turn, all_bits: compared.append((turn, all_bits))
    queue: Any = SimpleNamespace(queue=SimpleNamespace(finish=lambda: None))
    enqueues = [lambda _, n=n: used.append(n) for n in range(3)]
    for repeat in (2, 1, 4):
        assert worker.Worker._time(queue, enqueues, repeat, workload) < float("inf")
    assert used == damaged == [0, 1, 2, 0, 1, 2, 0]
    assert compared == [(turn, True) for turn in used]


def test_a_child_that_cannot_begin(cpu: clrope.DeviceInfo, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "available", lambda: False)
    result = tuned(cpu, [STRIDED, GOOD])
    assert result.records == []
    assert result.left == KEYS
    assert result.errors == ["f32 neox: no Python executable to start a child process with"]
    assert not (cache / "tuning.json").exists() or database.known(cpu, "f32", "neox").records == ()


@pytest.mark.one_in(8)
@pytest.mark.parametrize("dtype", [name for name in DTYPES if name not in search.USUAL_TYPES])
def test_types_that_are_tuned_on_request(cpu: clrope.DeviceInfo, cache: Path, seed: int, dtype: str) -> None:
    keys = [TuningKey(dtype, "neox", in_place, "small") for in_place in (False, True)]
    result = tune(cpu, 10.0, keys, variants=[STRIDED, GOOD], nbytes=NBYTES, seed=seed)
    assert result.errors == []
    assert [record.key for record in result.records] == keys
    assert all(len(record.results) == 2 and not any(r.broken for r in record.results) for record in result.records)


def test_no_time(cpu: clrope.DeviceInfo, cache: Path) -> None:
    result = tune(cpu, 0.0)
    assert result.records == []
    assert result.left == search.all_keys(cpu)


def test_an_unhealthy_device(cpu: clrope.DeviceInfo) -> None:
    sick = replace(cpu, health=replace(cpu.health, status="unhealthy", reason="it is ill"))
    with pytest.raises(DeviceError, match="it is ill"):
        tune(sick)


@pytest.mark.one_in(6)
def test_a_device_that_rounds_in_a_way_of_its_own(cpu: clrope.DeviceInfo, cache: Path, seed: int) -> None:
    """Where the strided kernel is close to the emulation, but not the same, the others are checked against it."""
    body = (
        "const int head = get_global_id(1);"
        "const long token = get_global_id(2) % tokens, batch = get_global_id(2) / tokens;"
        "x += x_offset + batch * x_batch + token * x_token + head * x_head;"
        "y += y_offset + batch * y_batch + token * y_token + head * y_head;"
        "for (int k = 0; k < slots; ++k) if (k < pairs) {"
        "const long at = (first_row + batch * row_stride + token) * table_row + k;"
        "const float c = cosine[cosine_offset + at], s = sine[sine_offset + at];"
        "const float a = x[window + k], b = x[window + k + pairs];"
        "y[window + k] = fma(a, c, -b * s); y[window + k + pairs] = fma(a, s, b * c);"
        "} else { const int j = k - pairs < window ? k - pairs : k + pairs; y[j] = x[j]; }"
    )
    strided = (
        "__kernel void rope_rotate_strided(__global const float *x, const long x_offset, const long x_batch, "
        "const long x_token, const long x_head, const long x_element, __global float *y, const long y_offset, "
        "const long y_batch, const long y_token, const long y_head, const long y_element, "
        "__global const float *cosine, const long cosine_offset, __global const float *sine, const long sine_offset, "
        "const long first_row, const long table_row, const long row_stride, const int tokens, "
        "const int pairs, const int window, "
        "const float direction, const int x_step, const int x_distance, const int y_step, const int y_distance, "
        f"const int slots, const int slots_per_item) {{ {body} }}"
    )
    result = tuned(cpu, [STRIDED, GOOD], seconds=10.0, sources={STRIDED: strided}, seed=seed)
    for record in result.records:
        outcomes = {o.variant: o.outcome for o in record.results}
        assert outcomes == {STRIDED: "ok", GOOD: "wrong"}
        assert record.checked_against == "strided"


def test_defaults_are_tried_first(cpu: clrope.DeviceInfo) -> None:
    variants = candidates("cpu", "f32")
    defaults = {default_for(cpu, key) for key in KEYS} & set(variants)
    assert defaults
    ordered = search._defaults_first(variants, cpu, KEYS)
    assert set(ordered[: len(defaults)]) == defaults
    assert sorted(ordered, key=variants.index) == variants


def test_nothing_wins_without_being_compared_with_the_default(cpu: clrope.DeviceInfo) -> None:
    key = KEYS[0]
    default = default_for(cpu, key)
    variants = [STRIDED, GOOD, default]
    assert len(set(variants)) == 3
    group = search._Group(cpu, 0, "f32", "neox", [key], variants, {key.size: 1 << 20}, 10.0, {}, 0)
    group.right = [0, 1]
    group.timed[key] = {"nbytes": 1 << 20, "seconds": {"0": 2e-3, "1": 1e-3}, "ceiling": None, "failed": {}}
    assert group._records() == []
    group.right.append(2)
    group.timed[key]["seconds"]["2"] = 2e-3
    (record,) = group._records()
    assert record.winner == GOOD


@pytest.mark.one_in(4)
@pytest.mark.parametrize("in_place", [False, True])
def test_all_that_a_timed_run_wrote_is_compared(
    device: clrope.DeviceInfo, in_place: bool, rng: np.random.Generator, seed: int
) -> None:
    same = [d.index for d in clrope.devices() if d.key == device.key]
    job = {"device": device.key, "ordinal": same.index(device.index), "dtype": "f32", "pairing": "neox", "seed": seed,
           "variants": [STRIDED.to_dict()], "usable": [0], "checked_against": "emulation", "sources": {}}  # fmt: skip
    one = worker.Worker(job, lambda **_: None)
    workload = worker._Workload(one, in_place, 96 << 10, sets=2)
    bound = {**one._tables(0, workload), "x_offset": np.int64(0), "y_offset": np.int64(0)}
    runs = [one._launch(0, workload.problem, {**bound, "x": x, "y": y}).enqueue for x, y in workload.sets]
    for _ in range(3):
        assert one._time(runs, 1, workload) > 0
    idle: list[Any] = [lambda queue: None] * 2
    with pytest.raises(worker._Failed, match="not_run"):
        one._time(idle, 1, workload)
    assert one._time(idle, 1, workload, compared=False) < 10
    place = int(rng.integers(workload.nbytes // 4))

    def spoiling(queue: Any) -> None:
        turn = (next(workload.turns) + 1) % 2
        next(workload.turns)
        runs[turn](queue)
        value = np.empty(1, np.uint32)
        cl.enqueue_copy(queue, value, workload.sets[turn][1], src_offset=4 * place)
        cl.enqueue_copy(queue, workload.sets[turn][1], value ^ np.uint32(1 << 12), dst_offset=4 * place)

    with pytest.raises(worker._Failed, match=f"1 of {workload.nbytes // 4} values are wrong"):
        one._time([spoiling] * 2, 1, workload)


#: How the default's times and the other one's are related in a fresh process.
FASTER = [[1.2e-3 * (1 + n / 1000), 1e-3] for n in range(30)]


def test_the_gain_over_the_default_has_a_lower_bound() -> None:
    assert search.gain_of([]) == (1.0, None)
    assert search.gain_of([[2.0, 1.0]] * 6) == (2.0, None), "of so few any may be chance"
    assert search.gain_of([[2.0, 1.0]] * 7) == (2.0, 2.0)
    gain, least = search.gain_of([[n, 100.0] for n in range(1, 101)])
    assert gain == 0.505
    assert least == 0.38  # the quantile of the binomial distribution


def test_only_what_is_faster_beyond_doubt_replaces_the_default(
    cpu: clrope.DeviceInfo, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times of the search do not decide, nor does a busy machine; what was found on an idle one stays."""
    key = KEYS[0]
    default = default_for(cpu, key)
    rounds: list[list[float]] = []
    busy: float | None = 0.01
    jobs = []

    def run(job: Any, env: object = None, **named: object) -> child.ChildResult:
        jobs.append(job)
        if job["todo"]:
            checks = [{"end": n, "outcome": "", "reason": "", "log": ""} for n in job["todo"]]
            case = {"nbytes": 4096, "ceiling": 1e-3, "failed": {}}
            times = {"0": 1.5e-3, "1": 1e-3, "2": 0.5e-3}  # the last one twice as fast as a copy
            return child.ChildResult("ok", entries=[*checks, {"case": 0, **case, "seconds": times}])
        return child.ChildResult("ok", entries=[{"case": 0, "pairs": rounds}])

    monkeypatch.setattr(child, "run", run)
    monkeypatch.setattr(search.OthersLoad, "share", lambda self: busy)

    def found() -> tuple[TuningReport, Any]:
        result = tune(cpu, 10.0, [key], variants=[default, GOOD, STRIDED])
        (record,) = result.records
        kept = database.known(cpu, "f32", "neox").record(key)
        assert kept is not None
        assert kept.winner == record.winner
        return result, record

    result, record = found()
    assert [job["cases"][0]["pair"] for job in jobs] == [[], [0, 1]]
    assert (record.winner, record.gain, record.busy) == (default, None, 0.01)
    assert (result.changed, result.doubtful) == ([], [key])
    reasons = {o.variant: o.reason for o in record.results}
    assert reasons[GOOD] == "in doubt: there was no time to compare it with the default again"
    assert reasons[STRIDED] == "2.00 times as fast as the fastest copy: not to be believed"
    rounds = FASTER
    busy = 0.5
    result, record = found()
    assert (record.winner, record.gain) == (default, None)
    assert "in doubt: other programs used 50% of the CPUs" in [o.reason for o in record.results]
    for busy in (None, 0.1):
        result, record = found()
        assert (record.winner, record.busy) == (GOOD, busy)
        assert record.gain == pytest.approx(1.2174)
        assert result.doubtful == []
        assert result.changed == ([key] if busy is None else [])
    busy, rounds = 0.9, []
    result, record = found()
    assert (record.winner, result.changed, result.doubtful) == (GOOD, [], [key])
    assert record.gain == pytest.approx(1.2174)
    busy, rounds = 0.0, [[1.012e-3, 1e-3]] * 30
    result, record = found()
    assert (record.winner, result.changed) == (default, [key])
    assert "in doubt: compared again, it is 1.01 times as fast as the default, 1.01 at least" in [
        o.reason for o in record.results
    ]
