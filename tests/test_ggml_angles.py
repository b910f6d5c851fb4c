"""`angles="ggml"`: equal to its emulation on every device, and to ggml itself where ggml-python is installed."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import oracle
import pytest
from helpers import Case, run, same

import clrope
from clrope import RopeConfig, reference
from clrope.angles import angle_table
from clrope.emulation import emulate_cos_sin, emulate_rope
from clrope.layout import DTYPES

YARN = {"ext_factor": 1.0, "freq_scale": 0.25, "n_ctx_orig": 4096, "attn_factor": 1.2}
CONFIGS: list[dict[str, Any]] = [
    {"mode": "normal"},
    {"mode": "neox", "freq_base": 500000.0, "freq_factors": [0.9 + 0.01 * i for i in range(32)]},
    {"mode": "neox", **YARN},
    {"mode": "normal", "n_dims": 40, **YARN, "ext_factor": 0.3, "beta_fast": 8.0, "beta_slow": 2.0},
    {"mode": "neox", "ext_factor": 1.0, "freq_scale": 0.5, "beta_fast": 1.0},
    {"mode": "mrope", "sections": (8, 12, 12, 0)},
    {"mode": "imrope", "sections": (12, 10, 10, 0)},
    {"mode": "vision", "sections": (16, 16, 0, 0)},
]


@pytest.mark.one_in(8)
@pytest.mark.parametrize("fields", CONFIGS, ids=str)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_equal_to_the_emulation(device: clrope.DeviceInfo, fields: dict[str, Any], dtype: str, seed: int) -> None:
    for k, high in enumerate((512, 131072, 2**31, 2**62)):
        case = Case({**fields, "angles": "ggml"}, (3, 2, 64), dtype, low=-high, high=high, seed=seed + k)
        run(case, device)


def test_cos_and_sin_of_those_floats(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """The angles are floats with their own errors; cos and sin of exactly those floats are right at any size."""
    for low, high in ((0, 1e-30), (0, 1e-6), (1e-3, 10), (1e3, 1e6), (1e9, 1e19)):
        factors = tuple(map(float, 1 / rng.uniform(low, high, 64)))
        config = RopeConfig("neox", 128, freq_base=1.0, freq_factors=factors, angles="ggml")
        cosine, sine = clrope.Rope(config, device.index).cos_sin([1, -1])
        table = angle_table(config)
        theta = reference.ggml_theta(np.array([[1, -1]]), table)
        assert (np.abs(theta) <= high * 1.001).all()
        want = exact_cos_sin(theta)
        assert np.abs(cosine - want[0]).max() <= 2e-7
        assert np.abs(sine - want[1]).max() <= 2e-7
        emulated = emulate_cos_sin([1, -1], config)
        assert (cosine == emulated[0]).all()
        assert (sine == emulated[1]).all()


BEYOND: list[tuple[dict[str, Any], int]] = [
    ({"mode": "neox", "freq_scale": 1e30}, 2**40),
    ({"mode": "neox", "freq_factors": (1e-30, -1e-30, 1, 1)}, 2**40),
    ({"mode": "normal", "freq_base": 1e-30}, 2**62),
    ({"mode": "normal", "freq_base": 1e-36, "freq_factors": (4.0, -4.0, 8.0, 1e30)}, -(2**62)),
    ({"mode": "neox", "freq_base": 1e-36, "freq_factors": (1e300,) * 4}, 2**62),
    ({"mode": "neox", "freq_base": 1e-36, "n_ctx_orig": 4096, "ext_factor": 0.3, "freq_scale": 0.5}, 2**62),
    ({"mode": "neox", "freq_scale": 1e30, "attn_factor": 0.0}, 2**40),
    ({"mode": "vision", "freq_base": 1e-36, "sections": (4, 0, 0, 0)}, 2**62),
]


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("fields", "position"), BEYOND, ids=str)
def test_angles_beyond_float32_are_nan(device: clrope.DeviceInfo, fields: dict[str, Any], position: int) -> None:
    """As cos and sin of an overflowed float are, in ggml and in the reference."""
    config, positions = RopeConfig(**fields, angles="ggml"), np.array([position, 1, 0])
    with np.errstate(all="ignore"):
        right = reference.cos_sin(positions, config, head_dim=8)
    assert np.isnan(right).any(), "a case that overflows nowhere"
    made = clrope.Rope(config, device.index).cos_sin(positions, head_dim=8)
    for got, want, exact in zip(made, emulate_cos_sin(positions, config, head_dim=8), right, strict=True):
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
        np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
        assert (want.view(np.uint32)[np.isnan(want)] == 0x7FC00000).all()
    for dtype in ("bf16", "f32", "f64"):
        x = np.ones((1, 3, 2, 8), DTYPES[dtype])
        with np.errstate(all="ignore"):
            exact = reference.rope(x, positions, config)
        got = clrope.rope(x, positions, config, device=device.index)
        assert same(got, emulate_rope(x, positions, config)).all()
        np.testing.assert_array_equal(np.isnan(got.astype(np.float64)), np.isnan(exact))


def exact_cos_sin(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import mpmath

    with mpmath.workdps(60):
        numbers = [mpmath.mpf(float(t)) for t in theta.ravel()]
        made = [[float(f(t)) for t in numbers] for f in (mpmath.cos, mpmath.sin)]
    return np.reshape(made[0], theta.shape), np.reshape(made[1], theta.shape)


@pytest.mark.parametrize("fields", CONFIGS, ids=str)
def test_near_the_exact_angles(fields: dict[str, Any]) -> None:
    """Where few multiplications matter, ggml's angles are the same as ours: the two formulas cannot differ by rule."""
    ggml = RopeConfig(**fields, angles="ggml").for_head_dim(64)
    exact = RopeConfig(**fields).for_head_dim(64)
    positions = np.arange(24).reshape(4, 6) if ggml.uses_sections else np.arange(6)
    for a, b in zip(reference.cos_sin(positions, ggml), reference.cos_sin(positions, exact), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=5e-5)


