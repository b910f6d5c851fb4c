"""The search: trials from the usual conventions to the unusual ones, stage after stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from ..angles import angle_table, magnitude_of
from ..config import RopeConfig
from .candidates import (
    KNOWN_BASES,
    KNOWN_SCALES,
    Trial,
    pairing_of,
    variants_of,
    with_magnitude,
)
from .pairings import Pairing, Phasors, measure
from .phase_fit import (
    FrequencyLine,
    Turns,
    absolute,
    best_of_grid,
    differences,
    exponents_of,
    joined,
    refined,
    scores,
    search_base,
    search_line,
    search_offset,
)
from .tokens import F64, TokenRows

_SCALES = np.array(KNOWN_SCALES)
_LOG_BASES = np.log(np.array(KNOWN_BASES))
#: Pairings that slower stages, and alternatives, look at.
_FEW_HALVES, _FEW_PAIRINGS = 4, 10
_FEW_LINES = 6
#: A number replaces a fitted one if it raises the squares of the angles that are left by no more than chance may.
_CHANCE = 25.0
#: The least score of differences of positions of a convention: without one, no offset explains the tokens.
_EXPLAINED = 0.5
_OFFSETS = (1 << 12, 1 << 18)


class Search:
    """Trials for a sample of tokens.

    rows:     the sample.
    pairings: those that keep the length of every pair, the plainest first.
    given:    the configuration to compare with, or None.
    """

    def __init__(self, rows: TokenRows, pairings: list[Pairing], given: RopeConfig | None) -> None:
        self.rows = rows
        self.pairings = pairings
        self.given = given
        self.positions: F64 = rows.positions[0].astype(np.float64)
        self._measured: dict[Pairing, Phasors] = {}
        # Frequencies of neighbours are the same pair by pair for any n_dims: one pairing, or two, find them.
        halves = [p for p in pairings if p.kind == "halves"][:_FEW_HALVES]
        neighbours = sorted((p for p in pairings if p.kind == "neighbours"), key=lambda p: p.n_dims)
        self._slow = [p for p in pairings if p in (*halves, *neighbours[:1])]
        self._slow += [p for p in pairings if p.kind == "neighbours" and p not in self._slow][:1]

    def phasors(self, pairing: Pairing) -> Phasors:
        """Return what a pairing measures, measured once."""
        if pairing not in self._measured:
            self._measured[pairing] = measure(self.rows, pairing)
        return self._measured[pairing]

    def turns_nothing(self) -> bool:
        """Whether no pair of any pairing turns by more than rounding explains."""
        measured = [self.phasors(pairing) for pairing in self.pairings]
        zero = np.zeros((1, 1))
        return all(p.excess(p.product, zero) <= 2 * p.floor + 1e-15 for p in measured)

    def stages(self) -> Iterator[list[Trial]]:
        """Yield lists of trials; the first that holds one that fits ends the search."""
        yield [*self.near_given(), *self.known()]
        yield self.fitted_base()
        yield [*self.known(1), *self.known(-1)]
        yield [*self.fitted_base(1), *self.fitted_base(-1)]
        yield self.with_offset()
        yield self.fitted_line()

    def near_given(self) -> list[Trial]:
        """Return the given configuration, and the same with what implementations forget or confuse."""
        if self.given is None:
            return []
        found = []
        for config in variants_of(self.given, self.rows.head_dim):
            if pairing_of(config, self.rows.head_dim) in self.pairings:
                found += [self.trial(config, forward) for forward in (True, False)]
        best = _best(found)
        moved = [trial for trial in best[:2] for trial in self._moved(trial)] if best and best[0].error > 1e-4 else []
        return _best([*best, *moved])

    def known(self, offset: int = 0) -> list[Trial]:
        """Return the best of known bases and scales with an offset."""
        found = []
        for pairing in self.pairings:
            turns = _some(absolute(self.phasors(pairing), self.positions + offset))
            if len(turns.distance):
                lines = [replace(line, offset=offset) for _, line in best_of_grid(turns, _SCALES, _LOG_BASES, 6)]
                found += [self._trial_of(pairing, line) for line in lines]
        best = _best(found)
        return _best([*best, *self._improved(best[:3])])

    def fitted_base(self, offset: int = 0) -> list[Trial]:
        """Return the best fitted bases for known scales with an offset."""
        found = []
        for pairing in self._slow:
            phasors = self.phasors(pairing)
            turns = joined(differences(phasors, self.positions), absolute(phasors, self.positions + offset))
            if len(turns.distance):
                for scale in KNOWN_SCALES:
                    lines = [replace(line, offset=offset) for line in search_base(turns, scale)]
                    found += [self._rounded(pairing, line) for line in self._nearest(pairing, lines, 2)]
        best = _best(found)
        return _best([*best, *self._alternatives(best[:2])])

    def with_offset(self) -> list[Trial]:
        """Return conventions whose positions are moved by a constant, by differences of positions where there are."""
        found: list[Trial] = []
        for pairing in self._slow:
            phasors = self.phasors(pairing)
            turns = differences(phasors, self.positions)
            lines = self._offset_free(turns)
            for most in _OFFSETS:
                moved = [m for line in lines for m in search_offset(phasors, self.positions, line, most)]
                near = self._nearest(pairing, moved, 3)
                found += [self._trial_of(pairing, line) for line in near]
                found += [self._rounded(pairing, line) for line in self._valley(pairing, near)]
                if found and min(trial.error for trial in found) < 4 * phasors.floor + 1e-9:
                    break
        best = _best(found)
        return _best([*best, *self._alternatives(best[:2])])

    def _offset_free(self, turns: Turns) -> list[FrequencyLine]:
        """Return the few lines that explain differences of positions best; of known bases where there are none."""
        if not len(turns.distance):
            # One position: only its product with the scale shows.
            return [
                FrequencyLine(float(log), scale, sign)
                for scale in (1.0, 0.125)
                for log in _LOG_BASES
                for sign in (1, -1)
            ]
        scored = [(score_of(turns, line), line) for _, line in best_of_grid(_some(turns), _SCALES, _LOG_BASES, 6)]
        for scale in KNOWN_SCALES:
            scored += [(score_of(turns, line), line) for line in search_base(turns, scale)]
        scored.sort(key=lambda row: -row[0])
        if scored[0][0] < _EXPLAINED:
            return []
        worst = 5 * (1 - scored[0][0]) + 1e-9
        once = {(line.scale, line.sign, round(line.log_base, 5)): line for score, line in scored if 1 - score <= worst}
        return list(once.values())[:_FEW_LINES]

    def _valley(self, pairing: Pairing, lines: list[FrequencyLine]) -> list[FrequencyLine]:
        """Return the lines with the base fitted, and those of the best one's neighbouring offsets: the two trade."""
        phasors = self.phasors(pairing)

        def fit(line: FrequencyLine) -> FrequencyLine:
            return refined(absolute_moved(phasors, self.positions, line), line, "base")

        best = self._nearest(pairing, [fit(line) for line in lines], 3)
        around = [fit(replace(line, offset=line.offset + d)) for line in best[:1] for d in range(-4, 5) if d]
        return self._nearest(pairing, [*best, *around], 3)

    def fitted_line(self) -> list[Trial]:
        """Return conventions with a base and a scale that are both fitted."""
        found = []
        for pairing in self._slow:
            phasors = self.phasors(pairing)
            turns = joined(differences(phasors, self.positions), absolute(phasors, self.positions))
            if len(turns.distance):
                found += [self._rounded(pairing, line) for line in self._nearest(pairing, search_line(turns), 4)]
        return _best(found)

    def trial(self, config: RopeConfig, forward: bool, offset: int = 0) -> Trial:
        """Return the trial of a configuration, with the magnitude that was measured."""
        phasors = self.phasors(pairing_of(config, self.rows.head_dim))
        table = angle_table(config)
        where = self.rows.positions.astype(np.float64)
        axes = table.axis if where.shape[0] > 1 else np.zeros(table.pairs, dtype=np.intp)
        turned = (where[axes].T + offset) * table.omega * (1 if forward else -1)
        error = phasors.floor + phasors.excess(phasors.product, turned)
        return Trial(with_magnitude(config, self._magnitude(phasors)), forward, offset, error)

    def _magnitude(self, phasors: Phasors) -> float:
        """Return the measured magnitude: the given one if it is that, or a number with few digits."""
        measured = phasors.magnitude
        tolerance = 1e-9 + 4 * float(np.sqrt(phasors.floor / max(1, phasors.product.size)))
        if self.given is not None and abs(magnitude_of(self.given) - measured) <= tolerance:
            return magnitude_of(self.given)
        for digits in range(1, 10):
            if abs(round(measured, digits) - measured) <= tolerance:
                return round(measured, digits)
        return measured

    def _trial_of(self, pairing: Pairing, line: FrequencyLine) -> Trial:
        base = float(f"{np.exp(line.log_base):.13g}")
        config = RopeConfig(
            mode="normal" if pairing.kind == "neighbours" else "neox",
            n_dims=pairing.n_dims,
            n_offs=pairing.n_offs,
            freq_base=base,
            freq_scale=line.scale,
        )
        return self.trial(config, line.sign == 1, line.offset)

    def _excess(self, pairing: Pairing, line: FrequencyLine) -> float:
        phasors = self.phasors(pairing)
        turned = line.sign * line.omega(exponents_of(phasors)) * (self.positions[:, None] + line.offset)
        return phasors.excess(phasors.product, turned)

    def _nearest(self, pairing: Pairing, lines: Iterable[FrequencyLine], count: int) -> list[FrequencyLine]:
        return sorted(set(lines), key=lambda line: self._excess(pairing, line))[:count]

    def _rounded(self, pairing: Pairing, line: FrequencyLine) -> Trial:
        """Return the trial of a fitted line with the roundest base, and scale, that explain the tokens as well."""
        phasors = self.phasors(pairing)
        turns = absolute_moved(phasors, self.positions, line)
        if line.scale not in KNOWN_SCALES:
            for scale in (*KNOWN_SCALES, *(float(f"{line.scale:.{d}g}") for d in range(1, 10))):
                if abs(scale / line.scale - 1) < 0.1:
                    tried = refined(turns, replace(line, scale=scale), "base")
                    if self._as_good(pairing, tried, line):
                        line = tried
                        break
        base = float(np.exp(line.log_base))
        for rounder in (*KNOWN_BASES, *(float(f"{base:.{digits}g}") for digits in range(1, 12))):
            tried = replace(line, log_base=float(np.log(rounder)))
            if abs(tried.log_base - line.log_base) < 0.7 and self._as_good(pairing, tried, line):
                return self._trial_of(pairing, tried)
        return self._trial_of(pairing, line)

    def _as_good(self, pairing: Pairing, tried: FrequencyLine, line: FrequencyLine) -> bool:
        now, best = self._excess(pairing, tried), self._excess(pairing, line)
        return now - best <= _CHANCE * best / max(4, self.phasors(pairing).product.size) + 1e-18

    def _improved(self, trials: list[Trial]) -> list[Trial]:
        """Return trials with the base fitted from where they are, rounded, and their alternatives."""
        found = []
        for trial in trials:
            if trial.error > 0.05 or trial.config.mode not in ("normal", "neox"):
                continue
            pairing = pairing_of(trial.config, self.rows.head_dim)
            line = self._line_of(trial)
            turns = absolute_moved(self.phasors(pairing), self.positions, line)
            found.append(self._rounded(pairing, refined(turns, line, "base")))
        return [*found, *self._alternatives([*trials, *found])]

    def _alternatives(self, trials: list[Trial]) -> list[Trial]:
        """Return trials of the same frequencies pair by pair with other numbers of rotated elements."""
        found = []
        for trial in trials:
            if trial.error > 1e-3:
                continue
            line = self._line_of(trial)
            mine = pairing_of(trial.config, self.rows.head_dim)
            for pairing in self.pairings[:_FEW_PAIRINGS]:
                if pairing != mine and pairing.n_offs == mine.n_offs:
                    log_base = line.log_base * pairing.n_dims / mine.n_dims
                    if log_base < 25:
                        found.append(self._rounded(pairing, replace(line, log_base=log_base)))
        return found

    def _moved(self, trial: Trial) -> list[Trial]:
        """Return a configuration's trials with an offset, by its own frequencies."""
        config = trial.config
        phasors = self.phasors(pairing_of(config, self.rows.head_dim))
        table = angle_table(config)
        found = []
        offsets = np.arange(-(1 << 11), (1 << 11) + 1)
        for sign in (1, -1):
            where = self.rows.positions.astype(np.float64)
            axes = table.axis if where.shape[0] > 1 else np.zeros(table.pairs, dtype=np.intp)
            left = np.sum(phasors.product * np.exp(-1j * sign * where[axes].T * table.omega), axis=0)
            turns = Turns(np.ones(1), left[None], exponents_of(phasors))
            score = scores(turns, offsets[:, None] * table.omega)[0 if sign == 1 else 1]
            found += [self.trial(config, sign == 1, int(offsets[k])) for k in np.argsort(-score, kind="stable")[:2]]
        return found

    def _line_of(self, trial: Trial) -> FrequencyLine:
        config = trial.config
        return FrequencyLine(
            float(np.log(config.freq_base)), config.freq_scale, 1 if trial.forward else -1, trial.offset
        )


