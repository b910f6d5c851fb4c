"""What is remembered between processes: one JSON file a subject in the cache directory, locked and replaced atomically.

A file that cannot be read, is damaged or of another schema counts as empty, a damaged record as absent, and what cannot
be written is not remembered: a cache never makes a call fail.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from .bounded_read import read_bounded
from .cache_folder import cache_dir, warn_not_remembered, warn_once, write_atomically
from .environ import variable
from .errors import RopeError

if TYPE_CHECKING:
    import filelock

#: Bytes of a file; those of a dozen devices have a few millions.
_LARGEST_FILE = 64 << 20
#: Seconds by which another machine's clock may be ahead.
_AHEAD_S = 60.0
#: Seconds between two signs of life of a lock's holder, and without one until others go on.
_BEAT_S = 0.5
_SILENCE_S = 5.0

T = TypeVar("T")


class _Entry(msgspec.Struct, omit_defaults=True):
    record: Any
    written: float
    expires: float | None = None


class _Contents(msgspec.Struct):
    schema: str
    entries: dict[str, Any]


@dataclass(frozen=True)
class Store(Generic[T]):
    """Records of one type by key, in the file `<name>.json`.

    kind:   a dataclass, a msgspec Struct, or dict; a record that does not fit it counts as absent. Fields of
            other types are written by their `to_dict` and read by their `from_dict`.
    schema: raise it when the meaning of a record changes.
    most:   records kept; the oldest go first.
    """

    name: str
    kind: type[T]
    schema: int = 1
    most: int = 64

    @property
    def path(self) -> Path:
        """The file."""
        return cache_dir() / f"{self.name}.json"

    def get(self, key: str) -> T | None:
        """Return the record `key`, None if there is none or its time is over."""
        return self._record(self._load().get(key))

    def read(self, path: Path | None = None) -> dict[str, T]:
        """Return all records by key, the oldest first; path: of such a file from elsewhere."""
        found = ((key, self._record(entry)) for key, entry in self._load(path).items())
        return {key: record for key, record in found if record is not None}

    def put(self, key: str, record: T, keep_s: float | None = None) -> None:
        """Remember a record, for `keep_s` seconds or for good."""
        self.put_all({key: record}, keep_s)

    def put_all(self, records: Mapping[str, T], keep_s: float | None = None) -> None:
        """Remember several records in one step."""
        now = time.time()
        expires = None if keep_s is None else now + keep_s
        new = {key: _Entry(record, now, expires) for key, record in records.items()}
        self._change(lambda entries: {**{k: e for k, e in entries.items() if k not in new}, **new})

    def forget(self, prefix: str) -> int:
        """Drop every record whose key begins with `prefix`; return how many there were."""
        count = sum(key.startswith(prefix) for key in self._load())
        if count:
            self._change(lambda entries: {k: e for k, e in entries.items() if not k.startswith(prefix)})
        return count

    def _change(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        with locked(self.name):
            entries = list(change(self._load()).items())[-self.most :]
            try:
                data = msgspec.json.encode(_Contents(self.tag, dict(entries)), enc_hook=lambda value: value.to_dict())
                write_atomically(self.path, msgspec.json.format(data, indent=1).decode())
            except (OSError, RopeError) as error:
                warn_not_remembered(f"{self.name}.json", error)

    @property
    def tag(self) -> str:
        """The schema's name, as the file has it."""
        return f"clrope.{self.name}/{self.schema}"

    def _load(self, path: Path | None = None) -> dict[str, Any]:
        given = path is not None
        try:
            path = path or self.path
            data = read_bounded(path, _LARGEST_FILE, pipes=given)
            file = msgspec.json.decode(data, type=_Contents)
        except (FileNotFoundError, RopeError):
            return {}
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            warn_once(f"{path} cannot be read and counts as empty: {getattr(error, 'strerror', None) or error}")
            return {}
        return file.entries if file.schema == self.tag else {}

    def _record(self, data: Any) -> T | None:
        try:
            entry = msgspec.convert(data, _Entry)
            # One from a time to come would be kept as long as the clock was set back.
            if entry.expires is None or entry.written - _AHEAD_S <= time.time() <= entry.expires:
                return msgspec.convert(entry.record, self.kind, dec_hook=lambda kind, value: kind.from_dict(value))
        # msgspec up to 0.20: its errors are no ValueErrors, and an integer beyond float64 is a SystemError.
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError, SystemError):
            pass
        return None


