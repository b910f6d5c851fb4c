"""Plans: run again, with other arrays and positions; transfers by map and by copy; chunks; several tensors at once."""

from __future__ import annotations

import linecache
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyopencl.array as cla
import pytest
from helpers import Case, View, assert_rotated, same, with_largest_allocation

import clrope
from clrope import DeviceError, Rope, RopeConfig, ShapeError
from clrope.call.call import Call
from clrope.call.chunks import Chunk, chunks, chunks_that_fit
from clrope.call.filled_tables import Filler
from clrope.call.runtime import queue_for, runtime_for
from clrope.emulation import emulate_rope
from clrope.kernels.variant import Variant
from clrope.tables import rotate_plan

TYPES = ["f16", "bf16", "f32", "f64"]
SHAPE = (2, 5, 3, 16)


def new(rng: np.random.Generator, dtype: Any = np.float32, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return rng.uniform(-1, 1, shape).astype(dtype)


@pytest.mark.parametrize("transfer", ["map", "copy"])
@pytest.mark.parametrize("in_place", [True, False])
def test_run_again(device: clrope.DeviceInfo, transfer: Any, in_place: bool, rng: np.random.Generator) -> None:
    config = RopeConfig("neox", 12)
    x = new(rng)
    positions = np.arange(5)
    plan = Rope(config, device.index).plan(x, positions, out=x if in_place else None, transfer=transfer)
    for k in range(4):
        # The input is read as it is at each run, whatever the host has done to it since.
        x[...] = new(rng)
        want = emulate_rope(x, positions, config)
        if k == 2:
            positions = rng.integers(-999, 999, 5)
            want = emulate_rope(x, positions, config)
            got = plan.run(positions=positions)
        else:
            got = plan.run()
        assert (got is x) == in_place
        assert got is plan.out
        assert same(got, want).all()


@pytest.mark.parametrize("transfer", ["map", "copy"])
@pytest.mark.parametrize("in_place", [True, False])
def test_run_with_other_arrays(
    device: clrope.DeviceInfo, transfer: Any, in_place: bool, rng: np.random.Generator
) -> None:
    config = RopeConfig("normal")
    x = new(rng)
    first = x.copy()
    plan = Rope(config, device.index).plan(x, 3, out=x if in_place else None, transfer=transfer)
    plan.run()
    for _ in range(3):
        y = new(rng)
        positions = rng.integers(0, 100000, 5)
        want = emulate_rope(y, positions, config)
        got = plan.run(y, positions)
        assert same(got, want).all()
        assert (got is y) == in_place
    assert same(x, emulate_rope(first, 3, config) if in_place else first).all()


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kind", ["map", "copy", "opencl"])
def test_run_with_another_output(device: clrope.DeviceInfo, kind: Any, several: bool, rng: np.random.Generator) -> None:
    """For one run; before it and after it the results are in the plan's own output."""
    config, op = RopeConfig("neox"), Rope(RopeConfig("neox"), device.index)
    host = new(rng)
    make = partial(cla.to_device, queue_for(device.index)) if kind == "opencl" else np.copy
    x, others = make(host), [make(np.zeros_like(host)) for _ in range(2)]
    more = {} if kind == "opencl" else {"transfer": kind}
    plan = op.plan((x, make(host)), 3, **more) if several else op.plan(x, 3, **more)
    own = plan.out

    def parts(result: Any) -> list[np.ndarray]:
        return [a.get() if kind == "opencl" else a.copy() for a in (result if several else (result,))]

    def check(result: Any, at: Any, host: np.ndarray = host) -> None:
        for part in parts(result):
            assert same(part, emulate_rope(host, at, config)).all()

    check(plan.run(), 3)
    for at in (9, [4, 1, 7, 0, -3], 2**40):
        given = tuple(others) if several else others[0]
        got = plan.run(positions=at, out=given)
        assert all(a is b for a, b in zip(got, given, strict=True)) if several else got is given
        check(got, at)
        assert plan.out is own or several
        kept = parts(plan.out)
        again = plan.run()
        assert again is own or several
        check(again, at)
        check(given, at)
        check(plan.run(positions=3), 3)
        check(given, at)
        assert all(same(a, emulate_rope(host, 3, config)).all() for a in kept)
    if several:
        got = plan.run(out=(None, others[1]), positions=5)
        assert got[0] is own[0]
        assert got[1] is others[1]
        check(got, 5)
    else:
        host = new(rng)
        check(plan.run(make(host), out=others[1]), 3, host)
        check(plan.run(), 3, host)


def test_outputs_that_a_run_refuses(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    x, op = new(rng), Rope(RopeConfig("neox"), device.index)
    plan = op.plan(x, 3)
    want = plan.run().copy()
    for out, message in (
        (x, "out: is the plan's input"),
        (new(rng, shape=(2, 5, 3, 8)), r"out: got shape \[2, 5, 3, 8\], .* was made for shape \[2, 5, 3, 16\]"),
        (new(rng, np.float16), "out: got .* f16"),
        (new(rng, shape=(2, 3, 5, 16)).transpose(0, 2, 1, 3), "out: got .* strides"),
        ([x], "out: got list"),
        (x[:, ::-1], "out: got .* strides"),
    ):  # fmt: skip
        with pytest.raises(ShapeError, match=message):
            plan.run(out=out)
    with pytest.raises(ShapeError, match="out: got 1 arrays, the plan was made for 2"):
        op.plan((x, x.copy()), 0).run(out=[new(rng)])
    with pytest.raises(ShapeError, match="out: an output overlaps another tensor"):
        op.plan((x, x.copy()), 0).run(out=[want, want])
    with pytest.raises(ShapeError, match="out: given to a plan that rotates in place"):
        op.plan(x, 0, out=x).run(out=want)
    assert same(plan.run(), want).all()
    empty = new(rng)[:0]
    plan = op.plan(empty, 0)
    assert plan.run(out=empty.copy()) is not plan.out
    assert plan.run() is plan.out


def test_positions_of_a_plan(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    x, config = new(rng), RopeConfig("neox")
    each = Rope(config, device.index).plan(x, rng.integers(0, 99, (2, 5)))
    shared = rng.integers(0, 99, 5)
    assert same(each.run(positions=shared), emulate_rope(x, shared, config)).all()
    assert same(each.run(positions=[7, 1]), emulate_rope(x, [7, 1], config)).all()
    assert same(each.run(positions=2**40), emulate_rope(x, 2**40, config)).all()
    together = Rope(config, device.index).plan(x, shared)
    own = rng.integers(0, 99, (2, 5))
    assert same(together.run(positions=own), emulate_rope(x, own, config)).all()
    assert same(together.run(positions=shared), emulate_rope(x, shared, config)).all()
    with pytest.raises(ShapeError, match=r"positions: got shape \[4\]"):
        together.run(positions=[1, 2, 3, 4])
    assert same(together.run(), emulate_rope(x, shared, config)).all()


def test_arrays_that_do_not_fit_a_plan(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    x, config = new(rng), RopeConfig("neox")
    plan = Rope(config, device.index).plan(x, 0)
    wide = new(rng, shape=(2, 5, 3, 32))[..., :16]
    for wrong, message in (
        (
            new(rng, np.float16),
            "x: got shape .* f16 in numpy memory; the plan was made for shape .* f32 in numpy memory",
        ),
        (new(rng, shape=(2, 5, 3, 8)), r"x: got shape \[2, 5, 3, 8\]"),
        (wide, r"strides \[480, 96, 32, 1\], f32 in numpy memory; the plan .* strides \[240, 48, 16, 1\]"),
        (plan.out, "x: is the plan's own output, the plan was made to rotate out of place"),
        (np.zeros((5, 3), np.float32), "x: got rank 2"),
    ):
        with pytest.raises(ShapeError, match=message):
            plan.run(wrong)
    readable = new(rng)
    readable.setflags(write=False)
    in_place = Rope(config, device.index).plan(x, 0, out=x)
    with pytest.raises(ShapeError, match="x: the array is read-only"):
        in_place.run(readable)
    two = Rope(config, device.index).plan((x, x.copy()), 0)
    with pytest.raises(ShapeError, match="x: got 1 arrays, the plan was made for 2"):
        two.run((x,))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", TYPES)
def test_tiny_chunks_give_the_same(device: clrope.DeviceInfo, dtype: str, monkeypatch: Any, seed: int) -> None:
    case = Case({"mode": "neox", "n_dims": 12}, (3, 7, 2, 16), dtype, positions="BS", x=View((1, 2, 1, -1)), seed=seed)
    for out in (None, "in place", View((1, -1, 1, 1), (0, 0, 0, 2))):
        for positions in ("BS", "S", "B", "int"):
            one = replace(case, out=out, positions=positions)
            for k, tokens in enumerate((1, 3, 8, 1000)):
                # A constructor's default, so bound once: patched there.
                real = Call.__init__
                monkeypatch.setitem(real.__kwdefaults__, "copy_chunk_bytes", tokens * 2 * 16 * 2)  # type: ignore[index]
                built = one.build()
                runtime_for(device).calls.clear()
                op = Rope(RopeConfig.from_dict(one.config), device.index)
                plan = op.plan(built.x, built.positions, out=built.out, transfer="copy")
                got = plan.run()
                assert tokens > 8 or plan.launches >= 21 // tokens // 3
                assert_rotated(got, built, device, by_oracle=k == 0)


@pytest.mark.parametrize("transfer", ["map", "copy"])
@pytest.mark.parametrize("dtype", ["f16", "f64"])
def test_a_small_largest_allocation(device: clrope.DeviceInfo, dtype: str, transfer: Any, seed: int) -> None:
    """Tensors and tables beyond the device's largest allocation are cut, and come out the same."""
    case = Case({"mode": "normal"}, (3, 40, 2, 32), dtype, positions="BS", low=-(2**31), high=2**31, seed=seed)
    for out in (None, "in place", View(order=(1, 0, 2, 3), pads=(0, 0, 0, 2))):
        one = replace(case, out=out)
        whole = 0
        small = 3 * 4096  # host memory is used by whole pages
        for limit in (device.max_alloc, small):
            built = one.build()
            op = Rope(RopeConfig.from_dict(one.config), with_largest_allocation(device, limit))
            plan = op.plan(built.x, built.positions, out=built.out, transfer=transfer)
            whole = whole or plan.launches
            # Any pointer of the host will do with fine-grained system SVM, however much memory is behind it.
            any_size = transfer == "map" and runtime_for(device).host_access == "svm"
            assert plan.launches == whole if limit > small else plan.launches > whole or any_size
            assert_rotated(plan.run(), built, device, by_oracle=limit == small)


def test_a_token_that_does_not_fit(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    if runtime_for(device).host_access in ("svm", "copied"):
        pytest.skip("with fine-grained system SVM any size fits, a mapped tensor is else copied in parts")
    x = new(rng)
    before = x.copy()
    with pytest.raises(DeviceError, match="x: one token alone does not fit the device's largest allocation"):
        Rope(RopeConfig("neox"), with_largest_allocation(device, 64)).plan(x, 0, out=x, transfer="map")
    assert (x == before).all()


def test_chunks_cover_every_token_once(rng: np.random.Generator) -> None:
    for _ in range(200):
        batches, tokens, most = (int(rng.integers(1, n)) for n in (5, 9, 40))
        stride = int(rng.choice([0, tokens]))
        seen = np.zeros((batches, tokens), int)
        for c in chunks(batches, tokens, stride, most):
            seen[c.batches, c.tokens] += 1
            b, s = c.batches.stop - c.batches.start, c.tokens.stop - c.tokens.start
            assert b * s <= most
            # Row of the first token of each batch of the chunk, as the kernel will compute it.
            for k in range(b):
                row = c.rows.start + k * c.row_stride
                assert row == (c.batches.start + k) * stride + c.tokens.start
                assert row + s <= c.rows.stop
        assert (seen == 1).all()
    with pytest.raises(DeviceError, match="x: one token alone"):
        chunks_that_fit(2, 3, 0, 10, lambda _: False)
    small = chunks_that_fit(1, 8, 0, 100, lambda c: c.tokens.stop - c.tokens.start <= 3)
    assert all(isinstance(c, Chunk) for c in small)
    assert len(small) == 4  # 8, 4, 2 tokens


def test_the_size_of_chunks() -> None:
    def cut(batches: int, tokens: int, stride: int, most: int) -> list[Chunk]:
        return chunks_that_fit(batches, tokens, stride, most, lambda _: True)

    assert cut(3, 5, 5, 99) == [Chunk(slice(0, 3), slice(0, 5), slice(0, 15), 5)]
    assert cut(3, 5, 0, 99) == [Chunk(slice(0, 3), slice(0, 5), slice(0, 5), 0)]
    assert cut(3, 5, 5, 14) == [
        Chunk(slice(0, 2), slice(0, 5), slice(0, 10), 5), Chunk(slice(2, 3), slice(0, 5), slice(10, 15), 5)
    ]  # fmt: skip
    assert cut(2, 5, 5, 4) == [
        Chunk(slice(0, 1), slice(0, 4), slice(0, 4), 0), Chunk(slice(1, 2), slice(0, 4), slice(5, 9), 0),
        Chunk(slice(0, 1), slice(4, 5), slice(4, 5), 0), Chunk(slice(1, 2), slice(4, 5), slice(9, 10), 0),
    ]  # fmt: skip
    assert cut(1, 3, 0, 0) == [Chunk(slice(0, 1), slice(s, s + 1), slice(s, s + 1), 0) for s in range(3)]
    assert [c.batches for c in cut(8, 1, 0, 4)] == [slice(0, 4), slice(4, 8)]
    assert cut(0, 5, 5, 9) == []
    assert sum(c.batches.stop - c.batches.start for c in cut(2, 0, 0, 9)) == 2
    assert len(chunks_that_fit(1, 2, 0, 9, lambda c: c.tokens.stop - c.tokens.start == 1)) == 2
    # One token, then halves, rounded up: 100 -> 50 -> 25 -> 13 (of which the last, of 9, would fit) -> 7.
    tried: list[int] = []

    def fits(chunk: Chunk) -> bool:
        tried.append(chunk.tokens.stop - chunk.tokens.start)
        return tried[-1] <= 9

    found = chunks_that_fit(1, 100, 0, 10**9, fits)
    assert [c.tokens.stop - c.tokens.start for c in found] == [7] * 14 + [2]
    assert tried[:6] == [100, 1, 50, 25, 13, 7]


def test_no_fp64(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    op = Rope(RopeConfig("neox"), replace(device, fp64=False))
    with pytest.raises(DeviceError, match=r"device '.*' on '.*' has no fp64, float64 tensors need it"):
        op(new(rng, np.float64), 0)
    assert op(new(rng, np.float32), 0).dtype == np.float32


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", TYPES)
def test_several_tensors(device: clrope.DeviceInfo, dtype: str, rng: np.random.Generator) -> None:
    config = RopeConfig("normal", 8)
    kind = clrope.layout.DTYPES[dtype]
    q, k = new(rng, kind, (2, 5, 8, 16)), new(rng, kind, (2, 5, 2, 12))
    positions = rng.integers(0, 9999, (2, 5))
    for out in (None, (None, np.zeros_like(k)), (q.copy(), None)):
        q2, k2 = clrope.rope((q, k), positions, config, out=out, device=device.index)
        assert out is None or (out[0] is None or q2 is out[0])
        assert out is None or (out[1] is None or k2 is out[1])
        assert same(q2, emulate_rope(q, positions, config)).all()
        assert same(k2, emulate_rope(k, positions, config)).all()
    (single,) = clrope.rope([q], positions, config, device=device.index)
    assert same(single, q2).all()


def test_several_tensors_of_different_types(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    tensors = tuple(new(rng, clrope.layout.DTYPES[t]) for t in TYPES)
    config = RopeConfig("imrope", sections=(3, 3, 2))
    positions = rng.integers(0, 9999, (3, 2, 5))
    for got, x in zip(clrope.rope(tensors, positions, config, device=device.index), tensors, strict=True):
        assert got.dtype == x.dtype
        assert same(got, emulate_rope(x, positions, config)).all()


EMPTY = (1, 0, 3, 16)


@pytest.mark.parametrize("kind", ["numpy", "opencl"])
@pytest.mark.parametrize("make", ["rope", "rotate", "several"])
def test_a_plan_without_elements_offers_what_others_do(device: clrope.DeviceInfo, make: str, kind: str) -> None:
    queue = runtime_for(device).queue

    def plan(shape: tuple[int, ...]) -> Any:
        x, table = np.zeros(shape, np.float32), np.ones((shape[1], 8), np.float32)
        a, t = (x, table) if kind == "numpy" else (cla.zeros(queue, shape, np.float32), cla.to_device(queue, table))
        if make == "rotate":
            return rotate_plan(a, t, t, device=device)
        return Rope(RopeConfig("neox"), device).plan((a, a) if make == "several" else a, 0)

    empty, full = plan(EMPTY), plan(SHAPE)
    for name in (name for name in dir(full) if not name.startswith("_")):
        found, other = getattr(empty, name), getattr(full, name)
        assert type(found) is type(other)
        if name == "device":
            assert found == other
    assert (empty.launches, empty.variants, empty.specs) == (0, [], [])
    result = empty.run()
    assert result is empty.out or make == "several"
    assert (result[0] if make == "several" else result).shape == EMPTY


def test_a_plan_without_elements_has_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLROPE_DEVICE", "there is none of this name")
    with pytest.raises(DeviceError, match="there is none of this name"):
        Rope(RopeConfig("neox")).plan(np.zeros(EMPTY, np.float32), 0)


def test_tables_are_made_once(device: clrope.DeviceInfo, rng: np.random.Generator, monkeypatch: Any) -> None:
    made: list[Any] = []
    real = Filler.place

    def counted(*arguments: Any) -> Any:
        made.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(Filler, "place", counted)
    config = RopeConfig("neox", 16, freq_base=float(rng.uniform(1e4, 2e4)))
    op = Rope(config, device.index, variant=Variant(kernel="strided"))  # reads tables
    q, k = new(rng), new(rng, shape=(2, 5, 1, 16))
    positions = rng.integers(0, 99, 5)
    for _ in range(3):
        op((q, k), positions)
        op(q, positions.astype(np.int16))
    assert len(made) == 1
    positions[2] += 1  # the caller's own array, changed
    assert same(op(q, positions), emulate_rope(q, positions, op.config)).all()
    assert len(made) == 2
    plan = op.plan(q, positions)
    plan.run()
    assert len(made) == 2


def test_many_tables_do_not_mix(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    x = new(rng)
    ops = [Rope(RopeConfig("neox", freq_base=10000.0 + k), device.index) for k in range(12)]
    plans = [op.plan(x, k) for k, op in enumerate(ops)]
    for _ in range(2):
        for k in rng.permutation(12):
            assert same(plans[k].run(), emulate_rope(x, int(k), ops[k].config)).all()


def reaches(line: int, call: Any) -> bool:
    """Interrupt a call at so many lines of `clrope/call`; whether it has as many."""
    left = line

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if "/clrope/call/" not in frame.f_code.co_filename:
            return None
        # At the end of a `with` statement Python takes no signals, but traces its line.
        if event == "line" and not linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith(
            "with"
        ):
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.one_in(8)
@pytest.mark.parametrize("then", ["number", "rows", "other"])
def test_an_interrupt_at_any_line_leaves_a_plan_whole(
    device: clrope.DeviceInfo, then: str, rng: np.random.Generator
) -> None:
    """Positions of another form, or other arrays, must not be mixed with what was bound before."""
    config, x, other = RopeConfig("neox"), new(rng), new(rng)
    values: dict[str, Any] = {"number": 0, "rows": rng.integers(0, 99, SHAPE[1])}
    moves = {
        "number": lambda: plan.run(positions=0),
        "rows": lambda: plan.run(positions=values["rows"]),
        "other": lambda: plan.run(other, positions=values["rows"]),
    }
    first = "rows" if then == "number" else "number"
    plan = Rope(config, device.index).plan(x, values[first])
    line = 1
    while reaches(line, moves[then]):
        line += 1
        for kind, value in values.items():
            got = plan.run(x, positions=value) if line % 2 else plan.run(x, positions=value, out=np.empty_like(x))
            assert same(got, emulate_rope(x, value, config)).all(), (line, kind)
        moves[first]()
    assert line > 20
