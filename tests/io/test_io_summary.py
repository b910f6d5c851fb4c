"""The per-pair summary against the test's own reading of ggml's rules, for every preset."""

from __future__ import annotations

import math

import numpy as np
import pytest
from plain_rope import axes, omegas

from clrope.config import RopeConfig
from clrope.errors import ConfigError
from clrope.io import presets
from clrope.io.summary import summarise


@pytest.mark.parametrize("name", presets.names())
def test_omega_and_axis(name: str) -> None:
    config = RopeConfig.preset(name)
    rows = summarise(config)
    np.testing.assert_allclose([row.omega for row in rows], omegas(config), rtol=1e-13)
    assert [row.axis for row in rows] == ["thwe"[axis] for axis in axes(config)]
    assert [row.index for row in rows] == list(range(config.n_dims // 2))
    assert all(row.wavelength == pytest.approx(2 * math.pi / row.omega) for row in rows)


def test_elements_of_a_pair() -> None:
    row = summarise(RopeConfig("neox", n_dims=64))[3]
    assert (row.first, row.second, row.axis) == (3, 35, "t")
    row = summarise(RopeConfig("normal", n_dims=64, n_offs=8))[3]
    assert (row.first, row.second) == (14, 15)
    row = summarise(RopeConfig("vision", sections=(4, 4, 4, 4)), head_dim=64)[5]
    assert (row.first, row.second, row.axis) == (5, 37, "h")


def test_first_pair_turns_once_in_two_pi_positions() -> None:
    assert summarise(RopeConfig("neox"), head_dim=64)[0].wavelength == pytest.approx(2 * math.pi)


def test_pairs_that_stand_still() -> None:
    params = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    rows = summarise(RopeConfig.from_hf({"model_type": "llama", "head_dim": 64, "rope_parameters": params}))
    assert [math.isinf(row.wavelength) for row in rows] == [False] * 8 + [True] * 24


def test_n_dims_is_needed() -> None:
    with pytest.raises(ConfigError, match="n_dims: not set"):
        summarise(RopeConfig("neox"))
