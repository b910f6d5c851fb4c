"""Host memory made visible to a device without a copy: one buffer for each stretch of memory that tensors touch.

On a CPU device whose buffers over host memory are that memory (which is tried out, once per context) nothing has to be
mapped: the kernel reads and writes the arrays themselves. Drivers do that only for well-aligned memory, so stretches
are then widened to whole pages; only the arrays' own bytes are ever touched.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..arrays import Operand
from ..layout import TensorView

if TYPE_CHECKING:
    import pyopencl


@dataclass(frozen=True)
class Stretch:
    """Bytes [low, high) of host memory that one tensor touches, and whether it is written."""

    low: int
    high: int
    itemsize: int
    written: bool


def stretch_of(operand: Operand, view: TensorView, written: bool) -> Stretch:
    """Return what a part of a host operand touches; the part's offset counts from element [0, 0, 0, 0]."""
    first, last = view.span
    item = view.itemsize
    return Stretch(operand.address + first * item, operand.address + last * item, item, written)


#: The smallest page of any machine: no byte of it is out of reach if one is within.
PAGE = 4096
_direct: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
_direct_lock = threading.Lock()


def direct_access(queue: pyopencl.CommandQueue) -> bool:
    """Whether buffers over host memory are that memory itself: what either side writes is what the other reads.

    Tried with a page of memory and the device's own copy commands. Only CPU devices are asked: others may keep caches
    that only mapping brings in line.
    """
    import pyopencl as cl

    with _direct_lock:
        known = _direct.get(queue.context)
        if known is None:
            known = False
            if queue.device.type & cl.device_type.CPU:
                try:
                    known = _try_direct(queue)
                except cl.Error:
                    known = False
            _direct[queue.context] = known
        return known


def _try_direct(queue: pyopencl.CommandQueue) -> bool:
    import pyopencl as cl

    memory = np.zeros(3 * PAGE, np.uint8)
    start = -memory.__array_interface__["data"][0] % PAGE
    pages = memory[start : start + 2 * PAGE]
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    buffer = cl.Buffer(queue.context, flags, hostbuf=pages)
    pages[:PAGE] = np.arange(PAGE) % 251 + 1  # after the buffer was made: a driver's copy would not have it
    cl.enqueue_copy(queue, buffer, buffer, byte_count=PAGE, src_offset=0, dst_offset=PAGE)
    queue.finish()
    return bool(np.array_equal(pages[PAGE:], pages[:PAGE]))


class _Place(NamedTuple):
    """A buffer over [low, high) for a group of stretches that touches [first, last)."""

    first: int
    last: int
    low: int
    high: int
    buffer: Any
    written: bool


class HostBuffers:
    """Buffers over host memory (`CL_MEM_USE_HOST_PTR`), one per group of overlapping stretches.

    One for each group, because results of two buffers over the same memory are undefined. The caller keeps the memory
    alive for as long as this object.
    """

    def __init__(self, queue: pyopencl.CommandQueue, stretches: Sequence[Stretch]) -> None:
        import pyopencl as cl

        self.direct = direct_access(queue)
        self._places: list[_Place] = []
        flags = cl.mem_flags
        for group in _groups(stretches):
            first, last = min(s.low for s in group), max(s.high for s in group)
            item = PAGE if self.direct else max(s.itemsize for s in group)
            low = first // item * item
            high = -(-last // item) * item if self.direct else last
            written = any(s.written for s in group)
            memory = (ctypes.c_ubyte * (high - low)).from_address(low)
            access = flags.READ_WRITE if written else flags.READ_ONLY
            buffer = cl.Buffer(queue.context, access | flags.USE_HOST_PTR, hostbuf=memory)
            self._places.append(_Place(first, last, low, high, buffer, written))

    def place(self, operand: Operand, view: TensorView) -> tuple[Any, TensorView]:
        """Return the buffer that holds a part and the part's view with its offset from the start of that buffer."""
        first, last = view.span
        address = operand.address + first * view.itemsize
        for place in self._places:
            # Not by the widened ends: two groups can share a page, and only one of their buffers may be written.
            if place.first <= address and operand.address + last * view.itemsize <= place.last:
                return place.buffer, view.moved((operand.address - place.low) // view.itemsize)
        raise AssertionError("a part outside every stretch")

    def to_device(self, queue: pyopencl.CommandQueue) -> None:
        """Make what the host wrote since the last run visible to the device (nothing is moved where memory is one)."""
        if self.direct:
            return
        for place in self._places:
            self._map(queue, place.buffer, place.high - place.low, write=True)

    def to_host(self, queue: pyopencl.CommandQueue, wait_for: list[Any]) -> None:
        """Wait for the events, and make what the device wrote visible to the host."""
        if self.direct:
            for event in wait_for[-1:] if in_order(queue) else wait_for:
                event.wait()
            return
        for place in self._places:
            if place.written:
                self._map(queue, place.buffer, place.high - place.low, write=False, wait_for=wait_for)

    @staticmethod
    def _map(
        queue: pyopencl.CommandQueue, buffer: Any, size: int, *, write: bool, wait_for: list[Any] | None = None
    ) -> None:
        import pyopencl as cl

        access = cl.map_flags.WRITE if write else cl.map_flags.READ
        mapped, _ = cl.enqueue_map_buffer(
            queue, buffer, access, 0, (size,), np.dtype(np.uint8), wait_for=wait_for or None, is_blocking=True
        )
        mapped.base.release(queue)


def in_order(queue: pyopencl.CommandQueue) -> bool:
    """Whether the queue runs its commands one after the other."""
    import pyopencl as cl

    return not queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE


def _groups(stretches: Sequence[Stretch]) -> list[list[Stretch]]:
    groups: list[list[Stretch]] = []
    reach = -1
    for stretch in sorted(stretches, key=lambda s: s.low):
        if groups and stretch.low < reach:
            groups[-1].append(stretch)
        else:
            groups.append([stretch])
        reach = max(reach, stretch.high)
    return groups
