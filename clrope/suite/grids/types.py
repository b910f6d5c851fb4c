"""The suite 'types': every value of the small types, and the hard values of float32 and float64, bit for bit.

- copy: values outside of the rotated window keep every bit.
- still: values at position 0 with a partner of 0 stay equal (any NaN as a NaN).
- turn: rotated values have the bits of the same arithmetic in NumPy: rounding to nearest even, subnormals, infinities
  and NaN as in IEEE 754.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ... import api
from ...config import RopeConfig
from ...emulation import emulate_rope
from ...layout import DTYPES
from ...testing import bits, changed_outside, differing, digest_of, guarded
from ..case_outcome import CaseOutcome
from ..registry import suite
from ..rope_trial import generator

if TYPE_CHECKING:
    from ...device import DeviceInfo

Check = Literal["copy", "still", "turn"]
HEAD = 64
COUNT = 1 << 16


def values_of(kind: str, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Return 65,536 values: all values of types of 8 and 16 bits, else random bit patterns and the limits."""
    dtype = DTYPES[kind]
    words = np.dtype(f"u{dtype.itemsize}")
    if dtype.itemsize <= 2:
        return np.arange(COUNT).astype(words).view(dtype)
    info = np.finfo(dtype)
    special = [0.0, 1.0, info.max, info.tiny, info.smallest_subnormal, np.inf, np.nan, info.eps, info.tiny / 2]
    fixed = np.array([*special, *(-s for s in special)], dtype)
    drawn = rng.integers(0, np.iinfo(words).max, COUNT - fixed.size, dtype=words, endpoint=True).view(dtype)
    return np.concatenate([fixed, drawn])


@dataclass(frozen=True)
class TypeLine:
    """All values of a type in one mode through one of the checks."""

    kind: str
    mode: Literal["normal", "neox"]
    check: Check
    inplace: bool

    @property
    def label(self) -> str:
        """A text like the notation of the grid."""
        return f"VALUES(type={self.kind},mode={self.mode},check={self.check},inplace={int(self.inplace)})"

    def prepare(self, seed: int) -> TypeTrial:
        """Draw the values."""
        return TypeTrial(self, seed)


class TypeTrial:
    """x is [1, tokens, 1, HEAD]; the output is poisoned, with guards on both sides."""

    # Asking whether a signalling NaN is a NaN is an invalid operation to ml_dtypes.
    @np.errstate(invalid="ignore")
    def __init__(self, line: TypeLine, seed: int) -> None:
        self.line = line
        rng = generator(seed, line.label)
        values = values_of(line.kind, rng)
        pairs = HEAD // 2
        rotated = HEAD
        if line.check == "turn":
            # Each value is the first and the second of a pair with a random value.
            both = np.concatenate([values, rng.permutation(values)]).reshape(2, -1, pairs)
            heads = np.concatenate([both, both[::-1]], axis=1)
        elif line.check == "still":
            x = values.reshape(-1, pairs)
            zero = np.zeros_like(x)
            heads = np.stack([np.concatenate([x, zero]), np.concatenate([zero, x])])
        else:
            rotated = HEAD // 2
            copied = values.reshape(-1, HEAD - rotated)
            heads = np.stack([rng.uniform(-1, 1, copied.shape).astype(values.dtype), copied])
        # Halves side by side, or interleaved.
        axis = 1 if line.check == "copy" or line.mode == "neox" else 2
        ordered = np.stack([heads[0], heads[1]], axis=axis).reshape(-1, HEAD)
        self.x = np.ascontiguousarray(ordered)[None, :, None, :]
        self.config = RopeConfig(mode=line.mode, n_dims=rotated)
        tokens = self.x.shape[1]
        self.positions = np.zeros(tokens, np.int64) if line.check == "still" else rng.integers(0, 1 << 20, tokens)
        if line.check == "still":
            # By definition: cos is 1, sin is 0. The product of an infinity and sin is NaN.
            self.want = self.x.copy()
            first, second = _pairs_of(self.want, line.mode)
            wild_first, wild_second = (~np.isfinite(part) for part in (first, second))
            first[wild_second] = np.nan
            second[wild_first] = np.nan
            # In the second of a pair, -0 + 0 is +0.
            second[second == 0] = 0
        else:
            self.want = emulate_rope(self.x, self.positions, self.config)
        self.rotated = rotated
        self.digest = digest_of([self.want])

    @np.errstate(invalid="ignore")
    def run(self, device: DeviceInfo) -> CaseOutcome:
        """Run on the device and compare every bit."""
        if self.line.kind == "f64" and not device.fp64:
            return CaseOutcome("skip", detail="the device has no fp64")
        memory, got = guarded(self.x.shape, self.x.dtype)
        before = memory.copy()
        x = self.x.copy()
        if self.line.inplace:
            got[...] = x
            x = got
        api.rope(x, self.positions, self.config, out=got, device=device)
        errors = []
        differs = differing(got, self.want)
        # A copied NaN keeps its bits; arithmetic may make any NaN.
        differs[..., self.rotated :] = (bits(got) != bits(self.want))[..., self.rotated :]
        if differs.any():
            at = tuple(int(i) for i in np.argwhere(differs)[0])
            errors.append(
                f"{int(differs.sum())} of {got.size} values differ, first at {list(at)}: "
                f"got {int(bits(got)[at]):#x}, want {int(bits(self.want)[at]):#x}"
            )
        if changed_outside(memory, before, [got]).any():
            errors.append("elements outside the output changed")
        if not self.line.inplace and (bits(x) != bits(self.x)).any():
            errors.append("elements of the input changed")
        return CaseOutcome("fail" if errors else "ok", digest=digest_of([got]), detail="; ".join(errors))


def _pairs_of(heads: npt.NDArray[Any], mode: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return views of the first and of the second elements of all pairs."""
    if mode == "normal":
        return heads[..., 0::2], heads[..., 1::2]
    return heads[..., : HEAD // 2], heads[..., HEAD // 2 :]


@suite("types")
def types() -> Iterator[TypeLine]:
    """All values of the types of 8 and 16 bits, hard values of f32 and f64: copied, rotated by nothing, rotated."""
    checks: tuple[Check, ...] = ("copy", "still", "turn")
    modes: tuple[Literal["normal", "neox"], ...] = ("normal", "neox")
    for kind, mode, check, inplace in product(DTYPES, modes, checks, (False, True)):
        yield TypeLine(kind, mode, check, inplace)
