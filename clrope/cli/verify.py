"""`clrope verify`: conformance suites on every device, one line per case and device, then a summary."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .exit_code import exit_with_code

if TYPE_CHECKING:
    from ..suite.conformance import Report, Result


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify")(exit_with_code(_verify))


def _verify(
    device: Annotated[
        list[str] | None,
        typer.Option(help="A device by name or index (repeatable). Default: every healthy one but simulators."),
    ] = None,
    suite: Annotated[
        list[str] | None, typer.Option(help="A suite by name, or 'all' (repeatable). Default: seed.")
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write the report as JSON; '-': on stdout, in place of lines."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the inputs. Default: a new one, which is printed.")
    ] = None,
    text: Annotated[
        str, typer.Option("--filter", metavar="TEXT", help="Only cases that contain each word of TEXT.")
    ] = "",
) -> bool:
    """Run conformance suites and compare every result with the reference, and with the other devices' bits.

    A line ends in OK, FAIL with the NMSE, or SKIP with the reason. Exit code 1 on any failure, and if a device named
    with --device cannot be used; other unhealthy devices are reported only.
    """
    from ..suite.conformance import verify

    quiet = json_file == "-"
    view = _View(quiet)
    try:
        report = verify(suite or ["seed"], device or [], seed=seed, text=text, started=view.start, done=view.add)
    finally:
        view.end()
    if json_file is not None:
        _write_json(report, json_file)
    if not quiet:
        _summarise(report)
    return report.ok


class _View:
    """Lines on stdout, a bar on stderr."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Any = None
        self._task: Any = None
        self._shown = 0.0
        # Both on one screen: the bar has to be redrawn after every line.
        self._share = sys.stdout.isatty() and sys.stderr.isatty()

    def start(self, report: Report, results: int) -> None:
        """Say what will be done."""
        if not self._quiet:
            print(f"seed {report.seed}; suites: {', '.join(report.suites)}")
            for target in report.targets:
                print(f"{target.name}: {target.problem or target.device}")
            for name, remark in report.remarks.items():
                print(f"{name}: {remark}")
            sys.stdout.flush()
        if not results:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        # Drawn by hand: a thread that draws would write into the lines. Rich would also
        # send lines printed meanwhile to stderr.
        self._bar = Progress(
            TextColumn("verify"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=Console(stderr=True), auto_refresh=False, redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self._task = self._bar.add_task("verify", total=results)
        self._bar.start()

    def add(self, result: Result) -> None:
        """Print a result's line and move the bar."""
        if not self._quiet:
            if self._share:
                print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
            print(result.line, flush=self._share)
        self._bar.advance(self._task)
        now = time.monotonic()
        if self._share or now - self._shown > 0.2:
            self._shown = now
            self._bar.refresh()

    def end(self) -> None:
        """Take the bar away."""
        sys.stdout.flush()
        if self._bar is not None:
            self._bar.stop()


def _write_json(report: Report, where: str) -> None:
    from ..errors import RopeError
    from .output import print_json

    if where == "-":
        print_json(report.to_dict())
        return
    import json

    try:
        Path(where).write_text(json.dumps(report.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise RopeError(f"{where}: cannot be written ({error.strerror or error})") from error


def _summarise(report: Report) -> None:
    from ..suite.case_outcome import nmse_text
    from ..suite.conformance import NUMPY
    from .output import print_table

    names = [t.name for t in report.used]
    types = ("f32", "f16", "bf16", "f64")
    worst: dict[tuple[str, str], float] = {}
    for result in report.results:
        kind = next((t for t in types if f"type={t}," in result.case), "other")
        if result.outcome.nmse is not None:
            key = result.device, kind
            worst[key] = max(worst.get(key, 0.0), result.outcome.nmse)
    shown = [t for t in (*types, "other") if any((n, t) in worst for n in names)]
    rows = []
    for count in report.counts():
        rows.append([count["device"], count["suite"], f"{count['passed']}/{count['cases']}", count["skipped"],
                     f"{count['seconds']:.1f} s"])  # fmt: skip
    if rows:
        print_table("", ["device", "suite", "#passed", "#skipped", "#time"], rows)
        print_table(
            "",
            ["device", *(f"#worst NMSE {t}" for t in shown)],
            [[n, *(nmse_text(worst[n, t]) if (n, t) in worst else "-" for t in shown)] for n in names],
        )
    if report.shared:
        same = report.shared - len(report.differing)
        print(f"bit-identical: {same}/{report.shared} cases between {', '.join([*names, NUMPY])}")
    for case in report.differing[:20]:
        print(f"bits differ: {case}")
    for target in report.targets:
        if target.problem and not target.asked:
            print(f"not verified: {target.name}: {target.problem}")
    for failure in report.failures:
        print(f"FAIL: {failure}")
    if not report.ok:
        print(f"inputs of this run: --seed {report.seed}")
