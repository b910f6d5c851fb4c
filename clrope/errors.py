"""The one family of errors: everything this package raises deliberately derives from `RopeError`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

#: Makes the error for a message.
ErrorMaker = Callable[[str], Exception]
#: Characters of a value in a message.
LONGEST_SHOWN = 80
#: Characters of a compiler's log in a message: a macro that breaks the driver's headers makes logs of hundreds of KB.
LONGEST_LOG = 4000


class RopeError(Exception):
    """Base of every error of this package. Errors can be copied and pickled, whatever their constructors take."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args), self.__dict__ or None


class ConfigError(RopeError, ValueError):
    """A configuration is not one that RoPE is defined for; the message names the field."""


class ShapeError(RopeError, ValueError):
    """An array, a position vector or an output does not fit; the message names the argument."""


class UnsupportedError(RopeError):
    """A kernel of the caller's cannot express a call, such as a stride or a mode; the message says what is missing."""


class DeviceError(RopeError):
    """No device fits the request, or a device failed; the message lists what was tried."""


class BuildError(RopeError):
    """A kernel did not build.

    Attributes: `device` (name), `options` (as given to the compiler), `log` (the compiler's, whole; the message has
    its first 4000 characters), `source_path` (a file with the exact source that failed, so that it can be fed to
    another compiler; '' if none could be written).
    """

    def __init__(self, device: str, options: Iterable[str], log: str, source_path: str | os.PathLike[str]) -> None:
        self.device = device
        self.options = tuple(options)
        self.log = log
        self.source_path = os.fspath(source_path)
        text = log.strip() or "(empty)"
        if len(text) > LONGEST_LOG:
            text = f"{text[:LONGEST_LOG]}\n... ({len(text) - LONGEST_LOG} more characters: attribute `log`)"
        super().__init__(
            f"kernel build failed on {device}\n  options: {' '.join(self.options) or '(none)'}\n"
            f"  source:  {self.source_path or '(not saved)'}\n  log:\n{text}"
        )


class CopyError(RopeError, TypeError):
    """An object that is bound to memory and to this process was to be copied or pickled."""


class CacheWarning(RuntimeWarning):
    """The cache directory, a file in it, or a driver's `.icd` file cannot be used. Everything works as without it."""


def _restored(kind: type[RopeError], args: tuple[Any, ...]) -> RopeError:
    """Return a pickled error; its constructor would take other arguments than those of `Exception`."""
    return kind.__new__(kind, *args)


def shown(value: object, text: Callable[[Any], str] = repr) -> str:
    """Return a value as a message has it, cut; no more than its type if neither Python nor the value gives a text."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return f"an integer of {value.bit_length()} bits"
    try:
        whole = text(value)
    except MemoryError:
        raise
    except Exception:  # lists in lists without an end, an integer of thousands of digits inside, the value's own code
        return f"a {type(value).__name__} that cannot be printed"
    return whole if len(whole) <= LONGEST_SHOWN else f"{whole[:LONGEST_SHOWN]}..."


def unreadable(argument: str, value: object, error: Exception) -> str:
    """Return the message for an argument whose own code fails when it is read."""
    return f"{argument}: {type(value).__name__} cannot be read: {type(error).__name__}: {error}"


@contextmanager
def reading(argument: str, value: object, refuse: ErrorMaker = ShapeError) -> Iterator[None]:
    """Raise `refuse(message)` for an error of a value's own code inside, such as of an array's `__array__`."""
    try:
        yield
    except (RopeError, MemoryError):
        raise
    except Exception as error:
        raise refuse(unreadable(argument, value, error)) from error


@contextmanager
def naming_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Put the file before the messages of `ConfigError` raised inside, where they do not begin with it."""
    try:
        yield
    except ConfigError as error:
        name, message = os.fspath(path), str(error)
        if message.startswith((f"{name}:", f"{name}{os.sep}")):
            raise
        raise ConfigError(f"{name}: {message}") from error


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Replace argument names at the start of the messages of `ConfigError` and `ShapeError` raised inside.

    For adapters, whose callers know an argument by the peer's name: "positions: got ..." becomes "pos_ids: got ...".
    """
    try:
        yield
    except (ConfigError, ShapeError) as error:
        head, colon, rest = str(error).partition(":")
        head = re.sub(r"[A-Za-z_]\w*", lambda word: names.get(word[0], word[0]), head)
        kind = ConfigError if isinstance(error, ConfigError) else ShapeError
        raise kind(head + colon + rest) from error
