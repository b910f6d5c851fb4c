"""The cache directory: where it is, whether this process may trust it, folders and files in it; temporary files.

What it contains is loaded into the process (compiled kernels), so it has to belong to the user, and nobody else may
write to it. A directory that fails this, or that cannot be written, is not used: a temporary directory of the process
takes its place, one warning says so, and nothing is remembered.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from .errors import CacheWarning, RopeError

#: Where a temporary directory is made if the system's own place for them is full.
_LAST_RESORT = "/dev/shm"
#: What the folders of `temporary_files` begin with, and the age in seconds at which nobody uses one any more.
_FILES = "clrope-files-"
_OLD_S = 86400.0


def cache_dir() -> Path:
    """Return the cache directory (`CLROPE_CACHE_DIR`, else the user's), made with mode 700 if absent.

    Raises `RopeError` where not even a temporary directory can be made.
    """
    path = _wanted_dir()
    reason = _make(path)
    if not reason:
        return path
    warn_once(f"the cache directory {path} is not used, and nothing is remembered: {reason}")
    return temporary_dir()


def _wanted_dir() -> Path:
    given = os.environ.get("CLROPE_CACHE_DIR")
    if given:
        return Path(os.path.abspath(os.path.expanduser(given)))  # leaves the name of an unknown user as it is
    import platformdirs  # here, because importing this package must stay cheap

    return Path(platformdirs.user_cache_dir("clrope", appauthor=False))


def _make(path: Path) -> str:
    """Make a folder that is absent; return why it cannot be used, '' if it can."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return distrust(path)
    except (OSError, ValueError) as error:  # ValueError: a null byte in its name
        return getattr(error, "strerror", None) or str(error)


def distrust(path: Path) -> str:
    """Return why the content of a folder or file is not to be trusted, '' if it is this user's alone."""
    if not hasattr(os, "geteuid"):
        return "" if os.access(path, os.R_OK | os.W_OK) else "no permission"
    status = os.stat(path)
    if status.st_uid != os.geteuid():
        return f"it belongs to another user (uid {status.st_uid})"
    if status.st_mode & 0o022:
        return f"other users may write to it (mode {stat.S_IMODE(status.st_mode):o}; `chmod go-w` ends that)"
    for parent in path.resolve().parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"any user may replace it, because {parent} has mode {stat.S_IMODE(mode):o}"
    return "" if os.access(path, os.R_OK | os.W_OK) else "no permission"


def temporary_dir() -> Path:
    """Return this process's temporary directory, which goes at its end; `RopeError` if none can be made."""
    folder = _temporary_dir(os.getpid())
    if not folder.is_dir() or distrust(folder):  # a cleaner of /tmp removed it
        _temporary_dir.cache_clear()
        folder = _temporary_dir(os.getpid())
    return folder


@functools.cache
def _temporary_dir(pid: int) -> Path:
    folder = _new_folder("clrope-", {})

    def remove() -> None:
        if os.getpid() == pid:  # not at the end of a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def subfolder(name: str) -> Path:
    """Return a folder of the cache directory, made if absent; of the temporary directory where it cannot be trusted."""
    for root in (cache_dir, temporary_dir):
        path = root()
        for part in Path(name).parts:
            path /= part
            reason = _make(path)
            if reason:
                warn_once(f"{path} is not used: {reason}")
                break
        else:
            return path
    raise RopeError(f"{path}: {reason}")


@contextlib.contextmanager
def temporary_files(files: Mapping[str, str]) -> Iterator[Path]:
    """Yield a new folder, mode 700, with these files, mode 600; it goes at the end of the `with`."""
    folder = _new_folder(_FILES, files)
    try:
        _remove_old(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_old(folder: Path) -> None:
    """Remove what killed processes of this user left next to a folder of `temporary_files`."""
    for old in folder.parent.glob(f"{_FILES}*"):
        with contextlib.suppress(OSError):
            status = old.lstat()
            if status.st_mtime < time.time() - _OLD_S and status.st_uid == folder.stat().st_uid:
                shutil.rmtree(old)


def _new_folder(prefix: str, files: Mapping[str, str]) -> Path:
    reasons = []
    for place in (None, _LAST_RESORT):
        folder = None
        try:
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
            for name, text in files.items():
                write_atomically(folder / name, text)
            return folder
        except OSError as error:
            reasons.append(f"{place or 'the temporary directory'}: {error.strerror or error}")
            if folder:
                shutil.rmtree(folder, ignore_errors=True)
    raise RopeError(f"no directory can be made for files of this process ({'; '.join(reasons)}); set TMPDIR")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file, mode 600, so that a reader sees either the old one or the whole new one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@functools.cache
def warn_once(message: str) -> None:
    """Warn, once in a process for each message."""
    warnings.warn(message, CacheWarning, stacklevel=3)
