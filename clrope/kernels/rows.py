"""Kernel `rows`: whole heads by vectors, for heads whose elements are contiguous. The fastest on CPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..layout import DTYPES, LONGEST_AXIS, Shape4
from .division import LEAST_STREAMED, heads_launch, heads_unsupported
from .kernel import Kernel, Parameter, Parameters
from .launch import LaunchSpec, head_options
from .problem import Pairing, Problem
from .source import unsigned_type

if TYPE_CHECKING:
    from ..device import DeviceInfo

#: Bytes of prefetching that are tried: the best on AVX-512 from memory (docs/performance.md); elsewhere 2 to 8 KiB were
#: equally good.
PREFETCH = 4096
#: The same for 'nta': 8 to 12 KiB were best out of place on AMD's Zen 5, in place 4 and 8 alike.
PREFETCH_NTA = 8192

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
    Parameter(
        "prefetch", 0, "bytes ahead of a head that are prefetched; 0: none",
        (0, 64, 512, 1024, 2048, 4096, 8192, 16384, 32768),
    ),
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


def round_pairs(p: Parameters, pairing: Pairing | None) -> int:
    """Return how many pairs are rotated at once: those of two vectors."""
    return int(p["width"] if pairing == "normal" else 2 * p["width"])


def _packed(problem: Problem) -> bool:
    """Whether two bfloat16 are taken as one lane of 32 bits."""
    return problem.dtype == "bf16" and not any(alignment % 4 for alignment in problem.vector_alignments)


def _joined(problem: Problem, p: Parameters) -> bool:
    """Whether two vectors are stored as one of elements twice as long: half lines are slow to store non-temporally."""
    two_at_once = p["store"] == "nontemporal" and p["access"] == "clang" and problem.itemsize < 4
    return two_at_once or _packed(problem)


def store_bytes(problem: Problem, p: Parameters) -> int:
    """Return the bytes that are stored at once."""
    return int(p["width"]) * problem.itemsize * (2 if _joined(problem, p) else 1)


def supports(problem: Problem, p: Parameters) -> str | None:
    """Return why the problem cannot be rotated with these parameters; None if it can."""
    pairs, at_once = problem.pairs.pairs, round_pairs(p, problem.pairs.pairing)
    if p["nan"] == "plain" and problem.dtype == "bf16" and problem.angles.callers:
        return "plain: the caller's tables may hold NaNs with lower bits set"
    if at_once > pairs:
        return f"width: {pairs} pairs do not fill one round of {at_once} pairs"
    reason = heads_unsupported(problem, p, store_bytes(problem, p), sum(_rounds(problem, p)))
    return reason or (_torn_lines(problem, p) if p["store"] == "nontemporal" else None)


def _torn_lines(problem: Problem, p: Parameters) -> str | None:
    """Return why lines would be streamed in parts, up to 20 times as slow as plain stores on PoCL."""
    pairs, at_once = problem.pairs.pairs, round_pairs(p, problem.pairs.pairing)
    if pairs % at_once:
        return f"nontemporal: of {pairs} pairs, the last round of {at_once} stores some twice"
    run = problem.itemsize * pairs * (2 if problem.pairs.pairing == "normal" else 1)
    if problem.itemsize >= 4 and store_bytes(problem, p) < 32 and run % 64:
        return f"nontemporal: short vectors, and {run} bytes are no whole lines"
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


def options(problem: Problem, p: Parameters) -> tuple[str, ...]:
    """Return the compiler's options."""
    streamed, joined = p["store"] == "nontemporal", _joined(problem, p)
    return (
        *head_options(
            problem, p, p["width"], COPY_REST=bool(problem.pairs.rest and not problem.in_place),
            FULL_TABLES=problem.angles.full_tables, PACKED=_packed(problem), NONTEMPORAL=streamed,
            PREFETCH=p["prefetch"], PREFETCH_NTA=p["prefetch"] and p["prefetch_kind"] == "nta",
        ),
        *([f"-DJOINED={unsigned_type(2 * problem.itemsize)}"] if joined else ()),
        *(["-DPLAIN_NAN"] if p["nan"] == "plain" and problem.dtype == "bf16" else ()),
    )  # fmt: skip


