"""`rope_cache` and `shift_cache`: rotation into the rows of a KV cache, and of keys that are in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .angles import angle_table
from .arrays import Operand, check_apart, note_writes, operand
from .call.array_signature import signature
from .call.events import check_events, opencl_errors, wait_on_host
from .call.kv_call import cache_call, move_call, reachable, shift_call
from .call.memory import Access
from .call.prepare import inputs_of, memories_of, memory_of, originals, outputs_of
from .call.runtime import QueueState
from .call.sources import ConfigAngles, positions_of
from .config import RopeConfig
from .errors import ConfigError, DeviceError, ShapeError, reading, renamed
from .kv_cache import CacheArrays, arrays_of, check_operands, checked_slots, names_of, read_rows, write_rows
from .layout import DTYPES, canonical, parse_layout
from .norm import Norm, check_shapes, checked_norms
from .operation import Rope
from .positions import integers
from .select import database

if TYPE_CHECKING:
    import pyopencl


def rope_cache(
    q: Any,
    k: Any,
    v: Any,
    positions: Any,
    config: RopeConfig,
    cache: Any,
    norm: Any = None,
    *,
    out: Any = None,
    layout: str = "bsnd",
    device: Any = None,
    wait_for: Sequence[pyopencl.Event] | None = None,
) -> Any:
    """Rotate q and return the result; rotate k and write it, and v as it is, into the rows of a KV cache.

    q, k, v:   arrays as for `clrope.rope` of one type, float32, float16 or bfloat16, with the same batches and tokens;
               k and v have the heads of the cache. v: None for a cache of keys alone.
    positions, config, layout, device, wait_for: as for `clrope.rope`.
    cache:     a `clrope.RowCache` or `clrope.PagedCache` of the same kind of memory. Rows below 0 are skipped; one
               outside the cache or twice is refused before anything is written. Rows that no token names keep their
               bytes. What is written is rounded to the type of q, k and v, then to that of the cache, to nearest even:
               the bits of `clrope.rope` followed by an assignment.
    norm:      None, or a tuple (of q, of k) of a `clrope.Norm` or None, before or after the rotation.
    out:       where to put q's result: None for a new array, q itself, or an array like it.

    One launch where heads are contiguous and divide into vectors; otherwise a rotation and a launch that writes rows.
    Where a device does not reach the cache's host memory, its rows are written by the host.
    Raises `ConfigError`, `ShapeError`, `DeviceError`, `BuildError` before anything is launched.
    """
    op = Rope(config, device)
    waits = () if wait_for is None else check_events(wait_for)
    norms = _norms_of(norm, v is not None)
    write = _CacheWrite(op, (q, k) if v is None else (q, k, v), positions, cache, norms, out, layout)
    with opencl_errors(op.device_name):
        return write.run(waits)


def _norms_of(norm: Any, values: bool) -> tuple[Norm | None, ...]:
    """Return the norms of q, k and, if there are values, None for them; () for none."""
    norms = checked_norms(norm, (None, None))
    return (*norms, None) if norms and values else norms


class _CacheWrite(NamedTuple):
    """The arguments of `rope_cache`."""

    op: Rope
    arrays: tuple[Any, ...]
    positions: Any
    cache: Any
    norms: tuple[Norm | None, ...]
    out: Any
    layout: str

    def run(self, waits: Sequence[Any]) -> Any:
        """Rotate and write; by the call that is kept for such arrays, if there is one."""
        k_name, v_name, slots_name, letters = names_of(self.cache)
        names = (k_name, v_name)[: len(self.arrays) - 1]
        found = self._signed([self.out, *(getattr(self.cache, name) for name in names)], letters)
        if found is None:
            return self._checked(waits, None)
        signed, state, outputs, memories, where, tokens = found
        call = state.runtime.calls.get(signed)
        if call is None or call.overlap(memories):
            return self._checked(waits, signed)
        shape = outputs[1].shape
        capacity = shape[0] if letters == "snd" else shape[0] * shape[letters.index("s")]
        slots = checked_slots(slots_name, getattr(self.cache, slots_name), tokens, capacity)
        return call.run(self.arrays, outputs, memories, where.value, waits, self.norms, slots)[0]

    def _signed(self, targets: list[Any], letters: str) -> Any:
        """Return (key of the call, queue, outputs, memories, positions, (batches, tokens)); None: look closer."""
        if type(self.layout) is not str:
            return None
        found = signature(self.arrays, True, targets)
        if found is None:
            return None
        key, outputs, memories, on_host = found
        try:
            state = self.op.target_of_memories(memories, on_host)
            shape, axes = self.arrays[0].shape, parse_layout(self.layout, len(self.arrays[0].shape))
            tokens = (shape[axes.index("b")] if "b" in axes else 1, shape[axes.index("s")])
            where = positions_of(self.positions, self.op.config, *tokens)
        except (ShapeError, ConfigError, DeviceError):
            return None
        forms = [None if n is None else n.form for n in self.norms]
        rereads = database.snapshot.rereads
        signed = ("cache", *key, self.op.config, where.form, letters, self.layout, *forms, rereads, state)
        return signed, state, outputs, memories, where, tokens

    def _checked(self, waits: Sequence[Any], signed: Any) -> Any:
        """Check everything, then rotate and write; keep the call for such arrays if it is one launch."""
        op, cache = self.op, self.cache
        with renamed({"x": "q, k, v"}):
            inputs, _ = inputs_of(self.arrays, self.layout)
            out = outputs_of(inputs[:1], self.out, True, self.layout)[0]
        arrays = arrays_of(cache)
        check_operands(inputs, arrays)
        check_apart([*inputs], [out, *arrays.sides])
        shape, side = inputs[0].view.shape, arrays.k.view.shape
        config = op.config.for_head_dim(shape[3])
        if self.norms:
            check_shapes(self.norms[:2], [o.view.shape for o in inputs[:2]])
        _, _, slots_name, _ = names_of(cache)
        slots = checked_slots(slots_name, getattr(cache, slots_name), shape[:2], side[0] * side[1])
        where = positions_of(self.positions, config, *shape[:2])
        state = op.target_of([*inputs, *arrays.sides])
        access = reachable(state, [*arrays.sides, *inputs])
        call = None
        if access is not None and all(o.view.size for o in inputs):
            forms = [None if n is None else n.form for n in self.norms]
            call = cache_call(state, access, inputs, out, arrays.sides, ConfigAngles(config), where.form, forms)
        if call is None:
            return self._in_two(state, access, inputs, arrays, slots, waits)
        if signed is not None:
            state.runtime.calls.put(signed, call)
        outputs = [None if out is None else out.original, *(o.original for o in arrays.sides)]
        memories = memories_of(inputs, [out, *arrays.sides], [])
        return call.run(originals(inputs), outputs, memories, where.value, waits, self.norms, slots)[0]

    def _in_two(
        self, state: QueueState, access: Access | None, inputs: list[Operand], arrays: CacheArrays,
        slots: npt.NDArray[np.int64], waits: Sequence[Any],
    ) -> Any:  # fmt: skip
        """Rotate q and k, then write k and v."""
        norm = self.norms[:2] or None
        q, k = self.op(self.arrays[:2], self.positions, True, (self.out, None), self.layout, wait_for=waits, norm=norm)
        _moved(state, access, [operand(k, self.layout), *inputs[2:]], arrays.sides, slots)
        return q


def shift_cache(
    cache: Any,
    delta: Any,
    config: RopeConfig,
    *,
    device: Any = None,
    wait_for: Sequence[pyopencl.Event] | None = None,
) -> None:
    """Rotate keys that are in a KV cache by further positions, in place: what a context shift does.

    cache:  a `clrope.RowCache` or `clrope.PagedCache`; its rows (slots), integers of any shape, say which keys. Values
            and other rows keep their bytes. Rows below 0 are skipped; one outside the cache or twice is refused.
    delta:  by how many positions: an integer for all rows, or integers that broadcast to the shape of the rows, with
            more than one axis of positions [axes, *that]. Negative ones rotate back.
    config: of the keys. Only its angles count: the magnitude (attn_factor, YaRN's) is in the keys already.

    Keys are rounded to the type of the cache once more by each shift. device, wait_for, errors: as for `clrope.rope`.
    """
    with reading("config", config):
        if not isinstance(config, RopeConfig):
            raise ConfigError(f"config: got {type(config).__name__}, a RopeConfig is needed")
    waits = () if wait_for is None else check_events(wait_for)
    arrays, slots_name = arrays_of(cache), names_of(cache)[2]
    shape = arrays.k.view.shape
    given = integers(getattr(cache, slots_name), slots_name)
    slots = checked_slots(slots_name, given.reshape(-1), (1, given.size), shape[0] * shape[1])
    own = replace(config.for_head_dim(shape[3]), attn_factor=1.0)
    own = replace(own, attn_factor=1 / angle_table(own).magnitude)  # of YaRN
    rows = _broadcast(delta, given.shape, own)
    kept = slots >= 0
    slots, rows = np.ascontiguousarray(slots[kept]), np.ascontiguousarray(rows[..., kept])
    if not slots.size or 0 in shape:
        return
    op = Rope(own, device)
    with opencl_errors(op.device_name):
        state = op.target_of([arrays.k])
        access = reachable(state, [arrays.k])
        where = positions_of(rows, own, 1, slots.size)
        call = None
        if access is not None:
            call = shift_call(state, access, arrays.k, slots.size, ConfigAngles(own), where.form)
        if call is not None:
            memory = memory_of(arrays.k)
            call.run([arrays.k.original], [arrays.k.original], [memory, memory], where.value, waits, (), slots)
            return
        keys = _gathered(state, access, arrays.k, slots, waits)
        op(keys, rows, out=keys)
        _moved(state, access, [operand(keys, "bsnd")], [arrays.k], slots)


def _broadcast(delta: Any, shape: tuple[int, ...], config: RopeConfig) -> npt.NDArray[np.int64]:
    """Return a shift for each row, int64[rows], or [axes, rows]; raises `ShapeError`."""
    array = integers(delta, "delta").astype(np.int64)
    axes = (config.position_axes,) if array.ndim > len(shape) else ()
    try:
        return np.broadcast_to(array, (*axes, *shape)).reshape(*axes, -1)
    except ValueError:
        allowed = " or ".join(str(list(s)) for s in dict.fromkeys([(), shape, (config.position_axes, *shape)]))
        raise ShapeError(f"delta: got shape {list(array.shape)}, what broadcasts to {allowed} is needed") from None


def _moved(
    state: QueueState, access: Access | None, rows: Sequence[Operand], sides: Sequence[Operand],
    slots: npt.NDArray[np.int64],
) -> None:  # fmt: skip
    """Write rows into caches: by a kernel, or by the host where no kernel reaches them."""
    if not rows[0].view.size:
        return
    if access is None:
        for one, side in zip(rows, sides, strict=True):
            assert one.host is not None
            assert side.host is not None
            heads = canonical(one.host, one.layout)
            write_rows(canonical(side.host, side.layout), slots, heads.reshape(-1, *heads.shape[2:]))
        tensors = [side.original for side in sides if side.kind == "torch"]
        if tensors:
            note_writes(tensors)
        return
    call = move_call(state, access, rows, sides, from_cache=False)
    call.run(originals(rows), [o.original for o in sides], memories_of(rows, sides, []), 0, (), (), slots)


def _gathered(
    state: QueueState, access: Access | None, side: Operand, slots: npt.NDArray[np.int64], waits: Sequence[Any]
) -> Any:
    """Return rows of a cache [1, rows, heads, head_dim] in an array of its own."""
    if access is None:
        assert side.host is not None
        if waits:
            wait_on_host(waits)
        return read_rows(canonical(side.host, side.layout), slots)[None]
    shape = (1, slots.size, *side.view.shape[2:])
    if side.kind == "opencl":
        import pyopencl.array as cla

        keys: Any = cla.Array(side.array.queue or side.array.context, shape, side.array.dtype)
    else:
        keys = np.empty(shape, DTYPES[side.view.dtype])
    to = operand(keys, "bsnd", writable=True)
    call = move_call(state, access, [side], [to], from_cache=True)
    call.run(originals([side]), [keys], memories_of([side], [to], []), 0, waits, (), slots)
    return keys
