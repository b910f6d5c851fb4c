"""numba: loops over tokens, heads and pairs, compiled for this CPU, tokens shared among threads by `prange`."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..entry import Refused
from . import Prepared, Task, installed

name = "numba"
colour = "#3f9b58"


def version() -> str | None:
    """Return numba's version."""
    return installed("numba")


@lru_cache(maxsize=1)
def _kernels() -> tuple[Any, Any]:
    numba: Any = importlib.import_module("numba")
    prange = numba.prange

    # Written twice, so that the compiler sees the distance of a pair's elements as a constant where it is one.
    @numba.njit(parallel=True)
    def neox(x, y, cos, sin):  # type: ignore[no-untyped-def]
        tokens, heads, head_dim = x.shape
        rows, half = cos.shape
        for token in prange(tokens):
            # prange counts unsigned, and numba makes a float of signed and unsigned.
            row = np.int64(token) % rows
            c, d = cos[row], sin[row]
            for h in range(heads):
                source, target = x[token, h], y[token, h]
                for i in range(half):
                    one, two = source[i], source[half + i]
                    target[i] = one * c[i] - two * d[i]
                    target[half + i] = one * d[i] + two * c[i]
                for i in range(2 * half, head_dim):
                    target[i] = source[i]

    @numba.njit(parallel=True)
    def normal(x, y, cos, sin):  # type: ignore[no-untyped-def]
        tokens, heads, head_dim = x.shape
        rows, half = cos.shape
        for token in prange(tokens):
            # prange counts unsigned, and numba makes a float of signed and unsigned.
            row = np.int64(token) % rows
            c, d = cos[row], sin[row]
            for h in range(heads):
                source, target = x[token, h], y[token, h]
                for i in range(half):
                    one, two = source[2 * i], source[2 * i + 1]
                    target[2 * i] = one * c[i] - two * d[i]
                    target[2 * i + 1] = one * d[i] + two * c[i]
                for i in range(2 * half, head_dim):
                    target[i] = source[i]

    return normal, neox


def prepare(task: Task) -> Prepared | Refused:
    """Return a call of the compiled loops; float32 only."""
    if task.workload.dtype != "f32":
        return Refused("numba has no 16-bit floating-point arithmetic on CPUs")
    numba: Any = importlib.import_module("numba")
    numba.set_num_threads(min(task.threads, numba.config.NUMBA_NUM_THREADS))
    kernel = _kernels()[0 if task.interleaved else 1]

    def call(i: int) -> None:
        for x, y in zip(task.x[i], task.y[i], strict=True):
            # Batches that share positions come around to the same rows of the tables.
            kernel(_tokens(x), _tokens(y), task.cos, task.sin)

    return Prepared(call)


def _tokens(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return x.reshape(-1, x.shape[2], x.shape[3])
