"""What every rotation kernel states of itself: `Kernel` and its `Parameter`s."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, shown

if TYPE_CHECKING:
    from ..config import RopeConfig
    from .launch import LaunchSpec
    from .problem import Problem

Parameters = Mapping[str, Any]


@dataclass(frozen=True)
class Parameter:
    """One choice in how a kernel is built or launched. It never changes a bit of the result.

    values:   those allowed.
    compiled: whether it changes the program; otherwise only how the work is divided.
    """

    name: str
    default: Any
    help: str
    values: tuple[Any, ...]
    compiled: bool = True

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        return ", ".join(map(str, self.values))

    def check(self, value: Any) -> None:
        """Raise `ConfigError` for a value that is not allowed."""
        if not any(type(value) is type(allowed) and value == allowed for allowed in self.values):
            raise ConfigError(f"{self.name}: got {shown(value)}, allowed are {self.allowed}")


@dataclass(frozen=True, eq=False)
class Kernel:
    """A rotation kernel: one Python file makes one object of it.

    file:     the program under `kernels/` that it is built from.
    supports: (problem, parameters) -> None, or why it cannot be launched with these parameters.
    spec:     (problem, parameters, device, *others) -> the launch; others: with `takes_second` another tensor with the
              same batches, tokens and pairs, whose heads the launch rotates too.
    fallbacks: values that support the most problems, of parameters that some problems do not allow; see `order`.
    search:   (device kind, dtype) -> parameters that tuning tries, simplest first; of equally fast ones the first is
              taken. Default: the defaults alone.
    words:    (parameters) -> a short name; None: the kernel's own.
    angles:   where cos and sin come from, if no parameter `angles` says so: 'cached' tables, or 'positions', from which
              the kernel computes them in its own way.
    needs_copies: it takes contiguous tensors at the beginning of a buffer only: host arrays are copied to such buffers.
    writes_all: every element of the output is written; otherwise copied outputs keep what was there.
    configured: (configuration) -> the kernel for this configuration, if it depends on more than a `Problem` says.
    maker:    what makes this kernel again where it was pickled, and its arguments; None for the package's own.
    """

    name: str
    summary: str
    parameters: tuple[Parameter, ...]
    file: str
    supports: Callable[[Problem, Parameters], str | None]
    spec: Callable[..., LaunchSpec]
    words: Callable[[Parameters], str] | None = None
    fallbacks: Mapping[str, Any] = field(default_factory=dict)
    search: Callable[[str, str], list[dict[str, Any]]] = lambda kind, dtype: [{}]
    takes_second: bool = False
    angles: str = "cached"
    needs_copies: bool = False
    writes_all: bool = True
    configured: Callable[[RopeConfig], Kernel] | None = None
    maker: tuple[Callable[..., Kernel], tuple[Any, ...]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return self.maker or (pkgutil.resolve_name, (f"{__package__}.{self.name}:KERNEL",))

    def order(self, p: Parameters) -> Iterator[Parameters]:
        """Yield these parameters, then what comes nearest to them: the first that supports a problem is used.

        Of vectors also all shorter ones: shorter non-temporal stores are still better than long plain ones.
        """
        choices: dict[str, tuple[Any, ...]] = {name: (p[name], last) for name, last in self.fallbacks.items()}
        if "width" in p:
            choices["width"] = tuple(width for width in (16, 8, 4, 2) if width <= p["width"])
        for values in product(*map(dict.fromkeys, choices.values())):
            yield {**p, **dict(zip(choices, values, strict=True))}


def vectors_unsupported(problem: Problem, p: Parameters) -> str | None:
    """Return why no kernel with vectors can rotate a problem by these parameters; None if one may."""
    if problem.pairs.pairing is None:
        return "the pairs of input and output are at different places, only 'strided' can do that"
    if not (problem.x.last_axis_dense and problem.y.last_axis_dense):
        return "the last axis is not contiguous, only 'strided' can do that"
    if p["angles"] == "fused" and not problem.angles.exact:
        return "fused: the angles are not a configuration's exact ones"
    return None
