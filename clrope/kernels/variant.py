"""`Variant`: a kernel with a value for each of its parameters; the list of all kernels, and what tuning tries."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, UnsupportedError, shown
from . import lanes, rows, strided
from .kernel import Kernel
from .problem import Problem
from .source import kernel_source

if TYPE_CHECKING:
    from ..device import DeviceInfo
    from .launch import LaunchSpec

#: The package's rotation kernels by name, in the order in which tuning tries them.
KERNELS: dict[str, Kernel] = {kernel.name: kernel for kernel in (strided.KERNEL, rows.KERNEL, lanes.KERNEL)}


class Variant:
    """A kernel and its parameters: `Variant("rows", width=8, store="nontemporal")`; those left out have defaults.

    kernel: a name, or a `Kernel` of one's own. Parameters are read as attributes; `clrope tune --parameters` lists
    them.
    folder: of kernel sources to build from, '' for the package's own: to compare texts. Not part of `to_dict`.
    Raises `ConfigError` for a kernel, a parameter or a value that does not exist.
    """

    __slots__ = ("folder", "implementation", "values")

    def __init__(
        self, kernel: str | Kernel = "rows", *, folder: str | os.PathLike[str] = "", **parameters: Any
    ) -> None:
        found = KERNELS.get(kernel) if isinstance(kernel, str) else kernel
        if not isinstance(found, Kernel):
            raise ConfigError(f"kernel: got {shown(kernel)}, allowed are {', '.join(KERNELS)}")
        if not isinstance(folder, (str, os.PathLike)):
            raise ConfigError(f"folder: got {type(folder).__name__}, a path is needed")
        values = []
        for parameter in found.parameters:
            value = parameters.pop(parameter.name, parameter.default)
            parameter.check(value)
            values.append(value)
        if parameters:
            allowed = ", ".join(p.name for p in found.parameters) or "none"
            raise ConfigError(f"{min(parameters)}: not a parameter of kernel {found.name!r}, allowed are {allowed}")
        self.implementation, self.values, self.folder = found, tuple(values), os.fspath(folder)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Variant) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash(self._fields)

    @property
    def _fields(self) -> tuple[Kernel, tuple[Any, ...], str]:
        return self.implementation, self.values, self.folder

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return self.implementation.name

    @property
    def parameters(self) -> dict[str, Any]:
        """The value of each parameter."""
        return {p.name: value for p, value in zip(self.implementation.parameters, self.values, strict=True)}

    @property
    def angles(self) -> str:
        """'fused' if the kernel computes cos and sin itself, 'cached' if it reads tables; see `Kernel.angles`."""
        return str(self.parameters.get("angles", self.implementation.angles))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in self.__slots__:  # while it is copied
            raise AttributeError(name)
        if name in self.parameters:
            return self.parameters[name]
        raise AttributeError(f"a variant of kernel {self.kernel!r} has no {name!r}")

    def changed(self, **parameters: Any) -> Variant:
        """Return this variant with other values for some parameters, or from another folder."""
        return Variant(self.implementation, **{"folder": self.folder, **self.parameters, **parameters})

    @property
    def compiled(self) -> Variant:
        """This variant with defaults for what changes only how work is divided: one for each program."""
        return self.changed(**{p.name: p.default for p in self.implementation.parameters if not p.compiled})

    def unsupported(self, problem: Problem) -> str | None:
        """Return why this variant cannot rotate a problem; None if it can."""
        return self.implementation.supports(problem, self.parameters)

    def nearest(self, problem: Problem) -> Variant | None:
        """Return the first variant of its kernel's `order` that supports the problem; None if there is none."""
        for parameters in self.implementation.order(self.parameters):
            if self.implementation.supports(problem, parameters) is None:
                return self.changed(**parameters)
        return None

    @lru_cache(maxsize=512)  # noqa: B019 - bounded
    def fit(self, problem: Problem) -> Variant:
        """Return the nearest variant that supports the problem, else the strided one.

        Raises `UnsupportedError` for a kernel that is none of the package's and does not support it.
        """
        nearest = self.nearest(problem)
        if nearest is not None:
            return nearest
        if self.implementation is not KERNELS.get(self.kernel):
            raise UnsupportedError(str(self.unsupported(problem)))
        return Variant("strided", folder=self.folder)

    @lru_cache(maxsize=2048)  # noqa: B019 - bounded
    def spec(self, problem: Problem, device: DeviceInfo, *others: Problem | None) -> LaunchSpec:
        """Return the launch for a supported problem; see `Kernel.spec`. Calls alike return the same object."""
        spec = self.implementation.spec(problem, self.parameters, device, *others)
        return replace(spec, source=kernel_source(spec.file, Path(self.folder))) if self.folder else spec

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {"kernel": self.kernel, **self.parameters}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Variant:
        """Return the variant of `to_dict`; raises `ConfigError` for anything else."""
        name = data.get("kernel") if isinstance(data, Mapping) else None
        kernel = KERNELS.get(name) if isinstance(name, str) else None
        if kernel is None or set(data) != {"kernel", *(p.name for p in kernel.parameters)}:
            raise ConfigError(f"variant: got {shown(data)}, a kernel's name and all of its parameters are needed")
        return cls(**data)

    def __str__(self) -> str:
        words = self.implementation.words
        text = self.kernel if words is None else words(self.parameters)
        return f"{text} from {self.folder}" if self.folder else text

    def __repr__(self) -> str:
        return f"<Variant {self}>"


def check_variant(variant: Any) -> None:
    """Raise `ConfigError` for anything but a `Variant` or None."""
    if variant is not None and not isinstance(variant, Variant):
        raise ConfigError(f"variant: got {type(variant).__name__}, a clrope.kernels.variant.Variant is needed")


#: Nothing has to be known for this one: any strides, no vectors.
STRIDED = Variant("strided")


def candidates(kind: str, dtype: str) -> list[Variant]:
    """Return the variants that tuning tries on a device kind ('cpu', 'gpu', 'accelerator', 'custom'), none twice.

    The strided one comes first: where a device rounds in its own way, the others are checked against it.
    """
    made = (Variant(kernel, **some) for kernel in KERNELS.values() for some in kernel.search(kind, dtype))
    return list(dict.fromkeys(made))


def parameter_table() -> list[tuple[str, str, str, str]]:
    """Return (kernel, parameter, allowed values, help) for each parameter: for help texts and the docs."""
    return [
        (kernel.name, p.name, p.allowed, p.help)
        for kernel in KERNELS.values() for p in kernel.parameters
    ]  # fmt: skip
