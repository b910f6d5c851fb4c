"""Which spelling a launch gets: what tuning found, else the device's default; never one that is known to fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import DeviceError
from . import tuning
from .defaults import default_for, size_class
from .outcome import Purpose, SizeClass
from .variants import STRIDED, Placement, Variant, default_variant

if TYPE_CHECKING:
    from ..device import DeviceInfo


def choose(device: DeviceInfo, place: Placement, nbytes: int | None = None) -> Variant:
    """Return the spelling for a launch that its caller left to the chooser.

    nbytes: what the call rotates altogether, which decides its size class; the tensor's own, if None.
    In this order: the winner of tuning, the device's default, the safe one for its kind, the strided one; each as it
    fits the place (`Variant.fitted`), the first that did not fail when it was tried.
    Raises `DeviceError` if all of them did.
    """
    dtype, pairing = place.x.dtype, place.geometry.pairing
    # The strided kernel also does pairs that lie differently; what is known of it does not depend on that.
    known = tuning.known(device, dtype, pairing or "neox")
    broken = known.broken
    size = size_class(device, place.x.nbytes if nbytes is None else nbytes)
    for variant in _in_order(device, place, size, known):
        fitted = _as_measured(variant, place).fitted(place)
        if fitted.spelling not in broken:
            return fitted
    raise DeviceError(
        f"device {device.name!r} on {device.platform!r}: every spelling of the kernel that fits {dtype} "
        f"{list(place.x.shape)} failed there when it was tried; `clrope tune --show` says how\n"
        "  what to do: update the driver and run `clrope tune`, or use another device"
    )


def _as_measured(variant: Variant, place: Placement) -> Variant:
    """Return the spelling, making angles only in whole heads and of one position a token, where that was measured.

    Where making them was quicker there, it was up to 6 % slower in parts of heads and of several axes.
    """
    if variant.angles == "fused" and (place.sections or place.geometry.rest):
        return replace(variant, angles="cached")
    return variant


def _in_order(device: DeviceInfo, place: Placement, size: SizeClass, known: tuning.Known) -> Iterator[Variant]:
    dtype, pairing = place.x.dtype, place.geometry.pairing
    if pairing is not None:
        purpose = Purpose(dtype, pairing, place.in_place, size)
        winner = known.winner(purpose.in_place, purpose.size)
        if winner is not None:
            yield winner
        yield default_for(device, purpose)
        yield default_variant(device.kind, dtype, pairing)
    yield STRIDED
