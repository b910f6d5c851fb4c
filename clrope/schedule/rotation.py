"""Stage 2 for the plans of this package: from placed views and tables to a bound launch of `clrope.kernels`."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..kernels.launch import NO_BUFFER, LaunchSpec, LocalBytes
from ..kernels.problem import BUFFER_ALIGNMENT, AngleForm, PairLayout, Problem
from ..kernels.variant import Variant
from ..layout import Shape4, TensorView
from ..select.choice import select
from .launch import Launch
from .programs import program
from .tables import Phases, Tables

if TYPE_CHECKING:
    import pyopencl

    from ..device import DeviceInfo

    #: A buffer and a view whose offset counts from its start.
    Placed = tuple[pyopencl.Buffer, TensorView]


class Signature(NamedTuple):
    """All of two placed views that decides how the one is rotated into the other."""

    shape: Shape4
    dtype: str
    x_strides: Shape4
    y_strides: Shape4
    x_alignment: int
    y_alignment: int

    @classmethod
    def of(cls, x: Placed, y: Placed) -> Signature:
        """Describe buffers and the views in them."""
        (x_buffer, xv), (y_buffer, yv) = x, y
        x_alignment = gcd(_alignment(x_buffer), xv.offset * xv.itemsize)
        y_alignment = x_alignment if y is x else gcd(_alignment(y_buffer), yv.offset * yv.itemsize)
        return cls(xv.shape, xv.dtype, xv.strides, yv.strides, x_alignment, y_alignment)


@dataclass(frozen=True)
class Rotation:
    """How one tensor is rotated: pairs, direction, and whether input and output are the same memory."""

    geometry: PairLayout
    forward: bool
    in_place: bool
    phases: bool = False
    sections: bool = False
    full_tables: bool = False

    def problem(self, x: Placed, y: Placed, row_stride: int = 0, form: AngleForm | None = None) -> Problem:
        """Return the problem of two placed views."""
        at = Signature.of(x, y)
        form = form or AngleForm(self.phases, self.full_tables, self.sections)
        return Problem(
            at.shape, at.dtype, at.x_strides, at.y_strides, self.geometry, self.in_place, self.forward, form,
            row_stride, at.x_alignment, at.y_alignment,
        )  # fmt: skip

    def variant_for(self, device: DeviceInfo, x: Placed, y: Placed, preferred: Variant | None, nbytes: int) -> Variant:
        """Return the variant that is launched."""
        return select(device, self.problem(x, y), nbytes, preferred)

    def launch(
        self,
        context: pyopencl.Context,
        device: DeviceInfo,
        variant: Variant,
        x: Placed,
        y: Placed,
        tables: Tables | Phases,
        row_stride: int,
        second: tuple[Placed, Placed] | None = None,
    ) -> Launch:
        """Bind a launch; views' offsets count from the start of their buffers. row_stride: 0 or tokens per batch."""
        form = AngleForm(self.phases, self.full_tables, self.sections)
        bound: dict[str, Any] = {}
        if isinstance(tables, Phases):
            form = replace(form, one_axis=tables.one_axis, wide=tables.wide)
            real = np.float64 if x[1].dtype == "f64" else np.float32
            bound = {
                "positions": tables.positions, "rows": np.int32(tables.rows), "step": tables.step,
                "step_low": tables.step_low, "axis": tables.axis, "magnitude": real(tables.magnitude),
            }  # fmt: skip
        else:
            bound = {"cosine": tables.cosine, "sine": tables.sine}
        problem = self.problem(x, y, row_stride, form)
        for name, (buffer, view) in zip(("x", "y", "x2", "y2"), (x, y, *(second or ())), strict=False):
            bound |= {name: buffer, f"{name}_offset": np.int64(view.offset)}
        spec = variant.spec(problem, device, self.problem(*second, row_stride, form) if second else None)
        return launch_of(context, device.cl_device, spec, bound)


def launch_of(context: pyopencl.Context, device: pyopencl.Device, spec: LaunchSpec, bound: dict[str, Any]) -> Launch:
    """Return a launch with all arguments bound."""
    import pyopencl as cl

    def given(name: str, value: Any) -> Any:
        if isinstance(value, LocalBytes):
            return cl.LocalMemory(value.size)
        return None if value is NO_BUFFER else bound[name] if value is None else value

    arguments = [given(name, value) for name, value in spec.arguments]
    built = program(context, device, spec)
    return Launch(built, spec.function, spec.global_size, spec.local_size, arguments)


def _alignment(buffer: pyopencl.Buffer) -> int:
    """Return the bytes, up to 64, that the start of a buffer is aligned to: over host memory, the memory's own."""
    import pyopencl as cl

    if not isinstance(buffer, cl.MemoryObjectHolder):
        return 1  # shared virtual memory of a caller's allocator
    if not buffer.flags & cl.mem_flags.USE_HOST_PTR:
        return BUFFER_ALIGNMENT
    memory = buffer.hostbuf
    if isinstance(memory, ctypes.Array):  # ours; asking the driver takes ten times as long
        return gcd(BUFFER_ALIGNMENT, ctypes.addressof(memory))
    address: int = buffer.get_host_array((1,), np.dtype(np.uint8)).__array_interface__["data"][0]
    return gcd(BUFFER_ALIGNMENT, address)
