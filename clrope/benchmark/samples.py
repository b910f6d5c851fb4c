"""Times of repeated calls and what is said of them: minimum, 20th percentile, median, 80th percentile, number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Stats:
    """Nanoseconds of one call."""

    min: float
    p20: float
    median: float
    p80: float
    n: int

    def to_dict(self) -> dict[str, float]:
        """Return it JSON-ready, whole nanoseconds."""
        return {"min": round(self.min), "p20": round(self.p20), "median": round(self.median), "p80": round(self.p80),
                "n": self.n}  # fmt: skip


def stats(nanoseconds: Sequence[float]) -> Stats | None:
    """Return the statistics of at least one sample, None of none. Percentiles between samples are interpolated."""
    if not len(nanoseconds):
        return None
    values = np.asarray(nanoseconds, dtype=np.float64)
    low, middle, high = (float(v) for v in np.percentile(values, (20, 50, 80)))
    return Stats(float(values.min()), low, middle, high, len(values))
