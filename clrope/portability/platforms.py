"""The platforms of a report: devices of machines, with what is known of the correctness of their results."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .report_files import ReportInput

#: Of names of processors: what says nothing about them.
_NOISE = re.compile(r"\((R|TM|r|tm)\)|\b(GenuineIntel|AuthenticAMD|Processor|CPU)\b")


class PlatformKey(NamedTuple):
    """What tells platforms apart: the device with its driver, the machine's processor, the worker of a fleet."""

    label: str
    device: str
    cpu: str
    worker: str


@dataclass
class PlatformRecord:
    """A platform and what its results were.

    wrong, failed: why results are wrong, or could not be made: (file, what and why). timed: the number of right
    entries of the package. passed, run: the number of cases of `clrope verify`. files: what it has results in.
    """

    key: PlatformKey
    kind: str
    driver: str
    device: str
    name: str = ""
    wrong: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    timed: int = 0
    passed: int = 0
    run: int = 0
    files: dict[str, None] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Whether no result is wrong."""
        return not self.wrong


@dataclass(frozen=True)
class Platforms:
    """All platforms by their keys, in the order of the files."""

    records: Mapping[PlatformKey, PlatformRecord]

    def of(self, result: dict[str, Any], label: str) -> PlatformRecord:
        """Return the platform of a device of a benchmark."""
        return self.records[platform_key(result, label)]

    @property
    def right(self) -> list[PlatformRecord]:
        """Those without a wrong result."""
        return [p for p in self.records.values() if p.right]

    @property
    def wrong(self) -> list[PlatformRecord]:
        """Those with a wrong result."""
        return [p for p in self.records.values() if not p.right]


def short_cpu(text: str) -> str:
    """Return the name of a processor without its vendor's marks."""
    return " ".join(dict.fromkeys(_NOISE.sub(" ", text).split())) or text


def platform_key(result: dict[str, Any], label: str) -> PlatformKey:
    """Return the platform of a device of a benchmark."""
    device = str(result["devices"][label]["key"])
    return PlatformKey(label, device, str(result["environment"]["cpu"]), str(result.get("worker", "")))


def find_platforms(found: ReportInput) -> Platforms:
    """Return the platforms of benchmarks and verifications, with what went wrong on each."""
    made: dict[PlatformKey, PlatformRecord] = {}
    for result in found.benches:
        for label, device in result["devices"].items():
            key = platform_key(result, label)
            if key not in made:
                made[key] = PlatformRecord(key, device["kind"], device["driver_version"], device["name"])
    verified = [_verified(report, made) for report in found.verifications]
    _give_names(list(made.values()))
    for result, origin in zip(found.benches, found.origins, strict=True):
        for label in result["devices"]:
            _add_entries(made[platform_key(result, label)], result, label, origin)
    for report, origin, targets in zip(found.verifications, found.verify_origins, verified, strict=True):
        _add_cases(report, origin, targets)
    for fleet, origin in zip(found.fleets, found.fleet_origins, strict=True):
        for worker in fleet["workers"]:
            if worker["status"] == "wrong":
                for platform in made.values():
                    if platform.key.worker == worker["worker"] and not platform.wrong:
                        platform.wrong.append((origin, f"worker {worker['worker']}: {worker.get('reason') or 'wrong'}"))
    return Platforms(made)


def _verified(report: dict[str, Any], made: dict[PlatformKey, PlatformRecord]) -> dict[str, list[PlatformRecord]]:
    """Return the platforms of each device of a verification: those with its key, else a new one."""
    worker = str(report.get("worker", ""))
    out: dict[str, list[PlatformRecord]] = {}
    for target in report["devices"]:
        device = target.get("device")
        if device is None:
            continue
        name, known = target["name"], str(device.get("key", ""))
        same = [p for key, p in made.items() if (key.device, key.worker) == (known, worker)]
        if not same:
            key = PlatformKey(name, known, "", worker)
            driver, kind = str(device.get("driver_version", "")), str(device.get("kind", ""))
            same = [made.setdefault(key, PlatformRecord(key, kind, driver, str(device.get("name", ""))))]
        out[name] = same
    return out


