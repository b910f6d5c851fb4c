"""Statistics of repeated calls: minimum, percentiles, median, number, and the median of each turn."""

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
        """Return a JSON-ready dictionary, in whole nanoseconds."""
        out: dict[str, Any] = {"min": round(self.min), "p20": round(self.p20), "median": round(self.median),
                               "p80": round(self.p80), "n": self.n}  # fmt: skip
        return out | ({"turns": [round(turn) for turn in self.turns]} if self.turns else {})


def stats(nanoseconds: Sequence[float], ends: Sequence[int] = ()) -> Stats | None:
    """Return the statistics of at least one sample, None of none. Percentiles between samples are interpolated.

    ends: the number of samples after each turn. If a turn has no sample, the result has no turns.
    """
    if not len(nanoseconds):
        return None
    values = np.asarray(nanoseconds, dtype=np.float64)
    low, middle, high = (float(v) for v in np.percentile(values, (20, 50, 80)))
    spans = list(zip((0, *ends), ends, strict=False))
    turns = tuple(float(np.median(values[a:b])) for a, b in spans) if all(a < b for a, b in spans) else ()
    return Stats(float(values.min()), low, middle, high, len(values), turns)


def middle(measured: Sequence[T], figure: Callable[[T], float]) -> T:
    """Return the measurement with the median figure, of an even number the lower of the two in the middle."""
    return sorted(measured, key=figure)[(len(measured) - 1) // 2]


def in_round(number: int, turns: int, count: int) -> bool:
    """Whether round `number`, counted from 0, is one of `turns` rounds evenly spread over `count`."""
    turns = min(count, turns)
    return number * turns // count != (number - 1) * turns // count


def by_round(turns: Sequence[float], count: int) -> dict[int, float]:
    """Return an entry's turns by the numbers of their rounds (`in_round`), of `count`; turns beyond it have none."""
    few = min(count, len(turns))
    return {-(-k * count // few): turn for k, turn in enumerate(turns[:few])}  # rounded up


def paired(over: Mapping[int, float], under: Mapping[int, float]) -> list[float]:
    """Return the ratio in each round in which both have a turn.

    A shared machine is slower for seconds or minutes at a time. Both turns of one round meet the same speed.
    """
    return [over[k] / under[k] for k in over if k in under]
