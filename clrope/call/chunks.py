"""Cutting a tensor into chunks of tokens that fit a limit, each with the position rows it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import DeviceError


@dataclass(frozen=True)
class Chunk:
    """Batches, tokens, the rows of positions they use, and the rows from one batch to the next (0: shared)."""

    batches: slice
    tokens: slice
    rows: slice
    row_stride: int


def chunks(batches: int, tokens: int, batch_stride: int, most: int) -> list[Chunk]:
    """Return chunks of at most `most` >= 1 tokens. batch_stride: 0 if batches share their rows, else tokens."""
    out = []
    if tokens <= most:
        step = most // max(1, tokens)
        for b in range(0, batches, step):
            e = min(batches, b + step)
            rows = slice(0, tokens) if batch_stride == 0 else slice(b * tokens, e * tokens)
            out.append(Chunk(slice(b, e), slice(0, tokens), rows, batch_stride))
        return out
    # Tokens outside, batches inside: batches that share rows then share their tables.
    for s in range(0, tokens, most):
        e = min(tokens, s + most)
        for b in range(batches):
            first = b * batch_stride
            out.append(Chunk(slice(b, b + 1), slice(s, e), slice(first + s, first + e), 0))
    return out


def chunks_that_fit(
    batches: int, tokens: int, batch_stride: int, most: int, fits: Callable[[Chunk], bool]
) -> list[Chunk]:
    """Return the largest chunks (halving from `most` tokens) all of which fit; `DeviceError` if one token does not."""
    most = max(1, min(most, batches * tokens))
    made = chunks(batches, tokens, batch_stride, most)
    if all(map(fits, made)):
        return made
    # One token first: lists of smaller and smaller chunks would take long to say that none fits.
    if all(map(fits, chunks(1, 1, 0, 1))):
        while most > 1:
            most = -(-most // 2)
            made = chunks(batches, tokens, batch_stride, most)
            if all(map(fits, made)):
                return made
    raise DeviceError("x: one token alone does not fit the device's largest allocation")
