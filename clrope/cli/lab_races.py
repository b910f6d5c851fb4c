"""`clrope lab --races`: small cases in Oclgrind, and its findings with the file's lines."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from .exit_code import UNUSABLE, WRONG
from .output import print_line, progress_bar, write_text

if TYPE_CHECKING:
    from ..lab.lab_kernel import LabFile


def find_races(
    file: LabFile, contract: str | None, waive: list[str], seed: int, json_file: str | None, quiet: bool
) -> None:
    """Simulate, print or write what was found; exit code 1 for findings or wrong results, 2 if nothing was run."""
    from ..lab.simulator import simulate

    function = file.check_before_run().partition("(")[0] or "a kernel"
    with progress_bar(quiet) as bar:
        task = bar.add_task("Oclgrind", visible=True)

        def done(number: int, cases: int) -> None:
            bar.update(task, total=cases, completed=number)
            bar.refresh()

        report = simulate(file, contract, waivers=waive, seed=seed, done=done)
    wrong = [(case, o) for case, o in report.outcomes if o.status not in ("right", "not expressible")]
    if json_file is not None:
        data = {
            "schema": "clrope.lab.races/1", "file": str(file.path), "ok": report.ok, "cases": report.ran,
            "wrong": [case for case, _ in wrong], "problem": report.problem,
            "findings": [asdict(f) for f in report.findings],
        }  # fmt: skip
        write_text(json_file, json.dumps(data, indent=1) + "\n")
    if json_file != "-":
        print_line(f"{file.path}: {report.ran} cases of {function} in Oclgrind")
        for finding in report.findings:
            print(f"  {'waived: ' if finding.waived else ''}{finding}")
        for case, o in wrong[:3]:
            print(f"  {o.status}: {case}\n    {o.detail}")
        if report.problem:
            print(f"  the simulator ended: {report.problem}")
        if not report.ran and not report.problem:
            print("  no case that the kernel can express was run")
        print("CLEAN" if report.ok else "NOT CLEAN")
    if not report.ok:
        raise SystemExit(WRONG if report.open_findings or wrong else UNUSABLE)
