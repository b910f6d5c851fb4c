"""The launch of a lab kernel on memory with guards: its tables, positions and constant arrays have guards, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..call.events import opencl_errors
from ..call.runtime import runtime_for
from ..config import RopeConfig
from ..emulation import emulate_tables
from ..errors import UnsupportedError
from ..kernels.kernel import Kernel
from ..kernels.launch import BoundRows, ConstantBytes, Launch, LaunchSpec
from ..kernels.problem import AngleForm, PairLayout, Problem
from ..kernels.variant import Variant
from ..layout import Shape4, canonical
from ..positions import PositionRows
from ..suite.case import Case
from .guarded_arrays import GuardedBytes

if TYPE_CHECKING:
    import pyopencl

    from ..device import DeviceInfo

Array = npt.NDArray[Any]


def problem_of(case: Case, config: RopeConfig, x: Array, y: Array, row_stride: int) -> Problem:
    """Return what a case has to rotate; x, y: views of one tensor, with the axes of the case's layout."""
    x, y = canonical(x, case.lo), canonical(y, case.lo)
    return Problem(
        _four(x.shape), case.type, _strides(x), _strides(y), PairLayout.of_config(config, x.shape[3]), case.inplace,
        case.forward, AngleForm(config.angles == "exact", sections=config.uses_sections),
        row_stride if x.shape[0] > 1 else 0,
    )  # fmt: skip


def _four(numbers: tuple[int, ...]) -> Shape4:
    a, b, c, d = numbers
    return a, b, c, d


def _strides(array: Array) -> Shape4:
    return _four(tuple(step // array.itemsize for step in array.strides))


def spec_of(kernel: Kernel, problem: Problem, device: DeviceInfo | None = None) -> LaunchSpec:
    """Return a configured lab kernel's launch; raises `UnsupportedError` for what its arguments cannot express."""
    unsupported = kernel.supports(problem, {})
    if unsupported is not None:
        raise UnsupportedError(str(unsupported))
    return kernel.spec(problem, Variant(kernel), device)


def positions_for(spec: LaunchSpec, rows: PositionRows) -> npt.NDArray[Any] | None:
    """Return positions as a launch takes them, [axes][rows]; None if it takes none.

    Raises `UnsupportedError` for positions that its type does not hold.
    """
    wanted = next((value for _, value in spec.arguments if isinstance(value, BoundRows)), None)
    if wanted is None:
        return None
    limits = np.iinfo(wanted.dtype)
    for bad in (int(rows.rows.min()), int(rows.rows.max())):
        if not limits.min <= bad <= limits.max:
            raise UnsupportedError(f"positions such as {bad}, which {wanted.dtype} does not hold")
    return np.ascontiguousarray(np.tile(rows.rows[: wanted.axes], spec.row_repeats).astype(wanted.dtype))


class LabLaunch:
    """A kernel object for one tensor, ready for any memory of its layout.

    config has n_dims set. Raises `UnsupportedError`, `BuildError`, `DeviceError`.
    """

    def __init__(
        self, queue: pyopencl.CommandQueue, device: DeviceInfo, kernel: Kernel, config: RopeConfig, problem: Problem,
        rows: PositionRows, *, exact: bool = False,
    ) -> None:  # fmt: skip
        self._queue, self._device = queue, device
        spec = spec_of(kernel, problem, device)
        arrays: dict[str, Array] = {}
        positions = positions_for(spec, rows)
        if positions is not None:
            arrays["positions"] = positions
        if {"cosine", "sine"} & set(spec.bound_names):
            tables = emulate_tables(rows, config, "f64" if problem.dtype == "f64" else "f32")
            cosine, sine = (np.tile(table, (spec.row_repeats, 1)) for table in tables)
            arrays |= {"cosine": cosine, "sine": sine}
        program = runtime_for(device).program(spec)
        with opencl_errors(device.name):
            self._launch = Launch(program, spec)
            self._read = {name: GuardedBytes(queue, array, exact) for name, array in arrays.items()}
            self._launch.bind({name: guarded.memory for name, guarded in self._read.items()})
            for k, (name, value) in enumerate(spec.arguments):
                if isinstance(value, ConstantBytes) and value.buffer:
                    guarded = self._read[name] = GuardedBytes(queue, np.frombuffer(value.data, np.uint8), exact)
                    self._launch.kernel.set_arg(k, guarded.memory)

    def takes_offset(self, name: str) -> bool:
        """Whether x or y, if the kernel has it, may begin later in its buffer."""
        return not self._launch.indices(name) or bool(self._launch.indices(f"{name}_offset"))

    def __call__(self, x: Any, y: Any) -> None:
        """Rotate one OpenCL array into another one, or into itself, and wait."""
        for name, array in (("x", x), ("y", y)):
            first, offsets = array.offset // array.dtype.itemsize, self._launch.indices(f"{name}_offset")
            if first and not offsets:
                raise UnsupportedError(f"{name} that begins later in its buffer ({name}_offset)")
            for k in offsets:
                self._launch.set_offset(k, first)
            self._launch.bind({name: array.base_data})
        with opencl_errors(self._device.name):
            self._launch.enqueue(self._queue)
            self._queue.finish()

    def changed(self) -> str:
        """Return what the kernel changed of the memory that it may only read, or around it; '' if nothing."""
        counts = {name: guarded.changed() for name, guarded in self._read.items()}
        return ", ".join(f"{n} bytes of {name} or around it changed (out of bounds)" for name, n in counts.items() if n)
