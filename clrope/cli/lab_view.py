"""What `clrope lab` prints of a run: the first failure of each device as soon as it is there, then the verdicts."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from ..printable import one_line
from .output import print_line, print_message, print_table, write_text
from .streams import clear_bar

if TYPE_CHECKING:
    from rich.progress import Progress

    from ..lab.lab_run import LabReport, LabResult, LabRun
    from ..suite.conformance import Target

_FINE = ("right", "not expressible")
#: Lines of a build log, and cases that failed, that are shown.
_MOST_LINES = 40


class LabView:
    """Lines on stdout, a bar on stderr. quiet: no remarks; silent: no lines."""

    def __init__(self, bar: Progress, quiet: bool, silent: bool) -> None:
        self._bar, self._quiet, self._silent = bar, quiet, silent
        self._task = bar.add_task("", visible=False)
        self._failed: set[str] = set()

    def begin(self, run: LabRun) -> None:
        """Say what will be run."""
        if not (self._quiet or self._silent):
            print_line(f"{run.file.path}: contract {run.file.contract.name}")
            if run.signature:
                print_line(f"  {run.signature}")
            print(f"seed {run.seed}; suites: {', '.join(run.suites)}; {run.published} published cases", flush=True)

    def start(self, target: Target, cases: int) -> None:
        """Begin the bar of a device."""
        self._bar.reset(self._task, total=cases, visible=True, description=target.name)

    def add(self, target: Target, result: LabResult) -> None:
        """Move the bar, and print a device's first failure."""
        if result.outcome.status not in _FINE and target.name not in self._failed:
            self._failed.add(target.name)
            if not self._silent:
                if sys.stderr.isatty() and not self._quiet:
                    clear_bar()
                _print_failure(target, result)
        self._bar.advance(self._task)
        self._bar.refresh()


def write_report(report: LabReport, json_file: str | None) -> None:
    """Write the JSON form where it is asked for, and print the verdicts."""
    if json_file is not None:
        write_text(json_file, json.dumps(report.to_dict(), indent=1, allow_nan=False) + "\n")
    if json_file != "-":
        _print_verdicts(report)


def _print_verdicts(report: LabReport) -> None:
    from ..lab.lab_run import pieces

    rows = []
    for d in report.devices:
        for suite in report.suites if not d.target.problem else []:
            counts = d.counts(suite)
            others = sum(counts.values()) - counts["right"] - counts["not expressible"]
            seconds = sum(r.seconds for r in d.results if r.suite == suite)
            rows.append([d.target.name, suite, d.verdict(suite), counts["right"], others,
                         counts["not expressible"], f"{seconds:.1f} s"])  # fmt: skip
    if rows:
        columns = ["device", "suite", "verdict", "#right", "#wrong", "#not expressible", "#time"]
        print_table("Verdicts", columns, rows)
    if missing := pieces(report):
        print()
        print_line(f"not expressible: {'; '.join(missing)}")
    for d in report.devices:
        if d.target.problem:
            print_message(f"not used: {d.target.name}: {d.target.problem}")
        if d.left_out:
            print_line(f"{d.target.name}: {d.left_out} cases were not run")
    print()
    for line in _verdict(report):
        print_line(line)
    sys.stdout.flush()


def _verdict(report: LabReport) -> list[str]:
    """Return the verdict behind what limits it."""
    path, lines = report.file.path, []
    if report.verdict == "NOT RIGHT":
        return [f"NOT RIGHT: {path}  (--seed {report.seed})"]
    if tests := [test for test, _ in report.file.contract.requires]:
        lines.append(f"checked only where it requires: {'; '.join(tests)}")
    for name, values in report.coverage.pinned.items():
        lines.append(f"pinned by that: {name} = {' or '.join(map(str, values[:4]))}")
    published, drawn = report.counts()
    cases = f"{published} of {report.published} published cases and {drawn} drawn cases"
    if report.verdict == "RIGHT":
        return [*lines, f"RIGHT: {cases} ({path})"]
    missing = "; ".join(f"{name} had {n} of {need} values" for name, (n, need) in report.coverage.missing.items())
    return [*lines, f"NOT SHOWN: {missing}: {cases} ({path})"]


def _print_failure(target: Target, result: LabResult) -> None:
    o = result.outcome
    lines = [f"{target.name}: first failure, {o.status}", f"  {result.suite}: {result.case}"]
    lines += [f"  {line}" for line in o.detail.strip().splitlines()[:_MOST_LINES]]
    if o.place is not None:
        place = f"  first wrong element (b, s, n, d) = {o.place}"
        lines.append(f"{place}: got {o.got!r}, want {o.want!r}, {o.ulp:.3g} ulp apart")
    lines += [f"  {'       or:' if k else 'diagnosis:'} {line}" for k, line in enumerate(o.diagnosis)]
    print("\n" + "\n".join(map(one_line, lines)), flush=True)
