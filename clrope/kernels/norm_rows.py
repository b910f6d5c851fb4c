"""Kernel `norm_rows`: RMS norm and rotation in one pass, whole heads by vectors, for contiguous heads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..norm import NormForm
from .division import MOST_ROUNDS, heads_per_item, tokens_per_item, within_rounds
from .kernel import Kernel, Parameter, Parameters, vectors_unsupported
from .launch import NO_BUFFER, LaunchSpec, local_size_for, vector_arguments
from .problem import Problem
from .rows import LEAST_STREAMED, MOST_PAIRS
from .source import storage_options

if TYPE_CHECKING:
    from ..device import DeviceInfo
    from .variant import Variant

FILE = "norm_rows.cl"
NO_NORM = "there is no norm"
#: What options say where there is none.
_NO_NORM = NormForm("head", "before", "once", 1.0, 1)

#: As those of `rows`, whose measured values are used here, too.
PARAMETERS = (
    Parameter("width", 4, "elements of a vector", (2, 4, 8, 16)),
    Parameter("access", "builtin", "as of `rows`", ("builtin", "clang")),
    Parameter("store", "plain", "as of `rows`", ("plain", "nontemporal")),
    Parameter("angles", "fused", "as of `rows`", ("cached", "fused")),
)


def supports(problem: Problem, p: Parameters) -> str | None:
    """Return why the problem cannot be rotated with these parameters; None if it can."""
    if problem.norm is None:
        return NO_NORM
    if problem.slots is not None:
        return "a tensor is a KV cache"
    return heads_unsupported(problem, p)


def heads_unsupported(problem: Problem, p: Parameters) -> str | None:
    """Return why `heads.clh` cannot rotate a problem by these parameters; None if it can."""
    pairs, width = problem.pairs, int(p["width"])
    reason = vectors_unsupported(problem, p)
    if reason is not None:
        return reason
    if pairs.pairs > MOST_PAIRS:
        return f"{pairs.pairs} pairs, at most {MOST_PAIRS} are kept in private memory"
    whole = 16 if problem.norm is not None else width
    if pairs.head_dim % whole or pairs.pairs % width or pairs.window % width:
        head = f"a head of {pairs.head_dim} elements, {pairs.pairs} pairs from element {pairs.window} on"
        return f"width: vectors do not divide {head}"
    if p["store"] == "nontemporal":
        size, alignment = width * problem.itemsize, problem.vector_alignment(problem.y_strides, problem.y_alignment)
        if size < LEAST_STREAMED or alignment % size:
            return f"nontemporal: vectors of {size} bytes, the output is aligned to {alignment}"
    rounds = sum(head_rounds(problem, p)) + (
        head_rounds(problem, p)[0] * problem.shape[2] if over_heads(problem) else 0
    )
    return f"{rounds} rounds of loops, a work-item makes at most {MOST_ROUNDS}" if rounds > MOST_ROUNDS else None


def over_heads(problem: Problem) -> bool:
    """Whether a sum is over all heads of a token, so that one work-item has them all."""
    return problem.norm is not None and problem.norm.over == "heads"


def head_rounds(problem: Problem, p: Parameters) -> tuple[int, int]:
    """Return how many rounds of loops a head takes at most, and besides a token, each loop's end counted as one."""
    pairs, width = problem.pairs, int(p["width"])
    head = 8 * (pairs.head_dim // width + 2)
    token = 12 + 2 * (pairs.pairs // width + 1)
    if p["angles"] == "fused" and not problem.angles.one_axis:
        token += 2 * pairs.pairs
    return head, token


def order(p: Parameters) -> Iterator[Parameters]:
    """Yield these parameters, then what comes nearest to them: the first that supports a problem is used."""
    widths = [width for width in (16, 8, 4, 2) if width <= p["width"]]
    angles, stores = dict.fromkeys((p["angles"], "cached")), dict.fromkeys((p["store"], "plain"))
    for a, store, width in itertools.product(angles, stores, widths):
        yield {**p, "angles": a, "store": store, "width": width}


def norm_options(norm: NormForm) -> list[str]:
    """Return the options of `norm.clh`."""
    flags = {
        "OVER_HEADS": norm.over == "heads", "NORM_FIRST": norm.order == "before", "ROUND_EACH": norm.rounding == "each",
    }  # fmt: skip
    return [f"-D{name}={int(flag)}" for name, flag in flags.items()]


def norm_arguments(problem: Problem | None, dtype: str, suffix: str = "") -> tuple[tuple[str, Any], ...]:
    """Return the arguments of a tensor's norm: the scale, bound for each call, and constants. None: no tensor."""
    real = np.float64 if dtype == "f64" else np.float32
    norm = None if problem is None else problem.norm
    mean, eps = (0.0, 1.0) if norm is None else (1 / norm.elements, norm.eps)
    scale = NO_BUFFER if norm is None else None
    return (f"scale{suffix}", scale), (f"mean{suffix}", real(mean)), (f"eps{suffix}", real(eps))


def head_options(problem: Problem, p: Parameters) -> tuple[str, ...]:
    """Return the options of `heads.clh`."""
    pairs, angles, fused = problem.pairs, problem.angles, p["angles"] == "fused"
    numbers = {
        "PAIRS": pairs.pairs, "HEAD_DIM": pairs.head_dim, "WINDOW": pairs.window,
        "NEIGHBOURS": pairs.pairing == "normal", "FUSED": fused, "NONTEMPORAL": p["store"] == "nontemporal",
    }  # fmt: skip
    out = [*storage_options(problem.dtype, p["width"]), *(f"-D{name}={int(n)}" for name, n in numbers.items())]
    out += norm_options(problem.norm or _NO_NORM)
    if p["access"] == "clang":
        out.append("-DCLANG_VECTORS")
    if fused:
        # Steps of 64 bits are not enough for double.
        out += replace(angles, wide=angles.wide or problem.dtype == "f64").options
    return tuple(out)


def spec(problem: Problem, variant: Variant, device: DeviceInfo, second: Problem | None = None) -> LaunchSpec:
    """Return the launch; second: another tensor with the same batches, tokens, pairs and kind of norm."""
    return _spec(problem, variant, device.kind, device.compute_units, second)


def divided(problem: Problem, p: Parameters, kind: str, units: int, all_heads: int) -> tuple[int, int]:
    """Return the heads and the tokens of a work-item."""
    batches, tokens, _, head_dim = problem.shape
    head_bytes, per_item = head_dim * problem.itemsize, all_heads
    if not over_heads(problem):
        per_item = heads_per_item(kind, units, batches * tokens, all_heads, head_bytes)
    at_once = min(tokens, tokens_per_item(kind, units, batches * tokens, all_heads, per_item, head_bytes))
    least, at_once = within_rounds(per_item, at_once, *head_rounds(problem, p))
    return per_item if over_heads(problem) else least, at_once


@lru_cache(maxsize=512)
def _spec(problem: Problem, variant: Variant, kind: str, units: int, second: Problem | None) -> LaunchSpec:
    p = variant.parameters
    batches, tokens, heads, _ = problem.shape
    all_heads = heads + (0 if second is None else second.shape[2])
    per_item, at_once = divided(problem, p, kind, units, all_heads)
    i32, real = np.int32, np.float64 if problem.dtype == "f64" else np.float32
    arguments = (
        *vector_arguments(problem, second, p["angles"]), ("tokens_per_item", i32(at_once)),
        ("heads_per_item", i32(per_item)), ("direction", real(1 if problem.forward else -1)),
        *norm_arguments(problem, problem.dtype), *norm_arguments(second, problem.dtype, "2"),
    )  # fmt: skip
    return LaunchSpec(
        FILE, "rope_norm_rows", head_options(problem, p), (-(-tokens // at_once), -(-all_heads // per_item), batches),
        local_size_for(kind, 3), arguments,
    )  # fmt: skip


def words(p: Parameters) -> str:
    """Return a short name."""
    streamed = " nontemporal" if p["store"] == "nontemporal" else ""
    return f"norm_rows{p['width']} {p['access']}{streamed} {p['angles']}"


KERNEL = Kernel("norm_rows", __doc__ or "", PARAMETERS, FILE, supports, spec, words, order, takes_second=True)
