"""What all commands have in common: their options, the look of their output, and how they end."""

from __future__ import annotations

import fcntl
import inspect
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from cli_process import HANGING, ROOT, start
from typer.models import OptionInfo

from clrope import DeviceInfo
from clrope.cli.main import COMMANDS, app
from clrope.cli.output import print_fields, print_table, progress_bar

Call = Callable[..., Any]
RESULTS = sorted((ROOT / "bench" / "results").glob("*.json"))[0]
#: Python starts with the handler of Ctrl-C even where a shell ignores the signal for what runs in the background.
MAIN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "{}\n"
    "from clrope.cli.main import main; main()"
)
#: Commands with something in them that every run of them calls.
CALLED = {
    "devices": ("clrope.cli.devices", "devices", []),
    "verify": ("clrope.suite.conformance", "verify", []),
    "run": ("clrope.cli.run", "open_arrays", ["x.npy", "-o", "y.npy", "--mode", "neox"]),
    "bench": ("clrope.benchmark.measure", "BenchRun", []),
    "report": ("clrope.portability.report_files", "read_files", ["x.json"]),
    "tune": ("clrope.tune.search", "tune", []),
    "lab": ("clrope.lab.lab_kernel", "load_file", ["rope.cl"]),
    "config": ("clrope.cli.show_config", "read_source", ["llama-3.1-8b"]),
    "explain": ("clrope.cli.explain", "Rope", ["--mode", "neox", "--shape", "1,2,3,4"]),
    "identify": ("clrope.cli.identify_files", "read_arrays", ["before.npy", "after.npy"]),
}


def options_of(name: str) -> dict[str, Any]:
    command: Any = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    return {option: p for p in command.params for option in p.opts}


def declared(annotation: Any) -> Any:
    """Return the `typer.Option` of a parameter, in whatever the annotation is wrapped; None for an argument."""
    for part in (*getattr(annotation, "__metadata__", ()), *get_args(annotation)):
        found = part if isinstance(part, OptionInfo) else declared(part)
        if found:
            return found
    return None


@pytest.mark.parametrize("name", COMMANDS)
def test_each_declared_option_is_there(name: str) -> None:
    """Whatever Python's version makes of annotations with the default None."""
    command = inspect.unwrap(COMMANDS[name])
    hints = {p.name: declared(p.annotation) for p in inspect.signature(command, eval_str=True).parameters.values()}
    wanted = {p: option for p, option in hints.items() if option}
    assert wanted
    found: Any = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    params = {p.name: p for p in found.params}
    for parameter, option in wanted.items():
        assert params[parameter].help == option.help, parameter
        assert params[parameter].metavar == option.metavar, parameter
        assert params[parameter].opts[0].startswith("--"), parameter
        names = [n for n in (option.default, *(option.param_decls or ())) if isinstance(n, str)]
        assert not names or params[parameter].opts == names, parameter


def replaced(name: str, what: str) -> str:
    """Return a program in which a command does `what` instead of its work."""
    module, function, _ = CALLED[name]
    return MAIN.format(f"import {module} as m; m.{function} = lambda *_, **__: {what}")


def test_options_are_alike() -> None:
    assert set(CALLED) == set(COMMANDS)
    heads = {}
    for name in COMMANDS:
        options = options_of(name)
        assert options["--quiet"] is options["-q"]
        assert options["--json"].help.startswith(("Print the result as JSON", "Write the result as JSON"))
        for option in ("--device", "--type", "--quiet"):
            if option in options:
                given = options[option]
                head = given.help.partition("(repeatable)")[0].partition(". Default")[0].strip()
                assert heads.setdefault(option, (given.metavar, head)) == (given.metavar, head), name
                assert given.multiple == (option != "--quiet" and name != "run"), name
    assert {name for name in COMMANDS if "--device" in options_of(name)} == set(COMMANDS) - {
        "report",
        "config",
        "identify",
    }
    assert {name for name in COMMANDS if "--type" in options_of(name)} == {"bench", "tune", "explain"}