def schema_of(kind: type) -> dict[str, Any]:
    """Return the JSON schema of a store's records."""
    return msgspec.json.schema(kind, schema_hook=lambda _: {"type": "object"})


class Snapshot(Generic[T]):
    """The records of a store as read once in this process, for callers that ask at every call.

    rereads: how often `reread()` was called. version: changes whenever the answer may: another `CLROPE_CACHE_DIR`, or
    `reread()` after a change of the store.
    """

    def __init__(self, store: Store[T]) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.rereads = 0
        self._read: dict[bytes, dict[str, T]] = {}

    @property
    def version(self) -> tuple[bytes, int]:
        """Return what to keep next to anything derived from the records."""
        # The variable, not the directory: finding that takes system calls.
        return variable(b"CLROPE_CACHE_DIR"), self.rereads

    def records(self) -> Mapping[str, T]:
        """Return the records, read at the first call."""
        with self._lock:
            place = self.version[0]
            if place not in self._read:
                self._read[place] = self._store.read()
            return self._read[place]

    def reread(self) -> None:
        """Read the file again at the next call of `records`."""
        with self._lock:
            self._read.clear()
            self.rereads += 1


@contextlib.contextmanager
def locked(name: str, timeout: float = 3.0, *, beating: bool = False) -> Iterator[bool]:
    """Hold the lock `name` of the cache directory; yields False, not held, where it could not be had in time.

    timeout: seconds. beating: for what takes long. The holder shows that it goes on, by a file `<name>.alive`; others
    wait only as long as that.
    """
    import filelock

    try:
        path = cache_dir() / f"{name}.lock"
        # Where no file can be made although the folder says so (/proc), filelock takes that for another one's lock.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), 0o600)
        try:
            _check_locks(handle)
        finally:
            os.close(handle)
        lock = filelock.FileLock(str(path), mode=0o600)
        if beating:
            _acquire_from_living(lock, _alive(path), timeout)
        else:
            lock.acquire(timeout=timeout)
    except (filelock.Timeout, OSError, NotImplementedError, RopeError):
        yield False
        return
    try:
        with _beating(_alive(path)) if beating else contextlib.nullcontext():
            yield True
    finally:
        lock.release()


def _check_locks(handle: int) -> None:
    """Raise `OSError` on a file system without locks, where filelock would wait as for another one's."""
    try:
        import fcntl
    except ImportError:
        return
    with contextlib.suppress(BlockingIOError, PermissionError, InterruptedError):
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _alive(lock: Path) -> Path:
    """Return the file that a lock's holder touches. It is not the lock: older filelocks touch that when they ask."""
    return lock.with_suffix(".alive")


def _acquire_from_living(lock: filelock.BaseFileLock, path: Path, timeout: float) -> None:
    """Acquire a lock; raise `filelock.Timeout` after `timeout`, or once `path` was not touched for `_SILENCE_S`.

    A holder may be stopped (Ctrl-Z, a debugger, a container that is paused) and keep the lock for ever.
    """
    import filelock

    begin = heard = time.monotonic()
    touched = _touched(path)
    while True:
        try:
            lock.acquire(timeout=_BEAT_S)
            return
        except filelock.Timeout:
            now, before, touched = time.monotonic(), touched, _touched(path)
            heard = now if touched != before else heard
            if now - begin > timeout or now - heard > _SILENCE_S:
                raise


@contextlib.contextmanager
def _beating(path: Path) -> Iterator[None]:
    """Touch a file all the time, from a thread; it goes at the end."""
    end = threading.Event()

    def beat() -> None:
        with contextlib.suppress(OSError):  # the cache was deleted
            while not end.wait(_BEAT_S):
                os.utime(path)

    # No file can be made, or no thread started: others do not wait long.
    with contextlib.suppress(OSError, RuntimeError):
        path.touch(0o600)
        threading.Thread(target=beat, daemon=True).start()
    try:
        yield
    finally:
        end.set()
        with contextlib.suppress(OSError):
            path.unlink()


def _touched(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
