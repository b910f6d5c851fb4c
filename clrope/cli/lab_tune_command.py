"""`clrope tune --kernel`: the fastest values of a kernel file's tunable parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..machine_load import BUSY, load_text
from .exit_code import UNUSABLE, WRONG
from .output import print_json, print_line, print_message, print_table, progress_bar

if TYPE_CHECKING:
    from ..lab.lab_tune import LabTuneReport


def tune_kernel(
    path: str, contract: str | None, devices: Sequence[str], workloads: Sequence[str], budget: float,
    seed: int, as_json: bool, quiet: bool, t4: str | None = None,
) -> None:  # fmt: skip
    """Tune and print; exit code 1 if no combination is right on a device, 2 if a device cannot be used."""
    from ..lab.lab_bench import USUAL_WORKLOADS
    from ..lab.lab_kernel import load_file
    from ..lab.lab_tune import SCHEMA, tune_file

    file = load_file(path, contract, selectors=devices)
    file.check_before_run()
    if not file.contract.parameters:
        raise ConfigError(
            f"--kernel: {path} has no tunable parameter; add a line `// lab: tune WIDTH = 4, 8` for a macro WIDTH"
        )
    with progress_bar(quiet) as bar:
        task = bar.add_task("", total=None)

        def doing(target: Any, what: str) -> None:
            bar.update(task, description=f"{target.name}: {what}")
            bar.refresh()

        reports = tune_file(
            file, contract, devices, workloads=workloads or USUAL_WORKLOADS, budget=budget, seed=seed, doing=doing
        )
    told = {"schema": SCHEMA, "kernel": path, "seed": seed, "devices": [r.to_dict() for r in reports]}
    if t4 is not None:
        from ..benchmark.artifact import installed_packages
        from ..benchmark.kernel_tuner_files import metadata_here, of_lab_tuning, write_t4

        used = [r.target.device for r in reports if r.target.device is not None]
        write_t4(of_lab_tuning(told), metadata_here(used, installed_packages()), t4)
    if as_json:
        print_json(told)
    else:
        for report in reports:
            _print(report, path)
    if not reports or any(r.problem for r in reports):
        raise SystemExit(UNUSABLE)
    if any(r.best is None for r in reports):
        raise SystemExit(WRONG)


def _print(report: LabTuneReport, path: str) -> None:
    names = list(dict.fromkeys(name for t in report.tried for name in t.shares))
    names = names if len(names) > 1 else []
    rows = []
    for tried in sorted(report.tried, key=lambda t: (not t.final, -t.speed)):
        shares = [f"{tried.shares[n]:.2f}" if n in tried.shares else "-" for n in names]
        remark = tried.failed or ("measured again, side by side" if tried.final else "")
        rows.append([tried.name, f"{tried.speed:.2f}" if tried.speed else "-", *shares, remark])
    if rows:
        columns = ["parameters", "#of the best copy", *(f"#{n}" for n in names), "remark"]
        print_table(f"Tuned on {report.target.name}", columns, rows)
    if report.left:
        print_line(f"not tried, the time was over: {'; '.join(report.left)}")
    if report.problem:
        print_message(f"not tuned: {report.target.name}: {report.problem}")
    if report.busy is not None and report.busy > BUSY:
        print_line(load_text(report.busy))
    best = report.best
    if best is not None:
        first = report.tried[0]
        gain = f", {best.speed / first.speed:.2f} times {first.name}" if first.final and best is not first else ""
        options = " ".join(f"--option=-D{name}={value}" for name, value in best.setting.items())
        print_line(f"fastest: {best.name}{gain}")
        print_line(f"  clrope lab {path} {options}")
