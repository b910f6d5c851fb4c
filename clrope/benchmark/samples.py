"""Times of repeated calls and what is said of them: minimum, 20th percentile, median, 80th percentile, number, and the
median of each turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


@dataclass(frozen=True)
class Stats:
    """Nanoseconds of one call. turns: the median of each turn, in the order of the rounds."""

    min: float
    p20: float
    median: float
    p80: float
    n: int
    turns: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it JSON-ready, whole nanoseconds."""
        out: dict[str, Any] = {"min": round(self.min), "p20": round(self.p20), "median": round(self.median),
                               "p80": round(self.p80), "n": self.n}  # fmt: skip
        return out | ({"turns": [round(turn) for turn in self.turns]} if self.turns else {})


def stats(nanoseconds: Sequence[float], ends: Sequence[int] = ()) -> Stats | None:
    """Return the statistics of at least one sample, None of none. Percentiles between samples are interpolated.

    ends: how many samples there were after each turn; if a turn has none, no turns are told.
    """
    if not len(nanoseconds):
        return None
    values = np.asarray(nanoseconds, dtype=np.float64)
    low, middle, high = (float(v) for v in np.percentile(values, (20, 50, 80)))
    spans = list(zip((0, *ends), ends, strict=False))
    turns = tuple(float(np.median(values[a:b])) for a, b in spans) if all(a < b for a, b in spans) else ()
    return Stats(float(values.min()), low, middle, high, len(values), turns)


def middle(measured: Sequence[T], figure: Callable[[T], float]) -> T:
    """Return of several measurements of the same, one at least, that whose figure is the median; of two the lower."""
    return sorted(measured, key=figure)[(len(measured) - 1) // 2]


def in_round(number: int, turns: int, count: int) -> bool:
    """Whether who has so many turns in `count` rounds, evenly spread, has one in a round, counted from 0."""
    turns = min(count, turns)
    return number * turns // count != (number - 1) * turns // count


def by_round(turns: Sequence[float], count: int) -> dict[int, float]:
    """Return the turns of somebody by the numbers of the rounds, of `count`, that they were in."""
    return dict(zip((k for k in range(count) if in_round(k, len(turns), count)), turns, strict=False))


def paired(over: Mapping[int, float], under: Mapping[int, float]) -> list[float]:
    """Return the ratio in each round that both had a turn in.

    A machine that others share has times in which everything is half as fast, seconds to minutes long: who is compared
    within a round is compared within one of them.
    """
    return [over[k] / under[k] for k in over if k in under]


def error_of_median(values: Sequence[float], draws: int = 400) -> float | None:
    """Return the standard error of the median of ratios of turns, by bootstrap; None of fewer than 5.

    Calls of one turn are alike (the same clock rate, the same processors for the driver's threads), so it is turns, not
    calls, that count as independent.
    """
    if len(values) < 5:
        return None
    known = np.asarray(values, dtype=np.float64)
    drawn = known[np.random.default_rng(0).integers(0, len(known), (draws, len(known)))]
    return float(np.std(np.median(drawn, axis=1)))
