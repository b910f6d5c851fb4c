"""What is remembered between processes survives other writers, and nonsense in its file."""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
import threading
import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import filelock
import pytest

from clrope import cache_folder, store
from clrope.cache_folder import cache_dir, warn_once
from clrope.errors import CacheWarning
from clrope.store import Snapshot, Store


@dataclass(frozen=True)
class Thing:
    value: int


THINGS = Store("things", Thing, most=8)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("CLROPE_CACHE_DIR", str(path))
    return path


@pytest.fixture(autouse=True)
def _warned_of_nothing() -> None:
    warn_once.cache_clear()


def test_put_get_and_forget(cache: Path) -> None:
    assert THINGS.get("a 1") is None
    THINGS.put("a 1", Thing(1))
    THINGS.put_all({"a 2": Thing(2), "b 1": Thing(3)})
    assert THINGS.get("a 1") == Thing(1)
    assert THINGS.read() == {"a 1": Thing(1), "a 2": Thing(2), "b 1": Thing(3)}
    THINGS.put("a 1", Thing(4))
    assert list(THINGS.read()) == ["a 2", "b 1", "a 1"], "what is written again counts as new"
    THINGS.forget("a ")
    assert THINGS.read() == {"b 1": Thing(3)}


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "[" * 100000, '{"schema": "clrope.things/0", "entries": {"a": {"value": 1}}}',
        '{"schema": "clrope.things/1", "entries": [1]}', '{"schema": "clrope.things/1", "entries": {"a": 1}}',
        '{"schema": "clrope.things/1", "entries": {"a": {"written": 1.0, "record": {"value": "one"}}}}',
    ],
)  # fmt: skip
def test_nonsense_reads_as_empty_and_is_replaced(cache: Path, text: str) -> None:
    THINGS.put("a", Thing(1))
    (cache / "things.json").write_text(text)
    other = '"entries": {' in text  # another schema, or records that do not fit it
    with nullcontext() if other else pytest.warns(CacheWarning, match="counts as empty"):
        assert THINGS.get("a") is None
    assert THINGS.read() == {}
    THINGS.put("a", Thing(2))
    assert THINGS.get("a") == Thing(2)


def test_bytes_that_are_no_text_and_a_folder_read_as_empty(cache: Path) -> None:
    cache.mkdir()
    (cache / "things.json").write_bytes(b'{"schema": "\xff\xfe"}')
    with pytest.warns(CacheWarning, match="counts as empty"):
        assert THINGS.get("a") is None
    (cache / "things.json").unlink()
    (cache / "things.json").mkdir()
    with pytest.warns(CacheWarning) as warned:
        THINGS.put("a", Thing(1))
    assert ["counts as empty" in str(w.message) for w in warned] == [True, False]
    assert str(warned[1].message) == "things.json is not remembered: Is a directory"
    assert THINGS.get("a") is None


def test_a_damaged_record_harms_no_other(cache: Path) -> None:
    THINGS.put_all({"a": Thing(1), "b": Thing(2)})
    path = cache / "things.json"
    path.write_text(path.read_text().replace('"value": 1', '"worth": 1'))
    assert THINGS.read() == {"b": Thing(2)}


@pytest.mark.parametrize(
    "number", [str(10**400), "1e999", "-1", str(2**63), str(2**64), "true", '"1"', "[" * 500 + "]" * 500]
)
@pytest.mark.parametrize("field", ["value", "written", "expires"])
def test_numbers_of_any_size_are_no_error(cache: Path, field: str, number: str) -> None:
    THINGS.put_all({"a": Thing(1), "b": Thing(2)}, keep_s=1e6)
    path = cache / "things.json"
    entry = json.loads(path.read_text())["entries"]["a"]
    (entry["record"] if field == "value" else entry)[field] = "HERE"
    text = json.dumps({"schema": "clrope.things/1", "entries": {"a": entry}}).replace('"HERE"', number)
    path.write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        assert isinstance(THINGS.get("a"), Thing | None)
        THINGS.put("b", Thing(3))
        THINGS.put("b", Thing(3))
        assert THINGS.get("b") == Thing(3)


