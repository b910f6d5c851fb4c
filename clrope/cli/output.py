"""Printing on stdout: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

#: Columns of a table where stdout is no terminal: nothing is folded or cut there.
_WIDE = 400


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; columns whose name begins with '#' hold numbers and are set to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    table = Table(
        show_header=any(columns),
        box=box.SIMPLE_HEAD if any(columns) else None,
        pad_edge=False,
    )
    for column in columns:
        table.add_column(column.lstrip("#"), justify="right" if column.startswith("#") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    if title:
        print(title)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def print_json(data: Any) -> None:
    """Print data as JSON that any reader takes: no NaN, no infinity."""
    print(json.dumps(data, indent=2, allow_nan=False))


def bytes_text(count: int) -> str:
    """Return a number of bytes in the unit that suits it."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.4g} {unit}"
