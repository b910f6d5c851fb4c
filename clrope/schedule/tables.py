"""Stage 1: cos and sin on the device, from a configuration's phases or the caller's tables; kept per context.

A decoder asks for the same positions in every layer: tables of the last few (configuration, positions) are kept.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ..angles import AngleTable, angle_table
from ..config import RopeConfig
from ..kernels import cos_sin, cos_sin_ggml, gather
from ..kernels.launch import LaunchSpec
from ..kernels.problem import AngleForm
from ..layout import TensorView
from .launch import Launch
from .programs import program

if TYPE_CHECKING:
    import pyopencl

    from ..device import DeviceInfo

Real = Literal["f32", "f64"]
#: Tables kept per context, and bytes they may take together.
KEPT_TABLES = 8
KEPT_BYTES = 256 << 20


@dataclass(eq=False)
class Tables:
    """cos and sin on the device, REAL[rows][pairs] ([rows][2 pairs] if full), and the event after which they hold."""

    cosine: pyopencl.Buffer
    sine: pyopencl.Buffer
    ready: pyopencl.Event | None
    full: bool = False


@dataclass(eq=False)
class Phases:
    """What a kernel makes cos and sin of itself: positions long[axes][rows] and the steps of a configuration."""

    positions: pyopencl.Buffer
    rows: int
    step: pyopencl.Buffer
    step_low: pyopencl.Buffer
    axis: pyopencl.Buffer
    magnitude: float
    wide: bool
    one_axis: bool
    ready: None = None
    full: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """Compiler options of `kernels/angles.clh`."""
        return (*(["-DONE_AXIS"] if self.one_axis else []), *(["-DWIDE_PHASE"] if self.wide else []))


@dataclass(eq=False)
class _Kept:
    key: tuple[Any, ...]
    rows: npt.NDArray[np.int64]
    made: Any
    nbytes: int


class _ContextState:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kept: list[_Kept] = []
        self.constants: dict[Any, tuple[Any, ...]] = {}


_states: weakref.WeakKeyDictionary[Any, _ContextState] = weakref.WeakKeyDictionary()
_states_lock = threading.Lock()


def _state(context: pyopencl.Context) -> _ContextState:
    with _states_lock:
        return _states.setdefault(context, _ContextState())


def real_of(dtype: str) -> Real:
    """Return the computing type of a storage type."""
    return "f64" if dtype == "f64" else "f32"


def upload(context: pyopencl.Context, array: npt.NDArray[Any]) -> pyopencl.Buffer:
    """Return a read-only buffer with a copy of a C-order array."""
    import pyopencl as cl

    flags = cl.mem_flags
    return cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=np.ascontiguousarray(array))


def tables_of_config(
    queue: pyopencl.CommandQueue,
    device: DeviceInfo,
    config: RopeConfig,
    rows: npt.NDArray[np.int64],
    real: Real,
    wide: bool,
) -> Tables:
    """Return cos and sin of int64[axes, R] positions; config has n_dims set. Computed at most once while kept.

    wide: use the steps' lower bits (positions beyond ±2**31; always for f64).
    """
    real_bytes = 8 if real == "f64" else 4
    wide = wide or real == "f64"
    state = _state(queue.context)

    def make() -> Tables:
        return _compute(queue, device, config, rows, real, wide, state)

    size = 2 * rows.shape[1] * config.n_pairs(None) * real_bytes
    made: Tables = _kept(state, (config, real, wide, queue.device.int_ptr), rows, size, make)
    return made


def phases_of_config(
    context: pyopencl.Context, config: RopeConfig, rows: npt.NDArray[np.int64], real: Real, wide: bool
) -> Phases:
    """Return what a fused kernel needs for int64[axes, R] positions; arguments as for `tables_of_config`."""
    wide = wide or real == "f64"
    state = _state(context)

    def make() -> Phases:
        table = angle_table(config)
        step, step_low, axis = _constants(context, config, table, state)
        one_axis = rows.shape[0] == 1 or not table.axis.any()
        positions = upload(context, rows)
        return Phases(positions, rows.shape[1], step, step_low, axis, table.magnitude, wide, one_axis)

    made: Phases = _kept(state, (config, "phases", wide), rows, rows.nbytes, make)
    return made


def _kept(
    state: _ContextState, key: tuple[Any, ...], rows: npt.NDArray[np.int64], nbytes: int, make: Callable[[], Any]
) -> Any:
    """Return what was made for a key and positions, and is among the last used, or make it."""
    with state.lock:
        for place, kept in enumerate(state.kept):
            if kept.key == key and kept.rows.shape == rows.shape and np.array_equal(kept.rows, rows):
                state.kept.append(state.kept.pop(place))
                return kept.made
        made = make()
        state.kept.append(_Kept(key, rows.copy(), made, nbytes))
        while len(state.kept) > KEPT_TABLES or (
            len(state.kept) > 1 and sum(kept.nbytes for kept in state.kept) > KEPT_BYTES
        ):
            state.kept.pop(0)
        return made


def forget_tables(context: pyopencl.Context) -> None:
    """Drop the tables kept for a context (they are only a memory of earlier calls)."""
    state = _state(context)
    with state.lock:
        state.kept.clear()


def _compute(
    queue: pyopencl.CommandQueue,
    device: DeviceInfo,
    config: RopeConfig,
    rows: npt.NDArray[np.int64],
    real: Real,
    wide: bool,
    state: _ContextState,
) -> Tables:
    import pyopencl as cl

    context, count = queue.context, int(rows.shape[1])
    table = angle_table(config)
    pairs = table.pairs
    size = count * pairs * (8 if real == "f64" else 4)
    cosine, sine = (cl.Buffer(context, cl.mem_flags.READ_WRITE, size) for _ in range(2))
    positions = upload(context, rows)
    constants = _constants(context, config, table, state)
    one_axis = rows.shape[0] == 1 or not table.axis.any()
    bound: dict[str, Any] = {"positions": positions, "cosine": cosine, "sine": sine}
    if config.angles == "ggml":
        g = table.ggml
        spec = cos_sin_ggml.spec(
            pairs, count, real, AngleForm(), device, g.theta_scale, g.freq_scale, g.magnitude, g.yarn
        )
        bound |= dict(zip(("exponent", "factor", "mix", "axis"), constants, strict=True))
    else:
        spec = cos_sin.spec(pairs, count, real, AngleForm(one_axis=one_axis, wide=wide), device)
        bound |= dict(zip(("step", "step_low", "axis"), constants, strict=True))
        bound["magnitude"] = (np.float64 if real == "f64" else np.float32)(table.magnitude)
    launch = _launch(context, queue.device, spec, bound)
    return Tables(cosine, sine, launch.enqueue(queue))


def _launch(context: pyopencl.Context, device: pyopencl.Device, spec: LaunchSpec, bound: dict[str, Any]) -> Launch:
    arguments = [bound[name] if value is None else value for name, value in spec.arguments]
    return Launch(program(context, device, spec), spec.function, spec.global_size, spec.local_size, arguments)


def _constants(
    context: pyopencl.Context, config: RopeConfig, table: AngleTable, state: _ContextState
) -> tuple[pyopencl.Buffer, ...]:
    if config not in state.constants:
        arrays: Sequence[npt.NDArray[Any]] = (table.step, table.step_low, table.axis)
        if config.angles == "ggml":
            arrays = (table.ggml.exponent, table.ggml.factor, table.ggml.mix, table.axis)
        if len(state.constants) >= 256:
            state.constants.clear()
        state.constants[config] = tuple(upload(context, array) for array in arrays)
    return state.constants[config]


@dataclass(frozen=True, eq=False)
class TableColumns:
    """How the columns of a caller's table become the kernel's: see `kernels/gather_tables.cl`."""

    width: int
    split: int
    step: int
    distance: int
    full: bool


def tables_of_arrays(
    queue: pyopencl.CommandQueue,
    device: DeviceInfo,
    cosine: tuple[pyopencl.Buffer, TensorView],
    sine: tuple[pyopencl.Buffer, TensorView],
    columns: TableColumns,
    index: npt.NDArray[np.int64] | None,
    rows: int,
    rows_per_batch: int,
    real: Real,
    wait_for: Sequence[Any] | None = None,
) -> Tables:
    """Gather rows of the caller's tables, views of (batches, rows, 1, columns); index picks rows, without it all."""
    import pyopencl as cl

    context = queue.context
    (cos_buffer, cos_view), (sin_buffer, sin_view) = cosine, sine
    size = rows * columns.width * (8 if real == "f64" else 4)
    outputs = [cl.Buffer(context, cl.mem_flags.READ_WRITE, size) for _ in range(2)]
    picked = upload(context, index if index is not None else np.zeros(1, dtype=np.int64))
    where = [
        np.int64(n)
        for view in (cos_view, sin_view)
        for n in (view.offset, view.strides[0], view.strides[1], view.strides[3])
    ]
    spec = gather.spec(columns.width, rows, cos_view.dtype, real, device)
    tables = [f"{table}_{name}" for table in ("cosine", "sine") for name in ("offset", "batch", "row", "column")]
    bound: dict[str, Any] = {
        **dict(zip(tables, where, strict=True)), "cosine_table": cos_buffer, "sine_table": sin_buffer,
        "index": picked, "indexed": np.int32(index is not None), "rows_per_batch": np.int32(rows_per_batch),
        "split": np.int32(columns.split), "step": np.int32(columns.step), "distance": np.int32(columns.distance),
        "cosine": outputs[0], "sine": outputs[1],
    }  # fmt: skip
    launch = _launch(context, queue.device, spec, bound)
    return Tables(outputs[0], outputs[1], launch.enqueue(queue, wait_for), columns.full)