def test_device_and_type_repeat(call: Call, device: DeviceInfo) -> None:
    words = ["explain", "--mode", "neox", "--shape", "1,4,2,64", "--device", device.index, "--device", device.name]
    reports = json.loads(call(*words, "--type", "f16", "--type", "f32", "--type", "f16", "--json").stdout)
    assert {r["tensor"].split()[0] for r in reports} == {"f16", "f32"}
    assert json.loads(call(*words[:-2], "--json").stdout)["device"] == str(device)
    listed = json.loads(call("devices", "--device", device.index, "--device", device.index, "--json").stdout)
    assert [d["index"] for d in listed["devices"]] == [device.index]
    rows = call("bench", "--list", "--workload", "all", "--type", "bf16", "--type", "f16").stdout.splitlines()[2:]
    assert {row.split("/")[1] for row in rows} == {"bf16", "f16"}
    for words, message in (
        (["bench", "--type", "q4"], "--type: got 'q4', allowed are f16"),
        (["tune", "--type", "q4"], "--type: got 'q4', allowed are f16"),
        (["bench", "--type", "f8e4m3"], "--type: no chosen workload has f8e4m3"),
        (["devices", "--device", "nonesuch"], "no OpenCL device matches"),
    ):
        done = call(*words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert message in done.stderr


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("clrope ", set(COMMANDS)),
        ("clrope explain --type f8", {"f8e4m3", "f8e5m2"}),
        ("clrope verify --device po", {"pocl"}),
        ("clrope run --mode i", {"imrope"}),
        ("clrope verify --suite s", {"seed"}),
    ],
)
def test_completion(line: str, found: set[str], process: Call) -> None:
    done = process(_CLROPE_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(line.count(" ")))
    assert set(done.stdout.split()) == found, done.stderr


def test_completion_is_described(process: Call) -> None:
    text = process("--help").stdout
    assert "clrope --install-completion" in text
    assert (
        "complete_bash" in process("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1").stdout
    )


def test_quiet(call: Call, device: DeviceInfo, llama: tuple[Path, Path], tmp_path: Path) -> None:
    source, config = llama
    words = ["run", source, "-o", tmp_path / "o.npz", "--hf", config, "--tensor", "q", "--check", "--device"]
    assert "written: " in call(*words, device.index).stdout
    assert call(*words, device.index, "--quiet").stdout == ""
    words = ["verify", "--device", device.index, "--filter", "type=f16 ne_a=[128,32,2,1] fs=1.0 ef=0.0 v=0"]
    assert call(*words).stdout.count(": OK\n") == 4
    shown = call(*words, "-q").stdout
    assert ": OK" not in shown
    assert not shown.startswith("seed")
    assert "bit-identical: 4/4" in shown


SHOWN = (
    ["devices", "-q"],
    ["devices", "--details", "-q"],
    ["config", "llama-3.1-8b"],
    ["explain", "--mode", "neox", "--shape", "1,4,2,64"],
    ["report", RESULTS, "-q", "-o", os.devnull],
    ["bench", "--list", "--workload", "all"],
    ["tune", "--parameters"],
)


@pytest.mark.one_in(48)
@pytest.mark.parametrize(
    ("words", "columns"),
    [
        *((words, columns) for words in SHOWN for columns in (60, 100)),
        *(([name, "--help"], 60) for name in COMMANDS),
        (["--help"], 60),
    ],
    ids=lambda given: " ".join(map(str, given[:2])) if isinstance(given, list) else str(given),
)
def test_output_fits_and_is_ascii(words: list[Any], columns: int, process: Call) -> None:
    done = process(*words, COLUMNS=str(columns), LC_ALL="C")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert max(len(line) for line in done.stdout.splitlines()) <= columns


def test_text_of_other_alphabets_is_escaped(process: Call, tmp_path: Path) -> None:
    (tmp_path / "käse.json").write_text('{"mode": "neox", "n_dims": 8}', encoding="utf-8")
    assert "käse.json (fields" in process("config", tmp_path / "käse.json", LC_ALL="C.UTF-8").stdout
    assert "k\\xe4se.json (fields" in process("config", tmp_path / "käse.json", LC_ALL="C").stdout


