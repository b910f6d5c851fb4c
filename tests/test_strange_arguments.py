"""What no argument can be, for every argument: an error of this package that names it, whatever code the value has."""

from __future__ import annotations

import itertools
import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import clrope
from clrope import ConfigError, Rope, RopeConfig, RopeError, ShapeError, TensorView
from clrope.call.sources import ConfigAngles
from clrope.emulation import emulate_rope
from clrope.errors import shown
from clrope.kernels.variant import Variant
from clrope.tables import rotate_plan

NEOX = RopeConfig("neox")
X = np.ones((1, 4, 2, 8), np.float32)
PACKED = X[0]
TABLE = np.ones((4, 4), np.float32)
EMPTY = np.zeros((1, 4, 0, 8), np.float32)


def in_itself() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def deep() -> list[Any]:
    made: list[Any] = []
    for _ in range(100_000):
        made = [made]
    return made


class Failing:
    """An object that neither compares nor shows itself."""

    def fail(self, *_: Any) -> Any:
        raise LookupError("inside")

    __eq__ = __repr__ = __str__ = __bool__ = __len__ = __iter__ = fail  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class FailingNumber(int):
    __int__ = __index__ = __float__ = __mod__ = Failing.fail  # type: ignore[assignment]


#: Each is made for one call: some can be read once.
STRANGE: dict[str, Callable[[], Any]] = {
    "an empty list": list,
    "an empty dictionary": dict,
    "a set": lambda: {1, 2},
    "an array of texts": lambda: np.array(["b", "s"]),
    "a true array": lambda: np.array([True]),
    "a number in an array": lambda: np.array(1.5),
    "bytes": lambda: b"bsnd",
    "a text": lambda: "nonsense",
    "a fraction": lambda: 1.5,
    "a huge integer": lambda: 10**5000,
    "a list in itself": in_itself,
    "lists in lists": deep,
    "no end": itertools.count,
    "a failing object": Failing,
    "a failing number": lambda: FailingNumber(2),
    "True": lambda: True,
}

