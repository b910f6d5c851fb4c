"""`clrope identify`: files of every kind, the comparison with a configuration, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clrope
from clrope.io.files import read_arrays, read_metadata, write_arrays

DATA = Path(__file__).parent.parent / "data"

Call = Callable[..., Any]


@pytest.fixture
def files(tmp_path: Path, rng: np.random.Generator) -> tuple[Path, Path]:
    """Files of q before and after RoPE in mode 'normal' with base 500000."""
    before = rng.standard_normal((1, 10, 4, 64)).astype(np.float32)
    after = clrope.rope(before, 5, mode="normal", freq_base=5e5)
    paths = tmp_path / "before.npy", tmp_path / "after.npy"
    for path, array in zip(paths, (before, after), strict=True):
        write_arrays(path, {"x": array})
    return paths


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", sorted(p.name for p in DATA.glob("transformers_*.safetensors")))
def test_what_models_made_is_what_their_configuration_says(name: str, call: Call, tmp_path: Path) -> None:
    source, config = DATA / name, tmp_path / "config.json"
    config.write_text(read_metadata(source)["config"], encoding="utf-8")
    for tensor in ("q", "k"):
        words = [f"{source}:{tensor}", f"{source}:{tensor}_rot", "--positions", f"{source}:positions", "--hf", config]
        done = call("identify", *words)
        assert done.exit_code == 0, done.stdout + done.stderr
        assert "This is what the config says." in done.stdout


def test_the_table_and_the_sentence(files: tuple[Path, Path], call: Call) -> None:
    done = call("identify", *files, "--positions", 5)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[1] == "x: float32 [1, 10, 4, 64]"
    assert lines[2].split() == ["convention", "angles", "NMSE", "limit", "fits"]
    assert lines[4].startswith("NORMAL, freq_base 500000 ")
    assert lines[-1].startswith("NORMAL, freq_base 500000.")
    assert call("identify", *files, "--positions", "5:15", "-q").stdout == f"x: {lines[-1]}\n"
    moved = call("identify", *files)
    assert moved.exit_code == 0
    assert "NORMAL, freq_base 500000, positions +5." in moved.stdout


def test_another_configuration_is_exit_code_1(files: tuple[Path, Path], call: Call) -> None:
    words = ["identify", *files, "--positions", 5]
    done = call(*words, "--mode", "neox")
    assert done.exit_code == 1
    assert "It is NORMAL where the config says NEOX and freq_base 500000 where the config says 10000." in done.stdout
    assert call(*words, "--mode", "normal", "--freq-base", "5e5").exit_code == 0


def test_what_was_not_rotated_is_exit_code_1(files: tuple[Path, Path], call: Call, tmp_path: Path) -> None:
    before, after = files
    done = call("identify", before, before)
    assert done.exit_code == 1
    assert "None of these: after equals before" in done.stdout
    other = tmp_path / "other.npy"
    write_arrays(other, {"x": read_arrays(after)["x"][..., ::-1]})
    assert call("identify", before, other).exit_code == 1


def test_a_tensor_rotated_in_part_is_exit_code_1(files: tuple[Path, Path], call: Call, tmp_path: Path) -> None:
    before, after = files
    array = read_arrays(after)["x"].copy()
    array[:, :, 3] = read_arrays(before)["x"][:, :, 3]
    other = tmp_path / "other.npy"
    write_arrays(other, {"x": array})
    done = call("identify", before, other, "--positions", 5, "--json")
    assert done.exit_code == 1
    (tensor,) = json.loads(done.stdout)["tensors"]
    assert tensor["best"] is None
    assert [part["heads"] for part in tensor["parts"]] == [[0, 1, 2]]
    assert tensor["sentence"].startswith("Heads 0 to 2 of 4 are rotated, the others are unchanged: NORMAL")


def test_json_and_tensors_of_the_same_name(call: Call, tmp_path: Path, rng: np.random.Generator) -> None:
    q, k = (rng.standard_normal((1, 7, n, 32)).astype(np.float16) for n in (4, 2))
    write_arrays(tmp_path / "before.npz", {"q": q, "k": k, "v": k, "mask": np.ones(7, np.float32)})
    config = clrope.RopeConfig(mode="neox", n_dims=16)
    write_arrays(
        tmp_path / "after.safetensors", {"k": clrope.rope(k, 0, config), "q": clrope.rope(q, 0, config), "o": q}
    )
    words = ["identify", tmp_path / "before.npz", tmp_path / "after.safetensors", "--json"]
    done = call(*words)
    assert done.exit_code == 0
    data = json.loads(done.stdout)
    assert (data["schema"], data["ok"], data["config"]) == ("clrope.identify/1", True, None)
    assert [t["tensor"] for t in data["tensors"]] == ["q", "k"]
    for tensor in data["tensors"]:
        assert (tensor["best"]["config"]["mode"], tensor["best"]["config"]["n_dims"]) == ("neox", 16)
        assert tensor["best"]["nmse"] <= tensor["best"]["limit"]
    compared = json.loads(call(*words, "--mode", "normal", "--n-dims", 16).stdout)
    assert (compared["ok"], compared["config"]["mode"]) == (False, "normal")


def test_bad_input_is_exit_code_2(files: tuple[Path, Path], call: Call, tmp_path: Path) -> None:
    before, after = files
    write_arrays(tmp_path / "two.npz", {"a": np.ones((2, 3, 4)), "b": np.ones((2, 3, 4))})
    write_arrays(tmp_path / "flat.npz", {"a": np.ones(4)})
    for words, message in (
        ([before, tmp_path / "none.npy"], "none.npy: cannot be read"),
        ([before, tmp_path / "x.txt"], "suffix '.txt' is not one of"),
        ([before, tmp_path / "two.npz"], "no tensor has the same name in both"),
        ([before, tmp_path / "flat.npz"], "holds no floating tensor of rank 3 or 4; there are a (float64 [4])"),
        ([before, f"{tmp_path / 'two.npz'}:c"], "has no array 'c'"),
        ([before, f"{tmp_path / 'two.npz'}:a"], "after: got shape [2, 3, 4], before has [1, 10, 4, 64]"),
        ([before, after, "--positions", "x"], "x: suffix '' is not one of"),
        ([before, after, "--positions", "3:3"], "--positions: got '3:3'"),
        ([before, after, "--layout", "abc"], "layout: got 'abc'"),
        ([before, after, "--freq-base", "5e5"], "--mode: not given"),
        ([before, after, "--mode", "neox", "--n-dims", 128], "n_dims: got 128, at most head_dim = 64"),
    ):
        done = call("identify", *words)
        assert done.exit_code == 2, words
        assert message in done.stderr
        assert done.stdout == ""
