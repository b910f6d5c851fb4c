"""Efficiencies, and the performance portability of Pennycook, Sewall and Lee (2016).

Of an application a that solves problem p on a set H of platforms: the harmonic mean of its efficiencies e_i(a, p), and
0 if it does not run (right) on one of them. Efficiency is *architectural*, the share of the platform's best copy, or
*application* efficiency, the share of the fastest application's speed on that platform.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from ..benchmark.results import WorkloadRecord, records
from ..benchmark.samples import middle
from .platforms import PlatformRecord, Platforms
from .report_files import ReportInput

Basis = Literal["architectural", "application"]
#: The name of this package among applications.
OWN = "clrope"


@dataclass(frozen=True)
class Measurement:
    """One application on one platform: seconds of a call, None if it was wrong or did not run (`reason` says why).

    ceiling: seconds that the platform's best copy takes for the same bytes, None if it is not known. origin: file,
    workload and entry.
    """

    problem: str
    platform: str
    application: str
    seconds: float | None
    ceiling: float | None
    moved: int
    reason: str = ""
    origin: str = ""


def measurements(found: ReportInput, platforms: Platforms) -> list[Measurement]:
    """Return every application on every platform that has a bandwidth workload; of repeats the middle one.

    A peer runs on the processor itself: it counts on each CPU device of its machine, and is missing on others. Nothing
    of the package is right on a platform with a wrong result.
    """
    by_key: dict[tuple[str, str, str], list[Measurement]] = {}
    for result, origin in zip(found.benches, found.origins, strict=True):
        for record in records([result]):
            if record.calls or record.workload["latency"]:
                continue
            for label in record.result["devices"]:
                for made in _on_device(record, label, platforms.of(result, label), origin):
                    by_key.setdefault((made.problem, made.platform, made.application), []).append(made)
    return [_middle(some) for some in by_key.values()]


def _on_device(record: WorkloadRecord, label: str, platform: PlatformRecord, file: str) -> Iterable[Measurement]:
    top = record.ceiling(label)
    moved = int(record.workload["bytes_moved"])
    rate = moved / top["bytes"] * record.time(top) / 1e9 if top else None
    for entry in record.workload["entries"]:
        own = entry.get("device") == label and (entry["kind"] == "kernel" or entry["name"] == "arrays")
        peer = entry["kind"] == "peer" and platform.kind == "cpu"
        if not own and not peer:
            continue
        name = OWN if entry["kind"] == "clrope" else entry["name"]
        seconds, ceiling, reason = None, rate, f"{entry['status']}: {entry.get('reason', '')}"
        if entry["status"] == "ok":
            seconds, reason = record.time(entry) / 1e9, ""
            # Of turns in the same rounds, as every share of a ceiling.
            share = record.speed(entry, top)
            ceiling = share * seconds if share else ceiling
        elif entry["status"] == "refused" and not own:
            continue
        if name == OWN and not platform.right:
            seconds, reason = None, reason or f"wrong results on this platform: {': '.join(platform.wrong[0])}"
        origin = f"{file} › {record.name} › {entry['kind']} {entry['name']}"
        yield Measurement(record.name, platform.name, name, seconds, ceiling, moved, reason, origin)


def _middle(some: Sequence[Measurement]) -> Measurement:
    """Return the measurement with the median share of the ceiling; one that was wrong, if there is one."""
    wrong = [m for m in some if m.seconds is None]
    return wrong[0] if wrong else middle(some, lambda m: (m.ceiling or 1.0) / (m.seconds or 1.0))


def _with(basis: Basis, found: Sequence[Measurement]) -> Sequence[Measurement]:
    """Return the measurements that have an efficiency: a time without a ceiling has no architectural one."""
    return [m for m in found if m.seconds is None or m.ceiling or basis == "application"]


def efficiencies(found: Sequence[Measurement], basis: Basis) -> dict[tuple[str, str, str], float]:
    """Return the efficiency in [0, 1] of each (problem, platform, application); 0 for what was wrong."""
    best: dict[tuple[str, str], float] = {}
    found = _with(basis, found)
    for m in found:
        if m.seconds is not None:
            key = m.problem, m.platform
            best[key] = min(best.get(key, m.seconds), m.seconds)
    out = {}
    for m in found:
        against = m.ceiling if basis == "architectural" else best.get((m.problem, m.platform))
        value = 0.0 if m.seconds is None or against is None else min(1.0, against / m.seconds)
        out[m.problem, m.platform, m.application] = value
    return out


def portability(shares: Sequence[float | None]) -> float:
    """Return the harmonic mean of efficiencies, one for each platform; 0 if one is 0 or missing (None)."""
    if not shares or any(not share for share in shares):
        return 0.0
    return len(shares) / sum(1 / share for share in shares if share)


def portability_of(found: Sequence[Measurement], application: str, basis: Basis) -> dict[str, float]:
    """Return the performance portability of an application for each problem, over all platforms of the problem."""
    shares = efficiencies(found, basis)
    return {
        problem: portability([shares.get((problem, platform, application)) for platform in of_problem])
        for problem, of_problem in platforms_of(_with(basis, found)).items()
    }


def platforms_of(found: Sequence[Measurement]) -> dict[str, list[str]]:
    """Return the platforms of each problem, in the order in which they come."""
    out: dict[str, dict[str, None]] = {}
    for m in found:
        out.setdefault(m.problem, {})[m.platform] = None
    return {problem: list(platforms) for problem, platforms in out.items()}


def in_common(found: Sequence[Measurement]) -> list[Measurement]:
    """Return the measurements of the problems that every platform has; of all problems, if there is none."""
    platforms = platforms_of(found)
    every = {m.platform for m in found}
    common = {problem for problem, some in platforms.items() if set(some) == every}
    return [m for m in found if m.problem in common] if common else list(found)


def cascade(found: Sequence[Measurement], application: str, basis: Basis) -> list[tuple[str, float, float]]:
    """Return (platform, efficiency, portability of this and all better platforms), the best platform first.

    The efficiency of a platform is the median over its problems; 0 where a problem is wrong or missing there.
    """
    shares = efficiencies(found, basis)
    by_platform: dict[str, list[float]] = {}
    for problem, of_problem in platforms_of(_with(basis, found)).items():
        for platform in of_problem:
            by_platform.setdefault(platform, []).append(shares.get((problem, platform, application), 0.0))
    typical = {p: 0.0 if min(some) == 0 else float(median(some)) for p, some in by_platform.items()}
    ranked = sorted(typical, key=lambda p: -typical[p])
    return [(p, typical[p], portability([typical[q] for q in ranked[: n + 1]])) for n, p in enumerate(ranked)]
