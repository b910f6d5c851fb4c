"""The torch module: tables, offsets and position ids in all their forms, promotion of types, gradients.

NumPy draws and checks the inputs: the lines are the same where torch is not installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ....layout import DTYPES
from .formula import KINDS, Array, FormulaCall, turned, uniform
from .line import Line

if TYPE_CHECKING:
    from ....device import DeviceInfo

NEEDS = "torch"
#: Where cos and sin come from. Tables: a row per token, or of any shape that broadcasts.
SOURCES = (
    "tables", "broadcast", "nothing", "int", "offset", "offsets", "ids", "ids[batch,seq]", "ids[batch,...,seq]"
)  # fmt: skip


@dataclass(eq=False)
class TorchCall(FormulaCall):
    """One call of `RoPE(scale, base, dims, interleaved)`, or of its gradient.

    x:         [batch, ..., seq_len, embed], any strides. given: the other arguments of `forward`, by name.
    positions: of every token before the scale, integers broadcastable to [batch, ..., seq_len]; None with tables.
    gradient:  None, or what `backward` is called with; the result is then the gradient of x.
    """

    kind: str
    x: Array
    given: dict[str, Any]
    positions: Array | None
    scale: float
    base: float
    dims: int | None
    interleaved: bool
    gradient: Array | None = None

    @property
    def rotated(self) -> int:
        """Rotated elements of a head."""
        embed = int(self.x.shape[-1])
        return embed if self.dims is None else min(self.dims, embed)

    def _tables(self) -> tuple[Array, Array]:
        pairs = self.rotated // 2
        if self.positions is None:
            cos, sin = (np.broadcast_to(self.given[name], (*self.x.shape[:-1], pairs)) for name in ("cos", "sin"))
            return cos, sin
        freqs = self.given.get("freqs")
        omega = self.base ** (-np.arange(pairs) / pairs) if freqs is None else freqs.astype(np.float64)
        scale = 1.0 if "position_ids" in self.given else self.scale
        theta = (self.positions * scale)[..., None] * omega
        return np.cos(theta), np.sin(theta)

    def formula(self, real: Any) -> Array:
        """Return the rotation, or its transpose for a gradient."""
        cos, sin = self._tables()
        x, sin = (self.x, sin) if self.gradient is None else (self.gradient, -sin)
        return turned(x, cos, sin, self.interleaved, real)

    def right_bits(self) -> Array | None:
        """Return the formula in the type of the kernels' arithmetic; None unless angles come from tables."""
        return super().right_bits() if self.positions is None else None

    @property
    def inputs(self) -> list[Array]:
        """Return x and the arrays of the other arguments."""
        return [self.x, *(v for v in self.given.values() if isinstance(v, np.ndarray))]

    def apply(self, device: DeviceInfo) -> tuple[Array, list[str]]:
        """Call the module on tensors that share the arrays' memory."""
        from ....interop.torch import RoPE

        module = RoPE(self.scale, self.base, self.dims, self.interleaved)
        x = _tensor(self.x)
        given = {name: _tensor(v) if isinstance(v, np.ndarray) else v for name, v in self.given.items()}
        with _calls_on(device):
            if self.gradient is None:
                got = module(x, **given)
            else:
                module(x.requires_grad_(), **given).backward(_tensor(self.gradient))
                got = x.grad
        return _array(got), []

    def __str__(self) -> str:
        given = {
            name: f"{v.dtype}{list(v.shape)}" if isinstance(v, np.ndarray) and v.dtype.kind not in "iu" else v
            for name, v in self.given.items()
        }
        return (
            f"RoPE({self.scale}, {self.base}, {self.dims}, {self.interleaved}) of {self.x.dtype}{list(self.x.shape)} "
            f"strides {self.x.strides} with {given}"
        )


def _tensor(array: Array) -> Any:
    import torch

    if array.dtype == DTYPES["bf16"]:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _array(tensor: Any) -> Array:
    import torch

    if tensor.dtype == torch.bfloat16:
        return np.array(tensor.view(torch.int16).numpy()).view(DTYPES["bf16"])
    return np.array(tensor.numpy())


@contextmanager
def _calls_on(device: DeviceInfo) -> Iterator[None]:
    """While open, calls without a device run on this one, and torch fills new memory with NaN."""
    import torch

    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    fill, variables = memory.fill_uninitialized_memory, dict(os.environ)
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = True
    os.environ["CLROPE_DEVICE"] = device.index
    try:
        yield
    finally:
        memory.fill_uninitialized_memory = fill
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        os.environ.pop("CLROPE_DEVICE")
        os.environ.update(variables)


