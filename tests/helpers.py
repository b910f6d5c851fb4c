"""Cases that can be written on one line, and the one assertion that checks a device's result.

A `Case` says everything about a call; `build` makes its arrays from its seed. `assert_rotated` compares a result with
the emulation (every bit), with the independent oracle (normalised error), and the memory around it with what was there
before. Its message is a line to paste into `python` in the folder of this file.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import numpy as np
import oracle

import clrope
from clrope.call.runtime import runtime_for
from clrope.emulation import emulate_rope
from clrope.layout import DTYPES, canonical
from clrope.reference import pair_indices
from clrope.testing import (
    POISON as POISON,
)
from clrope.testing import VERY_FEW, WORST_ROUNDING, changed_outside, differing, nmse, poisoned
from clrope.testing import bits as bits

SHORT_NAMES = {
    "portable computing language": "pocl", "intel": "intel", "nvidia": "nvidia", "amd": "amd", "rusticl": "rusticl",
    "oclgrind": "oclgrind",
}  # fmt: skip


#: Of a property in the profile "clrope"; the profile "nightly" has `NIGHTLY` times more.
EXAMPLES, NIGHTLY = 60, 250


def examples(count: int, **more: Any) -> hypothesis.settings:
    """Return settings for so many examples, and as many times more as the chosen profile has; more: other settings."""
    times = hypothesis.settings.default.max_examples / EXAMPLES
    return hypothesis.settings(max_examples=math.ceil(count * times), **more)


def short_name(device: clrope.DeviceInfo) -> str:
    """Return e.g. 'pocl-1:0', for test ids and messages; `clrope.device` takes the part behind the hyphen."""
    for part, name in SHORT_NAMES.items():
        if part in device.platform.lower():
            return f"{name}-{device.index}"
    return f"{device.platform.split()[0].lower()}-{device.index}"


def copies(device: clrope.DeviceInfo) -> bool:
    """Whether arrays of the host are copied to the device, each for a launch of its own."""
    return runtime_for(device).host_access == "copied"


@dataclass(frozen=True)
class View:
    """How a tensor is laid out in a parent array.

    Per axis a step (negative: backwards) and elements left over, the order of the axes in memory (slowest first), and
    elements before the first.
    """

    steps: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    before: int = 0

    def place(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return (parent, view of `shape` into it); the parent is one-dimensional and poisoned."""
        rank = len(shape)
        steps, pads = self.steps or (1,) * rank, self.pads or (0,) * rank
        order = self.order or tuple(range(rank))
        lengths = [n * abs(step) + pad for n, step, pad in zip(shape, steps, pads, strict=True)]
        total = math.prod(lengths)
        parent = poisoned(self.before + total + 3, dtype)
        block = parent[self.before : self.before + total].reshape([lengths[axis] for axis in order])
        block = block.transpose(np.argsort(order))
        cuts = []
        for n, step, pad in zip(shape, steps, pads, strict=True):
            first = pad // 2 + (0 if step > 0 else (n - 1) * -step)
            stop = first + n * step
            cuts.append(slice(first, stop if stop >= 0 else None, step) if n else slice(0, 0))
        return parent, block[tuple(cuts)]


