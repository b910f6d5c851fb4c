"""q and k that transformers rotated itself: the configuration read from its config must give the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from plain_rope import nmse, rope

from clrope.config import RopeConfig
from clrope.io import read_arrays, read_metadata

DATA = Path(__file__).parent.parent / "data"
FILES = sorted(DATA.glob("transformers_*.safetensors"))
# transformers multiplies position and frequency in float32, so its angle at position p is off by about p * 1e-7;
# models in half precision also round cos and sin to it.
ROUNDING = {"float32": 1e-13, "float16": 3e-7, "bfloat16": 6e-6}


def test_all_files_are_here() -> None:
    assert len(FILES) == 9
    assert all(file.stat().st_size < 150_000 for file in FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_config_reproduces_what_the_model_did(path: Path) -> None:
    arrays, metadata = read_arrays(path), read_metadata(path)
    assert metadata["layout"] == "bsnd"
    config = RopeConfig.from_hf(json.loads(metadata["config"]))
    positions = arrays["positions"]
    for batch in range(2):
        where = positions[..., batch : batch + 1, :]
        bound = ROUNDING[str(arrays["q"].dtype)] + (1.5e-7 * float(where.max())) ** 2
        for name in ("q", "k"):
            got = rope(arrays[name][batch : batch + 1], where, config)
            error = nmse(got, arrays[f"{name}_rot"][batch : batch + 1])
            assert error <= bound, f"{path.name} {name} batch {batch}: NMSE {error:.3g} > {bound:.3g}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_wrong_pairing_would_be_noticed(path: Path) -> None:
    arrays, metadata = read_arrays(path), read_metadata(path)
    config = RopeConfig.from_hf(json.loads(metadata["config"]))
    other = {**config.to_dict(), "mode": "neox" if config.mode == "normal" else "normal", "sections": None}
    got = rope(arrays["q"], np.atleast_3d(arrays["positions"]).reshape(-1, 2, 10)[0], RopeConfig.from_dict(other))
    assert nmse(got, arrays["q_rot"]) > 0.01
