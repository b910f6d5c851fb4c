"""Kernel `norm_rows`: RMS norm and rotation in one pass, whole heads by vectors, for contiguous heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..norm import NormForm
from .division import heads_launch, heads_unsupported
from .kernel import Kernel, Parameter, Parameters
from .launch import NO_BUFFER, LaunchSpec, head_options
from .problem import Problem

if TYPE_CHECKING:
    from ..device import DeviceInfo

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
    return normed_unsupported(problem, p)


def normed_unsupported(problem: Problem, p: Parameters) -> str | None:
    """Return why `heads.clh` cannot rotate a problem by these parameters; None if it can."""
    pairs, width = problem.pairs, int(p["width"])
    whole = 16 if problem.norm is not None else width
    if pairs.head_dim % whole or pairs.pairs % width or pairs.window % width:
        head = f"a head of {pairs.head_dim} elements, {pairs.pairs} pairs from element {pairs.window} on"
        return f"width: vectors do not divide {head}"
    head_rounds, token_rounds = loop_rounds(problem, p)
    rounds = token_rounds + head_rounds * (1 + problem.shape[2] if over_heads(problem) else 1)
    return heads_unsupported(problem, p, width * problem.itemsize, rounds)


def over_heads(problem: Problem) -> bool:
    """Whether a sum is over all heads of a token, so that one work-item has them all."""
    return problem.norm is not None and problem.norm.over == "heads"


def loop_rounds(problem: Problem, p: Parameters) -> tuple[int, int]:
    """Return how many rounds of loops a head takes at most, and besides a token, each loop's end counted as one."""
    pairs, width = problem.pairs, int(p["width"])
    head = 8 * (pairs.head_dim // width + 2)
    token = 12 + 2 * (pairs.pairs // width + 1)
    if p["angles"] == "fused" and not problem.angles.one_axis:
        token += 2 * pairs.pairs
    return head, token


def norm_options(norm: NormForm) -> dict[str, bool]:
    """Return the options of `norm.clh`."""
    return {
        "OVER_HEADS": norm.over == "heads", "NORM_FIRST": norm.order == "before", "ROUND_EACH": norm.rounding == "each",
    }  # fmt: skip


def norm_arguments(problem: Problem, *others: Problem | None) -> tuple[tuple[str, Any], ...]:
    """Return the arguments of each tensor's norm: the scale, bound for each call, and constants. None: no tensor."""
    real = type(problem.direction)
    arguments: list[tuple[str, Any]] = []
    for suffix, one in zip(("", "2"), (problem, *others), strict=False):
        norm = None if one is None else one.norm
        mean, eps = (0.0, 1.0) if norm is None else (1 / norm.elements, norm.eps)
        scale = NO_BUFFER if norm is None else None
        arguments += [(f"scale{suffix}", scale), (f"mean{suffix}", real(mean)), (f"eps{suffix}", real(eps))]
    return tuple(arguments)


def options(problem: Problem, p: Parameters, **more: Any) -> tuple[str, ...]:
    """Return the options of `heads.clh`."""
    norm = norm_options(problem.norm or _NO_NORM)
    return head_options(problem, p, p["width"], NONTEMPORAL=p["store"] == "nontemporal", **norm, **more)


def spec(problem: Problem, p: Parameters, device: DeviceInfo, second: Problem | None = None) -> LaunchSpec:
    """Return the launch; second: another tensor with the same batches, tokens, pairs and kind of norm."""
    return heads_launch(
        "norm_rows.cl", "rope_norm_rows", options(problem, p), problem, second, p, device, loop_rounds(problem, p),
        norm_arguments(problem, second), whole=over_heads(problem),
    )  # fmt: skip


def words(p: Parameters) -> str:
    """Return a short name."""
    streamed = " nontemporal" if p["store"] == "nontemporal" else ""
    return f"norm_rows{p['width']} {p['access']}{streamed} {p['angles']}"


#: See `Kernel.order`.
FALLBACKS = {"angles": "cached", "store": "plain"}
KERNEL = Kernel(
    "norm_rows", __doc__ or "", PARAMETERS, "norm_rows.cl", supports, spec, words, FALLBACKS, takes_second=True
)
