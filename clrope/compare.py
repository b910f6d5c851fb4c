"""Two arrays compared: normalised mean squared error, distance in units of the last place, the first mismatch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import ShapeError, reading
from .layout import DTYPES


@dataclass(frozen=True)
class Comparison:
    """Result of `compare`.

    nmse:      sum (got - want)² / sum want² in float64 (0 if both are zero); inf if a finite value stands against a
               non-finite one. Where want is not finite, got must be the same (any NaN for NaN).
    max_abs:   largest absolute difference of finite values.
    max_ulp:   largest distance in representable values of got's dtype, to want rounded to that dtype.
    identical: whether all values are equal after rounding want to got's dtype (NaN equals NaN, 0 equals -0).
    first:     index of the first value that is not equal so, or None.
    """

    nmse: float
    max_abs: float
    max_ulp: float
    identical: bool
    first: tuple[int, ...] | None
    got_first: float | None = None
    want_first: float | None = None

    def __str__(self) -> str:
        text = f"NMSE {self.nmse:.3g}, max |difference| {self.max_abs:.3g}, max {self.max_ulp:.3g} ulp"
        if self.first is None:
            return text + ", equal everywhere"
        return text + f"; first difference at {list(self.first)}: got {self.got_first!r}, want {self.want_first!r}"


def _ordered(array: Any) -> Any:
    """Map floats to integers in the same order, neighbours one apart."""
    bits = array.view(np.dtype(f"i{array.dtype.itemsize}")).astype(np.int64)
    least = np.int64(np.iinfo(np.dtype(f"i{array.dtype.itemsize}")).min)
    return np.where(bits < 0, least - bits, bits)


def compare(got: Any, want: Any) -> Comparison:
    """Compare an array with what it should be (float64 reference or any dtype). Shapes must be equal.

    Raises `ShapeError` for different shapes. NMSE as in ggml's test-backend-ops.
    """
    with reading("got", got):
        a = np.asarray(got)
    with reading("want", want):
        b = np.asarray(want)
    if a.shape != b.shape:
        raise ShapeError(f"got: shape {list(a.shape)} differs from want's {list(b.shape)}")
    if a.dtype not in DTYPES.values():
        raise ShapeError(f"got: dtype {a.dtype} is none of {', '.join(map(str, DTYPES.values()))}")
    if a.size == 0:
        return Comparison(0.0, 0.0, 0.0, True, None)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = b.astype(a.dtype)
        finite = np.isfinite(y) & np.isfinite(rounded.astype(np.float64))
        equal = (a == rounded) | (np.isnan(x) & np.isnan(rounded.astype(np.float64)))
        wrong = ~equal & (~finite | ~np.isfinite(x))
        both = finite & np.isfinite(x)
        difference = np.where(both, x, 0.0) - np.where(both, y, 0.0)
        power = float(np.sum(np.where(both, y, 0.0) ** 2))
        error = float(np.sum(difference**2))
    nmse = float("inf") if wrong.any() else (error / power if power else (0.0 if error == 0 else float("inf")))
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
    )
