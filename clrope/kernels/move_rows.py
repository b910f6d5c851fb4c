"""Kernel `move_rows`: rows of a tensor into a KV cache or out of one, for any strides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .cache_rows import cache_options
from .kernel import Kernel, Parameters
from .launch import LaunchSpec, local_size_for, tensor_arguments
from .problem import Problem
from .source import storage_options

if TYPE_CHECKING:
    from ..device import DeviceInfo


def supports(problem: Problem, p: Parameters) -> str | None:
    """Return why rows cannot be moved; None if they can."""
    return None if problem.slots is not None else "no tensor is a KV cache"


def spec(problem: Problem, p: Parameters, device: DeviceInfo) -> LaunchSpec:
    """Return the launch."""
    slots = problem.slots
    assert slots is not None
    batches, tokens, heads, head_dim = problem.shape
    arguments: tuple[tuple[str, Any], ...] = (
        *tensor_arguments("x", problem.x_strides), *tensor_arguments("y", problem.y_strides), ("slots", None),
        ("page_size", np.int64(slots.page_size)), ("head_dim", np.int32(head_dim)),
    )  # fmt: skip
    options = (
        *storage_options(problem.dtype),
        *cache_options(problem.dtype, slots),
        f"-DFROM_CACHE={int(slots.from_cache)}",
    )
    return LaunchSpec(
        "move_rows.cl", "rope_move_rows", options, (heads, tokens, batches), local_size_for(device.kind, 3), arguments
    )


KERNEL = Kernel("move_rows", __doc__ or "", (), "move_rows.cl", supports, spec, angles="none")
