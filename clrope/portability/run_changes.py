"""What became faster or slower between two results, beyond the noise of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..benchmark.results import WorkloadRecord, records

#: A change smaller than this many standard errors is noise.
SURE = 2.0
#: The least that is called a change: two runs of one program differ by as much.
LEAST = 0.02


@dataclass(frozen=True)
class RunChange:
    """The speed of one entry in the new result, in shares of the old one's. error: its relative standard error.

    basis: what the speeds were compared by: shares of the ceiling, raw launches, or the times themselves.
    """

    workload: str
    device: str
    kernel: str
    speed: float
    error: float
    basis: str

    @property
    def verdict(self) -> str:
        """'faster', 'slower', or 'same' within the noise."""
        if abs(self.speed - 1) < max(LEAST, SURE * self.error):
            return "same"
        return "faster" if self.speed > 1 else "slower"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"workload": self.workload, "device": self.device, "kernel": self.kernel, "speed": self.speed,
                "error": self.error, "basis": self.basis, "verdict": self.verdict}  # fmt: skip


def run_changes(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[RunChange]:
    """Return the changes of this package and of kernel files, in workloads and devices that both results have.

    A machine may be slower on another day. So speeds are compared as shares of the ceiling of their own run where there
    is one, where latency counts in raw launches, else by their times.
    """
    earlier = _entries(old)
    out = []
    for key, (record, entry) in _entries(new).items():
        if key in earlier:
            before = _figure(*earlier[key])
            after = _figure(record, entry)
            if before[2] == after[2]:
                error = math.hypot(before[1], after[1])
                out.append(RunChange(*key, after[0] / before[0], error, after[2]))
    return out


def missing(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[str]:
    """Return what was right in the old result and has no figure in the new one."""
    now = _entries(new)
    return [" ".join(key) for key in _entries(old) if key not in now]


def _entries(results: Sequence[dict[str, Any]]) -> dict[tuple[str, str, str], tuple[WorkloadRecord, dict[str, Any]]]:
    found = {}
    for record in records(results):
        for entry in record.workload["entries"]:
            if entry["status"] == "ok" and entry["kind"] in ("clrope", "kernel"):
                found[record.name, entry["device"], entry["name"]] = (record, entry)
    return found


def _figure(record: WorkloadRecord, entry: dict[str, Any]) -> tuple[float, float, str]:
    """Return a speed, its relative standard error, and what it is a share of."""
    device = entry["device"]
    launch = record.first("launch", "raw launch", device) if record.workload["latency"] else None
    against = launch or (None if record.calls or record.workload["latency"] else record.ceiling(device))
    if against is None:
        return 1e9 / record.time(entry), _error(record, entry), "time"
    error = math.hypot(_error(record, entry), _error(record, against))
    ratio = record.ratio(against, entry) if launch else record.speed(entry, against)
    return float(ratio or 0.0) or 1e-9, error, "raw launches" if launch else "the ceiling"


def _error(record: WorkloadRecord, entry: dict[str, Any]) -> float:
    """Return the relative standard error of an entry's median: from its turns, or else from its percentiles."""
    turns = list(record.by_round(entry).values())
    if len(turns) >= 3:
        typical = median(turns)
        spread = 1.4826 * median(abs(turn - typical) for turn in turns)  # of a normal distribution: its deviation
        return float(1.2533 * spread / typical / math.sqrt(len(turns)))
    wall = entry["wall"]
    deviation = (wall["p80"] - wall["p20"]) / 1.683
    return float(1.2533 * deviation / wall["median"] / math.sqrt(wall["n"]))
