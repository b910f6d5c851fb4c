"""`Norm`: the RMS norm of heads, before or after their rotation, as a checked description."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from .arrays import is_opencl_array
from .errors import ConfigError, ShapeError, reading, shown
from .layout import DTYPES, Shape4

Over = Literal["head", "heads"]
Order = Literal["before", "after"]
Rounding = Literal["once", "each"]
#: The least eps: with less, the inverse root would meet subnormal numbers, which devices may flush to zero.
LEAST_EPS = 2.0**-77
LARGEST_EPS = 2.0**64
_WORDS = {"over": ("head", "heads"), "order": ("before", "after"), "rounding": ("once", "each")}


class NormForm(NamedTuple):
    """All of a norm that launches depend on but its weight. elements: how many a sum of squares is over."""

    over: Over
    order: Order
    rounding: Rounding
    eps: float
    elements: int

    @property
    def program(self) -> tuple[str, str, str]:
        """What norms of one program have in common."""
        return self.over, self.order, self.rounding


@dataclass(frozen=True, eq=False)
class Norm:
    """An RMS norm of heads: y = x / sqrt(mean(x²) + eps) · (weight + weight_offset).

    weight: [head_dim] with over="head", [heads * head_dim] with over="heads"; a NumPy or OpenCL array or a torch CPU
        tensor of a float type. Its values are copied now: later changes to the array do not count. Kept as float64.
    eps: 2**-77 to 2**64.
    weight_offset: what is added to the weight first, in the computing type: 1.0 for models that keep weight - 1.
    over: "head": the mean is over each head by itself; "heads": over all heads of a token together.
    order: "before": norm, then rotation; "after": rotation, then norm.
    rounding: "once": only the result of norm and rotation is rounded to the tensor's type; between them everything is
        in the computing type (float32; float64 for float64 tensors). "each": what separate operations would store is
        rounded to the tensor's type: x / sqrt(...), its product with the weight, and the rotated values. These are the
        bits of `clrope.rms_norm` followed by `clrope.rope` (order="after": the reverse). For float32 and float64
        tensors both are the same.

    Sums of squares are in the computing type, too: a head of float32 values whose squares overflow becomes NaN. One
    norm serves any number of calls and threads; each device gets its weight once. Raises `ConfigError`.
    """

    weight: Any
    eps: float
    weight_offset: float = 0.0
    over: Over = "head"
    order: Order = "before"
    rounding: Rounding = "once"

    def __post_init__(self) -> None:
        for name, allowed in _WORDS.items():
            value = getattr(self, name)
            if not isinstance(value, str) or value not in allowed:
                raise ConfigError(f"{name}: got {shown(value)}, allowed are {', '.join(map(repr, allowed))}")
        object.__setattr__(self, "eps", _number("eps", self.eps, LEAST_EPS, LARGEST_EPS))
        object.__setattr__(self, "weight_offset", _number("weight_offset", self.weight_offset, -1e30, 1e30))
        weight = _values(self.weight)
        weight.flags.writeable = False
        object.__setattr__(self, "weight", weight)

    @property
    def form(self) -> NormForm:
        """All that launches depend on but the weight."""
        return NormForm(self.over, self.order, self.rounding, self.eps, self.weight.size)

    def scale(self, real: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return weight + weight_offset, rounded to a computing type before and after the sum."""
        kind: Any = np.dtype(real).type
        with np.errstate(over="ignore", invalid="ignore"):
            made: npt.NDArray[Any] = self.weight.astype(kind) + kind(self.weight_offset)
        return made

    def check(self, shape: Shape4) -> None:
        """Raise `ShapeError` for a tensor (b, s, n, d) that the weight does not fit."""
        _, _, heads, head_dim = shape
        wanted = head_dim if self.over == "head" else heads * head_dim
        if self.weight.size != wanted:
            what = "head_dim" if self.over == "head" else f"{heads} heads * head_dim {head_dim} ="
            raise ShapeError(f"norm: got a weight of {self.weight.size} elements, {what} {wanted} is needed")


def checked_norms(norm: Any, x: Any) -> tuple[Norm | None, ...]:
    """Return the norm of each tensor of a call on x, () for none at all; raises `ConfigError`."""
    if norm is None:
        return ()
    several = isinstance(x, (tuple, list))
    given = tuple(norm) if several and isinstance(norm, (tuple, list)) else (norm,)
    count = len(x) if several else 1
    if len(given) != count:
        raise ConfigError(f"norm: got {len(given)} for {count} arrays, one for each is needed, None for no norm")
    for each in given:
        if each is not None and not isinstance(each, Norm):
            raise ConfigError(f"norm: got {type(each).__name__}, a clrope.Norm is needed, None for no norm")
    return () if all(each is None for each in given) else given


def check_shapes(norms: Sequence[Norm | None], shapes: Sequence[Shape4]) -> None:
    """Raise `ShapeError` for a norm that does not fit its tensor."""
    for norm, shape in zip(norms, shapes, strict=True):
        if norm is not None and 0 not in shape:
            norm.check(shape)


def _number(name: str, value: Any, least: float, most: float) -> float:
    with reading(name, value, ConfigError):
        number = float(value) if isinstance(value, (int, float, np.integer, np.floating)) else math.nan
    if isinstance(value, bool) or not least <= number <= most:
        raise ConfigError(f"{name}: got {shown(value)}, a number from {least:.3g} to {most:.3g} is needed")
    return number


def _values(weight: Any) -> npt.NDArray[np.float64]:
    """Return a copy of a weight's values."""
    torch = sys.modules.get("torch")
    with reading("weight", weight, ConfigError):
        if torch is not None and isinstance(weight, torch.Tensor):
            if not weight.is_cpu or not weight.is_floating_point():
                raise ConfigError(f"weight: got {weight.dtype} on {weight.device}, floats on the CPU are needed")
            array = weight.detach().double().numpy()
        else:
            array = weight.get() if is_opencl_array(weight) else np.asarray(weight)
    if array.dtype not in DTYPES.values():
        raise ConfigError(f"weight: got {array.dtype}, allowed are {', '.join(map(str, DTYPES.values()))}")
    if array.ndim != 1 or not array.size:
        raise ConfigError(f"weight: got shape {list(array.shape)}, [head_dim] or [heads * head_dim] is needed")
    return cast("npt.NDArray[np.float64]", array.astype(np.float64, copy=True))
