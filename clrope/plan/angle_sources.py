"""Where the cos and sin of a call come from: a configuration at positions, or the caller's own tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..angles import angle_table
from ..arrays import Operand
from ..config import RopeConfig
from ..errors import ShapeError, UnsupportedError
from ..kernels import cos_sin, cos_sin_ggml, gather
from ..kernels.launch import BoundRows, Launch, LaunchSpec
from ..kernels.problem import AngleForm
from ..layout import TensorView
from ..positions import GivenPositions, given_positions
from ..runtime import Runtime, pending
from .host_buffers import HostBuffers, MemoryRange

if TYPE_CHECKING:
    import pyopencl

Real = Literal["f32", "f64"]
_I64_MAX = (1 << 63) - 1
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
    kind = type(positions)
    if kind is int:
        quick = counting_from(positions, seq)
        if quick is not None:
            return quick
    elif (
        kind is np.ndarray and positions.ndim == 1 and positions.dtype.kind == "i" and 0 < seq == positions.size <= _FEW
    ):
        first = int(positions[0])
        if seq == 1 or (int(positions[-1]) - first == seq - 1 and (np.diff(positions) == 1).all()):
            quick = counting_from(first, seq)
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


def repeated(positions: Positions, rows: slice, times: int) -> tuple[Positions, slice]:
    """Return some rows of positions, each batch's own, as positions and rows of all batches."""
    if times == 1:
        return positions, rows
    form, made = positions.form, np.tile(_int64_rows(positions, rows), times)
    return Positions(PositionForm(False, made.shape[0], form.batch_stride, form.wide), made), slice(0, made.shape[1])


def own_rows(positions: Positions, rows: slice, spec: LaunchSpec) -> npt.NDArray[Any]:
    """Return positions as a kernel that is not the package's takes them: integers [axes][rows] of its own type.

    Raises `UnsupportedError` for positions that do not fit the type.
    """
    wanted = next(value for _, value in spec.arguments if isinstance(value, BoundRows))
    made, limits = np.tile(_int64_rows(positions, rows), spec.row_repeats), np.iinfo(wanted.dtype)
    if made.size and (int(made.min()) < limits.min or int(made.max()) > limits.max):
        bad = int(made.min()) if int(made.min()) < limits.min else int(made.max())
        raise UnsupportedError(f"positions: got {bad}, kernel {spec.function!r} takes {wanted.dtype}")
    if made.shape[0] == 1:
        made = np.repeat(made, wanted.axes, axis=0)  # one position for all axes
    elif made.shape[0] < wanted.axes:
        made = np.concatenate([made, np.zeros((wanted.axes - made.shape[0], made.shape[1]), np.int64)])
    return np.ascontiguousarray(made[: wanted.axes].astype(wanted.dtype))


def _int64_rows(positions: Positions, rows: slice) -> npt.NDArray[np.int64]:
    """Return some rows of positions as int64[axes][rows]."""
    if positions.form.counting:
        counted: npt.NDArray[np.int64] = positions.value + np.arange(rows.start, rows.stop, dtype=np.int64)
        return counted[None]
    given: npt.NDArray[np.int64] = positions.value[:, rows]
    return given


@dataclass(eq=False)
class Tables:
    """cos and sin on a device, REAL[rows][pairs] ([rows][2 pairs] if full), and the event after which they hold."""

    cosine: pyopencl.Buffer
    sine: pyopencl.Buffer
    ready: pyopencl.Event | None
    queue: pyopencl.CommandQueue
    nbytes: int


def upload(context: pyopencl.Context, array: npt.NDArray[Any]) -> pyopencl.Buffer:
    """Return a read-only buffer with a copy of an array in C order."""
    import pyopencl as cl

    flags = cl.mem_flags
    return cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=np.ascontiguousarray(array))


def make_tables(
    runtime: Runtime,
    queue: pyopencl.CommandQueue,
    spec: LaunchSpec,
    arguments: dict[str, Any],
    nbytes: int,
    waits: Sequence[Any] | None = None,
) -> Tables:
    """Launch a kernel that writes cosine and sine, each of nbytes bytes."""
    import pyopencl as cl

    launch = Launch(runtime.program(spec), spec)
    cosine, sine = (cl.Buffer(runtime.context, cl.mem_flags.READ_WRITE, nbytes) for _ in range(2))
    launch.bind({**arguments, "cosine": cosine, "sine": sine})
    return Tables(cosine, sine, launch.enqueue(queue, waits), queue, 2 * nbytes)


