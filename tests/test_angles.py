"""The fractions of a turn against mpmath, to the last of their 128 bits, and which position drives a pair."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import mpmath
import numpy as np
import oracle
import pytest

from clrope import ConfigError, RopeConfig
from clrope.angles import AngleTable, angle_table, section_of_pairs, yarn_range

YARN = {"ext_factor": 1.0, "freq_scale": 0.25, "n_ctx_orig": 4096}
FIELDS: list[dict[str, Any]] = [
    *({"freq_base": base} for base in (10000.0, 500000.0, 1e6, 1.5, 1.0, 0.25, 1e-3, 150000.0, 7.3e9)),
    {"freq_scale": 1 / 3},
    {"freq_scale": 7.0},
    YARN,
    {**YARN, "ext_factor": 0.7, "beta_fast": 8.0, "beta_slow": 4.0},
    {**YARN, "n_ctx_orig": 0, "beta_fast": 1.0},
    # The ramp would end beyond n_dims - 1, which ggml does not allow.
    {**YARN, "n_ctx_orig": 2**20, "beta_slow": 1e-3},
    {**YARN, "n_ctx_orig": 0, "freq_base": 0.5},
    {**YARN, "ext_factor": -1.0},
    {**YARN, "ext_factor": -1.3, "n_ctx_orig": 131072, "freq_base": 5e5},
    {"freq_factors": tuple(0.9 + 0.003 * i for i in range(64))},
    {"freq_factors": tuple(-1.5 - i for i in range(64)), **YARN},
    {"freq_factors": (-1e30,) * 64},  # rounds up to a whole turn
]


@pytest.mark.parametrize("fields", FIELDS, ids=str)
@pytest.mark.parametrize("n_dims", [2, 6, 64, 128])
def test_every_bit_of_the_steps(fields: dict[str, Any], n_dims: int) -> None:
    fields = {"mode": "neox", "n_dims": n_dims, **fields}
    table = angle_table(RopeConfig(**fields))
    assert table.pairs == n_dims // 2
    assert_every_bit(table, fields, n_dims)
    assert not table.axis.any()


@pytest.mark.parametrize("mode", ["neox", "vision"])
def test_the_fastest_pairs(mode: Any, rng: np.random.Generator) -> None:
    """Their whole turns take up to 180 digits, which the 39 digits of a fraction of a turn come after."""
    pairs = 24 if mode == "vision" else 12
    least, most = 1e-36, 1e36
    draws = np.exp(rng.uniform(np.log(least), np.log(most), (6, 4)))
    for base, factor, scale, ext in [(least, least, most, most), *draws.tolist()]:
        fields: dict[str, Any] = {
            "mode": mode, "n_dims": 24, "sections": (24, 0, 0) if mode == "vision" else None, "freq_base": base,
            "freq_factors": (factor,) * pairs, "freq_scale": scale, "ext_factor": -ext,
        }  # fmt: skip
        assert_every_bit(angle_table(RopeConfig(**fields)), fields, 2 * pairs, digits=300)


def assert_every_bit(table: AngleTable, fields: dict[str, Any], head_dim: int, digits: int = oracle.DIGITS) -> None:
    with mpmath.workdps(digits):
        omegas, _, magnitude = oracle.frequencies(fields, head_dim, digits)
        for i, omega in enumerate(omegas):
            turn = omega / (2 * mpmath.pi)
            fraction = turn - mpmath.floor(turn)
            assert int(table.step[i]) == int(mpmath.nint(fraction * 2**64)) % 2**64, f"pair {i}"
            assert 0 <= table.turn128[i] < 2**128
            distance = (table.turn128[i] - int(mpmath.nint(fraction * 2**128))) % 2**128
            assert distance in (0, 1, 2**128 - 1), f"pair {i}"
            assert table.omega[i] == pytest.approx(float(omega), rel=4e-16)
        assert table.magnitude == pytest.approx(float(magnitude), rel=4e-16)


def test_random_configurations(rng: np.random.Generator) -> None:
    for _ in range(40):
        n_dims = 2 * int(rng.integers(1, 48))
        fields: dict[str, Any] = {
            "mode": "normal", "n_dims": n_dims, "freq_base": float(np.exp(rng.uniform(-2, 20))),
            "freq_scale": float(np.exp(rng.uniform(-4, 2))),
            "ext_factor": float(rng.choice([0, 1, rng.uniform(-1, 2)])),
            "n_ctx_orig": int(rng.integers(0, 200000)), "beta_fast": float(rng.uniform(0.1, 64)),
            "beta_slow": float(rng.uniform(0.1, 64)),
            "freq_factors": tuple(map(float, rng.uniform(0.5, 64, n_dims // 2))) if rng.integers(2) else None,
        }  # fmt: skip
        table = angle_table(RopeConfig(**fields))
        with mpmath.workdps(oracle.DIGITS):
            omegas, _, _ = oracle.frequencies(fields, n_dims)
            turns = [omega / (2 * mpmath.pi) for omega in omegas]
            want = [int(mpmath.nint((t - mpmath.floor(t)) * 2**64)) % 2**64 for t in turns]
        assert [int(s) for s in table.step] == want, fields


@pytest.mark.parametrize("mode", ["mrope", "imrope", "vision"])
@pytest.mark.parametrize(
    "sections",
    [(16, 24, 24, 0), (2, 2, 2, 2), (1, 0, 0, 0), (0, 3, 0, 2), (0, 0, 1, 0), (3, 1, 0, 1), (5, 5, 5, 50),
     (64, 64, 64, 64), (11, 11, 10, 0), (24, 20, 20, 0), (0, 2, 0, 0), (3, 0, 0, 3)],
)  # fmt: skip
def test_who_drives_a_pair(mode: Any, sections: tuple[int, ...]) -> None:
    head_dim = 128
    fields = {"mode": mode, "sections": sections}
    config = RopeConfig(mode, sections=sections).for_head_dim(head_dim)  # type: ignore[arg-type]
    table = angle_table(config)
    omegas, drivers, _ = oracle.frequencies(fields, head_dim)
    assert "".join("thwe"[axis] for axis in table.axis) == "".join(drivers)
    assert table.omega == pytest.approx([float(o) for o in omegas], rel=1e-15)


def test_sections_by_hand() -> None:
    def axes(mode: Any, sections: Any, pairs: int) -> str:
        return "".join("thwe"[a] for a in section_of_pairs(RopeConfig(mode, sections=sections), pairs)[0])

    def exponents(mode: Any, sections: Any, pairs: int) -> list[int]:
        return section_of_pairs(RopeConfig(mode, sections=sections), pairs)[1]

    assert axes("mrope", (2, 1, 1, 1), 8) == "tthwetth"  # wraps after 5
    assert exponents("mrope", (2, 1, 1, 1), 8) == list(range(8))  # never restarts
    assert axes("mrope", (1, 1, 1), 7) == "thwthwt"
    assert axes("imrope", (3, 2, 2), 7) == "thwthwt"
    assert axes("imrope", (4, 2, 2), 8) == "thwthwte"
    assert axes("imrope", (3, 2, 1, 0), 8) == "thwtheth"  # sector 5 is beyond w's share; wraps after 6
    assert axes("vision", (2, 2, 0, 0), 6) == "tthhtt"
    assert exponents("vision", (2, 2, 0, 0), 6) == [0, 1, 0, 1, 0, 1]
    assert exponents("vision", (2, 1, 1, 2), 8) == [0, 1, 0, 0, 0, 1, 0, 1]
    assert exponents("vision", (3, 2, 2, 1), 10) == [0, 1, 2, 0, 1, 0, 1, 0, 0, 1]
    assert exponents("vision", (400, 300, 0, 0), 1000) == [*range(400), *range(300), *range(300)]


@pytest.mark.parametrize("n_ctx_orig", [512, 2048, 4096, 8192, 32768, 131072])
@pytest.mark.parametrize("freq_base", [1e4, 5e5, 1e6])
@pytest.mark.parametrize("betas", [(32.0, 1.0), (16.0, 2.5), (3.0, 0.7)])
def test_range_of_the_ramp(n_ctx_orig: int, freq_base: float, betas: tuple[float, float]) -> None:
    fields = {
        "ext_factor": 1.0,
        "n_ctx_orig": n_ctx_orig,
        "freq_base": freq_base,
        "beta_fast": betas[0],
        "beta_slow": betas[1],
    }
    config = RopeConfig("neox", 128, freq_scale=0.25, **fields)  # type: ignore[arg-type]
    want = oracle.corr_dims(fields, 128, mpmath.mpf(freq_base))
    assert yarn_range(config) == tuple(map(float, want))


def test_tables_are_read_only_and_remembered() -> None:
    config = RopeConfig("neox", 8)
    table = angle_table(config)
    assert table is angle_table(RopeConfig("neox", 8))
    assert len({table, table.ggml, angle_table(RopeConfig("neox", 10))}) == 3  # by identity: arrays have no hash
    for part, count in ((table, 4), (table.ggml, 3)):
        arrays = [value for value in vars(part).values() if isinstance(value, np.ndarray)]
        assert len(arrays) == count
        for array in arrays:
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
        with pytest.raises(FrozenInstanceError):
            part.magnitude = 2  # type: ignore[misc]
    with pytest.raises(ConfigError, match="n_dims: not set"):
        angle_table(RopeConfig("neox"))
