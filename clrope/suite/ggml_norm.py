"""ggml's RMS_NORM_MUL_ROPE: the parameters of its tests/test-backend-ops.cpp, as calls of `clrope.rope` with a norm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import api, reference
from ..config import RopeConfig, parse_mode
from ..emulation import emulate_rope
from ..norm import Norm
from ..norm_emulation import emulate_rms_norm
from .call_trial import CallTrial
from .rope_trial import generator

if TYPE_CHECKING:
    from ..device import DeviceInfo

Array = npt.NDArray[Any]
#: [D, N, S]; ggml's list has the last one twice.
_LENGTHS = (
    (768, 1, 1), (768, 3, 1), (768, 3, 5), (128, 32, 2), (128, 4, 2), (128, 32, 50), (128, 4, 50), (8192, 2, 2),
)  # fmt: skip


@dataclass(frozen=True)
class GgmlNormLine:
    """One case. multi_add: x is a sum of three tensors; broadcast: one weight [D], not one for each head and token."""

    ne: tuple[int, int, int]
    multi_add: bool
    broadcast: bool
    mode: int

    @property
    def label(self) -> str:
        """The case in ggml's notation, with its type."""
        return (
            f"RMS_NORM_MUL_ROPE(type=f32,ne=[{','.join(map(str, self.ne))},1],eps=0.000001,"
            f"multi_add={int(self.multi_add)},broadcast={int(self.broadcast)},mode={self.mode})"
        )

    def prepare(self, seed: int) -> GgmlNormTrial:
        """Draw the inputs and compute the references."""
        return GgmlNormTrial(self, seed)


class GgmlNormTrial(CallTrial):
    """A case with its inputs. parts: the tensors whose sum is x; weight: [D], or as x."""

    def __init__(self, line: GgmlNormLine, seed: int) -> None:
        rng = generator(seed, line.label)
        head_dim, heads, tokens = line.ne
        shape = (1, tokens, heads, head_dim)
        self.parts = [rng.uniform(-1, 1, shape).astype(np.float32) for _ in range(3 if line.multi_add else 1)]
        self.eps = float(np.float32(1e-6))
        # Of the three, ggml takes the second for the weight.
        drawn = rng.uniform(-1, 1, head_dim if line.broadcast else shape).astype(np.float32)
        self.weight: Array = self.parts[1] if line.multi_add and not line.broadcast else drawn
        config, positions = RopeConfig(parse_mode(line.mode), head_dim), rng.permutation(tokens).astype(np.int32)
        x = sum(self.parts[1:], self.parts[0])
        plain = Norm(np.ones(head_dim, np.float32), self.eps)
        # A product with 1 is exact: with the weight after it, the bits are those of one product.
        want = reference.rope(reference.rms_norm(x, plain) * self.weight, positions, config)
        right = emulate_rope(emulate_rms_norm(x, plain) * self.weight, positions, config)
        weights = self.weight.reshape(-1, head_dim)
        norms = [Norm(row, self.eps) for row in weights]

        def run(x: Sequence[Array], out: Sequence[Array], device: DeviceInfo) -> None:
            if line.broadcast:
                api.rope(x[0], positions, config, out=out[0], device=device, norm=norms[0])
                return
            for token in range(tokens):  # each head with a weight of its own
                source, target = (
                    tuple(a[:, token : token + 1, head : head + 1] for head in range(heads)) for a in (x[0], out[0])
                )
                own = tuple(norms[token * heads : (token + 1) * heads])
                api.rope(source, positions[token : token + 1], config, out=target, device=device, norm=own)

        super().__init__(run, [x], positions, config, [want], [right])


def ggml_norm_lines() -> Iterator[GgmlNormLine]:
    """Yield the grid."""
    for multi_add, broadcast, mode, ne in product((False, True), (False, True), (0, 2), _LENGTHS):
        yield GgmlNormLine(ne, multi_add, broadcast, mode)
