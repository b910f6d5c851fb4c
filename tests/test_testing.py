"""The helpers of all checks: each finds what it is for, and nothing else."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import clrope
from clrope import testing
from clrope.layout import DTYPES

NAMES = ["f16", "bf16", "f32", "f64"]


@pytest.mark.parametrize("name", NAMES)
def test_poison_is_finite_and_nan_poison_is_not(name: str) -> None:
    assert np.isfinite(testing.poisoned(3, DTYPES[name]).astype(np.float64)).all()
    assert abs(float(testing.poisoned(1, DTYPES[name])[0])) > 100
    assert np.isnan(testing.poisoned((2, 3), DTYPES[name], testing.NAN_POISON)).all()


@pytest.mark.parametrize("name", NAMES)
def test_bits_differ_where_they_do(name: str) -> None:
    a = np.array([0.0, 1.0, np.nan, np.nan, np.inf, 2.0], DTYPES[name])
    b = np.array([-0.0, 1.0, np.nan, 1.0, np.inf, 2.0], DTYPES[name])
    testing.bits(b)[2:3] ^= 1  # another NaN; not of a scalar, which NumPy 1 makes a float64
    assert np.isnan(b[2])
    assert testing.differing(a, b).tolist() == [True, False, False, True, False, False]
    assert testing.count_differing(a, b) == 2
    assert testing.count_differing(a.reshape(2, 3), a.reshape(2, 3)) == 0


def test_a_single_bit_counts() -> None:
    a = np.ones((4, 5), ml_dtypes.bfloat16)
    b = a.copy()
    testing.bits(b)[3, 4] ^= 1
    assert testing.count_differing(a, b) == 1
    assert np.argwhere(testing.differing(a, b)).tolist() == [[3, 4]]


def test_nmse() -> None:
    rng = np.random.default_rng(5)
    want = rng.uniform(-1, 1, (4, 6))
    got = (want * 1.001).astype(np.float32)
    assert testing.nmse(got, want) == pytest.approx(clrope.compare(got, want).nmse)
    assert testing.nmse(got, want) == pytest.approx(1e-6, rel=1e-3)
    got[1, 2] = np.nan
    assert testing.nmse(got, want) == math.inf
    assert testing.nmse(np.zeros(3), np.zeros(3)) == 0
    assert testing.nmse(np.ones(3), np.zeros(3)) == math.inf


def test_other_shapes_and_types_are_refused() -> None:
    one, five = np.ones(1, np.float32), np.ones(5, np.float32)
    for check in (testing.nmse, testing.differing, testing.count_differing):
        for got, want in ((one, five), (five, one), (five, five[:4]), (five[None], five), (five[0], five)):
            with pytest.raises(clrope.ShapeError, match=r"got: shape \[.*\] differs from want's \["):
                check(got, want)
    half, brain = np.full(4, 1.5, np.float16), np.full(4, 0x3E00, np.uint16).view(ml_dtypes.bfloat16)
    for check in (testing.differing, testing.count_differing):
        with pytest.raises(clrope.ShapeError, match="got: dtype float16 differs from want's bfloat16"):
            check(half, brain)
        with pytest.raises(clrope.ShapeError, match="dtype int32 differs"):
            check(np.ones(5, np.int32), five)
    assert testing.nmse(half, brain) > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_limits_allow_rounding_and_little_more(name: str) -> None:
    rng = np.random.default_rng(6)
    want = rng.uniform(-1, 1, 1 << 16)
    rounded = want.astype(DTYPES[name])
    found = testing.nmse(rounded, want)
    limit = testing.limit_for(name, want.size)
    assert found <= limit < testing.close_limit(name)
    assert not testing.nmse(rounded.astype(np.float64) * (1 + 2 * math.sqrt(limit)), want) <= limit
    assert limit <= testing.PEER_LIMITS.get(name, math.inf)


def test_few_elements_have_wider_limits() -> None:
    assert testing.limit_for("f16", testing.FEW) == testing.LIMITS["f16"]
    assert testing.limit_for("f16", testing.FEW - 1) == 1e-7
    assert testing.limit_for("f16", 100) == 1e-7
    assert testing.limit_for("f16", 100, rounding=True) == 2.0**-22
    assert testing.limit_for("f16", testing.VERY_FEW, rounding=True) == 1e-7
    assert testing.limit_for("f32", 1, rounding=True) == testing.LIMITS["f32"]


def test_only_rounded() -> None:
    want = np.array([1.3e-7, 5.1e-7, -2e-7])
    got = want.astype(np.float16)
    assert testing.nmse(got, want) > testing.limit_for("f16", 3, rounding=True)
    assert testing.only_rounded(clrope.compare(got, want), lambda: False)
    neighbour = got.copy()
    testing.bits(neighbour)[:1] += 1
    for same in (True, False):
        assert testing.only_rounded(clrope.compare(neighbour, want), lambda same=same: same) is same
    testing.bits(neighbour)[:1] += 1
    for wrong in (neighbour, -got, got * 0, got + np.float16(np.nan)):
        assert not testing.only_rounded(clrope.compare(wrong, want), lambda: True)


def test_digests() -> None:
    a = np.array([[1, np.nan], [3, 4]], np.float16)
    b = a.copy()
    testing.bits(b)[0, 1] ^= 1
    assert testing.digest_of([a]) == testing.digest_of([b])
    b[1, 1] = 5
    assert testing.digest_of([a]) != testing.digest_of([b])
    assert testing.digest_of([a.T]) == testing.digest_of([a.T.copy()]) != testing.digest_of([a])


@pytest.mark.parametrize("place", [0, testing.GUARD - 1, testing.GUARD + 6, -1])
def test_a_changed_guard_is_found(place: int) -> None:
    memory, tensor = testing.guarded((2, 3), np.float32)
    before = memory.copy()
    tensor[...] = 7
    assert not testing.changed_outside(memory, before, [tensor]).any()
    memory[place] = 1
    changed = testing.changed_outside(memory, before, [tensor])
    assert np.flatnonzero(changed).tolist() == [place % memory.size]


def test_views_of_any_strides() -> None:
    memory = testing.poisoned((4, 6), np.float16)
    before = memory.copy()
    one, other = memory[::2, 5:0:-2], memory[1::2, :2]
    one[...] = other[...] = 0
    assert not testing.changed_outside(memory, before, [one, other]).any()
    assert np.argwhere(testing.changed_outside(memory, before, [one])).tolist() == [[1, 0], [1, 1], [3, 0], [3, 1]]
    assert testing.changed_outside(memory, before, []).sum() == 10
    assert (memory == 0).sum() == 10, "nothing is written"


def test_an_empty_view() -> None:
    memory = testing.poisoned(4, np.float32)
    assert not testing.changed_outside(memory, memory.copy(), [memory[4:]]).any()


def test_memory_that_is_not_dense_is_refused() -> None:
    memory = testing.poisoned((4, 6), np.float32)
    with pytest.raises(ValueError, match="not dense"):
        testing.changed_outside(memory[:, ::2], memory[:, ::2].copy(), [memory[0, ::2]])


def test_no_opencl_is_needed() -> None:
    import subprocess
    import sys

    code = "import sys, clrope.testing; sys.exit(any('pyopencl' in m for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
