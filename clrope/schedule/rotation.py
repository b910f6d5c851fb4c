"""Stage 2: from two views and the tables to a launch of the chosen variant."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from ..layout import TensorView
from ..program.build import program
from ..program.chooser import choose
from ..program.variants import BUFFER_ALIGNMENT, Placement, Variant
from .geometry import Geometry
from .launch import Launch, local_size_for
from .tables import Tables

if TYPE_CHECKING:
    import pyopencl

    from ..device import DeviceInfo

#: Work-items wanted per compute unit of a CPU: enough to balance, few enough to cost nothing.
_ITEMS_PER_UNIT = 16
#: Bytes below which a work-item costs more to start than to run.
_LEAST_ITEM_BYTES = 16384


@dataclass(frozen=True)
class Rotation:
    """How one tensor is rotated: pairs, direction, and whether input and output are the same memory."""

    geometry: Geometry
    forward: bool
    in_place: bool

    def variant_for(
        self,
        device: DeviceInfo,
        x: tuple[pyopencl.Buffer, TensorView],
        y: tuple[pyopencl.Buffer, TensorView],
        preferred: Variant | None,
    ) -> Variant:
        """Return the preferred spelling, or the chooser's, as it fits these buffers and views."""
        place = self._place(x, y)
        return choose(device, place) if preferred is None else preferred.fitted(place)

    def _place(
        self,
        x: tuple[pyopencl.Buffer, TensorView],
        y: tuple[pyopencl.Buffer, TensorView],
        full_tables: bool = False,
    ) -> Placement:
        (x_buffer, xv), (y_buffer, yv) = x, y
        return Placement(
            xv,
            yv,
            self.geometry,
            self.in_place,
            lambda: _alignment(x_buffer),
            lambda: _alignment(y_buffer),
            full_tables,
        )

    def launch(
        self,
        context: pyopencl.Context,
        device: DeviceInfo,
        variant: Variant,
        x: tuple[pyopencl.Buffer, TensorView],
        y: tuple[pyopencl.Buffer, TensorView],
        tables: Tables,
        row_stride: int,
    ) -> Launch:
        """Bind a launch; views' offsets count from the start of their buffers. row_stride: 0 or tokens per batch."""
        if tables.full:  # which the variant was chosen without knowing
            variant = variant.fitted(self._place(x, y, full_tables=True))
        g = self.geometry
        (x_buffer, xv), (y_buffer, yv) = x, y
        batches, tokens, heads, head_dim = xv.shape
        source, name = variant.source(g.pairing or "neox")
        built = program(context, device.cl_device, source, variant.options(xv.dtype, g.pairs, tables.full))
        direction = (np.float64 if xv.dtype == "f64" else np.float32)(1 if self.forward else -1)
        i64, i32 = np.int64, np.int32
        if variant.kernel == "strided":
            slots = g.pairs if self.in_place else g.pairs + g.rest
            per_item = slots if device.kind == "cpu" else 1
            return Launch(
                built,
                name,
                (-(-slots // per_item), heads, batches * tokens),
                local_size_for(device.kind, 3),
                [x_buffer, i64(xv.offset), *map(i64, xv.strides), y_buffer, i64(yv.offset), *map(i64, yv.strides),
                 tables.cosine, tables.sine, i64(row_stride), i32(tokens), i32(g.pairs), i32(g.window), direction,
                 i32(g.step), i32(g.distance), i32(g.out_step), i32(g.out_distance), i32(slots), i32(per_item)],
            )  # fmt: skip
        per_item = min(heads, variant.heads_per_item) or _heads_per_item(
            device, batches * tokens, heads, head_dim * xv.itemsize
        )
        return Launch(
            built,
            name,
            (tokens, -(-heads // per_item), batches),
            local_size_for(device.kind, 3),
            [x_buffer, i64(xv.offset), *map(i64, xv.strides[:3]), y_buffer, i64(yv.offset), *map(i64, yv.strides[:3]),
             tables.cosine, tables.sine, i64(row_stride), i32(heads), i32(per_item), i32(g.pairs), i32(g.window),
             i32(head_dim), direction, i32(0 if self.in_place or not g.rest else 1)],
        )  # fmt: skip


def _heads_per_item(device: DeviceInfo, tokens: int, heads: int, head_bytes: int) -> int:
    if device.kind != "cpu":
        return 1
    wanted = max(1, device.compute_units * _ITEMS_PER_UNIT)
    groups = min(heads, max(1, -(-wanted // max(1, tokens))))
    return min(heads, max(-(-heads // groups), -(-_LEAST_ITEM_BYTES // head_bytes)))


def _alignment(buffer: pyopencl.Buffer) -> int:
    """Return the bytes, up to 64, that the start of a buffer is aligned to: over host memory, the memory's own."""
    import pyopencl as cl

    if not isinstance(buffer, cl.MemoryObjectHolder):
        return 1  # shared virtual memory of a caller's allocator
    if not buffer.flags & cl.mem_flags.USE_HOST_PTR:
        return BUFFER_ALIGNMENT
    address: int = buffer.get_host_array((1,), np.dtype(np.uint8)).__array_interface__["data"][0]
    return gcd(BUFFER_ALIGNMENT, address)
