"""What commands print is text: nothing of a file controls the terminal, and exit codes need no reader."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import clrope
from clrope.cli.exit_code import error_text
from clrope.cli.output import names_text, print_fields, print_table, progress_bar
from clrope.cli.streams import Styled

Call = Callable[..., Any]
CLEARS = "q\x1b[2J\x9b1m\x07"
SHOWN = r"q\x1b[2J\x9b1m\x07"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A file of tensors whose names hold control sequences."""
    x = np.random.default_rng(0).standard_normal((1, 3, 2, 8)).astype(np.float32)
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file({CLEARS: x, "flat" + CLEARS: x.reshape(6, 8)}, path)
    return path


def controls(text: str) -> str:
    return "".join(c for c in text if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160)


def test_names_of_tensors(process: Call, hostile: Path, tmp_path: Path) -> None:
    out = tmp_path / "y.safetensors"
    done = process("run", hostile, "-o", out, "--mode", "neox")
    assert done.returncode == 0, done.stderr
    assert SHOWN in done.stdout
    assert [*safetensors.numpy.load_file(out)] == [CLEARS]
    wrong = process("run", hostile, "-o", tmp_path / "z.safetensors", "--mode", "neox", "--tensor", "none")
    assert wrong.returncode == 2
    assert f"there are flat{SHOWN}, {SHOWN}" in wrong.stderr
    assert not controls(done.stdout + done.stderr + wrong.stderr)


def test_what_files_say(process: Call, tmp_path: Path) -> None:
    config: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 8, "rope_theta": 1e4}
    config["rope_scaling"] = {"rope_type": "linear", "factor": 2, "k\x1b[2J": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "k.cl").write_text("// lab: \x1b]0;title\x07\nkernel void k(global float *x) {}\n")
    for words in (["config", tmp_path / "config.json"], ["lab", tmp_path / "k.cl"]):
        done = process(*words)
        assert done.returncode == 2
        assert r"\x1b" in done.stderr
        assert not controls(done.stdout + done.stderr)


FORGED = "q\nclrope: all is right"


@pytest.mark.one_in(8)
def test_names_make_no_lines_of_their_own(process: Call, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, 2, 8)).astype(np.float32)
    for name in ("x", "y"):
        safetensors.numpy.save_file({FORGED: x}, tmp_path / f"{name}.safetensors")
    calls: list[list[Any]] = [
        ["identify", tmp_path / "x.safetensors", tmp_path / "y.safetensors"],
        ["identify", tmp_path / "x.safetensors", tmp_path / "y.safetensors", "-q"],
        ["run", tmp_path / "x.safetensors", "-o", tmp_path / f"{FORGED}.safetensors", "--mode", "neox"],
        ["run", tmp_path / FORGED, "-o", tmp_path / "z.npy", "--mode", "neox"],
        ["run", tmp_path / "x.safetensors", "-o", tmp_path / "z.npy", "--mode", "neox", "--tensor", FORGED + "2"],
        ["config", tmp_path / FORGED],
        ["lab", tmp_path / FORGED],
        ["report", tmp_path / FORGED],
        ["verify", "--filter", FORGED],
        ["devices", "--device", FORGED],
    ]
    for words in calls:
        done = process(*words)
        lines = (done.stdout + done.stderr).splitlines()
        assert not [line for line in lines if line.startswith("clrope: all")], words
        assert any(r"q\nclrope: all is right" in line for line in lines), (words, lines)


def test_messages_keep_their_own_lines() -> None:
    error = clrope.BuildError("d", ["-DX"], "first line\nsecond line", "")
    assert "first line\nsecond line" in error_text(error)
    assert error_text(clrope.DeviceError("no device\n  what to do: wait")) == "no device\n  what to do: wait"
    assert error_text(clrope.ConfigError("a\nb: gone")) == r"a\nb: gone"


def test_a_long_log_is_cut_in_the_message_only() -> None:
    log = "error: no x\n" * 20_000
    error = clrope.BuildError("d", [], log, "")
    assert len(str(error)) < 5000
    assert "error: no x" in str(error)
    assert error.log == log


def test_tables_and_fields(capsys: Any) -> None:
    print_table("", ["name"], [[CLEARS], ["[red]x[/]"]])
    print_fields([("name", CLEARS)])
    shown = capsys.readouterr().out
    assert not controls(shown)
    assert (shown.count(SHOWN), shown.count("[red]x[/]")) == (2, 1)


def test_a_cell_of_a_million_characters_is_cut(capsys: Any) -> None:
    print_table("", ["name"], [["a " * 500_000]])
    assert capsys.readouterr().out.endswith("a ... (1000000 characters)\n")
    assert len(names_text(f"t{n}" for n in range(20_000))) < 2100
    assert names_text([]) == "none"


def test_the_text_of_a_bar_is_no_markup() -> None:
    bar = progress_bar(quiet=True)
    bar.add_task("f32 [/]1 [red]x")
    assert bar.columns[-1].render(bar.tasks[0]).plain == "f32 [/]1 [red]x"  # type: ignore[union-attr]


def test_own_control_sequences(capsys: Any) -> None:
    Styled(sys.stdout).write("\x1b[2K")
    assert capsys.readouterr().out == "\x1b[2K"


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("words", "code"),
    [(["config", "nosuch"], 2), (["run"], 2), (["run", "nosuch.npy", "-o", "o.npy", "--mode", "neox"], 2)],
)
def test_an_error_that_nobody_can_read_keeps_its_exit_code(words: list[str], code: int, process: Call) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        assert process(*words, stderr=full).returncode == code
        assert process("--version", stdout=full, stderr=full).returncode == 2


@pytest.mark.one_in(4)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "words",
    [["--version"], ["--help"], ["config", "-h"], ["config", "llama-3-8b"], ["config", "llama-3-8b", "--json"]],
    ids=" ".join,
)
def test_an_output_that_cannot_be_written_is_named(words: list[str], process: Call) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = process(*words, stdout=full)
    assert (done.returncode, done.stderr) == (2, "clrope: stdout: cannot be written (No space left on device)\n")
