"""Runs of suites: every case on every device, every result compared with the other devices' bits."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

from .. import __version__
from ..device import DeviceInfo, devices
from ..device import device as find_device
from ..device.select import ALIASES
from ..errors import DeviceError, RopeError
from .case_outcome import CaseOutcome, CaseTrial, SuiteCase
from .registry import Suite, cases_of, chosen_suites

#: Name and version of a report's JSON form. A change that breaks readers gets a new version.
SCHEMA = "clrope.verify/1"
#: The emulation's name next to the devices in a comparison of bits.
NUMPY = "NumPy"


@dataclass(frozen=True)
class Target:
    """A device of a run. asked: named by the caller. problem: why the device cannot be used, or ''."""

    name: str
    device: DeviceInfo | None
    asked: bool
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        known = self.device.to_dict() if self.device is not None else None
        return {"name": self.name, "asked": self.asked, "problem": self.problem, "device": known}


@dataclass(frozen=True)
class Result:
    """One case on one device."""

    suite: str
    case: str
    device: str
    outcome: CaseOutcome
    seconds: float

    @property
    def line(self) -> str:
        """The case in the grid's notation with its outcome after the `#`."""
        return f"{self.case} # {self.device}: {self.outcome.text}"

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary; an infinite NMSE (a value that is not finite) is the text 'inf'."""
        out: dict[str, Any] = {"suite": self.suite, "case": self.case, "device": self.device}
        out |= asdict(self.outcome)
        if self.outcome.nmse is not None and not self.outcome.nmse < float("inf"):
            out["nmse"] = "inf"
        return out | {"seconds": round(self.seconds, 6)}


@dataclass
class Report:
    """The results of a run.

    targets:   the devices, usable or not.
    results:   one per case and usable device.
    differing: cases whose bits differ between devices or from the emulation in NumPy, with each digest:
               'suite: case: pocl 1:0 0123456789abcdef, ...'.
    shared:    the number of cases with at least two digests.
    """

    seed: int
    suites: list[str]
    filter: str
    targets: list[Target]
    remarks: dict[str, str] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    shared: int = 0

    @property
    def used(self) -> list[Target]:
        """The devices that cases ran on."""
        return [t for t in self.targets if not t.problem]

    @property
    def failures(self) -> list[str]:
        """The reasons for a failed run; empty if it passed."""
        out = [f"device {t.name}: {t.problem}" for t in self.targets if t.problem and t.asked]
        if not self.used:
            out.append("no healthy device, nothing was verified")
        elif not self.results:
            out.append(f"no case of {', '.join(self.suites)} matches {self.filter!r}, nothing was verified")
        failed = sum(r.outcome.status == "fail" for r in self.results)
        if failed:
            out.append(f"{failed} of {len(self.results)} results failed")
        if self.results and all(r.outcome.status == "skip" for r in self.results):
            out.append("every case was skipped, nothing was verified")
        if self.differing:
            out.append(f"{len(self.differing)} cases differ in their bits")
        return out

    @property
    def ok(self) -> bool:
        """Whether the run passed."""
        return not self.failures

    def counts(self) -> list[dict[str, Any]]:
        """Return for each device and suite the numbers of passed, run, skipped and refused cases, and the seconds."""
        out = []
        for target, name in product(self.used, self.suites):
            here = [r for r in self.results if (r.device, r.suite) == (target.name, name)]
            ran = [r for r in here if r.outcome.status != "skip"]
            out.append(
                {
                    "device": target.name,
                    "suite": name,
                    "passed": sum(r.outcome.status == "ok" for r in ran),
                    "cases": len(ran),
                    "skipped": len(here) - len(ran),
                    "refused": sum(r.outcome.refused for r in ran),
                    "seconds": round(sum(r.seconds for r in here), 3),
                }
            )
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "schema": SCHEMA,
            "clrope": __version__,
            "seed": self.seed,
            "suites": self.suites,
            "filter": self.filter,
            "remarks": self.remarks,
            "devices": [t.to_dict() for t in self.targets],
            "summary": self.counts(),
            "bits": {"compared": self.shared, "differing": self.differing},
            "failures": self.failures,
            "ok": self.ok,
            "results": [r.to_dict() for r in self.results],
        }


def targets(selectors: Sequence[str] = ()) -> list[Target]:
    """Return the devices of the selectors; without selectors every device but simulators.

    An unusable device is in the list with its reason, a selector without a device by the selector's text.
    """
    if not selectors:
        found = [device for device in devices() if not device.simulator]
        return [_target(d, False, d.describe_problem() if d.health.status == "unhealthy" else "") for d in found]
    out: dict[str, Target] = {}
    for selector in selectors:
        try:
            target = _target(find_device(selector), True, "")
        except DeviceError as error:
            target = Target(selector, None, True, str(error))
        out.setdefault(target.name, target)
    return list(out.values())


def short_name(device: DeviceInfo) -> str:
    """Return 'pocl 1:0', 'intel 0:0', ...: the platform in a word, and the index for selectors."""
    words = [alias for alias, part in ALIASES.items() if part in device.platform.lower()]
    return f"{words[0] if words else device.platform} {device.index}"


def _target(device: DeviceInfo, asked: bool, problem: str) -> Target:
    name = short_name(device) if device.platform_index >= 0 else f"{device.name} [{device.platform}]"
    return Target(name, device, asked, problem)


def verify(
    suites: Iterable[str | Suite] = ("seed",),
    selectors: Sequence[str] = (),
    *,
    seed: int | None = None,
    text: str = "",
    started: Callable[[Report, int], None] = lambda report, cases: None,
    done: Callable[[Result], None] = lambda result: None,
) -> Report:
    """Run suites on devices and return the report.

    suites:    names, 'all', or suites themselves. selectors: devices as for `clrope.device`; none: every healthy device
               but simulators.
    seed:      of the inputs; None draws a seed, which the report holds.
    text:      words that a case's notation must contain.
    started:   called once with the report and the number of results to come; `done` with each result.

    A selected device that cannot be used is a failure; any other unhealthy device is only reported.
    """
    chosen = chosen_suites(suites)
    report = Report(
        secrets.randbits(32) if seed is None else seed, [s.name for s in chosen], text, targets(selectors),
        {s.name: remark for s in chosen if (remark := s.remark())},
    )  # fmt: skip
    used = [t for t in report.used if t.device is not None]
    work: list[tuple[Suite, SuiteCase]] = [(s, case) for s in chosen for case in cases_of(s, text)] if used else []
    started(report, len(work) * len(used))
    for each, case in work:
        digests: dict[str, str] = {}
        for result, expected in _results(each, case, used, report.seed):
            report.results.append(result)
            digests |= {NUMPY: expected, result.device: result.outcome.digest}
            done(result)
        digests = {name: digest for name, digest in digests.items() if digest}
        report.shared += len(digests) > 1
        if len(set(digests.values())) > 1:
            found = ", ".join(f"{name} {digest}" for name, digest in digests.items())
            report.differing.append(f"{each.name}: {case.label}: {found}")
    return report


def _results(suite: Suite, case: SuiteCase, used: list[Target], seed: int) -> Iterable[tuple[Result, str]]:
    trial: CaseTrial | None = None
    for target in used:
        begin = time.perf_counter()
        assert target.device is not None
        try:
            trial = trial or case.prepare(seed)
            begin = time.perf_counter()
            outcome = trial.run(target.device)
        except Exception as error:
            # An error in one case must not end the run.
            what = str(error) if isinstance(error, RopeError) else f"{type(error).__name__}: {error}"
            outcome = CaseOutcome("fail", detail=what.strip())
        expected = trial.digest if trial is not None else ""
        yield Result(suite.name, case.label, target.name, outcome, time.perf_counter() - begin), expected
