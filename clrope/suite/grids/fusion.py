"""The suite 'fusion': RMS norm and rotation in one launch, against both in float64 and against their bits in NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ... import api, reference
from ...config import RopeConfig
from ...layout import DTYPES
from ...norm import Norm, Order, Over, Rounding
from ...norm_emulation import emulate_norm_rope
from ..call_trial import CallTrial, Place
from ..case_outcome import SuiteCase
from ..ggml_fusion import ggml_fusion_lines
from ..registry import suite
from ..rope_trial import generator
from .kv_lines import cache_lines

if TYPE_CHECKING:
    from ...device import DeviceInfo

Array = npt.NDArray[Any]
TOKENS, BATCHES = 6, 2


@dataclass(frozen=True)
class NormLine:
    """One call of `clrope.rope` with a norm. v: 0 dense heads, 1 every other element of longer ones."""

    type: str
    mode: Literal["normal", "neox"]
    over: Over
    order: Order
    rounding: Rounding
    head_dim: int
    n_dims: int
    heads: int
    v: int
    inplace: bool

    @property
    def label(self) -> str:
        """A text like the notation of the grid."""
        return (
            f"NORM_ROPE(type={self.type},ne_a=[{self.head_dim},{self.heads},{TOKENS},{BATCHES}],n_dims={self.n_dims},"
            f"mode={self.mode},over={self.over},order={self.order},rounding={self.rounding},v={self.v},"
            f"inplace={int(self.inplace)})"
        )

    def prepare(self, seed: int) -> CallTrial:
        """Draw x, weight, eps and positions, and compute the references."""
        rng = generator(seed, self.label)
        shape = (BATCHES, TOKENS, self.heads, self.head_dim)
        # Heads of different magnitudes.
        drawn = rng.uniform(-1, 1, shape) * 4.0 ** rng.integers(-3, 4, (*shape[:3], 1))
        x = drawn.astype(DTYPES[self.type])
        config = RopeConfig(self.mode, self.n_dims, attn_factor=1.25)
        positions = rng.integers(0, 1 << 20, (BATCHES, TOKENS))
        weight = rng.uniform(-1, 2, self.head_dim * (1 if self.over == "head" else self.heads))
        eps, offset = 10.0 ** rng.uniform(-12, -3), float(rng.integers(0, 2))
        norm = Norm(weight.astype(np.float32), eps, offset, self.over, self.order, self.rounding)

        def run(x: Sequence[Array], out: Sequence[Array], device: DeviceInfo) -> None:
            api.rope(x[0], positions, config, out=out[0], device=device, norm=norm)

        return CallTrial(
            run, [x], positions, config, [reference.norm_rope(x, positions, config, norm)],
            [emulate_norm_rope(x, positions, config, norm)], places=[Place(step=1 + self.v)], inplace=self.inplace,
            # "each" rounds three times, and errors of the rounded values are turned.
            rounded=4 if self.rounding == "each" else 1,
        )  # fmt: skip


@suite("fusion")
def fusion() -> Iterator[SuiteCase]:
    """Norm and rotation in one launch, rotation into KV caches, shifts of keys in them, and ggml's cases of these."""
    heads = cycle(((64, 64), (128, 128), (80, 32), (256, 64), (96, 96), (192, 128), (512, 512)))
    views = cycle(((0, False), (0, True), (1, False), (0, False), (1, True)))
    for kind, mode, over, order in product(DTYPES, ("normal", "neox"), ("head", "heads"), ("before", "after")):
        for rounding in ("once", "each"):
            if kind in ("f16", "bf16") or (rounding == "once" and kind in ("f32", "f64")):
                head_dim, n_dims = next(heads)
                yield NormLine(kind, mode, over, order, rounding, head_dim, n_dims, 3, *next(views))  # type: ignore[arg-type]
    yield from cache_lines()
    yield from ggml_fusion_lines()
