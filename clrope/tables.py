"""`rotate`: rotation by the caller's own cos and sin tables, whatever made them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from .arrays import Operand, empty_like, operand
from .config import RopeConfig, parse_mode
from .device import DeviceInfo
from .errors import ConfigError, ShapeError
from .kernels.variant import Variant
from .layout import TensorView
from .operation import Rope, outputs_of
from .positions import position_rows
from .schedule.geometry import Geometry
from .schedule.memory import HostBuffers, stretch_of
from .schedule.plan import EmptyPlan, Part, Plan, Transfer
from .schedule.rotation import Rotation
from .schedule.tables import Phases, Real, TableColumns, Tables, tables_of_arrays

if TYPE_CHECKING:
    import pyopencl

FullTables = Literal["halves", "interleaved"]


@dataclass(eq=False)
class ArrayTables:
    """Rows of the caller's cos and sin: operands of shape (batches, rows, 1, columns), and which row a token uses."""

    cosine: Operand
    sine: Operand
    columns: TableColumns
    index: npt.NDArray[np.int64] | None
    batch_stride: int
    rows_per_batch: int
    batch: int
    seq: int

    @property
    def row_width(self) -> int:
        """Numbers in one row of cos on the device."""
        return self.columns.width

    @property
    def constant(self) -> bool:
        """The caller may change his tables between runs."""
        return False

    def move_to(self, positions: Any) -> None:
        """Take other positions of the same form."""
        if self.index is None:
            raise ShapeError("positions: the plan was made for tables per token, which have none")
        index, stride = table_rows(positions, self.batch, self.seq, self.cosine.view.shape[1])
        if stride != self.batch_stride:
            raise ShapeError("positions: shared by the batches in one call and not in the other")
        self.index = index

    def tables(self, queue: pyopencl.CommandQueue, device: DeviceInfo, rows: slice, real: Real) -> Tables:
        """Gather those rows as the tables are now."""
        placed, keep = self._on_device(queue, device)
        # What the caller still has under way on his device tables comes first.
        waits = [e for o in (self.cosine, self.sine) if o.kind == "opencl" for e in o.array.events]
        count = rows.stop - rows.start
        if self.index is not None:
            made = tables_of_arrays(
                queue, device, placed[0], placed[1], self.columns, self.index[rows], count, count, real, waits
            )
        else:
            per_batch = self.rows_per_batch
            views = [
                (buffer, view.part(slice(rows.start // per_batch, view.shape[0]), slice(0, view.shape[1])))
                for buffer, view in placed
            ]
            within = rows.start % per_batch
            views = [(buffer, view.moved(within * view.strides[1])) for buffer, view in views]
            span = min(per_batch, count)
            made = tables_of_arrays(queue, device, views[0], views[1], self.columns, None, count, span, real, waits)
        if keep is not None and made.ready is not None:
            made.ready.wait()  # the caller may change or free his tables once we return
        return made

    def phases(self, context: pyopencl.Context, rows: slice, real: Real) -> Phases:
        """A caller's tables have none."""
        raise AssertionError("no spelling makes the angles of a caller's tables")

    def _on_device(self, queue: pyopencl.CommandQueue, device: DeviceInfo) -> tuple[list[tuple[Any, TensorView]], Any]:
        if self.cosine.kind == "opencl":
            return [(o.array.base_data, o.view) for o in (self.cosine, self.sine)], None
        if device.host_unified:
            stretches = [stretch_of(o, o.view, False) for o in (self.cosine, self.sine)]
            host = HostBuffers(queue, stretches)
            return [host.place(o, o.view) for o in (self.cosine, self.sine)], host
        import pyopencl as cl

        placed: list[tuple[Any, TensorView]] = []
        for o in (self.cosine, self.sine):
            assert o.host is not None
            bits = np.ascontiguousarray(o.host.view(np.dtype(f"u{o.view.itemsize}")))
            flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
            view = TensorView.dense(o.view.shape, o.view.dtype)
            placed.append((cl.Buffer(queue.context, flags, hostbuf=bits), view))
        return placed, None


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
    positions:  None, an int, [S], [B, S] or [B] offsets; 0 <= position < max_pos.
    mode:       'normal' pairs neighbours, every other mode pairs halves.
    n_dims:     rotated elements of a head. None: the whole head if columns is head_dim or head_dim / 2, otherwise
                twice the columns.
    full_tables: where a full table has the values of a pair's two elements: 'halves' at columns i and i + pairs,
                'interleaved' at 2i and 2i + 1. They need not be equal: each element is computed with its own.

    Raises `ShapeError` (also for positions outside the table), `ConfigError`, `DeviceError`, `BuildError`.
    """
    plan = rotate_plan(
        x, cos, sin, positions, mode, out, layout, device, n_dims=n_dims, n_offs=n_offs, forward=forward,
        full_tables=full_tables, transfer=transfer, variant=variant,
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
    n_dims: int | None = None,
    n_offs: int = 0,
    forward: bool = True,
    full_tables: FullTables = "halves",
    out_mode: str | int | None = None,
    transfer: Transfer = "auto",
    variant: Variant | None = None,
) -> Plan:
    """Return the plan of `rotate`; out_mode: pairs of the output lie as in this mode instead of as in the input."""
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
    config = RopeConfig("normal" if parse_mode(mode) == "normal" else "neox", 2 * pairs, n_offs=n_offs)
    if x_operand.view.size:
        config.for_head_dim(head_dim)
    geometry = _geometry(config, head_dim, out_mode)
    rows, max_pos = cosine.view.shape[:2]
    if positions is not None:
        if len(cos.shape) == 3:
            raise ShapeError("cos: with positions a table [max_pos, columns] is needed, got one with a batch axis")
        index, stride = table_rows(positions, batch, seq, max_pos)
        per_batch = seq
    else:
        index, per_batch = None, max_pos
        if max_pos != seq or rows not in (1, batch):
            raise ShapeError(
                f"cos: got shape {list(cos.shape)}; without positions [{seq}, columns] or [{batch}, {seq}, columns] "
                "is needed"
            )
        stride = 0 if rows == 1 else seq
    if full:
        step, distance = (1, pairs) if full_tables == "halves" else (2, 1)
        if full_tables not in ("halves", "interleaved"):
            raise ConfigError(f"full_tables: got {full_tables!r}, allowed are 'halves', 'interleaved'")
        columns = TableColumns(2 * pairs, pairs, step, distance, True)
    else:
        columns = TableColumns(pairs, pairs, 1, 0, False)
    result = outputs[0] if outputs[0] is not None else empty_like(x_operand)
    if result is x_operand and out_mode is not None and geometry.pairing is None:
        raise ShapeError("out: x itself, but pairs that move to other places cannot be rotated in place")
    part = Part(x_operand, result, Rotation(geometry, forward, result is x_operand, full_tables=full))
    if not x_operand.view.size:
        return EmptyPlan([part], True)
    target, queue = Rope(config, "auto" if device is None else device).target_of([x_operand])
    source = ArrayTables(cosine, sine, columns, index, stride, per_batch, batch, seq)
    return Plan([part], source, target, queue, single=True, variant=variant, transfer=transfer)


def table_rows(positions: Any, batch: int, seq: int, max_pos: int) -> tuple[npt.NDArray[np.int64], int]:
    """Return (row numbers, rows from one batch to the next) and check them against the table's length."""
    where = position_rows(positions, RopeConfig("neox"), batch=batch, seq=seq)
    index = where.rows[0]
    if index.size and (int(index.min()) < 0 or int(index.max()) >= max_pos):
        bad = int(index.min()) if int(index.min()) < 0 else int(index.max())
        raise ShapeError(f"positions: got {bad}, the tables have rows 0 ... {max_pos - 1}")
    return index, where.batch_stride


def _table(table: Any, name: str) -> Operand:
    """Describe a table of rank 2 or 3 as (batches, rows, 1, columns)."""
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
    if n_dims < 2 or n_dims % 2:
        raise ConfigError(f"n_dims: got {n_dims}, it must be even and at least 2")
    if columns not in (n_dims, n_dims // 2):
        raise ShapeError(f"cos: got {columns} columns; for n_dims {n_dims} allowed are {n_dims // 2} and {n_dims}")
    return n_dims // 2, columns == n_dims


def _geometry(config: RopeConfig, head_dim: int, out_mode: str | int | None) -> Geometry:
    own = Geometry.of_config(config, head_dim)
    if out_mode is None:
        return own
    target = RopeConfig("normal" if parse_mode(out_mode) == "normal" else "neox", config.n_dims, n_offs=config.n_offs)
    other = Geometry.of_config(target, head_dim)
    return Geometry(own.pairs, own.window, head_dim, own.step, own.distance, other.step, other.distance)