def test_a_table_that_does_not_fit_becomes_fields(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        ["fifteen words that may be folded anywhere, or so it seems to those who read it", "1.5"],
        ["and one_that_is_as_long_as_few_others_are", "22.25"],
    ]

    def printed(columns: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        print_table("", ["text", "#number"], rows)
        return list(capsys.readouterr().out.splitlines())

    assert printed(86) == [
        "text                                                                            number",
        "--------------------------------------------------------------------------------------",
        "fifteen words that may be folded anywhere, or so it seems to those who read it     1.5",
        "and one_that_is_as_long_as_few_others_are                                        22.25",
    ]
    assert printed(45) == [
        "text                                   number",
        "---------------------------------------------",
        "fifteen words that may be folded          1.5",
        "anywhere, or so it seems to those who",
        "read it",
        "and                                     22.25",
        "one_that_is_as_long_as_few_others_are",
    ]
    fields = [
        "text    fifteen words that may be folded",
        "        anywhere, or so it seems to",
        "        those who read it",
        "number  1.5",
        "",
        "text    and",
        "        one_that_is_as_long_as_few_other",
        "        s_are",
        "number  22.25",
    ]
    assert printed(40) == fields
    for fewer in (26, 10, 1):  # which leave no place for values
        assert printed(fewer) == fields


def test_a_cell_of_many_lines_is_a_field(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    for words, first_line in ((19, f"text{'number':>36}"), (20, "text    word word word word word word")):
        print_table("", ["text", "#number"], [[" ".join(["word"] * words), "1"]])
        assert capsys.readouterr().out.splitlines()[0] == first_line


@pytest.mark.parametrize("given", ["\N{SUPERSCRIPT TWO}", "9" * 5000, "9" * 400, "0", "-5", "x"])
def test_variables_that_are_no_number_of_columns(given: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def printed() -> str:
        print_table("title", ["name", "#value"], [["a", 1]])
        print_fields([("name", "value")])
        with progress_bar(quiet=False):
            pass
        return str(capsys.readouterr().out)

    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    usual = printed()
    with monkeypatch.context() as patched:  # pytest's own report reads them, too
        for name in ("COLUMNS", "LINES"):
            patched.setenv(name, given)
        assert printed() == usual


def on_a_terminal(*words: str, columns: int = 60, **env: str) -> str:
    """Return what a command shows on a terminal of so many columns."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    with start(*words, stdout=its, stderr=its, stdin=its, TERM="xterm", LC_ALL="C.UTF-8", **env) as process:
        os.close(its)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how Linux says that nobody has the terminal open any more
                part = b""
            if not part:
                break
            shown += part
        assert process.wait(HANGING) == 0
    os.close(ours)
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.one_in(8)
def test_styles_need_a_terminal(process: Call) -> None:
    words = ("config", "llama-3.1-8b")
    shown = on_a_terminal(*words)
    assert "\x1b[1m" in shown
    plain = on_a_terminal(*words, NO_COLOR="1")
    assert "\x1b" not in plain
    assert max(len(line) for line in plain.splitlines()) <= 60
    assert process(*words, FORCE_COLOR="1", COLUMNS="60").stdout == plain


@pytest.mark.one_in(10)
@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_ends_in_one_line(name: str, process: Call, tmp_path: Path) -> None:
    done = process(name, *CALLED[name][2], code=replaced(name, "signal.raise_signal(signal.SIGINT)"))
    assert done.returncode == 130, done.stderr
    assert done.stderr == "clrope: interrupted\n"


def children_of(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in brackets, may hold blanks.
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(stat.parent.name))
    return found


SLEEP = "import time; time.sleep(3600)"


BENCH = ["--processes", "--tiny", "--no-peers", "--rounds", "1", "--workload", "decode-1/f32/neox/out/forward"]
PROBE = "from clrope.device import child as m; m._BOOT"
STOPPED = [
    (["devices", "--refresh"], PROBE, signal.SIGINT),
    (["devices", "--refresh"], PROBE, signal.SIGTERM),
    (["tune", "--budget", "600"], PROBE, signal.SIGINT),
    (["bench", *BENCH], "from clrope.benchmark import processes as m; m._FIRST", signal.SIGINT),
]


@pytest.mark.one_in(16)
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
@pytest.mark.parametrize(("words", "hanging", "number"), STOPPED, ids=[f"{w[0]}-{n.name}" for w, _, n in STOPPED])
def test_signals_take_child_processes_along(words: list[str], hanging: str, number: signal.Signals) -> None:
    with start(*words, code=MAIN.format(f"{hanging} = {SLEEP!r}")) as process:
        try:
            while not (children := children_of(process.pid)) and process.poll() is None:
                time.sleep(0.02)
            time.sleep(0.5)  # Popen returns: a child that is replaced by a sleeping one does not end with its parent
            process.send_signal(number)
            _, stderr = process.communicate(timeout=HANGING)
        finally:
            process.kill()
    assert children, stderr
    assert process.returncode == 128 + number, stderr
    ended = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
    assert stderr.splitlines()[-1] == f"clrope: {ended}"
    assert "Traceback" not in stderr
    wait_until_gone(children)


def wait_until_gone(processes: list[int]) -> None:
    """Never returns, until the test is killed, where one of them stays."""
    while [p for p in processes if Path(f"/proc/{p}").exists()]:
        time.sleep(0.02)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "words",
    [["config", "llama-3.1-8b"], ["devices"], ["report", RESULTS, "-o", os.devnull], ["--help"]],
    ids=lambda words: words[0],
)
def test_a_closed_pipe_ends_in_silence(words: list[Any]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with start(*words, stdout=writer) as process:
        os.close(writer)
        _, stderr = process.communicate(timeout=HANGING)
    assert stderr == ""
    assert process.returncode == (1 if words == ["--help"] else 141)


def test_output_that_cannot_be_written(process: Call) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = process("devices", stdout=full)
    assert done.returncode == 2
    assert done.stderr == "clrope: stdout: cannot be written (No space left on device)\n"


def test_closed_streams(process: Call) -> None:
    # As Python has it after `>&- 2>&-`.
    assert process("devices", code=MAIN.format("import sys; sys.stdout = sys.stderr = None")).returncode == 0


def test_a_file_gets_no_number_of_a_closed_stream(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from clrope.cli.streams import set_up_streams\n"
        "set_up_streams()\n"
        "file = open(sys.argv[1], 'wb')\n"
        "[os.write(number, b'printed by a driver') for number in (1, 2)]\n"
        "file.write(b'data')\n"
        "assert os.read(0, 1) == b''"
    )
    path = tmp_path / "file"
    words = ["/bin/sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', sys.executable, "-c", code, str(path)]
    assert subprocess.run(words, cwd=ROOT, check=False).returncode == 0
    assert path.read_bytes() == b"data"


def test_too_little_memory_ends_in_one_line(process: Call) -> None:
    done = process("devices", code=replaced("devices", "(_ for _ in ()).throw(MemoryError())"))
    assert done.returncode == 2
    assert done.stderr == "clrope: not enough memory (CLROPE_TRACEBACK=1 shows where)\n"


@pytest.mark.one_in(6)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_a_signal_waits_for_the_end_of_an_import(number: signal.Signals, process: Call, tmp_path: Path) -> None:
    # As while PyOpenCL is imported, whose C++ aborts the process if its import raises an exception.
    (tmp_path / "extension.py").write_text(f"import os\nos.kill(os.getpid(), {int(number)})\nprint('imported')\n")
    code = replaced("devices", "(__import__('extension'), __import__('time').sleep(600))")
    done = process("devices", code=f"import sys; sys.path.append({str(tmp_path)!r})\n{code}")
    assert done.stdout == "imported\n"
    assert done.returncode == 128 + number
    assert done.stderr.count("\n") == 1


@pytest.mark.one_in(10)
@pytest.mark.parametrize("name", COMMANDS)
def test_no_error_ends_in_a_traceback(name: str, process: Call) -> None:
    code = replaced(name, "[][1]")
    done = process(name, *CALLED[name][2], code=code)
    assert done.returncode == 2
    assert done.stderr == "clrope: IndexError: list index out of range (CLROPE_TRACEBACK=1 shows where)\n"
    assert done.stdout == ""


@pytest.mark.one_in(8)
def test_the_traceback_on_request(process: Call) -> None:
    done = process("devices", code=replaced("devices", "[][1]"), CLROPE_TRACEBACK="1")
    assert done.returncode == 2
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.splitlines()[-1].startswith("clrope: IndexError: ")
    assert "Traceback" in process("config", "lama", CLROPE_TRACEBACK="1").stderr
    assert process("config", "lama").stderr.startswith("clrope: preset: got 'lama'")
