"""What became faster or slower between two results, beyond the noise of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..benchmark.results import WorkloadRecord, records
from ..benchmark.samples import middle, paired
from ..errors import ConfigError
from .platforms import short_cpu

#: A change smaller than this many standard errors is noise.
SURE = 2.0
#: The least that is called a change: two runs of one program differ by as much.
LEAST = 0.02
#: The standard error of a median over the mean absolute deviation from it, times the root of the number.
_OF_DEVIATION = 1.2533 * 1.4826

Key = tuple[str, str, str]


@dataclass(frozen=True)
class RunChange:
    """The speed of one entry in the new result, in shares of the old one's. error: its relative standard error.

    basis: what the speeds were compared by: shares of the ceiling, raw launches, copies, or the times themselves.
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


@dataclass(frozen=True)
class RunComparison:
    """Two results compared. lost: right in the old one, and wrong or failed in the new one, each with the reason.

    absent: right in the old one, not measured in the new one.
    """

    changes: tuple[RunChange, ...]
    lost: tuple[str, ...]
    absent: tuple[str, ...]

    def below(self, share: float) -> list[RunChange]:
        """Return what has less than this share of its old speed, beyond the noise."""
        return [c for c in self.changes if c.verdict == "slower" and c.speed < share]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"changes": [c.to_dict() for c in self.changes], "lost": list(self.lost), "absent": list(self.absent)}


@dataclass(frozen=True)
class _Speed:
    value: float
    error: float
    basis: str


def compare_runs(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> RunComparison:
    """Compare this package and kernel files, in workloads and devices that both results have.

    A machine may be slower on another day. So speeds are compared as shares of the ceiling of their own run where there
    is one, where latency counts in raw launches, one-shot calls in copies, else by their times. Raises `ConfigError` if
    a result holds the same workload of several machines.
    """
    earlier, now = _speeds(old, "OLD"), _speeds(new, "NEW")
    reasons = _reasons(new)
    changes, lost, absent = [], [], []
    for key, before in earlier.items():
        after = now.get(key)
        if key in reasons:
            lost.append(f"{' '.join(key)}: {reasons[key]}")
        elif after is None or after.basis != before.basis:
            absent.append(" ".join(key))
        else:
            error = math.hypot(before.error, after.error)
            changes.append(RunChange(*key, after.value / before.value, error, after.basis))
    return RunComparison(tuple(changes), tuple(lost), tuple(absent))


def _speeds(results: Sequence[dict[str, Any]], name: str) -> dict[Key, _Speed]:
    """Return the speed of each entry; of repeats the middle one."""
    found: dict[Key, list[_Speed]] = {}
    machines: dict[Key, str] = {}
    for record in records(results):
        for entry in record.workload["entries"]:
            if entry["status"] == "ok" and entry["kind"] in ("clrope", "kernel"):
                key = _key(record, entry)
                machine = machines.setdefault(key, record.result["environment"]["cpu"])
                if machine != record.result["environment"]["cpu"]:
                    both = " and ".join(map(short_cpu, (machine, record.result["environment"]["cpu"])))
                    raise ConfigError(f"{name}: holds {key[1]} of several machines, {both}; compare one machine")
                found.setdefault(key, []).append(_speed(record, entry))
    return {key: _of_repeats(some) for key, some in found.items()}


def _of_repeats(some: Sequence[_Speed]) -> _Speed:
    """Return the middle one. Repeats have buffers of their own: they may differ by more than the noise of each."""
    chosen = middle(some, lambda speed: speed.value)
    if len(some) < 3:
        return chosen
    spread = median(abs(speed.value - chosen.value) for speed in some) / chosen.value
    return _Speed(chosen.value, max(chosen.error, _OF_DEVIATION * spread / math.sqrt(len(some))), chosen.basis)


def _reasons(results: Sequence[dict[str, Any]]) -> dict[Key, str]:
    """Return why entries are wrong, or failed."""
    return {
        _key(record, entry): f"{entry['status']}: {entry.get('reason', '')}"
        for record in records(results)
        for entry in record.workload["entries"]
        if entry["status"] != "ok" and entry["kind"] in ("clrope", "kernel")
    }


def _key(record: WorkloadRecord, entry: dict[str, Any]) -> Key:
    worker = record.result.get("worker")
    return record.name, f"{entry['device']} on {worker}" if worker else entry["device"], entry["name"]


def _speed(record: WorkloadRecord, entry: dict[str, Any]) -> _Speed:
    device = entry["device"]
    launch = record.first("launch", "raw launch", device) if record.workload["latency"] else None
    copy = record.first("host", "memcpy") if record.one_shot else None
    against = launch or copy or (None if record.calls or record.workload["latency"] else record.ceiling(device))
    ratio = record.ratio(against, entry)
    if against is None or not ratio:
        return _Speed(1e9 / record.time(entry), _error(_turns(record, entry), entry), "time")
    if not launch:
        ratio *= entry["bytes"] / against["bytes"]
    # A slow moment of the machine is in both turns of a round, so the ratios of rounds are what varies.
    in_rounds = paired(record.by_round(against), record.by_round(entry))
    if len(in_rounds) >= 3:
        error = _error(in_rounds, entry)
    else:
        error = math.hypot(_error(_turns(record, entry), entry), _error(_turns(record, against), against))
    return _Speed(ratio, error, "raw launches" if launch else "copies" if copy else "the ceiling")


def _turns(record: WorkloadRecord, entry: dict[str, Any]) -> list[float]:
    return list(record.by_round(entry).values())


def _error(values: Sequence[float], entry: dict[str, Any]) -> float:
    """Return the relative standard error of the median of values of turns; without turns from the percentiles."""
    if len(values) >= 3:
        typical = median(values)
        return float(_OF_DEVIATION * median(abs(v - typical) for v in values) / typical / math.sqrt(len(values)))
    wall = entry["wall"]
    # Of a normal distribution the percentiles 20 and 80 are 1.683 deviations apart.
    return float(1.2533 * (wall["p80"] - wall["p20"]) / 1.683 / wall["median"] / math.sqrt(wall["n"]))
