"""`identify`: which RoPE convention made one tensor from another."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from ..angles import angle_table, magnitude_of
from ..config import RopeConfig
from ..errors import ConfigError
from ..regions import ranges, touched
from .angle_kinds import ANGLE_KINDS
from .candidates import pairing_of, variants_of, with_magnitude
from .convention_search import Search
from .hypothesis import SHOWN, Hypothesis, again, as_good, checked_trials, polished, ranked, same_conventions
from .pairings import common_pairings, possible_pairings, rounding
from .parts import Part, explained, parts_of, parts_text, where_text
from .tokens import Tensors, TokenRows, tensors_of
from .wording import differences_from, number, one_of

_FAR = 0.05
#: Fewer angles than these, pairs times positions, tell nothing of unusual conventions.
_FEW_ANGLES = 8
#: Parts of a tensor that are searched for unusual conventions.
_SLOW_SEARCHES = 2
#: Positions beyond are not doubled and do not run on: 64 bits might not hold them.
_LARGE = 1 << 61


@dataclass(frozen=True)
class Identification:
    """What `identify` found.

    hypotheses:  the conventions that were checked last, the best first; at most a few.
    best:        the convention that was used for the whole tensor, or None: none of these.
    equal:       hypotheses that explain the tensors as well as the best one, which is the most usual of them; at most a
                 few. With more or larger positions they could be told apart, but for the pairing of a single pair.
    differences: how the best one differs from the given configuration; () without one.
    agrees:      whether the best one is that of the given configuration; None without one.
    sentence:    the result in words.
    parts:       where best is None, the parts of the tensor that are rotated by one convention each, if that was found.
    """

    hypotheses: tuple[Hypothesis, ...]
    best: Hypothesis | None
    equal: tuple[Hypothesis, ...]
    differences: tuple[str, ...]
    agrees: bool | None
    sentence: str
    parts: tuple[Part, ...] = ()

    def __str__(self) -> str:
        return self.sentence

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {
            "best": None if self.best is None else self.best.to_dict(),
            "equal": [str(hypothesis) for hypothesis in self.equal],
            "differences": list(self.differences),
            "agrees": self.agrees,
            "sentence": self.sentence,
            "parts": [part.to_dict() for part in self.parts],
            "hypotheses": [hypothesis.to_dict() for hypothesis in self.hypotheses],
        }


def identify(
    before: Any, after: Any, positions: Any = None, *, layout: str = "bsnd", config: RopeConfig | None = None
) -> Identification:
    """Find the RoPE convention that made `after` from `before`. NumPy only; no device is used.

    before, after: tensors of one shape, rank 3 or 4 in the given layout: q or k before and after RoPE. Any kind of
                   array and any dtype that `clrope.rope` takes.
    positions:     as for `clrope.rope`; None: 0, 1, 2, … for each batch. A constant that was added to all of them is
                   found.
    config:        the configuration that should have been used. It is checked first, with what is often forgotten or
                   confused, and the differences are named. Needed for YaRN, frequency factors and section modes: these
                   are compared with, and not guessed.

    Pairing, n_dims, freq_base, freq_scale (linear scaling), direction, offset, magnitude and kind of angles are found
    without a configuration. Raises `ShapeError`, `ConfigError`.
    """
    if config is not None and not isinstance(config, RopeConfig):
        raise ConfigError(f"config: got {type(config).__name__}, a RopeConfig or None is needed")
    tensors = tensors_of(before, after, positions, layout, config or RopeConfig(mode="neox"))
    given = None if config is None else config.for_head_dim(tensors.before.shape[3])
    unchanged = tensors.unchanged()
    if unchanged.all():
        zero = " Every position is 0, where no rotation shows." if not tensors.positions.any() else ""
        text = "None of these: after equals before, nothing was rotated or too little to show."
        return _none((), given, f"{text}{zero}")
    # Heads that are unchanged where others turn: no convention explains all.
    still = bool((unchanged & np.asarray(tensors.positions.any(axis=0))[..., None]).any())
    found = _whole(tensors, given, thorough=not still)
    if found.best is None:
        found = _in_parts(tensors, given, found)
    if found.best is None and not found.parts and still:
        found = _whole(tensors, given)
    if found.best is None and tensors.subnormal:
        text = (
            f"No convention can be told: most values of after are subnormal in {tensors.after.dtype}, where rounding "
            "hides the rotation. Larger values show it."
        )
        return replace(found, sentence=text, parts=())
    if found.best is None and not found.parts and not unchanged.all():
        changed = where_text(tuple(touched(~unchanged, axis) for axis in range(3)), tensors.shape)
        return replace(found, sentence=f"{found.sentence} Values change in {changed} only.") if changed else found
    return found


def _whole(tensors: Tensors, given: RopeConfig | None, thorough: bool = True) -> Identification:
    """Return the convention of the whole tensor, at the given positions, at ones that run on, or applied twice.

    thorough: not only the usual conventions.
    """
    found = _explaining(tensors, given, False)
    others: list[tuple[Tensors, Callable[[Hypothesis], Hypothesis]]] = []
    if np.abs(tensors.positions).max() < _LARGE:
        if tensors.shape[0] > 1:
            others.append((tensors.running_on(), lambda h: replace(h, runs_on=True)))
        if given is not None:
            others.append((tensors.twice_as_far(), lambda h: _twice(h, given)))
    for other, named in others if found.best is None else ():
        moved = _explaining(other, given, False)
        if moved.best is not None and moved.best.offset % 2 == 0:
            return _found(tensors.rows(), [named(h) for h in moved.hypotheses if h.offset % 2 == 0], given)
    return _explaining(tensors, given, True) if found.best is None and thorough else found


def _explaining(tensors: Tensors, given: RopeConfig | None, thorough: bool) -> Identification:
    """Return the convention of the whole tensor if it explains each head of each token."""
    found = _searched(tensors.rows(), given, thorough)
    if found.best is None or explained(tensors, found.best).all():
        return found
    return _none(found.hypotheses, given, f"None of these: {found.best} explains most of after, but not all of it.")


def _twice(h: Hypothesis, given: RopeConfig) -> Hypothesis:
    """Return the convention that gives a hypothesis, of positions twice as large, if it is applied twice."""
    once = math.sqrt(abs(magnitude_of(h.config)))
    meant = magnitude_of(given)
    config = with_magnitude(h.config, meant if math.isclose(once, abs(meant), rel_tol=1e-6) else once)
    return replace(h, config=config, offset=h.offset // 2, times=2)


def _in_parts(tensors: Tensors, given: RopeConfig | None, found: Identification) -> Identification:
    """Return what is rotated by a convention of its own, if the whole tensor is not."""
    used: list[RopeConfig] = []
    slow = 0

    def search(rows: TokenRows, thorough: bool) -> Hypothesis | None:
        """Return the convention of some rows: a usual one, one like those of other parts, or any, not often."""
        nonlocal slow
        best = _searched(rows, given, thorough=False).best
        for config in used[-2:]:
            best = best or _searched(rows, config, thorough=False).best
        if best is None and thorough and slow < _SLOW_SEARCHES:
            slow += 1
            best = _searched(rows, given).best
        if best is not None and best.config not in used:
            used.append(best.config)
        return best

    parts, rest = parts_of(tensors, search)
    if not parts:
        return found
    if not parts[0].where:
        return _whole(tensors, given)
    if tensors.shape[0] > 1 and np.abs(tensors.positions).max() < _LARGE:
        other = tensors.running_on()
        checked = again(other.rows(), parts[0].hypothesis)
        if checked.fits and explained(other, checked).all():
            return _found(tensors.rows(), [replace(checked, runs_on=True)], given)
    return replace(found, parts=tuple(parts), sentence=parts_text(tensors, parts, rest))


def _searched(rows: TokenRows, given: RopeConfig | None, thorough: bool = True) -> Identification:
    """Return the convention of rows; thorough: not only the usual ones."""
    sample = rows.sample()
    more = () if given is None else tuple(
        dict.fromkeys(pairing_of(variant, rows.head_dim) for variant in variants_of(given, rows.head_dim))
    )  # fmt: skip
    possible = possible_pairings(sample, more)
    if not possible:
        text = "None of these: no pairing that was tried, of halves or neighbours, keeps the length of all pairs."
        return _none((), given, text)
    kinds = " or ".join(dict.fromkeys({"halves": "NEOX", "neighbours": "NORMAL"}[p.kind] for p in possible))
    pairings = common_pairings(sample, possible)
    if not pairings:
        text = (
            f"None of these: some pairs of elements keep their length ({kinds}), but do not turn by one angle in all "
            "heads at a position."
        )
        return _none((), given, text)
    search = Search(sample, pairings, given)
    if search.turns_nothing():
        factor = _factor(rows)
        what = "what changes is no rotation" if factor is None else f"after is before times {factor:.6g}"
        return _none((), given, f"None of these: no pair of elements turns; {what}.")
    # Of fewer angles any offset explains some by chance.
    angles = np.unique(rows.positions[0]).size * max(pairing.pairs for pairing in pairings)
    thorough = thorough and angles >= _FEW_ANGLES
    checked: list[Hypothesis] = []
    for trials in search.stages() if thorough else islice(search.stages(), 1):
        checked = ranked(rows, [*checked_trials(sample, trials, given), *checked], given)
        if any(hypothesis.fits for hypothesis in checked):
            checked = ranked(rows, [*polished(sample, checked), *checked], given)
            checked = ranked(rows, [*checked, *same_conventions(rows, checked, given)], given)
            break
    # What is far off says nothing, but that the nearest one is far off.
    near = [h for h in checked[:SHOWN] if h.fits or h.nmse < _FAR] or checked[:1]
    checked = ranked(rows, [again(rows, hypothesis) for hypothesis in near], given)
    if not checked or not checked[0].fits:
        text = (
            f"None of these: pairs of elements turn ({kinds}), but by no frequencies that were tried. YaRN, frequency "
            "factors and section modes are found with the model's configuration only."
        )
        return _none(tuple(checked), given, text)
    return _found(rows, checked, given)


def _factor(rows: TokenRows) -> float | None:
    """Return the number that after is before times, or None."""
    products = [(np.sum(after * before), np.sum(before**2)) for _, before, after in rows.chunks()]
    factor = float(sum(p for p, _ in products) / sum(q for _, q in products))
    parts = [(np.sum((after - factor * before) ** 2), np.sum(after**2)) for _, before, after in rows.chunks()]
    error, power = (float(sum(values)) for values in zip(*parts, strict=True))
    return factor if error <= 4 * rounding(rows.dtype) * power else None


def _found(rows: TokenRows, checked: list[Hypothesis], given: RopeConfig | None) -> Identification:
    best = checked[0]
    equal = tuple(h for h in checked[1:] if h.fits and as_good(rows, h, best))
    sentence = f"{best}."
    if best.angles != ANGLE_KINDS:
        sentence += f" Angles: {' or '.join(best.angles)}."
    if equal:
        sentence += f" These positions do not tell it from: {'; '.join(map(str, equal))}."
    single = 1.0 if given is None else given.freq_scale
    once = math.sqrt(abs(magnitude_of(best.config)))
    if best.times == 1 and not best.config.ext_factor and best.config.freq_scale == 2 * single:
        magnitude = "" if once == 1 else f" and magnitude {once:.9g}"
        sentence += f" Rotating twice by freq_scale {number(single)}{magnitude} gives the same."
    if given is None:
        return Identification(tuple(checked), best, equal, (), None, sentence)
    different = differences_from(best.config, best.forward, best.offset, given)
    different += ("rotated twice where the config means once",) if best.times == 2 else ()
    different += ("positions that run on across batches where the given ones are meant",) if best.runs_on else ()
    text = f"It is {one_of(list(different))}." if different else f"This is what the config says.{_unsure(rows, best)}"
    return Identification(tuple(checked), best, equal, different, not different, f"{sentence} {text}")


def _unsure(rows: TokenRows, best: Hypothesis) -> str:
    """Return which pairs turn so little that a tenth of it is within the limit: another frequency would fit, too."""
    table = angle_table(best.config)
    axes = table.axis if len(rows.positions) > 1 else np.zeros(table.pairs, np.intp)
    theta = (rows.positions[axes] + best.offset) * table.omega[:, None]
    turned = np.mean(4 * np.sin(0.05 * np.clip(theta, -3, 3)) ** 2, axis=1) * 2 / rows.head_dim
    pairs = np.flatnonzero(turned <= best.limit)
    if not pairs.size:
        return ""
    many = "Pairs" if pairs.size > 1 else "Pair"
    return f" {many} {ranges(pairs)} turn{'s' * (pairs.size == 1)} too little here to be sure of."


def _none(checked: tuple[Hypothesis, ...], given: RopeConfig | None, sentence: str) -> Identification:
    return Identification(checked, None, (), (), None if given is None else False, sentence)
