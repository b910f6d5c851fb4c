"""Random conventions, tensors rotated by them, and whether what was found is the same convention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import clrope
from clrope.layout import DTYPES

KNOWN = (1e4, 5e5, 1e6, 1e7, 1.5e5, 8e6, 1e8)
SCALES = (1.0, 1.0, 0.5, 0.25, 0.125, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class RandomRotation:
    """One case: `before` at positions start, start + 1, … rotated by config at positions moved by offset."""

    config: clrope.RopeConfig
    forward: bool
    offset: int
    start: int
    before: np.ndarray
    after: np.ndarray

    @property
    def positions(self) -> np.ndarray:
        return np.arange(self.before.shape[1]) + self.start

    def is_same(self, found: Any) -> bool:
        """Whether a hypothesis is the convention, but for what the tensors do not show.

        Rounding hides the last digits of the base. Tokens at one position show the product of scale and position only.
        """
        config, want = found.config, self.config
        if (config.mode, config.n_dims) != (want.mode, want.n_dims):
            return False
        if abs(math.log(config.freq_base / want.freq_base)) > 0.02 and found.differing > 0.01:
            return False
        if self.before.shape[1] == 1 and self.offset:
            got, expected = (
                c.freq_scale * (self.start + offset) * (1 if forward else -1)
                for c, offset, forward in ((config, found.offset, found.forward), (want, self.offset, self.forward))
            )
            return math.isclose(got, expected, rel_tol=1e-9)
        near = math.isclose(config.freq_scale, want.freq_scale, rel_tol=2e-3)
        return near and (found.forward, found.offset) == (self.forward, self.offset)

    def __str__(self) -> str:
        way = "forward" if self.forward else "inverse"
        shape = f"{self.before.dtype} {list(self.before.shape)}"
        return f"{self.config}, {way}, offset {self.offset}, {shape} from {self.start} on"


def draw(rng: np.random.Generator) -> RandomRotation:
    """Draw a convention and tensors of it; at least one token is turned."""
    width = int(rng.choice([32, 64, 80, 96, 128, 256]))
    n_dims = width if rng.random() < 0.5 else int(rng.choice([width // 4, width // 2, 3 * width // 4]))
    known = rng.random() < 0.5
    config = clrope.RopeConfig(
        mode=str(rng.choice(["normal", "neox"])),  # type: ignore[arg-type]
        n_dims=n_dims,
        freq_base=float(rng.choice(KNOWN)) if known else float(np.exp(rng.uniform(np.log(1e3), np.log(1e8)))),
        freq_scale=float(rng.choice(SCALES)),
        angles=str(rng.choice(["exact", "exact", "exact", "ggml"])),  # type: ignore[arg-type]
    )
    forward = bool(rng.random() < 0.75)
    batch, seq, heads = (int(rng.integers(1, most + 1)) for most in (2, 48, 8))
    start = int(rng.choice([0, rng.integers(0, 100), rng.integers(0, 100_001)]))
    offset = int(rng.choice([0, 0, 0, 1, -1, rng.integers(-50, 50), rng.integers(-5000, 5000)]))
    if seq == 1 and start + offset == 0:
        start += 3
    dtype = DTYPES[str(rng.choice(["f16", "f32", "bf16"]))]
    before = rng.standard_normal((batch, seq, heads, width)).astype(np.float32).astype(dtype)
    after = clrope.reference.rope(before, np.arange(seq) + start + offset, config, forward).astype(dtype)
    return RandomRotation(config, forward, offset, start, before, after)
