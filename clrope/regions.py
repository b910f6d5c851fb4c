"""Where in a tensor something holds: a box of batches, tokens, heads and pairs, and its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
#: The chosen indices of each axis of a tensor.
Box = tuple[npt.NDArray[np.intp], ...]

_ORDINALS = {2: "second", 3: "third", 4: "fourth", 8: "eighth"}
_PLURALS = {"batch": "batches"}


def box_around(must: Mask, may: Mask) -> Box | None:
    """Return the plainest box that holds every true element of must and only true ones of may; None if there is none.

    may holds elements that do not tell, too: so the box is made as long as may allows, whole axes first.
    """
    box = [touched(must, axis) for axis in range(must.ndim)]
    if not must.any() or not may[np.ix_(*box)].all():
        return None
    for axis, places in enumerate(box):
        size, first, last = must.shape[axis], int(places[0]), int(places[-1])
        for start, stop in ((0, size), (first, size), (0, last + 1), (first, last + 1)):
            wider = np.arange(start, stop)
            if may[np.ix_(*box[:axis], wider, *box[axis + 1 :])].all():
                box[axis] = wider
                break
    return tuple(box)


def touched(mask: Mask, axis: int) -> npt.NDArray[np.intp]:
    """Return the indices of an axis at which any element is true."""
    return np.flatnonzero(mask.any(axis=tuple(k for k in range(mask.ndim) if k != axis)))


def box_text(box: Box, shape: Sequence[int], names: Sequence[str]) -> tuple[str, bool]:
    """Return a box in words, and whether they are singular: ('the last head of tokens from 4 on', True).

    names: of one index of each axis, the outermost first. The text is '' for the whole tensor.
    """
    parts = [
        (_part(places, size, name), len(places) == 1)
        for places, size, name in zip(box, shape, names, strict=True)
        if len(places) < size
    ]
    parts.reverse()
    texts = [text for text, _ in parts]
    if texts and names[-1] == "pair" and len(box[-1]) < shape[-1] and len(box[-2]) == shape[-2]:
        texts[0] += " of each head"
    return " of ".join(texts), bool(parts) and (parts[0][1] or texts[0].startswith("every "))


def counted(places: npt.NDArray[np.intp], size: int, name: str) -> str:
    """Return 'batch 0 of 4' or 'heads 0 to 7 of 10'."""
    return f"{name if len(places) == 1 else plural(name)} {ranges(places)} of {size}"


def plural(name: str) -> str:
    """Return the name of several indices of an axis."""
    return _PLURALS.get(name, name + "s")


def ranges(places: npt.NDArray[Any]) -> str:
    """Return '0 to 7, 9', at most four ranges."""
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    texts = [str(run[0]) if run.size == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return ", ".join(texts[:4]) + (", ..." if len(texts) > 4 else "")


def _part(places: npt.NDArray[np.intp], size: int, name: str) -> str:
    count, first, last = len(places), int(places[0]), int(places[-1])
    if count == 1 and first in (0, size - 1):
        return f"the {'last' if first else 'first'} {name}"
    if count == 1:
        return f"{name} {first}"
    steps = np.unique(np.diff(places))
    if steps.size == 1 and steps[0] == 1 and last == size - 1:
        return f"{plural(name)} from {first} on"
    if steps.size == 1 and count > 2 and int(steps[0]) in _ORDINALS and last + steps[0] >= size:
        return f"every {_ORDINALS[int(steps[0])]} {name} from {first} on"
    return f"{plural(name)} {ranges(places)}"
