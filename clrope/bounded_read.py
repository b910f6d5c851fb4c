"""Files from outside: read whole up to a length, and never waited for. A file may be anything that has a name.

Opening a pipe that nobody writes to, or reading a device such as /dev/zero, would not end.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .errors import ConfigError

#: Bytes of a configuration; those of models have a few thousand.
LARGEST_CONFIG = 2 << 20


def path_argument(name: str, given: object) -> Path:
    """Return the path that an argument is; `ConfigError` for what is none."""
    if not isinstance(given, (str, os.PathLike)) or not isinstance(path := os.fspath(given), str):
        raise ConfigError(f"{name}: got {type(given).__name__}, a path is needed: a str or an os.PathLike of one")
    if "\0" in path:
        raise ConfigError(f"{name}: got {path[:200]!r}, a path has no null character")
    return Path(path)


def require_regular(path: str | os.PathLike[str] | int) -> None:
    """Raise `OSError` unless a file, by its name or open, is a regular one, which has a length and ends."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(0, "it is no regular file")


def read_bounded(path: str | os.PathLike[str], most: int, *, pipes: bool = True) -> bytes:
    """Return the bytes of a regular file, or what is written to a pipe; `OSError` if there are more than `most`.

    A pipe without a writer is empty. pipes: False where no user gives one, as in the cache: they are refused, too.
    """
    with _opened(path, pipes) as file:
        too_long = os.fstat(file.fileno()).st_size > most
        data = b"" if too_long else file.read(most + 1)
    if too_long or len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes")
    return data


def first_bytes(path: str | os.PathLike[str], count: int) -> bytes:
    """Return up to `count` bytes at the beginning of a regular file; `OSError` for anything else."""
    with _opened(path, pipes=False) as file:
        return file.read(count)


@contextmanager
def _opened(path: str | os.PathLike[str], pipes: bool) -> Iterator[IO[bytes]]:
    """Open a file without waiting for a writer; reading a pipe then waits for what a writer says."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if pipes and stat.S_ISFIFO(os.fstat(handle).st_mode):
            os.set_blocking(handle, True)
        else:
            require_regular(handle)
        with open(handle, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(handle)


def read_bounded_text(path: Path, most: int) -> str:
    """Return the text of a file in UTF-8; `ValueError` for another encoding, otherwise as `read_bounded`."""
    return read_bounded(path, most).decode("utf-8")
