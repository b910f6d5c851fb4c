"""What a report says of each workload on each platform: of repeats the middle one, with where it comes from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..benchmark.results import WorkloadRecord, records
from ..benchmark.samples import middle
from .platforms import PlatformRecord, Platforms
from .report_files import ReportInput


@dataclass(frozen=True)
class RecordOrigin:
    """Where a record is: file, the run's start, the workload, and which of the run's records of it."""

    file: str
    started: str
    workload: str
    number: int

    def of(self, *entries: dict[str, Any] | None) -> str:
        """Return the place of entries in words."""
        names = ", ".join(dict.fromkeys(entry_name(e) for e in entries if e is not None))
        again = f" (record {self.number + 1})" if self.number else ""
        return f"{self.file} › run {self.started} › {self.workload}{again} › {names}"


@dataclass(frozen=True)
class PlatformWorkload:
    """A workload on a platform. repeats: the number of measurements, of which `record` is the middle one."""

    platform: PlatformRecord
    record: WorkloadRecord
    origin: RecordOrigin
    repeats: int = 1

    @property
    def label(self) -> str:
        """The device's label in its file."""
        return self.platform.key.label

    @property
    def own(self) -> dict[str, Any] | None:
        """The package's rotation of OpenCL arrays, if it was timed."""
        return self.record.arrays(self.label)

    @property
    def ceiling(self) -> dict[str, Any] | None:
        """The platform's best copy."""
        return self.record.ceiling(self.label)


def entry_name(entry: dict[str, Any]) -> str:
    """Return kind, name and variant."""
    words = (entry["kind"], entry["name"], f"({entry['variant']})" if entry.get("variant") else "")
    return " ".join(word for word in words if word)


def every_record(found: ReportInput, platforms: Platforms) -> Iterable[PlatformWorkload]:
    """Yield each workload of each device of each result."""
    for result, file in zip(found.benches, found.origins, strict=True):
        numbers: dict[str, int] = {}
        for record in records([result]):
            number = numbers[record.name] = numbers.get(record.name, -1) + 1
            origin = RecordOrigin(file, str(result["started"]), record.name, number)
            for label in result["devices"]:
                yield PlatformWorkload(platforms.of(result, label), record, origin)


def timed_workloads(found: ReportInput, platforms: Platforms) -> list[PlatformWorkload]:
    """Return the workloads with a timed rotation, on platforms without a wrong result; none that costs calls."""
    repeats: dict[tuple[str, str], list[PlatformWorkload]] = {}
    for one in every_record(found, platforms):
        if not one.record.calls and one.platform.right and one.own is not None:
            repeats.setdefault((one.record.name, one.platform.name), []).append(one)
    chosen = []
    for some in repeats.values():
        one = middle(some, lambda w: w.record.of_ceiling(w.label) or 0.0)
        chosen.append(PlatformWorkload(one.platform, one.record, one.origin, len(some)))
    order = {name: number for number, name in enumerate(dict.fromkeys(p.name for p in platforms.records.values()))}
    return sorted(chosen, key=lambda w: order[w.platform.name])


def rate_of(entry: dict[str, Any], record: WorkloadRecord) -> float:
    """Return GB/s of an entry."""
    return float(entry["bytes"]) / record.time(entry)
