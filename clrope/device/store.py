"""What is remembered between processes: small JSON files in the cache directory, locked and replaced atomically."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: Raise it when the meaning of an entry changes: files of another schema are read as empty.
SCHEMA = 1
_MAX_ENTRIES = 64
_fallback: str | None = None


def cache_dir() -> Path:
    """Return the private cache directory (`CLROPE_CACHE_DIR`, else the user's), made if absent.

    Where it cannot be made (read-only home) a temporary directory of this process takes its place: everything works,
    nothing is remembered.
    """
    global _fallback
    given = os.environ.get("CLROPE_CACHE_DIR")
    if given:
        path = Path(given).expanduser().absolute()
    else:
        import platformdirs  # here, because importing this package must stay cheap

        path = Path(platformdirs.user_cache_dir("clrope", appauthor=False))
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(path, os.W_OK | os.X_OK):
            return path
    except OSError:
        pass
    if _fallback is None:
        _fallback = tempfile.mkdtemp(prefix="clrope-")
        atexit.register(_remove, _fallback, os.getpid())
    return Path(_fallback)


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not at the end of a forked child
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def locked(name: str, timeout: float = 10.0) -> Iterator[bool]:
    """Hold the lock `name` of the cache directory; yields False, not held, where it could not be had in time."""
    import filelock

    lock = filelock.FileLock(str(cache_dir() / f"{name}.lock"))
    try:
        lock.acquire(timeout=timeout)
    except (filelock.Timeout, OSError, NotImplementedError):
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _load(path: Path) -> dict[str, dict[str, Any]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] == SCHEMA and isinstance(data["entries"], dict):
            return {str(k): v for k, v in data["entries"].items() if isinstance(v, dict)}
    except (OSError, ValueError, KeyError, TypeError):
        pass  # absent, truncated, of another version, or not ours: the same as nothing remembered
    return {}


def get(name: str, key: str) -> dict[str, Any] | None:
    """Return the entry `key` of the file `name`, or None; an entry past its time counts as absent."""
    entry = _load(cache_dir() / f"{name}.json").get(key)
    if entry is None:
        return None
    expires = entry.get("expires")
    if isinstance(expires, (int, float)) and time.time() > expires:
        return None
    return entry


def put(name: str, key: str, entry: dict[str, Any], keep_s: float | None = None) -> None:
    """Remember `entry` (for `keep_s` seconds, or for good); where nothing can be written nothing is remembered."""

    def change(entries: dict[str, dict[str, Any]]) -> None:
        entries.pop(key, None)
        now = time.time()
        entries[key] = {**entry, "written": now, **({} if keep_s is None else {"expires": now + keep_s})}

    _update(name, change)


def forget(name: str, key: str) -> None:
    """Drop one entry."""
    _update(name, lambda entries: entries.pop(key, None))


def _update(name: str, change: Callable[[dict[str, dict[str, Any]]], object]) -> None:
    path = cache_dir() / f"{name}.json"
    with locked(name):
        entries = _load(path)
        change(entries)
        for old in list(entries)[:-_MAX_ENTRIES]:
            del entries[old]
        with contextlib.suppress(OSError):
            write_atomically(path, json.dumps({"schema": SCHEMA, "entries": entries}, indent=1))


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees either the old one or the whole new one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
