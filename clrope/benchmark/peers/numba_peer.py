"""numba: loops over tokens, heads and pairs, compiled for this CPU, tokens shared among threads by `prange`."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..entry import Refused
from . import Prepared, Task

packages = ("numba",)


@lru_cache(maxsize=2)
def _loops(interleaved: bool) -> Any:
    numba: Any = importlib.import_module("numba")
    prange = numba.prange
    # A constant to the compiler, as is the distance of an interleaved pair's elements.
    stride = 2 if interleaved else 1

    @numba.njit(parallel=True)
    def loops(x, y, cos, sin):  # type: ignore[no-untyped-def]
        tokens, heads, head_dim = x.shape
        rows, half = cos.shape
        for token in prange(tokens):
            # prange counts unsigned; numba makes a float of signed and unsigned.
            row = np.int64(token) % rows
            c, d = cos[row], sin[row]
            for h in range(heads):
                source, target = x[token, h], y[token, h]
                for i in range(half):
                    first = stride * i
                    second = first + (1 if interleaved else half)
                    one, two = source[first], source[second]
                    target[first] = one * c[i] - two * d[i]
                    target[second] = one * d[i] + two * c[i]
                for i in range(2 * half, head_dim):
                    target[i] = source[i]

    return loops


def prepare(task: Task) -> Prepared:
    """Return a call of the compiled loops; float32 only."""
    if task.workload.dtype != "f32":
        raise Refused("numba has no 16-bit floating-point arithmetic on CPUs")
    numba: Any = importlib.import_module("numba")
    numba.set_num_threads(min(task.threads, numba.config.NUMBA_NUM_THREADS))
    loops = _loops(task.interleaved)

    def call(i: int) -> None:
        for x, y in zip(task.x[i], task.y[i], strict=True):
            # Batches that share positions use the same rows of the tables again.
            loops(_tokens(x), _tokens(y), task.cos, task.sin)

    return Prepared(call)


def _tokens(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return x.reshape(-1, x.shape[2], x.shape[3])
