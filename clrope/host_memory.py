"""Memory for results in host arrays: on page boundaries, and used again when the arrays over it are gone.

Pages that the system has to hand out afresh cost several times what rotating them costs, so a block whose array was
dropped is kept for the next result of about its size.
"""

from __future__ import annotations

import math
import sys
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


#: Bytes of the largest result that is tried.
LARGEST = 1 << 47
#: References to a block that no array uses: the list's, and that of the question.
_UNUSED = 2


class _Pool:
    """Blocks that results were made of. One that nobody else refers to is free for the next result."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: list[npt.NDArray[np.uint8]] = []

    def take(self, length: int) -> npt.NDArray[np.uint8]:
        """Return memory of at least `length` bytes that no array uses."""
        with self._lock:
            blocks = self._blocks
            free = [k for k in range(len(blocks)) if sys.getrefcount(blocks[k]) <= _UNUSED]
            # Not much larger than needed: a block held by a small array would be lost to large ones.
            fitting = [k for k in free if length <= blocks[k].nbytes <= length + length // 8]
            if fitting:
                return blocks[min(fitting, key=lambda k: blocks[k].nbytes)]
            made = np.empty(length, np.uint8)
            total = length + sum(block.nbytes for block in blocks)
            dropped = []
            while free and total > MOST_KEPT:
                dropped.append(free.pop(0))
                total -= blocks[dropped[-1]].nbytes
            kept = [block for k, block in enumerate(blocks) if k not in dropped]
            self._blocks = [*kept, made] if total <= MOST_KEPT else kept
            return made

    def clear(self) -> None:
        """Forget all blocks."""
        with self._lock:
            self._blocks = []


_pool = _Pool()


def no_memory(length: int) -> DeviceError:
    """Return the error for a result that there is no memory for."""
    return DeviceError(f"{length} bytes of memory could not be allocated on the host for a result")


def check_size(length: int) -> None:
    """Raise `DeviceError` for a result beyond what any machine addresses: a broadcast array may stand for so much."""
    if length > LARGEST:
        raise no_memory(length)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a C-order array with undefined contents; on a page boundary from `SMALLEST_KEPT` bytes on.

    Raises `DeviceError` if there is no memory for it.
    """
    length = math.prod(shape) * dtype.itemsize
    if length < SMALLEST_KEPT:
        return np.empty(shape, dtype)
    check_size(length)
    try:
        block = _pool.take(length + ALIGNMENT)
    except MemoryError as error:
        raise no_memory(length) from error
    start = -int(block.__array_interface__["data"][0]) % ALIGNMENT
    return block[start : start + length].view(dtype).reshape(shape)


def release() -> None:
    """Give the kept blocks back to the system."""
    _pool.clear()