def absolute_moved(phasors: Phasors, positions: F64, line: FrequencyLine) -> Turns:
    """Return the turns of the rows at their positions; the line adds its own offset."""
    turns = Turns(positions, phasors.product, exponents_of(phasors))
    return turns if line.offset else absolute(phasors, positions)


def score_of(turns: Turns, line: FrequencyLine) -> float:
    """Return the score of one line."""
    return float(scores(turns, line.omega(turns.exponents)[None])[0 if line.sign == 1 else 1][0])


def _some(turns: Turns) -> Turns:
    """Return a few of the turns, from the shortest to the longest."""
    count = len(turns.distance)
    if count <= 8:
        return turns
    pick = np.unique(np.linspace(0, count - 1, 8).astype(int))
    return Turns(turns.distance[pick], turns.product[pick], turns.exponents)


def _best(trials: list[Trial]) -> list[Trial]:
    """Return the trials with the least error; of those that differ little in the base the best, plainest and known."""
    groups: dict[object, list[Trial]] = {}
    for trial in sorted(trials, key=lambda trial: trial.error):
        config = trial.config
        key = (replace(config, freq_base=1.0, ext_factor=0.0, attn_factor=1.0), config.ext_factor, trial.forward,
               trial.offset, round(float(np.log(config.freq_base)) * 20))  # fmt: skip
        groups.setdefault(key, []).append(trial)
    best = []
    for group in groups.values():
        near = [trial for trial in group if trial.error <= 1.1 * group[0].error + 1e-15]
        plain = min(near, key=lambda trial: len(f"{trial.config.freq_base:.13g}".rstrip("0")))
        # Angles that are not exact move the best base away from a known one.
        known = [trial for trial in group if trial.config.freq_base in KNOWN_BASES]
        best += list(dict.fromkeys([group[0], plain, *known[:1]]))
    return sorted(best, key=lambda trial: trial.error)[:16]
