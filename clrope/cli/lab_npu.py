"""`clrope lab --npu`: a kernel file against the rules of a machine with cores and scratchpads."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import msgspec

from .exit_code import UNUSABLE, WRONG
from .output import bytes_text, print_fields, print_line, progress_bar, write_text

if TYPE_CHECKING:
    from ..lab.lab_kernel import LabFile
    from ..lab.npu import NpuReport


def check_on_machine(
    file: LabFile, contract: str | None, npu: str, call: str, devices: list[str], seed: int | None, seconds: float,
    json_file: str | None, quiet: bool,
) -> None:  # fmt: skip
    """Check and print; exit code 1 if the machine refuses the kernel, 2 if something could not be checked."""
    from ..lab.npu import check, machine
    from ..lab.npu.npu_check import SCHEMA, USUAL_CALL
    from ..lab.npu.npu_prediction import ASSUMPTIONS

    wanted, call = machine(npu), call or USUAL_CALL
    with progress_bar(quiet) as bar:
        task = bar.add_task("", total=None)
        reports = check(
            file, wanted, contract, devices, call=call, seed=seed, silence=max(60.0, seconds),
            doing=lambda target: bar.update(task, description=target.name, refresh=True),
        )  # fmt: skip
    if json_file is not None:
        data = {"schema": SCHEMA, "file": str(file.path), "machine": msgspec.to_builtins(wanted), "call": call,
                "ok": bool(reports) and all(r.verdict == "fits" for r in reports),
                "devices": [r.to_dict() for r in reports]}  # fmt: skip
        write_text(json_file, json.dumps(data, indent=1, allow_nan=False) + "\n")
    if json_file != "-":
        print_line(f"{file.path} on the machine {wanted.name}")
        print_line(f"  {call}")
        for report in reports:
            _print(report)
        if not quiet and any(r.prediction for r in reports):
            print("\nThe prediction assumes:")
            for text in ASSUMPTIONS:
                print(f"- {text}")
    used = [r for r in reports if not r.target.problem]
    if any(r.verdict == "refused" for r in used):
        raise SystemExit(WRONG)
    if not used or any(r.verdict != "fits" for r in used):
        raise SystemExit(UNUSABLE)


def _print(report: NpuReport) -> None:
    print(f"\n{report.target.name}: {report.verdict.upper()}")
    if report.problem:
        print(f"  {report.problem}")
        return
    m, bytes_in = report.machine, sum(c.bytes_in for c in report.cores.values())
    groups = f"{report.groups} of {m.cores} cores"
    if not report.groups:
        groups = f"the driver's choice, for want of a line `// lab: local_size`; the machine has {m.cores} cores"
    fields = [
        ("  work-groups", groups),
        ("  scratchpad", f"{bytes_text(report.local_bytes)} of {bytes_text(m.ub)}"),
    ]
    if report.copies:
        bytes_out = sum(c.bytes_out for c in report.cores.values())
        fields += [
            ("  tiles", f"{report.tiles}, at most {report.most_tiles} for a core"),
            ("  copies", f"{report.copies}: {bytes_text(bytes_in)} in, {bytes_text(bytes_out)} out"),
            ("  copy and compute", "overlapped" if report.overlapped else "one after the other"),
        ]
    if report.prediction is not None:
        p = {name: f"{1e6 * value:.4g} us" for name, value in asdict(report.prediction).items()}
        parts = f"slowest core: copying {p['copying']}, computing {p['computing']}; all memory traffic {p['memory']}"
        fields.append(("  predicted", f"{p['seconds']} ({parts})"))
    print_fields(fields)
    for refusal in report.refusals:
        times = f" ({refusal.count} times)" if refusal.count > 1 else ""
        print_line(f"  refused, {refusal.rule}: {refusal.message}{times}")
    for text in report.not_checkable:
        print_line(f"  not checkable: {text}")