CALLS: dict[str, Callable[[Any], Any]] = {
    "x": lambda v: clrope.rope(v, 0, NEOX),
    "x, packed": lambda v: clrope.rope(v, None, NEOX, cu_seqlens=[0, 4]),
    "x, to a plan": lambda v: Rope(NEOX).plan(v, 0),
    "x, to rotate": lambda v: clrope.rotate(v, TABLE, TABLE),
    "x, to a run": lambda v: Rope(NEOX).plan(X, 0).run(v),
    "x, to a run of two": lambda v: Rope(NEOX).plan((X, X.copy()), 0).run(v),
    "x, to an empty run": lambda v: Rope(NEOX).plan(EMPTY, 0).run(v),
    "x, to an empty run of two": lambda v: Rope(NEOX).plan((EMPTY, EMPTY), 0).run(v),
    "positions": lambda v: clrope.rope(X, v, NEOX),
    "positions, to a run": lambda v: Rope(NEOX).plan(X, 0).run(positions=v),
    "positions, to an empty run": lambda v: Rope(NEOX).plan(EMPTY, 0).run(positions=v),
    "positions, to rotate": lambda v: clrope.rotate(X, TABLE, TABLE, v),
    "positions, to cos_sin": lambda v: Rope(NEOX).cos_sin(v, head_dim=8),
    "config": lambda v: clrope.rope(X, 0, v),
    "config, to Rope": lambda v: Rope(v),
    "forward": lambda v: clrope.rope(X, 0, NEOX, v),
    "forward, to a plan": lambda v: Rope(NEOX).plan(X, 0, v),
    "forward, to an empty plan": lambda v: Rope(NEOX).plan(EMPTY, 0, v),
    "forward, to rotate": lambda v: clrope.rotate(X, TABLE, TABLE, forward=v),
    "out": lambda v: clrope.rope(X, 0, NEOX, out=v),
    "out, of two": lambda v: clrope.rope((X, X.copy()), 0, NEOX, out=v),
    "out, of rotate": lambda v: clrope.rotate(X, TABLE, TABLE, out=v),
    "layout": lambda v: clrope.rope(X, 0, NEOX, layout=v),
    "layout, of an OpenCL array": lambda v: clrope.rope(on_device(), 0, NEOX, layout=v),
    "layout, of rotate": lambda v: clrope.rotate(X, TABLE, TABLE, layout=v),
    "layout, of a view": lambda v: TensorView.of_array(X, v),
    "device": lambda v: clrope.rope(X, 0, NEOX, device=v),
    "device, to rotate": lambda v: clrope.rotate(X, TABLE, TABLE, device=v),
    "wait_for": lambda v: clrope.rope(X, 0, NEOX, wait_for=v),
    "wait_for, of an OpenCL array": lambda v: clrope.rope(on_device(), 0, NEOX, wait_for=v),
    "wait_for, of a run": lambda v: Rope(NEOX).plan(X, 0).run(wait_for=v),
    "wait_for, of an empty run": lambda v: Rope(NEOX).plan(EMPTY, 0).run(wait_for=v),
    "transfer": lambda v: Rope(NEOX).plan(X, 0, transfer=v),
    "transfer, of an empty plan": lambda v: Rope(NEOX).plan(EMPTY, 0, transfer=v),
    "transfer, of rotate": lambda v: clrope.rotate(X, TABLE, TABLE, transfer=v),
    "transfer, of an empty rotate": lambda v: clrope.rotate(EMPTY, TABLE, TABLE, transfer=v),
    "variant": lambda v: Rope(NEOX, variant=v),
    "variant, to rotate": lambda v: clrope.rotate(X, TABLE, TABLE, variant=v),
    "variant, to an empty rotate": lambda v: clrope.rotate(EMPTY, TABLE, TABLE, variant=v),
    "variant, as a dictionary": lambda v: Variant.from_dict({"kernel": v}),
    "kernel": lambda v: Rope(NEOX, kernel=v),
    "kernel, of a variant": lambda v: Variant(v),
    "access": lambda v: Variant("rows", access=v),
    "cos": lambda v: clrope.rotate(X, v, TABLE),
    "sin": lambda v: clrope.rotate(X, TABLE, v),
    "mode": lambda v: clrope.rotate(X, TABLE, TABLE, mode=v),
    "mode, of a configuration": lambda v: RopeConfig(v),
    "out_mode": lambda v: rotate_plan(X, TABLE, TABLE, out_mode=v),
    "n_dims": lambda v: clrope.rotate(X, TABLE, TABLE, n_dims=v),
    "n_dims, of a configuration": lambda v: RopeConfig("neox", v),
    "n_offs": lambda v: clrope.rotate(X, TABLE, TABLE, n_offs=v),
    "angles": lambda v: RopeConfig("neox", angles=v),
    "full_tables": lambda v: clrope.rotate(X, TABLE, TABLE, full_tables=v),
    "cu_seqlens": lambda v: clrope.rope(PACKED, None, NEOX, cu_seqlens=v),
    "cu_seqlens, of an empty tensor": lambda v: clrope.rope(EMPTY, None, NEOX, cu_seqlens=v),
    "offsets": lambda v: clrope.rope(PACKED, None, NEOX, cu_seqlens=[0, 4], offsets=v),
    "offsets, without": lambda v: clrope.rope(PACKED, 0, NEOX, offsets=v),
    "total": lambda v: clrope.packed_positions([0, 4], v),
    "head_dim": lambda v: Rope(NEOX).cos_sin(0, head_dim=v),
    "head_dim, with n_dims": lambda v: Rope(RopeConfig("neox", 8)).cos_sin(0, head_dim=v),
    "dtype": lambda v: TensorView.from_ggml([8], [4], v),
    "ne": lambda v: TensorView.from_ggml(v, [4], "f32"),
    "shape": lambda v: TensorView.dense(v, "f32"),
}  # fmt: skip
#: What is right, of all calls with an argument or of one.
RIGHT = {
    ("wait_for", "an empty list"), ("wait_for", "an empty dictionary"), ("forward", "True"),
    ("positions, to cos_sin", "an empty list"),
}  # fmt: skip
#: Arguments that stand for another one: by these the message may begin, too.
ALSO = {
    "variant": "kernel|variant", "kernel": "kernel|variant", "n_dims": "n_dims|cos", "ne": r"ne(, nb|\[\d\])?",
    "device": r"device|CLROPE_DEVICE", "shape": "shape|x",
}  # fmt: skip


