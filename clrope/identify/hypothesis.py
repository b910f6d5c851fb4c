"""A convention as a hypothesis: checked in float64, and ranked with others that explain the tensors as well."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from ..angles import magnitude_of
from ..config import RopeConfig
from ..testing import limit_for
from .angle_kinds import ANGLE_KINDS, AngleKind, error_of, limit_of
from .base_polish import polished_base
from .candidates import KNOWN_BASES, Trial, same_rotations, unusual
from .tokens import TokenRows
from .wording import convention_text

SHOWN = 12
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
    times:    2: rotated twice.
    runs_on:  the positions run on from batch to batch: token t of batch b is at the position given for it plus b times
              the number of tokens.
    """

    config: RopeConfig
    forward: bool
    offset: int
    angles: tuple[AngleKind, ...]
    nmse: float
    limit: float
    differing: float
    head_dim: int
    times: int = 1
    runs_on: bool = False

    @property
    def fits(self) -> bool:
        """Whether the error is within the limit."""
        return self.nmse <= self.limit

    def __str__(self) -> str:
        text = convention_text(self.config, self.head_dim, self.forward, self.offset)
        return text + ", rotated twice" * (self.times == 2) + ", positions that run on across batches" * self.runs_on

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {
            "text": str(self),
            "config": self.config.to_dict(),
            "forward": self.forward,
            "offset": self.offset,
            "times": self.times,
            "runs_on": self.runs_on,
            "angles": list(self.angles),
            "nmse": self.nmse if math.isfinite(self.nmse) else None,
            "limit": self.limit,
            "differing": self.differing,
            "fits": self.fits,
        }


def checked_trials(rows: TokenRows, trials: list[Trial], given: RopeConfig | None) -> list[Hypothesis]:
    """Return hypotheses of the trials: those of the best few with every kind of angles, the others with exact ones."""
    near = [trial for trial in trials if trial.error < 0.05 or trial is trials[0]]
    first = [_hypothesis(rows, trial.config, trial.forward, trial.offset, ("exact",)) for trial in near]
    best = _sorted(rows, first, given)
    return [again(rows, hypothesis) for hypothesis in best[:_KINDS_OF]] + best[_KINDS_OF:]


def polished(rows: TokenRows, checked: list[Hypothesis]) -> list[Hypothesis]:
    """Return hypotheses with bases that rounded values make more exact than phases do."""
    best = checked[0]
    known = best.differing <= _NONE_DIFFER and best.config.freq_base in KNOWN_BASES
    if known or rows.dtype in ("f32", "f64"):
        return []
    found = []
    for h in checked[:SHOWN]:
        plain = h.config.ext_factor == 0 and h.config.freq_factors is None and not h.config.uses_sections
        if h.fits and plain and h.differing <= _NEARLY_ROUNDED_ONCE and h.config.freq_base not in KNOWN_BASES:
            trial = Trial(h.config, h.forward, h.offset, h.nmse)
            base = polished_base(rows, trial, magnitude_of(h.config))
            found.append(again(rows, replace(h, config=replace(h.config, freq_base=base))))
    return found


def same_conventions(rows: TokenRows, checked: list[Hypothesis], given: RopeConfig | None) -> list[Hypothesis]:
    """Return what rotates the tokens as the best do: of these, stages that the search has not come to hold some."""
    fits = [h for h in checked[:_KINDS_OF] if h.fits]
    same = [s for h in fits for s in same_rotations(h.config, h.forward, h.offset, rows.positions, given)]
    return [_hypothesis(rows.sample(), *one) for one in dict.fromkeys(same)]


def again(rows: TokenRows, hypothesis: Hypothesis) -> Hypothesis:
    """Return a hypothesis checked on other rows, with every kind of angles."""
    return _hypothesis(rows, hypothesis.config, hypothesis.forward, hypothesis.offset)


def _hypothesis(
    rows: TokenRows, config: RopeConfig, forward: bool, offset: int, tried: tuple[AngleKind, ...] = ANGLE_KINDS
) -> Hypothesis:
    tries = []
    for kind in tried:
        if kind == "ggml" and (config.pair_axes is not None or config.coordinate_scale != 1):
            continue  # ggml has neither
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
    return [h for h in some if as_good(rows, h, closest)]


def as_good(rows: TokenRows, hypothesis: Hypothesis, best: Hypothesis) -> bool:
    """Whether a hypothesis is worse than the best one by chance only."""
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


def ranked(rows: TokenRows, checked: list[Hypothesis], given: RopeConfig | None) -> list[Hypothesis]:
    """Return the sorted hypotheses without those that are nearly the same as a better one."""
    kept: list[Hypothesis] = []
    for hypothesis in _sorted(rows, checked, given):
        if not any(_nearly_same(hypothesis, better) for better in kept):
            kept.append(hypothesis)
    return kept


def _nearly_same(one: Hypothesis, other: Hypothesis) -> bool:
    """Whether two hypotheses differ by a little in the base only: a more usual one is enough."""
    near = abs(math.log(one.config.freq_base / other.config.freq_base)) < _NEAR_BASES
    mine, others = (replace(h.config, freq_base=other.config.freq_base, angles="exact") for h in (one, other))
    alike = mine == others
    return near and alike and (one.forward, one.offset) == (other.forward, other.offset)
