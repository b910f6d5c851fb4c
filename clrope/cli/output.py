"""Printing: tables and fields for people, JSON for programs, a progress bar on stderr.

Tables fit the terminal, or COLUMNS where stdout is none. Styles need a terminal, and NO_COLOR turns them off.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from ..errors import ConfigError, RopeError
from ..output_file import write_file
from ..printable import message_text, one_line
from .streams import Styled

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

#: Columns where stdout is no terminal and COLUMNS is not set: no cell is folded. Fewer than the least hold no values.
_UNLIMITED = 100_000
_LEAST = 40
_GAP = 2
_MOST_LINES = 3
_LONGEST_CELL = 2000
#: Options whose place may be '-', stdout.
_PRINTED = ("--json", "--markdown")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table under its title; columns whose name begins with '#' hold numbers and are set to the right.

    Where it fits only with broken words or with cells of many lines, each row is printed as a list of fields.
    """
    from rich.box import Box
    from rich.table import Table
    from rich.text import Text

    cells = [[_cell(cell) for cell in row] for row in rows]
    heads = [column.lstrip("#") for column in columns]
    if title:
        print()
        print_line(title)
    if not _fits(list(zip(heads, *cells, strict=True))):
        for number, row in enumerate(cells):
            if number:
                print()
            print_fields(zip(heads, row, strict=True))
        return
    rule = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
    table = Table(box=rule, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0), header_style="bold")
    for column, head in zip(columns, heads, strict=True):
        table.add_column(Text(head), justify="right" if column.startswith("#") else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    _print(table)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names with their values, one a line."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, _GAP, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields:
        table.add_row(Text(_cell(name)), Text(_cell(value)))
    _print(table)


def _cell(value: object) -> str:
    """Return the text of a cell; rich takes minutes for one of a million characters."""
    text = one_line(value)
    return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}... ({len(text)} characters)"


def print_line(text: object, file: TextIO | None = None) -> None:
    """Print one line, whatever names of files and devices it holds."""
    print(one_line(text), file=file)


def print_note(text: object) -> None:
    """Print a sentence or more, folded between words to the terminal's width."""
    print(textwrap.fill(one_line(text), _width()))


def print_message(text: object, file: TextIO | None = None) -> None:
    """Print an error or a reason, which may have lines of its own; see `message_text`."""
    print(message_text(text), file=file)


def print_json(data: Any) -> None:
    """Print data as JSON that any reader takes: no NaN, no infinity."""
    print(json.dumps(data, indent=2, allow_nan=False))


def write_text(where: str, text: str) -> None:
    """Write a text file, '-' for stdout; `RopeError` if that fails."""
    if where == "-":
        print(text, end="")
        return
    write_file(where, text)


def check_places(outputs: Mapping[str, str | Path | None], inputs: Iterable[str | Path] = ()) -> None:
    """Raise before any work if an output cannot be written, or would take the place of an input or of another output.

    outputs: by option; None is none, as is '-' where it stands for stdout. Raises `RopeError`, or `ConfigError` where
    places are the same.
    """
    taken = [(Path(given), "a file that is read") for given in inputs]
    for option, given in outputs.items():
        if given is None or (str(given) == "-" and option in _PRINTED):
            continue
        if str(given) == "-":
            raise ConfigError(f"{option}: got '-', a file is needed; stdout is for {' and '.join(_PRINTED)}")
        path = Path(given)
        for other, what in taken:
            if _same_file(path, other):
                raise ConfigError(f"{option}: got {str(given)!r}, {what}; another place is needed")
        taken.append((path, f"the place of {option}"))
        folder = _resolved(path).parent
        there = folder.is_absolute() and os.path.isdir(folder)
        why = "it is a folder" if os.path.isdir(path) else "" if there else "its folder is missing"
        if why or not os.access(path if os.path.exists(path) else folder, os.W_OK):
            raise RopeError(f"{path}: cannot be written ({why or 'no permission'})")


def check_folders(*folders: str | None) -> None:
    """Raise `RopeError` before any work if files cannot be made in a folder, which may be absent; None is none."""
    for folder in folders:
        if folder is None:
            continue
        place = _resolved(Path(folder))
        there = next((path for path in (place, *place.parents) if os.path.lexists(path)), Path())
        if not there.is_absolute():
            why = "the current directory is missing"
        elif not os.path.isdir(there):
            why = f"{there} is no folder"
        else:
            why = "" if os.access(there, os.W_OK | os.X_OK) else "no permission"
        if why:
            raise RopeError(f"{folder}: cannot be written ({why})")


def _same_file(path: Path, other: Path) -> bool:
    """Whether two names stand for one file, also for one that will be made; devices such as /dev/null are no files."""
    if os.path.exists(path) and not os.path.isfile(path):
        return False
    if os.path.isfile(path) and os.path.isfile(other):
        return os.path.samefile(path, other)
    return _resolved(path) == _resolved(other)


def _resolved(path: Path) -> Path:
    """Return the name without links; without any folder where it is relative to one that was deleted."""
    try:
        return Path(os.path.realpath(path))
    except OSError:
        return path


def progress_bar(quiet: bool, drawn_by_thread: bool = False) -> Progress:
    """Return a bar on stderr; it shows nothing where stderr is no terminal.

    drawn_by_thread: or else at every call of `refresh`; a thread would take part in what this process measures.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="crop"))
    return Progress(
        BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn(), text,
        console=_console(sys.stderr), auto_refresh=drawn_by_thread, redirect_stdout=False, redirect_stderr=False,
        transient=True, disable=quiet or not sys.stderr.isatty(),
    )  # fmt: skip


def stderr_console() -> Console:
    """Return a console that writes to stderr."""
    return _console(sys.stderr)


def names_text(names: Iterable[str]) -> str:
    """Return names with commas between; of many or long ones the first."""
    text = ", ".join(names)
    return (text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}...") or "none"


def arrays_text(arrays: Mapping[str, Any]) -> str:
    """Return names of arrays with their types and shapes, shortened as `names_text`."""
    return names_text(f"{name} ({array.dtype} {list(array.shape)})" for name, array in arrays.items())


def bytes_text(count: int) -> str:
    """Return a number of bytes in the unit that suits it."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.4g} {unit}"


def _fits(columns: Sequence[Sequence[str]]) -> bool:
    """Whether a table fits when its widest columns are folded between words, no cell to more than a few lines."""
    natural = [max(map(len, column)) for column in columns]
    longest_word = max(len(word) for column in columns for cell in column for word in ["", *cell.split()])
    room = _width() - _GAP * (len(columns) - 1)
    widths = range(longest_word, max(natural) + 1)
    widest = max((width for width in widths if sum(min(width, n) for n in natural) <= room), default=0)
    return max(natural) <= _MOST_LINES * widest


def _width() -> int:
    return min(max(shutil.get_terminal_size((_UNLIMITED, 0)).columns, _LEAST), _UNLIMITED)


def _print(table: Table) -> None:
    console = _console(sys.stdout, _width())
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip(), file=Styled(sys.stdout))


def _console(stream: TextIO, width: int | None = None) -> Console:
    from rich.console import Console

    terminal = stream.isatty()
    # rich ends in a ValueError for digits that are no number; it asks the terminal itself.
    variables = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return Console(
        file=cast(TextIO, Styled(stream)), width=width, highlight=False, force_terminal=terminal,
        color_system="auto" if terminal and not os.environ.get("NO_COLOR") else None,
        _environ=variables,
    )  # fmt: skip
