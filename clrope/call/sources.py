"""Where the cos and sin of a call come from: a configuration at positions, or the caller's own tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..angles import angle_table
from ..config import RopeConfig
from ..errors import ShapeError, UnsupportedError
from ..kernels import table_kernels
from ..kernels.launch import BoundRows, LaunchSpec
from ..kernels.problem import AngleForm
from ..layout import TensorView
from ..positions import GivenPositions, given_positions
from .runtime import Runtime, upload

if TYPE_CHECKING:
    from ..device import DeviceInfo

Real = Literal["f32", "f64"]
_I64_MAX = (1 << 63) - 1
#: A configuration whose positions have one row.
_ONE_AXIS = RopeConfig("neox")
#: Positions within ± this need no lower bits of the steps.
LIMIT = 1 << 31
#: Rows up to which a quick check finds positions that count up by one.
_FEW = 4096


def real_of(dtype: str) -> Real:
    """Return the computing type of a storage type."""
    return "f64" if dtype == "f64" else "f32"


class PositionForm(NamedTuple):
    """All of positions but their values.

    counting: they count up by one from a number. axes: rows of positions for each token. batch_stride: rows from one
    batch to the next, 0 if all share them. wide: some may be outside ±2**31.
    """

    counting: bool
    axes: int
    batch_stride: int
    wide: bool


class Positions(NamedTuple):
    """Positions in their form; value: the first one if they count, otherwise int64[axes, rows]."""

    form: PositionForm
    value: Any


#: The plain form: counting up, all within ±2**31.
COUNTING = PositionForm(True, 1, 0, False)
_WIDE_COUNTING = PositionForm(True, 1, 0, True)


def counting_from(first: int, seq: int) -> Positions | None:
    """Return the positions first, first + 1, ... of all batches; None beyond 64 bits."""
    last = first + seq - 1
    if first >= -LIMIT and last <= LIMIT:
        return Positions(COUNTING, first)
    return Positions(_WIDE_COUNTING, first) if first >= -_I64_MAX - 1 and last <= _I64_MAX else None


def positions_of(positions: Any, config: RopeConfig, batch: int, seq: int) -> Positions:
    """Return positions in their simplest form; raises `ShapeError` as `position_rows`."""
    first = first_of(positions, seq)
    quick = None if first is None else counting_from(first, seq)
    if quick is not None:
        return quick
    given = given_positions(positions, config, batch=batch, seq=seq)
    quick = None if given.first is None else counting_from(given.first, seq)
    if quick is not None:
        return quick
    where = given.rows()
    rows = where.rows
    stride = where.batch_stride if batch > 1 else 0
    if stride == 0 and rows.shape[1] > 0:
        first, count = int(rows[0, 0]), rows.shape[1]
        if int(rows[0, -1]) - first == count - 1 and (rows == first + np.arange(count, dtype=np.int64)).all():
            quick = counting_from(first, count)
            if quick is not None:
                return quick
    return Positions(PositionForm(False, int(rows.shape[0]), stride, where.beyond_32_bits), rows)


def first_of(positions: Any, seq: int) -> int | None:
    """Return the number from which positions count up by one: an int, or a few in an array [S]; None for any others."""
    kind = type(positions)
    if kind is int:
        return int(positions)
    if kind is np.ndarray and positions.ndim == 1 and positions.dtype.kind == "i" and 0 < seq == positions.size <= _FEW:
        first = int(positions[0])
        # As bytes, which takes a sixth of the time of `numpy.diff`.
        if seq == 1 or (
            int(positions[-1]) - first == seq - 1
            and positions.astype(np.int64).tobytes() == (np.arange(seq, dtype=np.int64) + first).tobytes()
        ):
            return first
    return None


def own_rows(value: Any, rows: slice, spec: LaunchSpec) -> npt.NDArray[Any]:
    """Return positions as a kernel that is not the package's takes them: integers [axes][rows] of its own type.

    Raises `UnsupportedError` for positions that do not fit the type.
    """
    wanted = next(value for _, value in spec.arguments if isinstance(value, BoundRows))
    made, limits = np.tile(int64_rows(value, rows), spec.row_repeats), np.iinfo(wanted.dtype)
    if made.size and (int(made.min()) < limits.min or int(made.max()) > limits.max):
        bad = int(made.min()) if int(made.min()) < limits.min else int(made.max())
        raise UnsupportedError(f"positions: got {bad}, kernel {spec.function!r} takes {wanted.dtype}")
    if made.shape[0] == 1:
        made = np.repeat(made, wanted.axes, axis=0)  # one position for all axes
    elif made.shape[0] < wanted.axes:
        made = np.concatenate([made, np.zeros((wanted.axes - made.shape[0], made.shape[1]), np.int64)])
    return np.ascontiguousarray(made[: wanted.axes].astype(wanted.dtype))


def int64_rows(value: Any, rows: slice) -> npt.NDArray[np.int64]:
    """Return some rows of positions (`Positions.value`) as int64[axes][rows]."""
    if isinstance(value, int):
        counted: npt.NDArray[np.int64] = value + np.arange(rows.start, rows.stop, dtype=np.int64)
        return counted[None]
    given: npt.NDArray[np.int64] = value[:, rows]
    return given


@dataclass(frozen=True)
class ConfigAngles:
    """cos and sin of a configuration, which has n_dims set.

    sides: the caller's memory that tables are made from: none.
    """

    config: RopeConfig
    sides: tuple[TensorView, ...] = ()

    @property
    def row_width(self) -> int:
        """Numbers in one row of cos."""
        return self.config.n_pairs(None)

    def positions(self, positions: Any, batch: int, seq: int) -> Positions:
        """Check positions and return them in their simplest form."""
        return positions_of(positions, self.config, batch, seq)

    def check(self, positions: Any, batch: int, seq: int) -> None:
        """Check positions, and make no rows of them."""
        given_positions(positions, self.config, batch=batch, seq=seq)

    def first_row(self, rows: slice) -> int:
        """Return what a chunk with these rows adds to the first position."""
        return int(rows.start)

    def form(self, form: PositionForm, real: Real) -> AngleForm:
        """Return where a launch takes cos and sin from."""
        one_axis = form.axes == 1 or not angle_table(self.config).axis.any()
        exact = self.config.angles == "exact"
        wide = form.wide or real == "f64"
        return AngleForm(exact, False, self.config.uses_sections, form.counting, one_axis, wide)

    def constants(self, runtime: Runtime, real: Real) -> dict[str, Any]:
        """Return the arguments of kernels that depend on the configuration alone, its arrays uploaded once."""
        table = angle_table(self.config)

        def uploaded() -> dict[str, Any]:
            arrays: dict[str, npt.NDArray[Any]] = {"step": table.step, "step_low": table.step_low, "axis": table.axis}
            if self.config.angles == "ggml":
                ggml = table.ggml
                arrays = {"exponent": ggml.exponent, "factor": ggml.factor, "mix": ggml.mix, "axis": table.axis}
            return {name: upload(runtime.context, array) for name, array in arrays.items()}

        found: dict[str, Any] = runtime.constants.made(self.config, uploaded)
        if self.config.angles == "ggml":
            return found
        return {**found, "magnitude": (np.float64 if real == "f64" else np.float32)(table.magnitude)}

    def table_spec(self, count: int, form: PositionForm, real: Real, info: DeviceInfo) -> LaunchSpec:
        """Return the launch that fills tables of so many rows."""
        table, angles = angle_table(self.config), self.form(form, real)
        if self.config.angles == "ggml":
            g = table.ggml
            return table_kernels.ggml_tables(
                table.pairs, count, real, angles, info, g.theta_scale, g.freq_scale, g.magnitude, g.yarn
            )
        return table_kernels.exact_tables(table.pairs, count, real, angles, info)

    def table_arguments(self, runtime: Runtime, rows: slice, real: Real) -> dict[str, Any]:
        """Return the arguments of that launch that do not depend on positions."""
        return {**self.constants(runtime, real), "rows": np.int32(rows.stop - rows.start)}


@dataclass(frozen=True)
class CallerTables:
    """The caller's cos and sin, of shape (batches, rows, 1, columns).

    Kernels read them where they are, if they have the form of a kernel's own tables and row numbers count up by one.
    Otherwise `gather` picks rows, widens and orders columns.

    sides: both tables' views, their offsets 0. row_width: numbers in one row of cos on the device. split, step,
    distance: see `kernels/gather_tables.cl`.
    full: a row holds numbers for both elements of each pair. indexed: positions pick rows; else tokens have one each.
    """

    sides: tuple[TensorView, TensorView]
    row_width: int
    split: int
    step: int
    distance: int
    full: bool
    indexed: bool

    def first_row(self, rows: slice) -> int:
        """Return what a chunk with these rows adds to the first row number: nothing if it has a part of the tables."""
        return int(rows.start) if self.indexed else 0

    @cached_property
    def direct(self) -> bool:
        """Whether kernels can read the tables where they are, if these have the computing type."""
        (batches, rows, _, columns), (batch, row, _, column) = self.sides[0].shape, self.sides[0].strides
        dense = (columns == 1 or column == 1) and (batches == 1 or batch == rows * row)
        ordered = not self.full or (self.step == 1 and self.distance == self.split)
        return dense and ordered and self.sides[0].same_places(self.sides[1])

    def form(self, form: PositionForm, real: Real) -> AngleForm:
        """Return where a launch takes cos and sin from."""
        read = self.direct and form.counting and self.sides[0].dtype == real
        return AngleForm(full_tables=self.full, callers=True, table_row=self.sides[0].strides[1] if read else None)

    def positions(self, positions: Any, batch: int, seq: int) -> Positions:
        """Check row numbers against the tables and return them."""
        first = first_of(positions, seq) if self.direct and self.indexed else None
        if first is not None and 0 <= first <= self.sides[0].shape[1] - seq:
            return Positions(COUNTING, first)
        where = self.check(positions, batch, seq).rows()
        return Positions(PositionForm(False, 1, where.batch_stride if batch > 1 else 0, False), where.rows)

    def check(self, positions: Any, batch: int, seq: int) -> GivenPositions:
        """Check row numbers against the tables, and make no rows of them."""
        if not self.indexed:
            raise ShapeError("positions: given, but the tables of this plan have a row for each token")
        length = self.sides[0].shape[1]
        given = given_positions(positions, _ONE_AXIS, batch=batch, seq=seq)
        least, greatest = given.limits or (0, -1)
        if least < 0 or greatest >= length:
            bad = least if least < 0 else greatest
            raise ShapeError(f"positions: got {bad}, the tables have rows 0 ... {length - 1}")
        return given

    def table_spec(self, count: int, form: PositionForm, real: Real, info: DeviceInfo) -> LaunchSpec:
        """Return the launch that fills tables of so many rows."""
        return table_kernels.gathered_tables(self.row_width, count, self.sides[0].dtype, real, info)

    def part(self, number: int, rows: slice) -> TensorView:
        """Return what a chunk's rows need of cos (0) or sin (1)."""
        view = self.sides[number]
        batches, per_batch = view.shape[:2]
        if self.indexed or batches == 1:
            return view.part(slice(0, 1), slice(rows.start, rows.stop) if not self.indexed else slice(0, per_batch))
        first, within = divmod(rows.start, per_batch)
        if within or rows.stop - rows.start < per_batch:
            return view.part(slice(first, first + 1), slice(within, within + rows.stop - rows.start))
        return view.part(slice(first, rows.stop // per_batch), slice(0, per_batch))

    def table_arguments(self, runtime: Runtime, rows: slice, real: Real) -> dict[str, Any]:
        """Return the arguments of that launch that do not depend on positions or memory."""
        count, per_batch = rows.stop - rows.start, self.sides[0].shape[1]
        arguments: dict[str, Any] = {
            "indexed": np.int32(self.indexed), "width": np.int32(self.row_width), "split": np.int32(self.split),
            "step": np.int32(self.step), "distance": np.int32(self.distance),
            "rows_per_batch": np.int32(count if self.indexed else min(per_batch, count)),
        }  # fmt: skip
        for name, view in zip(("cosine", "sine"), self.sides, strict=True):
            strides = (view.strides[0], view.strides[1], view.strides[3])
            for axis, number in zip(("batch", "row", "column"), strides, strict=True):
                arguments[f"{name}_{axis}"] = np.int64(number)
        if not self.indexed:
            arguments["index"] = upload(runtime.context, np.zeros(1, np.int64))
        return arguments
