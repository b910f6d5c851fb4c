"""Rotation by cos and sin, as the peers' documents write it, in any floating-point type.

In float64 it is the reference. In the type that the kernels compute in, each operation being rounded once as there, it
gives their very bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ....layout import DTYPES

Array = npt.NDArray[Any]

#: The types that peers have in common.
KINDS = ("f16", "bf16", "f32", "f64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def computed_in(kind: str) -> Any:
    """Return the type in which tensors of a type are computed: float64 for itself, float32 for all others."""
    return np.float64 if kind == "f64" else np.float32


def turned(x: Array, cos: Array, sin: Array, neighbours: bool, real: Any) -> Array:
    """Return x with the first 2 P elements of its last axis rotated, of type `real`.

    x: [..., D]. cos, sin: [..., P], broadcastable to x's other axes. Pairs are neighbours (2i, 2i + 1), or halves
    (i, i + P): first' = first cos - second sin, second' = second cos + first sin.
    """
    out = x.astype(real)
    pairs = cos.shape[-1]
    cos, sin = cos.astype(real), sin.astype(real)
    if neighbours:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    else:
        first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    a, b = out[..., first].copy(), out[..., second].copy()
    out[..., first] = a * cos - b * sin
    out[..., second] = b * cos + a * sin
    return out


def uniform(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Array:
    """Return numbers of a type, uniform in [-1, 1]."""
    drawn: Array = rng.uniform(-1, 1, shape).astype(DTYPES[kind])
    return drawn
