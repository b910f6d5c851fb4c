"""Ctrl-C while the command line is still being imported: one line and an exit code, as later, and no traceback.

The package imports this before anything else. A program that uses the package as a library keeps its handlers.
"""

from __future__ import annotations

import os
import signal
import sys

# No other module: a Ctrl-C while it is imported would be a traceback. Type checkers take the name for true.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

#: What the script `clrope` imports.
_ENTRY = "clrope.__main__"


def leave(number: int, _: object) -> NoReturn:
    """End the process at once, as a signal handler: nothing has been started or written that needs an end."""
    try:
        os.write(2, b"clrope: interrupted\n")
    finally:
        os._exit(128 + number)


def leave_if_command() -> None:
    """Let Ctrl-C end the process without a traceback until the command line sets its own handlers.

    Only in a process that is the command line, and where Ctrl-C is not ignored.
    """
    if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        try:  # noqa: SIM105 - see above
            signal.signal(signal.SIGINT, leave)
        except ValueError:  # another thread than the main one
            pass


def _is_command() -> bool:
    """Whether Python was started as `python -m clrope`, or by a program that imports the command line's entry."""
    words = getattr(sys, "argv", [])
    if words[:1] == ["-m"]:  # as long as Python looks for the module, which stands before the words
        return sys.orig_argv[-len(words)].removeprefix("-m") in ("clrope", _ENTRY)
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__") == "__main__" and _ENTRY in frame.f_code.co_names:
            return True
    return False
