"""Files that users ask for are written whole, or the old one stays."""

from __future__ import annotations

import ast
import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from clrope import output_file
from clrope.errors import RopeError
from clrope.lab.new_kernel import write_new
from clrope.output_file import write_file

PACKAGE = Path(output_file.__file__).parent
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
#: What writes a file in place; a pipe or a device has no old content.
IN_PLACE = ("write_text", "write_bytes")
#: Modules that write what no user named.
OTHERS = {"output_file.py"}


def test_all_modules_write_files_of_users_by_this_one() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py") if str(path.relative_to(PACKAGE)) not in OTHERS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in IN_PLACE
    ]  # fmt: skip
    assert found == []


@pytest.mark.parametrize("content", ["Grüße", b"\0\1"])
def test_a_file_is_written(content: str | bytes, tmp_path: Path) -> None:
    write_file(tmp_path / "a", content)
    assert (tmp_path / "a").read_bytes() == (content.encode() if isinstance(content, str) else content)


@pytest.mark.parametrize("step", ["open", "replace"])
def test_a_full_disk_leaves_the_old_file(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("old")

    def full(*_: object, **__: object) -> None:
        raise FULL

    if step == "open":
        monkeypatch.setattr("builtins.open", full)
    else:
        monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RopeError, match=r"a: cannot be written \(No space left on device\)"):
        write_file(tmp_path / "a", "new")
    monkeypatch.undo()
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a", "old")]


def test_the_old_file_goes_when_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []
    monkeypatch.setattr(os, "replace", lambda new, old: lengths.append(os.stat(new).st_size))
    write_file(tmp_path / "a", "short")
    assert lengths == [5]


@pytest.mark.skipif(sys.platform == "win32", reason="modes and links are POSIX")
def test_mode_and_link_stay(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "a").chmod(0o640)
    (tmp_path / "link").symlink_to("a")
    write_file(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


@pytest.mark.skipif(sys.platform == "win32", reason="needs /dev")
def test_devices_are_written_to(tmp_path: Path) -> None:
    write_file("/dev/null", "text")
    code = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\nfrom clrope.output_file import write_file\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}write_file('/dev/stdout', 'text')"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "text"
    with pytest.raises(RopeError, match="/dev/full: cannot be written"):
        write_file("/dev/full", "text")


def test_a_file_in_a_folder_where_none_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("old")
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: os.fspath(path) != os.fspath(tmp_path) and access(path, mode))
    monkeypatch.setattr(os, "replace", lambda *_: pytest.fail("replaced"))
    write_file(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "new"


def test_no_part_of_a_new_kernel_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    real = Path.open

    def full(path: Path, mode: str = "r", **options: str) -> object:
        file = real(path, mode, **options)  # type: ignore[call-overload]
        if mode == "x":
            os.dup2(os.open("/dev/full", os.O_WRONLY), file.fileno())
        return file

    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(RopeError, match=r"mine\.cl: cannot be written \(No space left on device\)"):
        write_new("mine", "simple")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="there are no locks of this kind")
@pytest.mark.parametrize("moment", ["removed", "about to be removed"])
def test_another_writer_takes_a_new_file_for_a_leftover(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks between the file's creation and its lock; this writer then writes another one."""
    real = output_file._lock
    others: list[IO[bytes]] = []

    def late(file: IO[bytes]) -> bool | None:
        if not others:
            (new,) = tmp_path.glob(".clrope-*.part")
            others.append(open(new, "r+b"))  # noqa: SIM115
            assert real(others[0])
            if moment == "removed":
                new.unlink()
                others[0].close()
        return real(file)

    monkeypatch.setattr(output_file, "_lock", late)
    write_file(tmp_path / "a", "new")
    others[0].close()
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a", "new")]


@pytest.mark.one_in(4)
@pytest.mark.skipif(sys.platform == "win32", reason="there are no locks of this kind")
def test_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\nfrom clrope.output_file import write_file\n"
        "sys.stdin.read(1)\nfor _ in range(300): write_file(sys.argv[1], 'x' * 1000)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a")]
    writers = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    for writer in writers:
        assert writer.stdin
        writer.stdin.close()
    for writer in writers:
        assert writer.stderr
        assert (writer.stderr.read(), writer.wait()) == (b"", 0)
        writer.stderr.close()
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a", "x" * 1000)]


def run_in_a_deleted_directory(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code that first deletes its current directory, which is in `sys.path`.

    It is a script: with `-c`, NumPy 2.5 itself cannot be imported by Python 3.13.0 then.
    """
    gone, script = folder / "gone", folder / "script.py"
    gone.mkdir()
    script.write_text(
        f"import os, sys; os.rmdir({str(gone)!r}); sys.path[:0] = ['', {str(PACKAGE.parent)!r}]\n{code}\n"
    )
    return subprocess.run(
        [sys.executable, "-W", "ignore", str(script)], cwd=gone, env={**os.environ, **environment}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.skipif(sys.platform != "linux", reason="a current directory can be removed")
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["config", "llama-3-8b", "--plot", "p.svg"], "its folder is missing"),
        (["verify", "--json", "v.json"], "its folder is missing"),
        (["tune", "--t4", "t4"], "the current directory is missing"),
        (["report", "r.json", "--figures", "f"], "the current directory is missing"),
    ],
)
def test_a_current_directory_that_was_deleted(words: list[str], why: str, tmp_path: Path) -> None:
    code = f"sys.argv = ['clrope', *{words!r}]\nfrom clrope.__main__ import main\nmain()"
    done = run_in_a_deleted_directory(code, tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"clrope: {words[-1]}: cannot be written ({why})\n"


@pytest.mark.one_in(4)
@pytest.mark.skipif(sys.platform != "linux", reason="a current directory can be removed")
def test_devices_are_found_in_a_current_directory_that_was_deleted(tmp_path: Path) -> None:
    code = "import clrope; print(sum(d.health.ok for d in clrope.devices(refresh=True)))"
    done = run_in_a_deleted_directory(code, tmp_path, CLROPE_CACHE_DIR="relative")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
