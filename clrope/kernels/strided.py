"""Kernel `strided`: any strides and pairings, one pair at a time. For whatever no other kernel supports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .division import MOST_ROUNDS
from .kernel import Kernel, Parameters
from .launch import LaunchSpec, local_size_for, table_arguments, tensor_arguments
from .problem import Problem
from .source import storage_options

if TYPE_CHECKING:
    from ..device import DeviceInfo


def supports(problem: Problem, p: Parameters) -> str | None:
    """Return None: everything is supported."""
    return None


def spec(problem: Problem, p: Parameters, device: DeviceInfo) -> LaunchSpec:
    """Return the launch."""
    pairs = problem.pairs
    batches, tokens, heads, _ = problem.shape
    slots = pairs.pairs if problem.in_place else pairs.pairs + pairs.rest
    per_item = min(slots, MOST_ROUNDS // 2) if device.kind == "cpu" else 1
    # From one pair to the next, and from its first element to its second.
    steps = {"normal": (2, 1), "neox": (1, pairs.pairs)}
    (x_step, x_distance), (y_step, y_distance) = steps[pairs.x_pairing], steps[pairs.y_pairing]
    numbers = {
        "tokens": tokens, "pairs": pairs.pairs, "window": pairs.window, "direction": problem.direction,
        "x_step": x_step, "x_distance": x_distance, "y_step": y_step, "y_distance": y_distance, "slots": slots,
        "slots_per_item": per_item,
    }  # fmt: skip
    arguments: tuple[tuple[str, Any], ...] = (
        *tensor_arguments("x", problem.x_strides), *tensor_arguments("y", problem.y_strides),
        *table_arguments(problem), ("row_stride", np.int64(problem.row_stride)),
        *((name, np.int32(n) if type(n) is int else n) for name, n in numbers.items()),
    )  # fmt: skip
    return LaunchSpec(
        "strided.cl", "rope_rotate_strided",
        (*storage_options(problem.dtype), f"-DFULL_TABLES={int(problem.angles.full_tables)}"),
        (-(-slots // per_item), heads, batches * tokens), local_size_for(device.kind, 3), arguments,
    )  # fmt: skip


KERNEL = Kernel("strided", __doc__ or "", (), "strided.cl", supports, spec)
