"""Grids: pairs driven by axes of their own (`pair_axes`), and coordinates in fractions (`coordinate_scale`)."""

from __future__ import annotations

import json
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import same

import clrope
from clrope import ConfigError, Rope, RopeConfig, ShapeError
from clrope.angles import angle_table
from clrope.emulation import emulate_rope
from clrope.interop import ggml
from clrope.kernels.variant import Variant

GRID = (0,) * 8 + (1,) * 8


def random_config(rng: np.random.Generator) -> RopeConfig:
    """Return a grid of 2 to 4 axes, their pairs in blocks, in turns or in any order."""
    number, each = int(rng.integers(2, 5)), int(rng.choice([2, 4, 8]))
    axes = np.arange(number).repeat(each) if rng.random() < 0.5 else np.tile(np.arange(number), each)
    if rng.random() < 0.3:
        axes = np.concatenate([rng.permutation(axes), rng.integers(0, number, 4)])
    freqs = str(rng.choice(["restart", "continue", "deal"]))
    return RopeConfig(
        str(rng.choice(["normal", "neox"])),  # type: ignore[arg-type]
        freq_base=float(rng.choice([100.0, 10000.0])),
        freq_scale=float(rng.choice([1.0, 0.25, 1.7])),
        attn_factor=float(rng.choice([1.0, 1.25])),
        freq_factors=tuple(rng.uniform(0.5, 2, axes.size)) if rng.random() < 0.3 else None,
        n_offs=int(rng.choice([0, 4])),
        pair_axes=tuple(axes.tolist()),
        axis_freqs=freqs if len(set(np.bincount(axes))) == 1 or freqs != "deal" else "restart",  # type: ignore[arg-type]
        axis_bases=tuple(rng.uniform(50, 20000, number)) if rng.random() < 0.5 else None,
        coordinate_scale=int(rng.choice([1, 2, 14, 64])),
    )


def angles(config: RopeConfig, positions: np.ndarray) -> np.ndarray:
    """Return the angles of positions [axes, R] in radians by the formulas of the documentation, float64[R, pairs]."""
    axes = config.pair_axes
    assert axes is not None
    columns = []
    for i, axis in enumerate(axes):
        j, n = axes[:i].count(axis), axes.count(axis)
        exponent = {"restart": j / n, "continue": i / len(axes), "deal": (j * (max(axes) + 1) + axis) / len(axes)}
        base = config.freq_base if config.axis_bases is None else config.axis_bases[axis]
        factor = 1.0 if config.freq_factors is None else config.freq_factors[i]
        omega = base ** -exponent[config.axis_freqs] / factor * config.freq_scale
        columns.append(positions[axis] / config.coordinate_scale * omega)
    return np.stack(columns, -1)


def test_the_formulas(rng: np.random.Generator) -> None:
    for _ in range(40):
        config = random_config(rng)
        positions = rng.integers(-3000, 3000, (config.position_axes, 7))
        want = angles(config, positions)
        for got, f in zip(clrope.reference.cos_sin(positions, config), (np.cos, np.sin), strict=True):
            assert np.abs(got - f(want) * config.attn_factor).max() < 1e-10, config


@pytest.mark.one_in(8)
@pytest.mark.parametrize("variant", [None, Variant("strided"), Variant("rows", width=2), Variant("lanes")], ids=str)
def test_rotations(device: clrope.DeviceInfo, rng: np.random.Generator, variant: Variant | None) -> None:
    """Bit for bit as the emulation, and as the float64 reference; positions per token, per batch, counting."""
    for dtype in (np.float32, (np.float16, ml_dtypes.bfloat16)[rng.integers(2)]):
        config = random_config(rng)
        number = config.position_axes
        head_dim = config.n_offs + (config.n_dims or 0) + int(rng.choice([0, 8]))
        x = rng.uniform(-1, 1, (2, 5, 3, head_dim)).astype(dtype)
        for positions in (
            rng.integers(-500, 500, (number, 5)), rng.integers(-500, 500, (number, 2, 5)),
            rng.integers(0, 2**40, (number, 2, 5)), np.arange(5), 7, [[3], [900]],
        ):  # fmt: skip
            op = Rope(config, device.index, variant=variant)
            for forward in (True, False):
                got = op(x, positions, forward)
                assert same(got, emulate_rope(x, positions, config, forward)).all(), (config, positions)
        if dtype == np.float32:
            assert clrope.compare(got, clrope.reference.rope(x, positions, config, False)).nmse < 1e-12


