"""Kernel `cache_rows`: rotation of q, and of k and v into the rows of a KV cache, in one pass, for contiguous heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..layout import DTYPES
from .division import heads_launch
from .kernel import Kernel, Parameters
from .launch import LaunchSpec, head_tensors
from .norm_rows import FALLBACKS, PARAMETERS, loop_rounds, norm_arguments, normed_unsupported, options, over_heads
from .problem import Problem, SlotForm
from .source import unsigned_type

if TYPE_CHECKING:
    from ..device import DeviceInfo


def supports(problem: Problem, p: Parameters) -> str | None:
    """Return why the problem cannot be rotated with these parameters; None if it can."""
    if p["store"] == "nontemporal" and problem.slots is not None:
        return "nontemporal: the rows of a cache are anywhere"
    return normed_unsupported(problem, p)


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
    problem: Problem, p: Parameters, device: DeviceInfo, k: Problem | None = None, v: Problem | None = None
) -> LaunchSpec:
    """Return the launch for q, with k and v of the same batches and tokens; or for a cache alone, in place."""
    slots = problem.slots if k is None else k.slots
    assert slots is not None
    heads3, v_dim = (0, 1) if v is None else v.shape[2:]
    more: tuple[tuple[str, Any], ...] = (
        *norm_arguments(problem, k), *head_tensors("3", v), ("v_dim", np.int32(v_dim)), ("slots", None),
        ("page_size", np.int64(slots.page_size)),
    )  # fmt: skip
    numbers = {"NORMED": problem.norm is not None, "SHIFT": slots.from_cache}
    return heads_launch(
        "cache_rows.cl", "rope_cache_rows", (*options(problem, p, **numbers), *cache_options(problem.dtype, slots)),
        problem, k, p, device, loop_rounds(problem, p), more, heads3=heads3, whole=over_heads(problem),
    )  # fmt: skip


def words(p: Parameters) -> str:
    """Return a short name."""
    return f"cache_rows{p['width']} {p['access']} {p['angles']}"


KERNEL = Kernel("cache_rows", __doc__ or "", PARAMETERS, "cache_rows.cl", supports, spec, words, FALLBACKS)
