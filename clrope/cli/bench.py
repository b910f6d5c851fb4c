"""`clrope bench` measures, `clrope report` makes tables and a figure from what was measured."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .exit_code import exit_with_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..device import DeviceInfo


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("bench")(exit_with_code(_bench))
    app.command("report")(exit_with_code(_report))


def _bench(
    device: Annotated[
        list[str] | None,
        typer.Option(help="A device by name or index (repeatable). Default: every healthy one but simulators."),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(help="A group, a family, or a pattern of names, see --list (repeatable). Default: standard."),
    ] = None,
    peer: Annotated[list[str] | None, typer.Option(help="Only this peer (repeatable). Default: all installed.")] = None,
    no_peers: Annotated[bool, typer.Option("--no-peers", help="This package and the ceilings only.")] = False,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds in which all take turns. Default: 9, and 60 for calls.")
    ] = None,
    peer_rounds: Annotated[int, typer.Option(min=1, help="Of these, those that peers take part in.")] = 9,
    repeats: Annotated[int, typer.Option(min=1, help="Times each workload is measured, from new buffers.")] = 1,
    calls: Annotated[int, typer.Option(min=1, help="Calls in a row a round, at most.")] = 5,
    threads: Annotated[int, typer.Option(min=0, help="Threads of the peers. 0: one per usable CPU.")] = 0,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the inputs. Default: a new one.")] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Short axes: try everything; no figure means anything.")] = False,
    processes: Annotated[
        bool, typer.Option("--processes", help="Also measure the first call of a process, and memory.")
    ] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON; '-': on stdout, no tables.")
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="List the chosen workloads and stop.")] = False,
) -> bool:
    """Measure the rotation next to the ceilings of each device and the installed peers, all interleaved.

    Every entry is checked before it is timed; one that is wrong is not timed, and the exit code is 1.
    """
    import time

    from ..benchmark.measure import Options, run
    from ..benchmark.workloads import select

    chosen = select(workload or ())
    if list_only:
        from .output import bytes_text, print_table

        rows = [[w.name, " ".join(map(str, w.tensors)), bytes_text(w.bytes_moved)] for w in chosen]
        print_table("", ["workload", "tensors", "#moved"], rows)
        return True
    seed = time.time_ns() % (1 << 32) if seed is None else seed
    options = Options(
        rounds=rounds or 9, call_rounds=rounds or 60, peer_rounds=peer_rounds, repeats=repeats, calls=calls,
        peers=tuple(peer or ()), with_peers=not no_peers, threads=threads, seed=seed, tiny=tiny,
        processes=processes,
    )  # fmt: skip
    result = run(chosen, _devices(device or ()), options, _Progress())
    if json_file == "-":
        from .output import print_json

        print_json(result)
    elif json_file is not None:
        from ..benchmark.results import write

        write(result, json_file)
    wrong = [e for w in result["workloads"] for e in w["entries"] if e["status"] in ("wrong", "error")]
    if json_file != "-":
        _show([result])
    return not any(e["kind"] == "clrope" or e["status"] == "wrong" for e in wrong)


def _report(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Results that `clrope bench --json` wrote.")],
    figure: Annotated[str | None, typer.Option(metavar="PNG", help="Draw the figure (needs matplotlib).")] = None,
    markdown: Annotated[str | None, typer.Option(metavar="FILE", help="Write the tables as Markdown.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the tables as JSON.")] = False,
) -> bool:
    """Make tables and a figure from result files; files of one machine may be given together."""
    from ..benchmark import report
    from ..benchmark.results import read_all

    results = [result for name in files for result in read_all(name)]
    if figure is not None:
        from ..benchmark.figure import draw

        draw(results, figure)
    if markdown is not None:
        _write_markdown(results, markdown)
    if as_json:
        from .output import print_json

        print_json([table.to_dict() for table in report.tables(results)])
        return True
    print(report.heading(results))
    _show(results)
    return True


def _write_markdown(results: Sequence[dict[str, Any]], where: str) -> None:
    from pathlib import Path

    from ..benchmark import report
    from ..errors import RopeError

    text = "\n".join([report.heading(results) + "\n", *(table.markdown() for table in report.tables(results))])
    try:
        Path(where).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RopeError(f"{where}: cannot be written ({error.strerror or error})") from error


def _show(results: Sequence[dict[str, Any]]) -> None:
    from ..benchmark import report
    from .output import print_table

    for table in report.tables(results):
        print_table(table.title, table.columns, table.rows)


def _devices(names: Sequence[str]) -> list[DeviceInfo]:
    from ..device import device, devices
    from ..errors import DeviceError

    if names:
        return list(dict.fromkeys(device(name) for name in names))
    found = [d for d in devices() if d.health.ok and not d.simulator]
    if not found:
        raise DeviceError("device: no healthy OpenCL device; `clrope devices` says what was found")
    return found


class _Progress:
    """A bar on stderr, with the workload that is being measured."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, done: int, total: int, what: str) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            # Drawn by hand, once a workload: a thread that draws would be in the measurements.
            self._bar = Progress(
                TextColumn("bench"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                TextColumn("{task.fields[what]}"),
                console=Console(stderr=True), auto_refresh=False, redirect_stdout=False, redirect_stderr=False,
                transient=not sys.stderr.isatty(),
            )  # fmt: skip
            self._task = self._bar.add_task("bench", total=total, what=what)
            self._bar.start()
        self._bar.update(self._task, completed=done, what=what)
        self._bar.refresh()
        if done >= total:
            self._bar.stop()