def on_device() -> Any:
    import pyopencl.array as cla

    return cla.to_device(clrope.call.runtime.queue_for(), X)  # type: ignore[attr-defined]


pytestmark = pytest.mark.usefixtures("devices")


@pytest.mark.one_in(20)
@pytest.mark.parametrize("value", STRANGE)
@pytest.mark.parametrize("name", CALLS)
def test_an_error_names_the_argument(name: str, value: str) -> None:
    argument = name.partition(",")[0]
    if {(argument, value), (name, value)} & RIGHT:
        CALLS[name](STRANGE[value]())
        return
    with pytest.raises(RopeError) as caught:
        CALLS[name](STRANGE[value]())
    said = str(caught.value)
    assert re.match(rf"({ALSO.get(argument, argument)})\b", said), said
    assert len(said) < 2000


def test_what_stands_for_a_call_is_cut() -> None:
    for positions, text in (
        (in_itself(), r"\(\(\(\(...\)\)\)\)"), ([[0, 1, 2], [0, 1]], r"\(\(0, 1, 2\), \(0, 1\)\)"),
        ([0] * 9, r"\(0, 0, 0, 0, \.\.\.\)"), ([Failing()], r"\(Failing\)"),
    ):  # fmt: skip
        with pytest.raises(ShapeError, match=rf"\n  in rope\(x=float32\[1, 4, 2, 8\], positions={text}, layout="):
            clrope.rope(X, positions, NEOX)


def test_a_value_in_a_message() -> None:
    assert shown("a" * 78) == "'" + "a" * 78 + "'"
    assert shown("a" * 79) == "'" + "a" * 79 + "..."
    assert shown(-(10**5000)) == "an integer of 16610 bits"
    assert shown(Failing()) == shown(Failing(), str) == "a Failing that cannot be printed"
    assert shown("pocl", str) == "pocl"
    with pytest.raises(MemoryError):
        shown(5, lambda _: (_ for _ in ()).throw(MemoryError()))


@pytest.mark.parametrize("layout", [np.array(["b", "s"]), np.array(["bsnd"]), np.array("bsnd"), ["bsnd"]])
def test_a_layout_is_a_text_also_the_second_time(layout: Any) -> None:
    op = Rope(NEOX)
    for x in (X, on_device()):
        for _ in range(3):
            op(x, 5)
        for _ in range(2):
            with pytest.raises(ShapeError, match=r"layout: got .*, allowed is any order of the letters"):
                op(x, 5, layout=layout)


def test_an_empty_plan_checks_what_a_run_gets() -> None:
    plan = Rope(NEOX).plan((EMPTY, EMPTY), 5)
    first, second = plan.run((EMPTY.copy(), EMPTY.copy()), [0, 1, 2, 3], wait_for=[])
    assert (first is plan.out[0], second is plan.out[1]) == (True, True)
    for x, message in (
        (EMPTY, "x: got 1 arrays, the plan was made for 2"),
        (itertools.repeat(EMPTY), "x: got 3 arrays, the plan was made for 2"),
        ((EMPTY, EMPTY[:, :3]), r"x: got shape \[1, 3, 0, 8\], .*; the plan was made for shape \[1, 4, 0, 8\]"),
    ):
        with pytest.raises(ShapeError, match=message):
            plan.run(x)
    with pytest.raises(ShapeError, match=r"positions: got shape \[5\]"):
        plan.run(positions=[0] * 5)