def test_one_row_is_the_diagonal(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """One position for all axes is as many rows of it; and several tensors share rows."""
    config = RopeConfig("neox", pair_axes=GRID)
    q, k = (rng.uniform(-1, 1, (1, 6, n, 32)).astype(np.float32) for n in (4, 2))
    rows = rng.integers(0, 99, (2, 6))
    several = clrope.rope((q, k), rows, config, device=device.index)
    assert same(several[0], clrope.rope(q, rows, config, device=device.index)).all()
    assert same(several[1], emulate_rope(k, rows, config)).all()
    diagonal = clrope.rope(q, [rows[0], rows[0]], config, device=device.index)
    assert same(diagonal, clrope.rope(q, rows[0], config, device=device.index)).all()
    assert not same(diagonal, clrope.rope(q, rows, config, device=device.index)).all()


@pytest.mark.parametrize("n", [16, 20])
def test_the_same_as_sections(n: int) -> None:
    """What sections can say is the same to the last bit of the steps."""
    for freqs, sections in (
        ("restart", RopeConfig("vision", 2 * n, sections=(n, n, 0, 0))),
        ("continue", RopeConfig("mrope", 4 * n, sections=(n, n, 0, 0))),
    ):
        config = RopeConfig("neox", pair_axes=(0,) * n + (1,) * n, axis_freqs=freqs)  # type: ignore[arg-type]
        a, b = angle_table(config), angle_table(sections)
        for name in ("step", "step_low", "axis"):
            assert np.array_equal(getattr(a, name), getattr(b, name)), (freqs, name)


def test_fractions_are_exact(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """The scale divides the steps, and fractions of a position turn by fractions of the angle."""
    whole, fine = (RopeConfig("neox", pair_axes=GRID, coordinate_scale=scale) for scale in (1, 64))
    for a, b in zip(angle_table(whole).turn128, angle_table(fine).turn128, strict=True):
        assert abs(a - 64 * b) <= 32 + 1  # each is rounded to 2**-128 of a turn
    coordinates = rng.integers(-64 * 50, 64 * 50, (2, 9)) / 64
    positions = clrope.scaled_positions(coordinates, fine)
    x = rng.uniform(-1, 1, (1, 9, 2, 32)).astype(np.float32)
    got = clrope.rope(x, positions, fine, device=device.index)
    assert same(got, emulate_rope(x, positions, fine)).all()
    theta = angles(whole, coordinates)[:, None, :]
    a, b = x[0, ..., :16].astype(np.float64), x[0, ..., 16:].astype(np.float64)
    want = np.concatenate([a * np.cos(theta) - b * np.sin(theta), a * np.sin(theta) + b * np.cos(theta)], -1)
    assert clrope.compare(got[0], want).nmse < 1e-12


def test_scaled_positions() -> None:
    config = RopeConfig("neox", coordinate_scale=4)
    made = clrope.scaled_positions([[0.25, -1.5], [3, 0]], config)
    assert made.dtype == np.int64
    assert made.tolist() == [[1, -6], [12, 0]]
    assert clrope.scaled_positions(np.array([3], np.uint8), config).tolist() == [12]
    assert clrope.scaled_positions(np.float32([0.5]), config).tolist() == [2]
    thirds = RopeConfig("neox", coordinate_scale=3)
    assert clrope.scaled_positions([1 / 3, -7 / 3, 2.0], thirds).tolist() == [1, -7, 6]
    for wrong, message in (
        ([0.0, 0.3], r"coordinates: got 0.3, whole units of 1/4"), ([np.nan], "got nan"), ([np.inf], "got inf"),
        ([2.0**52], "whole units"), ([2**62], "beyond 64-bit"), ([True], "got dtype bool"), (["a"], "got dtype"),
    ):  # fmt: skip
        with pytest.raises(ShapeError, match=message):
            clrope.scaled_positions(wrong, config)
    with pytest.raises(ShapeError, match=r"got 0\.333"):
        clrope.scaled_positions(np.float32([1 / 3]), thirds)


def test_round_trip(rng: np.random.Generator) -> None:
    for _ in range(10):
        config = random_config(rng)
        again = RopeConfig.from_dict(json.loads(json.dumps(config.to_dict())))
        assert again == config
        assert hash(again) == hash(config)
        assert pickle.loads(pickle.dumps(config)) == config
        assert eval(repr(config), {"RopeConfig": RopeConfig}) == config
        assert config.for_head_dim(config.n_offs + (config.n_dims or 0)) == config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pair_axes": (0, 0)}, "pair_axes: got fewer than two axes"),
        ({"pair_axes": ()}, "pair_axes: got fewer than two axes"),
        ({"pair_axes": (0, 2)}, "pair_axes: got 3 axes, of which axis 1 drives no pair"),
        ({"pair_axes": (0, 8)}, r"pair_axes\[1\]: got 8, at most 7"),
        ({"pair_axes": (0, -1)}, r"pair_axes\[1\]: got -1"),
        ({"pair_axes": (0, 1.0)}, r"pair_axes\[1\]: got 1.0 of type float"),
        ({"pair_axes": "01"}, "pair_axes: got '01'"),
        ({"pair_axes": GRID, "n_dims": 30}, "n_dims: got 30, pair_axes has 16 pairs"),
        ({"pair_axes": GRID, "mode": "mrope", "sections": (8, 8, 0)}, "pair_axes: mode 'mrope' has sections"),
        ({"pair_axes": GRID, "ext_factor": 1.0}, "ext_factor: YaRN has no ramp"),
        ({"pair_axes": GRID, "angles": "ggml"}, "angles: got 'ggml'"),
        ({"pair_axes": GRID, "axis_freqs": "own"}, "axis_freqs: got 'own', allowed are 'restart', 'continue', 'deal'"),
        ({"pair_axes": (0, 0, 1), "axis_freqs": "deal"}, r"axis_freqs: got 'deal' for axes of \[2, 1\] pairs"),
        ({"pair_axes": GRID, "axis_bases": (1e4,)}, "axis_bases: got 1 numbers, one per axis is needed: 2"),
        ({"pair_axes": GRID, "axis_bases": (1e4, 0)}, r"axis_bases\[1\]: got 0"),
        ({"axis_bases": (1e4, 1e4)}, "axis_bases: given without pair_axes"),
        ({"axis_freqs": "deal"}, "axis_freqs: given without pair_axes"),
        ({"coordinate_scale": 0}, "coordinate_scale: got 0"),
        ({"coordinate_scale": 0.5}, "coordinate_scale: got 0.5"),
        ({"coordinate_scale": 2, "angles": "ggml"}, "angles: got 'ggml'"),
        ({"pair_axes": GRID, "freq_factors": (1.0,) * 15}, "freq_factors: got 15"),
    ],
)
def test_refused_fields(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        RopeConfig(**{"mode": "neox", **fields})


def test_refused_positions(device: clrope.DeviceInfo) -> None:
    config, x = RopeConfig("neox", pair_axes=GRID), np.ones((2, 5, 1, 32), np.float32)
    for shape in ((3, 5), (4, 5), (3, 2, 5), (5, 2), (2, 3, 5)):
        with pytest.raises(ShapeError, match=r"positions: got shape .*\[2, 5\], \[2, 2, 5\]"):
            clrope.rope(x, np.zeros(shape, np.int64), config, device=device.index)
    with pytest.raises(ShapeError, match="positions: got dtype float64"):
        clrope.rope(x, np.zeros((2, 5)), config, device=device.index)
    with pytest.raises(ConfigError, match="n_dims: got 32, at most head_dim = 16"):
        clrope.rope(x[..., :16], 0, config, device=device.index)


def test_who_has_no_axes() -> None:
    for config in (RopeConfig("neox", pair_axes=GRID), RopeConfig("neox", 32, coordinate_scale=2)):
        with pytest.raises(ConfigError, match="config: got pair_axes or coordinate_scale, ggml has neither"):
            ggml.OpParams.of_config(config)
    torch = pytest.importorskip("clrope.interop.torch", exc_type=ImportError)
    with pytest.raises(ConfigError, match="pair_axes: given, but positions have one row here"):
        torch.RoPE.from_config(RopeConfig("neox", pair_axes=GRID))


def test_identified_by_the_configuration(rng: np.random.Generator) -> None:
    """Which axis drives a pair is compared with, not guessed; what is confused is named."""
    config = RopeConfig("neox", pair_axes=GRID)
    x, positions = rng.uniform(-1, 1, (1, 40, 2, 32)).astype(np.float32), rng.integers(0, 50, (2, 40))
    after = clrope.reference.rope(x, positions, config).astype(np.float32)
    found = clrope.identify(x, after, positions, config=config).best
    assert found is not None
    assert found.config == config
    other = clrope.identify(x, after, positions, config=RopeConfig("normal", pair_axes=GRID))
    assert other.best is not None
    assert "NEOX where the config says NORMAL" in str(other)