def draw(rng: np.random.Generator, kind: str, interleaved: bool, source: str, gradient: bool = False) -> TorchCall:
    """Draw shape, strides, attributes, positions and values."""
    rank = int(rng.integers(3, 7))
    shape = (*(int(n) for n in rng.integers(1, 4, rank - 2)), int(rng.integers(1, 8)), 2 * int(rng.integers(1, 24)))
    batch, seq, embed = shape[0], shape[-2], shape[-1]
    dims = None if rng.random() < 0.4 else 2 * int(rng.integers(1, 26))
    pairs = (embed if dims is None else min(dims, embed)) // 2
    order = [int(axis) for axis in rng.permutation(rank)]
    x = np.ascontiguousarray(uniform(rng, shape, kind).transpose(order)).transpose(np.argsort(order))
    scale = float(rng.choice([1.0, 0.0, -1.0, 0.3, 2.5, 1 / 3]))
    base = float(rng.choice([1e4, 5e5, 10.0, 0.5]))
    where, given = _positions(rng, source, shape)
    if where is None:
        wholes = (*shape[:-1], pairs)
        for name in ("cos", "sin"):
            kept = wholes[-2:]
            if source == "broadcast":
                kept = tuple(n if rng.random() < 0.6 else 1 for n in wholes)[int(rng.integers(0, rank)) :]
            given[name] = uniform(rng, kept, kind)
    elif rng.random() < 0.3:
        given["freqs"] = (3 * uniform(rng, (pairs,), "f32")).astype(np.float32)
    dy = uniform(rng, shape, kind) if gradient else None
    if where is not None and where.ndim == 2 and source != "ids[batch,...,seq]":
        where = where.reshape(batch, *[1] * (rank - 3), seq)
    return TorchCall(kind, x, given, where, scale, base, dims, interleaved, dy)


def _positions(
    rng: np.random.Generator, source: str, shape: tuple[int, ...]
) -> tuple[Array | None, dict[str, Any]]:  # fmt: skip
    """Return positions, [seq], [batch, seq] or of x's axes (None for tables), and the arguments for them."""
    batch, seq = shape[0], shape[-2]
    tokens = np.arange(seq)
    if source in ("tables", "broadcast"):
        return None, {}
    if source == "nothing":
        return tokens, {}
    if source == "int":
        first = int(rng.integers(-100, 5000))
        return tokens + first, {"offset": first}
    if source == "offset":
        start = rng.integers(0, 5000, () if rng.random() < 0.5 else (1,)).astype(np.int32)
        return tokens + int(start.reshape(-1)[0]), {"offset": np.asarray(start)}
    if source == "offsets":
        starts = rng.integers(-5000, 5000, (batch, 1))
        return starts + tokens, {"offset": starts if rng.random() < 0.5 else starts[:, 0]}
    if source == "ids":
        few = rng.integers(0, 200, seq).astype(np.uint8)
        return few.astype(np.int64), {"position_ids": few}
    full = (batch, seq) if source == "ids[batch,seq]" else tuple(n if rng.random() < 0.5 else 1 for n in shape[:-1])
    ids = rng.integers(-3000, 3000, full)
    return ids, {"position_ids": ids}


def _draw_mixed(rng: np.random.Generator, kinds: tuple[str, ...], kind: str) -> TorchCall:
    """Draw a call with different types of input, cos and sin."""
    call = draw(rng, kinds[0], bool(rng.random() < 0.5), "broadcast")
    call.kind = kind
    for name, own in zip(("cos", "sin"), kinds[1:], strict=True):
        call.given[name] = call.given[name].astype(DTYPES[own])
    return call


def promoted(*kinds: str) -> str:
    """Return torch's promotion of floating-point types: the widest, and float32 of the two 16-bit ones."""
    widest = max(kinds, key=lambda k: np.dtype(DTYPES[k]).itemsize)
    return "f32" if {"f16", "bf16"} <= set(kinds) and widest in ("f16", "bf16") else widest


def lines() -> Iterator[Line]:
    """Yield every source of angles in every type and pairing, gradients of some, and every mixture of types."""
    for gradient, sources in ((False, SOURCES), (True, ("tables", "offsets"))):
        for kind, interleaved, source in product(KINDS, (False, True), sources):
            name = "TORCH_BACKWARD" if gradient else "TORCH"
            label = f"{name}(type={kind},interleaved={int(interleaved)},from={source})"
            drawn = partial(draw, kind=kind, interleaved=interleaved, source=source, gradient=gradient)
            yield Line(label, kind, drawn, NEEDS)
    for kinds in product(KINDS, repeat=3):
        if len(set(kinds)) > 1:
            kind = promoted(*kinds)
            label = f"TORCH(type={kind},input={kinds[0]},cos={kinds[1]},sin={kinds[2]})"
            yield Line(label, kind, partial(_draw_mixed, kinds=kinds, kind=kind), NEEDS)
