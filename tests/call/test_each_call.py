"""What calls of one kind share shows in nothing but their speed: no stale result, no array kept alive."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import aligned_memory

import clrope
from clrope.emulation import emulate_rope
from clrope.kernels.variant import STRIDED, Variant
from clrope.select import database
from clrope.select.records import TuningKey, TuningRecord, VariantResult

CONFIG = clrope.RopeConfig("neox", n_dims=64)
SHAPE = (3, 2, 4, 64)


def values(rng: np.random.Generator) -> Any:
    return rng.uniform(-1, 1, SHAPE).astype(np.float32)


def test_each_call_is_its_own(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """Calls that differ in one thing, in turns, so that each finds what the others left."""
    x = values(rng)
    wide = np.zeros((3, 2, 4, 128), np.float32)
    wide[..., ::2] = x
    turned = np.ascontiguousarray(x.transpose(0, 2, 1, 3))
    scaled = clrope.RopeConfig("neox", n_dims=64, freq_scale=0.5)
    calls: list[tuple[Any, Any, clrope.RopeConfig, bool, str]] = [
        (x, [0, 1], CONFIG, True, "bsnd"),
        (x, [1, 0], CONFIG, True, "bsnd"),
        (x, [5, 7, 9], CONFIG, True, "bsnd"),
        (x, 1 << 40, CONFIG, True, "bsnd"),
        (x, [0, 1], CONFIG, False, "bsnd"),
        (x, [0, 1], scaled, True, "bsnd"),
        (x, [0, 1], clrope.RopeConfig("normal", n_dims=64), True, "bsnd"),
        (x, [0, 1], clrope.RopeConfig("neox", n_dims=32), True, "bsnd"),
        (x, [0, 1], clrope.RopeConfig("neox", n_dims=32, n_offs=32), True, "bsnd"),
        (x[::-1], [0, 1], CONFIG, True, "bsnd"),
        (wide[..., ::2], [0, 1], CONFIG, True, "bsnd"),
        (turned, [0, 1], CONFIG, True, "bnsd"),
        (x.astype(np.float16), [0, 1], CONFIG, True, "bsnd"),
    ]
    wanted = [
        emulate_rope(a, np.array(positions), config, forward, layout) for a, positions, config, forward, layout in calls
    ]
    for _ in range(2):
        for (a, positions, config, forward, layout), want in zip(calls, wanted, strict=True):
            got = clrope.rope(a, positions, config, forward, layout=layout, device=device.index)
            np.testing.assert_array_equal(got, want)
            given = np.full_like(want, 7)
            assert clrope.rope(a, positions, config, forward, given, layout, device.index) is given
            np.testing.assert_array_equal(given, want)
            own = a.copy()
            assert clrope.rope(own, positions, config, forward, own, layout, device.index) is own
            np.testing.assert_array_equal(own, want)


def test_positions_changed_in_place(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    x, positions = values(rng), np.array([3, 4])
    for start in (3, 11):
        positions[:] = start, start + 1
        np.testing.assert_array_equal(
            clrope.rope(x, positions, CONFIG, device=device.index), emulate_rope(x, start, CONFIG)
        )


def test_address_decides_anew(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    if device.kind != "cpu":
        pytest.skip("non-temporal stores are for CPUs")
    wanted = Variant(width=8, store="nontemporal")
    plain, short = wanted.changed(store="plain"), wanted.changed(width=4)
    op = clrope.Rope(CONFIG, device, variant=wanted)
    x = values(rng)
    want = emulate_rope(x, 3, CONFIG)
    for shift, variant in ((0, wanted), (1, plain), (16, wanted), (4, short), (0, wanted)):
        out = aligned_memory(x.size, x.dtype, shift).reshape(SHAPE)
        plan = op.plan(x, 3, out=out)
        assert plan.variants == [variant]
        np.testing.assert_array_equal(plan.run(), want)


def test_tuning_changes_the_next_call(cpu: clrope.DeviceInfo, cache: Path, rng: np.random.Generator) -> None:
    op, x = clrope.Rope(CONFIG, cpu), values(rng)
    key = TuningKey("f32", "neox", False, "small")

    def launched() -> Variant:
        plan = op.plan(x, 3)
        np.testing.assert_array_equal(plan.run(), emulate_rope(x, 3, CONFIG))
        return plan.variants[0]

    untuned = launched()
    for width in (2, 4):
        winner = Variant(width=width)
        database.save(cpu, [TuningRecord(key, (VariantResult(winner, "ok", seconds=1e-3),), 1 << 16)])
        assert launched() == winner.changed(angles="fused")
    broken = tuple(VariantResult(v, "wrong") for v in {untuned, Variant(width=8)})
    database.save(cpu, [TuningRecord(key, (*broken, VariantResult(STRIDED, "slower", seconds=1e-3)), 1 << 16)])
    assert launched() not in (untuned, Variant(width=8), Variant(width=4))
    database.forget(cpu)
    assert launched() == untuned


def test_another_cache_is_another_tuning(
    cpu: clrope.DeviceInfo, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    op, x = clrope.Rope(CONFIG, cpu), values(rng)
    untuned = op.plan(x, 3).variants
    database.save(
        cpu, [TuningRecord(TuningKey("f32", "neox", False, "small"), (VariantResult(Variant(width=2), "ok"),), 1 << 16)]
    )
    assert op.plan(x, 3).variants == [Variant(width=2, angles="fused")]
    monkeypatch.setenv("CLROPE_CACHE_DIR", str(tmp_path / "other"))
    assert op.plan(x, 3).variants == untuned


@pytest.mark.parametrize("out", ["new", "given", "in place"])
@pytest.mark.one_in(4)
def test_host_arrays_go_when_dropped(device: clrope.DeviceInfo, rng: np.random.Generator, out: str) -> None:
    clrope.rope(values(rng), 3, CONFIG, device=device.index)
    gc.collect()
    gc.disable()
    try:
        x = values(rng)
        given = {"new": None, "given": np.empty_like(x), "in place": x}[out]
        y = clrope.rope(x, [3, 4], CONFIG, out=given, device=device.index)
        gone = [weakref.ref(a) for a in (x, y)]
        del x, y, given
        assert [ref() is None for ref in gone] == [True, True]
    finally:
        gc.enable()


def test_device_arrays_go_when_dropped(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    import pyopencl.array as cla

    from clrope.call.runtime import queue_for

    queue = queue_for(device)
    x = cla.to_device(queue, values(rng))
    y = clrope.rope(x, [3, 4], CONFIG)
    queue.finish()
    gc.collect()
    gc.disable()
    try:
        gone = [weakref.ref(a) for a in (x, y)]
        del x, y
        assert [ref() is None for ref in gone] == [True, True]
    finally:
        gc.enable()


def test_threads(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """Each thread its own arrays and positions, all through the same operation."""
    x = values(rng)
    wanted = [emulate_rope(x, start, CONFIG) for start in range(4)]
    wrong: list[Any] = []

    def work(start: int) -> None:
        try:
            for _ in range(25):
                if not np.array_equal(clrope.rope(x, start, CONFIG, device=device.index), wanted[start]):
                    wrong.append(start)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
