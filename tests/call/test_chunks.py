"""Chunks of tokens: every token once, with the rows of positions that it needs, in the fewest chunks."""

from __future__ import annotations

import tracemalloc
from itertools import product
from typing import Any

import pytest

from clrope.call.chunks import Chunk, chunks, chunks_that_fit
from clrope.errors import DeviceError


def length(part: slice) -> int:
    assert 0 <= part.start <= part.stop
    return int(part.stop - part.start)


def tokens_of(chunk: Chunk) -> int:
    return length(chunk.batches) * length(chunk.tokens)


def rows_used(chunk: Chunk) -> dict[tuple[int, int], int]:
    """The row of positions of each (batch, token), as a kernel reads it."""
    used = {}
    for b, s in product(range(length(chunk.batches)), range(length(chunk.tokens))):
        row = chunk.rows.start + b * chunk.row_stride + s
        assert row < chunk.rows.stop
        used[chunk.batches.start + b, chunk.tokens.start + s] = row
    return used


@pytest.mark.parametrize("shared", [False, True])
def test_every_token_once_with_its_row(shared: bool) -> None:
    for batches, tokens, most in product(range(4), range(6), range(1, 22)):
        stride = 0 if shared else tokens
        made = chunks(batches, tokens, stride, most)
        assert all(tokens_of(chunk) <= most for chunk in made)
        used = [item for chunk in made for item in rows_used(chunk).items()]
        want = {(b, s): b * stride + s for b, s in product(range(batches), range(tokens))}
        assert len(used) == len(want), (batches, tokens, most)
        assert dict(used) == want


def test_as_few_as_the_limit_allows() -> None:
    for batches, tokens, most in product(range(1, 4), range(1, 6), range(1, 22)):
        together = most // tokens
        fewest = -(-batches // together) if together else batches * -(-tokens // most)
        assert len(chunks(batches, tokens, 0, most)) == fewest, (batches, tokens, most)


def test_no_rows_but_those_that_are_used() -> None:
    assert chunks(3, 4, 0, 8) == [
        Chunk(slice(0, 2), slice(0, 4), slice(0, 4), 0),
        Chunk(slice(2, 3), slice(0, 4), slice(0, 4), 0),
    ]
    assert chunks(3, 4, 4, 8) == [
        Chunk(slice(0, 2), slice(0, 4), slice(0, 8), 4),
        Chunk(slice(2, 3), slice(0, 4), slice(8, 12), 4),
    ]
    assert chunks(1, 5, 5, 3) == [
        Chunk(slice(0, 1), slice(0, 3), slice(0, 3), 0),
        Chunk(slice(0, 1), slice(3, 5), slice(3, 5), 0),
    ]


def test_batches_that_share_their_rows_follow_each_other() -> None:
    """So their tables are made once."""
    made = chunks(2, 4, 0, 2)
    assert [(chunk.rows, chunk.batches.start) for chunk in made] == [
        (slice(0, 2), 0), (slice(0, 2), 1), (slice(2, 4), 0), (slice(2, 4), 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("most", "room", "want"), [(10, 12, 10), (99, 12, 12), (99, 11, 6), (11, 5, 6), (11, 3, 3), (7, 1, 1), (1, 99, 1)]
)
def test_halves_until_all_fit(most: int, room: int, want: int) -> None:
    """Of 3 batches of 4 tokens; halves are rounded up."""
    assert chunks_that_fit(3, 4, 4, most, lambda chunk: tokens_of(chunk) <= room) == chunks(3, 4, 4, want)


def test_every_chunk_has_to_fit() -> None:
    made = chunks_that_fit(1, 8, 8, 8, lambda chunk: chunk.tokens.stop < 8 or tokens_of(chunk) == 1)
    assert made == chunks(1, 8, 8, 1)


def test_one_token_that_does_not_fit() -> None:
    asked: list[Any] = []
    with pytest.raises(DeviceError, match=r"^x: one token alone does not fit the device's largest allocation$"):
        chunks_that_fit(2, 8, 8, 64, lambda chunk: bool(asked.append(tokens_of(chunk))))
    assert asked == [16, 1]


@pytest.mark.parametrize(("batches", "tokens"), [(1, 8), (8, 1)])
def test_no_chunk_outside_the_tensor_is_asked_for(batches: int, tokens: int) -> None:
    def fits(chunk: Chunk) -> bool:
        assert chunk.batches.stop <= batches
        assert chunk.tokens.stop <= tokens
        return tokens_of(chunk) == 1

    assert len(chunks_that_fit(batches, tokens, tokens, 8, fits)) == 8


def test_a_later_token_that_does_not_fit() -> None:
    with pytest.raises(DeviceError, match=r"^x: one token alone does not fit"):
        chunks_that_fit(1, 8, 8, 8, lambda chunk: chunk.tokens.stop <= 3)


def test_one_of_very_many_tokens_that_does_not_fit() -> None:
    """No list has a chunk for each of them."""
    tracemalloc.start()
    try:
        with pytest.raises(DeviceError, match="x: one token alone"):
            chunks_that_fit(1, 10**9, 0, 10**9, lambda chunk: False)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_nothing_to_do() -> None:
    assert chunks(0, 4, 4, 8) == []
    assert all(tokens_of(chunk) == 0 for chunk in chunks(3, 0, 0, 2))
    assert chunks_that_fit(0, 0, 0, 5, lambda chunk: False) == []
