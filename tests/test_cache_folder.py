"""What the cache directory contains is loaded into the process: nobody else may have put it there."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from clrope import cache_folder
from clrope.cache_folder import (
    cache_dir,
    distrust,
    subfolder,
    temporary_dir,
    temporary_files,
    warn_once,
    write_atomically,
)
from clrope.device.pocl import cache_environment
from clrope.errors import CacheWarning, RopeError
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
        folder = subfolder("pocl/name")
    finally:
        os.umask(before)
    assert folder == cache / "pocl" / "name"
    found = {path.relative_to(cache).as_posix(): mode(path) for path in [cache, *cache.rglob("*")]}
    assert found == {
        ".": 0o700, "pocl": 0o700, "pocl/name": 0o700, "things.json": 0o600, "things.lock": 0o600,
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


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("after", ["mkdir", "resolve"])
def test_a_directory_that_another_process_removes_is_made_again(
    cache: Path, after: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = getattr(Path, after), [times]

    def then_removed(self: Path, *args: Any, **options: Any) -> Any:
        result = real(self, *args, **options)
        if self == cache and left[0] > 0:
            left[0] -= 1
            cache.rmdir()
        return result

    monkeypatch.setattr(Path, after, then_removed)
    assert cache_dir() == cache
    assert cache.is_dir()
    assert left == [0]


def test_a_directory_that_is_removed_each_time_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.mkdir

    def then_removed(self: Path, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        if self == cache:
            cache.rmdir()

    monkeypatch.setattr(Path, "mkdir", then_removed)
    with pytest.warns(CacheWarning, match=f"{cache} is not used.*No such file"):
        assert cache_dir() != cache


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


@pytest.mark.parametrize("home", [RuntimeError("no home"), KeyError(12345), "~/.cache/clrope", "CLROPE_CACHE_DIR"])
def test_an_unknown_home_costs_one_warning(home: Exception | str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing below the current directory is used: it may be anybody's."""

    def user_cache_dir(*_: object, **__: object) -> str:
        if isinstance(home, Exception):
            raise home
        return home

    cache.mkdir(mode=0o700)
    monkeypatch.chdir(cache)
    monkeypatch.setattr(platformdirs, "user_cache_dir", user_cache_dir)
    if home == "CLROPE_CACHE_DIR":
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
        monkeypatch.setenv("CLROPE_CACHE_DIR", "~/cache")
    else:
        monkeypatch.delenv("CLROPE_CACHE_DIR")
    monkeypatch.delenv("POCL_CACHE_DIR", raising=False)
    with pytest.warns(CacheWarning, match="^the home directory is unknown, and nothing is remembered"):
        assert cache_dir() == temporary_dir() / "clrope"
    Store("things", dict).put("a", {"b": 1})  # a second warning would be an error
    assert cache_environment("haswell") == {"POCL_CACHE_DIR": str(temporary_dir() / "pocl" / "clrope-haswell")}
    assert not list(cache.iterdir())


def test_temporary_files_go(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, new, others = (tmp_path / f"clrope-process-{name}" for name in ("left", "new", "others"))
    for folder in (left, new, tmp_path / "clrope-own"):
        folder.mkdir()
        (folder / "one.icd").write_text("")
        if folder != new:
            os.utime(folder, (0, 0))
    others.symlink_to(cache.parent)
    os.utime(others, (0, 0), follow_symlinks=False)
    before = os.umask(0)
    try:
        with temporary_files(FILES) as folder:
            assert mode(folder) == 0o700
            assert {p.name: (p.read_text(), mode(p)) for p in folder.iterdir()} == {
                n: (t, 0o600) for n, t in FILES.items()
            }
            assert folder.parent == tmp_path
            assert not left.exists()
    finally:
        os.umask(before)
    assert not folder.exists()
    assert (new / "one.icd").exists()
    assert (tmp_path / "clrope-own" / "one.icd").exists()
    assert others.is_symlink()
    assert cache.parent.exists()
    with pytest.raises(KeyboardInterrupt), temporary_files(FILES) as folder:
        raise KeyboardInterrupt
    assert not folder.exists()


def test_the_temporary_folder_of_a_living_process_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And that of a killed one goes, however long either has been there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "from clrope.cache_folder import temporary_dir; print(temporary_dir(), flush=True); input()"
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as other:
        try:
            assert other.stdout is not None
            folder = Path(other.stdout.readline().strip())
            assert folder.parent == tmp_path
            os.utime(folder, (0, 0))
            with temporary_files(FILES):
                assert folder.is_dir()
        finally:
            other.kill()
            other.wait()
        assert folder.is_dir()
        with temporary_files(FILES):
            assert not folder.exists()


@pytest.mark.parametrize("written", [0.0, 1e11])  # the clock may have been set back
def test_files_of_killed_writers_go(written: float, tmp_path: Path) -> None:
    left, new = tmp_path / ".new-left", tmp_path / ".new-new"
    for path in (left, new):
        path.write_text("half")
    os.utime(left, (written, written))
    write_atomically(tmp_path / "things.json", "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".new-new", "things.json"]


def test_temporary_files_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = tmp_path / "full"
    full.mkdir()
    write = cache_folder.write_atomically

    def refuse(path: Path, content: str) -> None:
        if full in path.parents:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(tempfile, "tempdir", str(full))
    monkeypatch.setattr(cache_folder, "write_atomically", refuse)
    monkeypatch.setattr(cache_folder, "_LAST_RESORT", str(tmp_path))
    with temporary_files(FILES) as folder:
        assert sorted(p.name for p in folder.iterdir()) == sorted(FILES)
        assert folder.parent == tmp_path
    monkeypatch.setattr(cache_folder, "_LAST_RESORT", str(full))
    with pytest.raises(RopeError, match=r"no directory can be made .*No space left"), temporary_files(FILES):
        pass
    assert not list(full.iterdir())


def test_a_subfolder_that_others_may_write_to_is_not_used(cache: Path) -> None:
    folder = subfolder("pocl")
    folder.chmod(0o777)
    with pytest.warns(CacheWarning, match=f"{folder} is not used"):
        other = subfolder("pocl/name")
    assert cache not in other.parents


def test_a_write_that_fails_leaves_the_old_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cache_dir() / "x"
    write_atomically(path, "old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no")))
    with pytest.raises(OSError, match="no"):
        write_atomically(path, "new")
    assert [(p.name, p.read_text()) for p in cache.iterdir()] == [("x", "old")]
