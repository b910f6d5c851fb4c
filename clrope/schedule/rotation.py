"""Stage 2: from two views and the tables to a launch of the chosen variant."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np

from ..layout import TensorView
from ..program.build import program
from ..program.chooser import choose
from ..program.variants import BUFFER_ALIGNMENT, TILES_BYTES, Placement, Variant
from .geometry import Geometry
from .launch import Launch, local_size_for
from .tables import Phases, Tables

if TYPE_CHECKING:
    import pyopencl

    from ..device import DeviceInfo

Place = tuple["pyopencl.Buffer", TensorView]
_Bound = tuple[tuple[tuple[int, ...], "tuple[int, ...] | None"], list[Any]]
#: Work-items of a group that shares tiles in local memory. Where they run one after the other one would do, but PoCL's
#: compiler gives up on groups of one that wait for a copy in a loop (`docs/drivers.md`).
_TILE_GROUP = {"cpu": 4, "gpu": 64}
#: Work-items wanted per compute unit of a CPU: enough to balance, few enough to cost nothing.
_ITEMS_PER_UNIT = 16
#: Bytes below which a work-item costs more to start than to run.
_LEAST_ITEM_BYTES = 16384


@dataclass(frozen=True)
class Rotation:
    """How one tensor is rotated: pairs, direction, and whether input and output are the same memory.

    phases: the angles are a configuration's exact ones, which a kernel can make itself.
    """

    geometry: Geometry
    forward: bool
    in_place: bool
    phases: bool = False

    def variant_for(
        self,
        device: DeviceInfo,
        x: Place,
        y: Place,
        preferred: Variant | None,
    ) -> Variant:
        """Return the preferred spelling, or the chooser's, as it fits these buffers and views."""
        place = self._place(x, y)
        return choose(device, place) if preferred is None else preferred.fitted(place)

    def _place(
        self,
        x: Place,
        y: Place,
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
            self.phases,
        )

    def launch(
        self,
        context: pyopencl.Context,
        device: DeviceInfo,
        variant: Variant,
        x: Place,
        y: Place,
        tables: Tables | Phases,
        row_stride: int,
        second: tuple[Place, Place] | None = None,
    ) -> Launch:
        """Bind a launch; views' offsets count from the start of their buffers. row_stride: 0 or tokens per batch.

        tables: `Phases` where the variant's angles are 'fused'. second: input and output of another tensor with the
        same batches, tokens and pairs, whose heads the launch rotates too (kernel 'rows' only).
        """
        if tables.full:  # which the variant was chosen without knowing
            variant = variant.fitted(self._place(x, y, full_tables=True))
        g, xv = self.geometry, x[1]
        fused = tables.options if isinstance(tables, Phases) else ()
        source, name = variant.source(g.pairing or "neox")
        options = (*variant.options(xv.dtype, g.pairs, tables.full), *fused)
        built = program(context, device.cl_device, source, options)
        if variant.kernel == "strided":
            sizes, arguments = self._strided(device, x, y, tables, row_stride)
        elif variant.kernel == "tiled":
            sizes, arguments = self._tiled(device, variant, x, y, tables, row_stride)
        else:
            sizes, arguments = self._rows(device, variant, x, y, tables, row_stride, second)
        return Launch(built, name, *sizes, arguments)

    def _direction(self, dtype: str) -> Any:
        return (np.float64 if dtype == "f64" else np.float32)(1 if self.forward else -1)

    def _strided(self, device: DeviceInfo, x: Place, y: Place, tables: Any, row_stride: int) -> _Bound:
        g, xv = self.geometry, x[1]
        batches, tokens, heads, _ = xv.shape
        slots = g.pairs if self.in_place else g.pairs + g.rest
        per_item = slots if device.kind == "cpu" else 1
        numbers = map(np.int32, (g.step, g.distance, g.out_step, g.out_distance, slots, per_item))
        arguments = [
            *_tensor(x, 4), *_tensor(y, 4), *_tables(tables, xv.dtype), np.int64(row_stride), np.int32(tokens),
            np.int32(g.pairs), np.int32(g.window), self._direction(xv.dtype), *numbers,
        ]  # fmt: skip
        sizes = (-(-slots // per_item), heads, batches * tokens), local_size_for(device.kind, 3)
        return sizes, arguments

    def _rows(
        self, device: DeviceInfo, variant: Variant, x: Place, y: Place, tables: Any, row_stride: int,
        second: tuple[Place, Place] | None,
    ) -> _Bound:  # fmt: skip
        g, xv = self.geometry, x[1]
        batches, tokens, heads, head_dim = xv.shape
        # Without a second tensor the first stands in its place, with no heads.
        x2, y2 = second or (x, y)
        heads2 = x2[1].shape[2] if second else 0
        per_item = min(heads + heads2, variant.heads_per_item) or _heads_per_item(
            device, batches * tokens, heads + heads2, head_dim * xv.itemsize
        )
        rest = 0 if self.in_place or not g.rest else 1
        arguments = [
            *_tensor(x), *_tensor(y), np.int32(heads), *_tensor(x2), *_tensor(y2), np.int32(heads2),
            *_tables(tables, xv.dtype), np.int64(row_stride), np.int32(per_item), np.int32(g.pairs), np.int32(g.window),
            np.int32(head_dim), self._direction(xv.dtype), np.int32(rest),
        ]  # fmt: skip
        sizes = (tokens, -(-(heads + heads2) // per_item), batches), local_size_for(device.kind, 3)
        return sizes, arguments

    def _tiled(self, device: DeviceInfo, variant: Variant, x: Place, y: Place, tables: Any, row_stride: int) -> _Bound:
        import pyopencl as cl

        g, xv = self.geometry, x[1]
        batches, tokens, heads, head_dim = xv.shape
        head_bytes = head_dim * xv.itemsize
        # At least two tiles for a work-group, where there are as many heads: with one nothing would overlap.
        per_group = min(heads, variant.heads_per_item) or _heads_per_item(device, batches * tokens, heads, head_bytes)
        tile_heads = min(max(1, per_group // 2), TILES_BYTES // 2 // head_bytes)
        group = _TILE_GROUP.get(device.kind, _TILE_GROUP["gpu"])
        width = g.pairs * (2 if tables.full else 1)
        arguments = [
            *_tensor(x), *_tensor(y), np.int32(heads), *_tables(tables, xv.dtype), np.int64(row_stride),
            np.int32(per_group), np.int32(g.pairs), np.int32(g.window), np.int32(head_dim), self._direction(xv.dtype),
            np.int32(tile_heads), cl.LocalMemory(2 * tile_heads * head_bytes),
            cl.LocalMemory(2 * width * (8 if xv.dtype == "f64" else 4)),
        ]  # fmt: skip
        return ((tokens * group, -(-heads // per_group), batches), (group, 1, 1)), arguments


def _tensor(place: Place, axes: int = 3) -> list[Any]:
    """Return a buffer, its offset and its first strides, in elements."""
    buffer, view = place
    return [buffer, np.int64(view.offset), *map(np.int64, view.strides[:axes])]


def _tables(tables: Tables | Phases, dtype: str) -> list[Any]:
    """Return the arguments that cos and sin come from."""
    if isinstance(tables, Tables):
        return [tables.cosine, tables.sine]
    magnitude = (np.float64 if dtype == "f64" else np.float32)(tables.magnitude)
    return [tables.positions, np.int32(tables.rows), tables.step, tables.step_low, tables.axis, magnitude]


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
