"""Outputs that cannot be written, or would take the place of another file, are refused before any work."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clrope.cli.output import check_folders, check_places
from clrope.errors import ConfigError, RopeError

Call = Callable[..., Any]
CONFIG = {"model_type": "llama", "head_dim": 8, "rope_theta": 1e4}
KERNEL = "__kernel void k(__global float *xy, int tokens) {}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with files to name."""
    np.save(tmp_path / "x.npy", np.ones((2, 3, 2, 8), np.float32))
    np.savez(tmp_path / "p.npz", x=np.ones((2, 3, 2, 8), np.float16), words=np.array(["a"]))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "own.json").write_text(json.dumps({"mode": "neox", "n_dims": 8}))
    (tmp_path / "r.json").write_text("{}")
    (tmp_path / "k.cl").write_text(KERNEL)
    (tmp_path / "link").symlink_to("r.json")
    os.link(tmp_path / "r.json", tmp_path / "same")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run x.npy -o none/y.npy --mode neox", "none/y.npy: cannot be written (its folder is missing)"),
        ("run p.npz -o y.npz --mode neox --keep", "y.npz: array 'words' has dtype <U1; allowed are bool"),
        ("run p.npz -o y.npy --mode neox --keep", "y.npy: array 'words' has dtype <U1; allowed are bool"),
        ("verify --json none/y", "none/y: cannot be written (its folder is missing)"),
        ("verify --json .", ".: cannot be written (it is a folder)"),
        ("lab k.cl --json none/y", "none/y: cannot be written (its folder is missing)"),
        ("lab k.cl --json k.cl", "--json: got 'k.cl', a file that is read; another place is needed"),
        ("lab k.cl --new z", "KERNEL: got 'k.cl' together with --new, which checks none"),
        ("bench --kernel k.cl --json k.cl", "--json: got 'k.cl', a file that is read; another place is needed"),
        ("bench --json y --html y", "--html: got 'y', the place of --json; another place is needed"),
        ("bench --peer torch --no-peers", "--peer: got 'torch' together with --no-peers"),
        ("config config.json --plot none/y.png", "none/y.png: cannot be written (its folder is missing)"),
        ("config config.json --plot config.json", "--plot: got 'config.json', a file that is read; another place is"),
        ("config config.json --plot y", "--plot: got 'y', a suffix such as .png or .svg is needed"),
        ("config llama-2-7b --layer-type x", "--layer-type: got 'x', it has no meaning for presets"),
        ("config llama-2-7b --seq-len 5", "--seq-len: got 5, it has no meaning for presets"),
        ("config own.json --seq-len 5", "--seq-len: got 5, it has no meaning for fields of RopeConfig"),
        ("report r.json --markdown r.json", "--markdown: got 'r.json', a file that is read; another place is needed"),
        ("report r.json --json --markdown -", "--markdown: got '-' together with --json, both would go to stdout"),
        ("report r.json --html -", "--html: got '-', a file is needed; stdout is for --json and --markdown"),
        ("report r.json --csv -", "--csv: got '-', a file is needed; stdout is for --json and --markdown"),
        ("bench --resume=", "--resume: got an empty text, the file of an interrupted run is needed"),
        ("run x.npy -o y.npy --mode neox --positions=", "--positions: got '', allowed is a number, a list 0,1,2"),
        ("run x.npy -o y.npy --mode neox --positions 1:2:3", "--positions: got '1:2:3', allowed is a number"),
        ("run x.npy -o y.npy --mode neox --positions none.npy", "--positions: none.npy: cannot be read ("),
        ("run x.npy -o y.npy --mode neox --freq-factors=", "freq_factors: got '', allowed is numbers with"),
        ("report r.json --html same", "--html: got 'same', a file that is read; another place is needed"),
        ("report r.json --csv link", "--csv: got 'link', a file that is read; another place is needed"),
        ("report r.json --csv y --markdown y", "--csv: got 'y', the place of --markdown; another place is needed"),
        (
            "report --compare r.json r.json --html y",
            "--html: given together with --compare, which makes no page, table or figure",
        ),
        ("bench --t4 k.cl/t4", "k.cl/t4: cannot be written ("),
        ("tune --t4 k.cl", "k.cl: cannot be written ("),
        ("report r.json --figures x.npy/new/new", "x.npy/new/new: cannot be written ("),
        ("tune --kernel k.cl --show", "--show: given together with --kernel, which does not use it"),
        ("tune --kernel k.cl --type f32", "--type: given together with --kernel, which does not use it"),
    ],
)  # fmt: skip
def test_refused_before_any_work(words: str, message: str, folder: Path, call: Call) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    done = call(*words.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"clrope: {message}")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    "words",
    [["tune", "--kernel", ""], ["lab", "k.cl", "--npu", ""], ["lab", "--new", ""], ["lab", "k.cl", "--call", ""]],
)
def test_an_empty_value_is_no_missing_option(words: list[str], folder: Path, call: Call) -> None:
    done = call(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("clrope: ")


@pytest.mark.parametrize(
    "words",
    [
        ["verify", "--fuzz", "9" * 30],
        ["bench", "--rounds", "9" * 30],
        ["tune", "--budget", "inf"],
        ["lab", "k.cl", "--seconds", "inf"],
    ],
)
def test_numbers_without_an_end_are_refused(words: list[str], folder: Path, call: Call) -> None:
    done = call(*words)
    assert done.exit_code == 2
    assert f"Invalid value for '{words[-2]}'" in done.stderr


def test_a_config_with_dollars_in_its_name_is_drawn(folder: Path, call: Call) -> None:
    pytest.importorskip("matplotlib")
    (folder / "a$\\frac$.json").write_text(json.dumps(CONFIG))
    done = call("config", "a$\\frac$.json", "--plot", "y.png", "--quiet")
    assert done.exit_code == 0, done.stderr
    assert (folder / "y.png").read_bytes().startswith(b"\x89PNG")


def test_factors_of_a_large_file_are_not_read_one_by_one(folder: Path, call: Call) -> None:
    np.save(folder / "f.npy", np.ones(10_000, np.float32))
    done = call("run", "x.npy", "-o", "y.npy", "--mode", "neox", "--freq-factors", "f.npy")
    assert done.exit_code == 2
    assert done.stderr == "clrope: freq_factors: f.npy holds 10000 numbers, at most 8192 are read\n"


@pytest.mark.parametrize("text", ["٣", "٣:٩", "1_0", "٣,٤"])
def test_positions_have_plain_digits(text: str, folder: Path, call: Call) -> None:
    done = call("run", "x.npy", "-o", "y.npy", "--mode", "neox", "--positions", text)
    assert done.exit_code == 2
    assert "is not one of .npy, .npz, .safetensors" in done.stderr


def test_places_that_are_fine(folder: Path) -> None:
    check_places({"--a": "new", "--b": folder / "r.json", "--c": None, "--json": "-", "--markdown": "-"}, ["x.npy"])
    check_places({"--a": os.devnull, "--b": os.devnull}, [os.devnull])


def test_folders_that_are_fine(folder: Path) -> None:
    check_folders("new", "new/er/est", str(folder), "", None)


@pytest.mark.parametrize("place", ["a", "a/b", "a/b/c"])
@pytest.mark.parametrize(
    "words",
    [["bench", "--t4"], ["bench", "--artifact"], ["tune", "--t4"], ["tune", "--kernel", "k.cl", "--t4"],
     ["report", "r.json", "--figures"], ["report", "r.json", "--p3"]],
)  # fmt: skip
def test_a_file_in_the_place_of_a_folder(words: list[str], place: str, folder: Path, call: Call) -> None:
    (folder / "a").touch()
    done = call(*words, place)
    assert done.exit_code == 2
    assert "a exists and is no folder" in done.stderr or f"{place}: cannot be written ({folder}/a is" in done.stderr


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(folder: Path) -> None:
    (folder / "closed").mkdir(mode=0o500)
    with pytest.raises(RopeError, match=r"closed/y: cannot be written \(no permission\)"):
        check_places({"--a": "closed/y"})


def test_one_name_by_two_paths(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"--b: got .*, the place of --a"):
        check_places({"--a": "new", "--b": folder / "." / "new"})
