"""Runs a lab kernel through conformance suites on devices, in child processes, and gathers a report."""

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..device import child
from ..errors import ConfigError
from ..suite.conformance import Target, targets
from ..suite.registry import cases_of, chosen_suites
from ..suite.rope_trial import CaseLine
from .lab_kernel import LabFile
from .lab_trial import LabOutcome
from .lab_worker import LabJob

#: Name and version of a report's JSON form.
SCHEMA = "clrope.lab/1"
#: Suites that are run if none is named.
USUAL_SUITES = ("seed", "modes")
#: Seconds without a result after which a child is killed: the kernel never ends.
SILENCE = 20.0
#: Seconds for a child that was silent before its first case, the second time.
_PATIENCE = 120.0
#: Children that may end by a crash or a timeout before the rest of a device's cases is left out.
_MOST_ENDED = 3


@dataclass(frozen=True)
class LabResult:
    """One case on one device."""

    suite: str
    case: str
    outcome: LabOutcome
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        out = msgspec.to_builtins(self.outcome)
        for name in ("nmse", "got", "want", "ulp"):
            if isinstance(out[name], float) and not abs(out[name]) < float("inf"):
                out[name] = str(out[name])
        return {"suite": self.suite, "case": self.case, **out, "seconds": round(self.seconds, 6)}


@dataclass
class LabDeviceReport:
    """The results on one device. problem: why the device cannot be used, or ''; left_out: cases that were not run."""

    target: Target
    results: list[LabResult] = field(default_factory=list)
    left_out: int = 0

    def counts(self, suite: str) -> Counter[str]:
        """Return how many cases of a suite had each status."""
        return Counter(r.outcome.status for r in self.results if r.suite == suite)

    def verdict(self, suite: str) -> str:
        """Return 'right', 'not expressible', or the worst status: what happened first of crash, loop, wrong, ..."""
        found = self.counts(suite)
        for status in ("build error", "bad kernel", "crash", "loop", "driver error", "wrong", "right"):
            if found[status]:
                return status
        return "not expressible" if found else "not run"

    @property
    def first_failure(self) -> LabResult | None:
        """The first case that is neither right nor inexpressible."""
        return next((r for r in self.results if r.outcome.status not in ("right", "not expressible")), None)

    @property
    def ok(self) -> bool:
        """Whether at least one case was right and none failed."""
        statuses = {r.outcome.status for r in self.results}
        return "right" in statuses and statuses <= {"right", "not expressible"} and not self.left_out


