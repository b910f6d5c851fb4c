"""`clrope verify`: conformance suites on every device, one line per case and device, then a summary."""

from __future__ import annotations

import json
import secrets
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError
from .exit_code import UNUSABLE, WRONG
from .options import Devices, JsonFile, Quiet, Scheduler, Seed, value
from .output import check_places, print_message, print_table, progress_bar, write_text
from .streams import clear_bar

if TYPE_CHECKING:
    from rich.progress import Progress

    from ..suite.conformance import Report, Result
    from ..suite.registry import Suite

#: Seconds between two drawings of the bar, where it has a terminal of its own.
_PAUSE = 0.2


def _names_of_suites() -> list[str]:
    from ..suite.registry import ALL, suite_names

    return [*suite_names(), ALL]


def verify_devices(
    device: Devices = None,
    suite: Annotated[
        list[str] | None, value("NAME", "Suite, or 'all' (repeatable). Default: seed.", autocompletion=_names_of_suites)
    ] = None,
    json_file: JsonFile = None,
    seed: Seed = None,
    text: Annotated[
        str, typer.Option("--filter", metavar="TEXT", help="Run only the cases that contain each word of TEXT.")
    ] = "",
    fuzz: Annotated[
        int | None, value("N", "Run N random cases instead of suites; print wrong ones only.", min=1, max=10_000_000)
    ] = None,
    scheduler: Scheduler = None,
    quiet: Quiet = False,
) -> None:
    """Run the conformance suites, or random cases (--fuzz), on devices.

    Every result is compared with the float64 reference, and its bits with those of the other devices. A line ends in
    OK, in FAIL with the NMSE, or in SKIP with the reason. Exit code 1 if a case fails or bits differ, 2 if a device
    that --device names cannot be used. Other unhealthy devices are only reported.
    """
    from ..suite.conformance import verify
    from ..suite.fuzz import fuzz_suite

    check_places({"--json": json_file})
    suites: list[str | Suite] = [*(suite or ["seed"])]
    if fuzz is not None:
        if suite or text:
            raise ConfigError(
                f"--fuzz: given together with --{'suite' if suite else 'filter'}, which chooses other cases"
            )
        seed = secrets.randbits(32) if seed is None else seed
        suites = [fuzz_suite(fuzz, seed)]
    if scheduler is not None:
        from .fleet_command import verify_fleet

        verify_fleet(scheduler, suite or ["seed"], fuzz, seed, text, {"--device": device}, json_file, quiet)
        return
    if fuzz is not None and (quiet or json_file == "-"):
        # Said before the first case, in which a driver may end the process. Otherwise stdout begins with it.
        print(f"clrope: seed {seed}; clrope verify --fuzz {fuzz} --seed {seed} runs these cases again", file=sys.stderr)
    with progress_bar(quiet) as bar:
        view = _View(bar, quiet, silent=json_file == "-", wrong_only=quiet or fuzz is not None)
        report = verify(suites, device or [], seed=seed, text=text, started=view.start, done=view.add)
    if json_file is not None:
        write_text(json_file, json.dumps(report.to_dict(), indent=1, allow_nan=False) + "\n")
    if json_file != "-":
        _summarise(report)
    if not report.ok:
        failed = report.differing or any(r.outcome.status == "fail" for r in report.results)
        raise SystemExit(WRONG if failed else UNUSABLE)


class _View:
    """Lines on stdout, a bar on stderr. silent: no lines; wrong_only: lines of failures only; quiet: no remarks."""

    def __init__(self, bar: Progress, quiet: bool, silent: bool, wrong_only: bool) -> None:
        self._bar, self._quiet, self._silent, self._wrong_only = bar, quiet, silent, wrong_only
        self._task = bar.add_task("", visible=False)
        self._drawn = 0.0
        # Both on one screen: the bar has to be drawn again below every line.
        self._shared = sys.stdout.isatty() and sys.stderr.isatty()

    def start(self, report: Report, results: int) -> None:
        """Say what will be done."""
        if not (self._quiet or self._silent):
            print(f"seed {report.seed}; suites: {', '.join(report.suites)}")
            for target in report.targets:
                print_message(f"{target.name}: {target.problem or target.device}")
            for name, remark in report.remarks.items():
                print(f"{name}: {remark}")
            sys.stdout.flush()
        self._bar.update(self._task, total=results, visible=results > 0)

    def add(self, result: Result) -> None:
        """Print a result's line and move the bar."""
        if not (self._silent or (self._wrong_only and result.outcome.status != "fail")):
            if self._shared and not self._quiet:
                clear_bar()
            print(result.line, flush=self._shared)
        self._bar.advance(self._task)
        now = time.monotonic()
        if self._shared or now - self._drawn > _PAUSE:
            self._drawn = now
            self._bar.refresh()


def _summarise(report: Report) -> None:
    from ..suite.case_outcome import nmse_text
    from ..suite.conformance import NUMPY

    names = [t.name for t in report.used]
    types = ("f32", "f16", "bf16", "f64")
    worst: dict[tuple[str, str], float] = {}
    for result in report.results:
        kind = next((t for t in types if f"type={t}," in result.case), "other")
        if result.outcome.nmse is not None:
            key = result.device, kind
            worst[key] = max(worst.get(key, 0.0), result.outcome.nmse)
    shown = [t for t in (*types, "other") if any((n, t) in worst for n in names)]
    if rows := [
        [c["device"], c["suite"], f"{c['passed']}/{c['cases']}", c["skipped"], f"{c['seconds']:.1f} s"]
        for c in report.counts()
    ]:
        print_table("Results", ["device", "suite", "#passed", "#skipped", "#time"], rows)
    if shown:
        rows = [[n, *(nmse_text(worst[n, t]) if (n, t) in worst else "-" for t in shown)] for n in names]
        print_table("Worst NMSE by storage type", ["device", *(f"#{t}" for t in shown)], rows)
    print()
    if refused := sum(r.outcome.refused for r in report.results):
        print(f"refused, as they must be: {refused} wrong calls")
    if report.shared:
        same = report.shared - len(report.differing)
        print(f"bit-identical: {same}/{report.shared} cases between {', '.join([*names, NUMPY])}")
    for case in report.differing[:20]:
        print(f"bits differ: {case}")
    for target in report.targets:
        if target.problem and not target.asked:
            print_message(f"not verified: {target.name}: {target.problem}")
    for failure in report.failures:
        print_message(f"FAIL: {failure}")
    if not report.ok:
        print(f"inputs of this run: --seed {report.seed}")
