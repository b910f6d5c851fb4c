"""Memory for results in host arrays: on page boundaries, and used again when the arrays over it are gone.

Pages that the system has to hand out afresh cost several times what rotating them costs, so a block whose array was
dropped is kept for the next result of about its size.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

#: Alignment of results: a page, which also lets drivers use the memory in place.
ALIGNMENT = 4096
#: Results smaller than this are left to NumPy's allocator, but for their alignment.
SMALLEST_KEPT = 1 << 20
#: Bytes of dropped blocks that are kept at most.
MOST_KEPT = 256 << 20

_lock = threading.RLock()  # a block can be dropped, by the garbage collector, while its own thread holds the lock
_kept: list[npt.NDArray[np.uint8]] = []


class _Block:
    """Owner of a block's memory; when the last array over it is gone, the memory goes back."""

    def __init__(self, memory: npt.NDArray[np.uint8], length: int) -> None:
        self._memory = memory
        start = -int(memory.__array_interface__["data"][0]) % ALIGNMENT
        self.__array_interface__ = {**memory[start : start + length].__array_interface__}

    def __del__(self) -> None:
        memory = self._memory
        if memory.nbytes >= SMALLEST_KEPT:
            with _lock:
                _kept.append(memory)
                while sum(m.nbytes for m in _kept) > MOST_KEPT:
                    _kept.pop(0)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a C-order array with undefined contents on a page boundary."""
    length = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if length == 0:
        return np.empty(shape, dtype)
    block = _Block(_memory(length + ALIGNMENT), length)
    return np.asarray(block).view(dtype).reshape(shape)


def release() -> None:
    """Give the kept blocks back to the system."""
    with _lock:
        _kept.clear()


def _memory(length: int) -> npt.NDArray[np.uint8]:
    if length >= SMALLEST_KEPT:
        with _lock:
            # Not much larger than needed: a block held by a small array would be lost to large ones.
            fitting = [m for m in _kept if length <= m.nbytes <= length + length // 8]
            if fitting:
                best = min(fitting, key=lambda m: m.nbytes)
                _kept[:] = [m for m in _kept if m is not best]
                return best
    return np.empty(length, np.uint8)
