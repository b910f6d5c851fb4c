"""`identify`: random conventions are found, and what was not rotated is not taken for one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from random_rotations import draw

import clrope
from clrope.identify import Hypothesis
from clrope.identify.candidates import same_rotations
from clrope.io import presets

X = tuple[int, ...]


def rotated(
    config: clrope.RopeConfig,
    rng: np.random.Generator,
    *,
    shape: X = (1, 12, 4, 64),
    dtype: Any = np.float32,
    positions: Any = 0,
    forward: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    before = rng.standard_normal(shape).astype(dtype)
    return before, clrope.reference.rope(before, positions, config, forward).astype(dtype)


def best_of(*arguments: Any, **more: Any) -> Hypothesis:
    best = clrope.identify(*arguments, **more).best
    assert best is not None
    return best


@pytest.mark.one_in(24)
@pytest.mark.parametrize("part", range(6))
def test_random_conventions_are_found(part: int, rng: np.random.Generator) -> None:
    """One of sixty may be missed: at least 99 of 100 are found."""
    missed = []
    for _ in range(10):
        case = draw(rng)
        found = clrope.identify(case.before, case.after, case.positions)
        if not any(case.is_same(h) for h in ([found.best] if found.best else []) + list(found.equal)):
            missed.append(f"{case}: {found}")
    assert len(missed) <= 1, missed


@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_plain_conventions(mode: str, dtype: Any, rng: np.random.Generator) -> None:
    base = float(rng.choice([1e4, 5e5, 1e6]))
    config = clrope.RopeConfig(mode=mode, n_dims=64, freq_base=base)  # type: ignore[arg-type]
    positions = np.arange(12) + int(rng.integers(0, 50_000))
    for forward in (True, False):
        before, after = rotated(config, rng, dtype=dtype, positions=positions, forward=forward)
        found = clrope.identify(before, after, positions, config=config)
        assert found.best is not None
        assert found.best.config == config
        assert (found.best.forward, found.best.offset, found.best.fits) == (forward, 0, True)
        assert found.agrees is forward
        assert found.differences == (() if forward else ("inverse where the config means forward",))
        assert str(found).startswith(f"{mode.upper()}, freq_base {base:.0f}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mode": "normal"}, "NORMAL where the config says NEOX"),
        ({"freq_base": 10000.0}, "freq_base 10000 where the config says 500000"),
        ({"freq_scale": 0.25}, "freq_scale 0.25 where the config says 1"),
        ({"n_dims": 32}, "n_dims 32 where the config says 64"),
        ({"attn_factor": 1.25}, "magnitude 1.25 where the config says 1"),
    ],
)
def test_a_difference_from_the_configuration_is_named(
    change: dict[str, Any], words: str, rng: np.random.Generator
) -> None:
    given = clrope.RopeConfig(mode="neox", freq_base=5e5)
    before, after = rotated(replace(given, **change), rng)
    found = clrope.identify(before, after, config=given)
    assert found.agrees is False
    assert found.differences == (words,)
    assert found.sentence.endswith(f"It is {words}.")
    assert clrope.identify(before, after, config=replace(given, **change)).agrees is True


SCALED = {
    "yarn": {"freq_scale": 0.25, "ext_factor": 1.0, "n_ctx_orig": 4096},
    "factors": {"freq_factors": tuple(np.linspace(1, 9, 32))},
    "offset window": {"n_dims": 32, "n_offs": 16},
}


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("mode", ["normal", "neox"])
def test_scaling_of_the_configuration(name: str, mode: str, rng: np.random.Generator) -> None:
    given = clrope.RopeConfig(mode=mode, **SCALED[name])  # type: ignore[arg-type]
    positions = np.arange(12) * 301
    before, after = rotated(given, rng, positions=positions)
    assert clrope.identify(before, after, positions, config=given).agrees is True
    other = replace(given, mode="neox" if mode == "normal" else "normal")
    found = clrope.identify(before, after, positions, config=other)
    assert found.differences == (f"{mode.upper()} where the config says {other.mode.upper()}",)
    moved = clrope.identify(before, after, positions - 3, config=given)
    assert moved.differences == ("positions +3 where the given ones are meant",)


def test_scaling_that_was_forgotten(rng: np.random.Generator) -> None:
    given = clrope.RopeConfig(mode="neox", **SCALED["yarn"])  # type: ignore[arg-type]
    before, after = rotated(clrope.RopeConfig(mode="neox"), rng, positions=np.arange(12) * 301)
    found = clrope.identify(before, after, np.arange(12) * 301, config=given)
    assert found.agrees is False
    assert "no YaRN where the config has YaRN" in found.differences
    assert "freq_scale 1 where the config says 0.25" in found.differences


@pytest.mark.parametrize("mode", ["mrope", "imrope", "vision"])
def test_section_modes(mode: str, rng: np.random.Generator) -> None:
    sections = (8, 12, 12) if mode != "vision" else (16, 16, 16, 16)
    given = clrope.RopeConfig(mode=mode, sections=sections)  # type: ignore[arg-type]
    positions = rng.integers(0, 500, (4, 12))
    before, after = rotated(given, rng, positions=positions, shape=(2, 12, 3, 64))
    found = clrope.identify(before, after, positions, config=given)
    assert found.agrees is True, found
    plain = clrope.reference.rope(before, positions[0], clrope.RopeConfig(mode="neox")).astype(np.float32)
    assert clrope.identify(before, plain, positions, config=given).agrees is False


def test_the_kind_of_angles(rng: np.random.Generator) -> None:
    positions = np.arange(9) + 60_000
    before = rng.standard_normal((1, 9, 4, 128)).astype(np.float32)
    exact = clrope.RopeConfig(mode="neox", n_dims=128)
    ggml = replace(exact, angles="ggml")
    frequencies = (1 / (10000 ** (np.arange(0, 128, 2, dtype=np.float32) / np.float32(128)))).astype(np.float32)
    theta = (positions[:, None].astype(np.float32) * frequencies).astype(np.float32).astype(np.float64)
    halves = before.astype(np.float64)
    c, s = np.cos(theta)[:, None], np.sin(theta)[:, None]
    a, b = halves[..., :64], halves[..., 64:]
    made = {
        "exact": clrope.reference.rope(before, positions, exact),
        "ggml": clrope.reference.rope(before, positions, ggml),
        "float32": np.concatenate([a * c - b * s, a * s + b * c], axis=-1),
    }
    for kind, after in made.items():
        best = best_of(before, after.astype(np.float32), positions)
        assert best.angles == (kind,)
        assert best.config.angles == ("ggml" if kind == "ggml" else "exact")
        assert best.config.freq_base == 10000


@pytest.mark.parametrize("form", ["int", "rows", "offsets"])
def test_forms_of_positions_and_layouts(form: str, rng: np.random.Generator) -> None:
    config = clrope.RopeConfig(mode="normal", n_dims=48, freq_base=1e6)
    positions: Any = {"int": 17, "rows": rng.integers(0, 9000, (3, 7)), "offsets": [5, 900, 31]}[form]
    before, after = rotated(config, rng, shape=(3, 7, 2, 48), positions=positions)
    moved = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (before, after)]
    for found in (clrope.identify(before, after, positions), clrope.identify(*moved, positions, layout="bnsd")):
        assert found.best is not None
        assert found.best.config == config


@pytest.mark.one_in(10)
def test_what_was_not_rotated(rng: np.random.Generator) -> None:
    x = rng.standard_normal((1, 9, 4, 64)).astype(np.float32)
    same = clrope.identify(x, x.copy())
    assert same.best is None
    assert "nothing was rotated" in same.sentence
    assert "Every position is 0" not in same.sentence
    still = clrope.identify(x, x, np.zeros(9, int))
    assert "Every position is 0" in still.sentence
    for after in (
        rng.standard_normal(x.shape).astype(np.float32), x + 0.01 * rng.standard_normal(x.shape).astype(np.float32),
        x[..., ::-1].copy(), np.sort(x), x * np.float32(1.5), -x, x * np.float32(0),
    ):  # fmt: skip
        for config in (None, clrope.RopeConfig(mode="neox")):
            found = clrope.identify(x, after, config=config)
            assert found.best is None, found
            assert found.agrees is (None if config is None else False)
            assert found.sentence.startswith("None of these")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("mode", ["normal", "neox"])
def test_random_angles_are_no_convention(mode: str, rng: np.random.Generator) -> None:
    config = clrope.RopeConfig(mode=mode)  # type: ignore[arg-type]
    x = rng.standard_normal((1, 9, 4, 64)).astype(np.float32)
    angles = rng.uniform(-3, 3, (9, 1, 32))
    first, second = clrope.reference.pair_indices(config.for_head_dim(64))
    y = np.empty_like(x)
    y[..., first] = x[..., first] * np.cos(angles) - x[..., second] * np.sin(angles)
    y[..., second] = x[..., first] * np.sin(angles) + x[..., second] * np.cos(angles)
    found = clrope.identify(x, y)
    assert found.best is None
    assert f"pairs of elements turn ({mode.upper()})" in found.sentence


def test_equal_hypotheses_are_named(rng: np.random.Generator) -> None:
    """One token at position 1 turns by 1 radian in pair 0: with one pair, no base shows."""
    before, after = rotated(clrope.RopeConfig(mode="neox"), rng, shape=(1, 1, 8, 2), positions=1)
    found = clrope.identify(before, after, 1)
    assert found.best is not None
    assert found.equal
    assert "do not tell it from" in found.sentence


def assert_equal_ones_rotate_alike(found: Any, before: np.ndarray, after: np.ndarray, positions: Any) -> None:
    for h in (found.best, *found.equal):
        made = clrope.reference.rope(before, np.asarray(positions) + h.offset, h.config, h.forward)
        np.testing.assert_allclose(made, after, rtol=0, atol=1e-5, err_msg=str(h))
    assert found.sentence.count(";") == max(0, len(found.equal) - 1)


@pytest.mark.parametrize(("true", "told"), [(1, 2), (3, 6), (4, 8), (-8, 8), (8, 8), (700, 7)])
@pytest.mark.parametrize("tokens", [1, 8])
@pytest.mark.one_in(6)
def test_a_single_position_does_not_tell_scale_from_offset(
    true: int, told: int, tokens: int, rng: np.random.Generator
) -> None:
    neox = clrope.RopeConfig(mode="neox")
    before, after = rotated(neox, rng, shape=(1, tokens, 4, 64), positions=[true] * tokens)
    for config in (None, neox):
        found = clrope.identify(before, after, [told] * tokens, config=config)
        assert found.best is not None
        named = {(h.config.freq_scale, h.forward, h.offset): h for h in (found.best, *found.equal)}
        assert (1.0, True, true - told) in named
        assert (1.0, False, -true - told) in named
        assert_equal_ones_rotate_alike(found, before, after, [told] * tokens)
        if true == told:
            assert (found.best.config.freq_scale, found.best.forward, found.best.offset) == (1.0, True, 0)


def test_a_single_position_of_a_configuration_with_yarn(rng: np.random.Generator) -> None:
    given = clrope.RopeConfig(mode="neox", **SCALED["yarn"])  # type: ignore[arg-type]
    before, after = rotated(given, rng, shape=(1, 1, 4, 64), positions=[900])
    found = clrope.identify(before, after, [900], config=given)
    assert found.agrees
    assert [str(h) for h in found.equal if h.config.ext_factor] == [f"{found.best}, inverse, positions -1800"]
    assert_equal_ones_rotate_alike(found, before, after, [900])


def test_a_single_token_with_several_positions(rng: np.random.Generator) -> None:
    given = clrope.RopeConfig(mode="mrope", sections=(8, 12, 12))
    for rows in ([[40], [6], [9], [0]], [[40]] * 4):
        before, after = rotated(given, rng, shape=(1, 1, 4, 64), positions=rows)
        found = clrope.identify(before, after, rows, config=given)
        assert found.agrees
        one = rows[0] == rows[1]
        assert any(not h.forward for h in found.equal) is one
        if not one:
            assert_equal_ones_rotate_alike(found, before, after, rows)


@pytest.mark.parametrize("position", [2**62, 2**63 - 1, 1 - 2**63])
def test_conventions_of_the_largest_positions_fit_64_bits(position: int) -> None:
    config = clrope.RopeConfig(mode="neox", n_dims=64)
    ones = same_rotations(config, True, 0, np.array([[position]]), None)
    assert (config, True, 0) in ones
    assert all(abs(offset) < 2**63 and -(2**63) <= position + offset < 2**63 for _, _, offset in ones)


@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize("head_dim", [2, 64])
@pytest.mark.parametrize("configured", [True, False])
def test_one_pair_is_the_same_in_both_pairings(
    mode: Any, head_dim: int, configured: bool, rng: np.random.Generator
) -> None:
    given = clrope.RopeConfig(mode=mode, n_dims=2)
    before, after = rotated(given, rng, shape=(1, 8, 4, head_dim))
    found = clrope.identify(before, after, config=given if configured else None)
    assert found.best is not None
    assert {h.config.mode for h in (found.best, *found.equal) if h.config.freq_base == 10000} == {"normal", "neox"}
    if configured:
        assert found.agrees
    assert_equal_ones_rotate_alike(found, before, after, np.arange(8))


def test_the_report_is_json_ready(rng: np.random.Generator) -> None:
    import json

    before, after = rotated(clrope.RopeConfig(mode="neox"), rng)
    data = json.loads(json.dumps(clrope.identify(before, after).to_dict(), allow_nan=False))
    assert data["best"]["config"]["mode"] == "neox"
    assert data["best"]["fits"] is True
    assert clrope.RopeConfig.from_dict(data["best"]["config"]).freq_base == 10000


def test_torch_and_opencl_arrays(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    before, after = rotated(clrope.RopeConfig(mode="neox"), rng)
    for dtype in (torch.float32, torch.bfloat16):
        best = best_of(*(torch.from_numpy(x).to(dtype) for x in (before, after)))
        assert (best.config.mode, best.config.freq_base) == ("neox", 10000)


def test_no_device_is_needed() -> None:
    import subprocess
    import sys

    code = "import clrope, sys; import clrope.identify; sys.exit('pyopencl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_bases_of_all_presets_are_known() -> None:
    from clrope.identify.candidates import KNOWN_BASES

    bases = {presets.preset_fields(name).get("freq_base", 10000.0) for name in presets.names()}
    assert bases <= set(KNOWN_BASES)


@pytest.mark.parametrize(
    ("before", "after", "more", "message"),
    [
        (np.ones((2, 3, 4)), np.ones((2, 3, 8)), {}, r"after: got shape \[2, 3, 8\], before has \[2, 3, 4\]"),
        (np.ones((2, 4)), np.ones((2, 4)), {}, "before: got rank 2"),
        (np.ones((2, 0, 4)), np.ones((2, 0, 4)), {}, "at least one element is needed"),
        (np.ones((2, 3, 4)), np.full((2, 3, 4), np.nan), {}, "after: holds NaN or infinity"),
        (np.zeros((2, 3, 4)), np.ones((2, 3, 4)), {}, "before: every element is 0"),
        (np.ones((2, 3, 4), int), np.ones((2, 3, 4)), {}, "before: got dtype int64"),
        (np.ones((2, 3, 4)), np.ones((2, 3, 4)), {"positions": [0.5, 1]}, "positions: got dtype float64"),
        (np.ones((2, 3, 4)), np.ones((2, 3, 4)), {"positions": [0, 1, 2, 3]}, r"positions: got shape \[4\]"),
        (np.ones((2, 3, 4)), np.ones((2, 3, 4)), {"config": "neox"}, "config: got str, a RopeConfig or None"),
        (np.ones((2, 3, 4)), np.ones((2, 3, 4)), {"layout": "xyz"}, "layout: got 'xyz'"),
        (
            np.ones((2, 3, 4)), np.ones((2, 3, 4)), {"config": clrope.RopeConfig(mode="neox", n_dims=8)},
            "n_dims: got 8, at most head_dim = 4",
        ),
    ],
)  # fmt: skip
def test_refusals(before: Any, after: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(clrope.RopeError, match=message):
        clrope.identify(before, after, **more)


@pytest.mark.one_in(48)
@pytest.mark.parametrize("position", [2**62, -(2**63), 2**40])
def test_positions_too_far_to_search_bases(position: int, rng: np.random.Generator) -> None:
    """Known bases are tried all the same; beyond 2**53 the search may miss them, too."""
    x = rng.standard_normal((1, 1, 4, 32)).astype(np.float32)
    y = clrope.reference.rope(x, [position], clrope.RopeConfig("neox", freq_base=31337.0)).astype(np.float32)
    assert clrope.identify(x, y, [position]).best is None
    y = clrope.reference.rope(x, [position], clrope.RopeConfig("normal", freq_base=5e5)).astype(np.float32)
    found = clrope.identify(x, y, [position])
    assert "NORMAL, freq_base 500000" in found.sentence or (found.best is None and position != 2**40)


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("f8", 1e-300), ("f8", 1e-170), ("f8", 1e-100), ("f8", 1e100), ("f8", 1e170), ("f8", 1e300), ("f4", 1e-36),
        ("f4", 1e-20), ("f4", 1e37), (ml_dtypes.bfloat16, 1e-36), (ml_dtypes.bfloat16, 1e37), ("f2", 1e-2), ("f2", 1e4),
    ],
)  # fmt: skip
@pytest.mark.one_in(6)
def test_values_of_any_magnitude(kind: Any, size: float, rng: np.random.Generator) -> None:
    config = clrope.RopeConfig("neox", freq_base=31000.0)
    values = rng.uniform(-1, 1, (1, 16, 2, 32))
    before = (values * size).astype(kind)
    after = clrope.reference.rope(before, 0, config).astype(kind)
    plain = clrope.identify(values.astype(kind), clrope.reference.rope(values.astype(kind), 0, config).astype(kind))
    found = clrope.identify(before, after)
    assert found.best is not None, found.sentence
    assert plain.best is not None
    assert (found.best.config.mode, found.best.forward, found.best.offset) == ("neox", True, 0)
    assert found.best.config.freq_base == pytest.approx(plain.best.config.freq_base, rel=2e-3)
    assert clrope.identify(before, after, config=config).agrees
    assert clrope.identify(before, before).sentence.startswith("None of these: after equals before")
    assert clrope.identify(before, rng.permutation(after, axis=3)).best is None


def test_sizes_that_are_far_apart(rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, (1, 16, 2, 32))
    for before, after in ((x * 1e-200, x), (x, x * 1e-200), (x * 1e-300, x * 1e300), (x, x * 0)):
        assert clrope.identify(before, after).sentence.startswith("None of these")


@pytest.mark.one_in(20)
@pytest.mark.parametrize(
    ("kind", "size", "name"),
    [
        ("f2", 1e-6, "float16"), ("f4", 1e-42, "float32"), ("f8", 1e-318, "float64"),
        (ml_dtypes.bfloat16, 1e-39, "bfloat16"), (ml_dtypes.float8_e5m2, 2e-5, "float8_e5m2"),
    ],
)  # fmt: skip
def test_subnormal_values_are_named(kind: Any, size: float, name: str, rng: np.random.Generator) -> None:
    config = clrope.RopeConfig("neox")
    before = (rng.uniform(-1, 1, (1, 16, 2, 32)) * size).astype(kind)
    found = clrope.identify(before, clrope.reference.rope(before, 0, config).astype(kind))
    assert found.best is None
    assert found.sentence.startswith(f"No convention can be told: most values of after are subnormal in {name}, ")
    assert clrope.identify(before, clrope.reference.rope(before, 0, config).astype(kind), config=config).agrees is False
    # Of the same values as numbers of a longer type nothing is hidden.
    if name != "float64":
        longer = before.astype(np.float64)
        assert clrope.identify(longer, clrope.reference.rope(longer, 0, config), config=config).agrees
