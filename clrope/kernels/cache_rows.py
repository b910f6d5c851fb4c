"""Kernel `cache_rows`: rotation of q, and of k and v into the rows of a KV cache, in one pass, for contiguous heads."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..layout import DTYPES
from .kernel import Kernel, Parameters
from .launch import LaunchSpec, local_size_for, tensor_arguments, vector_arguments
from .norm_rows import PARAMETERS, divided, head_options, heads_unsupported, norm_arguments
from .norm_rows import order as order
from .problem import Problem, SlotForm
from .source import unsigned_type

if TYPE_CHECKING:
    from ..device import DeviceInfo
    from .variant import Variant

FILE = "cache_rows.cl"


def supports(problem: Problem, p: Parameters) -> str | None:
    """Return why the problem cannot be rotated with these parameters; None if it can."""
    if p["store"] == "nontemporal" and problem.slots is not None:
        return "nontemporal: the rows of a cache are anywhere"
    return heads_unsupported(problem, p)


def copies(v: Problem, p: Parameters) -> str | None:
    """Return why the values of a cache cannot be copied by these parameters; None if they can."""
    width = int(p["width"])
    if not (v.x.last_axis_dense and v.y.last_axis_dense):
        return "the last axis is not contiguous"
    return f"width: vectors do not divide a head of {v.shape[3]} elements" if v.shape[3] % width else None


def cache_options(dtype: str, slots: SlotForm) -> list[str]:
    """Return the options of `cache_storage.clh` for tensors of a type."""
    flags = {"ROUND_FIRST": dtype not in ("f32", slots.dtype), "SAME_TYPE": dtype == slots.dtype}
    bits = unsigned_type(DTYPES[slots.dtype].itemsize)
    return [f"-DCACHE_{slots.dtype.upper()}", f"-DCACHE_BITS={bits}", *(f"-D{k}={int(n)}" for k, n in flags.items())]


def spec(
    problem: Problem, variant: Variant, device: DeviceInfo, k: Problem | None = None, v: Problem | None = None
) -> LaunchSpec:
    """Return the launch for q, with k and v of the same batches and tokens; or for a cache alone, in place."""
    return _spec(problem, variant, device.kind, device.compute_units, k, v)


@lru_cache(maxsize=512)
def _spec(
    problem: Problem, variant: Variant, kind: str, units: int, k: Problem | None, v: Problem | None
) -> LaunchSpec:
    p = variant.parameters
    batches, tokens, heads, _ = problem.shape
    slots = problem.slots if k is None else k.slots
    assert slots is not None
    heads3, v_dim = (0, 1) if v is None else v.shape[2:]
    all_heads = heads + (0 if k is None else k.shape[2]) + heads3
    per_item, at_once = divided(problem, p, kind, units, all_heads)
    i32, i64, real = np.int32, np.int64, np.float32
    arguments: tuple[tuple[str, Any], ...] = (
        *vector_arguments(problem, k, p["angles"]),
        *tensor_arguments("x3", None if v is None else v.x_strides[:3]),
        *tensor_arguments("y3", None if v is None else v.y_strides[:3]), ("heads3", i32(heads3)),
        ("v_dim", i32(v_dim)), ("slots", None), ("page_size", i64(slots.page_size)), ("tokens_per_item", i32(at_once)),
        ("heads_per_item", i32(per_item)), ("direction", real(1)),
        *norm_arguments(problem, problem.dtype), *norm_arguments(k, problem.dtype, "2"),
    )  # fmt: skip
    options = [
        *head_options(problem, p), *cache_options(problem.dtype, slots), f"-DNORMED={int(problem.norm is not None)}",
        f"-DSHIFT={int(slots.from_cache)}",
    ]  # fmt: skip
    return LaunchSpec(
        FILE, "rope_cache_rows", tuple(options), (-(-tokens // at_once), -(-all_heads // per_item), batches),
        local_size_for(kind, 3), arguments,
    )  # fmt: skip


def words(p: Parameters) -> str:
    """Return a short name."""
    return f"cache_rows{p['width']} {p['access']} {p['angles']}"


KERNEL = Kernel("cache_rows", __doc__ or "", PARAMETERS, FILE, supports, spec, words, order)
