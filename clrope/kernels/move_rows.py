"""Kernel `move_rows`: rows of a tensor into a KV cache or out of one, for any strides."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .cache_rows import cache_options
from .kernel import Kernel, Parameters
from .launch import LaunchSpec, local_size_for, tensor_arguments
from .problem import Problem
from .source import storage_options

if TYPE_CHECKING:
    from ..device import DeviceInfo
    from .variant import Variant

FILE = "move_rows.cl"


def supports(problem: Problem, p: Parameters) -> str | None:
    """Return why rows cannot be moved; None if they can."""
    return None if problem.slots is not None else "no tensor is a KV cache"


def spec(problem: Problem, variant: Variant, device: DeviceInfo) -> LaunchSpec:
    """Return the launch."""
    return _spec(problem, device.kind)


@lru_cache(maxsize=512)
def _spec(problem: Problem, kind: str) -> LaunchSpec:
    slots = problem.slots
    assert slots is not None
    batches, tokens, heads, head_dim = problem.shape
    options = [
        *storage_options(problem.dtype), *cache_options(problem.dtype, slots), f"-DFROM_CACHE={int(slots.from_cache)}",
    ]  # fmt: skip
    arguments: tuple[tuple[str, Any], ...] = (
        *tensor_arguments("x", problem.x_strides), *tensor_arguments("y", problem.y_strides), ("slots", None),
        ("page_size", np.int64(slots.page_size)), ("head_dim", np.int32(head_dim)),
    )  # fmt: skip
    return LaunchSpec(
        FILE, "rope_move_rows", tuple(options), (heads, tokens, batches), local_size_for(kind, 3), arguments
    )


def words(p: Parameters) -> str:
    """Return a short name."""
    return "move_rows"


KERNEL = Kernel("move_rows", __doc__ or "", (), FILE, supports, spec, words, angles="none")
