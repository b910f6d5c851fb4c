"""Files that users ask for: whatever happens, the old file or the whole new one is there, and no part of one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import IO

from .errors import RopeError


def write_file(path: str | Path, content: str | bytes) -> None:
    """Write a text as UTF-8, or bytes; `RopeError` if that fails.

    Pipes, devices, and files in folders where none can be made are written as they are; other files are replaced.
    """
    path, data = Path(path), content.encode() if isinstance(content, str) else content
    try:
        in_place = path.exists() and not (
            path.is_file() and os.access(os.path.dirname(os.path.realpath(path)), os.W_OK)
        )
        if in_place:
            path.write_bytes(data)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error
    if not in_place:
        replace_file(path, lambda file: file.write(data))


def replace_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write to a temporary file and rename; whatever happens, no part of a file stays behind.

    A symbolic link is followed, and a file that is there gives the new one its mode. What a process left that was
    killed while it wrote the same file is removed.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.is_symlink():
            raise OSError(0, "it is a link to itself")
        before = os.stat(target) if target.exists() else None
        if before and not stat.S_ISREG(before.st_mode):
            raise OSError(0, "it is no regular file")
        if before and not os.access(target, os.W_OK):
            raise PermissionError(0, "no permission to write to it")
        start = f".clrope-{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:12]}-"
        _remove_leftovers(target.parent, start)
        file, temporary = _new_file(target.parent, start)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error
    try:
        with file:
            write(file)
            file.flush()  # before the old file goes: the disk may be full
            if before:
                os.chmod(temporary, stat.S_IMODE(before.st_mode))
            if os.name == "nt":
                file.close()  # only a closed file is renamed there
            os.replace(temporary, target)
    except OSError as error:
        _discard(temporary)
        raise _unwritable(path, error) from error
    except BaseException:
        _discard(temporary)
        raise


def _unwritable(path: Path, error: Exception) -> RopeError:
    return RopeError(f"{path}: cannot be written ({getattr(error, 'strerror', None) or error})")


def _new_file(folder: Path, start: str) -> tuple[IO[bytes], Path]:
    """Return a new file that this process holds, and its name.

    Before it is held another process may take it for a leftover and remove it; then the next one is tried.
    """
    while True:
        path = folder / f"{start}{os.urandom(4).hex()}.part"
        file = open(path, "xb")  # noqa: SIM115
        try:
            if _lock(file) is not False and path.exists():
                return file, path
        except BaseException:
            file.close()
            _discard(path)
            raise
        file.close()
        _discard(path)


def _remove_leftovers(folder: Path, start: str) -> None:
    for leftover in folder.glob(f"{start}*.part"):
        with contextlib.suppress(OSError), open(leftover, "r+b") as file:
            if _lock(file):  # its writer is gone
                leftover.unlink()


def _lock(file: IO[bytes]) -> bool | None:
    """Hold a file until it is closed; False if another process does, None if the system cannot tell."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
