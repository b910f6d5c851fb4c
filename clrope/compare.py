"""Two arrays compared: normalised mean squared error, distance in units of the last place, the first mismatch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import ShapeError, reading
from .layout import DTYPES

#: Between these, sums of squares in float64 have lost nothing: what underflowed is too small to matter.
_LEAST_SUM, _LARGEST_SUM = 1e-200, 1e300


@dataclass(frozen=True)
class Comparison:
    """Result of `compare`.

    nmse:      sum (got - want)² / sum want² in float64, at any magnitude (0 only if all values are equal); inf if a
               finite value stands against a non-finite one. Where want is not finite, got must be the same (any NaN
               for NaN).
    max_abs:   largest absolute difference of finite values.
    max_ulp:   largest distance in representable values of got's dtype, to want rounded to that dtype.
    identical: whether all values are equal after rounding want to got's dtype (NaN equals NaN, 0 equals -0).
    first:     index of the first value that is not equal so, or None.
    error, norm: square roots of the two sums of nmse; error is inf if nmse is because of a value that is not finite.
    """

    nmse: float
    max_abs: float
    max_ulp: float
    identical: bool
    first: tuple[int, ...] | None
    got_first: float | None = None
    want_first: float | None = None
    error: float = 0.0
    norm: float = 0.0

    def __str__(self) -> str:
        text = f"NMSE {self.nmse:.3g}, max |difference| {self.max_abs:.3g}, max {self.max_ulp:.3g} ulp"
        if self.first is None:
            return text + ", equal everywhere"
        return text + f"; first difference at {list(self.first)}: got {self.got_first!r}, want {self.want_first!r}"


def _array(values: Any, argument: str) -> npt.NDArray[Any]:
    with reading(argument, values):
        array = np.asarray(values)
    if isinstance(values, np.ma.MaskedArray):
        raise ShapeError(f"{argument}: got a masked array, whose mask would be ignored; give its .data or .filled(...)")
    return array


def _ordered(array: Any) -> Any:
    """Map floats to integers in the same order, neighbours one apart."""
    bits = array.view(np.dtype(f"i{array.dtype.itemsize}")).astype(np.int64)
    least = np.int64(np.iinfo(np.dtype(f"i{array.dtype.itemsize}")).min)
    return np.where(bits < 0, least - bits, bits)


def check_shapes(got: npt.NDArray[Any], want: npt.NDArray[Any]) -> None:
    """Raise `ShapeError` for arrays of different shapes, which NumPy may broadcast."""
    if got.shape != want.shape:
        raise ShapeError(f"got: shape {list(got.shape)} differs from want's {list(want.shape)}")


def error_ratio(error: float, power: float, got: npt.NDArray[Any], want: npt.NDArray[Any]) -> float:
    """Return error / power, which are the sums of squares of got - want and of want in float64.

    Values below 1e-162 have squares of 0, those beyond 1e154 infinite ones. So sums that are very small or very large
    are computed again, of values that are scaled by a power of two. 0 only if all values are equal; inf if a value is
    not finite, or if want is 0 everywhere and got is not.
    """
    if _LEAST_SUM <= error <= _LARGEST_SUM and _LEAST_SUM <= power <= _LARGEST_SUM:
        return error / power
    a, b = got.astype(np.float64, copy=False), want.astype(np.float64, copy=False)
    if np.array_equal(a, b):
        return 0.0 if np.isfinite(b).all() else math.inf
    largest = max(float(np.abs(a).max()), float(np.abs(b).max()))
    if not math.isfinite(largest):
        return math.inf
    exponent = math.frexp(largest)[1]
    with np.errstate(under="ignore"):
        a, b = np.ldexp(a, -exponent), np.ldexp(b, -exponent)
        error, power = float(np.sum((a - b) ** 2)), float(np.sum(b**2))
    # An error that float64 cannot hold is still an error.
    return max(error / power, math.ulp(0.0)) if power else math.inf


def compare(got: Any, want: Any) -> Comparison:
    """Compare an array with what it should be (float64 reference, or any real numbers). Shapes must be equal.

    Raises `ShapeError` for different shapes, for masked arrays, for got of a type that `clrope.rope` does not take, and
    for want that holds no real numbers. NMSE as in ggml's test-backend-ops.
    """
    a, b = _array(got, "got"), _array(want, "want")
    check_shapes(a, b)
    if a.dtype not in DTYPES.values():
        raise ShapeError(f"got: dtype {a.dtype} is none of {', '.join(map(str, DTYPES.values()))}")
    if b.dtype.kind not in "fiub" and b.dtype not in DTYPES.values():
        raise ShapeError(f"want: dtype {b.dtype} holds no real numbers")
    if a.size == 0:
        return Comparison(0.0, 0.0, 0.0, True, None)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = b.astype(a.dtype)
        finite = np.isfinite(y) & np.isfinite(rounded.astype(np.float64))
        equal = (a == rounded) | (np.isnan(x) & np.isnan(rounded.astype(np.float64)))
        wrong = ~equal & (~finite | ~np.isfinite(x))
        both = finite & np.isfinite(x)
        known, right = np.where(both, x, 0.0), np.where(both, y, 0.0)
        difference = known - right
        power = float(np.sum(right**2))
        error = float(np.sum(difference**2))
        norms = _norm(difference, error), _norm(right, power)
    nmse = float("inf") if wrong.any() else error_ratio(error, power, known, right)
    ulp = float("inf")
    if not wrong.any():
        # Differences of 64-bit orders need all 64 bits, unsigned: float64 would lose the lowest bits.
        m, n = _ordered(a)[both], _ordered(np.ascontiguousarray(rounded))[both]
        distance = np.where(m > n, m.view(np.uint64) - n.view(np.uint64), n.view(np.uint64) - m.view(np.uint64))
        ulp = float(distance.max()) if distance.size else 0.0
    first = None
    if not equal.all():
        first = tuple(int(i) for i in np.unravel_index(int(np.argmin(equal)), a.shape))
    return Comparison(
        nmse,
        float(np.abs(difference).max()),
        ulp,
        first is None,
        first,
        None if first is None else float(x[first]),
        None if first is None else float(y[first]),
        math.inf if wrong.any() else norms[0],
        norms[1],
    )


def _norm(values: npt.NDArray[Any], squares: float) -> float:
    """Return the square root of a sum of squares, which may have been too small or too large for float64."""
    if _LEAST_SUM <= squares <= _LARGEST_SUM:
        return math.sqrt(squares)
    largest = float(np.abs(values).max())
    if largest == 0 or not math.isfinite(largest):
        return largest
    return largest * math.sqrt(float(np.sum((values / largest) ** 2)))


def compare_parts(parts: Sequence[tuple[tuple[int, ...], Comparison]]) -> Comparison:
    """Return the comparison of an array, of which parts were compared: for each part the index where it begins."""
    if len(parts) == 1:
        return parts[0][1]
    found = [part for _, part in parts]
    # `hypot` squares no number that has no square in float64.
    error, norm = (math.hypot(*numbers) for numbers in zip(*((part.error, part.norm) for part in found), strict=True))
    ratio = error / norm if norm else math.inf
    first, which = min(
        ((tuple(map(add, begin, part.first)), k) for k, (begin, part) in enumerate(parts) if part.first is not None),
        default=(None, 0),
    )
    return Comparison(
        max(ratio * ratio, math.ulp(0.0)) if error else 0.0,
        max(part.max_abs for part in found),
        max(part.max_ulp for part in found),
        first is None,
        first,
        found[which].got_first,
        found[which].want_first,
        error,
        norm,
    )
