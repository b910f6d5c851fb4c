"""A child process ends with its parent, however the parent ends, and whatever a driver does in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from clrope.device import child

JOB = """
import os, sys, time
from clrope.device import child

def work(job, write):
    write(stage="hanging")
    open(job["there"], "w").write(str(os.getpid()))
    {hang}

def main():
    {before}
    child.serve(work)
"""
#: How the child hangs, and what it cannot use: a driver may hold the GIL; only Linux sends a signal.
HANGS = {
    "holding the GIL": ("import ctypes; ctypes.PyDLL(None).sleep(3600)", "pass"),
    "without the signal": ("time.sleep(3600)", "sys.platform = 'another'"),
}


#: Modules that a child needs, each in a file that is not theirs.
IMPORTED = ("importlib", "ctypes", "os", "json", "time", "io", "contextlib", "resource", "numpy", "pyopencl", "clrope")
#: What starts a child, and what starts a program in the place of one.
STARTS = {
    "a job": "from clrope.device import child; print(child.run({'job': 'enumerate', 'libraries': []}).outcome)",
    "a measurement": (
        "from clrope.benchmark import processes\n"
        "code = 'import importlib, ctypes, os, json, time, io, numpy, clrope, sys; print(json.dumps(sys.argv[1:]))'\n"
        "print(processes._child(code, 'ok')[0])"
    ),
    "a program": (
        "import subprocess; from clrope.device.child import program_command\n"
        "print(subprocess.run(program_command('echo', 'ok'), capture_output=True, text=True).stdout.strip())"
    ),
}


def ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.one_in(4)
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("hang", HANGS)
def test_a_child_ends_with_its_parent(hang: str, number: signal.Signals, tmp_path: Path) -> None:
    there = tmp_path / "there"
    (tmp_path / "hanging.py").write_text(JOB.format(hang=HANGS[hang][0], before=HANGS[hang][1]))
    text = f"from clrope.device import child; child.run({{'there': {str(there)!r}}}, module='hanging')"
    paths = os.pathsep.join([str(tmp_path), str(Path(child.__file__).parents[2])])
    with subprocess.Popen([sys.executable, "-c", text], env={**os.environ, "PYTHONPATH": paths}) as parent:
        while not (there.exists() and there.read_text()):
            assert parent.poll() is None
            time.sleep(0.02)
        parent.send_signal(number)
    while not ended(int(there.read_text())):  # for ever, if it stays
        time.sleep(0.02)


def ends_with_its_parent(text: str, there: Path, *folders: str) -> None:
    """Run Python code that starts a process, kill it, and wait for the end of the process that wrote its id."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*folders, str(Path(child.__file__).parents[2])])}
    with subprocess.Popen([sys.executable, "-c", text], env=env) as parent:
        while not (there.exists() and there.read_text()):
            assert parent.poll() is None
            time.sleep(0.02)
        parent.kill()
    while not ended(int(there.read_text())):  # for ever, if it stays
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sends a signal")
def test_a_child_that_still_imports_ends_with_its_parent(tmp_path: Path) -> None:
    there = tmp_path / "there"
    (tmp_path / "importing.py").write_text(
        f"import os, time; open({str(there)!r}, 'w').write(str(os.getpid())); time.sleep(3600)"
    )
    text = "from clrope.device import child; child.run({}, module='importing')"
    ends_with_its_parent(text, there, str(tmp_path))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sends a signal")
@pytest.mark.parametrize("what", ["a measurement", "a program"])
def test_what_a_measurement_starts_ends_with_it(what: str, tmp_path: Path) -> None:
    there = tmp_path / "there"
    code = f"import os, time; open({str(there)!r}, 'w').write(str(os.getpid())); time.sleep(3600)"
    shell = f"echo $$ > {there}; exec sleep 3600"
    text = {
        "a measurement": f"from clrope.benchmark import processes; processes._child({code!r}, '')",
        "a program": (
            "import subprocess; from clrope.device.child import program_command\n"
            f"subprocess.run(program_command('sh', '-c', {shell!r}))"
        ),
    }[what]
    ends_with_its_parent(text, there)


@pytest.mark.parametrize("what", STARTS)
def test_no_code_of_the_current_directory_is_run(what: str, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in IMPORTED:
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')")
    script = tmp_path / "script.py"
    script.write_text(STARTS[what])
    env = {**os.environ, "PYTHONPATH": str(Path(child.__file__).parents[2])}
    done = subprocess.run([sys.executable, script], cwd=here, env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


@pytest.mark.one_in(4)
@pytest.mark.parametrize("flag", ["-I", "-E", "-s", "-S"])
def test_a_child_is_as_isolated_as_its_parent(flag: str, tmp_path: Path) -> None:
    (tmp_path / "flagged.py").write_text(
        "import sys\nfrom clrope.device import child\n"
        "def main():\n    child.serve(lambda job, write: {'flags': list(sys.flags)})\n"
    )
    paths = [str(tmp_path), *filter(None, sys.path), str(Path(child.__file__).parents[2])]
    text = (
        f"import sys; sys.path[:0] = {paths}; from clrope.device import child\n"
        "assert child.run({}, module='flagged').answer == {'flags': list(sys.flags)}"
    )
    done = subprocess.run([sys.executable, flag, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_job_of_any_size_reaches_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "counting.py").write_text(
        "from clrope.device import child\n"
        "def main():\n"
        "    print('noise before')\n"
        "    child.serve(lambda job, write: print('noise') or input_ends() or {'n': len(job['text'])})\n"
        "def input_ends():\n"
        "    import sys; assert sys.stdin.read() == ''\n"
    )
    result = child.run({"text": "x" * 1_000_000}, module="counting")
    assert result.answer == {"n": 1_000_000}, result
    assert result.output == "noise"


def test_a_job_that_nobody_reads_is_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "closing.py").write_text("import os\ndef main():\n    os._exit(3)\n")
    result = child.run({"text": "x" * 10_000_000}, module="closing")
    assert result.outcome == "unavailable"
    assert "exit status 3" in result.reason


def test_what_a_child_wrote_last_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although it has ended: on a busy machine nobody may have read it yet."""
    (tmp_path / "writing.py").write_text(
        "from clrope.device import child\n"
        "def work(job, write):\n    [write(number=k) for k in range(9)]\n    return {}\n"
        "def main():\n    child.serve(work)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    receive = child._receive

    def late(*arguments: Any) -> None:
        time.sleep(0.5)  # long after the child's end
        receive(*arguments)

    monkeypatch.setattr(child, "_receive", late)
    heard: list[dict[str, Any]] = []
    result = child.run({}, module="writing", heard=heard.append)
    assert result.outcome == "ok"
    assert [entry["number"] for entry in heard if "number" in entry] == [*range(9)]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("90", 90),
        ("1e9", 1e9),
        ("0", 1),
        ("-5", 1),
        ("nan", 60),
        ("inf", 60),
        ("-inf", 60),
        ("9" * 5000, 60),
        ("x", 60),
    ],
)
def test_only_a_finite_number_is_a_time_limit(given: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLROPE_PROBE_TIMEOUT", given)
    assert child.time_limit() == seconds
