"""The cache directory: where it is, whether this process may trust it, and folders and files in it.

What lies in it is loaded into the process (drivers' `.icd` files, PoCL's kernels), so it has to belong to the user, and
nobody else may write to it. A directory that fails this, or that cannot be written, is not used: a temporary directory
of the process takes its place, one warning says so, and nothing is remembered.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

from .errors import CacheWarning, RopeError

#: Where a temporary directory is made if the system's own place for them is full.
_LAST_RESORT = "/dev/shm"


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
    reasons = []
    for place in (None, _LAST_RESORT):
        try:
            folder = tempfile.mkdtemp(prefix="clrope-", dir=place)
            break
        except OSError as error:
            reasons.append(f"{place or 'the temporary directory'}: {error.strerror or error}")
    else:
        raise RopeError(f"no directory can be made for files of this process ({'; '.join(reasons)}); set TMPDIR")

    def remove() -> None:
        if os.getpid() == pid:  # not at the end of a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return Path(folder)


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


def exact_folder(name: str, files: Mapping[str, str]) -> Path:
    """Return a folder that holds just these files: one that is there is compared, and replaced where it differs."""
    parent, last = os.path.split(name)
    folder = subfolder(parent) / last
    if _holds(folder, files):
        return folder
    with contextlib.suppress(OSError):
        new = _new_folder(folder.parent, files)
        try:
            if folder.exists():
                folder.rename(new / ".old")
            new.rename(folder)
            shutil.rmtree(folder / ".old", ignore_errors=True)
        except OSError:  # another process was quicker
            shutil.rmtree(new, ignore_errors=True)
    if _holds(folder, files):
        return folder
    try:
        return _new_folder(temporary_dir(), files)
    except OSError as error:
        raise RopeError(f"{folder}: cannot be written ({error.strerror or error})") from error


def _holds(folder: Path, files: Mapping[str, str]) -> bool:
    try:
        if folder.is_symlink() or distrust(folder) or set(os.listdir(folder)) != set(files):
            return False
        paths = {folder / name: text for name, text in files.items()}
        return all(not p.is_symlink() and not distrust(p) and p.read_text("utf-8") == t for p, t in paths.items())
    except (OSError, ValueError):
        return False


def _new_folder(parent: Path, files: Mapping[str, str]) -> Path:
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=".new-"))
    try:
        for name, text in files.items():
            write_atomically(folder / name, text)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


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
