"""A call like one before uses what was compiled for it, with its own addresses, where nothing else has changed."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from helpers import aligned_memory

import clrope
import clrope.call.runner
import clrope.call.runtime
import clrope.operation
from clrope.call.runtime import TABLES_KEPT, runtime_for
from clrope.emulation import emulate_rope
from clrope.errors import ShapeError
from clrope.kernels.variant import Variant

CONFIG = clrope.RopeConfig("neox", n_dims=64)
SHAPE = (2, 3, 4, 64)
PLACES = np.array([1, 2, 3])


@pytest.fixture
def host(device: clrope.DeviceInfo) -> clrope.DeviceInfo:
    """A device that works in NumPy's memory itself."""
    if device.kind != "cpu":
        pytest.skip("only a CPU works in NumPy's memory itself")
    runtime_for(device).calls.clear()
    return device


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that were checked and compiled."""
    seen: list[Any] = []
    real = clrope.operation.prepare

    def noted(*arguments: Any) -> Any:
        seen.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(clrope.operation, "prepare", noted)
    return seen


def values(rng: np.random.Generator, shape: Any = SHAPE, dtype: Any = np.float32, shift: int = 0) -> Any:
    """Numbers that begin `shift` elements after a multiple of 64, in memory of their own."""
    out = aligned_memory(int(np.prod(shape)), dtype, shift).reshape(shape)
    out[...] = rng.uniform(-1, 1, shape)
    return out


@pytest.mark.parametrize("out", ["new", "given", "in place"])
@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_other_arrays(
    host: clrope.DeviceInfo, rng: np.random.Generator, planned: list[Any], out: str, mode: Any, dtype: Any
) -> None:
    config = clrope.RopeConfig(mode, n_dims=64)
    op = clrope.Rope(config, host)
    keep = []
    for turn in range(6):
        x = values(rng, dtype=dtype, shift=1056 * turn)
        want = emulate_rope(x, [5, 6, 7], config)
        given = {"new": None, "given": values(rng, dtype=dtype, shift=32 * (7 - turn)), "in place": x}[out]
        got = op(x, np.array([5, 6, 7]), out=given)
        assert out == "new" or got is given
        np.testing.assert_array_equal(got, want)
        keep.append((x, got))
    assert len(planned) == 1


def test_several_tensors(host: clrope.DeviceInfo, rng: np.random.Generator, planned: list[Any]) -> None:
    """q, k and v, of which two are alike and go into one launch, whatever their order."""
    op = clrope.Rope(CONFIG, host)
    for heads in ((8, 2, 8), (2, 8, 8), (8, 8, 2)):
        del planned[:]
        for _ in range(3):
            x = tuple(values(rng, (1, 3, n, 64)) for n in heads)
            for y, a in zip(op(x, 9), x, strict=True):
                np.testing.assert_array_equal(y, emulate_rope(a, 9, CONFIG))
        assert len(planned) == 1


@pytest.mark.parametrize(
    "change",
    ["alignment", "strides", "dtype", "shape", "forward", "layout", "place of the result"],
)
def test_another_signature_is_compiled(
    host: clrope.DeviceInfo, rng: np.random.Generator, planned: list[Any], change: str
) -> None:
    op = clrope.Rope(CONFIG, host)

    def call(x: Any, positions: Any = PLACES, forward: bool = True, layout: str = "bsnd") -> Any:
        got = op(x, positions, forward, layout=layout)
        np.testing.assert_array_equal(got, emulate_rope(x, positions, CONFIG, forward, layout))
        return got

    x = values(rng)
    for _ in range(2):
        call(x)
    assert len(planned) == 1
    if change == "alignment":
        call(values(rng, shift=1))
    elif change == "strides":
        call(values(rng, (3, 2, 4, 64)).transpose(1, 0, 2, 3))
    elif change == "dtype":
        call(values(rng, dtype=np.float16))
    elif change == "shape":
        call(values(rng, (1, 3, 4, 64)))
    elif change == "forward":
        call(x, forward=False)
    elif change == "layout":
        call(values(rng, (2, 4, 3, 64)), layout="bnsd")
    else:
        want = emulate_rope(x, [1, 2, 3], CONFIG)
        np.testing.assert_array_equal(op(x, np.array([1, 2, 3]), out=x), want)
    assert len(planned) == 2


def test_positions_are_arguments(host: clrope.DeviceInfo, rng: np.random.Generator, planned: list[Any]) -> None:
    """Arrays are checked once for each form of positions: an offset, far ones, rows for all batches, rows of each."""
    op, x = clrope.Rope(CONFIG, host), values(rng)
    each = rng.integers(-99, 99, (2, 3))
    for _ in range(2):
        for positions in (4, 4, np.int64(4), 5, -7, 2**40, [4, 5, 6], np.array([1, 2, 4], np.int32), each, [3, 9], 5):
            np.testing.assert_array_equal(op(x, positions), emulate_rope(x, positions, CONFIG))
        assert len(planned) == 4
    with pytest.raises(ShapeError, match=r"positions: got shape \[4\](.|\n)*in rope"):
        op(x, [1, 2, 3, 4])


def test_counting_positions_need_no_table(host: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """A decode step whose position moves uploads nothing and makes no table."""
    op, x = clrope.Rope(CONFIG, host), values(rng, (1, 1, 32, 64))
    op(x, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clrope.call.runner, "upload", None)
        for p in (4, 5, np.int64(6), [7], np.array([8], np.int32)):
            np.testing.assert_array_equal(op(x, p), emulate_rope(x, p, CONFIG))


def test_what_is_refused_stays_refused(host: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    op = clrope.Rope(CONFIG, host)
    block = values(rng, (2 * SHAPE[0], *SHAPE[1:]))
    x, y = block[:2], block[2:]
    for _ in range(2):
        op(x, 3, out=y)
    before = block.copy()
    with pytest.raises(ShapeError, match="overlaps"):
        op(block[:2], 3, out=block[1:3])
    y.flags.writeable = False
    with pytest.raises(ShapeError, match="read-only"):
        op(x, 3, out=y)
    np.testing.assert_array_equal(block, before)


def test_only_so_many_tables_are_kept(host: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    op = clrope.Rope(CONFIG, host, variant=Variant(kernel="strided"))
    for tokens in range(2, 2 * TABLES_KEPT):
        x = values(rng, (1, tokens, 1, 64))
        positions = rng.integers(0, 99, tokens)
        np.testing.assert_array_equal(op(x, positions), emulate_rope(x, positions, CONFIG))
    assert len(runtime_for(host).tables) == TABLES_KEPT


def test_arrays_and_signatures_are_let_go(
    host: clrope.DeviceInfo, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = runtime_for(host)
    runtime.calls.clear()
    monkeypatch.setattr(runtime.calls, "_most", 3)
    op = clrope.Rope(CONFIG, host)
    gone = []
    for batch in (1, 2, 3, 4, 5, 5):
        x = values(rng, (batch, 3, 4, 64))
        y = op(x, 3)
        gone += [weakref.ref(x), weakref.ref(y)]
        del x, y
    gc.collect()
    assert [ref() is None for ref in gone] == [True] * len(gone)
    assert len(runtime.calls) == 3


def test_many_threads(host: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """One signature, several callers: each gets its own result."""
    op = clrope.Rope(CONFIG, host)
    inputs = [values(rng) for _ in range(4)]
    wanted = [emulate_rope(x, 3, CONFIG) for x in inputs]

    def work(number: int) -> int:
        wrong = 0
        for _ in range(60):
            out = np.full(SHAPE, np.nan, np.float32)
            op(inputs[number], 3, out=out)
            wrong += not np.array_equal(out, wanted[number])
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [0] * 4


def test_calls_in_turns(host: clrope.DeviceInfo, rng: np.random.Generator, planned: list[Any]) -> None:
    """q and k in turn, each with arrays of its own: neither is checked again."""
    op = clrope.Rope(CONFIG, host)
    shapes = ((1, 2, 8, 64), (1, 2, 2, 64))
    for p in (5, -3, 0, 2**30):
        for shape in shapes:
            x = values(rng, shape)
            np.testing.assert_array_equal(op(x, p), emulate_rope(x, p, CONFIG))
    assert len(planned) == 2
    # What differs is not taken for it: type, strides, alignment, position, direction, layout, a new tuning.
    x = values(rng, shapes[0])
    for other in (x.astype(np.float16), np.asfortranarray(x), values(rng, shapes[0], shift=1)):
        np.testing.assert_array_equal(op(other, 5), emulate_rope(other, 5, CONFIG))
    for p in (2**31 - 1, 2**31, 2**40):
        np.testing.assert_array_equal(op(x, p), emulate_rope(x, p, CONFIG))
    np.testing.assert_array_equal(op(x, 5, False), emulate_rope(x, 5, CONFIG, False))
    turned = values(rng, (1, 8, 2, 64))
    op(turned, 5, layout="bnsd")
    op(turned, 5, layout="bnsd")
    np.testing.assert_array_equal(op(turned, 5), emulate_rope(turned, 5, CONFIG))


def test_calls_that_take_turns(host: clrope.DeviceInfo, rng: np.random.Generator, planned: list[Any]) -> None:
    """Directions, types, views and read-only arrays of one shape: each is checked once, not at every call."""
    op, fused, locked = clrope.Rope(CONFIG, host), values(rng, (2, 3, 12, 64)), values(rng)
    locked.flags.writeable = False
    x, half = values(rng), values(rng, dtype=np.float16)
    calls = [(fused[:, :, :4], True), (locked, True), (x, True), (x, False), (half, True), (np.asfortranarray(x), True)]
    for p in range(4):
        for given, forward in calls:
            np.testing.assert_array_equal(op(given, p, forward), emulate_rope(given, p, CONFIG, forward))
    assert len(planned) == len(calls)


def test_in_place_is_one_buffer(
    host: clrope.DeviceInfo, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two buffers over the same memory are undefined."""
    import pyopencl as cl

    if runtime_for(host).host_access != "direct":
        pytest.skip("host memory is not passed by buffers that are that memory")
    op, made, real = clrope.Rope(CONFIG, host), [], cl.Buffer
    x = values(rng)
    op(x, 3, out=x)
    monkeypatch.setattr(cl, "Buffer", lambda *given, **more: made.append(more) or real(*given, **more))
    x = values(rng)
    want = emulate_rope(x, 5, CONFIG)
    runtime_for(host).host_buffers.clear()  # it may have one for the same address
    np.testing.assert_array_equal(op(x, 5, out=x), want)
    assert len(made) == 1
