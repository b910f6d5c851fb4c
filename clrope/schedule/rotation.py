"""Stage 2: from two views and the tables to a launch of the chosen variant."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..layout import DTYPES, Shape4, TensorView
from ..program import tuning
from ..program.build import program
from ..program.chooser import choose
from ..program.variants import BUFFER_ALIGNMENT, TILES_BYTES, Placement, Variant
from .geometry import Geometry
from .launch import Launch, local_size_for
from .tables import Phases, Tables

if TYPE_CHECKING:
    import pyopencl

    from ..device import DeviceInfo

    #: A buffer and a view whose offset counts from its start.
    Placed = tuple[pyopencl.Buffer, TensorView]

#: Work-items wanted per compute unit of a CPU: enough to balance, few enough to cost nothing.
_ITEMS_PER_UNIT = 16
#: Bytes below which a work-item costs more to start than to run.
_LEAST_ITEM_BYTES = 16384
#: Bytes that a work-item shall have where there are enough of them: starting one costs time, and what is fetched ahead
#: at its end is lost.
_ITEM_BYTES = 262144
#: Bytes below which starting work-items counts (on Intel's runtime each of the first 64 takes 0.1 us, of 28 for 1 MiB).
#: Then: bytes of an item, and items for each compute unit at least.
_LITTLE_BYTES = 4 << 20
_LITTLE_ITEM_BYTES = 131072
_FEWEST_ITEMS = 2
#: Tokens or heads that a kernel can count.
_MOST = (1 << 31) - 1
#: Work-items of a group that shares tiles in local memory. Where they run one after the other one would do, but PoCL's
#: compiler gives up on groups of one that wait for a copy in a loop (`docs/drivers.md`).
_TILE_GROUP = {"cpu": 4, "gpu": 64}

#: Stands for a second tensor's input and output where there is none. Not the first one's again: each buffer makes a
#: launch 0.2 to 0.3 us longer on Intel's runtime, where a decode takes 7.
_NO_TENSORS: list[Any] = [None, *(np.int64(0),) * 4] * 2


class Signature(NamedTuple):
    """All of two placed views that decides how the one is rotated into the other: not where they begin, but how well.

    x_alignment, y_alignment: bytes, up to `BUFFER_ALIGNMENT`, that element [0, 0, 0, 0] is aligned to.
    """

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

    def placement(self, rotation: Rotation, full_tables: bool = False) -> Placement:
        """Return what a variant's fit is judged by."""
        x, y = (TensorView(self.shape, strides, 0, self.dtype) for strides in (self.x_strides, self.y_strides))
        return Placement(
            x, y, rotation.geometry, rotation.in_place, self.x_alignment, self.y_alignment, full_tables,
            rotation.phases, rotation.sections,
        )  # fmt: skip


@dataclass(frozen=True)
class Rotation:
    """How one tensor is rotated: pairs, direction, and whether input and output are the same memory.

    phases: the angles are a configuration's exact ones, which a kernel can make itself. sections: a token's pairs have
    positions of several axes.
    """

    geometry: Geometry
    forward: bool
    in_place: bool
    phases: bool = False
    sections: bool = False

    def variant_for(self, device: DeviceInfo, x: Placed, y: Placed, preferred: Variant | None, nbytes: int) -> Variant:
        """Return the preferred spelling, or the chooser's, as it fits these buffers and views.

        nbytes: of all tensors that are rotated with this one: together they meet the caches.
        """
        signature = Signature.of(x, y)
        if preferred is not None:
            return _fitted(preferred, self, signature, False)
        return _chosen(device, self, signature, nbytes, tuning.edition())

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
        """Bind a launch; views' offsets count from the start of their buffers. row_stride: 0 or tokens per batch.

        tables: `Phases` where the variant's angles are 'fused'. second: input and output of another tensor with the
        same batches, tokens and pairs, whose heads the launch rotates too (kernel 'rows' only).
        """
        if tables.full:  # which the variant was chosen without knowing
            variant = _fitted(variant, self, Signature.of(x, y), True)
        places = [x, y, *(second or ())]
        if variant.kernel == "rows" and x[1].shape[0] > 1:
            places = _one_batch(places, row_stride)
        xv, heads2 = places[0][1], places[2][1].shape[2] if second else 0
        recipe = _recipe(
            self, device, variant, xv.shape, xv.dtype, row_stride, tables.full,
            tables.options if isinstance(tables, Phases) else (), heads2,
        )  # fmt: skip
        built = program(context, device.cl_device, recipe.source, recipe.options)
        if variant.kernel == "strided":
            tensors = [*_tensor(x, 4), *_tensor(y, 4)]
        else:
            tensors = [*_tensor(places[0]), *_tensor(places[1]), recipe.heads]
        if variant.kernel == "rows":
            others = [argument for place in places[2:] for argument in _tensor(place)]
            tensors += [*(others or _NO_TENSORS), recipe.heads2]
        arguments = [*tensors, *_tables(tables, xv.dtype), *recipe.numbers, *_local(recipe.local_bytes)]
        return Launch(built, recipe.name, recipe.global_size, recipe.local_size, arguments)