class ConfigAngles:
    """cos and sin of a configuration, which has n_dims set."""

    #: Tables stay as they are while the positions do.
    constant = True

    def __init__(self, config: RopeConfig) -> None:
        self.config = config

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

    def form(self, form: PositionForm, real: Real) -> AngleForm:
        """Return where a launch takes cos and sin from."""
        one_axis = form.axes == 1 or not angle_table(self.config).axis.any()
        exact = self.config.angles == "exact"
        wide = form.wide or real == "f64"
        return AngleForm(exact, False, self.config.uses_sections, form.counting, one_axis, wide)

    def constants(self, runtime: Runtime) -> dict[str, Any]:
        """Return the arguments that depend on the configuration alone."""
        with runtime.lock:
            found = runtime.constants.get(self.config)
            if found is None:
                table = angle_table(self.config)
                arrays: dict[str, npt.NDArray[Any]] = {
                    "step": table.step,
                    "step_low": table.step_low,
                    "axis": table.axis,
                }
                if self.config.angles == "ggml":
                    ggml = table.ggml
                    arrays = {"exponent": ggml.exponent, "factor": ggml.factor, "mix": ggml.mix, "axis": table.axis}
                found = {name: upload(runtime.context, array) for name, array in arrays.items()}
                runtime.constants[self.config] = found
        return found

    def magnitude(self, real: Real) -> Any:
        """Return the factor on cos and sin as a kernel takes it."""
        return (np.float64 if real == "f64" else np.float32)(angle_table(self.config).magnitude)

    def tables(
        self, runtime: Runtime, queue: pyopencl.CommandQueue, positions: Positions, rows: slice, real: Real
    ) -> Tables:
        """Return the tables of some rows of positions, made at most once while they are kept."""
        form, value = positions
        count = rows.stop - rows.start
        if form.counting:
            part: Any = value + rows.start
            name: Any = part
        else:
            part = np.ascontiguousarray(value[:, rows])
            name = part.tobytes()
        angles = self.form(form, real)
        key = (self.config, real, angles, count, name)
        made: Tables = runtime.remember_table(key, lambda: self._make(runtime, queue, part, count, angles, real))
        return made

    def _make(
        self, runtime: Runtime, queue: pyopencl.CommandQueue, part: Any, count: int, angles: AngleForm, real: Real
    ) -> Tables:
        table, info = angle_table(self.config), runtime.info
        if self.config.angles == "ggml":
            g = table.ggml
            spec = cos_sin_ggml.spec(
                table.pairs, count, real, angles, info, g.theta_scale, g.freq_scale, g.magnitude, g.yarn
            )
        else:
            spec = cos_sin.spec(table.pairs, count, real, angles, info)
        positions = np.int64(part) if angles.counting else upload(runtime.context, part)
        arguments = {**self.constants(runtime), "positions": positions, "rows": np.int32(count)}
        if self.config.angles == "exact":
            arguments["magnitude"] = self.magnitude(real)
        return make_tables(runtime, queue, spec, arguments, count * table.pairs * (8 if real == "f64" else 4))


@dataclass(frozen=True)
class TableColumns:
    """How the columns of a caller's table become the kernel's: see `kernels/gather_tables.cl`.

    full: a row holds numbers for both elements of each pair. Compiled calls depend on nothing else of such tables.
    """

    width: int
    split: int
    step: int
    distance: int
    full: bool

    @property
    def row_width(self) -> int:
        """Numbers in one row of cos on the device."""
        return self.width

    def form(self, form: PositionForm, real: Real) -> AngleForm:
        """Return where a launch takes cos and sin from."""
        return AngleForm(full_tables=self.full, callers=True)


