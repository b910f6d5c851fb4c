"""Kernel `norm_lanes`: RMS norm of each head and rotation in one pass, as `lanes` divides the work. For GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .kernel import Kernel, Parameters
from .lanes import GROUP, PARAMETERS, division, lane_options, lanes_of_head
from .lanes import supports as lanes_supports
from .launch import LaunchSpec, LocalBytes, head_arguments
from .norm_rows import NO_NORM, norm_arguments, norm_options, over_heads
from .problem import Problem

if TYPE_CHECKING:
    from ..device import DeviceInfo

#: Bytes of local memory that a work-group takes at most: what every device has.
LOCAL_BYTES = 32 << 10
#: Work-items of a head at most: what every GPU takes as a work-group.
MOST_LANES = 256


def _row_bytes(problem: Problem, heads: int) -> int:
    return (heads * problem.pairs.head_dim + 16) * (8 if problem.dtype == "f64" else 4)


def supports(problem: Problem, p: Parameters) -> str | None:
    """Return why the problem cannot be rotated with these parameters; None if it can."""
    if problem.norm is None:
        return NO_NORM
    if problem.slots is not None:
        return "a tensor is a KV cache"
    if over_heads(problem):
        return "a sum is over all heads of a token"
    head_dim = problem.pairs.head_dim
    if head_dim % 16:
        return f"a head has {head_dim} elements, no multiple of 16"
    if lanes_of_head(problem) > MOST_LANES or _row_bytes(problem, 1) > LOCAL_BYTES:
        return f"a head of {head_dim} elements is too long for a work-group"
    return lanes_supports(problem, p)


def spec(problem: Problem, p: Parameters, device: DeviceInfo, second: Problem | None = None) -> LaunchSpec:
    """Return the launch; second: another tensor with the same batches, tokens, pairs and kind of norm."""
    assert problem.norm is not None
    lanes = lanes_of_head(problem)
    # As many numbers of a work-item as with 4-byte elements: it keeps all of them until the roots are there.
    most = max(1, p["heads_per_item"] * problem.itemsize // 4)
    heads = next(h for h in (16, 8, 4, 2, 1) if h == 1 or (h <= most and 4 * _row_bytes(problem, h) <= LOCAL_BYTES))
    largest = min(GROUP, device.max_work_group_size or GROUP)
    rows = max(1, min(largest // lanes, LOCAL_BYTES // _row_bytes(problem, heads)))
    groups, items, index = division(problem, second, heads, lanes * rows, device)
    options = lane_options(problem, p, index, HEADS=heads, **norm_options(problem.norm))
    arguments = (
        *head_arguments(problem, second, p["angles"]),
        ("groups", np.int32(groups)),
        ("direction", problem.direction),
        *norm_arguments(problem, second),
        ("squares", LocalBytes(rows * _row_bytes(problem, heads))),
    )
    return LaunchSpec(
        "norm_lanes.cl", "rope_norm_lanes", options, (items, problem.shape[0]), (lanes * rows, 1), arguments
    )


KERNEL = Kernel(
    "norm_lanes", __doc__ or "", PARAMETERS, "norm_lanes.cl", supports, spec,
    lambda p: f"norm_lanes {p['angles']} heads<={p['heads_per_item']}", {"angles": "cached"}, takes_second=True,
)  # fmt: skip