@dataclass(frozen=True)
class Case:
    """One call. shape is in the order of `layout`; positions a form, and a range they are drawn from.

    positions: 'int', 'S', 'BS', '1S', 'B', '3S', '4S', '3BS', '4BS'. out: None for a new array, 'in place', or a View.
    values: 'uniform' in [-1, 1], or 'bits' for any pattern, NaN and infinities included.
    """

    config: dict[str, Any]
    shape: tuple[int, ...]
    dtype: str = "f32"
    layout: str = "bsnd"
    positions: str = "S"
    position_dtype: str = "int64"
    low: int = 0
    high: int = 512
    forward: bool = True
    x: View = field(default_factory=View)
    out: View | str | None = None
    values: str = "uniform"
    seed: int = 0

    @property
    def letters(self) -> str:
        return self.layout if len(self.shape) == 4 else self.layout.replace("b", "")

    def length(self, letter: str) -> int:
        return self.shape[self.letters.index(letter)] if letter in self.letters else 1

    def build(self) -> Built:
        rng = np.random.default_rng(self.seed)
        dtype = DTYPES[self.dtype]
        parent, x = self.x.place(self.shape, dtype)
        fill(x, rng, self.values)
        out_parent, out = None, None
        if isinstance(self.out, View):
            out_parent, out = self.out.place(self.shape, dtype)
        elif self.out == "in place":
            out_parent, out = parent, x
        return Built(self, x, self._positions(rng), out, parent, out_parent, parent.copy(), x.copy())

    def _positions(self, rng: np.random.Generator) -> Any:
        b, s = self.length("b"), self.length("s")
        forms = {"int": (), "S": (s,), "BS": (b, s), "1S": (1, s), "B": (b,), "3S": (3, s), "4S": (4, s),
                 "3BS": (3, b, s), "4BS": (4, b, s)}  # fmt: skip
        info = np.iinfo(self.position_dtype)
        low, high = max(self.low, int(info.min)), min(self.high, int(info.max), 2**63 - 1 - max(s, 1))
        if self.positions == "int" and self.position_dtype == "int64":
            return int(rng.integers(low, high, endpoint=True))
        kind = np.uint64 if self.position_dtype == "uint64" else np.int64
        return np.asarray(rng.integers(low, high, forms[self.positions], dtype=kind, endpoint=True)).astype(
            self.position_dtype
        )

    def __str__(self) -> str:
        given = ", ".join(
            f"{f.name}={getattr(self, f.name)!r}"
            for f in dataclasses.fields(self)
            if f.name in ("config", "shape", "seed") or getattr(self, f.name) != _default(f)
        )
        return f"Case({given})"


def _default(f: dataclasses.Field[Any]) -> Any:
    return f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default


@dataclass(eq=False)
class Built:
    """The arrays of a case, and copies of the input's parent and of the input from before the call."""

    case: Case
    x: np.ndarray
    positions: Any
    out: np.ndarray | None
    parent: np.ndarray
    out_parent: np.ndarray | None
    parent_before: np.ndarray
    x_before: np.ndarray


def fill(x: np.ndarray, rng: np.random.Generator, values: str = "uniform") -> None:
    if values == "uniform":
        x[...] = rng.uniform(-1, 1, x.shape).astype(x.dtype)
    else:
        bits = rng.integers(0, 256, (x.size, x.dtype.itemsize), dtype=np.uint8).view(x.dtype)
        x[...] = bits.reshape(x.shape)


def aligned_memory(count: int, dtype: Any, shift: int = 0) -> np.ndarray:
    """Return poisoned elements that begin `shift` elements after an address that 64 divides."""
    dtype = np.dtype(dtype)
    raw = poisoned((count + shift) * dtype.itemsize + 64)
    start = -raw.__array_interface__["data"][0] % 64 + shift * dtype.itemsize
    return raw[start : start + count * dtype.itemsize].view(dtype)


