"""`rotate`: the caller's own cos and sin, per position or per token, half-size or full-size, in any type."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyopencl.array as cla
import pytest
from helpers import POISON, same

import clrope
from clrope import ConfigError, RopeConfig, ShapeError
from clrope.call.runtime import runtime_for
from clrope.emulation import emulate_cos_sin, emulate_rope, emulate_rotation
from clrope.layout import DTYPES
from clrope.reference import pair_indices
from clrope.select.defaults import default_for
from clrope.select.records import SIZES, TuningKey
from clrope.tables import rotate_plan

TYPES = list(DTYPES)


def uniform(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    return rng.uniform(-1, 1, shape).astype(DTYPES[dtype])


def wide(table: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return table.astype(np.float64 if dtype == "f64" else np.float32)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("out", [None, "in place", "given"])
@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize("dtype", TYPES)
def test_per_position(device: clrope.DeviceInfo, dtype: str, mode: Any, out: Any, rng: np.random.Generator) -> None:
    """[max_pos, pairs], rows picked by positions; tables in the tensor's type and in float32."""
    for kind in {dtype, "f32"}:
        x = uniform(rng, dtype, 2, 5, 3, 16)
        cos, sin = (uniform(rng, kind, 40, 8) for _ in range(2))
        for positions in (rng.integers(0, 40, (2, 5)), rng.integers(0, 40, 5), 30, rng.integers(0, 36, 2)):
            rows = np.asarray(positions)
            if rows.ndim == 0:
                rows = rows + np.arange(5)
            elif rows.shape == (2,):
                rows = rows[:, None] + np.arange(5)
            rows = np.broadcast_to(rows, (2, 5))
            pairs = pair_indices(RopeConfig(mode, 16))
            for forward in (True, False):
                want = emulate_rotation(x, wide(cos, dtype)[rows], wide(sin, dtype)[rows], pairs, forward)
                given = x.copy()
                target = {"in place": given, "given": np.full(x.nbytes, POISON, np.uint8).view(x.dtype)}.get(out)
                target = None if target is None else target.reshape(x.shape)
                got = clrope.rotate(given, cos, sin, positions, mode, target, device=device.index, forward=forward)
                assert target is None or got is target
                assert same(got, want).all()


DOUBLED = {"halves": (lambda c: np.concatenate([c, c], -1), ":{}"), "interleaved": (lambda c: c.repeat(2, -1), "::2")}


