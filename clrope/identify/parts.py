"""A tensor of which parts are rotated by conventions of their own, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..regions import Box, Mask, box_around, counted, touched
from ..testing import limit_for
from .angle_kinds import errors_of_heads
from .hypothesis import Hypothesis
from .pairings import common_pairings, possible_pairings
from .tokens import Tensors, TokenRows

#: Returns the convention of some rows, or None; False: among the usual ones only.
Search = Callable[[TokenRows, bool], "Hypothesis | None"]

_AXES = ("batch", "token", "head")
_MOST_PARTS = 6
#: Batches, heads, tokens and combinations of them that are tried alone.
_FEW = 6
#: One head of a token may be further off than all are together.
_ONE_HEAD = 8.0


@dataclass(frozen=True)
class Part:
    """The batches, tokens and heads that one convention rotated: all combinations of these indices.

    hypothesis: the convention, checked on this part. where: the part in words.
    """

    batches: tuple[int, ...]
    tokens: tuple[int, ...]
    heads: tuple[int, ...]
    hypothesis: Hypothesis
    where: str

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        lists: dict[str, Any] = {name: list(getattr(self, name)) for name in ("batches", "tokens", "heads")}
        return {"where": self.where, **lists, "hypothesis": self.hypothesis.to_dict()}


def explained(tensors: Tensors, h: Hypothesis) -> Mask:
    """Return which heads of which tokens a convention explains, bool[b, s, n]."""
    rows = tensors.rows()
    errors = errors_of_heads(rows, h.config, h.forward, h.offset, h.angles[0] if h.angles else "exact")
    limit = _ONE_HEAD * max(h.limit, limit_for(rows.dtype, rows.head_dim, rounding=True))
    return tensors.by_head(errors) <= limit


def parts_of(tensors: Tensors, search: Search) -> tuple[list[Part], Mask]:
    """Return the parts that are rotated, and what is neither in a part nor unchanged, bool[b, s, n]."""
    free = np.ones(tensors.shape, np.bool_)
    rest = ~tensors.unchanged()
    parts: list[Part] = []
    while rest.any() and len(parts) < _MOST_PARTS:
        found = _next_part(tensors, rest, free, search)
        if found is None:
            break
        box, hypothesis = found
        rest[np.ix_(*box)] = free[np.ix_(*box)] = False
        batches, tokens, heads = (tuple(int(k) for k in places) for places in box)
        parts.append(Part(batches, tokens, heads, hypothesis, where_text(box, tensors.shape)))
    return parts, rest


def _next_part(tensors: Tensors, rest: Mask, free: Mask, search: Search) -> tuple[Box, Hypothesis] | None:
    """Return the largest box that the convention of some of the rest explains."""
    for thorough in (False, True):
        failed: list[Box] = []
        for seed in _seeds(rest):
            # Heads that turn as others did not are no easier alone.
            if any(np.array_equal(seed[1], f[1]) and set(seed[2]) <= set(f[2]) and seed[0][0] in f[0] for f in failed):
                continue
            rows = tensors.rows(seed)
            sample = rows.sample()
            if not common_pairings(sample, possible_pairings(sample)):
                continue
            if thorough and rows.elements == tensors.before.size:
                return None  # it was searched before
            h = search(rows, thorough)
            if h is None and thorough:
                return None  # slow: once is enough
            if h is None and (tensors.shared or len(seed[0]) == 1):
                failed.append(seed)
            fits = np.zeros_like(free) if h is None else explained(tensors, h) & free
            inside = np.zeros_like(rest)
            inside[np.ix_(*seed)] = True
            for must in (rest & fits, rest & fits & inside):
                box = box_around(must, fits)
                if box is not None and (best := search(tensors.rows(box), thorough)):
                    return box, best
    return None


def _seeds(rest: Mask) -> Iterator[Box]:
    """Yield boxes that one convention may have rotated: all of the rest, batches, heads, tokens, and some of each."""
    batches, tokens, heads = (touched(rest, axis) for axis in range(3))
    cells = np.argwhere(rest)
    fixed: list[dict[int, int]] = [{}]
    fixed += [{axis: int(k)} for axis, places in ((0, batches), (2, heads), (1, tokens)) for k in _spread(places)]
    for axes in ((0, 2), (0, 1), (1, 2), (0, 1, 2)):
        fixed += [{axis: int(cell[axis]) for axis in axes} for cell in _spread(cells)]
    seen = []
    for chosen in fixed:
        mask = rest.copy()
        for axis, index in chosen.items():
            mask &= (np.arange(rest.shape[axis]) == index).reshape([-1 if k == axis else 1 for k in range(3)])
        box = tuple(touched(mask, axis) for axis in range(3))
        for some in (box[1], box[1][: (len(box[1]) + 1) // 2]):
            key = [list(places) for places in (box[0], some, box[2])]
            if key not in seen:
                seen.append(key)
                yield box[0], some, box[2]


def _spread(places: Any) -> Any:
    """Return the first, the last and a few between."""
    return places[np.unique(np.linspace(0, len(places) - 1, _FEW).astype(int))]


def where_text(box: Box, shape: tuple[int, ...]) -> str:
    """Return 'batch 0 of 4', 'tokens 3 to 11 of 12, heads 0 to 7 of 10' and the like; '' for everything."""
    texts = [
        counted(places, size, name) for places, size, name in zip(box, shape, _AXES, strict=True) if len(places) < size
    ]
    return ", ".join(texts)


def parts_text(tensors: Tensors, parts: list[Part], rest: Mask) -> str:
    """Return what was rotated and what was not, in sentences."""
    shape = tensors.shape
    outside = np.ones(shape, np.bool_)
    for part in parts:
        outside[np.ix_(part.batches, part.tokens, part.heads)] = False
    where = "" if not rest.any() else where_text(tuple(touched(rest, axis) for axis in range(3)), shape)
    unknown = f"{f'In {where}' if where else 'Elsewhere'}, values change in a way that was not found."
    if len(parts) == 1:
        (part,) = parts
        indices = [
            len(p) for p, size in zip((part.batches, part.tokens, part.heads), shape, strict=True) if len(p) < size
        ]
        left = "the others are" if len(indices) == 1 else "the rest is"
        others = "" if rest.any() else f", {left} unchanged"
        verb = "is" if set(indices) == {1} else "are"
        text = f"{part.where[0].upper()}{part.where[1:]} {verb} rotated{others}: {part.hypothesis}."
    else:
        text = "; ".join(f"{part.where}: {part.hypothesis}" for part in parts)
        text = f"Parts are rotated unlike: {text}."
        if outside.any() and not rest.any():
            text += " The rest is unchanged."
    return f"{text} {unknown}" if rest.any() else text
