"""Which two elements of a head a pair is, in the numbers that the kernels take."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import RopeConfig
from ..program.variants import Pairing


@dataclass(frozen=True)
class Geometry:
    """Pair i of the input is (window + i * step, that + distance), of the output likewise with its own two numbers.

    pairing names the kernel that does this by vectors; None where only the strided kernel can.
    """

    pairs: int
    window: int
    head_dim: int
    step: int
    distance: int
    out_step: int
    out_distance: int

    @classmethod
    def of_config(cls, config: RopeConfig, head_dim: int) -> Geometry:
        """Return the pairs of a configuration (with n_dims set) on heads of head_dim elements."""
        pairs = config.n_pairs(head_dim)
        if config.mode == "normal":
            return cls(pairs, config.n_offs, head_dim, 2, 1, 2, 1)
        return cls(pairs, config.n_offs, head_dim, 1, pairs, 1, pairs)

    @property
    def pairing(self) -> Pairing | None:
        """The vector kernel's name, 'normal' or 'neox', or None."""
        steps = (self.step, self.distance, self.out_step, self.out_distance)
        if steps == (2, 1, 2, 1):
            return "normal"
        if steps == (1, self.pairs, 1, self.pairs):
            return "neox"
        return None

    @property
    def rest(self) -> int:
        """Elements of a head that are copied."""
        return self.head_dim - 2 * self.pairs