@pytest.mark.parametrize("n", [32, 16])
@pytest.mark.parametrize("full_tables", DOUBLED)
def test_full_tables_of_a_part_of_the_head(device: clrope.DeviceInfo, full_tables: Any, n: int) -> None:
    """As transformers makes them: taken for one column per pair, they would rotate twice as many elements."""
    join, text = DOUBLED[full_tables]
    text = text.format(n // 2)
    cut = slice(n // 2) if full_tables == "halves" else slice(None, None, 2)
    x = np.linspace(-1, 1, 5 * 3 * 64, dtype=np.float32).reshape(1, 5, 3, 64)
    config = RopeConfig("neox", n)
    for positions in (np.arange(5), np.arange(5)[::-1]):
        cos, sin = emulate_cos_sin(positions, config)
        want = clrope.rotate(x, cos, sin, n_dims=n, device=device.index)
        both = join(cos), join(sin)
        for where in (None, [0, 0, 0, 0, 0]):
            with pytest.raises(ShapeError) as refused:
                clrope.rotate(x, *both, where, device=device.index)
            assert f"give cos[..., {text}] and sin[..., {text}], or n_dims={2 * n}" in str(refused.value)
        got = clrope.rotate(x, *both, n_dims=n, full_tables=full_tables, device=device.index)
        assert same(got, want).all()
        got = clrope.rotate(x, both[0][..., cut], both[1][..., cut], device=device.index)
        assert same(got, want).all()
        clrope.rotate(x, *both, n_dims=2 * n, device=device.index)


def test_tables_that_cannot_be_told_apart_are_taken(device: clrope.DeviceInfo) -> None:
    """Position 0, one number in all columns, and a column for each element of the whole head."""
    x = np.linspace(-1, 1, 2 * 3 * 64, dtype=np.float32).reshape(1, 2, 3, 64)
    cos, sin = emulate_cos_sin([0, 0], RopeConfig("neox", 32))
    assert same(clrope.rotate(x, np.tile(cos, 2), np.tile(sin, 2), device=device.index), x).all()
    clrope.rotate(x, np.full((2, 32), 0.5, np.float32), np.full((2, 32), 0.25, np.float32), device=device.index)
    cos, sin = emulate_cos_sin([3, 4], RopeConfig("neox", 64))
    want = emulate_rope(x, [3, 4], RopeConfig("neox"))
    assert same(clrope.rotate(x, np.tile(cos, 2), np.tile(sin, 2), device=device.index), want).all()


@pytest.mark.parametrize("kind", ["numpy", "float32", "bfloat16"])
def test_doubled_tables_are_refused_by_prepared_calls(device: clrope.DeviceInfo, kind: str) -> None:
    """What a table holds may differ from call to call, also at position 0, where one row has one number."""
    torch = None if kind == "numpy" else pytest.importorskip("torch")
    make: Any = np.asarray if torch is None else lambda a: torch.from_numpy(a).to(getattr(torch, kind))
    x = make(np.linspace(-1, 1, 3 * 64, dtype=np.float32).reshape(1, 1, 3, 64))
    for position in (7, 0, 7):
        cos, sin = map(make, emulate_cos_sin([position], RopeConfig("neox", 64)))
        got = clrope.rotate(x, cos, sin, device=device.index)
        assert bool((got == x).all()) is (position == 0)
    both = [make(np.tile(t, 2)) for t in emulate_cos_sin([7], RopeConfig("neox", 32))]
    with pytest.raises(ShapeError, match="each number stands twice in their 32 columns"):
        clrope.rotate(x, *both, device=device.index)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("batched", [True, False])
def test_per_token(device: clrope.DeviceInfo, dtype: str, batched: bool, rng: np.random.Generator) -> None:
    """[S, pairs] for every batch, and [B, S, pairs]; rank 3 and other letters too."""
    x = uniform(rng, dtype, 2, 5, 3, 16)
    shape = (2, 5, 8) if batched else (5, 8)
    cos, sin = (uniform(rng, dtype, *shape) for _ in range(2))
    for mode in ("normal", "neox"):
        pairs = pair_indices(RopeConfig(mode, 16))
        c, s = (np.broadcast_to(wide(t, dtype), (2, 5, 8)) for t in (cos, sin))
        want = emulate_rotation(x, c, s, pairs)
        assert same(clrope.rotate(x, cos, sin, mode=mode, device=device.index), want).all()
        moved = np.ascontiguousarray(x.transpose(2, 0, 1, 3))
        got = clrope.rotate(moved, cos, sin, mode=mode, layout="nbsd", device=device.index)
        assert same(got, np.ascontiguousarray(want.transpose(2, 0, 1, 3))).all()
        if not batched:
            assert same(clrope.rotate(x[0], cos, sin, mode=mode, device=device.index), want[0]).all()


@pytest.mark.one_in(16)
@pytest.mark.parametrize("full_tables", ["halves", "interleaved"])
@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize("dtype", TYPES)
def test_full_size(
    device: clrope.DeviceInfo, dtype: str, mode: Any, full_tables: Any, rng: np.random.Generator
) -> None:
    """A column an element: doubled tables give what half-size ones give, unequal ones what each element asks for."""
    x = uniform(rng, dtype, 2, 5, 3, 20)
    first, second = pair_indices(RopeConfig(mode, 16, n_offs=2))
    halves = [uniform(rng, dtype, 5, 8) for _ in range(4)]
    join = (lambda a, b: np.concatenate([a, b], 1)) if full_tables == "halves" else (
        lambda a, b: np.stack([a, b], 2).reshape(5, 16))  # fmt: skip
    options = {"mode": mode, "n_dims": 16, "n_offs": 2, "device": device.index}
    c, s = halves[0], halves[1]
    doubled = clrope.rotate(x, join(c, c), join(s, s), full_tables=full_tables, **options)
    assert same(doubled, clrope.rotate(x, c, s, **options)).all()
    got = clrope.rotate(x, join(*halves[:2]), join(*halves[2:]), full_tables=full_tables, **options)
    real = np.float64 if dtype == "f64" else np.float32
    want = x.copy()
    c0, c1, s0, s1 = (wide(t, dtype)[None, :, None, :] for t in halves)
    a, b = x[..., first].astype(real), x[..., second].astype(real)
    want[..., first] = (a * c0 - b * s0).astype(x.dtype)
    want[..., second] = (a * s1 + b * c1).astype(x.dtype)
    assert same(got, want).all()


def nans(dtype: str) -> np.ndarray:
    """Every NaN of a short type; of float32 and float64 those whose payload is a run of ones, quiet or not, +-."""
    kind = DTYPES[dtype]
    bits = np.dtype(f"u{kind.itemsize}")
    if kind.itemsize <= 2:
        every = np.arange(1 << 8 * kind.itemsize, dtype=bits).view(kind)
        return every[np.isnan(wide(every, dtype))]
    places, infinities = np.finfo(kind).nmant, np.array([np.inf, -np.inf], kind).view(bits)
    payloads = [(1 << end) - (1 << begin) for end in range(1, places + 1) for begin in range(end)]
    quiet = np.array([p | q for p in payloads for q in (0, 1 << places - 1)], bits)
    return np.unique(infinities[:, None] | quiet).view(kind)


@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize("dtype", [pytest.param(d, marks=[] if d == "bf16" else pytest.mark.one_in(32)) for d in TYPES])
def test_nans_of_tables(device: clrope.DeviceInfo, dtype: str, mode: Any, rng: np.random.Generator) -> None:
    """Any NaN as a cos, as a sin and as both makes both elements of its pair NaN, with the defaults of every size."""
    defaults = [default_for(device, TuningKey(dtype, mode, False, size)) for size in SIZES]
    for kind in TYPES if dtype == "f64" else [d for d in TYPES if d != "f64"]:
        some = nans(kind)
        some = np.resize(some, (-(-some.size // 32), 32))
        plain = uniform(rng, kind, *some.shape)
        cos, sin = np.concatenate([some, some, plain]), np.concatenate([plain, some, some])
        x = uniform(rng, dtype, 1, len(cos), 2, 64)
        c, s = wide(cos, dtype)[None], wide(sin, dtype)[None]
        assert np.isnan(wide(emulate_rotation(x, c, s, pair_indices(RopeConfig(mode, 64))), dtype)).all()
        for variant in dict.fromkeys(defaults):
            options = {"mode": mode, "device": device.index, "variant": variant}
            full = {
                None: (cos, sin),
                "halves": [np.concatenate([t, t], 1) for t in (cos, sin)],
                "interleaved": [np.repeat(t, 2, 1) for t in (cos, sin)],
            }
            for columns, tables in full.items():
                columns_option = {} if columns is None else {"full_tables": columns}
                got = clrope.rotate(x, *tables, **columns_option, **options)
                assert np.isnan(wide(got, dtype)).all(), (kind, variant, columns)


@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize("dtype", [pytest.param(d, marks=[] if d == "bf16" else pytest.mark.one_in(16)) for d in TYPES])
def test_nans_of_the_tensor(device: clrope.DeviceInfo, dtype: str, mode: Any, rng: np.random.Generator) -> None:
    """Any NaN in the first, the second or both elements makes both NaN, by tables and by a configuration's angles."""
    some = nans(dtype)
    some = np.resize(some, (1, -(-some.size // 32), 1, 32))
    plain = uniform(rng, dtype, *some.shape)
    x = np.empty((1, some.shape[1], 3, 64), some.dtype)
    first, second = pair_indices(RopeConfig(mode, 64))
    x[..., first], x[..., second] = np.concatenate([some, some, plain], 2), np.concatenate([plain, some, some], 2)
    cos, sin = emulate_cos_sin(np.arange(x.shape[1]), RopeConfig(mode, 64), real="f64" if dtype == "f64" else "f32")
    for variant in dict.fromkeys(default_for(device, TuningKey(dtype, mode, False, size)) for size in SIZES):
        for angles in ("exact", "ggml"):
            config = RopeConfig(mode, angles=angles)
            got = clrope.Rope(config, device.index, variant=variant)(x, 1)
            assert np.isnan(wide(got, dtype)).all(), (variant, angles)
        got = clrope.rotate(x, cos, sin, mode=mode, device=device.index, variant=variant)
        assert np.isnan(wide(got, dtype)).all(), variant


def test_tables_of_a_configuration(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    config = RopeConfig("neox", 12, n_offs=2, attn_factor=1.25)
    x = uniform(rng, "f16", 2, 5, 3, 16)
    cos, sin = emulate_cos_sin(np.arange(64), config)
    positions = rng.integers(0, 64, 5)
    got = clrope.rotate(x, cos, sin, positions, n_dims=12, n_offs=2, device=device.index)
    assert same(got, emulate_rope(x, positions, config)).all()


def test_strided_tables_and_inputs(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    big = uniform(rng, "f32", 80, 40)
    cos, sin = big[::2, 1:17:2], big[79::-2, ::-5]
    assert cos.shape == sin.shape == (40, 8)
    x = uniform(rng, "f32", 2, 10, 3, 32)[:, ::-2, :, ::2]
    positions = rng.integers(0, 40, 5)
    want = emulate_rotation(x, cos[positions][None], sin[positions][None], pair_indices(RopeConfig("neox", 16)))
    assert same(clrope.rotate(x, cos, sin, positions, device=device.index), want).all()
    assert same(clrope.rotate(x, cos, sin, positions, device=device.index, transfer="copy"), want).all()


def table_forms(table: np.ndarray) -> dict[str, np.ndarray]:
    """The same numbers in forms that kernels read where they are, and in others."""
    rows, columns = table.shape
    wide, thin = (np.zeros((rows + 1, 3 * columns + 1), table.dtype) for _ in range(2))
    forms = {
        "dense": table, "copied": table.copy(), "columns of a wider one": wide[1:, 3 : 3 + columns],
        "last row first": np.ascontiguousarray(table[::-1])[::-1], "by columns": np.asfortranarray(table),
        "every third column": thin[:-1, ::3][:, :columns],
    }  # fmt: skip
    for form in forms.values():
        form[...] = table
    return forms


@pytest.mark.one_in(4)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f16", "f64"])
def test_forms_of_tables(device: clrope.DeviceInfo, dtype: str, full: bool, rng: np.random.Generator) -> None:
    """Consecutive and other row numbers, none, and rows for each batch: every form of tables gives the same bits."""
    pair = uniform(rng, dtype, 2, 5, 3, 32), uniform(rng, dtype, 2, 5, 1, 32)
    cos, sin = (uniform(rng, "f64" if dtype == "f64" else "f32", 10, 32 if full else 16) for _ in range(2))
    forms = list(zip(table_forms(cos).values(), table_forms(sin).values(), strict=True))
    for positions in (3, np.arange(4, 9), rng.integers(0, 10, 5), np.arange(10).reshape(2, 5), None):
        given = np.arange(10).reshape(2, 5) if positions is None else np.asarray(positions)
        rows = np.broadcast_to(given + np.arange(5) if given.ndim == 0 else given, (2, 5))
        want = [by_columns(x, cos[rows], sin[rows]) for x in pair]
        for c, s in forms:
            if positions is None:
                c, s = (t.reshape(2, 5, -1) for t in (c, s))
            for transfer in ("auto", "copy"):
                got = clrope.rotate(pair, c, s, positions, device=device.index, transfer=transfer)  # type: ignore[arg-type]
                assert all(same(a, b).all() for a, b in zip(got, want, strict=True))


def by_columns(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """x, whole heads of halves, by a column for each pair or each element."""
    pairs = x.shape[3] // 2
    c, s = cos[:, :, None], sin[:, :, None]
    a, b = (x[..., half].astype(cos.dtype) for half in (slice(pairs), slice(pairs, None)))
    first, second = a * c[..., :pairs] - b * s[..., :pairs], a * s[..., -pairs:] + b * c[..., -pairs:]
    return np.concatenate([first, second], -1).astype(x.dtype)


def test_tables_are_read_as_they_are(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    x = uniform(rng, "f32", 5, 3, 16)
    cos, sin = (uniform(rng, "f32", 5, 8) for _ in range(2))
    for _ in range(3):
        want = emulate_rotation(x, cos[None], sin[None], pair_indices(RopeConfig("neox", 16)))
        assert same(clrope.rotate(x, cos, sin, device=device.index), want).all()
        cos *= -0.5
        sin += 1


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"sin": np.zeros((5, 7), np.float32)}, ShapeError, r"sin: shape \(1, 5, 1, 7\) differs from cos' \(1, 5, 1, 8\)"),
    ({"sin": np.zeros((5, 8), np.float16)}, ShapeError, "sin: dtype f16 differs from cos' f32"),
    (
        {"cos": np.zeros((5, 8)), "sin": np.zeros((5, 8))},
        ShapeError,
        "cos, sin: float64 tables need float64 x, which is f32",
    ),
    ({"cos": np.zeros(8, np.float32)}, ShapeError, r"cos: got shape \[8\], allowed are \[max_pos, columns\]"),
    ({"cos": [[1.0]]}, ShapeError, "cos: got list, allowed are"),
    ({"cos": np.zeros((5, 8), np.int32)}, ShapeError, "cos: got dtype int32"),
    ({"positions": [0, 1, 2, 3, 5]}, ShapeError, r"positions: got 5, the tables have rows 0 \.\.\. 4"),
    ({"positions": [0, 1, -1, 3, 4]}, ShapeError, r"positions: got -1, the tables have rows 0 \.\.\. 4"),
    ({"positions": 1}, ShapeError, r"positions: got 5, the tables have rows 0 \.\.\. 4"),
    ({"positions": [0.0] * 5}, ShapeError, "positions: got dtype float64"),
    ({"n_dims": 5}, ConfigError, "n_dims: got 5, it must be even and at least 2"),
    ({"n_dims": 12}, ShapeError, "cos: got 8 columns; for n_dims 12 allowed are 6 and 12"),
    ({"n_offs": 4}, ConfigError, r"n_offs \+ n_dims: got 4 \+ 16, at most head_dim = 16"),
    ({"mode": "gptj"}, ConfigError, "mode: got 'gptj', allowed are"),
    ({"mode": None}, ConfigError, "mode: got None"),
    ({"out": np.zeros((5, 3, 14), np.float32)}, ShapeError, r"out: got shape \[5, 3, 14\], x has \[5, 3, 16\]"),
    ({"x": np.zeros((4, 3, 16), np.float32)}, ShapeError, r"cos: got shape \[5, 8\]; without positions \[4, columns\]"),
]


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize(("given", "kind", "message"), REFUSED, ids=[m[:40] for *_, m in REFUSED])
def test_refusals(given: dict[str, Any], kind: type[Exception], message: str) -> None:
    x, table = np.ones((5, 3, 16), np.float32), np.ones((5, 8), np.float32)
    with pytest.raises(kind, match=message):
        clrope.rotate(**{"x": x, "cos": table, "sin": table, **given})
    assert (x == 1).all()
    assert (table == 1).all()


@pytest.mark.parametrize("opencl", [False, True])
def test_an_output_over_a_table_is_refused(device: clrope.DeviceInfo, opencl: bool) -> None:
    """Also in a call that was prepared for arrays apart, and in a plan; a table next to the output is not."""
    memory: Any = np.ones(1000, np.float32)
    if opencl:
        memory = cla.to_device(runtime_for(device).queue, memory)
    x, table = memory[:240].reshape(5, 3, 16), memory[300:340].reshape(5, 8)
    adjacent, over = memory[340:580].reshape(5, 3, 16), memory[339:579].reshape(5, 3, 16)
    apart = memory[900:940].reshape(5, 8)
    for tables in ((table, apart), (apart, table)):
        rotate = partial(clrope.rotate, x, *tables, device=device.index)
        plan = rotate_plan(x, *tables, device=device.index, out=adjacent)
        for call in (rotate, plan.run):
            for _ in range(2):
                call(out=adjacent)
                with pytest.raises(ShapeError, match="out: an output overlaps cos or sin"):
                    call(out=over)
    with pytest.raises(ShapeError, match="out: an output overlaps cos or sin"):
        clrope.rotate(x, x[:, 0, :8], table, device=device.index, out=x)


@pytest.mark.parametrize("forward", [1, 1.0, "yes", np.array(True), None])
def test_a_direction_is_a_bool_also_the_second_time(device: clrope.DeviceInfo, forward: Any) -> None:
    x, table = np.ones((1, 3, 2, 8), np.float32), np.ones((3, 4), np.float32)
    clrope.rotate(x, table, table, mode="neox", device=device.index, forward=True)
    with pytest.raises(ConfigError, match=r"forward: got .* of type"):
        clrope.rotate(x, table, table, mode="neox", device=device.index, forward=forward)


def test_full_tables_by_name(device: clrope.DeviceInfo) -> None:
    x, table = np.ones((5, 3, 16), np.float32), np.ones((5, 16), np.float32)
    with pytest.raises(ConfigError, match="full_tables: got 'both', allowed are 'halves', 'interleaved'"):
        clrope.rotate(x, table, table, full_tables="both", device=device.index)  # type: ignore[arg-type]


def test_empty() -> None:
    table = np.ones((0, 8), np.float32)
    assert clrope.rotate(np.zeros((0, 3, 16), np.float32), table, table).shape == (0, 3, 16)
