"""The memory of a case's tensors: parents, views into them, poison, and the bytes that must not change."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from ..layout import DTYPES
from ..testing import GUARD, NAN_POISON, bits, changed_outside
from .case import Case
from .wide_values import widened

Array = npt.NDArray[Any]


#: One axis of a parent: its length, and the part of it in the view.
Cut = tuple[int, slice]


def _cuts(case: Case, view: int) -> list[dict[str, Cut]]:
    """Return the cuts of each tensor of the call out of the parent, by axis."""
    whole: dict[str, Cut] = {letter: (length, slice(0, length)) for letter, length in case.shape.items()}
    d, n, s = case.shape["d"], case.shape["n"], case.shape["s"]
    if view == 1:
        return [whole | {"d": (2 * d, slice(0, d)), "n": (4 * n, slice(0, n)), "s": (3 * s, slice(0, s))}]
    if view == 2:
        return [whole | {"d": (2 * d, slice(d, 2 * d))}]
    if view == 3:
        keys = max(1, n // 4)
        return [whole | {"n": (n + 2 * keys, part)} for part in (slice(0, n), slice(n, n + keys))]
    if view == 4:
        return [whole | {"d": (2 * d, slice(2 * d - 1, None, -2))}]
    if view == 5:
        back = {letter: (length + 1, slice(length, 0, -1)) for letter, length in case.shape.items()}
        return [back | {"d": (3 * d + 1, slice(1, None, 3))}]
    if view == 6:
        rng = np.random.default_rng(zlib.crc32(str(case).encode()))
        return [{letter: _drawn_cut(rng, letter, length) for letter, length in case.shape.items()}]
    return [whole]


def _drawn_cut(rng: np.random.Generator, letter: str, length: int) -> Cut:
    """Return a cut with a step of either sign and elements left over before and after; steps of d are mostly 1."""
    steps = (1, 1, 1, 1, 2, -1) if letter == "d" else (1, 1, 2, 3, -1, -2)
    step, before, after = int(rng.choice(steps)), int(rng.integers(0, 4)), int(rng.integers(0, 4))
    first, last = before, before + (length - 1) * abs(step)
    part = slice(first, last + 1, step) if step > 0 else slice(last, first - 1 if first else None, step)
    return last + 1 + after, part


def _dense_steps(shape: list[int]) -> list[int]:
    steps = [1]
    for length in reversed(shape[1:]):
        steps.append(steps[-1] * length)
    return steps[::-1]


class Memory:
    """A parent tensor with a call's views of it.

    parent: all of the memory, one-dimensional for dense tensors (with guards on both sides).
    views:  the tensors of the call, axes in the order of the case's layout.
    """

    def __init__(
        self, case: Case, view: int, strides: tuple[int, int, int, int] | None = None, first: int = -1
    ) -> None:
        dtype, self._case = DTYPES[case.type], case
        self._cuts: list[dict[str, Cut]] = []
        if view == 0 or strides is not None:
            self._shape = [case.shape[letter] for letter in case.lo]
            self._steps = _dense_steps(self._shape)
            if strides is not None:
                by_letter = dict(zip("dnsb", strides, strict=True))
                self._steps = [by_letter[letter] for letter in case.lo]
            reach = [step * (length - 1) for step, length in zip(self._steps, self._shape, strict=True)]
            before = GUARD + max(first, 0)
            #: Where element [0, 0, 0, 0] is.
            self._start = before - sum(min(0, r) for r in reach)
            self.parent: Array = np.zeros(before + sum(map(abs, reach)) + 1 + GUARD, dtype)
        else:
            self._cuts = _cuts(case, view)
            self.parent = np.zeros([self._cuts[0][letter][0] for letter in case.lo], dtype)
        self.views = self._views_of(self.parent)
        self._before: Array = self.parent.copy()

    def _views_of(self, parent: Array) -> tuple[Array, ...]:
        if self._cuts:
            return tuple(parent[tuple(cut[letter][1] for letter in self._case.lo)] for cut in self._cuts)
        size = parent.itemsize
        steps = tuple(step * size for step in self._steps)
        return (np.ndarray(self._shape, parent.dtype, parent, self._start * size, steps),)

    @classmethod
    def of_input(cls, case: Case) -> Memory:
        """Return the memory of a case's x."""
        return cls(case, case.v, case.xs, case.xo)

    @classmethod
    def of_output(cls, case: Case) -> Memory:
        """Return the memory of a case's output, other than x."""
        laid_out = case.ys is not None or case.yo >= 0
        return cls(case, case.v if not laid_out and (case.o or case.v == 3) else 0, case.ys, case.yo)

    def fill(self, rng: np.random.Generator) -> None:
        """Fill everything with uniform values in [-1, 1], or with the case's wide ones."""
        # Drawn in float32 where that is enough: some parents are large.
        drawn = rng.random(self.parent.shape, np.float64 if self._case.type == "f64" else np.float32)
        drawn *= 2
        drawn -= 1
        self.parent[...] = widened(drawn, self._case.type, rng) if self._case.vals == "wide" else drawn
        self.keep()

    def poison(self, byte: int = NAN_POISON) -> None:
        """Fill everything with a byte, so that unwritten elements show."""
        self.parent.view(np.uint8)[...] = byte
        self.keep()

    def keep(self) -> None:
        """Take what the memory holds now for its filling."""
        self._before = self.parent.copy()

    def stray(self) -> int:
        """Return how many elements outside the views have changed since the last filling."""
        return int(np.count_nonzero(changed_outside(self.parent, self._before, self.views)))

    def changed(self) -> int:
        """Return how many elements, of the views or outside, have changed since the last filling."""
        return int(np.count_nonzero(bits(self.parent) != bits(self._before)))

    def restore(self) -> None:
        """Put everything back as it was filled."""
        bits(self.parent)[...] = bits(self._before)
