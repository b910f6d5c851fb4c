"""`compare` on differences made by hand."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import clrope
from clrope import ShapeError, compare


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


def test_refusals() -> None:
    with pytest.raises(ShapeError, match=r"got: shape \[2\] differs from want's \[3\]"):
        compare(np.zeros(2, np.float32), np.zeros(3))
    with pytest.raises(ShapeError, match="got: dtype int32 is none of float16, bfloat16, float32, float64"):
        compare(np.zeros(2, np.int32), np.zeros(2))
    assert isinstance(clrope.Comparison(0.0, 0.0, 0.0, True, None), clrope.Comparison)
