"""What every check of a result shares: poison, guards, equality of bits, and how close a result has to be.

For the suites, the tuner, the benchmark and the tests. NumPy only: nothing here knows of OpenCL.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from .compare import Comparison, check_shapes, error_ratio
from .errors import ShapeError
from .layout import DTYPES

Array = npt.NDArray[Any]

#: The byte that outputs hold before a call: a finite, unlikely number in every type, so that no NaN can hide it.
POISON = 0x5A
#: The byte that makes a NaN of every type: whatever is computed with it shows.
NAN_POISON = 0xFF
#: Elements on either side of a tensor that no call may change.
GUARD = 64

#: Largest NMSE against the float64 reference. Rounding to the type alone spends 4.6e-8 (f16) and 2.9e-6 (bf16).
LIMITS = {"f32": 1e-12, "f16": 6e-8, "bf16": 4e-6, "f64": 1e-20}
#: Below this many elements the roundings to f16 and bf16 do not average out; the limits of ggml's own tests hold.
FEW = 4096
LIMITS_OF_FEW = LIMITS | {"f16": 1e-7, "bf16": 6.4e-6}
#: Below this many elements nothing averages out: each may be rounded by half a unit of its last place.
VERY_FEW = 512
WORST_ROUNDING = {"f16": 2.0**-22, "bf16": 2.0**-16, "f32": 0.0, "f64": 0.0}
#: Largest NMSE of other implementations: tables in the tensors' own type, angles by repeated float32 multiplication.
PEER_LIMITS = {"f32": 2e-6, "f16": 2e-6, "bf16": 4e-5}


def limit_for(dtype: str, elements: int, *, rounding: bool = False) -> float:
    """Return the largest NMSE allowed for a result of so many elements.

    rounding: a handful of elements may all be rounded the worst way.
    """
    known = (LIMITS if elements >= FEW else LIMITS_OF_FEW).get(dtype)
    eps = float(ml_dtypes.finfo(DTYPES[dtype]).eps)  # type: ignore[no-untyped-call]
    limit = eps**2 / 12 if known is None else known
    return max(limit, WORST_ROUNDING.get(dtype, eps**2 / 4)) if rounding and elements < VERY_FEW else limit


def only_rounded(found: Comparison, right_bits: Callable[[], bool]) -> bool:
    """Whether a result that is over its limit is nothing but rounded, as what it was compared with shows.

    Of subnormal values, and of many equal ones, rounding alone takes more than the limit. Then each value has to be the
    right one rounded; or its neighbour, if right_bits says that all bits are those of the kernels' arithmetic.
    """
    return found.identical or (found.max_ulp <= 1 and right_bits())


def close_limit(dtype: str) -> float:
    """Return the largest NMSE between results of devices that round differently: a unit of the last place.

    At least what polynomials for cos and sin differ by.
    """
    eps = float(ml_dtypes.finfo(DTYPES[dtype]).eps)  # type: ignore[no-untyped-call]
    return max(1e-18 if dtype == "f64" else 1e-10, eps**2)


def nmse(got: Array, want: Array) -> float:
    """Return sum (got - want)² / sum want² for finite want; inf if a value of got is not finite.

    `clrope.compare` without what only a person wants to know, which takes most of its time. Raises `ShapeError` for
    different shapes.
    """
    check_shapes(got, want)
    with np.errstate(invalid="ignore", over="ignore"):
        right = np.ravel(want).astype(np.float64, copy=False)
        difference = np.ravel(got).astype(np.float64) - right
        # Not `np.dot`, whose threads wait for each other on a busy machine.
        error, power = (float(np.einsum("i,i->", a, a)) for a in (difference, right))
    return error_ratio(error, power, got, want)


def bits(array: Array) -> Array:
    """Return the same memory as unsigned integers."""
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def _check_alike(got: Array, want: Array) -> None:
    check_shapes(got, want)
    if got.dtype != want.dtype:
        raise ShapeError(f"got: dtype {got.dtype} differs from want's {want.dtype}")


def differing(got: Array, want: Array) -> Array:
    """Return where two arrays hold other bits. All NaNs count as equal: their bits are not defined.

    Raises `ShapeError` for different shapes or types.
    """
    _check_alike(got, want)
    differs: Array = bits(got) != bits(want)
    if differs.any():
        with np.errstate(invalid="ignore"):  # a signalling NaN is reported when it is widened
            differs &= ~(np.isnan(got) & np.isnan(want))
    return differs


def count_differing(got: Array, want: Array) -> int:
    """Return how many values of two arrays differ, any NaN for any NaN.

    Raises `ShapeError` for different shapes or types.
    """
    _check_alike(got, want)
    a, b = np.ravel(got), np.ravel(want)
    places = np.flatnonzero(bits(a) != bits(b))
    # NaN is looked for only where bits differ: mostly nowhere.
    return int(np.count_nonzero(differing(a[places], b[places])))


def digest_of(arrays: Sequence[Array]) -> str:
    """Return 16 hexadecimal digits of the arrays' bytes in C order, with every NaN made the same first."""
    total = hashlib.sha256()
    for array in arrays:
        dense = np.array(array, order="C")
        with np.errstate(invalid="ignore"):  # a signalling NaN among bfloat16s
            dense[np.isnan(dense)] = np.nan
        total.update(dense.view(np.uint8).data)
    return total.hexdigest()[:16]


def poisoned(shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.uint8, byte: int = POISON) -> Array:
    """Return a new array of which every byte is poison."""
    out = np.empty(shape, dtype)
    out.reshape(-1).view(np.uint8).fill(byte)
    return out


def guarded(shape: tuple[int, ...], dtype: npt.DTypeLike, byte: int = POISON) -> tuple[Array, Array]:
    """Return (memory, tensor): poison all over, and `GUARD` elements on either side of the dense tensor."""
    memory = poisoned(math.prod(shape) + 2 * GUARD, dtype, byte)
    return memory, memory[GUARD:-GUARD].reshape(shape)


def changed_outside(memory: Array, before: Array, views: Sequence[Array]) -> Array:
    """Return which elements of a dense array are not what they were before, other than those of its views."""
    now = bits(memory).copy()
    for view in views:
        _twin(view, memory, now)[...] = _twin(view, memory, bits(before))
    changed: Array = now != bits(before)
    return changed


def _twin(view: Array, memory: Array, other: Array) -> Array:
    """Return the elements of another dense array at the places of a view's elements in memory."""
    offset = view.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    if not (memory.flags.c_contiguous and other.flags.c_contiguous and other.nbytes == memory.nbytes):
        raise ValueError("memory: got an array that is not dense, or copies of another size")
    return np.ndarray(view.shape, other.dtype, other, offset if view.size else 0, view.strides)
