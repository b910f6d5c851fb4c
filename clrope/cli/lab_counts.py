"""`clrope lab --counts`: bytes that a kernel moves for each useful byte, counted in Oclgrind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .exit_code import UNUSABLE, WRONG
from .output import print_fields, print_line, progress_bar, write_text

if TYPE_CHECKING:
    from ..lab.counters import CallCounts
    from ..lab.lab_kernel import LabFile


def count_traffic(
    file: LabFile, contract: str | None, call: str, seed: int, json_file: str | None, quiet: bool
) -> None:
    """Count, print or write; exit code 1 for a wrong result, 2 if nothing was counted."""
    from ..lab.counters import SCHEMA, count

    function = file.check_before_run().partition("(")[0]
    with progress_bar(quiet) as bar:
        task = bar.add_task("Oclgrind", visible=True)

        def done(number: int, calls: int) -> None:
            bar.update(task, total=calls, completed=number)
            bar.refresh()

        report = count(file, contract, call, seed=seed, done=done)
    if json_file is not None:
        data = {
            "schema": SCHEMA, "file": str(file.path), "kernel": function, "ok": report.ok,
            "calls": [c.to_dict() for c in report.calls], "not_expressible": report.not_expressible,
        }  # fmt: skip
        write_text(json_file, json.dumps(data, indent=1, allow_nan=False) + "\n")
    if json_file != "-":
        print_line(f"{file.path}: {function or 'a kernel'} in Oclgrind")
        for counted in report.calls:
            _print(counted)
        if not report.calls:
            print("  no call that the kernel can express was counted")
            for reason in dict.fromkeys(report.not_expressible.values()):
                print_line(f"    {reason}")
    if not report.ok:
        wrong = any(not c.problem and not c.right for c in report.calls)
        raise SystemExit(WRONG if wrong else UNUSABLE)


def _print(counted: CallCounts) -> None:
    print(f"\n{counted.call}")
    if counted.problem:
        print(f"  not counted: {counted.problem}")
        return
    c, y = counted.counts, counted.y_bytes
    fields = []
    for space in ("global", "constant", "local", "private"):
        for verb, moved in (("read", c.read), ("written", c.written)):
            size = moved.get(space, 0)
            if not size and space != "global":
                continue
            least = ""
            if space == "global":
                least = f", at least {(counted.least_read if verb == 'read' else y) / y:.2f}"
            fields.append((f"  {space} {verb}", f"{size / y:.2f} bytes for each byte of y{least} ({size} bytes)"))
    fields.append(("  instructions", f"{c.instructions / counted.elements:.1f} an element"))
    print_fields(fields)
    for remark in counted.remarks:
        print_line(f"  {remark}")
