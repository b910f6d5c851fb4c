"""`identify`: which RoPE convention made one tensor from another."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..angles import magnitude_of
from ..config import RopeConfig
from ..errors import ConfigError
from ..testing import limit_for
from .angle_kinds import ANGLE_KINDS, AngleKind, error_of, limit_of
from .base_polish import polished_base
from .candidates import KNOWN_BASES, Trial, pairing_of, same_rotations, unusual, variants_of
from .convention_search import Search
from .pairings import possible_pairings, rounding
from .tokens import TokenRows, token_rows
from .wording import convention_text, differences_from, one_of

_SHOWN = 12
_FAR = 0.05
_KINDS_OF = 6
#: Of two errors that both are rounding, the smaller one is no better if it is smaller by chance.
_CHANCE = 100.0
_NEAR_BASES = 0.02
#: Share of values that may differ from a result that was computed precisely and rounded once.
_ROUNDED_ONCE = 0.05
_NEARLY_ROUNDED_ONCE = 0.2
#: The same of one whose frequencies were not fitted but are those that were used.
_NONE_DIFFER = 0.003


@dataclass(frozen=True)
class Hypothesis:
    """A convention and how well it explains the tensors.

    config:   the convention; None stands for no field: n_dims is set. Its `angles` is 'ggml' where only those fit.
    forward:  False: the inverse rotation.
    offset:   what was added to every position.
    angles:   the kinds of angles that explain the tensors equally well: 'exact', 'ggml' (its float32 recurrence),
              'float32' (position times frequency in float32, as torch's models compute them).
    nmse:     error of after against before rotated by this convention in float64.
    limit:    largest NMSE at which the convention counts as the one that was used.
    differing: share of values that differ from after once the rotation is rounded to its storage type.
    head_dim: elements of a head.
    """

    config: RopeConfig
    forward: bool
    offset: int
    angles: tuple[AngleKind, ...]
    nmse: float
    limit: float
    differing: float
    head_dim: int

    @property
    def fits(self) -> bool:
        """Whether the error is within the limit."""
        return self.nmse <= self.limit

    def __str__(self) -> str:
        return convention_text(self.config, self.head_dim, self.forward, self.offset)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {
            "text": str(self),
            "config": self.config.to_dict(),
            "forward": self.forward,
            "offset": self.offset,
            "angles": list(self.angles),
            "nmse": self.nmse if math.isfinite(self.nmse) else None,
            "limit": self.limit,
            "differing": self.differing,
            "fits": self.fits,
        }


@dataclass(frozen=True)
class Identification:
    """What `identify` found.

    hypotheses:  the conventions that were checked last, the best first; at most a few.
    best:        the convention that was used, or None: none of these.
    equal:       hypotheses that explain the tensors as well as the best one, which is the most usual of them; at most a
                 few. With more or larger positions they could be told apart, but for the pairing of a single pair.
    differences: how the best one differs from the given configuration; () without one.
    agrees:      whether the best one is that of the given configuration; None without one.
    sentence:    the result in words.
    """

    hypotheses: tuple[Hypothesis, ...]
    best: Hypothesis | None
    equal: tuple[Hypothesis, ...]
    differences: tuple[str, ...]
    agrees: bool | None
    sentence: str

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
    rows = token_rows(before, after, positions, layout, config or RopeConfig(mode="neox"))
    given = None if config is None else config.for_head_dim(rows.head_dim)
    error = _distance(rows)
    if error <= rounding(rows.dtype) / 100:
        zero = " Every position is 0, where no rotation shows." if not rows.positions.any() else ""
        return _none((), given, f"None of these: after equals before, nothing was rotated.{zero}")
    found = _searched(rows, given)
    if found.best is None and rows.subnormal:
        text = (
            f"No convention can be told: most values of after are subnormal in {rows.after.dtype}, where rounding "
            "hides the rotation. Larger values show it."
        )
        return replace(found, sentence=text)
    return found


def _searched(rows: TokenRows, given: RopeConfig | None) -> Identification:
    sample = rows.sample()
    more = () if given is None else tuple(
        dict.fromkeys(pairing_of(variant, rows.head_dim) for variant in variants_of(given, rows.head_dim))
    )  # fmt: skip
    pairings = possible_pairings(sample, more)
    if not pairings:
        text = (
            "None of these: after is no rotation of before, because no pairing of elements keeps the length of pairs."
        )
        return _none((), given, text)
    search = Search(sample, pairings, given)
    if search.turns_nothing():
        return _none((), given, "None of these: no pair of elements turns; after is before times a factor.")
    checked: list[Hypothesis] = []
    for trials in search.stages():
        checked = _ranked(rows, [*_checked(sample, trials, given), *checked], given)
        if any(hypothesis.fits for hypothesis in checked):
            checked = _ranked(rows, [*_polished(sample, checked), *checked], given)
            checked = _ranked(rows, [*checked, *_same(rows, checked, given)], given)
            break
    # What is far off says nothing, but that the nearest one is far off.
    near = [h for h in checked[:_SHOWN] if h.fits or h.nmse < _FAR] or checked[:1]
    checked = _ranked(rows, [_again(rows, hypothesis) for hypothesis in near], given)
    if not checked or not checked[0].fits:
        kinds = " or ".join(dict.fromkeys({"halves": "NEOX", "neighbours": "NORMAL"}[p.kind] for p in pairings))
        text = (
            f"None of these: pairs of elements turn ({kinds}), but by no frequencies that were tried. YaRN, frequency "
            "factors and section modes are found with the model's configuration only."
        )
        return _none(tuple(checked), given, text)
    return _found(rows, checked, given)


def _found(rows: TokenRows, checked: list[Hypothesis], given: RopeConfig | None) -> Identification:
    best = checked[0]
    equal = tuple(h for h in checked[1:] if h.fits and _as_good(rows, h, best))
    sentence = f"{best}."
    if best.angles != ANGLE_KINDS:
        sentence += f" Angles: {' or '.join(best.angles)}."
    if equal:
        sentence += f" These positions do not tell it from: {'; '.join(map(str, equal))}."
    if given is None:
        return Identification(tuple(checked), best, equal, (), None, sentence)
    different = differences_from(best.config, best.forward, best.offset, given)
    text = f"It is {one_of(list(different))}." if different else "This is what the config says."
    return Identification(tuple(checked), best, equal, different, not different, f"{sentence} {text}")


def _none(checked: tuple[Hypothesis, ...], given: RopeConfig | None, sentence: str) -> Identification:
    return Identification(checked, None, (), (), None if given is None else False, sentence)


def _distance(rows: TokenRows) -> float:
    error = power = 0.0
    for _, before, after in rows.chunks():
        error += float(np.sum((after - before.astype(rows.after.dtype).astype(np.float64)) ** 2))
        power += float(np.sum(before**2))
    return error / power if power else math.inf


def _checked(rows: TokenRows, trials: list[Trial], given: RopeConfig | None) -> list[Hypothesis]:
    """Return hypotheses of the trials: those of the best few with every kind of angles, the others with exact ones."""
    near = [trial for trial in trials if trial.error < 0.05 or trial is trials[0]]
    first = [_hypothesis(rows, trial.config, trial.forward, trial.offset, ("exact",)) for trial in near]
    ranked = _sorted(rows, first, given)
    return [_again(rows, hypothesis) for hypothesis in ranked[:_KINDS_OF]] + ranked[_KINDS_OF:]


def _polished(rows: TokenRows, checked: list[Hypothesis]) -> list[Hypothesis]:
    """Return hypotheses with bases that rounded values make more exact than phases do."""
    best = checked[0]
    known = best.differing <= _NONE_DIFFER and best.config.freq_base in KNOWN_BASES
    if known or rows.dtype in ("f32", "f64"):
        return []
    found = []
    for h in checked[:_SHOWN]:
        plain = h.config.ext_factor == 0 and h.config.freq_factors is None and not h.config.uses_sections
        if h.fits and plain and h.differing <= _NEARLY_ROUNDED_ONCE and h.config.freq_base not in KNOWN_BASES:
            trial = Trial(h.config, h.forward, h.offset, h.nmse)
            base = polished_base(rows, trial, magnitude_of(h.config))
            found.append(_again(rows, replace(h, config=replace(h.config, freq_base=base))))
    return found


def _same(rows: TokenRows, checked: list[Hypothesis], given: RopeConfig | None) -> list[Hypothesis]:
    """Return what rotates the tokens as the best do: of these, stages that the search has not come to hold some."""
    fits = [h for h in checked[:_KINDS_OF] if h.fits]
    same = [s for h in fits for s in same_rotations(h.config, h.forward, h.offset, rows.positions, given)]
    return [_hypothesis(rows.sample(), *one) for one in dict.fromkeys(same)]


def _again(rows: TokenRows, hypothesis: Hypothesis) -> Hypothesis:
    return _hypothesis(rows, hypothesis.config, hypothesis.forward, hypothesis.offset)


def _hypothesis(
    rows: TokenRows, config: RopeConfig, forward: bool, offset: int, tried: tuple[AngleKind, ...] = ANGLE_KINDS
) -> Hypothesis:
    tries = []
    for kind in tried:
        nmse, differing = error_of(rows, config, forward, offset, kind)
        limit = limit_of(rows, config, offset, kind)
        angles: Any = "ggml" if kind == "ggml" else "exact"
        tries.append(
            Hypothesis(replace(config, angles=angles), forward, offset, (kind,), nmse, limit, differing, rows.head_dim)
        )
    fitting = [h for h in tries if h.fits]
    if not fitting:
        return replace(min(tries, key=lambda h: h.nmse), angles=())
    equal = _equal(rows, fitting)
    return replace(equal[0], angles=tuple(h.angles[0] for h in equal))


def _equal(rows: TokenRows, some: list[Hypothesis]) -> list[Hypothesis]:
    """Return the hypotheses that are worse than the best of them by chance only, in the same order."""
    closest = min(some, key=lambda h: (h.differing, h.nmse))
    if closest.differing > _ROUNDED_ONCE:
        closest = min(some, key=lambda h: h.nmse)
    return [h for h in some if _as_good(rows, h, closest)]


def _as_good(rows: TokenRows, hypothesis: Hypothesis, best: Hypothesis) -> bool:
    long = rows.dtype in ("f32", "f64")
    if best.differing <= _ROUNDED_ONCE and not long:
        # Where after was rounded once, the values that differ tell more than the error: small turns are rounded away.
        chance = 5 * math.sqrt(best.differing * rows.elements + 4)
        if (hypothesis.differing - best.differing) * rows.elements <= chance:
            return True
        if best.differing <= _NONE_DIFFER or hypothesis.differing > _ROUNDED_ONCE:
            return False
    pairs = hypothesis.config.n_pairs(rows.head_dim)
    floor: float = {"f32": 5e-15, "f64": 1e-30}.get(rows.dtype) or limit_for(rows.dtype, rows.elements)
    if best.nmse <= floor:
        count = 2 * pairs * rows.elements // rows.head_dim
        return hypothesis.nmse <= best.nmse * (1 + max(0.004 if long else 0.02, _CHANCE / count))
    # What remains are roundings of tables, of which there are fewer than elements.
    tables = int(rows.positions.shape[1]) * pairs
    return hypothesis.nmse <= best.nmse * (1 + min(3.0, max(0.1, _CHANCE / tables)))


def _sorted(rows: TokenRows, checked: list[Hypothesis], given: RopeConfig | None) -> list[Hypothesis]:
    """Return each hypothesis once, those that explain the tensors as well as the best first, by how usual they are."""
    once = {(h.config, h.forward, h.offset): h for h in checked}
    if not once:
        return []
    equals = _equal(rows, [h for h in once.values() if h.fits] or list(once.values()))

    def key(h: Hypothesis) -> tuple[bool, bool, float, float]:
        equal = h in equals
        usual = unusual(h.config, h.forward, h.offset, h.head_dim, given)
        return not h.fits, not equal, usual if equal else h.nmse, h.nmse

    return sorted(once.values(), key=key)


def _ranked(rows: TokenRows, checked: list[Hypothesis], given: RopeConfig | None) -> list[Hypothesis]:
    """Return the sorted hypotheses without those that are nearly the same as a better one."""
    ranked: list[Hypothesis] = []
    for hypothesis in _sorted(rows, checked, given):
        if not any(_nearly_same(hypothesis, better) for better in ranked):
            ranked.append(hypothesis)
    return ranked


def _nearly_same(one: Hypothesis, other: Hypothesis) -> bool:
    """Whether two hypotheses differ by a little in the base only: a more usual one is enough."""
    near = abs(math.log(one.config.freq_base / other.config.freq_base)) < _NEAR_BASES
    alike = replace(one.config, freq_base=other.config.freq_base, angles=other.config.angles) == other.config
    return near and alike and (one.forward, one.offset) == (other.forward, other.offset)
