"""What lies in the cache directory is loaded into the process: nobody else may have put it there."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from clrope.cache_folder import cache_dir, distrust, exact_folder, subfolder, warn_once, write_atomically
from clrope.errors import CacheWarning
from clrope.store import Store

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="owners and modes are POSIX")
FILES = {"one.icd": "/lib/one.so\n", "two.icd": "/lib/two.so\n"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("CLROPE_CACHE_DIR", str(path))
    warn_once.cache_clear()
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_everything_in_it_is_the_users_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    try:
        Store("things", dict).put("a", {"b": 1})
        folder = exact_folder("icd/abc", FILES)
    finally:
        os.umask(before)
    assert folder == cache / "icd" / "abc"
    found = {path.relative_to(cache).as_posix(): mode(path) for path in [cache, *cache.rglob("*")]}
    assert found == {
        ".": 0o700, "icd": 0o700, "icd/abc": 0o700, "icd/abc/one.icd": 0o600, "icd/abc/two.icd": 0o600,
        "things.json": 0o600, "things.lock": 0o600,
    }  # fmt: skip


@pytest.mark.parametrize("wrong", [0o777, 0o775, 0o757, 0o1777])
def test_a_directory_that_others_may_write_to_is_not_used(cache: Path, wrong: int) -> None:
    cache.mkdir()
    cache.chmod(wrong)
    with pytest.warns(CacheWarning, match=f"{cache} is not used.*other users may write to it"):
        used = cache_dir()
    assert used != cache
    assert mode(used) == 0o700
    assert cache_dir() == used, "said once"
    cache.chmod(0o755)
    assert cache_dir() == cache


def test_a_directory_of_another_user_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir(mode=0o700)
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert distrust(cache) == f"it belongs to another user (uid {uid})"


def test_a_directory_that_others_may_replace_is_not_used(cache: Path) -> None:
    parent = cache.parent
    cache.mkdir(mode=0o700)
    before = mode(parent)
    parent.chmod(0o777)
    with pytest.warns(CacheWarning, match=f"any user may replace it, because {parent} has mode 777"):
        assert cache_dir() != cache
    parent.chmod(0o1777)
    assert cache_dir() == cache
    parent.chmod(before)


@pytest.mark.parametrize("name", ["~nosuchuser/cache", "file/below", "a\0b", "x" * 5000])
def test_a_directory_that_cannot_be_made(cache: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir()
    (cache / "file").write_text("")
    monkeypatch.chdir(cache)
    if "\0" not in name:  # which no variable can have
        monkeypatch.setenv("CLROPE_CACHE_DIR", name)
    if name.startswith("~"):
        assert cache_dir() == cache / name, "a name that stands for no user is a name"
    elif "\0" not in name:
        with pytest.warns(CacheWarning):
            assert not str(cache_dir()).startswith(str(cache))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "one.icd").write_text("/tmp/evil.so\n"),
        lambda folder: (folder / "three.icd").write_text("/tmp/evil.so\n"),
        lambda folder: (folder / "one.icd").unlink(),
        lambda folder: (folder / "one.icd").chmod(0o666),
        lambda folder: folder.chmod(0o777),
        lambda folder: (folder / "folder").mkdir(),
        lambda folder: (folder / "one.icd").unlink() or (folder / "one.icd").symlink_to(folder / "two.icd"),
        lambda folder: folder.rename(folder.parent / "moved") and folder.symlink_to(folder.parent / "moved"),
    ],
    ids=range(8),
)
def test_what_is_loaded_is_compared(cache: Path, damage: object) -> None:
    folder = exact_folder("icd/abc", FILES)
    assert exact_folder("icd/abc", FILES) == folder
    inodes = {p.name: p.stat().st_ino for p in folder.iterdir()}
    damage(folder)  # type: ignore[operator]
    again = exact_folder("icd/abc", FILES)
    assert {p.name: p.read_text() for p in again.iterdir()} == FILES
    assert not distrust(again)
    assert {p.name: p.stat().st_ino for p in again.iterdir()} != inodes


def test_a_subfolder_that_others_may_write_to_is_not_used(cache: Path) -> None:
    folder = subfolder("icd")
    folder.chmod(0o777)
    with pytest.warns(CacheWarning, match=f"{folder} is not used"):
        other = exact_folder("icd/abc", FILES)
    assert cache not in other.parents
    assert {p.name: p.read_text() for p in other.iterdir()} == FILES


def test_a_write_that_fails_leaves_the_old_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cache_dir() / "x"
    write_atomically(path, "old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no")))
    with pytest.raises(OSError, match="no"):
        write_atomically(path, "new")
    assert [(p.name, p.read_text()) for p in cache.iterdir()] == [("x", "old")]