@pytest.mark.parametrize("x", [X, EMPTY])
def test_arrays_of_an_iterator(x: np.ndarray) -> None:
    """It is not read further than one too many."""
    op, outputs = Rope(NEOX), [np.zeros_like(x), np.zeros_like(x)]
    plan = op.plan((x, x), 5, out=(a for a in outputs))
    got = plan.run(a for a in (x.copy(), x.copy()))
    assert [a is b for a, b in zip(got, outputs, strict=True)] == [True, True]
    with pytest.raises(ShapeError, match="out: got 3 arrays for 2 inputs"):
        op((x, x), 5, out=itertools.repeat(None))
    with pytest.raises(ShapeError, match="x: got 3 arrays, the plan was made for 2"):
        plan.run(itertools.repeat(x))


@pytest.mark.parametrize("sequence", [list, tuple, set, iter, lambda events: np.array(events, object)])
def test_any_sequence_of_events(sequence: Callable[[Any], Any]) -> None:
    import pyopencl as cl

    x = on_device()
    events = [cl.enqueue_marker(x.queue), cl.enqueue_marker(x.queue)]
    want = emulate_rope(X, 5, NEOX)
    op = Rope(NEOX)
    plan = op.plan(x, 5)
    for _ in range(3):
        assert op(x, 5, wait_for=sequence(events)).get().tobytes() == want.tobytes()
        assert op(X, 5, wait_for=sequence(events)).tobytes() == want.tobytes()
        assert plan.run(wait_for=sequence(events)).get().tobytes() == want.tobytes()


def test_no_arrays_of_packed_sequences() -> None:
    for x in ((), []):
        with pytest.raises(ShapeError, match="x: got no arrays"):
            clrope.rope(x, None, NEOX, cu_seqlens=[0, 4])


def test_a_head_is_checked_also_where_the_configuration_has_its_size() -> None:
    op = Rope(RopeConfig("neox", 8))
    assert op.cos_sin([1, 2], head_dim=12)[0].shape == (2, 4)
    with pytest.raises(ConfigError, match="n_dims: got 8, at most head_dim = 6 is allowed"):
        op.cos_sin(0, head_dim=6)


def test_the_name_of_the_mode_of_the_output() -> None:
    with pytest.raises(ConfigError, match=r"^out_mode: got 'gptj', allowed are"):
        rotate_plan(X, TABLE, TABLE, out_mode="gptj")


def test_half_tables_need_a_right_name_of_full_ones() -> None:
    with pytest.raises(ConfigError, match=r"^full_tables: got 'both', allowed are 'halves', 'interleaved'"):
        clrope.rotate(X, TABLE, TABLE, full_tables="both")  # type: ignore[arg-type]


MANY = 1 << 24
#: Positions of `MANY` tokens take 64 times as much.
FEW_BYTES = 2 << 20
NOTHING = np.zeros((1, MANY, 0, 8), np.float32)
NOTHING_OF_TWO = np.zeros((2, MANY, 0, 8), np.float32)
LONG_TABLE = np.broadcast_to(np.float32(1), (MANY + 9, 4))
SECTIONS = RopeConfig("mrope", 8, sections=(1, 1, 1, 1))
SMALL: dict[str, Callable[[], Any]] = {
    "a number": lambda: clrope.rope(NOTHING, 5, NEOX),
    "NumPy's number": lambda: clrope.rope(NOTHING, np.int64(5), NEOX),
    "an array of no axes": lambda: clrope.rope(NOTHING, np.array(5, np.uint64), NEOX),
    "one in a list": lambda: clrope.rope(NOTHING, [5], NEOX),
    "one of sections": lambda: clrope.rope(NOTHING, np.array([5], np.int8), SECTIONS),
    "one of each batch": lambda: clrope.rope(NOTHING_OF_TWO, [5, 7], NEOX),
    "one again and again": lambda: clrope.rope(NOTHING, np.broadcast_to(np.int32(5), MANY), NEOX),
    "one of two tensors": lambda: clrope.rope((NOTHING, NOTHING), np.int64(5), NEOX),
    "packed sequences": lambda: clrope.rope(NOTHING, None, NEOX, cu_seqlens=[0, 7, MANY], offsets=[3, 4]),
    "a run": lambda: Rope(NEOX).plan(NOTHING, np.int64(5)).run(positions=np.int64(7)),
    "tables": lambda: clrope.rotate(NOTHING, LONG_TABLE, LONG_TABLE, 5),
    "tables, NumPy's number": lambda: clrope.rotate(NOTHING, LONG_TABLE, LONG_TABLE, np.int64(5)),
    "tables, one of each batch": lambda: clrope.rotate(NOTHING_OF_TWO, LONG_TABLE, LONG_TABLE, [5, 7]),
}


