"""InfiniOp's RoPE: descriptors of both ranks and algorithms, all types, any strides, in place or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ....interop.infiniop import Algo, RoPEDescriptor
from ....layout import DTYPES
from .block import Block
from .formula import INTEGERS, KINDS, Array, FormulaCall, turned, uniform
from .line import Line

if TYPE_CHECKING:
    from ....device import DeviceInfo

NEEDS = ""


@dataclass(eq=False)
class InfiniopCall(FormulaCall):
    """One call; in place, y is x."""

    y: Block
    x: Block
    pos_ids: Array
    sin_table: Array
    cos_table: Array
    algo: Algo
    kind: str

    @property
    def inputs(self) -> Sequence[Array]:
        """Positions and tables; `apply` copies x and y."""
        return self.tensors[2:]

    @property
    def tensors(self) -> tuple[Array, Array, Array, Array, Array]:
        """The descriptor's arguments."""
        return self.y.view, self.x.view, self.pos_ids, self.sin_table, self.cos_table

    def formula(self, real: Any) -> Array:
        """Rotate each token by its row of the tables."""
        x = self.x.view
        batch = x.shape[0] if x.ndim == 4 else 1
        rows = np.broadcast_to(self.pos_ids.astype(np.int64), (batch, x.shape[-3])).reshape(x.shape[:-2])
        cos, sin = self.cos_table[rows][..., None, :], self.sin_table[rows][..., None, :]
        return turned(x, cos, sin, self.algo == Algo.GPT_J, real)

    def apply(self, device: DeviceInfo) -> tuple[Array, list[str]]:
        """Run the descriptor on copies of y's and x's memory."""
        x = self.x.copy()
        y = x if self.y is self.x else self.y.copy()
        tensors = (y.view, x.view, *self.tensors[2:])
        errors = []
        if RoPEDescriptor(*tensors, self.algo, device=device).run(*tensors) is not y.view:
            errors.append("the result is not y")
        errors += y.errors(self.y, "bytes outside y", around=True)
        errors += x.errors(self.x, "bytes of x") if y is not x else []
        return np.array(y.view), errors

    def __str__(self) -> str:
        x, y = self.x.view, self.y.view
        return (
            f"{self.kind} {self.algo!r} x {list(x.shape)} strides {x.strides} y strides {y.strides} "
            f"in place {self.y is self.x} pos_ids {self.pos_ids.dtype} {self.pos_ids.tolist()} "
            f"tables {self.cos_table.shape}"
        )


def draw(
    rng: np.random.Generator, kind: str, algo: Algo, rank: int, inplace: bool, pos_type: str, per_batch: bool
) -> InfiniopCall:
    """Draw lengths, strides, positions and values; tables hold arbitrary values, not cosines and sines."""
    dhead = 2 * int(rng.integers(1, 65))
    shape = (*(int(n) for n in rng.integers(1, 6, rank - 1)), dhead)
    batch, seqlen = (shape[0] if rank == 4 else 1), shape[-3]
    max_pos = int(rng.integers(seqlen, 120))
    sin, cos = (uniform(rng, (max_pos, dhead // 2), kind) for _ in range(2))
    pos = rng.integers(0, max_pos, (batch, seqlen) if per_batch else (seqlen,)).astype(pos_type)
    x = Block.drawn(rng, shape, DTYPES[kind])
    x.view[...] = uniform(rng, shape, kind)
    y = x if inplace else Block.drawn(rng, shape, DTYPES[kind])
    return InfiniopCall(y, x, pos, sin, cos, algo, kind)


def lines() -> Iterator[Line]:
    """Yield every type, algorithm and rank, in place or not, pos_ids of every integer type, shared or per batch."""
    for i, (kind, algo, rank, inplace, per_batch) in enumerate(
        product(KINDS, Algo, (3, 4), (False, True), (False, True))
    ):
        # 64 lines: each of the 8 integer types 8 times, with every type of x.
        pos_type = INTEGERS[(i + i // 8) % 8]
        label = (
            f"INFINIOP(type={kind},algo={algo.name},rank={rank},inplace={int(inplace)},pos={pos_type}"
            f"{'[batch,seqlen]' if per_batch else '[seqlen]'})"
        )
        drawn = partial(draw, kind=kind, algo=algo, rank=rank, inplace=inplace, pos_type=pos_type, per_batch=per_batch)
        yield Line(label, kind, drawn)
