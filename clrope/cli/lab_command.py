"""`clrope lab`: a kernel file of the user's through the conformance suites, with a diagnosis of what is wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError
from .exit_code import UNUSABLE, WRONG
from .options import Devices, JsonFile, Quiet, Seed, flag, value
from .output import print_table, progress_bar, write_text

if TYPE_CHECKING:
    from ..lab.lab_kernel import LabFile
    from ..lab.lab_run import LabDeviceReport, LabReport


def _names_of_suites() -> list[str]:
    from ..suite.registry import ALL, suite_names

    return [*suite_names(), ALL]


def _names_of_contracts() -> list[str]:
    from ..lab.contracts import BY_NAME

    return list(BY_NAME)


def _kinds() -> list[str]:
    from ..lab.new_kernel import kinds

    return list(kinds())


def check_kernel(
    path: Annotated[
        str,
        typer.Argument(metavar="KERNEL", help="OpenCL C file, or Kernel Tuner's T1 file (.json).", show_default=False),
    ] = "",
    contract: Annotated[
        str | None,
        value(
            "NAME",
            "What the arguments mean: a contract's name, or a .toml or .json file. Default: clrope.",
            autocompletion=_names_of_contracts,
        ),
    ] = None,
    kernel: Annotated[str, value("NAME", "Kernel function, where the file has several.")] = "",
    option: Annotated[list[str] | None, value("OPTION", "Compiler option, as --option=-DX=1 (repeatable).")] = None,
    device: Devices = None,
    suite: Annotated[
        list[str] | None,
        value("NAME", "Suite, or 'all' (repeatable). Default: seed and modes.", autocompletion=_names_of_suites),
    ] = None,
    text: Annotated[
        str, typer.Option("--filter", metavar="TEXT", help="Run only the cases that contain each word of TEXT.")
    ] = "",
    races: Annotated[
        bool, flag("--races", "Small cases in Oclgrind: data races, accesses out of bounds, uninitialised values.")
    ] = False,
    waive: Annotated[
        list[str] | None, value("KIND[:LINE]", "Finding of --races that is intended, such as race:12 (repeatable).")
    ] = None,
    new: Annotated[str, value("NAME", "Write a commented kernel to start from to NAME.cl, and end.")] = "",
    like: Annotated[str, value("KIND", "What --new writes.", autocompletion=_kinds)] = "simple",
    seconds: Annotated[float, value("N", "Seconds without a result until a kernel counts as endless.", min=1)] = 20.0,
    json_file: JsonFile = None,
    seed: Seed = None,
    quiet: Quiet = False,
) -> None:
    """Check a kernel file of your own: is it right, on every device, and if not, why.

    Runs in child processes: a kernel that crashes or never ends harms nothing. Cases that the kernel's arguments cannot
    express are counted as such, never as right. Exit code 1 if a case is wrong, 2 if the file cannot be used.
    """
    from ..lab.lab_kernel import load_file
    from ..lab.lab_run import USUAL_SUITES, LabRun

    if new:
        from ..lab.new_kernel import write_new

        print(f"{write_new(new, like)} is written; `clrope lab` checks it")
        return
    if not path:
        raise ConfigError("KERNEL: not given; a kernel file is needed, or --new NAME")
    file = load_file(path, contract, options=option or [], kernel=kernel)
    silent = json_file == "-"
    if races:
        _simulate(file, contract, waive or [], seed or 0, json_file, quiet)
        return
    if waive:
        raise ConfigError("--waive: given without --races, whose findings it waives")
    with progress_bar(quiet) as bar:
        task = bar.add_task("", visible=False)

        def start(target: object, cases: int) -> None:
            bar.update(task, total=cases, completed=0, visible=True, description=getattr(target, "name", ""))

        def done(_: object, result: object) -> None:
            bar.advance(task)
            bar.refresh()

        run = LabRun(
            file, contract, suite or USUAL_SUITES, text=text, seed=seed, silence=seconds, started=start, done=done
        )
        if not (quiet or silent):
            print(f"{file.path}: contract {file.contract.name}\n  {run.signature}")
            print(f"seed {run.seed}; suites: {', '.join(run.suites)}; {len(run.cases)} cases", flush=True)
        report = run.on_devices(device or [])
    if json_file is not None:
        write_text(json_file, json.dumps(report.to_dict(), indent=1, allow_nan=False) + "\n")
    if not silent:
        _print_report(report)
    if not report.ok:
        failed = any(d.first_failure is not None for d in report.devices)
        raise SystemExit(WRONG if failed else UNUSABLE)


def _simulate(
    file: LabFile, contract: str | None, waive: list[str], seed: int, json_file: str | None, quiet: bool
) -> None:
    from dataclasses import asdict

    from ..lab.simulator import simulate

    signature = file.check()
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
        print(f"{file.path}: {report.ran} cases of {signature.name} in Oclgrind")
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


def _print_report(report: LabReport) -> None:
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
        print(f"\nnot expressible: {'; '.join(missing)}")
    for d in report.devices:
        if d.target.problem:
            print(f"not used: {d.target.name}: {d.target.problem}")
        _print_failure(d)
    print(
        f"\n{'RIGHT' if report.ok else 'NOT RIGHT'}: {report.file.path}"
        + ("" if report.ok else f"  (--seed {report.seed})")
    )


def _print_failure(d: LabDeviceReport) -> None:
    first = d.first_failure
    if first is None:
        if d.left_out:
            print(f"\n{d.target.name}: {d.left_out} cases were not run")
        return
    o = first.outcome
    print(f"\n{d.target.name}: first failure, {o.status}\n  {first.suite}: {first.case}")
    if o.detail:
        print("  " + "\n  ".join(o.detail.strip().splitlines()[:40]))
    if o.place is not None:
        print(f"  first wrong element (b, s, n, d) = {o.place}: got {o.got!r}, want {o.want!r}, {o.ulp:.3g} ulp apart")
    for k, line in enumerate(o.diagnosis):
        print(f"  {'diagnosis:' if k == 0 else '       or:'} {line}")
    if d.left_out:
        print(f"  {d.left_out} cases were not run after that")