@dataclass
class LabReport:
    """The results of a run."""

    file: LabFile
    signature: str
    seed: int
    suites: list[str]
    devices: list[LabDeviceReport] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the kernel is right on every device that was used, at least one."""
        used = [d for d in self.devices if not d.target.problem]
        return (
            bool(used)
            and all(d.ok for d in used)
            and not any(d.target.problem and d.target.asked for d in self.devices)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "schema": SCHEMA, "file": str(self.file.path), "contract": self.file.contract.name,
            "signature": self.signature, "seed": self.seed, "suites": self.suites, "ok": self.ok,
            "devices": [
                {
                    "name": d.target.name, "problem": d.target.problem, "left_out": d.left_out,
                    "verdicts": {s: d.verdict(s) for s in self.suites},
                    "counts": {s: dict(d.counts(s)) for s in self.suites},
                    "results": [r.to_dict() for r in d.results],
                }
                for d in self.devices
            ],
        }  # fmt: skip


class LabRun:
    """A run in the making: cases, and what is called as results come.

    contract: as given to `load_file`, for the child. started: (device, number of cases); done: (device, result).
    """

    def __init__(
        self,
        file: LabFile,
        contract: str | None = None,
        suites: Sequence[str] = USUAL_SUITES,
        *,
        text: str = "",
        seed: int | None = None,
        silence: float = SILENCE,
        stop_at_first: bool = False,
        environment: Mapping[str, str | None] | None = None,
        started: Callable[[Target, int], None] = lambda target, cases: None,
        done: Callable[[Target, LabResult], None] = lambda target, result: None,
    ) -> None:
        self.file, self._contract = file, contract
        self.signature = file.check_before_run()
        chosen = chosen_suites(suites)
        self.suites = [s.name for s in chosen]
        lines = [(s.name, str(c.case)) for s in chosen for c in cases_of(s, text) if isinstance(c, CaseLine)]
        if not lines:
            raise ConfigError(f"suite: no case of {', '.join(self.suites)} that a lab kernel can run matches {text!r}")
        self.cases = [(suite, line, number) for number, (suite, line) in enumerate(lines)]
        self.seed = secrets.randbits(32) if seed is None else seed
        self._silence, self._stop_at_first = silence, stop_at_first
        self._environment = dict(environment or {})
        self._started, self._done = started, done

    def on_devices(self, selectors: Sequence[str] = ()) -> LabReport:
        """Run on devices, as `clrope verify` chooses them, and return the report."""
        found = targets(selectors)
        report = LabReport(self.file, self.signature, self.seed, self.suites)
        keys = [t.device.key for t in found if t.device is not None]
        seen: Counter[str] = Counter()
        for target in found:
            ordinal = 0
            if target.device is not None:
                ordinal = seen[target.device.key] if keys.count(target.device.key) > 1 else 0
                seen[target.device.key] += 1
            report.devices.append(self._on_device(target, ordinal))
        return report

    def _on_device(self, target: Target, ordinal: int) -> LabDeviceReport:
        report = LabDeviceReport(target)
        if target.problem or target.device is None:
            return report
        self._started(target, len(self.cases))
        todo, ended, silence = list(self.cases), 0, self._silence
        while todo:
            job = LabJob(
                str(self.file.path), self._contract, self.file.kernel, list(self.file.options), target.device.key,
                ordinal, False, self.seed, todo, self._stop_at_first,
            )  # fmt: skip
            heard = _Heard(report, self.cases, lambda result: self._done(target, result))
            result = child.run(
                msgspec.to_builtins(job), self._environment, module="clrope.lab.lab_worker", limit=3600.0,
                silence=silence, heard=heard,
            )  # fmt: skip
            if result.outcome == "ok":
                report.left_out = len(self.cases) - len(report.results)
                break
            if result.outcome == "timeout" and heard.number < 0 and silence < _PATIENCE:
                silence = _PATIENCE  # no kernel has run yet: the machine is busy
                continue
            ended += 1
            heard.ended(result)
            todo = [case for case in todo if case[2] > heard.number]
            if ended >= _MOST_ENDED or self._stop_at_first or heard.number < 0:
                report.left_out = len(todo)
                break
        return report


class _Heard:
    """Takes a child's entries and makes results of them."""

    def __init__(
        self, report: LabDeviceReport, cases: Sequence[tuple[str, str, int]], done: Callable[[LabResult], None]
    ) -> None:
        self._report, self._cases, self._done = report, cases, done
        #: The case that was begun last, -1 for none.
        self.number = -1

    def __call__(self, entry: dict[str, Any]) -> None:
        if "begin" in entry:
            self.number = entry["begin"]
        if "case" in entry:
            self._add(entry["case"], msgspec.convert(entry["outcome"], LabOutcome), entry["seconds"])

    def ended(self, result: child.ChildResult) -> None:
        """Add a result for the case that ended the child."""
        last = result.output.splitlines()[-1] if result.output else ""
        status = {"crash": "crash", "timeout": "loop"}.get(result.outcome, "driver error")
        reason = result.reason.partition(" while ")[0]
        if status == "loop" and self.number < 0:
            status, reason = "driver error", result.reason
        elif status == "loop":
            reason = f"the kernel did not end: {reason}; the process was stopped (--seconds N waits longer)"
        known = {(r.suite, r.case) for r in self._report.results}
        number = max(self.number, 0)
        if self._cases[number][:2] not in known:
            self._add(number, LabOutcome(status, detail=f"{reason}{': ' + last if last else ''}"), 0.0)

    def _add(self, number: int, outcome: LabOutcome, seconds: float) -> None:
        suite, line, _ = self._cases[number]
        result = LabResult(suite, line, outcome, seconds)
        self._report.results.append(result)
        self._done(result)


def pieces(report: LabReport) -> list[str]:
    """Return which things cases could not express, with their numbers: 'the inverse rotation (12)'."""
    counted = Counter(
        r.outcome.detail for d in report.devices[:1] for r in d.results if r.outcome.status == "not expressible"
    )
    return [f"{what} ({count})" for what, count in itertools.islice(counted.most_common(), 12)]
