"""The suite's random calls of ggml's rope, checked against the oracle, and how near a result has to be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import oracle

import clrope
from clrope.suite.grids.interop import ggml_cases as suite
from clrope.suite.grids.interop.ggml_cases import PLAIN, set_rows

__all__ = ["DTYPES", "PLAIN", "Call", "calls", "limit", "nmse", "set_rows"]

DTYPES = {"f16": np.float16, "f32": np.float32}


class Call(suite.GgmlCall):
    """A call whose right answer comes from 60 digits."""

    def want(self) -> np.ndarray:
        return oracle.rope(self.with_four_axes(), self.positions(), self.fields(), self.forward).reshape(self.a.shape)


def calls(rng: np.random.Generator, count: int, **ranges: Any) -> Iterator[Call]:
    for call in suite.calls(rng, count, **ranges):
        yield Call(**vars(call))


def nmse(got: np.ndarray, want: np.ndarray) -> float:
    return clrope.compare(got, want).nmse


def limit(a: np.ndarray) -> float:
    """The error allowed; the limits are means, of few elements all may be rounded badly."""
    return oracle.LIMITS["f16" if a.dtype == np.float16 else "f32"] * (1 if a.size >= 4096 else 5)
