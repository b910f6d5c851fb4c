"""Kernel `rows`: whole heads by vectors, for heads whose elements are contiguous. The fastest on CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..layout import LONGEST_AXIS, Shape4
from .division import MOST_ROUNDS, heads_per_item, tokens_per_item, within_rounds
from .kernel import Kernel, Parameter, Parameters, Unsupported
from .launch import LaunchSpec, local_size_for, tensor_arguments
from .problem import Pairing, Problem
from .source import kernel_source, storage_option

if TYPE_CHECKING:
    from ..device import DeviceInfo
    from .variant import Variant

#: Pairs up to which cos and sin of a token are kept in a work-item's private memory.
MOST_PREPARED = 1024
#: Bytes of prefetching that are tried: the best on AVX-512 from memory (docs/performance.md); elsewhere 2 to 8 KiB were
#: equally good.
PREFETCH = 4096
#: The same for 'nta': 8 to 12 KiB were best out of place on AMD's Zen 5, in place 4 and 8 alike.
PREFETCH_NTA = 8192
#: Bytes of the shortest vectors for which a processor has non-temporal stores.
LEAST_STREAMED = 16
#: Bytes of private memory in which 'staged' gathers heads, if one head is not longer: the best of 0.5 to 8 KiB.
STAGED_BYTES = 1 << 10
#: Bytes of the longest head that it gathers.
MOST_STAGED = 8 << 10

PARAMETERS = (
    Parameter("width", 4, "elements of a vector", (1, 2, 4, 8, 16)),
    Parameter(
        "access", "builtin",
        "`builtin`: OpenCL's functions; `clang`: pointers to vectors and clang's conversions, for drivers that compile "
        "the functions to calls", ("builtin", "clang"),
    ),
    Parameter(
        "store", "plain",
        "`nontemporal`: stores that bypass the caches, for outputs aligned to the vector; `staged`: heads are "
        "gathered in private memory and stored by whole cache lines", ("plain", "nontemporal", "staged"),
    ),
    Parameter(
        "prepared", False, "compile the shape of a head in, and put cos and sin into the order of the vectors once per "
        "token, for all its heads", (False, True),
    ),
    Parameter(
        "heads_per_item", 0, "heads of a token in one work-item, at most; 0: by the number of tokens", compiled=False
    ),
    Parameter("prefetch", 0, "bytes ahead of a head that are prefetched (with `prepared`); 0: none", most=1 << 20),
    Parameter(
        "prefetch_kind", "levels", "`levels`: into the second-level cache, and from half as far ahead into the first; "
        "`nta`: into the first only (x86's PREFETCHNTA)", ("levels", "nta"),
    ),
    Parameter(
        "nan", "any", "bf16: `plain` has no case for NaNs with lower bits set, which x86 never makes; not with the "
        "caller's own tables, which may hold them", ("any", "plain"),
    ),
    Parameter(
        "angles", "cached", "`cached`: cos and sin come from tables; `fused`: each work-item computes those of its "
        "tokens (with `prepared`)", ("cached", "fused"),
    ),
)  # fmt: skip


class RowsReason(Enum):
    """Why a problem is unsupported; the value is the message."""

    PAIRING = "the pairs of input and output are at different places, only 'strided' can do that"
    LAST_AXIS = "the last axis is not contiguous, only 'strided' can do that"
    TABLES = "fused: the angles are not a configuration's exact ones"
    NANS = "plain: the caller's tables may hold NaNs with lower bits set"
    FUSED_WIDTH = "fused: needs `prepared`, and pairs ({pairs}) that the width ({width}) divides"
    FULL_TABLES = "prepared: the tables hold cos and sin for both elements of a pair"
    TOO_MANY_PAIRS = "prepared: {pairs} pairs, at most {most} are kept in private memory"
    SCALAR = "prepared: needs a width of 2 or more"
    ODD_PLACES = "prepared: bf16 is read two at a time, which needs even places"
    HEADS_APART = "staged: the output's heads are not contiguous"
    LONG_HEAD = "staged: a head of {head_dim} elements is more than {most} bytes"
    REST_IN_PLACE = "staged: in place, the rest of a head stays where it is"
    ALIGNMENT = "nontemporal: vectors of {size} bytes, the output is aligned to {alignment}"
    WIDE_NEIGHBOURS = "width: 16 pairs of neighbours would be a vector of 32"
    FEW_PAIRS = "width: {pairs} pairs do not fill one round of {round} pairs"
    ROUNDS = "a head of {head_dim} elements takes {rounds} rounds of loops, a work-item makes at most {most}"


_TO_STRIDED = {RowsReason.PAIRING, RowsReason.LAST_AXIS, RowsReason.ROUNDS}
_TO_CACHED = {RowsReason.TABLES, RowsReason.FUSED_WIDTH}
_TO_UNPREPARED = {RowsReason.FULL_TABLES, RowsReason.TOO_MANY_PAIRS, RowsReason.SCALAR, RowsReason.ODD_PLACES}
_TO_NONTEMPORAL = {RowsReason.HEADS_APART, RowsReason.LONG_HEAD, RowsReason.REST_IN_PLACE}


def files(pairing: Pairing) -> tuple[str, ...]:
    """Return the programs under `kernels/`."""
    return (f"rotate_{pairing}.cl",)


def _doubled(p: Parameters, dtype: str, pairing: Pairing, pairs: int) -> bool:
    """Whether a round of the prepared loop is twice as many elements: two of 16 bits in a lane of 32."""
    if p["store"] == "nontemporal":
        return dtype == "bf16" or (dtype == "f16" and p["access"] == "clang")
    return dtype == "bf16" and (pairing == "normal" or pairs >= 2 * p["width"])


def round_pairs(p: Parameters, dtype: str, pairing: Pairing, pairs: int) -> int:
    """Return the pairs, of so many of a head, that one round of the vector loop rotates."""
    if not p["prepared"]:
        return int(p["width"])
    elements = p["width"] * (2 if _doubled(p, dtype, pairing, pairs) else 1)
    return max(1, elements // 2) if pairing == "normal" else int(elements)


def store_bytes(p: Parameters, problem: Problem) -> int:
    """Return the bytes of the widest vector that is stored at once."""
    pairing = problem.pairs.pairing or "neox"
    doubled = _doubled(p, problem.dtype, pairing, problem.pairs.pairs) if p["prepared"] else pairing == "normal"
    return int(p["width"]) * problem.itemsize * (2 if doubled else 1)


def supports(problem: Problem, p: Parameters) -> Unsupported | None:
    """Return why the problem cannot be rotated with these parameters; None if it can."""
    pairs, dtype = problem.pairs, problem.dtype
    if pairs.pairing is None:
        return Unsupported(RowsReason.PAIRING)
    if not (problem.x.last_axis_dense and problem.y.last_axis_dense):
        return Unsupported(RowsReason.LAST_AXIS)
    if p["angles"] == "fused":
        if not problem.angles.exact:
            return Unsupported(RowsReason.TABLES)
        if not p["prepared"] or pairs.pairs % p["width"]:
            return Unsupported(RowsReason.FUSED_WIDTH, {"pairs": pairs.pairs, "width": p["width"]})
    if p["nan"] == "plain" and dtype == "bf16" and problem.angles.callers:
        return Unsupported(RowsReason.NANS)
    if p["prepared"] and (unsupported := _unprepared(problem, p)):
        return unsupported
    if p["store"] == "staged" and (unsupported := _unstaged(problem)):
        return unsupported
    if p["store"] == "nontemporal":
        size, alignment = store_bytes(p, problem), problem.vector_alignment(problem.y_strides, problem.y_alignment)
        if alignment % size:
            return Unsupported(RowsReason.ALIGNMENT, {"size": size, "alignment": alignment})
    if p["width"] == 16 and not p["prepared"] and pairs.pairing == "normal":
        return Unsupported(RowsReason.WIDE_NEIGHBOURS)
    in_a_round = round_pairs(p, dtype, pairs.pairing, pairs.pairs)
    if p["width"] > 1 and in_a_round > pairs.pairs:
        return Unsupported(RowsReason.FEW_PAIRS, {"pairs": pairs.pairs, "round": in_a_round})
    rounds = sum(_rounds(problem, p))
    if rounds > MOST_ROUNDS:
        return Unsupported(RowsReason.ROUNDS, {"head_dim": pairs.head_dim, "rounds": rounds, "most": MOST_ROUNDS})
    return None


def _rounds(problem: Problem, p: Parameters) -> tuple[int, int]:
    """Return how many rounds of loops a head takes at most, and besides a token, each loop's end counted as one."""
    pairs, width = problem.pairs, int(p["width"])
    lines = pairs.head_dim * problem.itemsize // 64 + 1
    in_a_round = round_pairs(p, problem.dtype, pairs.pairing or "neox", pairs.pairs)
    head = 8 + pairs.pairs // in_a_round + (0 if p["prepared"] else pairs.pairs % width)
    token = 12 + (3 * pairs.pairs // width if p["prepared"] else 0)
    if pairs.rest and not problem.in_place:
        head += 6 + pairs.rest // width
    if p["prefetch"]:
        head += lines
    if p["store"] == "staged":
        head, token = head + lines + 4, token + 2 * (64 // problem.itemsize) + 8
    if p["angles"] == "fused" and not problem.angles.one_axis:
        token += 2 * pairs.pairs
    return head, token


def _unprepared(problem: Problem, p: Parameters) -> Unsupported | None:
    if problem.angles.full_tables:
        return Unsupported(RowsReason.FULL_TABLES)
    if problem.pairs.pairs > MOST_PREPARED:
        return Unsupported(RowsReason.TOO_MANY_PAIRS, {"pairs": problem.pairs.pairs, "most": MOST_PREPARED})
    if p["width"] == 1:
        return Unsupported(RowsReason.SCALAR)
    tensors = ((problem.x_strides, problem.x_alignment), (problem.y_strides, problem.y_alignment))
    if problem.dtype == "bf16" and any(problem.vector_alignment(*tensor) % 4 for tensor in tensors):
        return Unsupported(RowsReason.ODD_PLACES)
    return None


def _unstaged(problem: Problem) -> Unsupported | None:
    head_dim = problem.shape[3]
    launched, _ = _one_batch(problem, None)  # batches that become heads have to be contiguous, too
    if launched.shape[2] > 1 and launched.y_strides[2] != head_dim:
        return Unsupported(RowsReason.HEADS_APART)
    if problem.itemsize * head_dim > MOST_STAGED:
        return Unsupported(RowsReason.LONG_HEAD, {"head_dim": head_dim, "most": MOST_STAGED})
    if problem.in_place and problem.pairs.rest:
        return Unsupported(RowsReason.REST_IN_PLACE)
    return None


def fallback(problem: Problem, variant: Variant, unsupported: Unsupported) -> Variant:
    """Return a variant with the one thing changed that the reason is about.

    'strided' for other strides and pairings, and for heads of too many rounds; 'cached' angles; 'any' `nan`; not
    `prepared` ('normal' at half the width, so that vectors stay as long); `store` from 'staged' to 'nontemporal', from
    that to 'staged' where it can be, else to half the width while vectors are longer than 16 bytes, at last to 'plain';
    else half the width.
    """
    reason, p = unsupported.reason, variant.parameters
    if reason in _TO_STRIDED:
        return variant.of_kernel("strided")
    if reason in _TO_CACHED:
        return variant.changed(angles="cached")
    if reason is RowsReason.NANS:
        return variant.changed(nan="any")
    if reason in _TO_UNPREPARED:
        halved = problem.pairs.pairing == "normal" and p["width"] > 1
        return variant.changed(
            prepared=False, prefetch=0, prefetch_kind="levels", angles="cached",
            width=p["width"] // 2 if halved else p["width"],
        )  # fmt: skip
    if reason in _TO_NONTEMPORAL:
        return variant.changed(store="nontemporal")
    if reason is RowsReason.ALIGNMENT:
        if not _unstaged(problem):
            return variant.changed(store="staged")
        # Shorter non-temporal stores are still better than long plain ones, down to 16 bytes.
        shorter = unsupported.numbers["alignment"] >= LEAST_STREAMED and unsupported.numbers["size"] > LEAST_STREAMED
        return variant.changed(width=p["width"] // 2) if shorter else variant.changed(store="plain")
    return variant.changed(width=p["width"] // 2)


def options(problem: Problem, p: Parameters) -> tuple[str, ...]:
    """Return the compiler's options."""
    pairs, angles, dtype = problem.pairs, problem.angles, problem.dtype
    out = [storage_option(dtype), f"-DW={p['width']}"]
    if p["prepared"]:
        out += [f"-DPAIRS={pairs.pairs}", f"-DHEAD_DIM={pairs.head_dim}", f"-DWINDOW={pairs.window}"]
        if p["prefetch"]:
            out.append(f"-DPREFETCH={p['prefetch']}")
            if p["prefetch_kind"] == "nta":
                out.append("-DPREFETCH_NTA")
    if p["access"] == "clang":
        out.append("-DCLANG_VECTORS")
    if p["store"] == "nontemporal":
        out.append("-DNONTEMPORAL")
    if p["store"] == "staged":
        head = -(-pairs.head_dim * problem.itemsize // 64) * 64
        out.append(f"-DSTAGED={max(STAGED_BYTES, head)}")
    if p["angles"] == "fused":
        out.append("-DFUSED")
    if p["nan"] == "plain" and dtype == "bf16":
        out.append("-DPLAIN_NAN")
    if angles.full_tables:
        out.append("-DFULL_TABLES")
    if p["angles"] == "fused":
        # Steps of 64 bits are not enough for double.
        out += replace(angles, wide=angles.wide or dtype == "f64").options
    return tuple(out)


def spec(problem: Problem, variant: Variant, device: DeviceInfo, second: Problem | None = None) -> LaunchSpec:
    """Return the launch; second: another tensor with the same batches, tokens and pairs, rotated by it, too."""
    return _spec(problem, variant, device.kind, device.compute_units, second)


@lru_cache(maxsize=512)
def _spec(problem: Problem, variant: Variant, kind: str, units: int, second: Problem | None) -> LaunchSpec:
    p, pairs = variant.parameters, problem.pairs
    first, second = _one_batch(problem, second)
    batches, tokens, heads, head_dim = first.shape
    heads2 = 0 if second is None else second.shape[2]
    all_heads, head_bytes = heads + heads2, head_dim * first.itemsize
    per_item = min(all_heads, p["heads_per_item"])
    per_item = per_item or heads_per_item(kind, units, batches * tokens, all_heads, head_bytes)
    at_once = min(tokens, tokens_per_item(kind, units, batches * tokens, all_heads, per_item, head_bytes))
    per_item, at_once = within_rounds(per_item, at_once, *_rounds(problem, p))
    i32, i64, real = np.int32, np.int64, np.float64 if problem.dtype == "f64" else np.float32
    table: tuple[tuple[str, Any], ...] = (("cosine", None), ("sine", None))
    if p["angles"] == "fused":
        table = tuple((n, None) for n in ("positions", "rows", "step", "step_low", "axis", "magnitude"))
    arguments = (
        *tensor_arguments("x", first.x_strides[:3]), *tensor_arguments("y", first.y_strides[:3]), ("heads", i32(heads)),
        *tensor_arguments("x2", None if second is None else second.x_strides[:3]),
        *tensor_arguments("y2", None if second is None else second.y_strides[:3]), ("heads2", i32(heads2)),
        *table,
        ("row_stride", i64(first.row_stride)), ("tokens", i32(tokens)), ("tokens_per_item", i32(at_once)),
        ("heads_per_item", i32(per_item)), ("pairs_given", i32(pairs.pairs)), ("window_given", i32(pairs.window)),
        ("head_dim_given", i32(head_dim)), ("direction", real(1 if problem.forward else -1)),
        ("copy_rest", i32(0 if problem.in_place or not pairs.rest else 1)),
    )  # fmt: skip
    pairing = pairs.pairing
    assert pairing is not None, "an unsupported problem"
    (file,) = files(pairing)
    return LaunchSpec(
        file, f"rope_rotate_{pairing}", options(problem, p),
        (-(-tokens // at_once), -(-all_heads // per_item), batches), local_size_for(kind, 3), arguments,
        kernel_source(file, Path(variant.folder)) if variant.folder else None,
    )  # fmt: skip


def _one_batch(problem: Problem, second: Problem | None) -> tuple[Problem, Problem | None]:
    """Fold the batch axis into tokens or heads where the strides allow it.

    Batches become tokens where each has rows of positions of its own and its tokens follow those of the batch before;
    they become heads where each is one token at the same position and its heads follow. A work-item then rotates
    several: in a decode step each token is a batch.
    """
    batches, tokens = problem.shape[:2]
    if batches == 1:
        return problem, second
    both = (problem,) if second is None else (problem, second)
    views = [view for one in both for view in (one.x, one.y)]
    tokens_continue = tokens == 1 or all(view.strides[0] == tokens * view.strides[1] for view in views)
    if problem.row_stride == tokens and tokens_continue and batches * tokens <= LONGEST_AXIS:
        return _each(both, _as_tokens)
    heads_continue = tokens == 1 and all(view.strides[0] == view.shape[2] * view.strides[2] for view in views)
    if problem.row_stride == 0 and heads_continue and batches * sum(one.shape[2] for one in both) <= LONGEST_AXIS:
        return _each(both, _as_heads)
    return problem, second


def _each(problems: tuple[Problem, ...], change: Any) -> tuple[Problem, Problem | None]:
    first, *others = (change(problem) for problem in problems)
    return first, others[0] if others else None


def _as_tokens(problem: Problem) -> Problem:
    batches, tokens, heads, head_dim = problem.shape

    def joined(strides: Shape4) -> Shape4:
        return 0, strides[0 if tokens == 1 else 1], strides[2], strides[3]

    return replace(
        problem, shape=(1, batches * tokens, heads, head_dim),
        x_strides=joined(problem.x_strides), y_strides=joined(problem.y_strides),
    )  # fmt: skip


def _as_heads(problem: Problem) -> Problem:
    batches, _, heads, head_dim = problem.shape
    return replace(
        problem, shape=(1, 1, batches * heads, head_dim),
        x_strides=(0, 0, *problem.x_strides[2:]), y_strides=(0, 0, *problem.y_strides[2:]),
    )  # fmt: skip


def search(kind: str, dtype: str, pairing: Pairing) -> list[dict[str, Any]]:
    """Return what tuning tries; what is not listed never won on the devices at hand, or has no meaning there."""
    if kind != "cpu":
        # Many small work-items, with short vectors.
        out: list[dict[str, Any]] = [{"width": w, "heads_per_item": heads} for w in (2, 4, 8) for heads in (0, 4)]
        out += [{"width": 4, "prepared": True, "heads_per_item": heads} for heads in (4, 1 << 16)]
        return [*out, {"width": 4, "prepared": True, "heads_per_item": 1 << 16, "angles": "fused"}]
    # The widths with vectors of 16, 32 and 64 bytes of the computing type; neighbours are loaded two at a time.
    whole = (2, 4, 8) if dtype == "f64" else (4, 8, 16)
    halves = tuple(width // 2 for width in whole) if pairing == "normal" else whole
    both = ("builtin", "clang")
    out = [{"width": width, "access": access} for width in halves for access in both]
    # All heads of a token in one work-item, however few tokens there are: fewer, longer work-items.
    out += [{"width": halves[1], "access": access, "heads_per_item": 1 << 16} for access in both]
    out += [{"width": width, "access": access, "prepared": True} for width in whole[1:] for access in both]
    for width in whole:
        out.append({"width": width, "access": "clang", "prepared": True, "store": "nontemporal"})
        if width > whole[0] and dtype != "f16":  # vstore_half cannot be non-temporal
            out.append({"width": width, "prepared": True, "store": "nontemporal"})
    out += [_with(p, prefetch=PREFETCH) for p in out if p.get("prepared") and p["width"] in whole[1:]]
    # Where single vectors could be stored non-temporally this is hardly ever faster; it is for where they cannot.
    staged: dict[str, Any] = {"access": "clang", "prepared": True, "store": "staged", "prefetch": PREFETCH}
    out += [{"width": width, **staged} for width in whole[1:]]
    out.append({"width": whole[1], "prepared": True, "store": "staged"})
    out += [
        _with(p, prefetch=PREFETCH_NTA, prefetch_kind="nta")
        for p in out if p.get("prefetch") and p.get("access") == "clang"
    ]  # fmt: skip
    if dtype == "bf16":
        out += [_with(p, nan="plain") for p in out if p.get("prepared")]
    # Without tables: less to read, more to compute. Without prefetching for tensors that are in a cache.
    out += [
        _with(p, angles="fused") for p in out
        if p["width"] in whole[1:] and p.get("access") == "clang" and p.get("prepared")
        and (p.get("prefetch") if p.get("store") == "nontemporal" else p.get("store") != "staged")
    ]  # fmt: skip
    return out


def _with(parameters: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    return {**parameters, **changes}


def words(p: Parameters) -> str:
    """Return a short name."""
    out = [f"rows{p['width']}", p["access"]]
    if p["prepared"]:
        out.append("prepared")
    if p["store"] != "plain":
        out.append(p["store"])
    if p["prefetch"]:
        out.append(f"prefetch{p['prefetch']}")
        if p["prefetch_kind"] == "nta":
            out.append("nta")
    if p["nan"] == "plain":
        out.append("plain-nan")
    if p["angles"] == "fused":
        out.append("fused")
    if p["heads_per_item"]:
        out.append(f"heads<={p['heads_per_item']}")
    return " ".join(out)


KERNEL = Kernel(
    "rows", __doc__ or "", PARAMETERS, files, supports, fallback, spec, search, words, takes_second=True
)  # fmt: skip
