"""How whole heads are divided among work-items, and the launch of kernels whose work-items have some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .kernel import Parameters, vectors_unsupported
from .launch import LaunchSpec, head_arguments, local_size_for
from .problem import Problem

if TYPE_CHECKING:
    from ..device import DeviceInfo

#: Work-items wanted per compute unit of a CPU: enough to balance, few enough to cost nothing.
_ITEMS_PER_UNIT = 16
#: Bytes below which a work-item costs more to start than to run.
_LEAST_ITEM_BYTES = 16384
#: Bytes of a work-item where there are enough of them: starting one costs time, and what is prefetched at its end is
#: lost.
_ITEM_BYTES = 262144
#: Bytes below which starting work-items counts (on Intel's runtime each of the first 64 takes 0.1 us, of 28 for 1 MiB).
#: Then: bytes of an item, and items for each compute unit at least.
_LITTLE_BYTES = 4 << 20
_LITTLE_ITEM_BYTES = 131072
_FEWEST_ITEMS = 2
#: Rounds of its loops that a work-item makes at most. llvmpipe ends loops after 65535 of all loops together, and says
#: nothing (docs/drivers.md); the probe tries a loop of this length on every device.
MOST_ROUNDS = 60000
#: Pairs up to which cos and sin of a token are kept in a work-item's private memory.
MOST_PAIRS = 1024
#: Bytes of the shortest vectors for which a processor has non-temporal stores.
LEAST_STREAMED = 16


def heads_unsupported(problem: Problem, p: Parameters, store_bytes: int, rounds: int) -> str | None:
    """Return why work-items cannot have whole heads with these parameters; None if they can.

    store_bytes: stored at once. rounds: of loops, for a head and its token.
    """
    pairs = problem.pairs
    reason = vectors_unsupported(problem, p)
    if reason is not None:
        return reason
    if pairs.pairs > MOST_PAIRS:
        return f"{pairs.pairs} pairs, at most {MOST_PAIRS} are kept in private memory"
    if p["store"] == "nontemporal":
        alignment = problem.vector_alignments[1]
        if store_bytes < LEAST_STREAMED:
            return f"nontemporal: vectors of {store_bytes} bytes, less than {LEAST_STREAMED}"
        if alignment % store_bytes:
            return f"nontemporal: vectors of {store_bytes} bytes, the output is aligned to {alignment}"
    if rounds > MOST_ROUNDS:
        head = f"a head of {pairs.head_dim} elements takes {rounds} rounds of loops"
        return f"{head}, a work-item makes at most {MOST_ROUNDS}"
    return None


def divided(device: DeviceInfo, problem: Problem, heads: int, rounds: tuple[int, int], whole: bool) -> tuple[int, int]:
    """Return how many heads and tokens a work-item gets: on a CPU several, and several tokens where those are short.

    heads: of all tensors of the launch. rounds: as of `within_rounds`. whole: a work-item has all heads of its tokens.
    """
    batches, tokens, _, head_dim = problem.shape
    all_tokens, head_bytes = batches * tokens, head_dim * problem.itemsize
    per_item, at_once, token_bytes = heads if whole else 1, 1, heads * head_bytes
    if device.kind == "cpu":
        items, item_bytes = device.compute_units * _ITEMS_PER_UNIT, _ITEM_BYTES
        if all_tokens * token_bytes < _LITTLE_BYTES:
            item_bytes = _LITTLE_ITEM_BYTES
            items = max(device.compute_units * _FEWEST_ITEMS, min(items, all_tokens * token_bytes // item_bytes))
        items = max(1, items)
        groups = min(heads, -(-items // max(1, all_tokens)))
        if not whole:
            per_item = min(heads, max(-(-heads // groups), -(-_LEAST_ITEM_BYTES // head_bytes)))
        if per_item == heads:
            at_once = max(1, min(tokens, all_tokens // items, item_bytes // token_bytes))
    least, at_once = within_rounds(per_item, at_once, *rounds)
    return per_item if whole else least, at_once


def within_rounds(heads: int, tokens: int, head_rounds: int, token_rounds: int = 0) -> tuple[int, int]:
    """Return so many heads and tokens of a work-item, or less, that its loops stay within `MOST_ROUNDS`.

    head_rounds: of one head, which has to be within them; token_rounds: besides, of a token.
    """
    heads = max(1, min(heads, (MOST_ROUNDS - token_rounds) // head_rounds))
    return heads, max(1, min(tokens, MOST_ROUNDS // (token_rounds + heads * head_rounds)))


def heads_launch(
    file: str, function: str, options: tuple[str, ...], problem: Problem, second: Problem | None, p: Parameters,
    device: DeviceInfo, rounds: tuple[int, int], more: tuple[tuple[str, Any], ...] = (), *, heads3: int = 0,
    whole: bool = False,
) -> LaunchSpec:  # fmt: skip
    """Return the launch of a kernel whose work-items have whole heads of one or two tensors.

    more: arguments behind those of rows.cl. heads3: of a third tensor. rounds, whole: as of `divided`.
    """
    batches, tokens, heads, _ = problem.shape
    heads += (0 if second is None else second.shape[2]) + heads3
    per_item, at_once = divided(device, problem, heads, rounds, whole)
    arguments = (
        *head_arguments(problem, second, p["angles"]), ("tokens_per_item", np.int32(at_once)),
        ("heads_per_item", np.int32(per_item)), ("direction", problem.direction), *more,
    )  # fmt: skip
    groups = (-(-tokens // at_once), -(-heads // per_item), batches)
    return LaunchSpec(file, function, options, groups, local_size_for(device.kind, 3), arguments)
