"""Arguments that are paths: what is none is refused, and what is wrong inside a file is told with the file's name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clrope
from clrope import ConfigError, RopeConfig
from clrope.io.files import read_arrays, read_metadata, write_arrays

READERS: list[Callable[[Any], object]] = [
    read_arrays, read_metadata, lambda path: write_arrays(path, {}), RopeConfig.from_hf, RopeConfig.from_gguf,
    lambda path: clrope.lab.load(path),
]  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("given", [5, None, b"x.npy", [], {1}, "a\0.npy"])
def test_what_is_no_path(reader: Callable[[Any], object], given: object) -> None:
    with pytest.raises(ConfigError, match=r"^(path|source): got .*, a path (is needed|has no null)"):
        reader(given)


LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32}


def write(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("as_folder", [False, True])
@pytest.mark.parametrize("wrong", [{"hidden_size": 2**63}, {"rope_theta": 5e-324}, {"rope_scaling": {"type": "no"}}])
def test_an_error_in_a_file_names_it(tmp_path: Path, wrong: dict[str, Any], as_folder: bool) -> None:
    file = write(tmp_path / "config.json", LLAMA | wrong)
    with pytest.raises(ConfigError) as raised:
        RopeConfig.from_hf(tmp_path if as_folder else file)
    with pytest.raises(ConfigError) as of_dict:
        RopeConfig.from_hf(LLAMA | wrong)
    named = tmp_path if as_folder else file
    assert str(raised.value) == f"{named}: {of_dict.value}"
    file.write_text("[")
    with pytest.raises(ConfigError) as raised:
        RopeConfig.from_hf(tmp_path if as_folder else file)
    assert str(raised.value).startswith(f"{file}: not a JSON file")  # and the name once
