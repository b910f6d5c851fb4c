"""Kernel `lanes`: adjacent work-items handle adjacent vectors of 16 bytes, the same ones of several heads. For GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..layout import Shape4
from .kernel import Kernel, Parameter, Parameters, vectors_unsupported
from .launch import LaunchSpec, vector_arguments
from .problem import Pairing, Problem
from .source import storage_options

if TYPE_CHECKING:
    from ..device import DeviceInfo
    from .variant import Variant

FILE = "lanes.cl"
#: Bytes that a work-item loads or stores at once: the longest that GPUs have.
RUN_BYTES = 16
#: Work-items of a group, about: a multiple of what the device runs in step.
_GROUP = 128

PARAMETERS = (
    Parameter(
        "heads_per_item", 4, "heads of a token for which a work-item uses its cos and sin", (1, 2, 4, 8, 16),
        compiled=False,
    ),
    Parameter(
        "angles", "fused", "`cached`: cos and sin come from tables; `fused`: each work-item computes its own",
        ("cached", "fused"),
    ),
)  # fmt: skip


def supports(problem: Problem, p: Parameters) -> str | None:
    """Return why the problem cannot be rotated with these parameters; None if it can."""
    pairs, size = problem.pairs, problem.itemsize
    reason = vectors_unsupported(problem, p)
    if reason is not None:
        return reason
    run = 2 * pairs.pairs if pairs.pairing == "normal" else pairs.pairs
    for elements in (run, 0 if problem.in_place else pairs.rest):
        if elements * size % RUN_BYTES:
            return f"{elements} elements of a head are no whole number of vectors of 16 bytes"
    alignment = min(
        problem.vector_alignment(problem.x_strides, problem.x_alignment),
        problem.vector_alignment(problem.y_strides, problem.y_alignment),
    )
    return f"vectors of 16 bytes, the tensors are aligned to {alignment}" if alignment < RUN_BYTES else None


def order(p: Parameters) -> Iterator[Parameters]:
    """Yield these parameters, then with tables: the first that supports a problem is used."""
    yield p
    yield {**p, "angles": "cached"}


def lanes_of_head(problem: Problem) -> int:
    """Return the work-items that a head is divided among."""
    pairs, run = problem.pairs, RUN_BYTES // problem.itemsize
    copied = 0 if problem.in_place else pairs.rest
    return (2 * pairs.pairs // run if pairs.pairing == "normal" else pairs.pairs // run) + copied // run


def _last_place(shape: Shape4, strides: Shape4) -> int:
    return sum(abs(stride) * (length - 1) for stride, length in zip(strides, shape, strict=True))


def options(problem: Problem, p: Parameters, index: str) -> tuple[str, ...]:
    """Return the compiler's options."""
    pairs, angles, fused = problem.pairs, problem.angles, p["angles"] == "fused"
    run = RUN_BYTES // problem.itemsize
    numbers = {
        "PAIRS": pairs.pairs, "HEAD_DIM": pairs.head_dim, "WINDOW": pairs.window,
        "NEIGHBOURS": pairs.pairing == "normal", "COPY_REST": bool(pairs.rest and not problem.in_place),
        "FUSED": fused, "FULL_TABLES": angles.full_tables, "RUN": run,
    }  # fmt: skip
    width = run // 2 if pairs.pairing == "normal" else run
    out = [*storage_options(problem.dtype, width), *(f"-D{name}={int(n)}" for name, n in numbers.items())]
    out.append(f"-DINDEX={index}")
    if fused:
        # Steps of 64 bits are not enough for double.
        out += replace(angles, wide=angles.wide or problem.dtype == "f64").options
    return tuple(out)


def spec(problem: Problem, variant: Variant, device: DeviceInfo, second: Problem | None = None) -> LaunchSpec:
    """Return the launch; second: another tensor with the same batches, tokens and pairs, rotated by it, too."""
    multiple = device.group_multiple
    local = min(max(multiple, _GROUP // multiple * multiple), device.max_work_group_size or _GROUP)
    return _spec(problem, variant, local, multiple, second)


@lru_cache(maxsize=512)
def _spec(problem: Problem, variant: Variant, local: int, multiple: int, second: Problem | None) -> LaunchSpec:
    p = variant.parameters
    batches, tokens, heads, _ = problem.shape
    heads2 = 0 if second is None else second.shape[2]
    lanes = lanes_of_head(problem)
    # As many heads side by side as work-items in step have lanes for.
    groups = max(-(-(heads + heads2) // p["heads_per_item"]), min(heads + heads2, -(-multiple // lanes)))
    items = -(-tokens * groups * lanes // local) * local
    both = (problem,) if second is None else (problem, second)
    last = max(_last_place(one.shape, strides) for one in both for strides in (one.x_strides, one.y_strides))
    i32, real = np.int32, np.float64 if problem.dtype == "f64" else np.float32
    arguments: tuple[tuple[str, Any], ...] = (
        *vector_arguments(problem, second, p["angles"]), ("groups", i32(groups)),
        ("direction", real(1 if problem.forward else -1)),
    )  # fmt: skip
    return LaunchSpec(
        FILE, "rope_rotate_lanes", options(problem, p, "int" if max(last, items) < 1 << 31 else "long"),
        (items, batches), (local, 1), arguments, variant.text(FILE),
    )  # fmt: skip


def search(kind: str, dtype: str, pairing: Pairing) -> list[dict[str, Any]]:
    """Return what tuning tries."""
    if kind == "cpu":
        return [{}]
    return [{"heads_per_item": heads, "angles": angles} for heads in (1, 2, 4, 8, 16) for angles in ("cached", "fused")]


def words(p: Parameters) -> str:
    """Return a short name."""
    return f"lanes {p['angles']} heads<={p['heads_per_item']}"


KERNEL = Kernel("lanes", __doc__ or "", PARAMETERS, FILE, supports, spec, words, order, search, takes_second=True)
