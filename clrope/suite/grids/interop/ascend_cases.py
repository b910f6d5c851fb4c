"""Ascend's rotary_mul: every mode, type and choice of axes on which r1 and r2 have length 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ....interop import ascend
from ....layout import DTYPES, dtype_name
from .block import Block
from .formula import KINDS, Array, FormulaCall, uniform
from .line import Line

if TYPE_CHECKING:
    from ....device import DeviceInfo

NEEDS = ""
MODES = tuple(ascend.ROTARY_MODES)
#: The result is a new array, the array `out`, or x.
RESULTS = ("new", "out", "inplace")


@dataclass(eq=False)
class AscendCall(FormulaCall):
    """One call; x may be any view."""

    x: Array
    r1: Array
    r2: Array
    rotary_mode: str
    result: str = "new"
    out: Block | None = None

    def __post_init__(self) -> None:
        self.kind = dtype_name(self.x.dtype)

    def formula(self, real: Any) -> Array:
        """Return the documented formula of the mode."""
        x, r1, r2 = (a.astype(real) for a in (self.x, self.r1, self.r2))
        if self.rotary_mode == "half":
            x1, x2 = np.split(x, 2, -1)
            return np.asarray(x * r1 + np.concatenate([-x2, x1], -1) * r2)
        if self.rotary_mode == "interleave":
            turned = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
            return np.asarray(x * r1 + turned * r2)
        if self.rotary_mode == "quarter":
            x1, x2, x3, x4 = np.split(x, 4, -1)
            return np.asarray(x * r1 + np.concatenate([-x2, x1, -x4, x3], -1) * r2)
        x1, x2 = x[..., ::2], x[..., 1::2]
        return np.asarray(np.concatenate([x1, x2], -1) * r1 + np.concatenate([-x2, x1], -1) * r2)

    @property
    def inputs(self) -> list[Array]:
        """The inputs, which must not change."""
        return [self.x, self.r1, self.r2]

    def run(self, **options: Any) -> Any:
        """Call the adapter with these inputs."""
        return ascend.rotary_mul(self.x, self.r1, self.r2, self.rotary_mode, **options)

    def apply(self, device: DeviceInfo) -> tuple[Array, list[str]]:
        """Call the adapter, with guard bytes around `out`."""
        errors = []
        if self.out is None:
            got = self.run(device=device)
        else:
            block, x = self.out.copy(), self.x
            if self.result == "inplace":
                block.view[...] = x
                x = block.view
            got = ascend.rotary_mul(x, self.r1, self.r2, self.rotary_mode, out=block.view, device=device)
            if got is not block.view:
                errors.append("the result is not out")
            errors += block.errors(self.out, "bytes outside out", around=True)
        return np.array(got), errors

    def __str__(self) -> str:
        return (
            f"{self.rotary_mode} {self.x.dtype}{list(self.x.shape)} strides {self.x.strides} r {list(self.r1.shape)} "
            f"{self.result}"
        )


def draw(rng: np.random.Generator, mode: str, kind: str, ones: Sequence[bool], result: str = "new") -> AscendCall:
    """Draw lengths, strides and values; ones: the axes on which r1 and r2 have length 1."""
    head_dim = (4 if mode == "quarter" else 2) * int(rng.integers(1, 40))
    shape = (*(int(n) for n in rng.integers(1, 6, 3)), head_dim)
    x = uniform(rng, (*shape[:3], head_dim + 3), kind)[..., 2 : head_dim + 2]
    if rng.random() < 0.5:
        x = np.ascontiguousarray(x)
    if rng.random() < 0.3:
        x = np.ascontiguousarray(x.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3)
    rows = tuple(1 if one else n for one, n in zip(ones, shape[:3], strict=True))
    r1, r2 = (uniform(rng, (*rows, head_dim), kind) for _ in range(2))
    return AscendCall(x, r1, r2, mode, result, None if result == "new" else Block.drawn(rng, shape, DTYPES[kind]))


def lines() -> Iterator[Line]:
    """Yield every mode, type and shape of r1 and r2; in labels, 1 is a length of 1, N the length of x."""
    for i, (kind, mode, ones) in enumerate(product(KINDS, MODES, product((True, False), repeat=3))):
        result = RESULTS[i % 3]
        if mode == "interleave-half" and result == "inplace":  # it moves elements
            result = "out"
        shape = "".join("1" if one else "N" for one in ones) + "D"
        label = f"ASCEND(type={kind},rotary_mode={mode},r={shape},result={result})"
        yield Line(label, kind, partial(draw, mode=mode, kind=kind, ones=ones, result=result))
