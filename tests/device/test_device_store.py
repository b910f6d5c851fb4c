"""What is remembered between processes survives other writers, and nonsense in its file."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from clrope.device import store


def test_put_and_get(cache: Path) -> None:
    assert store.get("things", "a") is None
    store.put("things", "a", {"value": 1})
    store.put("things", "b", {"value": 2})
    entry = store.get("things", "a")
    assert entry is not None
    assert entry["value"] == 1
    store.forget("things", "a")
    assert store.get("things", "a") is None
    assert store.get("things", "b") is not None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"schema": 0, "entries": {"a": {"value": 1}}}', '{"schema": 1, "entries": [1]}']
)
def test_nonsense_reads_as_empty_and_is_replaced(cache: Path, text: str) -> None:
    store.put("things", "a", {"value": 1})
    (cache / "things.json").write_text(text)
    assert store.get("things", "a") is None
    store.put("things", "a", {"value": 2})
    assert store.get("things", "a")["value"] == 2  # type: ignore[index]


def test_entries_expire(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("things", "a", {"value": 1}, keep_s=100)
    assert store.get("things", "a") is not None
    now = store.time.time()
    monkeypatch.setattr(store.time, "time", lambda: now + 101)
    assert store.get("things", "a") is None


def test_the_file_does_not_grow_without_end(cache: Path) -> None:
    for i in range(store._MAX_ENTRIES + 10):
        store.put("things", str(i), {"value": i})
    entries = json.loads((cache / "things.json").read_text())["entries"]
    assert len(entries) == store._MAX_ENTRIES
    assert str(store._MAX_ENTRIES + 9) in entries
    assert "0" not in entries


def test_writers_at_the_same_time_lose_nothing(cache: Path) -> None:
    def write(name: str) -> None:
        for i in range(8):
            store.put("things", f"{name}{i}", {"value": i})

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
    assert os.access(store.cache_dir(), os.W_OK)
    store.put("things", "a", {"value": 1})
