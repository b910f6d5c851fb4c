"""Kernel `lanes`: adjacent work-items handle adjacent vectors of 16 bytes, the same ones of several heads. For GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..layout import Shape4
from .kernel import Kernel, Parameter, Parameters, vectors_unsupported
from .launch import LaunchSpec, head_arguments, head_options
from .problem import Problem

if TYPE_CHECKING:
    from ..device import DeviceInfo

#: Bytes that a work-item loads or stores at once: the longest that GPUs have.
RUN_BYTES = 16
#: Work-items of a group, about: a multiple of what the device runs in step.
GROUP = 128

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
    for elements in (run, rest_of_head(problem)):
        if elements * size % RUN_BYTES:
            return f"{elements} elements of a head are no whole number of vectors of 16 bytes"
    alignment = min(problem.vector_alignments)
    return f"vectors of 16 bytes, the tensors are aligned to {alignment}" if alignment < RUN_BYTES else None


def rest_of_head(problem: Problem) -> int:
    """Return the elements of a head that are written but not rotated."""
    return 0 if problem.in_place and problem.norm is None else problem.pairs.rest


def lanes_of_head(problem: Problem) -> int:
    """Return the work-items that a head is divided among."""
    pairs, run = problem.pairs, RUN_BYTES // problem.itemsize
    rotating = 2 * pairs.pairs // run if pairs.pairing == "normal" else pairs.pairs // run
    return rotating + rest_of_head(problem) // run


def _last_place(shape: Shape4, strides: Shape4) -> int:
    return sum(abs(stride) * (length - 1) for stride, length in zip(strides, shape, strict=True))


def division(
    problem: Problem, second: Problem | None, heads_per_item: int, local: int, device: DeviceInfo
) -> tuple[int, int, str]:
    """Return the groups of heads of a token, a batch's work-items by groups of `local`, and the type of indices."""
    _, tokens, heads, _ = problem.shape
    lanes = lanes_of_head(problem)
    heads += 0 if second is None else second.shape[2]
    # As many heads side by side as work-items in step have lanes for.
    groups = max(-(-heads // heads_per_item), min(heads, -(-device.group_multiple // lanes)))
    items = -(-tokens * groups * lanes // local) * local
    both = (problem,) if second is None else (problem, second)
    last = max(_last_place(one.shape, strides) for one in both for strides in (one.x_strides, one.y_strides))
    return groups, items, "int" if max(last, items) < 1 << 31 else "long"


def spec(problem: Problem, p: Parameters, device: DeviceInfo, second: Problem | None = None) -> LaunchSpec:
    """Return the launch; second: another tensor with the same batches, tokens and pairs, rotated by it, too."""
    multiple = device.group_multiple
    local = min(max(multiple, GROUP // multiple * multiple), device.max_work_group_size or GROUP)
    groups, items, index = division(problem, second, p["heads_per_item"], local, device)
    options = lane_options(
        problem, p, index, COPY_REST=rest_of_head(problem) > 0, FULL_TABLES=problem.angles.full_tables
    )
    arguments = (
        *head_arguments(problem, second, p["angles"]),
        ("groups", np.int32(groups)),
        ("direction", problem.direction),
    )
    return LaunchSpec("lanes.cl", "rope_rotate_lanes", options, (items, problem.shape[0]), (local, 1), arguments)


def lane_options(problem: Problem, p: Parameters, index: str, **numbers: Any) -> tuple[str, ...]:
    """Return the compiler's options of kernels that divide heads among work-items."""
    run = RUN_BYTES // problem.itemsize
    width = run // 2 if problem.pairs.pairing == "normal" else run
    return (*head_options(problem, p, width, RUN=run, **numbers), f"-DINDEX={index}")


def search(kind: str, dtype: str) -> list[dict[str, Any]]:
    """Return what tuning tries."""
    if kind == "cpu":
        return [{}]
    return [{"heads_per_item": heads, "angles": angles} for heads in (1, 2, 4, 8, 16) for angles in ("cached", "fused")]


def words(p: Parameters) -> str:
    """Return a short name."""
    return f"lanes {p['angles']} heads<={p['heads_per_item']}"


KERNEL = Kernel(
    "lanes", __doc__ or "", PARAMETERS, "lanes.cl", supports, spec, words, {"angles": "cached"}, search,
    takes_second=True,
)  # fmt: skip