def _give_names(platforms: Sequence[PlatformRecord]) -> None:
    """Name each by its label, and by as much more as is needed to tell it from the others."""
    machines = len({p.key.cpu for p in platforms if p.key.cpu}) > 1
    for p in platforms:
        where = p.key.worker or (short_cpu(p.key.cpu) if machines else "")
        p.name = f"{p.key.label} on {where}" if where else p.key.label
    more: tuple[Callable[[PlatformRecord], str], ...] = (
        lambda p: p.driver, lambda p: p.device, lambda p: p.key.cpu, lambda p: p.key.device,
    )  # fmt: skip
    for words in more:
        often = Counter(p.name for p in platforms)
        for p in platforms:
            if often[p.name] > 1 and words(p):
                p.name += f", {words(p)}"


def _add_entries(platform: PlatformRecord, result: dict[str, Any], label: str, origin: str) -> None:
    platform.files[origin] = None
    for workload in result["workloads"]:
        for entry in workload["entries"]:
            if entry["kind"] == "clrope" and entry.get("device") == label:
                if entry["status"] == "ok":
                    platform.timed += 1
                elif entry["status"] in ("wrong", "error"):
                    lines = platform.wrong if entry["status"] == "wrong" else platform.failed
                    lines.append((origin, f"{workload['name']}: {entry['name']}: {entry.get('reason', '')}"))


def _add_cases(report: dict[str, Any], origin: str, targets: Mapping[str, Sequence[PlatformRecord]]) -> None:
    for case in report["results"]:
        for platform in targets.get(case["device"], ()):
            platform.files[origin] = None
            platform.run += case["status"] != "skip"
            platform.passed += case["status"] == "ok"
            if case["status"] == "fail":
                platform.wrong.append((origin, f"{case['suite']}: {case['case']}: {case.get('detail') or 'wrong'}"))


@dataclass(frozen=True)
class BitsFound:
    """What comparisons of bits found. compared: cases; different: a line for each that differed; names: of whom.

    emulated: whether NumPy's emulation of the kernels was compared, too.
    """

    compared: int
    different: tuple[str, ...]
    names: tuple[str, ...]
    emulated: bool


def find_bits(found: ReportInput) -> BitsFound | None:
    """Return the comparisons of bits of all files and between them; None if there is none.

    Two verifications with the same seed have the same inputs: their digests are compared, too.
    """
    compared, different, names = 0, [], []
    digests: dict[tuple[int, str, str], dict[str, str]] = {}
    for report, origin in zip(found.verifications, found.verify_origins, strict=True):
        compared += report["bits"]["compared"]
        different += [f"{origin}: {line}" for line in report["bits"]["differing"]]
        where = str(report.get("worker") or origin)
        if report["bits"]["compared"]:
            names += [t["name"] for t in report["devices"] if t.get("device") is not None]
        for case in report["results"]:
            if case.get("digest"):
                digests.setdefault((report["seed"], case["suite"], case["case"]), {})[where] = case["digest"]
    for (_, suite, case), by_file in digests.items():
        if len(by_file) > 1:
            compared += 1
            if len(set(by_file.values())) > 1:
                different.append(f"{suite}: {case}: " + ", ".join(f"{w} {d}" for w, d in by_file.items()))
    for fleet, origin in zip(found.fleets, found.fleet_origins, strict=True):
        if bits := fleet.get("bits"):
            compared += bits["compared"]
            lines = [f"{origin}: {line}" for line in bits.get("different", ())]
            different += lines or ([] if bits["identical"] else [f"{origin}: the workers' bits differ"])
            names += [w["worker"] for w in fleet["workers"] if w["status"] in ("ok", "wrong")]
    emulated = any(report["bits"]["compared"] for report in found.verifications)
    return BitsFound(compared, tuple(different), tuple(dict.fromkeys(names)), emulated) if compared else None
