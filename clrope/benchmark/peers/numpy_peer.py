"""NumPy: whole arrays, float32 arithmetic, one thread."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import Prepared, Task

packages = ("numpy",)


def prepare(task: Task) -> Prepared:
    """Return a call that rotates with slices."""
    cos, sin = task.broadcast(task.cos), task.broadcast(task.sin)
    n, half = task.rotated, task.rotated // 2
    first, second = (slice(0, n, 2), slice(1, n, 2)) if task.interleaved else (slice(0, half), slice(half, n))

    def rotate(x: Any, y: Any) -> None:
        a, b = (x[..., part].astype(np.float32, copy=False) for part in (first, second))
        one, two = a * cos - b * sin, a * sin + b * cos
        y[..., first], y[..., second] = one, two
        if y is not x and n < x.shape[3]:
            y[..., n:] = x[..., n:]

    def call(i: int) -> None:
        for x, y in zip(task.x[i], task.y[i], strict=True):
            rotate(x, y)

    return Prepared(call)