@dataclass(eq=False)
class ArrayAngles:
    """The caller's cos and sin: operands of shape (batches, rows, 1, columns). Positions pick rows, or tokens have one.

    rows_per_batch: rows that batches have of their own, without positions.
    """

    cosine: Operand
    sine: Operand
    columns: TableColumns
    indexed: bool
    rows_per_batch: int

    #: The caller may change the tables between runs.
    constant = False

    def positions(self, positions: Any, batch: int, seq: int) -> Positions:
        """Check row numbers against the tables and return them."""
        where = self.check(positions, batch, seq).rows()
        return Positions(PositionForm(False, 1, where.batch_stride if batch > 1 else 0, False), where.rows)

    def check(self, positions: Any, batch: int, seq: int) -> GivenPositions:
        """Check row numbers against the tables, and make no rows of them."""
        if not self.indexed:
            raise ShapeError("positions: given, but the tables of this plan have a row for each token")
        length = self.cosine.view.shape[1]
        given = given_positions(positions, RopeConfig("neox"), batch=batch, seq=seq)
        least, greatest = given.limits or (0, -1)
        if least < 0 or greatest >= length:
            bad = least if least < 0 else greatest
            raise ShapeError(f"positions: got {bad}, the tables have rows 0 ... {length - 1}")
        return given

    def tables(
        self, runtime: Runtime, queue: pyopencl.CommandQueue, positions: Positions, rows: slice, real: Real
    ) -> Tables:
        """Gather rows as the tables are now."""
        placed, host = self._on_device(runtime, queue)
        # What the caller still has under way on device tables comes first.
        arrays = [o.array for o in (self.cosine, self.sine) if o.kind == "opencl"]
        waits = pending([e for array in arrays for e in array.events])
        count = span = rows.stop - rows.start
        index = np.zeros(1, np.int64)
        if self.indexed:
            index = np.ascontiguousarray(positions.value[0, rows])
        else:
            per_batch = self.rows_per_batch
            first, within = divmod(rows.start, per_batch)
            placed = [
                (
                    buffer,
                    view.part(slice(first, view.shape[0]), slice(0, view.shape[1])).moved(within * view.strides[1]),
                )
                for buffer, view in placed
            ]
            span = min(per_batch, count)
        columns, width = self.columns, self.columns.width
        arguments: dict[str, Any] = {
            "index": upload(runtime.context, index), "indexed": np.int32(self.indexed),
            "rows_per_batch": np.int32(span), "width": np.int32(width), "split": np.int32(columns.split),
            "step": np.int32(columns.step),
            "distance": np.int32(columns.distance),
        }  # fmt: skip
        for name, (buffer, view) in zip(("cosine", "sine"), placed, strict=True):
            numbers = (view.offset, view.strides[0], view.strides[1], view.strides[3])
            arguments[f"{name}_table"] = buffer
            for axis, number in zip(("offset", "batch", "row", "column"), numbers, strict=True):
                arguments[f"{name}_{axis}"] = np.int64(number)
        spec = gather.spec(width, count, self.cosine.view.dtype, real, runtime.info)
        nbytes = count * width * (8 if real == "f64" else 4)
        if host is None:
            made = make_tables(runtime, queue, spec, arguments, nbytes, waits or None)
            if unordered := runtime.queue_state(queue).unordered(arrays):
                runtime.leave_events(unordered, [made.ready], waits)
            return made
        with runtime.using(queue, [host, self.cosine, self.sine]):
            made = make_tables(runtime, queue, spec, arguments, nbytes, None)
            made.ready.wait()  # type: ignore[union-attr]  # the caller may change or free the tables once we return
        return made

    def _on_device(
        self, runtime: Runtime, queue: pyopencl.CommandQueue
    ) -> tuple[list[tuple[Any, TensorView]], HostBuffers | None]:
        operands = (self.cosine, self.sine)
        if self.cosine.kind == "opencl":
            return [(o.array.base_data, o.view) for o in operands], None
        if runtime.host_access != "copied":
            host = HostBuffers(runtime, queue, [MemoryRange.of(o, o.view, False) for o in operands])
            return [host.place(o, o.view) for o in operands], host
        placed: list[tuple[Any, TensorView]] = []
        for o in operands:
            assert o.host is not None
            bits = o.host.view(np.dtype(f"u{o.view.itemsize}"))
            placed.append((upload(runtime.context, bits), TensorView.dense(o.view.shape, o.view.dtype)))
        return placed, None
