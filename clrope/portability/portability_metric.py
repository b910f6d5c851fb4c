"""Efficiencies, and the performance portability of Pennycook, Sewall and Lee (2016).

Of an application a that solves problem p on a set H of platforms: the harmonic mean of its efficiencies e_i(a, p), and
0 if it does not run (right) on one of them. Efficiency is *architectural*, the share of the platform's best copy, or
*application* efficiency, the share of the fastest application's speed on that platform.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from ..benchmark.results import WorkloadRecord, records

Basis = Literal["architectural", "application"]
#: The name of this package among applications.
OWN = "clrope"


@dataclass(frozen=True)
class Measurement:
    """One application on one platform: seconds of a call, None if it was wrong or did not run (`problem` says why).

    ceiling: seconds that the platform's best copy takes for the same bytes. origin: workload and entry in the file.
    """

    problem: str
    platform: str
    application: str
    seconds: float | None
    ceiling: float | None
    moved: int
    reason: str = ""
    origin: str = ""


def platform_name(result: dict[str, Any], label: str, several: bool) -> str:
    """Return a device's label; with several machines, its machine's processor, too."""
    return f"{label} on {result['environment']['cpu']}" if several else label


def measurements(results: Sequence[dict[str, Any]]) -> list[Measurement]:
    """Return every application on every platform that has a bandwidth workload.

    A peer runs on the processor itself: it counts on each CPU device of its machine, and is missing on others.
    """
    several = len({result["environment"]["cpu"] for result in results}) > 1
    found: dict[tuple[str, str, str], list[Measurement]] = {}
    for record in records(results):
        if record.calls or record.workload["latency"]:
            continue
        for label, device in record.result["devices"].items():
            platform = platform_name(record.result, label, several)
            for made in _on_device(record, label, platform, str(device["kind"])):
                found.setdefault((made.problem, made.platform, made.application), []).append(made)
    return [_middle(some) for some in found.values()]


def _on_device(record: WorkloadRecord, label: str, platform: str, kind: str) -> Iterable[Measurement]:
    top = record.ceiling(label)
    rate = top["bytes"] / record.time(top) if top else None
    moved = int(record.workload["bytes_moved"])
    ceiling = moved / rate / 1e9 if rate else None
    for entry in record.workload["entries"]:
        own = entry.get("device") == label and (entry["kind"] == "kernel" or entry["name"] == "arrays")
        peer = entry["kind"] == "peer" and kind == "cpu"
        if not own and not peer:
            continue
        name = OWN if entry["kind"] == "clrope" else entry["name"]
        origin = f"{record.name}: {entry['kind']} {entry['name']}"
        if entry["status"] == "ok":
            yield Measurement(record.name, platform, name, record.time(entry) / 1e9, ceiling, moved, "", origin)
        elif entry["status"] != "refused" or own:
            yield Measurement(
                record.name, platform, name, None, ceiling, moved, f"{entry['status']}: {entry['reason']}", origin
            )


def _middle(some: Sequence[Measurement]) -> Measurement:
    """Return the measurement with the median time; one that was wrong, if there is one."""
    wrong = [m for m in some if m.seconds is None]
    return wrong[0] if wrong else sorted(some, key=lambda m: m.seconds or 0.0)[(len(some) - 1) // 2]


def efficiencies(found: Sequence[Measurement], basis: Basis) -> dict[tuple[str, str, str], float]:
    """Return the efficiency in [0, 1] of each (problem, platform, application); 0 for what was wrong."""
    best: dict[tuple[str, str], float] = {}
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
    problems = dict.fromkeys(m.problem for m in found)
    platforms = {problem: dict.fromkeys(m.platform for m in found if m.problem == problem) for problem in problems}
    return {
        problem: portability([shares.get((problem, platform, application)) for platform in platforms[problem]])
        for problem in problems
    }


def cascade(found: Sequence[Measurement], application: str, basis: Basis) -> list[tuple[str, float, float]]:
    """Return (platform, efficiency, portability of this and all better platforms), the best platform first.

    The efficiency of a platform is the median over its problems; 0 where a problem is wrong there.
    """
    shares = efficiencies(found, basis)
    by_platform: dict[str, list[float]] = {}
    for m in found:
        by_platform.setdefault(m.platform, [])
        if m.application == application:
            by_platform[m.platform].append(shares[m.problem, m.platform, application])
    typical = {p: 0.0 if not some or min(some) == 0 else float(median(some)) for p, some in by_platform.items()}
    ranked = sorted(typical, key=lambda p: -typical[p])
    return [(p, typical[p], portability([typical[q] for q in ranked[: n + 1]])) for n, p in enumerate(ranked)]
