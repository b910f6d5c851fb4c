"""The arithmetic of the norm kernels in NumPy, operation by operation, as `emulation.py` has it of rotations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .config import RopeConfig
from .emulation import emulate_rope
from .layout import canonical, dtype_name
from .norm import Norm

Array = npt.NDArray[Any]
#: The first guess of an inverse root, and the steps of third order that follow, by computing type.
_GUESSES = {"f4": (0x5F375A86, 2), "f8": (0x5FE6EB50C7B537A9, 3)}


def emulate_rms_norm(x: Any, norm: Norm, layout: str = "bsnd") -> Array:
    """Return `clrope.rms_norm` of x, bit for bit: a new C-order array of its shape and dtype."""
    array = np.asarray(x)
    with np.errstate(all="ignore"):
        return _normed(_widened(array), norm, layout, _rounding(array, norm)).astype(array.dtype)


def emulate_norm_rope(x: Any, positions: Any, config: RopeConfig, norm: Norm, layout: str = "bsnd") -> Array:
    """Return `clrope.rope` of x with a norm, bit for bit: a new C-order array of its shape and dtype.

    Arguments and errors as for `emulate_rope`.
    """
    array = np.asarray(x)
    rounded = _rounding(array, norm)
    value = _widened(array)
    with np.errstate(all="ignore"):
        if norm.order == "before":
            value = emulate_rope(_normed(value, norm, layout, rounded), positions, config, layout=layout)
        else:
            value = _normed(rounded(emulate_rope(value, positions, config, layout=layout)), norm, layout, rounded)
        return value.astype(array.dtype)


def _widened(array: Array) -> Array:
    return np.array(array, np.float64 if dtype_name(array.dtype) == "f64" else np.float32, order="C")


def _rounding(array: Array, norm: Norm) -> Callable[[Array], Array]:
    """Return what becomes of a value where separate operations would store it."""
    if norm.rounding == "once":
        return lambda value: value
    return lambda value: value.astype(array.dtype).astype(value.dtype)


def _normed(value: Array, norm: Norm, layout: str, rounded: Callable[[Array], Array]) -> Array:
    """Return the norm of an array in the computing type, which it replaces."""
    heads = canonical(value, layout)
    shape, real = heads.shape, value.dtype.type
    groups = heads.reshape(*shape[:2], -1, norm.weight.size)
    mean = _sum_of_squares(groups) * real(1 / norm.weight.size) + real(norm.eps)
    root = _inverse_root(mean)[..., None]
    normed = rounded(rounded(groups * root) * norm.scale(real))
    heads[...] = normed.reshape(shape)
    return value


def _sum_of_squares(groups: Array) -> Array:
    """Return the sums over the last axis: 16 partial ones of every 16th element, then halves onto halves."""
    padding = [(0, 0)] * (groups.ndim - 1) + [(0, -groups.shape[-1] % 16)]
    squares = np.pad(groups * groups, padding)
    partial = np.zeros((*groups.shape[:-1], 16), groups.dtype)
    for first in range(0, squares.shape[-1], 16):
        partial += squares[..., first : first + 16]
    for half in (8, 4, 2, 1):
        partial = partial[..., :half] + partial[..., half:]
    total: Array = partial[..., 0]
    return total


def _inverse_root(x: Array) -> Array:
    """Return 1 / sqrt(x) as `inverse_root` in `kernels/norm.clh`."""
    real, bits = x.dtype.type, np.dtype(f"i{x.itemsize}")
    guess, steps = _GUESSES[f"f{x.itemsize}"]
    y: Array = (bits.type(guess) - (x.view(bits) >> 1)).view(x.dtype)
    for _ in range(steps):
        e = real(1) - x * y * y
        y = y + y * e * (real(0.5) + real(0.375) * e)
    root: Array = y + y * (real(1) - x * y * y) * real(0.5)
    return root