def same(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Where two arrays hold the same bits, or both a NaN (whose bits no rule fixes)."""
    return ~differing(got, want)


def with_largest_allocation(device: clrope.DeviceInfo, nbytes: int) -> clrope.DeviceInfo:
    """Return a device like the given one with another largest allocation; limits alone do not make another device."""
    return dataclasses.replace(device, name=f"{device.name}, {nbytes} bytes", max_alloc=nbytes)


def run(case: Case, device: clrope.DeviceInfo | None = None) -> None:
    """Rotate the case on a device by `clrope.rope` and check the result."""
    built = case.build()
    config = clrope.RopeConfig.from_dict(case.config)
    got = clrope.rope(
        built.x, built.positions, config, case.forward, out=built.out, layout=case.layout, device=_selector(device)
    )
    assert built.out is None or got is built.out, f"the result is not `out`\n  {line(case, device)}"
    assert_rotated(got, built, device)


def _selector(device: clrope.DeviceInfo | None) -> Any:
    return None if device is None else device.index


def line(case: Case, device: clrope.DeviceInfo | None) -> str:
    """Return the line that repeats a case."""
    chosen = "" if device is None else f", clrope.device({device.index!r})"
    return f"import clrope; from helpers import Case, View, run; run({case}{chosen})"


def assert_rotated(
    got: Any, built: Built, device: clrope.DeviceInfo | None = None, *, by_oracle: bool | None = None
) -> None:
    """Assert that `got` is the rotation of a built case: type, shape, every bit, the error, and all memory around.

    by_oracle: whether to compare with the oracle too; None: where the values allow a normalised error to be stated.
    """
    case = built.case
    config = clrope.RopeConfig.from_dict(case.config)

    def fail(text: str) -> None:
        strides = "" if not isinstance(got, np.ndarray) else f", result strides {got.strides}"
        where = "" if device is None else f" on {device}, driver {device.driver_version}"
        raise AssertionError(
            f"{text}{where}\n  x: {case.dtype}{list(case.shape)} strides {built.x.strides}{strides}, seed {case.seed}\n"
            f"  positions: {np.asarray(built.positions).tolist()}\n  repeat: {line(case, device)}"
        )

    if not isinstance(got, np.ndarray):
        fail(f"the result is a {type(got).__name__}, not a NumPy array")
    if got.dtype != DTYPES[case.dtype]:
        fail(f"the result has dtype {got.dtype}")
    if got.shape != case.shape:
        fail(f"the result has shape {list(got.shape)}")
    want = emulate_rope(built.x_before, built.positions, config, case.forward, case.layout)
    equal = same(got, want)
    if case.shape and want.size:
        # Elements in no pair are copied, so their bits count, NaN or not.
        copied = np.ones(case.length("d"), dtype=bool)
        for index in pair_indices(config.for_head_dim(case.length("d"))):
            copied[index] = False
        at = canonical(equal, case.layout)
        at &= ~copied | (canonical(bits(got) == bits(want), case.layout))
    if not equal.all():
        first = tuple(int(i) for i in np.argwhere(~equal)[0])
        poison = poisoned(1, got.dtype)[0]
        left = int((got == poison).sum())
        unwritten = f"; {left} still hold what was there before the call" if left else ""
        fail(
            f"{int((~equal).sum())} of {got.size} elements differ from the emulation, first at {list(first)}: "
            f"got {got[first]!r}, want {want[first]!r}{unwritten}"
        )
    if (
        by_oracle
        if by_oracle is not None
        else case.values == "uniform" and case.config.get("angles", "exact") == "exact"
    ):
        right = oracle.rope(built.x_before, built.positions, case.config, case.forward, case.layout)
        error = nmse(got, right)
        limit = oracle.LIMITS[case.dtype]
        if got.size < VERY_FEW:
            limit = max(limit, WORST_ROUNDING[case.dtype])
        if not error <= limit:
            fail(f"NMSE {error:.3g} against the oracle, {limit:.3g} is allowed")
    memory = [("x", built.parent, built.parent_before, built.x)]
    if built.out_parent is not None and built.out is not None and built.out_parent is not built.parent:
        memory.append(("out", built.out_parent, poisoned(built.out_parent.size, built.out_parent.dtype), built.out))
    for name, now, before, view in memory:
        changed = changed_outside(now, before, [view] if name == "out" or case.out == "in place" else [])
        if changed.any():
            place = int(np.argmax(changed))
            fail(f"element {place} of the memory of {name} was changed, outside of what may be written")


def touched(parent: np.ndarray, view: np.ndarray) -> np.ndarray:
    """Which elements of a one-dimensional parent belong to a view of it."""
    mask = np.zeros(parent.shape, dtype=bool)
    base = view.__array_interface__["data"][0] - parent.__array_interface__["data"][0]
    index = np.full((1,) * view.ndim, base // parent.itemsize, dtype=np.intp)
    for axis, (n, step) in enumerate(zip(view.shape, view.strides, strict=True)):
        index = index + (np.arange(n) * (step // parent.itemsize)).reshape(
            [-1 if a == axis else 1 for a in range(view.ndim)]
        )
    mask[index.ravel()] = True
    return mask
