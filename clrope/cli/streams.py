"""stdout and stderr of the commands: any text can be printed there, and none of it controls the terminal."""

from __future__ import annotations

import codecs
import locale
import os
import sys
import warnings
from collections.abc import Callable
from io import TextIOWrapper
from typing import Any, TextIO

from ..errors import CacheWarning
from ..printable import one_line, printable

#: ASCII for characters of this package's own texts.
_ASCII = {"µ": "u", "×": "x", "–": "-", "π": "pi", "±": "+-", "…": "..."}


class OutputError(Exception):
    """stdout cannot be written: its disk or device is full. Nothing else catches it: not an `OSError`."""


def set_up_streams() -> None:
    """Make stdout and stderr take any text: in ASCII where the locale is C, with escapes where characters are missing.

    Python itself writes UTF-8 in the locale C. Warnings become one line each.
    """
    _open_closed_streams()
    codecs.register_error("clrope", _in_ascii)
    ascii_only = locale.nl_langinfo(locale.CODESET) in ("ANSI_X3.4-1968", "US-ASCII", "ASCII", "646")
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # Closed by the caller.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="ascii" if ascii_only else None, errors="clrope")
            if name == "stdout":
                _name_errors(stream)
            _guard(stream)
    warnings.showwarning = _print_warning


def _name_errors(stream: TextIOWrapper) -> None:
    """Let errors of stdout say so, but for a closed pipe."""

    def named(call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*given: Any) -> Any:
            try:
                return call(*given)
            except BrokenPipeError:
                raise
            except OSError as error:
                raise OutputError(f"stdout: cannot be written ({error.strerror or error})") from error

        return checked

    stream.write = named(stream.write)  # type: ignore[method-assign]
    stream.flush = named(stream.flush)  # type: ignore[method-assign]


def _guard(stream: TextIOWrapper) -> None:
    """Let what is printed be text: names and reasons come from files and drivers, which may hold control sequences."""
    write = stream.write
    stream.write_as_it_is = write  # type: ignore[attr-defined]
    stream.write = lambda text: write(printable(text))  # type: ignore[method-assign]


class Styled:
    """A stream that control sequences may be written to: for what this package makes, such as styles and bars."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text as it is."""
        return int(getattr(self._stream, "write_as_it_is", self._stream.write)(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def clear_bar() -> None:
    """Clear the line that a bar is on."""
    Styled(sys.stderr).write("\r\x1b[2K")
    sys.stderr.flush()


def discard(stream: TextIO) -> None:
    """Let what is still in the buffer of a stream go nowhere: the interpreter flushes it again at its end."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass


def _open_closed_streams() -> None:
    """Let streams that the caller closed lead nowhere: the next file would get their number, and what drivers print."""
    if os.name == "posix":
        opened = os.open(os.devnull, os.O_RDWR)
        while opened <= 2:
            os.set_inheritable(opened, True)
            opened = os.open(os.devnull, os.O_RDWR)
        os.close(opened)


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    text = one_line(message) if isinstance(message, CacheWarning) else message  # others may hold a compiler's output
    print(f"clrope: warning: {text}", file=sys.stderr)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_ASCII.get(c) or c.encode("ascii", "backslashreplace").decode() for c in text), error.end
