"""Kernel `norm_strided`: RMS norm and rotation in one pass for any strides, one element at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .division import MOST_ROUNDS
from .kernel import Kernel, Parameters
from .launch import LaunchSpec, head_options, local_size_for, tensor_arguments
from .norm_rows import NO_NORM, norm_arguments, norm_options
from .problem import Problem

if TYPE_CHECKING:
    from ..device import DeviceInfo


def supports(problem: Problem, p: Parameters) -> str | None:
    """Return why the problem cannot be rotated; None if it can."""
    if problem.norm is None:
        return NO_NORM
    # Two rounds of loops for each element, and a few for each head.
    most, elements = MOST_ROUNDS // 3, problem.norm.elements
    if elements > most:
        return f"a sum over {elements} elements that are not contiguous, at most {most} are supported"
    return None


def spec(problem: Problem, p: Parameters, device: DeviceInfo) -> LaunchSpec:
    """Return the launch."""
    assert problem.norm is not None
    batches, tokens, heads, _ = problem.shape
    per_item = heads if problem.norm.over == "heads" else 1
    i32 = np.int32
    arguments: tuple[tuple[str, Any], ...] = (
        *tensor_arguments("x", problem.x_strides), *tensor_arguments("y", problem.y_strides), ("heads", i32(heads)),
        ("cosine", None), ("sine", None), ("row_stride", np.int64(problem.row_stride)), ("tokens", i32(tokens)),
        ("heads_per_item", i32(per_item)), ("direction", problem.direction), *norm_arguments(problem),
    )  # fmt: skip
    return LaunchSpec(
        "norm_strided.cl", "rope_norm_strided", head_options(problem, p, 1, **norm_options(problem.norm)),
        (-(-heads // per_item), batches * tokens), local_size_for(device.kind, 2), arguments,
    )  # fmt: skip


KERNEL = Kernel("norm_strided", __doc__ or "", (), "norm_strided.cl", supports, spec)
