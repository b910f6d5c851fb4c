"""`clrope lab --bench`: speed of kernel files compared with this package's kernels and the device's copies."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..machine_load import BUSY, load_text
from .exit_code import UNUSABLE, WRONG
from .output import print_line, print_message, print_table, progress_bar, write_text

if TYPE_CHECKING:
    from ..lab.lab_bench import SpeedReport
    from ..lab.lab_kernel import LabFile


def bench_files(
    files: list[LabFile], contracts: list[str | None], devices: list[str], workloads: list[str] | None,
    rounds: int, seed: int | None, seconds: float, json_file: str | None, quiet: bool,
) -> None:  # fmt: skip
    """Measure and print; exit code 1 if a kernel is wrong or ends its process, 2 if nothing could be measured."""
    from ..lab.lab_bench import SCHEMA, USUAL_WORKLOADS, bench_kernels

    for file in files:
        file.check_before_run()
    seed = time.time_ns() % (1 << 32) if seed is None else seed
    with progress_bar(quiet, drawn_by_thread=False) as bar:
        task = bar.add_task("", total=None)

        def doing(target: Any, what: str) -> None:
            bar.update(task, description=f"{target.name}: {what}")
            bar.refresh()

        reports = bench_kernels(
            files, contracts, devices, workloads=workloads or USUAL_WORKLOADS, rounds=rounds, seed=seed,
            silence=max(60.0, seconds), doing=doing,
        )  # fmt: skip
    if json_file is not None:
        data = {"schema": SCHEMA, "seed": seed, "files": [str(f.path) for f in files],
                "ok": all(r.ok for r in reports), "devices": [r.to_dict() for r in reports]}  # fmt: skip
        write_text(json_file, json.dumps(data, indent=1) + "\n")
    if json_file != "-":
        for report in reports:
            _print(report)
    if not reports or not all(r.ok for r in reports if not r.target.problem):
        wrong = [e for r in reports for w in r.workloads for e in w["entries"] if e["status"] == "wrong"]
        raise SystemExit(WRONG if wrong or any(r.ended for r in reports) else UNUSABLE)


def _print(report: SpeedReport) -> None:
    rows, reasons = [], []
    for record in report.workloads:
        for row, reason in rows_of(record):
            rows.append([record["name"], *row])
            reasons += [f"{row[0]}, {record['name']}: {reason}"] if reason else []
    if rows:
        columns = ["workload", "kernel", "#GB/s", "#of the best copy", "#of clrope", "#us a call", "verdict"]
        print_table(f"Speed on {report.target.name}", columns, rows)
    for line in dict.fromkeys(reasons):
        print_line(f"  {line}")
    for name, reason in report.ended.items():
        print_line(f"  {name}: {reason}")
    if report.busy is not None and report.busy > BUSY:
        print_line(f"  {load_text(report.busy)}")
    if report.problem:
        print_message(f"not measured: {report.target.name}: {report.problem}")


def rows_of(record: dict[str, Any]) -> Iterator[tuple[list[str], str]]:
    """Yield (cells of a row, why there is no figure) of each entry but the empty launches, the fastest first."""
    timed = [e for e in record["entries"] if e["status"] == "ok" and e["kind"] != "launch"]
    rates = {id(e): e["bytes"] / e["wall"]["median"] for e in timed}
    copies = [rates[id(e)] for e in timed if e["kind"] == "ceiling"]
    ours = [rates[id(e)] for e in timed if e["kind"] == "clrope"]
    for entry in sorted(timed, key=lambda e: -rates[id(e)]):
        rate = rates[id(entry)]
        name = {"ceiling": f"copy: {entry['name']}", "clrope": "clrope"}.get(entry["kind"], entry["name"])
        shares = [f"{rate / max(of):.2f}" if of else "-" for of in (copies, ours)]
        verdict = "right" if entry["kind"] != "ceiling" else ""
        yield [name, f"{rate:.3g}", *shares, f"{entry['wall']['median'] / 1e3:.4g}", verdict], ""
    for entry in record["entries"]:
        if entry["status"] != "ok":
            verdict = {"refused": "not expressible"}.get(entry["status"], entry["status"])
            yield [entry["name"], "-", "-", "-", "-", verdict], entry["reason"]
