"""Kernel `norm_strided`: RMS norm and rotation in one pass for any strides, one element at a time."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .division import MOST_ROUNDS
from .kernel import Kernel, Parameters
from .launch import LaunchSpec, local_size_for, tensor_arguments
from .norm_rows import NO_NORM, norm_arguments, norm_options
from .problem import Problem
from .source import storage_options

if TYPE_CHECKING:
    from ..device import DeviceInfo
    from .variant import Variant

FILE = "norm_strided.cl"


def supports(problem: Problem, p: Parameters) -> str | None:
    """Return why the problem cannot be rotated; None if it can."""
    if problem.norm is None:
        return NO_NORM
    # Two rounds of loops for each element, and a few for each head.
    most, elements = MOST_ROUNDS // 3, problem.norm.elements
    if elements > most:
        return f"a sum over {elements} elements that are not contiguous, at most {most} are supported"
    return None


def spec(problem: Problem, variant: Variant, device: DeviceInfo) -> LaunchSpec:
    """Return the launch."""
    return _spec(problem, device.kind)


@lru_cache(maxsize=512)
def _spec(problem: Problem, kind: str) -> LaunchSpec:
    pairs, norm = problem.pairs, problem.norm
    assert norm is not None
    batches, tokens, heads, _ = problem.shape
    per_item = heads if norm.over == "heads" else 1
    i32, i64, real = np.int32, np.int64, np.float64 if problem.dtype == "f64" else np.float32
    numbers = {
        "PAIRS": pairs.pairs, "HEAD_DIM": pairs.head_dim, "WINDOW": pairs.window,
        "NEIGHBOURS": int(pairs.pairing == "normal"),
    }  # fmt: skip
    options = [*storage_options(problem.dtype), *(f"-D{name}={n}" for name, n in numbers.items()), *norm_options(norm)]
    arguments: tuple[tuple[str, Any], ...] = (
        *tensor_arguments("x", problem.x_strides), *tensor_arguments("y", problem.y_strides), ("heads", i32(heads)),
        ("cosine", None), ("sine", None), ("row_stride", i64(problem.row_stride)), ("tokens", i32(tokens)),
        ("heads_per_item", i32(per_item)), ("direction", real(1 if problem.forward else -1)),
        *norm_arguments(problem, problem.dtype),
    )  # fmt: skip
    return LaunchSpec(
        FILE, "rope_norm_strided", tuple(options), (-(-heads // per_item), batches * tokens), local_size_for(kind, 2),
        arguments,
    )  # fmt: skip


def words(p: Parameters) -> str:
    """Return a short name."""
    return "norm_strided"


KERNEL = Kernel("norm_strided", __doc__ or "", (), FILE, supports, spec, words)
