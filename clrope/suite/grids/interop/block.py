"""A tensor inside a larger memory block; the bytes around it must not change."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ....testing import GUARD, NAN_POISON, changed_outside, poisoned

Array = npt.NDArray[Any]


class Block:
    """`view`, of any strides, in `memory`, which is poison except for the values stored in the view."""

    def __init__(
        self, memory: npt.NDArray[np.uint8], shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...], offset: int
    ) -> None:
        self.memory, self.offset = memory, offset
        self.view: Array = np.ndarray(shape, dtype, memory.data, offset, strides)

    @classmethod
    def of(cls, array: Array) -> Block:
        """Return a copy of an array between guards."""
        item = array.dtype.itemsize
        guard = GUARD * item
        steps = [item * math.prod(array.shape[axis + 1 :]) for axis in range(array.ndim)]
        made = cls(poisoned(array.nbytes + 2 * guard, byte=NAN_POISON), array.shape, array.dtype, tuple(steps), guard)
        made.view[...] = array
        return made

    @classmethod
    def drawn(cls, rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Block:
        """Return a window of a larger tensor: the last axis is dense, the other axes are in any order."""
        pads = [int(n) for n in rng.integers(0, 3, len(shape))]
        pads[-1] *= 4
        order = [*(int(axis) for axis in rng.permutation(len(shape) - 1)), len(shape) - 1]
        steps, length = [0] * len(shape), np.dtype(dtype).itemsize
        for axis in reversed(order):
            steps[axis], length = length, length * (shape[axis] + pads[axis])
        offset = sum(pad * step for pad, step in zip(pads, steps, strict=True))
        return cls(poisoned(length, byte=NAN_POISON), shape, dtype, tuple(steps), offset)

    def copy(self) -> Block:
        """Return a copy with memory of its own."""
        return Block(self.memory.copy(), self.view.shape, self.view.dtype, self.view.strides, self.offset)

    def changed(self, before: Block, *, around: bool = False) -> int:
        """Return how many bytes differ from the block before; around: without the bytes of the view."""
        # The last axis goes over the bytes of an element.
        shape, strides = (*self.view.shape, self.view.itemsize), (*self.view.strides, 1)
        views = [np.ndarray(shape, np.uint8, self.memory, self.offset, strides)] if around else []
        return int(np.count_nonzero(changed_outside(self.memory, before.memory, views)))

    def errors(self, before: Block, what: str, *, around: bool = False) -> list[str]:
        """Return the error for changed bytes, if there are any."""
        count = self.changed(before, around=around)
        return [f"{count} {what} changed"] if count else []
