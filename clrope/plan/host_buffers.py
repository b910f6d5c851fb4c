"""Host memory as arguments of kernels: SVM pointers, or buffers over it, one for each range that tensors use.

Where buffers over host memory are that memory itself ('direct', see `Runtime.host_access`) nothing is mapped. Drivers
promise it only for well-aligned memory, so ranges are widened to whole pages; only the arrays' own bytes are touched.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..arrays import Operand
from ..layout import TensorView
from ..runtime import PAGE, Runtime, out_of_memory

if TYPE_CHECKING:
    import pyopencl


@dataclass(frozen=True)
class MemoryRange:
    """Bytes [low, high) of host memory that one tensor touches, and whether it is written."""

    low: int
    high: int
    itemsize: int
    written: bool

    @classmethod
    def of(cls, operand: Operand, view: TensorView, written: bool) -> MemoryRange:
        """Return what a part of a host operand touches; the part's offset counts from element [0, 0, 0, 0]."""
        first, last = view.span
        item = view.itemsize
        return cls(operand.address + first * item, operand.address + last * item, item, written)


class _HostBuffer(NamedTuple):
    """A buffer over [low, high) for a group of ranges that touches [first, last)."""

    first: int
    last: int
    low: int
    high: int
    buffer: Any
    written: bool


class HostBuffers:
    """One buffer for each group of overlapping ranges, because two buffers over the same memory are undefined.

    The caller keeps the memory alive for as long as this object.
    """

    def __init__(self, runtime: Runtime, queue: pyopencl.CommandQueue, ranges: Sequence[MemoryRange]) -> None:
        import pyopencl as cl

        svm = runtime.host_access == "svm"
        self.direct = svm or runtime.host_access == "direct"
        self._in_order = runtime.queue_state(queue).in_order
        self._places: list[_HostBuffer] = []
        flags = cl.mem_flags
        for group in _groups(ranges):
            first, last = min(s.low for s in group), max(s.high for s in group)
            if svm:
                memory = (ctypes.c_ubyte * (last - first)).from_address(first)
                self._places.append(_HostBuffer(first, last, first, last, cl.SVM(memory), True))
                continue
            item = PAGE if self.direct else max(s.itemsize for s in group)
            low = first // item * item
            high = -(-last // item) * item if self.direct else last
            written = any(s.written for s in group)
            memory = (ctypes.c_ubyte * (high - low)).from_address(low)
            access = flags.READ_WRITE if written else flags.READ_ONLY
            try:
                buffer = cl.Buffer(runtime.context, access | flags.USE_HOST_PTR, hostbuf=memory)
            except cl.Error as error:
                raise out_of_memory(high - low, runtime.info.name, error) from error
            self._places.append(_HostBuffer(first, last, low, high, buffer, written))

    def place(self, operand: Operand, view: TensorView) -> tuple[Any, TensorView]:
        """Return the buffer that holds a part and the part's view with its offset from the start of that buffer."""
        first, last = view.span
        address = operand.address + first * view.itemsize
        for place in self._places:
            # Not by the widened ends: two groups can share a page, and only one of their buffers may be written.
            if place.first <= address and operand.address + last * view.itemsize <= place.last:
                return place.buffer, view.moved((operand.address - place.low) // view.itemsize)
        raise AssertionError("a part outside every range")

    def to_device(self, queue: pyopencl.CommandQueue) -> None:
        """Make what the host wrote since the last run visible to the device (nothing is moved where memory is one)."""
        if self.direct:
            return
        for place in self._places:
            self._map(queue, place.buffer, place.high - place.low, write=True)

    def to_host(self, queue: pyopencl.CommandQueue, wait_for: list[Any]) -> None:
        """Wait for the events, and make what the device wrote visible to the host."""
        if self.direct:
            for event in wait_for[-1:] if self._in_order else wait_for:
                event.wait()
            return
        for place in self._places:
            if place.written:
                self._map(queue, place.buffer, place.high - place.low, write=False, wait_for=wait_for)

    def _map(
        self, queue: pyopencl.CommandQueue, buffer: Any, size: int, *, write: bool, wait_for: list[Any] | None = None
    ) -> None:
        import pyopencl as cl

        # A driver that keeps a copy puts it into the memory first, unless that is to be written as a whole.
        access = cl.map_flags.WRITE_INVALIDATE_REGION if write else cl.map_flags.READ
        mapped, _ = cl.enqueue_map_buffer(
            queue, buffer, access, 0, (size,), np.dtype(np.uint8), wait_for=wait_for or None, is_blocking=True
        )
        unmapped = mapped.base.release(queue)
        if not self._in_order:
            unmapped.wait()


def _groups(ranges: Sequence[MemoryRange]) -> list[list[MemoryRange]]:
    groups: list[list[MemoryRange]] = []
    reach, item = -1, max((s.itemsize for s in ranges), default=1)
    for one in sorted(ranges, key=lambda s: s.low):
        if groups and one.low // item * item < reach:  # where its buffer may begin
            groups[-1].append(one)
        else:
            groups.append([one])
        reach = max(reach, one.high)
    return groups
