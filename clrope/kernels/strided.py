"""Kernel `strided`: any strides and pairings, one pair at a time. For whatever no other kernel supports."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .division import MOST_ROUNDS
from .kernel import Kernel, Parameter, Parameters
from .launch import LaunchSpec, local_size_for, table_arguments, tensor_arguments
from .problem import Pairing, Problem
from .source import storage_options

if TYPE_CHECKING:
    from ..device import DeviceInfo
    from .variant import Variant

FILE = "strided.cl"

PARAMETERS: tuple[Parameter, ...] = ()


def supports(problem: Problem, p: Parameters) -> str | None:
    """Return None: everything is supported."""
    return None


def spec(problem: Problem, variant: Variant, device: DeviceInfo) -> LaunchSpec:
    """Return the launch."""
    return _spec(problem, variant, device.kind)


@lru_cache(maxsize=512)
def _spec(problem: Problem, variant: Variant, kind: str) -> LaunchSpec:
    pairs, full = problem.pairs, problem.angles.full_tables
    batches, tokens, heads, _ = problem.shape
    slots = pairs.pairs if problem.in_place else pairs.pairs + pairs.rest
    per_item = min(slots, MOST_ROUNDS // 2) if kind == "cpu" else 1
    i32, i64, real = np.int32, np.int64, np.float64 if problem.dtype == "f64" else np.float32
    options = [*storage_options(problem.dtype), f"-DFULL_TABLES={int(full)}"]
    arguments: tuple[tuple[str, Any], ...] = (
        *tensor_arguments("x", problem.x_strides), *tensor_arguments("y", problem.y_strides),
        *table_arguments(problem),
        ("row_stride", i64(problem.row_stride)), ("tokens", i32(tokens)), ("pairs", i32(pairs.pairs)),
        ("window", i32(pairs.window)), ("direction", real(1 if problem.forward else -1)),
        ("x_step", i32(pairs.step)), ("x_distance", i32(pairs.distance)), ("y_step", i32(pairs.out_step)),
        ("y_distance", i32(pairs.out_distance)), ("slots", i32(slots)), ("slots_per_item", i32(per_item)),
    )  # fmt: skip
    return LaunchSpec(
        FILE, "rope_rotate_strided", tuple(options), (-(-slots // per_item), heads, batches * tokens),
        local_size_for(kind, 3), arguments, variant.text(FILE),
    )  # fmt: skip


def search(kind: str, dtype: str, pairing: Pairing) -> list[dict[str, Any]]:
    """Return what tuning tries."""
    return [{}]


def words(p: Parameters) -> str:
    """Return a short name."""
    return "strided"


KERNEL = Kernel("strided", __doc__ or "", PARAMETERS, FILE, supports, spec, words, search=search)
