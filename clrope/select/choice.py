"""Which variant a problem gets: what tuning found, else the device's default; never one that is known to fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ..errors import ConfigError, DeviceError, ShapeError
from ..kernels import norm_lanes, norm_rows, norm_strided
from ..kernels.kernel import Kernel
from ..kernels.problem import Problem
from ..kernels.variant import STRIDED, Variant
from . import database
from .defaults import default_for, norm_width, safe_variant, size_class
from .records import SizeClass, TuningKey

if TYPE_CHECKING:
    from ..device import DeviceInfo


def select(device: DeviceInfo, problem: Problem, nbytes: int, preferred: Variant | None = None) -> Variant:
    """Return the variant that rotates a problem on a device: exactly what is to be launched.

    nbytes: of all tensors of the call, which decides its size class. preferred: the caller's variant, which is adapted
    to the problem and used even if it failed before.
    Otherwise the first of these that did not fail when it was tried, each adapted to the problem by `Variant.fit`: the
    winner of tuning, the device's default, the safe variant for its kind, the strided one. With a norm the first kernel
    that supports it, `like_rotation`.
    Raises `DeviceError` if all of them did; with a norm `ConfigError` for a variant of the caller's, `ShapeError` for
    what no kernel supports.
    """
    if problem.norm is None:
        if preferred is not None:
            return preferred.fit(problem)
        return _select(device, problem, size_class(device, nbytes), database.generation())
    if preferred is not None:
        raise ConfigError(f"norm: given together with the variant or kernel {preferred}, which only rotates")
    kernels = (norm_lanes.KERNEL,) if device.kind == "gpu" else ()
    for kernel in (*kernels, norm_rows.KERNEL, norm_strided.KERNEL):
        variant = like_rotation(device, problem, nbytes, kernel).nearest(problem)
        if variant is not None:
            return variant
    raise ShapeError(f"norm: {norm_strided.supports(problem, {})}")


def like_rotation(device: DeviceInfo, problem: Problem, nbytes: int, kernel: Kernel) -> Variant:
    """Return a kernel with the vectors, stores and angles that are best for a problem's rotation alone.

    A norm reads and writes whole heads, so a rotation of whole heads (of a multiple of 32 pairs) is looked up even if
    only a part is rotated. It has vectors of its own width, and computes exact angles: never slower where it was
    measured.
    """
    pairs = problem.pairs
    if problem.norm is not None and pairs.rest:
        pairs = replace(pairs, pairs=pairs.head_dim // 64 * 32 or pairs.head_dim // 2, window=0)
    values = select(device, replace(problem, norm=None, slots=None, pairs=pairs), nbytes).parameters
    if problem.norm is not None and device.kind == "cpu" and values.get("access") == "clang":
        values["width"] = norm_width(device, problem.dtype, values["store"])
        if problem.angles.exact and not problem.angles.sections:
            values["angles"] = "fused"
    return Variant(kernel, **{p.name: values[p.name] for p in kernel.parameters if p.name in values})


@lru_cache(maxsize=512)
def _select(device: DeviceInfo, problem: Problem, size: SizeClass, _generation: object) -> Variant:
    # The strided kernel also does pairs at other places; what is known of it does not depend on that.
    known = database.known(device, problem.dtype, problem.pairs.pairing or "neox")
    for variant in _in_order(device, problem, size, known):
        for candidate in (_as_measured(variant, problem, size), variant):
            fit = candidate.fit(problem)
            if fit.compiled not in known.broken:
                return fit
    raise DeviceError(
        f"device {device.name!r} on {device.platform!r}: every variant of the kernels that supports {problem.dtype} "
        f"{list(problem.shape)} failed there when it was tried; `clrope tune --show` says how\n"
        "  what to do: update the driver and run `clrope tune`, or use another device"
    )


def _as_measured(variant: Variant, problem: Problem, size: SizeClass) -> Variant:
    """Return the variant with its angles where they were measured to be faster.

    In caches the kernel computes exact angles: that is within 5 % of finished tables, and 2 to 14 times faster than
    making tables for new positions. On CPUs, from memory, tables are as fast for whole heads with one position per
    token, and up to 6 % faster elsewhere.
    """
    angles = variant.parameters.get("angles")
    if size == "large" and variant.kernel == "rows":
        if angles == "fused" and (problem.angles.sections or problem.pairs.rest):
            return variant.changed(angles="cached")
        return variant
    if angles == "cached" and problem.angles.exact:
        fused = variant.changed(angles="fused").nearest(problem)
        if fused is not None and fused.angles == "fused":
            return fused
    return variant


def _in_order(device: DeviceInfo, problem: Problem, size: SizeClass, known: database.Known) -> Iterator[Variant]:
    pairing = problem.pairs.pairing
    if pairing is not None:
        key = TuningKey(problem.dtype, pairing, problem.in_place, size)
        record = known.record(key)
        if record is not None and record.winner is not None:
            yield record.winner
        yield default_for(device, key)
        yield safe_variant(device.kind, problem.dtype)
    yield STRIDED
