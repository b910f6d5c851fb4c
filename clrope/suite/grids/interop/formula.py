"""Rotation by cos and sin, from the peers' documents, in any floating-point type.

In float64 the formula is the reference. In the kernels' type it rounds every operation as the kernels do and gives the
same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ....layout import DTYPES

Array = npt.NDArray[Any]

#: The types of most peers.
KINDS = ("f16", "bf16", "f32", "f64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


class FormulaCall:
    """A call of an adapter with a formula for its result of type `kind`."""

    kind: str

    def formula(self, real: Any) -> Array:
        """Return the result with all arithmetic of type `real`."""
        raise NotImplementedError

    def want(self) -> npt.NDArray[np.float64]:
        """Return the formula in float64."""
        return self.formula(np.float64)

    def right_bits(self) -> Array | None:
        """Return the formula in the type of the kernels' arithmetic: float64 for f64, float32 otherwise."""
        rounded: Array = self.formula(np.float64 if self.kind == "f64" else np.float32).astype(DTYPES[self.kind])
        return rounded


def turned(x: Array, cos: Array, sin: Array, neighbours: bool, real: Any) -> Array:
    """Return x with the first 2 P elements of its last axis rotated, of type `real`.

    x: [..., D]. cos, sin: [..., P], broadcastable to x's other axes. Pairs are neighbours (2i, 2i + 1) or (i, i + P):
    first' = first cos - second sin, second' = second cos + first sin.
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
    """Return random values of a type, uniform in [-1, 1]."""
    drawn: Array = rng.uniform(-1, 1, shape).astype(DTYPES[kind])
    return drawn
