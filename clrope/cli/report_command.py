"""`clrope report`: a page, tables and figures from what was measured, and what changed between two results."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError
from .exit_code import UNUSABLE, WRONG
from .options import AsJson, Quiet, value
from .output import (
    check_folders,
    check_places,
    print_fields,
    print_json,
    print_line,
    print_message,
    print_note,
    print_table,
    write_text,
)

if TYPE_CHECKING:
    from ..portability.report_files import ReportInput
    from ..portability.run_changes import RunChange, RunComparison

#: The page, where no other output is asked for.
PAGE = "clrope-report.html"


def report(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Files of `clrope bench`, `verify`, `tune` (--json) or of a fleet."),
    ] = None,
    html: Annotated[
        str | None, typer.Option("--html", "-o", metavar="PAGE", help=f"Write the page. Default: {PAGE}.")
    ] = None,
    figures: Annotated[str | None, value("DIR", "Write every figure as SVG and PNG (needs matplotlib).")] = None,
    figure: Annotated[str | None, value("PNG", "Draw one-shot calls over tokens (needs matplotlib).")] = None,
    markdown: Annotated[str | None, value("FILE", "Write the tables as Markdown.")] = None,
    csv: Annotated[str | None, value("PLACE", "Write the page's tables as CSV: a folder, or one file.")] = None,
    p3: Annotated[str | None, value("DIR", "Write a CSV file a problem, for p3-analysis.")] = None,
    compare: Annotated[
        tuple[str, str] | None, value("OLD NEW", "Say what became faster or slower between two results.")
    ] = None,
    fail_below: Annotated[
        float | None, value("SHARE", "With --compare: exit code 1 if a speed fell below this share.", min=0.0, max=1.0)
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make a page, tables and figures from results of any devices and machines.

    The page is one file that needs no network. It is written with --html, or if no other output is asked for. With
    --compare no page is made; exit code 1 if a result that was right is wrong. Exit code 2 if a file cannot be read;
    the others are reported.
    """
    from ..portability.report_files import read_files

    places = {
        "--html": html,
        "--figures": figures,
        "--figure": figure,
        "--markdown": markdown,
        "--csv": csv,
        "--p3": p3,
    }
    if compare is not None:
        if files:
            raise ConfigError(f"--compare: given together with FILE, got {files[0]!r}; it reads OLD and NEW only")
        for option, place in places.items():
            if place is not None:
                raise ConfigError(f"{option}: given together with --compare, which makes no page, table or figure")
        _compare(*compare, fail_below, as_json)
        return
    if fail_below is not None:
        raise ConfigError("--fail-below: given without --compare OLD NEW")
    if not files:
        raise ConfigError("FILE: none given, a result of `clrope bench --json` is needed")
    if as_json and markdown == "-":
        raise ConfigError("--markdown: got '-' together with --json, both would go to stdout")
    folders = {"--figures", "--p3"}
    if csv is not None and (csv.endswith("/") or os.path.isdir(csv)):
        folders.add("--csv")
    check_places({option: place for option, place in places.items() if option not in folders}, files)
    check_folders(figures, p3, csv if "--csv" in folders else None)
    found = read_files(files)
    for line in found.unread:
        print_line(f"clrope: not read: {line}", file=sys.stderr)
    if found.empty:
        raise SystemExit(UNUSABLE)
    _show(found, as_json, quiet)
    others = any(place is not None for place in (figures, figure, markdown, csv, p3)) or as_json
    written = _write(found, figures, figure, markdown, csv, p3)
    if html is not None or not others:
        written += _page(found, html)
    for path in written:
        print_line(f"written: {path}", file=sys.stderr if as_json or markdown == "-" else sys.stdout)
    if found.unread:
        raise SystemExit(UNUSABLE)


def _show(found: ReportInput, as_json: bool, quiet: bool) -> None:
    from ..benchmark.report import heading, tables
    from ..portability.portability_report import make_report

    if as_json:
        print_json([table.to_dict() for table in tables(found.benches)])
        return
    made = make_report(found)
    if not quiet and found.benches:
        print(heading(found.benches))
    print_fields((sentence.head, sentence.text) for sentence in (*made.sentences, *made.remarks))
    print_tables(found.benches)


def _write(
    found: ReportInput, figures: str | None, figure: str | None, markdown: str | None, csv: str | None, p3: str | None
) -> list[Path]:
    """Write what is asked for besides the page; return the paths."""
    from ..portability.chart_images import write_figure, write_figures
    from ..portability.p3_files import write_p3
    from ..portability.portability_report import make_report, markdown_text, write_csv

    report = make_report(found)
    written: list[Path] = []
    if figure is not None:
        write_figure(report.one_shot_charts, figure)
        written.append(Path(figure))
    if figures is not None:
        written += write_figures(report.charts, figures)
    if markdown is not None:
        write_text(markdown, markdown_text(found, report))
        written += [Path(markdown)] if markdown != "-" else []
    if csv is not None:
        written += write_csv(report, csv)
    if p3 is not None:
        written += write_p3(report.measured, p3)
    return written


def _page(found: ReportInput, html: str | None) -> list[Path]:
    """Write the page. One that was not asked for by name is left out where its package is missing."""
    from ..portability.page import write_page

    try:
        return [write_page(found, html or PAGE)]
    except ConfigError as error:
        if html is not None:
            raise
        print_message(f"clrope: no page: {error}", file=sys.stderr)
        return []


def _compare(old: str, new: str, fail_below: float | None, as_json: bool) -> None:
    from ..portability.report_files import read_files
    from ..portability.run_changes import compare_runs

    sides = []
    for name, given in (("OLD", old), ("NEW", new)):
        found = read_files([given])
        if found.unread:
            raise ConfigError(f"{name}: {found.unread[0]}")
        if not found.benches:
            raise ConfigError(f"{name}: {given}: holds no result of `clrope bench`")
        sides.append(found.benches)
    comparison = compare_runs(*sides)
    slow = [] if fail_below is None else comparison.below(fail_below)
    if as_json:
        print_json(comparison.to_dict() | {"failed": [c.to_dict() for c in slow]})
    else:
        _print_changes(comparison, slow, fail_below)
    if comparison.lost or slow:
        raise SystemExit(WRONG)


def _print_changes(comparison: RunComparison, slow: Sequence[RunChange], fail_below: float | None) -> None:
    changed = sorted((c for c in comparison.changes if c.verdict != "same"), key=lambda c: c.speed)
    rows = [[c.workload, c.device, c.kernel, f"{c.speed:.3f}", f"{c.error:.3f}", c.verdict, c.basis] for c in changed]
    if rows:
        heads = ["workload", "device", "kernel", "#new speed", "#error", "verdict", "speeds by"]
        print_table("Changed beyond the noise; speeds in shares of the old ones", heads, rows)
        print()
    print(f"{len(comparison.changes)} compared, {len(changed)} changed beyond the noise")
    for line in comparison.absent:
        print_line(f"not compared: {line}")
    for line in comparison.lost:
        print_line(f"LOST: {line}")
    for c in slow:
        names = f"{c.workload} {c.device} {c.kernel}"
        print_line(f"SLOWER: {names}: {c.speed:.3f} of the old speed, least allowed {fail_below}")


def print_tables(results: Sequence[dict[str, Any]]) -> None:
    """Print the tables of results."""
    from ..benchmark.report import tables

    for table in tables(results):
        print_table(table.title, table.columns, table.rows)
        if table.note:
            print_note(table.note)
