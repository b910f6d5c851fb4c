"""Kernel `rows`: whole heads by vectors, for heads whose elements are contiguous. The fastest on CPUs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..layout import DTYPES, LONGEST_AXIS, Shape4
from .division import MOST_ROUNDS, heads_per_item, tokens_per_item, within_rounds
from .kernel import Kernel, Parameter, Parameters, vectors_unsupported
from .launch import LaunchSpec, local_size_for, vector_arguments
from .problem import Pairing, Problem
from .source import storage_options, unsigned_type

if TYPE_CHECKING:
    from ..device import DeviceInfo
    from .variant import Variant

FILE = "rows.cl"
#: Pairs up to which cos and sin of a token are kept in a work-item's private memory.
MOST_PAIRS = 1024
#: Bytes of prefetching that are tried: the best on AVX-512 from memory (docs/performance.md); elsewhere 2 to 8 KiB were
#: equally good.
PREFETCH = 4096
#: The same for 'nta': 8 to 12 KiB were best out of place on AMD's Zen 5, in place 4 and 8 alike.
PREFETCH_NTA = 8192
#: Bytes of the shortest vectors for which a processor has non-temporal stores.
LEAST_STREAMED = 16

PARAMETERS = (
    Parameter("width", 4, "elements of a vector", (2, 4, 8, 16)),
    Parameter(
        "access", "builtin",
        "`builtin`: OpenCL's functions; `clang`: pointers to vectors and clang's conversions, for drivers that compile "
        "the functions to calls", ("builtin", "clang"),
    ),
    Parameter(
        "store", "plain", "`nontemporal`: stores that bypass the caches, for outputs aligned to the vector",
        ("plain", "nontemporal"),
    ),
    Parameter("prefetch", 0, "bytes ahead of a head that are prefetched; 0: none", most=1 << 20),
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
        "tokens", ("cached", "fused"),
    ),
)  # fmt: skip


def round_pairs(p: Parameters, pairing: Pairing) -> int:
    """Return how many pairs are rotated at once: those of two vectors."""
    return int(p["width"] if pairing == "normal" else 2 * p["width"])


def _packed(problem: Problem) -> bool:
    """Whether two bfloat16 are taken as one lane of 32 bits."""
    tensors = ((problem.x_strides, problem.x_alignment), (problem.y_strides, problem.y_alignment))
    return problem.dtype == "bf16" and not any(problem.vector_alignment(*tensor) % 4 for tensor in tensors)


def _joined(problem: Problem, p: Parameters) -> bool:
    """Whether two vectors are stored as one of elements twice as long: half lines are slow to store non-temporally."""
    two_at_once = p["store"] == "nontemporal" and p["access"] == "clang" and problem.itemsize < 4
    return two_at_once or _packed(problem)


def store_bytes(problem: Problem, p: Parameters) -> int:
    """Return the bytes that are stored at once."""
    return int(p["width"]) * problem.itemsize * (2 if _joined(problem, p) else 1)


def supports(problem: Problem, p: Parameters) -> str | None:
    """Return why the problem cannot be rotated with these parameters; None if it can."""
    pairs = problem.pairs
    reason = vectors_unsupported(problem, p)
    if reason is not None or pairs.pairing is None:
        return reason
    if pairs.pairs > MOST_PAIRS:
        return f"{pairs.pairs} pairs, at most {MOST_PAIRS} are kept in private memory"
    if p["nan"] == "plain" and problem.dtype == "bf16" and problem.angles.callers:
        return "plain: the caller's tables may hold NaNs with lower bits set"
    at_once = round_pairs(p, pairs.pairing)
    if at_once > pairs.pairs:
        return f"width: {pairs.pairs} pairs do not fill one round of {at_once} pairs"
    if p["store"] == "nontemporal":
        size, alignment = store_bytes(problem, p), problem.vector_alignment(problem.y_strides, problem.y_alignment)
        if size < LEAST_STREAMED:
            return f"nontemporal: vectors of {size} bytes, less than 16"
        if alignment % size:
            return f"nontemporal: vectors of {size} bytes, the output is aligned to {alignment}"
    rounds = sum(_rounds(problem, p))
    if rounds > MOST_ROUNDS:
        head = f"a head of {pairs.head_dim} elements takes {rounds} rounds of loops"
        return f"{head}, a work-item makes at most {MOST_ROUNDS}"
    return None


def _rounds(problem: Problem, p: Parameters) -> tuple[int, int]:
    """Return how many rounds of loops a head takes at most, and besides a token, each loop's end counted as one."""
    pairs, width = problem.pairs, int(p["width"])
    head = 8 + pairs.pairs // width + 2
    token = 12 + 2 * (pairs.pairs // width + 1)
    if pairs.rest and not problem.in_place:
        head += 6 + pairs.rest // width + 2 * width
    if p["prefetch"]:
        head += pairs.head_dim * problem.itemsize // 64 + 4
    if p["angles"] == "fused" and not problem.angles.one_axis:
        token += 2 * pairs.pairs
    return head, token


def order(p: Parameters) -> Iterator[Parameters]:
    """Yield these parameters, then what comes nearest to them: the first that supports a problem is used.

    Shorter non-temporal stores are still better than long plain ones.
    """
    widths = [width for width in (16, 8, 4, 2) if width <= p["width"]]
    tried = itertools.product(*(dict.fromkeys((p[name], last)) for name, last in _LAST.items()), widths)
    for *values, width in tried:
        yield {**p, **dict(zip(_LAST, values, strict=True)), "width": width}


#: What supports the most problems, of the parameters that some problems do not allow.
_LAST = {"nan": "any", "angles": "cached", "store": "plain"}


def options(problem: Problem, p: Parameters) -> tuple[str, ...]:
    """Return the compiler's options."""
    pairs, angles, fused = problem.pairs, problem.angles, p["angles"] == "fused"
    numbers = {
        "PAIRS": pairs.pairs, "HEAD_DIM": pairs.head_dim, "WINDOW": pairs.window,
        "NEIGHBOURS": pairs.pairing == "normal", "COPY_REST": bool(pairs.rest and not problem.in_place),
        "FUSED": fused, "FULL_TABLES": angles.full_tables, "PACKED": _packed(problem),
        "NONTEMPORAL": p["store"] == "nontemporal", "PREFETCH": p["prefetch"],
        "PREFETCH_NTA": p["prefetch"] and p["prefetch_kind"] == "nta",
    }  # fmt: skip
    out = [*storage_options(problem.dtype, p["width"]), *(f"-D{name}={int(n)}" for name, n in numbers.items())]
    if p["access"] == "clang":
        out.append("-DCLANG_VECTORS")
    if _joined(problem, p):
        out.append(f"-DJOINED={unsigned_type(2 * problem.itemsize)}")
    if p["nan"] == "plain" and problem.dtype == "bf16":
        out.append("-DPLAIN_NAN")
    if fused:
        # Steps of 64 bits are not enough for double.
        out += replace(angles, wide=angles.wide or problem.dtype == "f64").options
    return tuple(out)


def spec(problem: Problem, variant: Variant, device: DeviceInfo, second: Problem | None = None) -> LaunchSpec:
    """Return the launch; second: another tensor with the same batches, tokens and pairs, rotated by it, too."""
    return _spec(problem, variant, device.kind, device.compute_units, second)


@lru_cache(maxsize=512)
def _spec(problem: Problem, variant: Variant, kind: str, units: int, second: Problem | None) -> LaunchSpec:
    p = variant.parameters
    first, second = _one_batch(problem, second)
    batches, tokens, heads, head_dim = first.shape
    heads2 = 0 if second is None else second.shape[2]
    all_heads, head_bytes = heads + heads2, head_dim * first.itemsize
    per_item = heads_per_item(kind, units, batches * tokens, all_heads, head_bytes)
    at_once = min(tokens, tokens_per_item(kind, units, batches * tokens, all_heads, per_item, head_bytes))
    per_item, at_once = within_rounds(per_item, at_once, *_rounds(problem, p))
    i32, real = np.int32, np.float64 if problem.dtype == "f64" else np.float32
    arguments = (
        *vector_arguments(first, second, p["angles"]), ("tokens_per_item", i32(at_once)),
        ("heads_per_item", i32(per_item)), ("direction", real(1 if problem.forward else -1)),
    )  # fmt: skip
    return LaunchSpec(
        FILE, "rope_rotate_rows", options(problem, p), (-(-tokens // at_once), -(-all_heads // per_item), batches),
        local_size_for(kind, 3), arguments, variant.text(FILE),
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
        return [{"width": width, "angles": angles} for width in (2, 4) for angles in ("cached", "fused")]
    # Vectors of 16, 32 and 64 bytes of the computing type.
    widths = (2, 4, 8) if dtype == "f64" else (4, 8, 16)
    out: list[dict[str, Any]] = [{"width": width, "access": a} for width in widths for a in ("builtin", "clang")]
    for width in widths:
        if width * DTYPES[dtype].itemsize * 2 < LEAST_STREAMED:
            continue
        out.append({"width": width, "access": "clang", "store": "nontemporal"})
        if width > widths[0] and dtype not in ("f16", "bf16", "f8e4m3", "f8e5m2"):
            out.append({"width": width, "store": "nontemporal"})
    out += [{**p, "prefetch": PREFETCH} for p in out if p["width"] > widths[0]]
    out += [
        {**p, "prefetch": PREFETCH_NTA, "prefetch_kind": "nta"}
        for p in out if p.get("prefetch") and p.get("access") == "clang"
    ]  # fmt: skip
    if dtype == "bf16":
        out += [{**p, "nan": "plain"} for p in out]
    # Without tables: less to read, more to compute. Without prefetching for tensors that are in a cache.
    out += [
        {**p, "angles": "fused"} for p in out
        if p["width"] > widths[0] and p.get("access") == "clang" and (p.get("prefetch") or p.get("store") is None)
    ]  # fmt: skip
    return out


def words(p: Parameters) -> str:
    """Return a short name."""
    out = [f"rows{p['width']}", p["access"]]
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
    return " ".join(out)


KERNEL = Kernel("rows", __doc__ or "", PARAMETERS, FILE, supports, spec, words, order, search, takes_second=True)
