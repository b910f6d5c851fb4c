"""Where the memory of an OpenCL buffer is: parts of one buffer, and buffers over host memory, can overlap."""

from __future__ import annotations

from typing import Any

import numpy as np

#: The space of host addresses.
HOST = 0
#: CL_MEM_USE_HOST_PTR.
_USE_HOST_PTR = 1 << 3


def buffer_place(buffer: Any) -> tuple[int, int]:
    """Return (space, byte): which memory a buffer is in, and the place of its first byte there.

    buffer: the `base_data` of a `pyopencl.array.Array`. Two buffers overlap only within one space. Buffers over host
    memory and shared virtual memory are in the space `HOST` at their address; a part of a buffer is in its parent's
    space; every other buffer is alone in its own.
    """
    start = 0
    try:
        while (parent := buffer.associated_memobject) is not None:
            start += buffer.offset
            buffer = parent
    except AttributeError:  # shared virtual memory of a caller's allocator
        return HOST, int(buffer.svm_ptr)
    if not buffer.flags & _USE_HOST_PTR:
        return buffer.int_ptr, start
    return HOST, start + buffer.get_host_array((1,), np.dtype(np.uint8)).__array_interface__["data"][0]
