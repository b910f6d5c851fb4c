"""Ctrl-C while the command line is still being imported."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_process import HANGING, ROOT

#: Python imports this at its start. It sends the signal when Python looks for a module.
SENDER = """
import os, signal, sys

class Sender:
    sent = False
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["SEND_AT"] and not self.sent:
            self.sent = True
            signal.raise_signal(int(os.environ["SEND"]))

if os.environ["IGNORED"]:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
else:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal, however these tests were started
sys.meta_path.insert(0, Sender())
"""
#: As pip writes it.
SCRIPT = """
import re
import sys
from clrope.__main__ import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit(main())
"""
INT, TERM = 2, 15

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sitecustomize.py").write_text(SENDER)
    (tmp_path / "clrope").mkdir()
    (tmp_path / "clrope" / "clrope").write_text(SCRIPT)
    (tmp_path / "other.py").write_text("import clrope\n")
    return tmp_path


def started(folder: Path, words: list[Any], at: str, number: int = INT, ignored: str = "") -> Any:
    """Start Python with a signal to come."""
    path = os.pathsep.join([str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "SEND": str(number), "SEND_AT": at, "IGNORED": ignored}
    return subprocess.run(
        [sys.executable, *words], cwd=folder / "clrope", env=env, capture_output=True, text=True, timeout=HANGING,
        check=False,
    )  # fmt: skip


def test_the_script_is_as_pip_writes_it() -> None:
    assert 'clrope = "clrope.__main__:main"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("way", ["module", "module in one word", "script"])
@pytest.mark.parametrize(
    "at", ["clrope.api", "numpy", "clrope.lab.lab_kernel", "clrope.__main__", "clrope.cli.main", "typer"]
)
@pytest.mark.one_in(6)
def test_an_interrupted_import(folder: Path, way: str, at: str) -> None:
    before = {"module": ["-W", "error", "-m", "clrope"], "module in one word": ["-mclrope"], "script": ["clrope"]}
    done = started(folder, [*before[way], "devices", "-m", "other"], at)
    assert (done.returncode, done.stdout, done.stderr) == (128 + INT, "", "clrope: interrupted\n")


def test_nothing_is_imported_before_the_handler_is_set() -> None:
    import clrope.interrupt as module

    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert [ast.unparse(node) for node in imports] == [
        "from __future__ import annotations", "import os", "import signal", "import sys",
    ]  # fmt: skip


def test_a_signal_that_is_ignored(folder: Path) -> None:
    done = started(folder, ["-m", "clrope", "--version"], "typer", ignored="yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("clrope ")


def test_another_signal_ends_the_process(folder: Path) -> None:
    done = started(folder, ["-m", "clrope", "--version"], "typer", TERM)
    assert (done.returncode, done.stdout, done.stderr) == (-TERM, "", "")


@pytest.mark.parametrize("words", [["-m", "other", "-m", "clrope"], ["../other.py", "clrope"], ["-c", "import clrope"]])
def test_a_program_that_uses_the_package_keeps_its_handler(folder: Path, words: list[str]) -> None:
    done = started(folder, words, "clrope.api")
    assert done.returncode == -INT
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")


#: Where Python only prints what is raised. Each sends itself the signal, as somebody does who presses Ctrl-C just then.
IGNORING = {
    "del": "class Ending:\n    def __del__(self): send()\nEnding()",
    "weak reference": "import weakref\nitem = set()\nweakref.finalize(item, send)\ndel item",
    "collector": "import gc\ngc.callbacks.append(lambda phase, info: phase == 'stop' and send())\ngc.collect()",
    "ctypes": "import ctypes\nctypes.CFUNCTYPE(None)(send)()",
}
#: A command that works until it is interrupted, or for longer than the signal takes.
COMMAND = """
import signal, sys, threading, time
from clrope.cli.exit_code import caught_signals, ending

def send():
    if not sent:
        sent.append(True)
        signal.raise_signal({number})

def fail(thread):
    raise RuntimeError("can't start new thread")

signal.signal(signal.SIGINT, signal.default_int_handler)
sent = []
with ending(), caught_signals():
    {place}
    assert sent
    time.sleep(60)
"""


def interrupted_command(folder: Path, place: str, number: int) -> Any:
    program = COMMAND.format(number=number, place="\n    ".join(place.splitlines()))
    return started(folder, ["-c", program], "")


@pytest.mark.parametrize("number", [INT, TERM])
@pytest.mark.parametrize("place", IGNORING)
@pytest.mark.one_in(4)
def test_a_signal_where_python_ignores_what_is_raised(folder: Path, place: str, number: int) -> None:
    """The command ends all the same, and says one line."""
    done = interrupted_command(folder, IGNORING[place], number)
    ended = {INT: "interrupted", TERM: "ended by SIGTERM"}[number]
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", f"clrope: {ended}\n")


def test_what_else_python_ignores_is_told(folder: Path) -> None:
    done = interrupted_command(folder, "import ctypes\nctypes.CFUNCTYPE(None)(lambda: 1 / 0)()\nsend()", INT)
    assert done.returncode == 128 + INT
    assert "ZeroDivisionError" in done.stderr
    assert done.stderr.endswith("\nclrope: interrupted\n")


def test_where_no_thread_can_be_started(folder: Path) -> None:
    """The signal ends the process itself."""
    done = interrupted_command(folder, "threading.Thread.start = fail\n" + IGNORING["del"], TERM)
    assert (done.returncode, done.stdout, done.stderr) == (-TERM, "", "")


@pytest.mark.parametrize("number", [INT, TERM])
@pytest.mark.parametrize("register", ["__import__('atexit').register", "threading._register_atexit"])
def test_a_signal_at_the_end_of_python(folder: Path, register: str, number: int) -> None:
    """It ends the process, and nothing is printed."""
    done = interrupted_command(folder, f"{register}(send)\nsys.exit()", number)
    assert (done.returncode, done.stdout, done.stderr) == (-number, "", "")
