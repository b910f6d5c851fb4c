"""Which variant a problem with a norm gets: the vectors, stores and angles that are best for its rotation alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, ShapeError
from ..kernels import norm_rows, norm_strided
from ..kernels.problem import Problem
from ..kernels.variant import Variant
from .choice import select

if TYPE_CHECKING:
    from ..device import DeviceInfo

#: In this order: the first that supports a problem is used.
KERNELS = (norm_rows.KERNEL, norm_strided.KERNEL)


def select_with_norm(device: DeviceInfo, problem: Problem, nbytes: int, preferred: Variant | None = None) -> Variant:
    """Return the variant for a problem with a norm; arguments as of `select`.

    Raises `ConfigError` for a variant of the caller's, `ShapeError` for what no kernel supports.
    """
    if preferred is not None:
        raise ConfigError(f"norm: given together with the variant or kernel {preferred}, which only rotates")
    parameters = with_wide_vectors(device, problem, select(device, replace(problem, norm=None), nbytes).parameters)
    for kernel in KERNELS:
        known = {p.name: parameters[p.name] for p in kernel.parameters if p.name in parameters}
        for tried in kernel.order(Variant(kernel, **known).parameters):
            if kernel.supports(problem, tried) is None:
                return Variant(kernel, **tried)
    raise ShapeError(f"norm: {KERNELS[-1].supports(problem, {})}")


def with_wide_vectors(device: DeviceInfo, problem: Problem, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters of a rotation for a norm: the rotation waits for memory with short vectors, too."""
    if device.kind == "cpu" and parameters.get("access") == "clang":
        return {**parameters, "width": 8 if problem.dtype == "f64" else 16}
    return parameters
