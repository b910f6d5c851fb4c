"""The cache directory: where it is, whether this process may trust it, folders and files in it; temporary files.

What it contains is loaded into the process (compiled kernels), so it has to belong to the user, and nobody else may
write to it. A directory that fails this, or that cannot be written, is not used: a temporary directory of the process
takes its place, one warning says so, and nothing is remembered.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import os
import shutil
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from .errors import CacheWarning, RopeError

#: Where a temporary directory is made if the system's own place for them is full.
_LAST_RESORT = "/dev/shm"
#: What temporary folders begin with, and the seconds after which a new one is locked and a new file has its name.
_PREFIX = "clrope-process-"
_NEW_S = 60.0
#: How often a folder is made that others remove.
_TRIES = 3
#: Errors that every file of a directory meets.
_FULL = (errno.ENOSPC, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC))


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
        wanted = os.path.expanduser(given)  # leaves the name of an unknown user as it is
        if Path(wanted).parts[:1] == ("~",):
            return _temporary_instead("clrope")
        with contextlib.suppress(OSError):  # relative to a folder that was deleted
            wanted = os.path.abspath(wanted)
        return Path(wanted)
    return user_cache_dir("clrope")


def user_cache_dir(program: str) -> Path:
    """Return the user's cache directory of a program; a temporary one where the home directory is unknown."""
    import platformdirs  # here, because importing this package must stay cheap

    try:
        path = Path(platformdirs.user_cache_dir(program, appauthor=False))
    except (RuntimeError, KeyError):
        return _temporary_instead(program)
    # Older platformdirs return one relative to the current directory, which may be anybody's.
    return path if path.is_absolute() else _temporary_instead(program)


def _temporary_instead(program: str) -> Path:
    warn_once(
        "the home directory is unknown, and nothing is remembered there: "
        "set HOME, or CLROPE_CACHE_DIR and POCL_CACHE_DIR to absolute paths"
    )
    return temporary_dir() / program


def _make(path: Path) -> str:
    """Make a folder that is absent; return why it cannot be used, '' if it can."""
    for _ in range(_TRIES):
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            return distrust(path)
        except FileNotFoundError as error:  # another process removes it at this moment
            reason = error.strerror or str(error)
        except (OSError, ValueError) as error:  # ValueError: a null byte in its name
            return getattr(error, "strerror", None) or str(error)
    return reason


def distrust(path: Path) -> str:
    """Return why the content of a folder or file is not to be trusted, '' if it is this user's alone.

    Raises `FileNotFoundError` if it is not there, or no longer.
    """
    status = os.stat(path)
    if not hasattr(os, "geteuid"):
        return "" if os.access(path, os.R_OK | os.W_OK) else "no permission"
    if status.st_uid != os.geteuid():
        return f"it belongs to another user (uid {status.st_uid})"
    if status.st_mode & 0o022:
        return f"other users may write to it (mode {stat.S_IMODE(status.st_mode):o}; `chmod go-w` ends that)"
    for parent in path.resolve().parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"any user may replace it, because {parent} has mode {stat.S_IMODE(mode):o}"
    if os.access(path, os.R_OK | os.W_OK):
        return ""
    os.stat(path)  # raises if it has gone meanwhile
    return "no permission"


def temporary_dir() -> Path:
    """Return this process's temporary directory, which goes at its end; `RopeError` if none can be made."""
    folder = _temporary_dir(os.getpid())
    with contextlib.suppress(FileNotFoundError):  # a cleaner of /tmp removed it
        if not distrust(folder):
            return folder
    _temporary_dir.cache_clear()
    return _temporary_dir(os.getpid())


@functools.cache
def _temporary_dir(pid: int) -> Path:
    folder, _ = _new_folder({})  # locked until the process ends

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


def trusted_folder(path: Path) -> Path:
    """Return a folder outside of the cache directory, made if absent; a temporary one where it cannot be trusted."""
    reason = _make(path)
    if not reason:
        return path
    warn_once(f"{path} is not used: {reason}")
    path = temporary_dir() / path.name
    path.mkdir(mode=0o700, exist_ok=True)
    return path


@contextlib.contextmanager
def temporary_files(files: Mapping[str, str]) -> Iterator[Path]:
    """Yield a new folder, mode 700, with these files, mode 600; it goes at the end of the `with`."""
    folder, lock = _new_folder(files)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _unlock(lock)


def _new_folder(files: Mapping[str, str]) -> tuple[Path, int | None]:
    """Return a new folder with these files, and its lock; remove what killed processes left next to it."""
    reasons = []
    for place in (None, _LAST_RESORT):
        folder = None
        try:
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
            lock = _lock(folder)
            _remove_old(folder)
            for name, text in files.items():
                write_atomically(folder / name, text)
            return folder, lock
        except OSError as error:
            reasons.append(f"{place or 'the temporary directory'}: {error.strerror or error}")
            if folder:
                shutil.rmtree(folder, ignore_errors=True)
    raise RopeError(f"no directory can be made for files of this process ({'; '.join(reasons)}); set TMPDIR")


def _lock(folder: Path) -> int | None:
    """Lock a folder for this process and those forked from it; None if another one has it, or locks are unknown here.

    The system unlocks it when they end, however they end.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    handle = None
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return handle
    except OSError:
        _unlock(handle)
        return None


def _unlock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)


def _remove_old(folder: Path) -> None:
    """Remove what killed processes of this user left next to a temporary folder."""
    for old in folder.parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = old.lstat()
            if status.st_uid != os.geteuid() or not _is_old(status):
                continue
            lock = _lock(old)
            if lock is not None:
                shutil.rmtree(old, ignore_errors=True)
                _unlock(lock)


def _is_old(status: os.stat_result) -> bool:
    """Whether a file is older than `_NEW_S`, or from a time to come: the clock was set back."""
    return abs(time.time() - status.st_mtime) > _NEW_S


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file, mode 600, so that a reader sees either the old one or the whole new one."""
    for old in path.parent.glob(".new-*"):  # of a process that was killed
        with contextlib.suppress(OSError):
            if _is_old(old.lstat()):
                old.unlink()
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def warn_not_remembered(what: str, error: OSError | RopeError) -> None:
    """Warn that something could not be written; once for all of the directory where nothing can be."""
    reason = getattr(error, "strerror", None) or error
    if getattr(error, "errno", None) not in _FULL:
        warn_once(f"{what} is not remembered: {reason}")
    elif not _make(folder := _wanted_dir()):  # `cache_dir` has warned of one that is not used
        warn_once(f"nothing new is remembered in {folder}: {reason}")


@functools.cache
def warn_once(message: str) -> None:
    """Warn, once in a process for each message."""
    warnings.warn(message, CacheWarning, stacklevel=3)
