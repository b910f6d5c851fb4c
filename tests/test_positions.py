"""Positions: every dtype and form, negative ones, the extremes, packed sequences, and what is refused."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import oracle
import pytest
from helpers import Case, run

import clrope
from clrope import RopeConfig, ShapeError
from clrope.emulation import emulate_cos_sin
from clrope.positions import given_positions, packed_positions, position_rows

DTYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
NEOX = RopeConfig("neox", 8)
SECTIONS = RopeConfig("mrope", 8, sections=(1, 1, 1, 1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_integer_dtype(device: clrope.DeviceInfo, dtype: str, seed: int) -> None:
    for form in ("S", "int", "BS", "B"):
        run(Case({"mode": "neox"}, (2, 5, 2, 16), "f32", "bsnd", form, dtype, -(2**63), 2**63 - 1, seed=seed), device)


@pytest.mark.parametrize("form", ["int", "S", "BS", "1S", "B"])
@pytest.mark.parametrize("mode", ["normal", "neox"])
def test_forms(device: clrope.DeviceInfo, form: str, mode: str, seed: int) -> None:
    run(Case({"mode": mode}, (3, 4, 2, 8), "f16", positions=form, low=-1000, high=1000, seed=seed), device)


@pytest.mark.parametrize("form", ["int", "S", "1S", "B", "3S", "4S", "3BS", "4BS"])
@pytest.mark.parametrize("mode", ["mrope", "imrope", "vision"])
def test_forms_with_sections(device: clrope.DeviceInfo, form: str, mode: str, seed: int) -> None:
    fields = {"mode": mode, "sections": (2, 1, 2, 1)}
    run(Case(fields, (2, 5, 2, 24), "bf16", positions=form, low=-1000, high=1000, seed=seed), device)


EXTREMES = [0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**31 - 5, 2**30 + 12345, -(2**30) - 999, 131072, 1 << 24, 3**19]


@pytest.mark.parametrize("freq_base", [10000.0, 500000.0, 1.0, 1e7])
def test_cosine_error_within_32_bits(device: clrope.DeviceInfo, freq_base: float, rng: np.random.Generator) -> None:
    positions = np.concatenate([EXTREMES, rng.integers(-(2**31), 2**31, 60)])
    fields = {"mode": "neox", "n_dims": 64, "freq_base": freq_base}
    cosine, sine = clrope.Rope(RopeConfig.from_dict(fields), device).cos_sin(positions)
    assert cosine.dtype == sine.dtype == np.float32
    want_cosine, want_sine = oracle.cos_sin(np.tile(positions, (4, 1)), fields, 64)
    assert np.abs(cosine - want_cosine).max() <= 2e-7
    assert np.abs(sine - want_sine).max() <= 2e-7


def test_cosine_error_with_yarn_and_factors(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    positions = np.concatenate([EXTREMES, rng.integers(-(2**31), 2**31, 60)])
    fields = {
        "mode": "normal", "n_dims": 64, "freq_base": 1e6, "ext_factor": 0.8, "freq_scale": 0.1, "n_ctx_orig": 8192,
        "freq_factors": tuple(map(float, rng.uniform(0.9, 1.1, 32))),
    }  # fmt: skip
    cosine, sine = clrope.Rope(RopeConfig.from_dict(fields), device).cos_sin(positions)
    want_cosine, want_sine = oracle.cos_sin(np.tile(positions, (4, 1)), fields, 64)
    magnitude = 1 + 0.1 * np.log(10)
    assert np.abs(cosine - want_cosine).max() <= 2e-7 * magnitude
    assert np.abs(sine - want_sine).max() <= 2e-7 * magnitude


def test_cosine_error_over_all_64_bits(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    info = np.iinfo(np.int64)
    positions = np.concatenate([[info.min, info.max, 2**53 + 1, -(2**62)], rng.integers(info.min, info.max, 60)])
    fields = {"mode": "neox", "n_dims": 32}
    cosine, sine = clrope.Rope(RopeConfig.from_dict(fields), device).cos_sin(positions)
    want_cosine, want_sine = oracle.cos_sin(np.tile(positions, (4, 1)), fields, 32)
    assert np.abs(cosine - want_cosine).max() <= 2e-7
    assert np.abs(sine - want_sine).max() <= 2e-7


def test_float64_error_over_all_64_bits(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    if not device.fp64:
        pytest.skip(f"{device} has no fp64")
    info = np.iinfo(np.int64)
    positions = np.concatenate([[info.min, info.max, 2**53 + 1, -(2**62)], rng.integers(info.min, info.max, 60)])
    fields = {"mode": "neox", "n_dims": 32}
    # First elements 1 and second 0: the result is cos and sin themselves.
    x = np.concatenate([np.ones((64, 1, 16)), np.zeros((64, 1, 16))], axis=2)
    got = clrope.rope(x, positions, RopeConfig.from_dict(fields), device=device)
    want = np.concatenate(oracle.cos_sin(np.tile(positions, (4, 1)), fields, 32), axis=1)[:, None]
    assert np.abs(got - want).max() <= 1e-15
    assert clrope.compare(got, want).nmse <= 1e-30


def test_cos_sin_takes_every_form_of_rows(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    for config, shapes in ((NEOX, [(), (7,)]), (SECTIONS, [(), (7,), (3, 7), (4, 7)])):
        for shape in shapes:
            positions = np.asarray(rng.integers(-9999, 9999, shape))
            cosine, sine = clrope.Rope(config, device).cos_sin(positions)
            assert cosine.shape == sine.shape == ((shape or (1,))[-1], 4)
            want = emulate_cos_sin(positions, config)
            assert (cosine == want[0]).all()
            assert (sine == want[1]).all()
    empty = clrope.Rope(NEOX, device).cos_sin(np.zeros(0, np.int32))
    assert empty[0].shape == (0, 4)
    with pytest.raises(clrope.ConfigError, match="n_dims: the configuration has none, give head_dim"):
        clrope.Rope(RopeConfig("neox"), device).cos_sin([1])
    assert clrope.Rope(RopeConfig("neox"), device).cos_sin([1], head_dim=6)[0].shape == (1, 3)


def rows(positions: Any, config: RopeConfig = NEOX, batch: int = 2, seq: int = 3) -> list[list[int]]:
    return position_rows(positions, config, batch=batch, seq=seq).rows.tolist()


def test_what_forms_mean() -> None:
    assert rows(5) == [[5, 6, 7]]
    assert rows([5, 9, -1]) == [[5, 9, -1]]
    assert rows([[1, 2, 3], [4, 5, 6]]) == [[1, 2, 3, 4, 5, 6]]
    assert rows([[1, 2, 3]]) == [[1, 2, 3]]
    assert rows([10, 20]) == [[10, 11, 12, 20, 21, 22]]
    assert rows([10, 20], batch=2, seq=2) == [[10, 20]]  # as many tokens as batches: positions, not offsets
    assert rows([5, 9, -1], SECTIONS) == [[5, 9, -1]] * 4
    assert rows([[1, 1, 1], [2, 2, 2], [3, 3, 3]], SECTIONS) == [[1] * 3, [2] * 3, [3] * 3, [1] * 3]
    assert rows(np.arange(12).reshape(4, 3), SECTIONS) == np.arange(12).reshape(4, 3).tolist()
    t, h, w = (list(range(6 * axis, 6 * axis + 6)) for axis in range(3))
    assert rows(np.arange(18).reshape(3, 2, 3), SECTIONS) == [t, h, w, t]
    where = position_rows([[1, 2, 3], [4, 5, 6]], NEOX, batch=2, seq=3)
    assert (where.count, where.batch_stride, where.rows_of_batch(2)) == (6, 3, [slice(0, 3), slice(3, 6)])
    assert position_rows([1, 2, 3], NEOX, batch=2, seq=3).rows_of_batch(2) == [slice(0, 3)] * 2
    assert not where.beyond_32_bits
    assert position_rows([2**31 + 1], NEOX, batch=1, seq=1).beyond_32_bits
    assert position_rows([-(2**31) - 1], NEOX, batch=1, seq=1).beyond_32_bits


def test_many_tokens_and_batches() -> None:
    assert position_rows(np.arange(1000), NEOX, batch=2, seq=1000).batch_stride == 0
    assert position_rows(np.zeros((4, 1, 1000), int), SECTIONS, batch=2, seq=1000).count == 1000
    found = position_rows(np.arange(1000), NEOX, batch=1000, seq=3)
    assert (found.count, found.batch_stride) == (3000, 3)
    with pytest.raises(ShapeError, match=r"allowed here are an int, \[1000\], \[1000, 1000\], \[1000, 1\] \(an"):
        position_rows([1, 2, 3], NEOX, batch=1000, seq=int("1000"))  # another object


def test_the_last_positions_of_32_and_64_bits() -> None:
    for positions in (-(2**31), 2**31 - 1, [2**31 - 1, 0], [2**31, -(2**31)], -(2**31) - 1, 2**31, [2**31 + 1, 0]):
        given = given_positions(positions, NEOX, batch=1, seq=2)
        assert given.beyond_32_bits == given.rows().beyond_32_bits
    assert not position_rows([-(2**31), 2**31], NEOX, batch=1, seq=2).beyond_32_bits
    rows = position_rows([2**63 - 3], NEOX, batch=1, seq=3).rows
    np.testing.assert_array_equal(rows, [[2**63 - 3, 2**63 - 2, 2**63 - 1]])
    last = np.full(3, 2**63 - 1, np.uint64)
    assert position_rows(last, NEOX, batch=1, seq=3).rows.tolist() == [[2**63 - 1] * 3]
    with pytest.raises(ShapeError, match="with 4 tokens goes beyond 64-bit integers"):
        position_rows(2**63 - 3, NEOX, batch=1, seq=4)


@pytest.mark.parametrize(
    ("positions", "batch", "first", "limits"),
    [
        (5, 2, 5, (5, 7)),
        (-2, 2, -2, (-2, 0)),
        ([10, 20], 2, None, (10, 22)),
        ([30, 20], 2, None, (20, 32)),
        ([9], 1, 9, (9, 11)),
        ([5, 9, -1], 2, None, (-1, 9)),
        ([[1, 2, 3], [4, 5, 9]], 2, None, (1, 9)),
        (np.zeros((0, 3), int), 0, None, None),
        (np.zeros(0, int), 0, None, None),
    ],
)
def test_limits_without_rows(positions: Any, batch: int, first: int | None, limits: tuple[int, int] | None) -> None:
    given = given_positions(positions, NEOX, batch=batch, seq=3)
    assert (given.first, given.limits) == (first, limits)
    assert not given.beyond_32_bits
    rows = given.rows().rows
    assert limits == ((rows.min(), rows.max()) if rows.size else None)


@pytest.mark.parametrize("seq", [1, 2, 4, 7, 8])
def test_limits_by_the_number_of_tokens(seq: int) -> None:
    assert given_positions(5, NEOX, batch=2, seq=seq).limits == (5, 4 + seq)


def test_no_tokens_have_no_limits() -> None:
    given = given_positions(5, NEOX, batch=2, seq=0)
    assert (given.first, given.limits) == (5, None)


@pytest.mark.parametrize("config", [NEOX, SECTIONS])
def test_positions_of_a_part(config: RopeConfig) -> None:
    batch, seq = 3, 5
    forms = [7, -1, [1, 2, 3], [9, 9, 0, 1, -5], [[4, 3, 2, 1, 0]]]
    if config is NEOX:
        forms += [np.arange(15, dtype=np.uint16).reshape(3, 5)]
    else:
        forms += [np.arange(axes * n * 5).reshape(axes, n, 5) for axes in (3, 4) for n in (1, 3)]
        forms += [np.arange(15).reshape(3, 5), np.arange(20).reshape(4, 5)]
    cuts = [slice(i, j) for i in range(5) for j in range(i + 1, 6)]
    for positions in forms:
        given = given_positions(positions, config, batch=batch, seq=seq)
        whole = given.rows()
        rows = np.stack([whole.rows[:, tokens] for tokens in whole.rows_of_batch(batch)])
        for b, s in itertools.product((cut for cut in cuts if cut.stop <= batch), cuts):
            lengths = b.stop - b.start, s.stop - s.start
            part = position_rows(given.part(b, s), config, batch=lengths[0], seq=lengths[1])
            for k, tokens in enumerate(part.rows_of_batch(lengths[0])):
                np.testing.assert_array_equal(part.rows[:, tokens], rows[b.start + k][:, s])


def test_which_forms_batches_share() -> None:
    for positions in (7, [1, 2, 3], [[1, 2, 3]]):
        for config in (NEOX, SECTIONS):
            assert position_rows(positions, config, batch=2, seq=3).batch_stride == 0
    for rank3 in (np.zeros((3, 1, 3), int), np.zeros((4, 1, 3), int)):
        assert position_rows(rank3, SECTIONS, batch=1, seq=3).batch_stride == 0
    assert position_rows([1, 2], NEOX, batch=2, seq=3).batch_stride == 3
    assert position_rows(np.zeros((3, 2, 5), int), SECTIONS, batch=2, seq=5).batch_stride == 5
    assert position_rows(np.zeros((3, 300, 5), int), SECTIONS, batch=300, seq=5).count == 1500


@pytest.mark.parametrize("config", [NEOX, SECTIONS])
def test_every_form_that_messages_allow_is_taken(config: RopeConfig) -> None:
    """Of empty tensors, too."""
    for batch, seq in itertools.product(range(4), range(4)):
        with pytest.raises(ShapeError, match="allowed here are an int, ") as refused:
            position_rows(np.zeros((9, 9, 9, 9), int), config, batch=batch, seq=seq)
        forms = re.findall(r"\[([\d, ]+)\]", str(refused.value).partition("allowed here are")[2])
        each = [f"{batch}, {seq}"]
        if config is SECTIONS:
            each = [f"{axes}, {tokens}" for axes in (4, 3) for tokens in (f"{seq}", f"{batch}, {seq}")]
        offsets = [form for form, listed in ((f"{batch}", batch != seq), (f"{batch}, 1", seq != 1)) if listed]
        assert sorted(forms) == sorted({f"{seq}", *each, *offsets})
        for form in forms:
            shape = tuple(map(int, form.split(", ")))
            found = position_rows(np.ones(shape, int), config, batch=batch, seq=seq)
            assert found.rows.shape[0] == (4 if config is SECTIONS else 1)
            assert found.batch_stride in (0, seq)
            assert found.count == (batch * seq if found.batch_stride else seq) or batch * seq == 0
            assert all(len(range(found.count)[part]) == seq for part in found.rows_of_batch(batch))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_tables_of_any_number(dtype: str) -> None:
    for length in (0, 1, 7):
        found = position_rows(np.arange(length, dtype=dtype), NEOX, batch=None, seq=None)
        assert (found.count, found.rows.tolist()) == (length, [list(range(length))])
        for axes in (1, 3, 4):
            assert position_rows(np.zeros((axes, length), dtype), SECTIONS, batch=None, seq=None).count == length


def test_more_rows_of_tables_than_kernels_count() -> None:
    for shape in ((2**30 + 1,), (4, 2**40)):
        with pytest.raises(ShapeError, match=r"positions: got shape \[.*\], an axis has at most 2\*\*30 elements"):
            position_rows(np.broadcast_to(np.int8(1), shape), SECTIONS, batch=None, seq=None)


def test_section_rows_that_batches_share() -> None:
    rows = np.arange(20).reshape(4, 1, 5)
    found = position_rows(rows, SECTIONS, batch=2, seq=5)
    assert found.batch_stride == 0
    np.testing.assert_array_equal(found.rows, rows[:, 0])
    three = position_rows(rows[:3], SECTIONS, batch=2, seq=5).rows
    np.testing.assert_array_equal(three, rows[[0, 1, 2, 0], 0])
    for shape in ((4, 2, 5, 1), (4, 3, 5), (4, 2, 5)):
        with pytest.raises(ShapeError, match="positions: got shape"):
            position_rows(np.zeros(shape, np.int64), SECTIONS, batch=1 if shape[1:] == (2, 5) else 2, seq=5)


@pytest.mark.parametrize(("config", "more"), [(NEOX, ""), (SECTIONS, r", \[3, R\], \[4, R\]")])
def test_rows_of_tables_are_named_as_the_mode_allows(config: RopeConfig, more: str) -> None:
    for shape in ((2, 3, 4), (4, 3, 4), (0, 7), (2, 7), (5, 7), *([] if config is SECTIONS else [(3, 7)])):
        with pytest.raises(ShapeError, match=rf"allowed here are an int, \[R\]{more}$"):
            position_rows(np.zeros(shape, np.int64), config, batch=None, seq=None)


@pytest.mark.parametrize("mode", ["mrope", "imrope"])
def test_text_in_section_modes_is_neox(device: clrope.DeviceInfo, mode: Any, rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, (2, 5, 2, 16)).astype(np.float32)
    sections = RopeConfig(mode, sections=(2, 3, 1, 1))
    for positions in (7, rng.integers(0, 99999, 5), rng.integers(0, 9, (2,))):
        text = clrope.rope(x, positions, sections, device=device.index)
        assert (text == clrope.rope(x, positions, RopeConfig("neox"), device=device.index)).all()


@pytest.mark.parametrize(
    ("positions", "config", "message"),
    [
        ([1.0, 2.0, 3.0], NEOX, "positions: got dtype float64, allowed are the integer dtypes int8 ... int64"),
        (np.zeros(3, np.float32), NEOX, "positions: got dtype float32"),
        (1.5, NEOX, "positions: got dtype float64"),
        (np.zeros(3, bool), NEOX, "positions: got dtype bool"),
        ("abc", NEOX, "positions: got dtype <U3"),
        (
            [1, 2, 3, 4],
            NEOX,
            r"positions: got shape \[4\], allowed here are an int, \[3\], \[2, 3\], \[2\] \(an offset",
        ),
        (np.zeros((3, 2), int), NEOX, r"positions: got shape \[3, 2\]"),
        (np.zeros((4, 3), int), NEOX, r"positions: got shape \[4, 3\]"),
        *((np.zeros(shape, int), NEOX, r"positions: got shape") for shape in ((1, 2), (1, 4), (2, 2), (2, 4), (0, 3))),
        ([7], NEOX, r"positions: got shape \[1\]"),
        (np.zeros((3, 2, 3), int), NEOX, r"positions: got shape \[3, 2, 3\]"),
        (np.zeros((4, 2, 2), int), SECTIONS, r"positions: got shape \[4, 2, 2\]"),
        (np.zeros((4, 2, 4), int), SECTIONS, r"positions: got shape \[4, 2, 4\]"),
        (np.zeros((4, 1, 2), int), SECTIONS, r"positions: got shape \[4, 1, 2\]"),
        (np.zeros((1, 1, 3), int), NEOX, r"positions: got shape \[1, 1, 3\]"),
        (
            np.zeros((5, 3), int),
            SECTIONS,
            r"positions: got shape \[5, 3\], .* \[4, 3\], \[3, 3\], \[4, 2, 3\], \[3, 2, 3\]",
        ),
        (np.zeros((4, 0, 3), int), SECTIONS, r"positions: got shape \[4, 0, 3\]"),
        (np.zeros((4, 3, 3), int), SECTIONS, r"positions: got shape \[4, 3, 3\]"),
        (np.zeros((5, 2, 3), int), SECTIONS, r"positions: got shape \[5, 2, 3\]"),
        (np.zeros((2, 1, 3), int), SECTIONS, r"positions: got shape \[2, 1, 3\]"),
        (np.zeros(0), NEOX, "positions: got dtype float64"),
        # Not one by one: that would take the memory of 2**40 objects.
        (np.broadcast_to(np.float32(1), (2**40,)), NEOX, "positions: got dtype float32"),
        (
            np.array([1, 2, 2**63], np.uint64),
            NEOX,
            r"positions: got 9223372036854775808, allowed are -2\*\*63 \.\.\. 2\*\*63 - 1",
        ),
        ([1, 2, 2**63], NEOX, r"positions: got 9223372036854775808, allowed are"),
        ([2**63 - 1, -(2**63), 2**63], NEOX, r"positions: got 9223372036854775808, allowed are"),
        ([-100, 70, 2**63], NEOX, r"positions: got 9223372036854775808, allowed are"),
        ([70, -5, -(2**63) - 1], NEOX, r"positions: got -9223372036854775809, allowed are"),
        (-(2**63) - 1, NEOX, r"positions: got -9223372036854775809, allowed are"),
        ([[1, 2, 10**30]] * 2, NEOX, rf"positions: got {10**30}, allowed are"),
        ([-1, 0.5, 0.0], NEOX, r"positions: got dtype float64"),
        ((1, 2, None), NEOX, r"positions: got dtype object"),
        ([0, True, 2], NEOX, r"positions: got a bool in a list, allowed are integers"),
        ([[0, 1, 2], (3, np.False_, 5)], NEOX, r"positions: got a bool in a list, allowed are integers"),
        (
            np.array([1, 2, 2**63], ">u8"),
            NEOX,
            r"positions: got 9223372036854775808, allowed are -2\*\*63 \.\.\. 2\*\*63 - 1",
        ),
        (2**63 - 2, NEOX, "positions: offset 9223372036854775806 with 3 tokens goes beyond 64-bit integers"),
        ([2**63 - 2, 0], NEOX, "positions: offset 9223372036854775806 with 3 tokens goes beyond 64-bit integers"),
    ],
)
def test_refusals(positions: Any, config: RopeConfig, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        position_rows(positions, config, batch=2, seq=3)


def test_no_positions_of_any_type() -> None:
    """An empty list has no type of its own; what says that it holds floats does not hold integers."""
    assert position_rows([], NEOX, batch=2, seq=0).rows.shape == (1, 0)
    for dtype in (np.float32, np.float64, np.complex128):
        with pytest.raises(ShapeError, match=f"positions: got dtype {np.dtype(dtype)}"):
            position_rows(np.zeros(0, dtype), NEOX, batch=2, seq=0)

        class Empty:
            def __array__(self, dtype: Any = None, copy: Any = None, kind: Any = dtype) -> Any:
                return np.zeros(0, kind)

        if dtype != np.float64:
            with pytest.raises(ShapeError, match=f"positions: got dtype {np.dtype(dtype)}"):
                position_rows(Empty(), NEOX, batch=2, seq=0)


def test_positions_of_packed_sequences() -> None:
    assert packed_positions([0, 3, 3, 5], 5).tolist() == [0, 1, 2, 0, 1]
    assert packed_positions([0, 3, 5], 5, offsets=[10, -4]).tolist() == [10, 11, 12, -4, -3]
    assert packed_positions([0, 0], 0).tolist() == []
    last = 2**63 - 1
    assert packed_positions([0, 2, 2, 3], 3, offsets=[last - 1, last, last]).tolist() == [last - 1, last, last]


def test_packed_sequences(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, (7, 2, 8)).astype(np.float32)
    bounds = [0, 2, 2, 6, 7]
    packed = clrope.rope(x, packed_positions(bounds, 7), NEOX, device=device.index)
    for a, b in itertools.pairwise(bounds):
        assert (packed[a:b] == clrope.rope(np.ascontiguousarray(x[a:b]), 0, NEOX, device=device.index)).all()


def test_more_tokens_than_an_axis_has() -> None:
    """A few bounds can claim any number of tokens."""
    for total in (2**30 + 1, 2**63 - 1):
        with pytest.raises(ShapeError, match=rf"total: got {total}, the number of tokens is needed, at most 2\*\*30"):
            packed_positions([0, total], total)
    with pytest.raises(ShapeError, match=r"must ascend from 0 to the number of tokens 1073741824, got 0 \.\.\. 5"):
        packed_positions([0, 5], 2**30)
    for total in (5.0, True, -1):
        with pytest.raises(ShapeError, match=f"total: got {total}"):
            packed_positions([0, 5], total)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cu_seqlens", "offsets", "message"),
    [
        ([0], None, r"cu_seqlens: got shape \[1\], a vector of at least 2 bounds"),
        (5, None, r"cu_seqlens: got shape \[\]"),
        ([[0, 5]], None, r"cu_seqlens: got shape \[1, 2\]"),
        ([[0, 0], [5, 5]], None, r"cu_seqlens: got shape \[2, 2\]"),
        ([1, 5], None, r"cu_seqlens: must ascend from 0 to the number of tokens 5, got 1 \.\.\. 5"),
        ([-1, 5], None, r"cu_seqlens: must ascend from 0 to the number of tokens 5, got -1 \.\.\. 5"),
        ([0, 4], None, r"got 0 \.\.\. 4"),
        ([0, 6], None, r"got 0 \.\.\. 6"),
        ([0, 4, 2, 5], None, r"got 0 \.\.\. 5 with a descent"),
        ([0.0, 5.0], None, "cu_seqlens: got dtype float64"),
        ([0, 2, 5], [1], r"offsets: got shape \[1\], one per sequence is needed: \[2\]"),
        ([0, 2, 5], [1, 2, 3], r"offsets: got shape \[3\], one per sequence is needed: \[2\]"),
        ([0, 2, 5], [1.0, 2.0], "offsets: got dtype float64"),
        ([0, 2, 5], [2**63 - 1, 0], r"offsets: got 9223372036854775807 for sequence 0 of 2 tokens"),
        ([0, 2, 5], [0, 2**63 - 2], r"offsets: got 9223372036854775806 for sequence 1 of 3 tokens"),
        ([0, 2**62 + 1, -(2**62) - 1, 5], None, "with a descent"),
        (np.array([0, 2**63], np.uint64), None, "cu_seqlens: got 9223372036854775808"),
        ([0, 5], np.array([2**63], np.uint64), "offsets: got 9223372036854775808"),
    ],
)
def test_refusals_of_packed_sequences(cu_seqlens: Any, offsets: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        packed_positions(cu_seqlens, 5, offsets)


@pytest.mark.parametrize(("numbers", "pointer", "refused"), [([1, 2], 64, False), ([1, 2], 0, True), ([], 0, False)])
def test_a_tensor_that_stands_for_another_one(numbers: list[int], pointer: int, refused: bool) -> None:
    class Tensor:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.array(numbers, np.int64)

        def data_ptr(self) -> int:
            return pointer

    if refused:
        with pytest.raises(ShapeError, match="positions: the tensor has no memory of its own"):
            position_rows(Tensor(), NEOX, batch=1, seq=len(numbers))
    else:
        assert position_rows(Tensor(), NEOX, batch=1, seq=len(numbers)).rows.ravel().tolist() == numbers
