"""Kernel `tiled`: heads travel through two tiles of local memory by asynchronous copies (scratchpads)."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .division import heads_per_item, within_rounds
from .kernel import Kernel, Parameter, Parameters, Unsupported
from .launch import LaunchSpec, LocalBytes, tensor_arguments
from .problem import Pairing, Problem
from .source import kernel_source, storage_option

if TYPE_CHECKING:
    from ..device import DeviceInfo
    from .variant import Variant

#: Bytes of local memory that the two tiles share; a row of cos and sin comes on top. Half of what every device has at
#: least (CL_DEVICE_LOCAL_MEM_SIZE is 32 KiB or more on a full profile).
TILES_BYTES = 16 << 10
#: Work-items of a group that shares tiles. On CPUs one would be enough, but PoCL's compiler fails on groups of one
#: that wait for a copy in a loop (`docs/drivers.md`).
_GROUP = {"cpu": 4, "gpu": 64}

PARAMETERS = (
    Parameter("width", 4, "elements of a vector", (1, 2, 4, 8, 16)),
    Parameter(
        "heads_per_item", 0, "heads of a token in one work-group, at most; 0: by the number of tokens", compiled=False
    ),
)  # fmt: skip


class TiledReason(Enum):
    """Why a problem is unsupported; the value is the message."""

    PAIRING = "the pairs of input and output are at different places, only 'strided' can do that"
    LAST_AXIS = "the last axis is not contiguous, only 'strided' can do that"
    TILE = "two heads of {head_dim} elements are more than {most} bytes of local memory"
    WIDE_NEIGHBOURS = "width: 16 pairs of neighbours would be a vector of 32"
    FEW_PAIRS = "width: {pairs} pairs do not fill a vector of {width}"


def files(pairing: Pairing) -> tuple[str, ...]:
    """Return the programs under `kernels/`."""
    return (f"rotate_{pairing}.cl",)


def supports(problem: Problem, p: Parameters) -> Unsupported | None:
    """Return why the problem cannot be rotated with these parameters; None if it can."""
    pairs = problem.pairs
    if pairs.pairing is None:
        return Unsupported(TiledReason.PAIRING)
    if not (problem.x.last_axis_dense and problem.y.last_axis_dense):
        return Unsupported(TiledReason.LAST_AXIS)
    if 2 * problem.itemsize * pairs.head_dim > TILES_BYTES:
        return Unsupported(TiledReason.TILE, {"head_dim": pairs.head_dim, "most": TILES_BYTES})
    if p["width"] == 16 and pairs.pairing == "normal":
        return Unsupported(TiledReason.WIDE_NEIGHBOURS)
    if p["width"] > 1 and p["width"] > pairs.pairs:
        return Unsupported(TiledReason.FEW_PAIRS, {"pairs": pairs.pairs, "width": p["width"]})
    return None


def fallback(problem: Problem, variant: Variant, unsupported: Unsupported) -> Variant:
    """Return 'strided' for other strides and pairings, 'rows' for long heads, else half the width."""
    if unsupported.reason in (TiledReason.PAIRING, TiledReason.LAST_AXIS):
        return variant.of_kernel("strided")
    if unsupported.reason is TiledReason.TILE:
        return variant.of_kernel("rows", "width", "heads_per_item")
    return variant.changed(width=variant.width // 2)


def spec(problem: Problem, variant: Variant, device: DeviceInfo, second: Problem | None = None) -> LaunchSpec:
    """Return the launch."""
    assert second is None, "one tensor a launch"
    return _spec(problem, variant, device.kind, device.compute_units)


@lru_cache(maxsize=512)
def _spec(problem: Problem, variant: Variant, kind: str, units: int) -> LaunchSpec:
    p, pairs, full = variant.parameters, problem.pairs, problem.angles.full_tables
    batches, tokens, heads, head_dim = problem.shape
    head_bytes = head_dim * problem.itemsize
    per_item = min(heads, p["heads_per_item"]) or heads_per_item(kind, units, batches * tokens, heads, head_bytes)
    group = _GROUP.get(kind, _GROUP["gpu"])
    per_item, _ = within_rounds(per_item, 1, *_rounds(problem, p, group))
    # Two tiles at least for a work-group, where there are as many heads: with one nothing would overlap.
    tile_heads = min(max(1, per_item // 2), TILES_BYTES // 2 // head_bytes)
    f64 = problem.dtype == "f64"
    row_bytes = pairs.pairs * (2 if full else 1) * (8 if f64 else 4)
    i32, i64, real = np.int32, np.int64, np.float64 if f64 else np.float32
    options = [storage_option(problem.dtype), f"-DW={p['width']}", "-DTILED"]
    options += ["-DFULL_TABLES"] if full else []
    arguments: tuple[tuple[str, Any], ...] = (
        *tensor_arguments("x", problem.x_strides[:3]), *tensor_arguments("y", problem.y_strides[:3]),
        ("heads", i32(heads)), ("cosine", None), ("sine", None), ("row_stride", i64(problem.row_stride)),
        ("heads_per_item", i32(per_item)), ("pairs", i32(pairs.pairs)), ("window", i32(pairs.window)),
        ("head_dim", i32(head_dim)), ("direction", real(1 if problem.forward else -1)),
        ("tile_heads", i32(tile_heads)), ("tiles", LocalBytes(2 * tile_heads * head_bytes)),
        ("table", LocalBytes(2 * row_bytes)),
    )  # fmt: skip
    pairing = pairs.pairing
    assert pairing is not None, "an unsupported problem"
    (file,) = files(pairing)
    return LaunchSpec(
        file, f"rope_rotate_{pairing}", tuple(options), (tokens * group, -(-heads // per_item), batches),
        (group, 1, 1), arguments, kernel_source(file, Path(variant.folder)) if variant.folder else None,
    )  # fmt: skip


def _rounds(problem: Problem, p: Parameters, group: int) -> tuple[int, int]:
    """Return how many rounds of loops a head takes at most, and besides a token; drivers copy by loops, too."""
    pairs, width = problem.pairs, int(p["width"])
    rotations = -(-pairs.pairs // width) // group + 1
    return 12 + 2 * (pairs.head_dim // group + 2) + rotations * (2 + width), 24 + 4 * (pairs.pairs // group + 2)


def search(kind: str, dtype: str, pairing: Pairing) -> list[dict[str, Any]]:
    """Return what tuning tries."""
    if kind == "cpu":
        width = (4 if dtype == "f64" else 8) // (2 if pairing == "normal" else 1)
        return [{"width": width}]
    return [{"width": width, "heads_per_item": heads} for width in (1, 2, 4) for heads in (8, 1 << 16)]


def words(p: Parameters) -> str:
    """Return a short name."""
    text = f"tiled{p['width']}"
    return f"{text} heads<={p['heads_per_item']}" if p["heads_per_item"] else text


KERNEL = Kernel("tiled", __doc__ or "", PARAMETERS, files, supports, fallback, spec, search, words)
