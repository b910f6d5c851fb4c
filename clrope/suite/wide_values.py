"""Inputs of every magnitude, with NaN, infinities and signed zeros, and how far a result is from right with them.

One sum over all elements would see the largest ones only. So each pair is measured in its own length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import reference
from ..config import RopeConfig
from ..layout import DTYPES
from ..testing import bits

Array = npt.NDArray[Any]

#: Exponents of 2 by type. Results stay finite; float16 has its subnormals, which no device may flush where it computes
#: in float32. The other types have none: OpenCL allows devices without them.
_EXPONENTS = {"f16": (-22, 14), "f32": (-90, 120), "bf16": (-90, 120), "f64": (-900, 1000)}
WIDE_TYPES = tuple(_EXPONENTS)
_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0)
#: One element in so many is special.
_RARE = 32


def widened(values: Array, kind: str, rng: np.random.Generator) -> Array:
    """Return float64 values in [-1, 1] times powers of 2, some replaced by special ones."""
    out = values.astype(np.float64) * np.exp2(rng.integers(*_EXPONENTS[kind], values.shape).astype(np.float64))
    special = rng.integers(0, _RARE, values.shape) == 0
    out[special] = rng.choice(_SPECIAL, int(special.sum()))
    return out


def pairwise_error(got: Sequence[Array], want: Sequence[Array], kind: str, config: RopeConfig) -> tuple[float, str]:
    """Return (mean of (got - want)² in units of each pair's squared length, what is wrong if that is too large).

    got, want: [B, S, N, D], want in float64. inf if a finite pair has a value that is not finite, if a copied element
    has other bits, or if NaN and infinity are not where want has them, each infinity with its sign. An element whose
    want is NaN may be finite if the pair's other want is infinite: at position 0 kernels may copy.
    """
    errors: list[Array] = []
    least = float(np.ldexp(1.0, _EXPONENTS[kind][0] + 8))
    first, second = reference.pair_indices(config)
    with np.errstate(invalid="ignore", over="ignore"):
        for g, w in zip(got, want, strict=True):
            copied = np.setdiff1d(np.arange(w.shape[-1]), np.concatenate([first, second]))
            kept = w[..., copied].astype(DTYPES[kind])
            if ((bits(np.array(g[..., copied])) != bits(kept)) & ~(np.isnan(g[..., copied]) & np.isnan(kept))).any():
                return np.inf, "elements that are copied have other bits: NaN, infinities or signed zeros changed"
            a, b = w[..., first], w[..., second]
            x, y = g[..., first].astype(np.float64), g[..., second].astype(np.float64)
            finite = np.isfinite(a) & np.isfinite(b)
            if not (np.isfinite(x) & np.isfinite(y))[finite].all():
                return np.inf, "a pair of finite elements has a result that is not finite"
            for one, right, other in ((x, a, b), (y, b, a)):
                nan, infinite = np.isnan(right), np.isinf(right)
                if np.isfinite(one)[infinite | (nan & ~np.isinf(other))].any():
                    return np.inf, "a pair with NaN or infinity has a finite result, which hides it"
                if (one != right)[infinite].any() or np.isinf(one)[nan].any():
                    return np.inf, "an infinity is NaN or has the other sign, or a NaN is an infinity"
            length = np.maximum(np.hypot(a, b), least)
            errors += [((x - a) / length)[finite], ((y - b) / length)[finite]]
    off = np.concatenate([np.zeros(0), *errors])
    error = float(np.mean(np.square(off))) if off.size else 0.0
    return error, "pairs of large or small elements are wrong, measured in each pair's own length"
