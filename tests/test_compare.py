"""`compare` on differences made by hand."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import clrope
from clrope import RopeConfig, ShapeError, compare, reference, testing
from clrope.compare import compare_parts
from clrope.layout import DTYPES


def test_equal() -> None:
    x = np.array([0.0, -1.5, np.inf, np.nan], np.float32)
    c = compare(x, x.astype(np.float64))
    assert (c.nmse, c.max_abs, c.max_ulp, c.identical, c.first) == (0.0, 0.0, 0.0, True, None)
    assert str(c).endswith("equal everywhere")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_units_of_the_last_place(dtype: type) -> None:
    x = np.array([[1.0, -2.0], [3.0, 4.0]]).astype(dtype)
    y = x.copy()
    bits = y.view(f"u{y.dtype.itemsize}")
    bits[1:, :1] += 3  # not of a scalar, which NumPy 1 makes a float64
    c = compare(y, x)
    assert (c.max_ulp, c.first, c.want_first, c.identical) == (3.0, (1, 0), 3.0, False)
    error = float(y[1, 0]) - 3.0
    assert c.nmse == pytest.approx(error**2 / 30.0)
    assert c.max_abs == pytest.approx(error)
    assert "first difference at [1, 0]" in str(c)
    # Across zero: from the least negative to the least positive number are two steps.
    tiny = np.array([1], f"u{y.dtype.itemsize}").view(dtype)
    assert compare(-tiny, tiny).max_ulp == 2.0


def test_want_is_rounded_to_got_s_dtype() -> None:
    c = compare(np.float16([0.1]), np.float64([0.1]))
    assert c.identical
    assert c.max_ulp == 0
    assert 0 < c.max_abs < 1e-4


@pytest.mark.parametrize(
    ("got", "want"), [(np.nan, 1.0), (np.inf, 1.0), (1.0, np.inf), (np.inf, -np.inf), (1.0, np.nan)]
)
def test_not_finite_against_finite(got: float, want: float) -> None:
    c = compare(np.float32([2.0, got]), np.float64([2.0, want]))
    assert (c.nmse, c.max_ulp, c.first) == (float("inf"), float("inf"), (1,))


def test_overflow_of_the_storage_type_is_infinity() -> None:
    assert compare(np.float16([np.inf]), np.float64([1e6])).identical
    assert not compare(np.float16([65504.0]), np.float64([1e6])).identical


def test_zeros() -> None:
    zero = np.zeros(3, np.float32)
    assert compare(zero, zero).nmse == 0
    assert compare(np.float32([0, 0, 1e-30]), zero).nmse == float("inf")
    assert compare(-zero, zero).identical
    assert compare(np.empty((0, 3), np.float32), np.empty((0, 3))).identical


@pytest.mark.parametrize("exponent", [-1050, -565, -540, -300, 0, 300, 540, 565, 1020])
def test_nmse_is_the_same_at_any_magnitude(exponent: int) -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((1, 9, 2, 16))
    want, other = (reference.rope(x, 3, RopeConfig(mode)) for mode in ("neox", "normal"))
    size = math.ldexp(1.0, exponent)
    for got in (other, np.zeros_like(want), x, np.nextafter(want, 0), want * 1.001):
        # Subnormal numbers keep fewer digits.
        near = pytest.approx(compare(got, want).nmse, rel=1e-9 if exponent > -1000 else 1e-3, abs=1e-40)
        if exponent > -1000 or compare(got, want).max_ulp > 1:
            assert compare(got * size, want * size).nmse == near
            assert testing.nmse(got * size, want * size) == near
    assert compare(want * size, want * size).nmse == testing.nmse(want * size, want * size) == 0


@pytest.mark.parametrize("exponent", [-1050, -565, -300, 0, 300, 565, 1020])
def test_parts_are_compared_as_the_whole(exponent: int) -> None:
    rng = np.random.default_rng()
    want = rng.standard_normal((9, 6)) * math.ldexp(1.0, exponent)
    want[4:6] = 0  # a part in which nothing else is right
    wrong = want.copy()
    wrong[2, 3], wrong[4, 1], wrong[7, 0] = -want[2, 3], want[0, 0], 3 * want[1, 1]
    broken = wrong.copy()
    broken[5, 5] = np.nan
    corners = [(0, 3), (0, 0), (4, 0), (4, 2), (6, 0), (6, 1)]
    ends = [(4, 6), (4, 3), (6, 2), (6, 6), (9, 1), (9, 6)]
    for got in (want, wrong, broken, np.nextafter(want, np.inf)):
        whole = compare(got, want)
        parts = compare_parts(
            [
                (begin, compare(*(a[begin[0] : end[0], begin[1] : end[1]] for a in (got, want))))
                for begin, end in zip(corners, ends, strict=True)
            ]
        )
        assert parts.nmse == pytest.approx(whole.nmse, rel=1e-9 if exponent > -1000 else 1e-3)
        for field in ("max_abs", "max_ulp", "identical", "first", "got_first", "want_first"):
            assert getattr(parts, field) == getattr(whole, field), field


def test_nmse_of_values_beside_which_others_vanish() -> None:
    want = np.array([1.0, 1e-170])
    assert 0 < compare(np.array([1.0, 0.0]), want).nmse < 1e-300
    assert 0 < testing.nmse(np.array([1.0, 0.0]), want) < 1e-300
    assert compare(np.ones(2), np.full(2, 1e-170)).nmse == pytest.approx(np.inf)
    largest = np.finfo(np.float64).max
    assert compare(np.full(3, -largest), np.full(3, largest)).nmse == pytest.approx(4)
    assert testing.nmse(np.full(3, -largest), np.full(3, largest)) == pytest.approx(4)
    with np.errstate(all="raise"):
        assert testing.nmse(np.array([np.inf, 1e200]), np.full(2, 1e200)) == np.inf
        assert testing.nmse(np.array([np.nan, 1e-200]), np.full(2, 1e-200)) == np.inf


@pytest.mark.parametrize(
    "numbers",
    [
        np.array([1 + 5j, 1]),
        np.array(["1", "1"]),
        np.array(["a", "b"]),
        np.array([b"1", b"1"]),
        np.array([None, 1.0]),
        np.array(["2020-01-01", "2020-01-02"], "M8[D]"),
        np.array([1, 1], "m8[s]"),
        np.zeros(2, [("a", "f4")]),
        ["1", "1"],
        [2**70, 1],
    ],
    ids=str,
)
def test_what_is_no_real_number_is_refused(numbers: object) -> None:
    with pytest.raises(ShapeError, match=r"want: dtype .* holds no real numbers"):
        compare(np.ones(2, np.float32), numbers)
    with pytest.raises(ShapeError, match=r"got: dtype .* is none of"):
        compare(numbers, np.ones(2))


@pytest.mark.parametrize("kind", ["?", "i1", "u8", "f2", ">f4", "g", *DTYPES.values()])
def test_real_numbers_of_every_type_are_compared(kind: object) -> None:
    want = np.array([0, 1, 1]).astype(kind)  # type: ignore[call-overload]
    assert compare(np.array([0.0, 1.0, 1.0]), want).identical
    assert compare(np.array([0.0, 1.0, 2.0]), want).nmse == 0.5


def test_masked_arrays_are_refused() -> None:
    masked = np.ma.array([1.0, 9.0], mask=[False, True])
    with pytest.raises(ShapeError, match="got: got a masked array, whose mask would be ignored"):
        compare(masked, masked)
    with pytest.raises(ShapeError, match="want: got a masked array"):
        compare(masked.data, masked)


def test_refusals() -> None:
    with pytest.raises(ShapeError, match=r"got: shape \[2\] differs from want's \[3\]"):
        compare(np.zeros(2, np.float32), np.zeros(3))
    with pytest.raises(ShapeError, match="got: dtype int32 is none of float16, bfloat16, float32, float64"):
        compare(np.zeros(2, np.int32), np.zeros(2))
    assert isinstance(clrope.Comparison(0.0, 0.0, 0.0, True, None), clrope.Comparison)
