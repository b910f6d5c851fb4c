"""Where the memory of an OpenCL buffer is: parts of one buffer, and buffers over host memory, can overlap."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

#: The space of host addresses.
HOST = 0
#: CL_MEM_USE_HOST_PTR.
_USE_HOST_PTR = 1 << 3
#: Bytes that every driver aligns its own buffers to (CL_DEVICE_MEM_BASE_ADDR_ALIGN is at least 128 bytes).
BUFFER_ALIGNMENT = 64


class BufferPlace(NamedTuple):
    """Which memory a buffer is in, and the place of its first byte there. Two overlap only within one space.

    Buffers over host memory and shared virtual memory are in the space `HOST` at their address; a part of a buffer is
    in its parent's space; every other buffer is alone in its own. alignment: of its first byte, up to 64. size: bytes.
    """

    space: int
    start: int
    alignment: int
    size: int


def buffer_place(buffer: Any) -> BufferPlace:
    """Return the place of the `base_data` of a `pyopencl.array.Array`; an empty one has none, and overlaps nothing."""
    try:
        # It never changes, and asking the driver takes a microsecond; PyOpenCL's buffers can hold attributes.
        place: BufferPlace = buffer._clrope_place
    except AttributeError:
        place = _queried(buffer)
        with suppress(AttributeError):
            buffer._clrope_place = place
    return place


def _queried(buffer: Any) -> BufferPlace:
    if buffer is None:
        return BufferPlace(HOST, 0, BUFFER_ALIGNMENT, 0)
    size, start = buffer.size, 0
    try:
        while (parent := buffer.associated_memobject) is not None:
            start += buffer.offset
            buffer = parent
    except AttributeError:  # shared virtual memory of a caller's allocator
        return BufferPlace(HOST, int(buffer.svm_ptr), 1, size)
    if not buffer.flags & _USE_HOST_PTR:
        return BufferPlace(buffer.int_ptr, start, BUFFER_ALIGNMENT, size)
    start += buffer.get_host_array((1,), np.dtype(np.uint8)).__array_interface__["data"][0]
    return BufferPlace(HOST, start, min(BUFFER_ALIGNMENT, start & -start), size)
