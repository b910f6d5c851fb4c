"""Runs a lab kernel through drawn cases and conformance suites, in child processes, and gathers a report."""

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
from ..suite.case import parse_case
from ..suite.conformance import Target, targets
from ..suite.registry import cases_of, chosen_suites
from ..suite.rope_trial import CaseLine
from .lab_draw import DRAWN, Coverage, may_match
from .lab_kernel import LabFile
from .lab_trial import LabOutcome
from .lab_worker import LabJob

#: Name and version of a report's JSON form.
SCHEMA = "clrope.lab/1"
#: Suites that are run besides the drawn cases if none is named.
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
    """The results on one device. left_out: cases that were not run. coverage: of those that were right."""

    target: Target
    results: list[LabResult] = field(default_factory=list)
    left_out: int = 0
    coverage: Coverage = field(default_factory=Coverage)

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
    """The results of a run. published: how many cases of suites there are."""

    file: LabFile
    signature: str
    seed: int
    suites: list[str]
    devices: list[LabDeviceReport] = field(default_factory=list)
    published: int = 0

    @property
    def ok(self) -> bool:
        """Whether the kernel is right, and all that it takes was varied."""
        return self.verdict == "RIGHT"

    @property
    def verdict(self) -> str:
        """'RIGHT' on every device that was used, at least one; 'NOT RIGHT'; 'NOT SHOWN' if too little was varied."""
        used = self._used
        asked = any(d.target.problem and d.target.asked for d in self.devices)
        if not used or asked or not all(d.ok for d in used):
            return "NOT RIGHT"
        return "NOT SHOWN" if self.coverage.missing else "RIGHT"

    @property
    def _used(self) -> list[LabDeviceReport]:
        return [d for d in self.devices if not d.target.problem]

    def right(self) -> list[LabResult]:
        """Return the cases that were right on every device that was used."""
        used = [[r for r in d.results if r.outcome.status == "right"] for d in self._used]
        everywhere = set.intersection(*({(r.suite, r.case) for r in results} for results in used)) if used else set()
        return [r for r in used[0] if (r.suite, r.case) in everywhere] if used else []

    def counts(self) -> tuple[int, int]:
        """Return how many published cases, and how many drawn ones, were right on every device that was used."""
        drawn = [r.suite == DRAWN for r in self.right()]
        return len(drawn) - sum(drawn), sum(drawn)

    @property
    def coverage(self) -> Coverage:
        """What was varied on every device that was used."""
        all_of = [d.coverage for d in self._used]
        missing = {name: numbers for c in all_of for name, numbers in c.missing.items()}
        return Coverage(missing, {name: values for c in all_of for name, values in c.pinned.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "schema": SCHEMA, "file": str(self.file.path), "contract": self.file.contract.name,
            "signature": self.signature, "seed": self.seed, "suites": self.suites, "ok": self.ok,
            "verdict": self.verdict,
            "coverage": {
                "published": self.published, "published_right": self.counts()[0], "drawn_right": self.counts()[1],
                "missing": self.coverage.missing, "pinned": self.coverage.pinned,
            },
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

    suites: of published cases; the drawn ones are run besides. text: words that a case has to contain, or a case.
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
        self.seed = secrets.randbits(32) if seed is None else seed
        chosen = chosen_suites(name for name in suites if name != DRAWN)
        published = [(s.name, str(c.case)) for s in chosen for c in cases_of(s, text) if isinstance(c, CaseLine)]
        #: Words of the cases that are drawn besides, None for none: one case, as a run has printed it, is run as it is.
        self._draw = text if may_match(text) else None
        if _is_case(text):
            self._draw, published = None, published or [(DRAWN, str(parse_case(text)))]
        self.suites = [DRAWN, *(s.name for s in chosen)]
        self.published = sum(suite != DRAWN for suite, _ in published)
        self.cases = [(suite, line, number) for number, (suite, line) in enumerate(published)]
        self._text = text
        if not published and self._draw is None:
            raise ConfigError(self._no_case)
        self._silence, self._stop_at_first = silence, stop_at_first
        self._environment = dict(environment or {})
        self._started, self._done = started, done

    @property
    def _no_case(self) -> str:
        return f"suite: no case of {', '.join(self.suites)} that a lab kernel can run matches {self._text!r}"

    def on_devices(self, selectors: Sequence[str] = ()) -> LabReport:
        """Run on devices, as `clrope verify` chooses them, and return the report."""
        found = targets(selectors)
        report = LabReport(self.file, self.signature, self.seed, self.suites, published=self.published)
        keys = [t.device.key for t in found if t.device is not None]
        seen: Counter[str] = Counter()
        for target in found:
            ordinal = 0
            if target.device is not None:
                ordinal = seen[target.device.key] if keys.count(target.device.key) > 1 else 0
                seen[target.device.key] += 1
            report.devices.append(self._on_device(target, ordinal))
        ran = {r.suite for d in report.devices for r in d.results}
        if DRAWN not in ran:
            report.suites = [name for name in self.suites if name != DRAWN]
        return report

    def _on_device(self, target: Target, ordinal: int) -> LabDeviceReport:
        report = LabDeviceReport(target)
        if target.problem or target.device is None:
            return report
        self._started(target, len(self.cases))
        todo, ended, silence = list(self.cases), 0, self._silence
        while todo or self._draw is not None:
            job = LabJob(
                str(self.file.path), self._contract, self.file.kernel, list(self.file.options), target.device.key,
                ordinal, False, self.seed, todo, self._stop_at_first, self._draw,
            )  # fmt: skip
            heard = _Heard(
                report, self.cases, lambda cases: self._started(target, cases), lambda r: self._done(target, r)
            )
            result = child.run(
                msgspec.to_builtins(job), self._environment, module="clrope.lab.lab_worker", limit=3600.0,
                silence=silence, heard=heard,
            )  # fmt: skip
            if heard.cases is not self.cases:  # for the other devices, too
                self.cases, self._draw = heard.cases, None
                todo = list(self.cases)
                if not todo:
                    raise ConfigError(self._no_case)
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


def _is_case(text: str) -> bool:
    try:
        parse_case(text)
    except ConfigError:
        return False
    return True


class _Heard:
    """Takes a child's entries and makes results of them."""

    def __init__(
        self, report: LabDeviceReport, cases: list[tuple[str, str, int]], started: Callable[[int], None],
        done: Callable[[LabResult], None],
    ) -> None:  # fmt: skip
        self._report, self.cases, self._started, self._done = report, cases, started, done
        #: The case that was begun last, -1 for none.
        self.number = -1

    def __call__(self, entry: dict[str, Any]) -> None:
        if "cases" in entry:
            self.cases = [(suite, line, number) for suite, line, number in entry["cases"]]
            self._started(len(self.cases))
        if "coverage" in entry:
            self._report.coverage = msgspec.convert(entry["coverage"], Coverage)
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
        if self.cases and self.cases[number][:2] not in known:
            self._add(number, LabOutcome(status, detail=f"{reason}{': ' + last if last else ''}"), 0.0)

    def _add(self, number: int, outcome: LabOutcome, seconds: float) -> None:
        suite, line, _ = self.cases[number]
        result = LabResult(suite, line, outcome, seconds)
        self._report.results.append(result)
        self._done(result)


def pieces(report: LabReport) -> list[str]:
    """Return which things cases could not express, with their numbers: 'the inverse rotation (12)'."""
    counted = Counter(
        r.outcome.detail for d in report.devices[:1] for r in d.results if r.outcome.status == "not expressible"
    )
    return [f"{what} ({count})" for what, count in itertools.islice(counted.most_common(), 12)]
