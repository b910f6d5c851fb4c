"""`rotate`: rotation by the caller's own cos and sin tables, whatever made them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from .arrays import Operand, check_forward, operand, refuse_buffer
from .config import RopeConfig, parse_mode
from .errors import ConfigError, ShapeError, reading, renamed, shown
from .integers import is_integer
from .kernels.problem import PairLayout
from .kernels.variant import Variant, check_variant
from .layout import TensorView
from .operation import Rope, made_outputs, outputs_of
from .plan.angle_sources import ArrayAngles, PositionForm, Positions, TableColumns
from .plan.plan import EmptyPlan, Plan
from .plan.template import CallTemplate, Transfer, check_transfer, template_key
from .positions import chosen_positions
from .runtime import opencl_errors
from .select import database

if TYPE_CHECKING:
    import pyopencl

FullTables = Literal["halves", "interleaved"]


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
    transfer: Transfer = "auto",
    variant: Variant | None = None,
) -> Any:
    """Rotate x by given cos and sin: first' = first cos - second sin, second' = first sin + second cos.

    x, out, layout, device: as for `clrope.rope`.
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

    Raises `ShapeError` (also for positions outside the table), `ConfigError`, `DeviceError`, `BuildError`.
    """
    plan = rotate_plan(
        x, cos, sin, positions, mode, out, layout, device, offsets=offsets, n_dims=n_dims, n_offs=n_offs,
        forward=forward, full_tables=full_tables, transfer=transfer, variant=variant,
    )  # fmt: skip
    return plan.run()


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
    """Return the plan of `rotate`; out_mode: the output's pairs are laid out as in this mode, not as in the input."""
    forward = check_forward(forward)
    check_transfer(transfer)
    check_variant(variant)
    if offsets is not None:
        positions = chosen_positions(positions, offsets)
    if not isinstance(full_tables, str) or full_tables not in ("halves", "interleaved"):
        raise ConfigError(f"full_tables: got {shown(full_tables)}, allowed are 'halves', 'interleaved'")
    x_operand = operand(x, layout)
    outputs = outputs_of([x_operand], out, True, layout)
    batch, seq, _, head_dim = x_operand.view.shape
    cosine, sine = _table(cos, "cos"), _table(sin, "sin")
    for a in ("shape", "dtype"):
        if getattr(cosine.view, a) != getattr(sine.view, a):
            raise ShapeError(f"sin: {a} {getattr(sine.view, a)} differs from cos' {getattr(cosine.view, a)}")
    if (cosine.kind == "opencl") != (x_operand.kind == "opencl") or cosine.kind != sine.kind:
        raise ShapeError("cos, sin: must be on the same side as x, all OpenCL arrays or all in host memory")
    if cosine.view.dtype == "f64" and x_operand.view.dtype != "f64":
        raise ShapeError(f"cos, sin: float64 tables need float64 x, which is {x_operand.view.dtype}")
    pairs, full = _pairs(cosine.view.shape[3], head_dim, n_dims)
    if n_dims is None and not full and x_operand.view.size and cosine.host is not None and sine.host is not None:
        _refuse_doubled(cosine.host, sine.host)
    config = RopeConfig("normal" if parse_mode(mode) == "normal" else "neox", 2 * pairs, n_offs=n_offs)
    if x_operand.view.size:
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
    if full:
        step, distance = (1, pairs) if full_tables == "halves" else (2, 1)
        columns = TableColumns(2 * pairs, pairs, step, distance, True)
    else:
        columns = TableColumns(pairs, pairs, 1, 0, False)
    source = ArrayAngles(cosine, sine, columns, positions is not None, max_pos)
    if outputs[0] is x_operand and out_mode is not None and layout_of_pairs.pairing is None:
        raise ShapeError("out: x itself, but pairs that move to other places cannot be rotated in place")

    def target() -> tuple[CallTemplate, pyopencl.CommandQueue]:
        runtime, queue = Rope(config, "auto" if device is None else device).target_of(
            [x_operand, cosine, sine, *(o for o in outputs if o is not None)]
        )
        key = template_key(
            "tables",
            [(x_operand, outputs[0])],
            layout_of_pairs,
            columns,
            forward,
            variant,
            transfer,
            database.generation(),
        )  # fmt: skip
        template = runtime.calls.get(key)
        if template is None:
            template = CallTemplate(
                runtime, [(x_operand, outputs[0])], [layout_of_pairs], columns, forward=forward,
                several=False, variant=variant, transfer=transfer,
            )  # fmt: skip
            runtime.remember_call(key, template)
        return template, queue

    if not x_operand.view.size:
        check = partial(source.check, batch=batch, seq=seq)
        if positions is not None:
            check(positions)
        return EmptyPlan(made_outputs([x_operand], outputs, None), False, target, check)
    if positions is not None:
        where = source.positions(positions, batch, seq)
    else:
        stride = seq if rows > 1 else 0
        where = Positions(PositionForm(False, 1, stride, False), np.zeros((1, 0), np.int64))
    with opencl_errors(shown(device, str)):
        template, queue = target()
        return Plan(template, made_outputs([x_operand], outputs, (template, queue)), source, where, queue)


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
    own = PairLayout.of_config(config, head_dim)
    if out_mode is None:
        return own
    with renamed({"mode": "out_mode"}):
        mode = parse_mode(out_mode)
    target = RopeConfig("normal" if mode == "normal" else "neox", config.n_dims, n_offs=config.n_offs)
    other = PairLayout.of_config(target, head_dim)
    return PairLayout(own.pairs, own.window, head_dim, own.step, own.distance, other.step, other.distance)
