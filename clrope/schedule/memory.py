"""Host memory made visible to a device without a copy: one buffer for each stretch of memory that tensors touch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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


class HostBuffers:
    """Buffers over host memory (`CL_MEM_USE_HOST_PTR`), one per group of overlapping stretches.

    One for each group, because results of two buffers over the same memory are undefined. The caller keeps the memory
    alive for as long as this object.
    """

    def __init__(self, context: pyopencl.Context, stretches: Sequence[Stretch]) -> None:
        import pyopencl as cl

        self._places: list[tuple[int, int, Any, bool]] = []
        flags = cl.mem_flags
        for group in _groups(stretches):
            item = max(s.itemsize for s in group)
            low = min(s.low for s in group) // item * item
            high = max(s.high for s in group)
            written = any(s.written for s in group)
            memory = (ctypes.c_ubyte * (high - low)).from_address(low)
            access = flags.READ_WRITE if written else flags.READ_ONLY
            buffer = cl.Buffer(context, access | flags.USE_HOST_PTR, hostbuf=memory)
            self._places.append((low, high, buffer, written))

    def place(self, operand: Operand, view: TensorView) -> tuple[Any, TensorView]:
        """Return the buffer that holds a part and the part's view with its offset from the start of that buffer."""
        first, last = view.span
        address = operand.address + first * view.itemsize
        for low, high, buffer, _ in self._places:
            if low <= address and operand.address + last * view.itemsize <= high:
                return buffer, view.moved((operand.address - low) // view.itemsize)
        raise AssertionError("a part outside every stretch")

    def to_device(self, queue: pyopencl.CommandQueue) -> None:
        """Make what the host wrote since the last run visible to the device (nothing is moved where memory is one)."""
        for low, high, buffer, _ in self._places:
            self._map(queue, buffer, high - low, write=True)

    def to_host(self, queue: pyopencl.CommandQueue, wait_for: list[Any]) -> None:
        """Wait for the events, and make what the device wrote visible to the host."""
        for low, high, buffer, written in self._places:
            if written:
                self._map(queue, buffer, high - low, write=False, wait_for=wait_for)

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