def test_a_full_disk_is_no_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    THINGS.put("a", Thing(1))
    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(CacheWarning) as warned:
        [kept.put(key, Thing(2)) for key in "bc" for kept in (THINGS, Store("others", Thing))]
    assert [str(w.message) for w in warned] == [f"nothing new is remembered in {cache}: No space left on device"]
    assert THINGS.read() == {"a": Thing(1)}
    assert sorted(p.name for p in cache.iterdir()) == ["others.lock", "things.json", "things.lock"]
    monkeypatch.setattr(tempfile, "mkdtemp", full)
    monkeypatch.setattr(tempfile, "mkstemp", full)
    monkeypatch.setattr(cache_folder.Path, "mkdir", full)
    cache_folder._temporary_dir.cache_clear()
    warn_once.cache_clear()
    with pytest.warns(CacheWarning):
        THINGS.put("b", Thing(2))
    assert THINGS.read() == {}
    with store.locked("x") as held:
        assert not held


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_no_lock_where_no_file_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    # The folder is there and root may write to it, so that a file that is absent looks like one being replaced.
    monkeypatch.setattr(store, "cache_dir", lambda: Path("/proc/self/fd"))
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waits for a lock that nobody has"))
    with store.locked("x") as held:
        assert not held


@pytest.mark.skipif(sys.platform == "win32", reason="locks are POSIX")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EIO])
def test_no_lock_on_a_file_system_without_them(number: int, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waits for a lock that nobody has"))
    with store.locked("x") as held:
        assert not held
    THINGS.put("a", Thing(1))
    assert THINGS.get("a") == Thing(1)


def test_entries_expire(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    THINGS.put("a", Thing(1), keep_s=100)
    assert THINGS.get("a") is not None
    now = time.time()
    monkeypatch.setattr(store.time, "time", lambda: now + 101)
    assert THINGS.get("a") is None


def test_entries_expire_where_the_clock_was_set_back(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    THINGS.put("a", Thing(1), keep_s=100)
    THINGS.put("b", Thing(2))
    now = time.time()
    monkeypatch.setattr(store.time, "time", lambda: now - 30)
    assert THINGS.read() == {"a": Thing(1), "b": Thing(2)}
    monkeypatch.setattr(store.time, "time", lambda: now - 1e6)
    assert THINGS.read() == {"b": Thing(2)}


def test_the_file_does_not_grow_without_end(cache: Path) -> None:
    for i in range(THINGS.most + 3):
        THINGS.put(str(i), Thing(i))
    assert list(THINGS.read()) == [str(i) for i in range(3, THINGS.most + 3)]


def test_writers_at_the_same_time_lose_nothing(cache: Path) -> None:
    many = Store("things", Thing)

    def write(name: str) -> None:
        for i in range(8):
            many.put(f"{name}{i}", Thing(i))

    threads = [threading.Thread(target=write, args=(n,)) for n in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(json.loads((cache / "things.json").read_text())["entries"]) == 24
    assert not [p for p in cache.iterdir() if p.suffix not in (".json", ".lock")]


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX paths")
def test_a_cache_that_cannot_be_made_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("CLROPE_CACHE_DIR", str(blocker / "cache"))
    with pytest.warns(CacheWarning, match="nothing is remembered: Not a directory"):
        assert os.access(cache_dir(), os.W_OK)
    THINGS.put("a", Thing(1))


def test_a_snapshot_is_read_once_and_its_version_tells(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = Snapshot(THINGS)
    THINGS.put("a", Thing(1))
    before = snapshot.version
    assert snapshot.records() == {"a": Thing(1)}
    THINGS.put("b", Thing(2))
    assert snapshot.records() == {"a": Thing(1)}
    assert snapshot.version == before
    snapshot.reread()
    assert snapshot.records() == {"a": Thing(1), "b": Thing(2)}
    assert snapshot.version != before
    monkeypatch.setenv("CLROPE_CACHE_DIR", str(cache.parent / "another"))
    assert snapshot.records() == {}
    assert snapshot.version != before


def test_a_stopped_holder_of_a_lock_does_not_stop_others(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_SILENCE_S", 0.2)
    monkeypatch.setattr(store, "_BEAT_S", 0.05)
    cache.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(str(cache / "x.lock")), store.locked("x", timeout=1e9, beating=True) as held:  # for ever
        assert not held


def test_others_wait_for_a_holder_that_goes_on(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_BEAT_S", 0.01)
    begun, waiting, done = threading.Event(), threading.Event(), []
    monkeypatch.setattr(store, "_touched", lambda path: waiting.set() or time.monotonic_ns())

    def hold() -> None:
        with store.locked("x", beating=True) as held:
            assert held
            begun.set()
            waiting.wait()
            done.append(True)

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    with store.locked("x", timeout=1e9, beating=True) as held:
        assert held
        assert done
    thread.join()


def test_the_holder_of_a_lock_shows_that_it_goes_on(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_BEAT_S", 0.01)
    with store.locked("x", beating=True):
        for _ in range(3):
            os.utime(cache / "x.alive", (0, 0))
            while not (cache / "x.alive").stat().st_mtime:  # for ever, if nothing touches it
                time.sleep(0.01)
    assert not (cache / "x.alive").exists()


def test_a_lock_is_held_where_no_thread_can_be_started(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with store.locked("x", beating=True) as held:
        assert held
