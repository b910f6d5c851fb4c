"""Figures of a `WorkloadRecord` that only this project's acceptance needs: bounds, and errors of medians."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clrope.benchmark.results import WorkloadRecord
from clrope.benchmark.samples import paired


def error_of_median(values: Sequence[float], draws: int = 400) -> float | None:
    """Return the standard error of the median of ratios of turns, by bootstrap; None of fewer than 5.

    Turns count as independent samples. Calls of one turn do not: they share a clock rate and processors.
    """
    if len(values) < 5:
        return None
    known = np.asarray(values, dtype=np.float64)
    drawn = known[np.random.default_rng(0).integers(0, len(known), (draws, len(known)))]
    return float(np.std(np.median(drawn, axis=1)))


def error_of_ceiling(record: WorkloadRecord, device: str, name: str | None = None) -> float | None:
    """Return the standard error of `of_ceiling`, by medians; None without enough turns."""
    top, own = record.ceiling(device, name=name), record.arrays(device)
    if top is None or own is None:
        return None
    error = error_of_median(paired(record.by_round(top), record.by_round(own)))
    return None if error is None else error * float(own["bytes"]) / float(top["bytes"])


def copy_time(record: WorkloadRecord, device: str) -> float | None:
    """Return the time of the ceiling."""
    top = record.ceiling(device)
    return None if top is None else record.time(top)


def bound_against(record: WorkloadRecord, peer: str, device: str) -> float | None:
    """Return how many times faster than a peer a copy of the same number of bytes is."""
    found, top = record.first("peer", peer), record.ceiling(device)
    ratio = record.ratio(found, top)
    return None if ratio is None or top is None else ratio * float(top["bytes"]) / float(record.workload["bytes_moved"])


def bound_of_launches(record: WorkloadRecord, device: str) -> float | None:
    """Return the time of the fastest copy of the same number of bytes, in raw launches."""
    return record.ratio(record.ceiling(device), record.first("launch", "raw launch", device))


def windows_of_ceiling(record: WorkloadRecord, device: str) -> float | None:
    """Return the bytes a second of scaling the rotated part of each row as a share of scaling contiguous bytes."""
    return record.speed(record.ceiling(device, name="windows"), record.ceiling(device))


def of_arrays(record: WorkloadRecord, device: str, name: str, statistic: str = "median") -> float | None:
    """Return the time of a call on NumPy arrays as a multiple of the call on OpenCL arrays."""
    return record.ratio(record.first("clrope", name, device), record.arrays(device), statistic)