def _one_batch(places: list[Placed], row_stride: int) -> list[Placed]:
    """Return the same with all batches as one where a launch can take them for something else of that.

    Those with rows of their own, if they lie like further tokens, are that; those of one token in the same row, if they
    lie like further heads, are that. Work-items then get several of them at once: the tokens of a decode are each a
    batch.
    """
    batches, tokens = places[0][1].shape[:2]
    if row_stride == tokens and batches * tokens <= _MOST:
        if tokens > 1 and any(view.strides[0] != tokens * view.strides[1] for _, view in places):
            return places
        return [(buffer, _as_tokens(view)) for buffer, view in places]
    if row_stride == 0 and tokens == 1:
        if any(view.strides[0] != view.shape[2] * view.strides[2] for _, view in places):
            return places
        if batches * sum(view.shape[2] for _, view in places[::2]) <= _MOST:
            return [(buffer, _as_heads(view)) for buffer, view in places]
    return places


def _as_tokens(view: TensorView) -> TensorView:
    (batches, tokens, heads, head_dim), (batch_step, token_step, head_step, element_step) = view.shape, view.strides
    step = batch_step if tokens == 1 else token_step
    return replace(view, shape=(1, batches * tokens, heads, head_dim), strides=(0, step, head_step, element_step))


def _as_heads(view: TensorView) -> TensorView:
    (batches, _, heads, head_dim), (_, _, head_step, element_step) = view.shape, view.strides
    return replace(view, shape=(1, 1, batches * heads, head_dim), strides=(0, 0, head_step, element_step))


def _tensor(place: Placed, axes: int = 3) -> list[Any]:
    """Return a buffer, its offset and its first strides, in elements."""
    buffer, view = place
    return [buffer, np.int64(view.offset), *_strides(view.strides)[:axes]]


@lru_cache(maxsize=512)
def _strides(strides: Shape4) -> tuple[np.int64, ...]:
    return tuple(map(np.int64, strides))


def _tables(tables: Tables | Phases, dtype: str) -> list[Any]:
    """Return the arguments that cos and sin come from."""
    if isinstance(tables, Tables):
        return [tables.cosine, tables.sine]
    magnitude = (np.float64 if dtype == "f64" else np.float32)(tables.magnitude)
    return [tables.positions, np.int32(tables.rows), tables.step, tables.step_low, tables.axis, magnitude]


def _local(sizes: tuple[int, ...]) -> list[Any]:
    """Return arguments in local memory of so many bytes."""
    import pyopencl as cl

    return [cl.LocalMemory(size) for size in sizes]


# What follows depends on its arguments alone, and calls of one kind come by the thousand.


@lru_cache(maxsize=512)
def _fitted(variant: Variant, rotation: Rotation, signature: Signature, full_tables: bool) -> Variant:
    return variant.fitted(signature.placement(rotation, full_tables))


@lru_cache(maxsize=512)
def _chosen(device: DeviceInfo, rotation: Rotation, signature: Signature, nbytes: int, _edition: object) -> Variant:
    return choose(device, signature.placement(rotation), nbytes)


