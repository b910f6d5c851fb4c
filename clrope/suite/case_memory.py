"""How a case's tensors are laid out: parents, the views into them, poison, and the bytes that must not change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..layout import DTYPES
from ..testing import GUARD, NAN_POISON, bits, changed_outside
from .case import Case

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Cut:
    """One axis of a parent: its length, and what of it the view takes."""

    length: int
    part: slice


def _heads(case: Case) -> tuple[int, int]:
    heads = case.shape["n"]
    return heads, max(1, heads // 4)


def _cuts(case: Case, view: int) -> list[dict[str, Cut]]:
    """Return, for each tensor of the call, how it is cut out of the parent, by axis."""
    whole = {letter: Cut(length, slice(0, length)) for letter, length in case.shape.items()}
    d, n, s = case.shape["d"], case.shape["n"], case.shape["s"]
    if view == 1:
        return [whole | {"d": Cut(2 * d, slice(0, d)), "n": Cut(4 * n, slice(0, n)), "s": Cut(3 * s, slice(0, s))}]
    if view == 2:
        return [whole | {"d": Cut(2 * d, slice(d, 2 * d))}]
    if view == 3:
        heads, keys = _heads(case)
        total = heads + 2 * keys
        return [whole | {"n": Cut(total, slice(0, heads))}, whole | {"n": Cut(total, slice(heads, heads + keys))}]
    if view == 4:
        return [whole | {"d": Cut(2 * d, slice(2 * d - 1, None, -2))}]
    if view == 5:
        back = {letter: Cut(length + 1, slice(length, 0, -1)) for letter, length in case.shape.items()}
        return [back | {"d": Cut(3 * d + 1, slice(1, None, 3))}]
    return [whole]


class Memory:
    """A parent tensor with the views of it that a call uses.

    parent: all of the memory, one-dimensional for dense tensors (with guards on both sides).
    views:  the tensors of the call, axes in the order of the case's layout.
    """

    def __init__(self, case: Case, view: int) -> None:
        dtype = DTYPES[case.type]
        self._case, self._cuts = case, _cuts(case, view)
        self._dense = view == 0
        if self._dense:
            size = int(np.prod(case.ne_a))
            self.parent: Array = np.zeros(size + 2 * GUARD, dtype)
        else:
            self.parent = np.zeros([self._cuts[0][letter].length for letter in case.lo], dtype)
        self.views = self._views_of(self.parent)
        self._before: Array = self.parent.copy()

    def _views_of(self, parent: Array) -> tuple[Array, ...]:
        if self._dense:
            return (parent[GUARD:-GUARD].reshape([self._case.shape[letter] for letter in self._case.lo]),)
        # A slice that begins at the last element and goes down has its stop beyond the first.
        return tuple(parent[tuple(cut[letter].part for letter in self._case.lo)] for cut in self._cuts)

    def fill(self, rng: np.random.Generator) -> None:
        """Fill everything with uniform values in [-1, 1]."""
        # Drawn in float32 where that is enough: some parents are large.
        drawn = rng.random(self.parent.shape, np.float64 if self._case.type == "f64" else np.float32)
        drawn *= 2
        drawn -= 1
        self.parent[...] = drawn
        self._before = self.parent.copy()

    def poison(self) -> None:
        """Fill everything with a NaN, so that what a kernel does not write shows."""
        self.parent.view(np.uint8)[...] = NAN_POISON
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