def bytes_made(call: Callable[[], Any]) -> int:
    """The most bytes that were in use at a time, beyond those before."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", SMALL)
def test_positions_of_an_empty_tensor_take_no_memory(name: str) -> None:
    assert bytes_made(SMALL[name]) < FEW_BYTES


@pytest.mark.parametrize("config", [NEOX, SECTIONS])
@pytest.mark.parametrize("first", [5, -(2**40), 2**31 - 1])
@pytest.mark.parametrize("kind", [int, np.int64, np.array, lambda n: [n], lambda n: np.array([n], object).astype(int)])
def test_one_position_counts_up_without_a_table(config: RopeConfig, first: int, kind: Callable[[Any], Any]) -> None:
    angles = ConfigAngles(config.for_head_dim(8))
    made: list[Any] = []
    assert bytes_made(lambda: made.append(angles.positions(kind(first), 1, MANY))) < FEW_BYTES
    assert made == [angles.positions(first, 1, MANY)]
    want = clrope.rope(X, first, config)
    assert clrope.rope(X, kind(first), config).tobytes() == want.tobytes()
    assert want.tobytes() == emulate_rope(X, first, config).tobytes()


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (2**63 - 1, "positions: offset 9223372036854775807 with 16777216 tokens goes beyond 64-bit integers"),
        (np.int64(2**63 - 1), "positions: offset 9223372036854775807 with 16777216 tokens goes beyond"),
        (np.uint64(2**63), r"positions: got 9223372036854775808, allowed are -2\*\*63"),
        (np.array(2**63, np.uint64), r"positions: got 9223372036854775808, allowed are -2\*\*63"),
        (np.bool_(True), "positions: got dtype bool"),
        (np.timedelta64(1, "s"), "positions: got dtype timedelta64"),
        (np.float64(1), "positions: got dtype float64"),
        ([1, 2, 3], r"positions: got shape \[3\]"),
    ],
)
def test_refused_positions_of_an_empty_tensor(batch: int, given: Any, message: str) -> None:
    x = NOTHING if batch == 1 else NOTHING_OF_TWO
    with pytest.raises(ShapeError, match=message):
        clrope.rope(x, given, NEOX)
    with pytest.raises(ShapeError, match=message):
        clrope.rope(x, [given] * batch if np.ndim(given) == 0 else given, NEOX)
    with pytest.raises(ShapeError, match=message):
        clrope.rotate(x, LONG_TABLE, LONG_TABLE, given)


def test_refused_rows_of_an_empty_tensor() -> None:
    last = MANY + 8
    for first, bad in ((10, last + 1), (np.int64(10), last + 1), (-1, -1), ([10], last + 1), (np.int8(-1), -1)):
        with pytest.raises(ShapeError, match=rf"positions: got {bad}, the tables have rows 0 ... {last}$"):
            clrope.rotate(NOTHING, LONG_TABLE, LONG_TABLE, first)
    with pytest.raises(ShapeError, match="cu_seqlens: must ascend from 0 to the number of tokens"):
        clrope.rope(NOTHING, None, NEOX, cu_seqlens=[0, 7])
    with pytest.raises(ShapeError, match=r"offsets: got shape \[2\], one per sequence is needed: \[1\]"):
        clrope.rope(NOTHING, None, NEOX, cu_seqlens=[0, MANY], offsets=[1, 2])
