"""The NumPy float64 reference against the independent oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
from helpers import Case

import clrope
from clrope import RopeConfig, reference

CONFIGS: list[dict[str, Any]] = [
    {"mode": "normal"},
    {"mode": "neox", "n_dims": 8, "n_offs": 4},
    {"mode": "normal", "n_dims": 6, "n_offs": 2, "attn_factor": 1.7, "freq_base": 5e5},
    {"mode": "neox", "ext_factor": 0.6, "freq_scale": 0.2, "n_ctx_orig": 100, "freq_base": 100.0},
    {"mode": "neox", "freq_factors": [1.1, 0.5, 8.0, 1.0, 2.0, 3.0, 4.0, 0.25]},
    {"mode": "mrope", "sections": (2, 1, 3, 1)},
    {"mode": "imrope", "sections": (3, 3, 2, 0), "ext_factor": 1.0, "n_ctx_orig": 64, "freq_scale": 0.5},
    {"mode": "vision", "sections": (3, 2, 0, 0)},
    {"mode": "vision", "sections": (1, 1, 1, 1), "freq_factors": [0.5 + i for i in range(8)], "n_dims": 8},
]


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("fields", CONFIGS, ids=str)
def test_against_the_oracle(fields: dict[str, Any], forward: bool, seed: int) -> None:
    forms = ["int", "S", "BS"] + (["4S", "3S", "3BS", "4BS"] if "sections" in fields else ["B"])
    if "sections" in fields:
        forms.remove("BS")
    for k, form in enumerate(forms):
        for layout, shape in (("bsnd", (3, 4, 2, 16)), ("nbds", (2, 3, 16, 4))):
            case = Case(fields, shape, "f64", layout, form, low=-(2**20), high=2**20, forward=forward, seed=seed + k)
            built = case.build()
            got = reference.rope(built.x, built.positions, RopeConfig.from_dict(fields), forward, layout)
            want = oracle.rope(built.x, built.positions, fields, forward, layout)
            np.testing.assert_allclose(got, want, rtol=0, atol=3e-15, err_msg=str(case))


@pytest.mark.parametrize("position", [0, 1, -1, 2**31, -(2**31), 2**53 + 1, 2**62 + 12345, -(2**63), 2**63 - 1])
def test_positions_of_any_size(position: int) -> None:
    fields = {"mode": "neox", "n_dims": 64, "freq_base": 5e5, "freq_factors": [1 + 0.01 * i for i in range(32)]}
    cosine, sine = reference.cos_sin([position], RopeConfig.from_dict(fields))
    rows = np.array([[position]] * 4, dtype=object)
    want = oracle.cos_sin(rows, fields, 64)
    # float64 cos and sin of a float64 angle below pi, of an angle right to 2**-66 of a turn.
    np.testing.assert_allclose(cosine, want[0], rtol=0, atol=6e-16)
    np.testing.assert_allclose(sine, want[1], rtol=0, atol=6e-16)


def test_values_are_taken_as_stored(rng: np.random.Generator) -> None:
    config = RopeConfig("neox", 4)
    x = rng.uniform(-1, 1, (2, 1, 8)).astype(np.float16)
    assert (reference.rope(x, 3, config) == reference.rope(x.astype(np.float64), 3, config)).all()
    assert reference.rope(x, 3, config).dtype == np.float64
    assert (reference.rope(x, 3, config)[..., 4:] == x[..., 4:]).all()


def test_position_0_changes_nothing() -> None:
    x = np.ones((2, 1, 4), np.float32)
    assert clrope.compare(x, reference.rope(x, [0, 0], RopeConfig("neox"))).identical
