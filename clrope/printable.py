"""Text of files and devices as text that terminals, pages and images can show."""

from __future__ import annotations

import os
import re

#: Control characters but tab and newline, lone surrogates, and the two others that XML does not allow.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    r"""Return the text with an escape such as `\x1b`, as `repr` writes it, for each character that cannot be shown."""
    return _HIDDEN.sub(lambda found: repr(found[0])[1:-1], text)


def of_name(text: str) -> str:
    r"""Return a text of the system, such as a file's name, with `\xff` for each byte of it that is no text."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def one_line(text: object) -> str:
    r"""Return printable text with `\n` for each newline: names and reasons make no lines of their own."""
    return printable(str(text)).replace("\n", r"\n")


def message_text(text: object) -> str:
    r"""Return printable text with `\n` for newlines, but for those before two blanks, as in this package's messages."""
    return re.sub(r"\n(?!  )", r"\\n", printable(str(text)))
