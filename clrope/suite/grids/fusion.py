"""The suite 'fusion': RMS norm and rotation in one launch, against both in float64 and against their bits in NumPy."""

from __future__ import annotations

from collections.abc import Iterator
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
from ...testing import NAN_POISON, bits, changed_outside, digest_of, guarded, limit_for, nmse
from ..case_outcome import CaseOutcome
from ..registry import suite
from ..rope_trial import generator
from .kv_lines import CacheLine, cache_lines

if TYPE_CHECKING:
    from ...device import DeviceInfo

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

    def prepare(self, seed: int) -> NormTrial:
        """Draw the inputs and compute the reference."""
        return NormTrial(self, seed)


class NormTrial:
    """x, weight, eps and positions of a line; the output is poisoned, with guards on both sides."""

    def __init__(self, line: NormLine, seed: int) -> None:
        self.line = line
        rng = generator(seed, line.label)
        shape = (BATCHES, TOKENS, line.heads, line.head_dim)
        # Heads of different magnitudes.
        x = rng.uniform(-1, 1, shape) * 4.0 ** rng.integers(-3, 4, (*shape[:3], 1))
        self.x: npt.NDArray[Any] = x.astype(DTYPES[line.type])
        self.config = RopeConfig(line.mode, line.n_dims, attn_factor=1.25)
        self.positions = rng.integers(0, 1 << 20, (BATCHES, TOKENS))
        weight = rng.uniform(-1, 2, line.head_dim * (1 if line.over == "head" else line.heads))
        eps, offset = 10.0 ** rng.uniform(-12, -3), float(rng.integers(0, 2))
        self.norm = Norm(weight.astype(np.float32), eps, offset, line.over, line.order, line.rounding)
        self.want = reference.norm_rope(self.x, self.positions, self.config, self.norm)
        # "each" rounds three times, and errors of the rounded values are turned.
        self.limit = limit_for(line.type, self.x.size) * (4 if line.rounding == "each" else 1)
        self.digest = digest_of([emulate_norm_rope(self.x, self.positions, self.config, self.norm)])

    def run(self, device: DeviceInfo) -> CaseOutcome:
        """Run on the device and check the result and the memory around it."""
        if self.line.type == "f64" and not device.fp64:
            return CaseOutcome("skip", limit=self.limit, detail="the device has no fp64")
        step = 1 + self.line.v
        memory, whole = guarded((*self.x.shape[:3], self.line.head_dim * step), self.x.dtype, NAN_POISON)
        got = whole[..., ::step]
        x = np.repeat(self.x, step, axis=-1)[..., ::step]
        if self.line.inplace:
            got[...] = x
            x = got
        before = memory.copy()
        api.rope(x, self.positions, self.config, out=got, device=device, norm=self.norm)
        errors = []
        error = nmse(got, self.want)
        if not error <= self.limit:
            errors.append(f"limit {self.limit:.0e}")
        if changed_outside(memory, before, [got]).any():
            errors.append("elements outside the output changed")
        if not self.line.inplace and (bits(x) != bits(self.x)).any():
            errors.append("elements of the input changed")
        return CaseOutcome("fail" if errors else "ok", error, self.limit, digest_of([got]), "; ".join(errors))


@suite("fusion")
def fusion() -> Iterator[NormLine | CacheLine]:
    """RMS norm and rotation in one launch: both orders, over one head and over all, rounded once and at each step."""
    heads = cycle(((64, 64), (128, 128), (80, 32), (256, 64), (96, 96), (192, 128), (512, 512)))
    views = cycle(((0, False), (0, True), (1, False), (0, False), (1, True)))
    for kind, mode, over, order in product(DTYPES, ("normal", "neox"), ("head", "heads"), ("before", "after")):
        for rounding in ("once", "each"):
            if kind in ("f16", "bf16") or (rounding == "once" and kind in ("f32", "f64")):
                head_dim, n_dims = next(heads)
                yield NormLine(kind, mode, over, order, rounding, head_dim, n_dims, 3, *next(views))  # type: ignore[arg-type]
    yield from cache_lines()
