"""How a command ends: with an exit code and at most one message on stderr, never with a traceback."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from ..environ import variable
from ..errors import BuildError, RopeError
from ..interrupt import leave
from ..printable import message_text
from .streams import OutputError, discard

#: What was checked is wrong.
WRONG = 1
#: Nothing could be checked or done: bad input, or no usable device.
UNUSABLE = 2
#: Ended by a signal, as shells number it: 128 and the signal, 130 for Ctrl-C.
BY_SIGNAL = 128
#: The reader of stdout is gone; as of a program that SIGPIPE ends.
CLOSED_PIPE = 141

#: Seconds after which a signal comes again that came where it cannot end the command.
_AGAIN_S = 0.05
#: The module that calls the commands. What imports it is not their business.
_COMMAND_LINE = "clrope.cli.main"


class Interrupted(BaseException):
    """A signal that ends the command. Not a `KeyboardInterrupt`, which typer ends in its own way."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def caught_signals() -> Iterator[None]:
    """Make Ctrl-C, SIGTERM and SIGHUP raise `Interrupted`; afterwards they end the process at once.

    What the caller ignores stays ignored.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not _importing(frame):
            raise Interrupted(number)
        _send_again(number)  # extension modules abort the process where their import fails

    def unraisable(ignored: sys.UnraisableHookArgs) -> None:
        # Python only prints what is raised in `__del__` and in callbacks of weak references, the collector and ctypes.
        if isinstance(ignored.exc_value, Interrupted):
            _send_again(ignored.exc_value.number)
        else:
            before(ignored)

    before, sys.unraisablehook = sys.unraisablehook, unraisable
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    caught = [n for n in numbers if signal.getsignal(n) in (signal.default_int_handler, leave, signal.SIG_DFL)]
    try:
        for number in caught:
            signal.signal(number, interrupt)
        yield
    finally:
        # What Python does at its end would only print `Interrupted`.
        for number in caught:
            signal.signal(number, signal.SIG_DFL)
        sys.unraisablehook = before


def _send_again(number: int) -> None:
    again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
    again.daemon = True
    try:
        again.start()
    except RuntimeError:  # no thread can be started
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _importing(frame: FrameType | None) -> bool:
    """Whether a frame is part of an import that a command makes."""
    while frame is not None and frame.f_globals.get("__name__") != _COMMAND_LINE:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


@contextmanager
def ending() -> Iterator[None]:
    """Turn every exception into an exit code and at most one message on stderr. Decorates commands, too."""
    try:
        try:
            yield
        finally:
            # Not left to the interpreter's end, which would report a closed pipe in many lines.
            sys.stdout.flush()
    except (Interrupted, KeyboardInterrupt) as error:
        number = error.number if isinstance(error, Interrupted) else signal.SIGINT
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
        ended = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
        _end(ended, BY_SIGNAL + number, error)
    except BrokenPipeError as error:
        discard(sys.stdout)
        raise SystemExit(CLOSED_PIPE) from error
    except OutputError as error:
        discard(sys.stdout)
        _end(str(error), UNUSABLE, error)
    except RopeError as error:
        _end(error_text(error), WRONG if isinstance(error, BuildError) else UNUSABLE, error)
    except MemoryError as error:
        _end("not enough memory (CLROPE_TRACEBACK=1 shows where)", UNUSABLE, error)
    except Exception as error:
        if isinstance(error, OSError):
            discard(sys.stdout)
        text = " ".join(str(error).split()) or "no message"
        _end(f"{type(error).__name__}: {text} (CLROPE_TRACEBACK=1 shows where)", UNUSABLE, error)


def error_text(error: RopeError) -> str:
    """Return what is printed of an error: several lines only where it has them itself, not from a name in it."""
    return str(error) if isinstance(error, BuildError) else message_text(error)


def _end(message: str, code: int, error: BaseException) -> NoReturn:
    try:
        if variable(b"CLROPE_TRACEBACK") not in (b"", b"0"):
            traceback.print_exception(error)
        print(f"clrope: {message}", file=sys.stderr, flush=True)
    except (OSError, ValueError):  # nobody can be told, but the exit code stays
        discard(sys.stderr)
    raise SystemExit(code) from error
