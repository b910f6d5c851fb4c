"""How the heads of a tensor are divided among work-items."""

from __future__ import annotations

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


def _items(units: int, nbytes: int) -> int:
    """Return how many work-items a CPU should have for so many bytes."""
    items = units * _ITEMS_PER_UNIT
    if nbytes >= _LITTLE_BYTES:
        return max(1, items)
    return max(units * _FEWEST_ITEMS, min(items, nbytes // _LITTLE_ITEM_BYTES), 1)


def heads_per_item(kind: str, units: int, tokens: int, heads: int, head_bytes: int) -> int:
    """Return how many heads of a token a work-item gets."""
    if kind != "cpu":
        return 1
    wanted = _items(units, tokens * heads * head_bytes)
    groups = min(heads, -(-wanted // max(1, tokens)))
    return min(heads, max(-(-heads // groups), -(-_LEAST_ITEM_BYTES // head_bytes)))


def tokens_per_item(kind: str, units: int, tokens: int, heads: int, per_item: int, head_bytes: int) -> int:
    """Return how many tokens with all their heads a work-item gets: on a CPU more than one, where those are short."""
    if kind != "cpu" or per_item < heads:
        return 1
    token_bytes = heads * head_bytes
    item_bytes = _ITEM_BYTES if tokens * token_bytes >= _LITTLE_BYTES else _LITTLE_ITEM_BYTES
    return max(1, min(tokens // _items(units, tokens * token_bytes), item_bytes // token_bytes))


def within_rounds(heads: int, tokens: int, head_rounds: int, token_rounds: int = 0) -> tuple[int, int]:
    """Return so many heads and tokens of a work-item, or less, that its loops stay within `MOST_ROUNDS`.

    head_rounds: of one head, which has to be within them; token_rounds: besides, of a token.
    """
    heads = max(1, min(heads, (MOST_ROUNDS - token_rounds) // head_rounds))
    return heads, max(1, min(tokens, MOST_ROUNDS // (token_rounds + heads * head_rounds)))
