"""`rotate`: rotation by the caller's own cos and sin tables, whatever made them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from .arrays import Operand, check_apart, check_forward, operand, refuse_buffer
from .call.array_signature import signature
from .call.call import Call
from .call.events import check_events, opencl_errors, raise_opencl_error
from .call.plan import Plan
from .call.prepare import (
    CheckedCall,
    Transfer,
    check_transfer,
    inputs_of,
    outputs_of,
    positions_for,
)
from .call.sources import CallerTables, PositionForm, Positions, first_of
from .config import RopeConfig, parse_mode
from .errors import ConfigError, ShapeError, reading, renamed, shown
from .integers import is_integer
from .kernels.problem import PairLayout
from .kernels.variant import Variant, check_variant
from .layout import TensorView
from .operation import Rope
from .positions import chosen_positions
from .select import database

if TYPE_CHECKING:
    import pyopencl

FullTables = Literal["halves", "interleaved"]


class _Options(NamedTuple):
    """How `rotate` is to rotate: its arguments but arrays and positions."""

    mode: str | int = "neox"
    layout: str = "bsnd"
    n_dims: int | None = None
    n_offs: int = 0
    forward: bool = True
    full_tables: FullTables = "halves"
    out_mode: str | int | None = None
    transfer: Transfer = "auto"
    variant: Variant | None = None


def rotate(
    x: Any,
    cos: Any,
    sin: Any,
    positions: Any = None,
    mode: str | int = "neox",
    out: Any = None,
    layout: str = "bsnd",
    device: Any = None,
    *,
    offsets: Any = None,
    n_dims: int | None = None,
    n_offs: int = 0,
    forward: bool = True,
    full_tables: FullTables = "halves",
    out_mode: str | int | None = None,
    transfer: Transfer = "auto",
    variant: Variant | None = None,
    wait_for: Sequence[pyopencl.Event] | None = None,
) -> Any:
    """Rotate x by given cos and sin: first' = first cos - second sin, second' = first sin + second cos.

    x, out, layout, device, wait_for: as for `clrope.rope`; several arrays need the same head_dim. out must not overlap
                cos or sin.
    cos, sin:   with positions: [max_pos, columns], whose rows the positions pick; without: one row per token,
                [S, columns] for every batch, or [B, S, columns]. Any strides; float16, bfloat16, float32, or with
                float64 x also float64. columns is the number of pairs, or twice that ("full" tables).
    positions:  None, an int, [S], [B, S], or [B, 1], the first position of each batch; 0 <= position < max_pos.
    offsets:    [B], the first position of each batch, instead of positions.
    mode:       'normal' pairs neighbours, every other mode pairs halves.
    n_dims:     rotated elements of a head. None: the whole head if columns is head_dim or head_dim / 2, otherwise
                twice the columns. It has to be given where the columns of such tables in host memory are the same
                numbers twice: full tables of half as many elements look so.
    full_tables: where a full table has the values of a pair's two elements: 'halves' at columns i and i + pairs,
                'interleaved' at 2i and 2i + 1. They need not be equal: each element is computed with its own.

    out_mode:   the output's pairs are laid out as in this mode, not as in the input.

    Raises `ShapeError` (also for positions outside the table), `ConfigError`, `DeviceError`, `BuildError`.
    """
    if offsets is not None:
        positions = chosen_positions(positions, offsets)
    options = _Options(mode, layout, n_dims, n_offs, forward, full_tables, out_mode, transfer, variant)
    waits = () if wait_for is None else check_events(wait_for)
    op = Rope(_PLAIN, device)
    try:
        found = _signed(op, x, cos, sin, positions, out, options)
        if found is None:
            return _prepare(op, x, cos, sin, positions, out, options).run(waits)
        signed, inputs, given, memories, state = found
        call = state.runtime.calls.get(signed)
        if call is None or (call.may_overlap and call.overlap(memories)):
            in_place = [b is a for a, b in zip(inputs, given, strict=True)]
            return _prepare(op, x, cos, sin, positions, out, options).run(waits, signed, in_place)
        if n_dims is None and not hasattr(cos, "base_data"):
            _check_not_doubled(inputs[0], cos, sin, layout)
        value = 0
        if positions is not None:
            value = call.source.positions(positions, call.batch, call.seq).value
        return call.run(inputs, given, memories, value, waits)
    except Exception as error:
        raise_opencl_error(error, op.device_name)
        raise


_PLAIN = RopeConfig("neox", 2)


def rotate_call(op: Rope, x: Any, cos: Any, sin: Any, out: Any, **options: Any) -> Call:
    """Return the call of `rotate` with such arrays; the device is that of `op`. Arguments and errors are the same."""
    return _prepare(op, x, cos, sin, None, out, _Options(**options)).call


def rotate_plan(
    x: Any,
    cos: Any,
    sin: Any,
    positions: Any = None,
    mode: str | int = "neox",
    out: Any = None,
    layout: str = "bsnd",
    device: Any = None,
    *,
    offsets: Any = None,
    n_dims: int | None = None,
    n_offs: int = 0,
    forward: bool = True,
    full_tables: FullTables = "halves",
    out_mode: str | int | None = None,
    transfer: Transfer = "auto",
    variant: Variant | None = None,
) -> Plan:
    """Return the plan of `rotate`, whose arguments and errors are the same."""
    if offsets is not None:
        positions = chosen_positions(positions, offsets)
    options = _Options(mode, layout, n_dims, n_offs, forward, full_tables, out_mode, transfer, variant)
    op = Rope(_PLAIN, device)
    with opencl_errors(op.device_name):
        return Plan(_prepare(op, x, cos, sin, positions, out, options))


def _signed(
    op: Rope, x: Any, cos: Any, sin: Any, positions: Any, out: Any, options: _Options
) -> tuple[Any, Any, list[Any], list[Any], Any] | None:
    """Return (signature, inputs, outputs, memories, queue) of a call; None if its arguments need a closer look."""
    kind = type(positions)
    form: Any = None
    if kind is int:
        form = int
    elif kind is np.ndarray:
        form = positions.shape, positions.ndim == 1 and first_of(positions, positions.size) is not None
    elif positions is not None:
        return None
    if not {*map(type, options)} <= _PLAIN_TYPES:
        return None
    several = type(x) is tuple or type(x) is list
    inputs = x if several else (x,)
    found = signature(inputs, several, out, (cos, sin))
    if found is None:
        return None
    key, given, memories, on_host = found
    state = op.target_of_memories(memories, on_host)
    # 1 and True are equal, and have one place in a dictionary.
    signed = (*key, options, *map(type, options), several, database.snapshot.rereads, form, state)
    return signed, inputs, given, memories, state


def _check_not_doubled(x: Any, cos: Any, sin: Any, layout: str) -> None:
    """Raise `ShapeError` as `_refuse_doubled` for host tables of a prepared call; their last row mostly tells."""
    columns = cos.shape[-1]
    head_dim = x.shape[layout.lower().find("d") - len(layout)]
    if columns == head_dim or columns % 2:
        return
    cosine = _numbers(cos)
    row = cosine[(-1,) * (cosine.ndim - 1)]
    if row[0] == row[columns // 2] or row[0] == row[1]:
        sine = _numbers(sin)
        # One row of one number tells nothing: that of position 0.
        if row.size < cosine.size or any(t.tobytes() != t.tobytes()[: t.itemsize] * columns for t in (cosine, sine)):
            _refuse_doubled(cosine, sine)


def _numbers(table: Any) -> npt.NDArray[Any]:
    """Return a table in host memory as a NumPy array; of torch, float16 and bfloat16 as their bits."""
    if type(table) is np.ndarray:
        return table
    array: npt.NDArray[Any] = (table.view(sys.modules["torch"].int16) if table.itemsize == 2 else table).numpy()
    return array


_PLAIN_TYPES = frozenset((str, int, bool, type(None), Variant))


def _prepare(
    op: Rope, x: Any, cos: Any, sin: Any, positions: Any, out: Any, options: _Options
) -> CheckedCall:  # fmt: skip
    """Check the arguments of `rotate`."""
    mode, layout, n_dims, n_offs, forward, full_tables, out_mode, transfer, variant = options
    forward = check_forward(forward)
    check_transfer(transfer)
    check_variant(variant)
    if not isinstance(full_tables, str) or full_tables not in ("halves", "interleaved"):
        raise ConfigError(f"full_tables: got {shown(full_tables)}, allowed are 'halves', 'interleaved'")
    inputs, several = inputs_of(x, layout)
    outputs = outputs_of(inputs, out, not several, layout)
    batch, seq, _, head_dim = inputs[0].view.shape
    if any(o.view.shape[3] != head_dim for o in inputs):
        raise ShapeError(f"x: got head_dim {[o.view.shape[3] for o in inputs]}, one for all arrays is needed")
    cosine, sine = _tables(inputs[0], cos, sin)
    pairs, full = _pairs(cosine.view.shape[3], head_dim, n_dims)
    if n_dims is None and not full and inputs[0].view.size and cosine.host is not None and sine.host is not None:
        _refuse_doubled(cosine.host, sine.host)
    config = RopeConfig("normal" if parse_mode(mode) == "normal" else "neox", 2 * pairs, n_offs=n_offs)
    if inputs[0].view.size:
        config.for_head_dim(head_dim)
    layout_of_pairs = _pair_layout(config, head_dim, out_mode)
    rows, max_pos = cosine.view.shape[:2]
    if positions is not None:
        if len(cos.shape) == 3:
            raise ShapeError("cos: with positions a table [max_pos, columns] is needed, got one with a batch axis")
    elif max_pos != seq or rows not in (1, batch):
        raise ShapeError(
            f"cos: got shape {list(cos.shape)}; without positions [{seq}, columns] or [{batch}, {seq}, columns] "
            "is needed"
        )
    if (
        out_mode is not None
        and layout_of_pairs.pairing is None
        and any(a is b for a, b in zip(inputs, outputs, strict=True))
    ):
        raise ShapeError("out: x itself, but pairs that move to other places cannot be rotated in place")
    step, distance = (1, 0) if not full else (1, pairs) if full_tables == "halves" else (2, 1)
    source = CallerTables(
        tuple(o.view.moved(-o.view.offset) for o in (cosine, sine)),  # type: ignore[arg-type]
        2 * pairs if full else pairs, pairs, step, distance, full, positions is not None,
    )  # fmt: skip
    check_apart([], outputs, [cosine, sine])
    where = Positions(PositionForm(True, 1, seq if rows > 1 else 0, False), 0)
    if positions is not None:
        where = positions_for(source, inputs, positions)
    return CheckedCall(
        inputs, outputs, [cosine, sine], where, [layout_of_pairs] * len(inputs), source, forward, several, variant,
        transfer, (), op.target_of,
    )  # fmt: skip


def _tables(x: Operand, cos: Any, sin: Any) -> tuple[Operand, Operand]:
    cosine, sine = _table(cos, "cos"), _table(sin, "sin")
    for a in ("shape", "dtype"):
        if getattr(cosine.view, a) != getattr(sine.view, a):
            raise ShapeError(f"sin: {a} {getattr(sine.view, a)} differs from cos' {getattr(cosine.view, a)}")
    if (cosine.kind == "opencl") != (x.kind == "opencl") or cosine.kind != sine.kind:
        raise ShapeError("cos, sin: must be on the same side as x, all OpenCL arrays or all in host memory")
    if cosine.view.dtype == "f64" and x.view.dtype != "f64":
        raise ShapeError(f"cos, sin: float64 tables need float64 x, which is {x.view.dtype}")
    return cosine, sine


def _table(table: Any, name: str) -> Operand:
    """Describe a table of rank 2 or 3 as (batches, rows, 1, columns)."""
    with reading(name, table):
        return _described(table, name)


def _described(table: Any, name: str) -> Operand:
    refuse_buffer(table, name)
    shape = getattr(table, "shape", None)
    if shape is None or len(shape) not in (2, 3):
        what = type(table).__name__ if shape is None else f"shape {list(shape)}"
        raise ShapeError(
            f"{name}: got {what}, allowed are [max_pos, columns] with positions, [S, columns], [B, S, columns]"
        )
    if len(shape) == 3:
        found = operand(table, "snd", name)
        b, s, d = found.view.shape[1:]
        sb, ss, sd = found.view.strides[1:]
        view = TensorView((b, s, 1, d), (sb, ss, 0, sd), found.view.offset, found.view.dtype)
    else:
        found = operand(table[None], "snd", name)
        s, d = found.view.shape[2:]
        ss, sd = found.view.strides[2:]
        view = TensorView((1, s, 1, d), (0, ss, 0, sd), found.view.offset, found.view.dtype)
    return Operand(table, found.kind, view, found.layout, found.host, found.array)


def _pairs(columns: int, head_dim: int, n_dims: int | None) -> tuple[int, bool]:
    if n_dims is None:
        full = columns == head_dim
        pairs = columns // 2 if full else columns
        if columns < 1 or (full and columns % 2) or 2 * pairs > head_dim:
            raise ShapeError(
                f"cos: got {columns} columns; for head_dim {head_dim} allowed are at most {head_dim // 2} "
                f"(one per pair) or {head_dim} (one per element, if even)"
            )
        return pairs, full
    if not is_integer(n_dims):
        raise ConfigError(f"n_dims: got {shown(n_dims)} of type {type(n_dims).__name__}, an integer is needed")
    with reading("n_dims", n_dims, ConfigError):
        n_dims = int(n_dims)
    if n_dims < 2 or n_dims % 2:
        raise ConfigError(f"n_dims: got {shown(n_dims)}, it must be even and at least 2")
    if columns not in (n_dims, n_dims // 2):
        allowed = f"{shown(n_dims // 2)} and {shown(n_dims)}"
        raise ShapeError(f"cos: got {columns} columns; for n_dims {shown(n_dims)} allowed are {allowed}")
    return n_dims // 2, columns == n_dims


def _refuse_doubled(cos: npt.NDArray[Any], sin: npt.NDArray[Any]) -> None:
    """Raise `ShapeError` for tables of one column per pair in which each number stands twice."""
    columns = cos.shape[-1]
    half = columns // 2
    cuts = {f":{half}": (slice(half), slice(half, None)), "::2": (slice(0, None, 2), slice(1, None, 2))}
    if columns % 2 or not cos.size:
        return
    for cut, (first, second) in cuts.items():
        # Mostly the last row tells. One number in all columns tells nothing, such as at position 0.
        rows = (t[..., some, :] for some in (slice(-1, None), slice(None)) for t in (cos, sin))
        twice = all((t[..., first] == t[..., second]).all() for t in rows)
        if twice and not all((t == t[..., :1]).all() for t in (cos, sin)):
            raise ShapeError(
                f"cos, sin: each number stands twice in their {columns} columns, as in tables for {columns} rotated "
                f"elements; give cos[..., {cut}] and sin[..., {cut}], or n_dims={2 * columns} if each column is of "
                "another pair"
            )


def _pair_layout(config: RopeConfig, head_dim: int, out_mode: str | int | None) -> PairLayout:
    pairs = PairLayout.of_config(config, head_dim)
    if out_mode is None:
        return pairs
    with renamed({"mode": "out_mode"}):
        mode = parse_mode(out_mode)
    return replace(pairs, y_pairing="normal" if mode == "normal" else "neox")
