"""The fused multiply-add of ggml's YaRN blend: rounded once, in NumPy and in the kernel."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

import clrope
from clrope import RopeConfig
from clrope.angles import angle_table
from clrope.emulation import emulate_cos_sin
from clrope.reference import _multiply_add_once, ggml_theta


def nearest(value: Fraction) -> np.float32:
    """Round a rational number to float32, to nearest even, by trying the neighbours of a first guess."""
    guess = np.float32(float(value))
    near = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(near, key=lambda f: (abs(Fraction(float(f)) - value), int(f.view(np.uint32)) & 1))


def test_rounded_once(rng: np.random.Generator) -> None:
    a, b = (rng.uniform(-1, 1, 4000).astype(np.float32) for _ in range(2))
    scale = np.float32(2.0) ** rng.integers(-40, 30, 4000).astype(np.float32)
    c = (-a * b * (1 + rng.uniform(-1e-7, 1e-7, 4000)) + rng.uniform(-1, 1, 4000) * scale).astype(np.float32)
    got = _multiply_add_once(a, b, c)
    want = [
        nearest(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))) for x, y, z in zip(a, b, c, strict=True)
    ]
    assert (got == np.array(want)).all()
    assert (got != a * b + c).any(), "no case that two roundings get wrong"


def test_halfway_cases_are_decided_by_the_lost_bits() -> None:
    # 1 + 2**-24 lies between two floats; what is left of the product, far below, decides.
    a = np.array([1 + 2.0**-23], np.float32)
    for sign in (1, -1):
        c = np.array([sign * 2.0**-60], np.float32)
        b = np.array([2.0**-24], np.float32)
        want = nearest(Fraction(float(a[0])) * Fraction(float(b[0])) + Fraction(float(c[0])))
        assert _multiply_add_once(a, b, c)[0] == want


def test_large_values_and_infinities_pass() -> None:
    huge = np.array([3e38, np.inf, 1e31], np.float32)
    got = _multiply_add_once(huge, np.float32(2), np.float32(1))
    assert got[0] == np.inf
    assert got[1] == np.inf
    assert got[2] == np.float32(1e31) * np.float32(2) + np.float32(1)


def test_the_kernel_rounds_the_same(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    for _ in range(10):
        config = RopeConfig(
            "neox", 128, freq_scale=float(rng.uniform(0.1, 1.5)), ext_factor=float(rng.uniform(0.1, 1)),
            n_ctx_orig=4096, angles="ggml",
        )  # fmt: skip
        positions = rng.integers(0, 1 << 20, 64)
        cosine, sine = clrope.Rope(config, device.index).cos_sin(positions)
        want = emulate_cos_sin(positions, config)
        assert np.array_equal(cosine, want[0])
        assert np.array_equal(sine, want[1])
        # The blend matters at these positions: without the fused operation the angles are others.
        g = angle_table(config).ggml
        theta = ggml_theta(positions[None], angle_table(config))
        first = positions.astype(np.float32)
        assert (theta[:, 0] == _multiply_add_once(first * g.freq_scale, 1 - g.mix[0], first * g.mix[0])).all()