def spec(problem: Problem, p: Parameters, device: DeviceInfo, second: Problem | None = None) -> LaunchSpec:
    """Return the launch; second: another tensor with the same batches, tokens and pairs, rotated by it, too."""
    first, *others = _one_batch(problem, *(() if second is None else (second,)))
    return heads_launch(
        "rows.cl", "rope_rotate_rows", options(first, p), first, others[0] if others else None, p, device,
        _rounds(first, p),
    )  # fmt: skip


def _one_batch(*problems: Problem) -> list[Problem]:
    """Fold the batch axis into tokens or heads where the strides allow it.

    Batches become tokens where each has rows of positions of its own and its tokens follow those of the batch before;
    they become heads where each is one token at the same position and its heads follow. A work-item then rotates
    several: in a decode step each token is a batch.
    """
    (batches, tokens), row_stride = problems[0].shape[:2], problems[0].row_stride
    views = [view for problem in problems for view in (problem.x, problem.y)]
    if row_stride == tokens:
        follow = tokens == 1 or all(view.strides[0] == tokens * view.strides[1] for view in views)
        length = batches * tokens
    else:
        follow = row_stride == 0 and tokens == 1
        follow = follow and all(view.strides[0] == view.shape[2] * view.strides[2] for view in views)
        length = batches * sum(problem.shape[2] for problem in problems)
    if batches == 1 or not follow or length > LONGEST_AXIS:
        return list(problems)

    def folded(problem: Problem) -> Problem:
        heads, head_dim = problem.shape[2:]
        shape = (1, batches * tokens, heads, head_dim) if row_stride else (1, 1, batches * heads, head_dim)
        x_strides, y_strides = (_token_axis(strides, tokens) for strides in (problem.x_strides, problem.y_strides))
        return replace(problem, shape=shape, x_strides=x_strides, y_strides=y_strides)

    return [folded(problem) for problem in problems]


def _token_axis(strides: Shape4, tokens: int) -> Shape4:
    return 0, strides[0 if tokens == 1 else 1], strides[2], strides[3]


def search(kind: str, dtype: str) -> list[dict[str, Any]]:
    """Return what tuning tries; what is not listed never won on the devices at hand, or has no meaning there."""
    if kind != "cpu":
        return [{"width": width, "angles": angles} for width in (2, 4) for angles in ("cached", "fused")]
    # Vectors of 16, 32 and 64 bytes of the computing type.
    widths = (2, 4, 8) if dtype == "f64" else (4, 8, 16)
    out: list[dict[str, Any]] = [{"width": width, "access": a} for width in widths for a in ("builtin", "clang")]
    out += [
        {"width": width, "access": "clang", "store": "nontemporal"}
        for width in widths if width * DTYPES[dtype].itemsize * 2 >= LEAST_STREAMED
    ]  # fmt: skip
    wide = [p for p in out if p["width"] > widths[0]]
    out += [{**p, "prefetch": PREFETCH} for p in wide]
    out += [{**p, "prefetch": PREFETCH_NTA, "prefetch_kind": "nta"} for p in wide if p["access"] == "clang"]
    if dtype == "bf16":
        out += [{**p, "nan": "plain"} for p in out]
    # Without tables: less to read, more to compute. Without prefetching for tensors that are in a cache.
    out += [
        {**p, "angles": "fused"} for p in out
        if p["width"] > widths[0] and p["access"] == "clang" and ("prefetch" in p or "store" not in p)
    ]  # fmt: skip
    return out


def words(p: Parameters) -> str:
    """Return a short name."""
    out = [f"rows{p['width']}", p["access"]]
    out += ["nontemporal"] if p["store"] == "nontemporal" else []
    if p["prefetch"]:
        out += [f"prefetch{p['prefetch']}", *(["nta"] if p["prefetch_kind"] == "nta" else ())]
    out += ["plain-nan"] if p["nan"] == "plain" else []
    out += ["fused"] if p["angles"] == "fused" else []
    return " ".join(out)


KERNEL = Kernel(
    "rows", __doc__ or "", PARAMETERS, "rows.cl", supports, spec, words,
    {"nan": "any", "angles": "cached", "store": "plain"}, search, takes_second=True,
)  # fmt: skip
