"""`tiling`: how a tensor is cut into tiles that fit a machine's scratchpad twice, computed on the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import ConfigError
from ...layout import DTYPES
from ..expressions import ceil_div
from .npu_machine import NpuMachine


@dataclass(frozen=True)
class Tiling:
    """Tiles of some tokens' heads; core c takes the tiles c, c + cores, ...

    A tile has either one token and `heads_per_tile` of its heads, or `tokens_per_tile` tokens and all of their heads:
    contiguous memory. x_part, table_part: bytes of a tile of x (or y), and of cos (or sin), rounded up to `align`.
    """

    tokens: int
    heads: int
    cores: int
    tokens_per_tile: int
    heads_per_tile: int
    x_part: int
    table_part: int

    @property
    def rows_per_tile(self) -> int:
        """Heads of tokens in a tile."""
        return self.tokens_per_tile * self.heads_per_tile

    @property
    def tiles(self) -> int:
        """Tiles in all."""
        return ceil_div(self.tokens, self.tokens_per_tile) * ceil_div(self.heads, self.heads_per_tile)

    @property
    def tiles_per_core(self) -> int:
        """Tiles of the core that has most."""
        return ceil_div(self.tiles, self.cores)

    @property
    def bytes_used(self) -> int:
        """Bytes of scratchpad: x, y, cos and sin, each twice."""
        return 4 * (self.x_part + self.table_part)

    def ranges(self) -> Iterator[tuple[range, range]]:
        """Yield (tokens, heads) of each tile, in the tiles' order."""
        for token in range(0, self.tokens, self.tokens_per_tile):
            for head in range(0, self.heads, self.heads_per_tile):
                yield (
                    range(token, min(token + self.tokens_per_tile, self.tokens)),
                    range(head, min(head + self.heads_per_tile, self.heads)),
                )


def tiling(
    machine: NpuMachine, *, tokens: int, heads: int, head_dim: int, n_dims: int | None = None, dtype: str = "f32",
    batch: int = 1,
) -> Tiling:  # fmt: skip
    """Return the tiles for x[batch, tokens, heads, head_dim], with two buffers for each of x, y, cos and sin.

    As many heads as fit, then as many tokens, but no more than leaves tiles for each core. Raises `ConfigError` where
    one head does not fit the scratchpad, and for lengths below 1.
    """
    n_dims = head_dim if n_dims is None else n_dims
    for name, value in (("tokens", tokens), ("heads", heads), ("head_dim", head_dim), ("batch", batch)):
        if value < 1:
            raise ConfigError(f"{name}: got {value}, at least 1 is needed")
    if n_dims % 2 or not 0 < n_dims <= head_dim:
        raise ConfigError(f"n_dims: got {n_dims}, an even number from 2 to {head_dim} is needed")
    if dtype not in DTYPES:
        raise ConfigError(f"dtype: got {dtype!r}, allowed are {', '.join(DTYPES)}")
    head_bytes = head_dim * DTYPES[dtype].itemsize
    table_bytes = n_dims // 2 * (8 if dtype == "f64" else 4)
    rows, cores = batch * tokens, machine.cores

    def part(size: int) -> int:
        return ceil_div(size, machine.align) * machine.align

    half = machine.ub // 2 - 4 * machine.align
    heads_that_fit = (half - 2 * table_bytes) // (2 * head_bytes)
    heads_per_tile = max(1, min(heads, heads_that_fit, ceil_div(heads, max(1, cores // rows))))
    tokens_that_fit = half // (2 * heads * head_bytes + 2 * table_bytes)
    tokens_per_tile = max(1, min(tokens_that_fit, ceil_div(rows, cores)))
    made = Tiling(
        rows, heads, cores, tokens_per_tile, heads_per_tile, part(tokens_per_tile * heads_per_tile * head_bytes),
        part(tokens_per_tile * table_bytes),
    )  # fmt: skip
    if made.bytes_used > machine.ub:
        raise ConfigError(
            f"ub: got {machine.ub} bytes, two buffers for one head of {head_dim} elements take {made.bytes_used}"
        )
    return made