@dataclass(frozen=True)
class _Recipe:
    """All of a launch but its program, tensors and tables: kernel, sizes, and the numbers it is called with."""

    source: str
    name: str
    options: tuple[str, ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    heads: np.int32
    heads2: np.int32
    numbers: tuple[Any, ...]
    local_bytes: tuple[int, ...] = ()


@lru_cache(maxsize=512)
def _recipe(
    rotation: Rotation,
    device: DeviceInfo,
    variant: Variant,
    shape: Shape4,
    dtype: str,
    row_stride: int,
    full_tables: bool,
    fused: tuple[str, ...],
    heads2: int,
) -> _Recipe:
    g = rotation.geometry
    batches, tokens, heads, head_dim = shape
    head_bytes = head_dim * DTYPES[dtype].itemsize
    i64, i32 = np.int64, np.int32
    direction = (np.float64 if dtype == "f64" else np.float32)(1 if rotation.forward else -1)
    local_size = local_size_for(device.kind, 3)
    local_bytes: tuple[int, ...] = ()
    numbers: tuple[Any, ...]
    if variant.kernel == "strided":
        slots = g.pairs if rotation.in_place else g.pairs + g.rest
        per_item = slots if device.kind == "cpu" else 1
        global_size = (-(-slots // per_item), heads, batches * tokens)
        numbers = (
            i64(row_stride), i32(tokens), i32(g.pairs), i32(g.window), direction, i32(g.step), i32(g.distance),
            i32(g.out_step), i32(g.out_distance), i32(slots), i32(per_item),
        )  # fmt: skip
    else:
        all_heads = heads + heads2
        per_item = min(all_heads, variant.heads_per_item) or _heads_per_item(
            device, batches * tokens, all_heads, head_bytes
        )
        global_size = (tokens, -(-all_heads // per_item), batches)
        numbers = (i32(per_item), i32(g.pairs), i32(g.window), i32(head_dim), direction)
        if variant.kernel == "rows":
            at_once = _tokens_per_item(device, batches * tokens, all_heads, per_item, head_bytes)
            at_once = min(at_once, tokens)
            global_size = (-(-tokens // at_once), *global_size[1:])
            rest = 0 if rotation.in_place or not g.rest else 1
            numbers = (i64(row_stride), i32(tokens), i32(at_once), *numbers, i32(rest))
        else:
            numbers = (i64(row_stride), *numbers)
            # Two tiles at least for a work-group, where there are as many heads: with one nothing would overlap.
            tile_heads = min(max(1, per_item // 2), TILES_BYTES // 2 // head_bytes)
            group = _TILE_GROUP.get(device.kind, _TILE_GROUP["gpu"])
            global_size, local_size = (tokens * group, *global_size[1:]), (group, 1, 1)
            numbers += (i32(tile_heads),)
            row_bytes = g.pairs * (2 if full_tables else 1) * (8 if dtype == "f64" else 4)
            local_bytes = (2 * tile_heads * head_bytes, 2 * row_bytes)
    source, name = variant.source(g.pairing or "neox")
    options = (*variant.options(dtype, g, full_tables), *fused)
    return _Recipe(
        source, name, options, global_size, local_size, i32(heads), i32(heads2), numbers, local_bytes
    )  # fmt: skip


def _items(device: DeviceInfo, nbytes: int) -> int:
    """Return how many work-items a CPU should have for so many bytes."""
    items = device.compute_units * _ITEMS_PER_UNIT
    if nbytes >= _LITTLE_BYTES:
        return max(1, items)
    return max(device.compute_units * _FEWEST_ITEMS, min(items, nbytes // _LITTLE_ITEM_BYTES), 1)


def _heads_per_item(device: DeviceInfo, tokens: int, heads: int, head_bytes: int) -> int:
    if device.kind != "cpu":
        return 1
    wanted = _items(device, tokens * heads * head_bytes)
    groups = min(heads, -(-wanted // max(1, tokens)))
    return min(heads, max(-(-heads // groups), -(-_LEAST_ITEM_BYTES // head_bytes)))


def _tokens_per_item(device: DeviceInfo, tokens: int, heads: int, per_item: int, head_bytes: int) -> int:
    """Return how many tokens with all their heads a work-item gets: on a CPU more than one, where those are short."""
    if device.kind != "cpu" or per_item < heads:
        return 1
    token_bytes = heads * head_bytes
    item_bytes = _ITEM_BYTES if tokens * token_bytes >= _LITTLE_BYTES else _LITTLE_ITEM_BYTES
    return max(1, min(tokens // _items(device, tokens * token_bytes), item_bytes // token_bytes))


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
