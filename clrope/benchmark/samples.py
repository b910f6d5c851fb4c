"""Times of repeated calls and what is said of them: minimum, 20th percentile, median, 80th percentile, number, and the
median of each turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

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


def error_of_ratio(over: Sequence[float], under: Sequence[float], draws: int = 400) -> float | None:
    """Return the standard error of the ratio of two medians, by bootstrap over turns; None of fewer than 5 turns each.

    Calls of one turn are alike (the same clock rate, the same processors for the driver's threads), so it is turns, not
    calls, that count as independent.
    """
    if min(len(over), len(under)) < 5:
        return None
    rng = np.random.default_rng(0)

    def medians(turns: Sequence[float]) -> npt.NDArray[np.float64]:
        values = np.asarray(turns, dtype=np.float64)
        return np.median(values[rng.integers(0, len(values), (draws, len(values)))], axis=1)

    return float(np.std(medians(over) / medians(under)))
