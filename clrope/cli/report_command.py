"""`clrope report`: tables and figures from what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from .options import AsJson, Quiet, value
from .output import print_json, print_table, write_text


def report(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Results of `clrope bench --json`.")],
    figure: Annotated[str | None, value("PNG", "Draw the figure (needs matplotlib).")] = None,
    markdown: Annotated[str | None, value("FILE", "Write the tables as Markdown.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make tables and a figure from results.

    Files of one machine may be given together.
    """
    from ..benchmark.figure import draw
    from ..benchmark.report import heading, tables
    from ..benchmark.results import read_all

    results = [result for name in files for result in read_all(name)]
    if figure is not None:
        draw(results, figure)
    if markdown is not None:
        write_text(markdown, "\n".join([heading(results) + "\n", *(table.markdown() for table in tables(results))]))
    if as_json:
        print_json([table.to_dict() for table in tables(results)])
        return
    if not quiet:
        print(heading(results))
    print_tables(results)


def print_tables(results: Sequence[dict[str, Any]]) -> None:
    """Print the tables of results."""
    from ..benchmark.report import tables

    for table in tables(results):
        print_table(table.title, table.columns, table.rows)
