"""The suite's random calls of ggml's rope, checked against the oracle, and how near a result has to be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import oracle

import clrope
from clrope.suite.grids.interop import ggml_cases as suite
from clrope.suite.grids.interop.ggml_cases import set_rows

__all__ = ["DTYPES", "PLAIN", "Call", "calls", "limit", "nmse", "set_rows"]

#: Float arguments without any scaling.
PLAIN = {"n_ctx_orig": 0, "freq_base": 1e4, "freq_scale": 1.0, "ext_factor": 0.0, "attn_factor": 1.0, "beta_fast": 32.0,
         "beta_slow": 1.0}  # fmt: skip
DTYPES = {"f16": np.float16, "f32": np.float32}


class Call(suite.GgmlCall):
    """A call whose right answer comes from 60 digits."""

    def want(self) -> np.ndarray:
        return oracle.rope(self.with_four_axes(), self.positions(), self.fields(), self.forward).reshape(self.a.shape)


def calls(rng: np.random.Generator, count: int, **ranges: Any) -> Iterator[Call]:
    for _ in range(count):
        mode = int(rng.choice(list(suite.MODES.values())))
        yield Call(**vars(suite.draw(rng, mode, **ranges)))


def nmse(got: np.ndarray, want: np.ndarray) -> float:
    return clrope.compare(got, want).nmse


def limit(a: np.ndarray) -> float:
    """The error allowed; the limits are means, of few elements all may be rounded badly."""
    return oracle.LIMITS["f16" if a.dtype == np.float16 else "f32"] * (1 if a.size >= 4096 else 5)
