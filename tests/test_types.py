"""Every half and every bfloat16 pattern: through the copy, through a rotation by nothing, and by any angle."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import Case, bits, run, same

import clrope
from clrope import Rope, RopeConfig
from clrope.emulation import emulate_rope
from clrope.kernels.variant import Variant

HALVES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
VARIANTS = {
    "f16": [None, Variant("strided"), Variant(width=4), Variant(width=2)],
    "bf16": [None, Variant("strided")],
}
CASES = [(dtype, variant) for dtype, variants in VARIANTS.items() for variant in variants]


def every_pattern(dtype: str, rng: np.random.Generator) -> np.ndarray:
    """All 65,536 values, in random order so that pairs differ from run to run: [128, 16, 32]."""
    return rng.permutation(np.arange(65536, dtype=np.uint16)).view(HALVES[dtype]).reshape(128, 16, 32)


def is_nan(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.isnan(x.astype(np.float64))


@pytest.mark.one_in(8)
@pytest.mark.parametrize(("dtype", "variant"), CASES, ids=str)
@pytest.mark.parametrize("mode", ["normal", "neox"])
def test_every_pattern_is_copied(device: clrope.DeviceInfo, mode: Any, dtype: str, variant: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = every_pattern(dtype, rng)
    padded = np.concatenate([np.zeros((128, 16, 4), x.dtype), x, np.zeros((128, 16, 6), x.dtype)], axis=2)
    config = RopeConfig(mode, 2, n_offs=2, attn_factor=-3.0)
    got = Rope(config, device.index, variant=variant)(padded, 7)
    assert (bits(got)[:, :, 4:36] == bits(x)).all(), f"seed {seed}"
    behind = np.concatenate([x[..., ::-1], np.zeros((128, 16, 2), x.dtype)], axis=2)
    got = Rope(RopeConfig(mode, 2, n_offs=32), device.index, variant=variant)(behind, 7)
    assert (bits(got)[:, :, :32] == bits(x[..., ::-1])).all(), f"seed {seed}"


@pytest.mark.parametrize(("dtype", "variant"), CASES, ids=str)
@pytest.mark.parametrize("mode", ["normal", "neox"])
def test_every_pattern_by_angle_0(device: clrope.DeviceInfo, mode: Any, dtype: str, variant: Any, seed: int) -> None:
    """Each pattern paired with a zero: it comes back, subnormal, infinite or NaN, as a * 1 - 0 * 0 has it."""
    rng = np.random.default_rng(seed)
    x = every_pattern(dtype, rng)
    paired = np.zeros((128, 16, 64), x.dtype)
    where = slice(0, 64, 2) if mode == "normal" else slice(0, 32)
    paired[..., where] = x
    got = Rope(RopeConfig(mode), device.index, variant=variant)(paired, np.zeros(128, int))
    assert same(got, emulate_rope(paired, np.zeros(128, int), RopeConfig(mode))).all(), f"seed {seed}"
    number = ~is_nan(x)
    # -0 - 0 * 0 is 0 - 0: the sign of a zero alone may go.
    kept = got[..., where]
    assert ((bits(kept) == bits(x)) | (bits(x) == 0x8000) & (kept == 0))[number].all(), f"seed {seed}"
    assert is_nan(kept)[~number].all(), f"seed {seed}"


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize(("dtype", "variant"), CASES, ids=str)
@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.one_in(4)
def test_every_pattern_by_any_angle(
    device: clrope.DeviceInfo, mode: Any, dtype: str, variant: Any, forward: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = every_pattern(dtype, rng)
    positions = rng.integers(-(2**31), 2**31, 128)
    for magnitude in (1.0, 1.37, 0.0, 1e-5):
        config = RopeConfig(mode, freq_base=5e5, attn_factor=magnitude)
        got = Rope(config, device.index, variant=variant)(x, positions, forward)
        wrong = np.argwhere(~same(got, emulate_rope(x, positions, config, forward)))
        assert not wrong.size, f"seed {seed}, magnitude {magnitude}, first at {wrong[0]}"


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_ties_go_to_even(device: clrope.DeviceInfo, dtype: str) -> None:
    """Odd significands halved below the least normal number are halfway between two values: the even one is taken."""
    least = {"f16": 2.0**-14, "bf16": 2.0**-126}[dtype]
    step = {"f16": 2.0**-24, "bf16": 2.0**-133}[dtype]
    counts = np.arange(1, 1 + int(least / step), 2)
    x = np.zeros((1, 1, 2 * counts.size), HALVES[dtype])
    x[0, 0, ::2] = (counts * step).astype(x.dtype)
    assert (x[0, 0, ::2].astype(np.float64) == counts * step).all()
    got = clrope.rope(x, 0, RopeConfig("normal", attn_factor=0.5), device=device.index)[0, 0, ::2]
    even = np.rint(counts / 2)  # NumPy's rint takes ties to even
    assert (got.astype(np.float64) == even * step).all()
    assert (even > counts / 2).any()
    assert (even < counts / 2).any()


@pytest.mark.one_in(8)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("mode", ["normal", "neox"])
def test_random_bits_of_wide_types(device: clrope.DeviceInfo, mode: str, dtype: str, seed: int) -> None:
    for k, out in enumerate((None, "in place")):
        fields = {"mode": mode, "n_dims": 60, "n_offs": 2}
        run(Case(fields, (50, 3, 64), dtype, low=-999, high=999, out=out, values="bits", seed=seed + k), device)


def test_subnormals_of_f32(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    x = rng.integers(0, 1 << 23, (9, 3, 32), dtype=np.uint32).view(np.float32)
    config = RopeConfig("neox", 16)
    got = clrope.rope(x, 5, config, device=device.index)
    assert (got[..., :16] != 0).mean() > 0.9
    assert same(got, emulate_rope(x, 5, config)).all()
