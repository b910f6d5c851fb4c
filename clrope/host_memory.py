"""Memory for results in host arrays: on page boundaries, and used again when the arrays over it are gone.

Pages that the system has to hand out afresh cost several times what rotating them costs, so a block whose array was
dropped is kept for the next result of about its size.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import DeviceError

#: Alignment of results: a page, which also lets drivers use the memory in place.
ALIGNMENT = 4096
#: Results smaller than this are left to NumPy's allocator.
SMALLEST_KEPT = 1 << 20
#: Bytes of dropped blocks that are kept at most.
MOST_KEPT = 256 << 20


class _Kept:
    """Dropped blocks, for the next results of about their sizes."""

    def __init__(self) -> None:
        # A block can be dropped, by the garbage collector, while its own thread holds the lock.
        self._lock = threading.RLock()
        self._blocks: list[npt.NDArray[np.uint8]] = []

    def put(self, memory: npt.NDArray[np.uint8]) -> None:
        with self._lock:
            self._blocks.append(memory)
            while sum(m.nbytes for m in self._blocks) > MOST_KEPT:
                self._blocks.pop(0)

    def take(self, length: int) -> npt.NDArray[np.uint8]:
        with self._lock:
            # Not much larger than needed: a block held by a small array would be lost to large ones.
            fitting = [m for m in self._blocks if length <= m.nbytes <= length + length // 8]
            if fitting:
                best = min(fitting, key=lambda m: m.nbytes)
                self._blocks = [m for m in self._blocks if m is not best]
                return best
        return np.empty(length, np.uint8)

    def clear(self) -> None:
        with self._lock:
            self._blocks.clear()


_kept = _Kept()


class _Block:
    """Owner of a block's memory; when the last array over it is gone, the memory goes back."""

    def __init__(self, memory: npt.NDArray[np.uint8], length: int) -> None:
        self._memory = memory
        start = -int(memory.__array_interface__["data"][0]) % ALIGNMENT
        self.__array_interface__ = {**memory[start : start + length].__array_interface__}

    def __del__(self) -> None:
        _kept.put(self._memory)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a C-order array with undefined contents; on a page boundary from `SMALLEST_KEPT` bytes on.

    Raises `DeviceError` if there is no memory for it.
    """
    length = math.prod(shape) * dtype.itemsize
    if length < SMALLEST_KEPT:
        return np.empty(shape, dtype)
    try:
        block = _Block(_kept.take(length + ALIGNMENT), length)
    except (MemoryError, ValueError) as error:  # ValueError: beyond what NumPy can address
        raise DeviceError(f"{length} bytes of memory could not be allocated on the host for a result") from error
    return np.asarray(block).view(dtype).reshape(shape)


def release() -> None:
    """Give the kept blocks back to the system."""
    _kept.clear()