@pytest.mark.parametrize("fields", CONFIGS, ids=str)
def test_every_bit_of_the_floats(fields: dict[str, Any], rng: np.random.Generator) -> None:
    config = RopeConfig(**fields, angles="ggml").for_head_dim(64)
    rows = np.concatenate([rng.integers(-high, high, (4, 8), endpoint=True) for high in (64, 131072, 2**31)], axis=1)
    assert_every_float(config, fields, rows, 64)


def test_every_bit_of_random_floats(rng: np.random.Generator) -> None:
    for k in range(24):
        n_dims = 2 * int(rng.integers(1, 24))
        fields: dict[str, Any] = {
            "mode": "normal", "n_dims": n_dims, "freq_base": float(np.exp(rng.uniform(-2, 15))),
            "freq_scale": float(np.exp(rng.uniform(-4, 2))), "attn_factor": float(rng.uniform(-2, 2)),
            "ext_factor": (0.0, 1.0, -1.0, float(rng.uniform(-1, 2)))[k % 4], "n_ctx_orig": (0, 99999)[k % 3 % 2],
            "beta_fast": float(rng.uniform(0.1, 64)), "beta_slow": float(rng.uniform(0.1, 64)),
            "freq_factors": tuple(map(float, rng.uniform(0.5, 64, n_dims // 2))) if rng.integers(2) else None,
        }  # fmt: skip
        assert_every_float(RopeConfig(**fields), fields, rng.integers(-(2**20), 2**20, (4, 4)), n_dims)


def assert_every_float(config: RopeConfig, fields: dict[str, Any], rows: np.ndarray, head_dim: int) -> None:
    table = angle_table(config)
    want, magnitude = oracle.ggml_theta(rows, fields, head_dim)
    np.testing.assert_array_equal(reference.ggml_theta(rows, table), want, err_msg=str(fields))
    assert float(table.ggml.magnitude) == magnitude, fields
    assert table.ggml.magnitude.dtype == np.float32
    # Devices are given all three, used or not.
    for array, kind in ((table.ggml.exponent, np.int32), (table.ggml.factor, np.float32), (table.ggml.mix, np.float32)):
        assert (array.shape, array.dtype) == ((table.pairs,), kind)
    assert table.ggml.mix.any() == (config.ext_factor != 0), fields


def live(ggml: Any, x: np.ndarray, positions: np.ndarray, fields: dict[str, Any], forward: bool) -> np.ndarray:
    """What ggml itself makes of x [B, S, N, D], float32."""
    config = RopeConfig(**fields).for_head_dim(x.shape[3])
    context = ggml.ggml_init(ggml.ggml_init_params(mem_size=64 << 20, mem_buffer=None, no_alloc=False))
    try:
        a = ggml.ggml_new_tensor_4d(context, ggml.GGML_TYPE_F32, *x.shape[::-1])
        b = ggml.ggml_new_tensor_1d(context, ggml.GGML_TYPE_I32, positions.size)
        c = None
        pairs = [(a, x), (b, positions.astype(np.int32))]
        if config.freq_factors is not None:
            c = ggml.ggml_new_tensor_1d(context, ggml.GGML_TYPE_F32, len(config.freq_factors))
            pairs.append((c, np.array(config.freq_factors, np.float32)))
        for tensor, array in pairs:
            array = np.ascontiguousarray(array)
            ctypes.memmove(ggml.ggml_get_data(tensor), array.ctypes.data, array.nbytes)
        floats = (config.freq_base, config.freq_scale, config.ext_factor, config.attn_factor, config.beta_fast,
                  config.beta_slow)  # fmt: skip
        if config.sections is not None:
            function = ggml.ggml_rope_multi if forward else ggml.ggml_rope_multi_back
            sections = (ctypes.c_int * 4)(*config.sections)
            y = function(context, a, b, c, config.n_dims, sections, config.ggml_mode, config.n_ctx_orig, *floats)
        else:
            function = ggml.ggml_rope_ext if forward else ggml.ggml_rope_ext_back
            y = function(context, a, b, c, config.n_dims, config.ggml_mode, config.n_ctx_orig, *floats)
        graph = ggml.ggml_new_graph(context)
        ggml.ggml_build_forward_expand(graph, y)
        assert ggml.ggml_graph_compute_with_ctx(context, graph, 1) == 0
        out = np.empty_like(x)
        ctypes.memmove(out.ctypes.data, ggml.ggml_get_data(y), out.nbytes)
        return out
    finally:
        ggml.ggml_free(context)


@pytest.mark.parametrize("forward", [True, False], ids=["forward", "back"])
@pytest.mark.parametrize("fields", CONFIGS, ids=str)
def test_against_ggml_itself(device: clrope.DeviceInfo, fields: dict[str, Any], forward: bool, seed: int) -> None:
    ggml = pytest.importorskip("ggml")
    if fields["mode"] == "imrope" and not hasattr(ggml, "GGML_ROPE_TYPE_IMROPE"):
        pytest.skip("this ggml-python has no IMROPE")
    rng = np.random.default_rng(seed)
    for high in (512, 32768, 131072):
        x = rng.uniform(-1, 1, (1, 16, 2, 64)).astype(np.float32)
        positions = rng.integers(0, high, (4, 16) if "sections" in fields else 16, endpoint=True)
        config = RopeConfig(**fields, angles="ggml")
        got = clrope.rope(x, positions, config, forward, device=device.index)
        want = live(ggml, x, positions, fields, forward)
        assert clrope.compare(got, want.astype(np.float64)).nmse <= 1e-9, f"seed {seed}, positions to {high}"
