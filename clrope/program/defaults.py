"""The spelling to use on a device that was not tuned: good from the first call, and only what was tried there."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from .outcome import Purpose
from .variants import PREFETCH, Access, NanKind, Variant, default_variant

if TYPE_CHECKING:
    from ..device import DeviceInfo

POCL = "Portable Computing Language"
INTEL = "Intel(R) OpenCL"
#: What `platform.machine` calls the processors whose NaNs have no lower bits of their own.
X86 = ("x86_64", "AMD64")
#: Versions of PoCL that its spellings were tried on, as its driver version begins.
POCL_TRIED = ("3.0",)


def default_for(device: DeviceInfo, purpose: Purpose) -> Variant:
    """Return the default of a device for a purpose; for a platform that nothing is known of, the safe one.

    It may not fit a launch (`Variant.fitted`), and is not looked up in what tuning found.
    """
    if device.kind == "cpu":
        if device.platform == POCL and device.driver_version.startswith(POCL_TRIED):
            return _large_or_small(purpose, "clang")
        if device.platform == INTEL:
            return _large_or_small(purpose, "builtin")
    return default_variant(device.kind, purpose.dtype, purpose.pairing)


def _large_or_small(purpose: Purpose, access: Access) -> Variant:
    """Return vectors of 32 bytes of the computing type: longer ones win little, and only where AVX-512 is.

    access: PoCL's library of built-in functions is compiled for another CPU name than a kernel, so that its compiler
    does not put them in line: calls for every load, conversion and store, two to five times slower than 'clang'. Intel
    compiles the built-in ones as well as those.
    """
    width = 4 if purpose.dtype == "f64" else 8
    nan: NanKind = "plain" if purpose.dtype == "bf16" and platform.machine() in X86 else "any"
    if purpose.size == "small":
        return Variant(width=width, access=access, prepared=True, nan=nan)
    if purpose.in_place:
        # The lines are in the cache when they are written: going past it would only throw them out.
        return Variant(width=width, access=access, prepared=True, prefetch=PREFETCH, nan=nan)
    # A plain store first reads the line that it will overwrite, a third more traffic.
    return Variant(width=width, access="clang", prepared=True, store="nontemporal", prefetch=PREFETCH, nan=nan)


def stage1_options(device: DeviceInfo, dtype: str, pairs: int) -> list[str]:
    """Return the options that make cos and sin of several pairs at once, where that was tried; none elsewhere.

    pairs: what one work-item does, which the vectors have to divide. Phases are 64-bit, so a vector of them is twice as
    long as one of floats; what crosses a function boundary must not be (`docs/drivers.md`), hence 'clang' on PoCL.
    """
    variant = default_for(device, Purpose(dtype, "neox", False, "small"))
    if variant.kernel != "rows" or not variant.prepared or pairs % variant.width:
        return []
    return [f"-DW={variant.width}"] + (["-DCLANG_VECTORS"] if variant.access == "clang" else [])
