"""The spelling to use on a device that was not tuned: good from the first call, and only what was tried there."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from ..device.cache import host_cache_bytes
from .outcome import Purpose, SizeClass
from .variants import PREFETCH, PREFETCH_NTA, NanKind, PrefetchKind, Variant, default_variant

if TYPE_CHECKING:
    from ..device import DeviceInfo

POCL = "Portable Computing Language"
INTEL = "Intel(R) OpenCL"
#: What the names of AMD's processors have, whichever platform lists them.
AMD = "AMD"
#: What `platform.machine` calls the processors whose NaNs have no lower bits of their own.
X86 = ("x86_64", "AMD64")
#: Versions of PoCL that its spellings were tried on, as its driver version begins.
POCL_TRIED = ("3.0", "3.1")
#: Bytes of a call's tensors from which it counts as medium: they no longer lie in a core's own cache beside its result.
MEDIUM_BYTES = 1 << 20
#: The same where it was measured to be otherwise. On Intel's runtime plain stores win at 1 MiB; PoCL's threads change
#: processors between calls, so that what a core's own cache holds is of little use there.
MEDIUM_BYTES_OF = {INTEL: 2 << 20}
#: Bytes from which it counts as large: what computed the tensors has hardly left them in a cache that cores share. On
#: CPUs also from this part of the largest cache on: input and output would take half of it.
LARGE_BYTES = 32 << 20
LARGE_PART = 4


def size_class(device: DeviceInfo, nbytes: int) -> SizeClass:
    """Return the size class of a call that rotates so many bytes on a device."""
    if nbytes < MEDIUM_BYTES_OF.get(device.platform, MEDIUM_BYTES):
        return "small"
    cache = host_cache_bytes() if device.kind == "cpu" else 0
    return "large" if nbytes >= min(LARGE_BYTES, cache // LARGE_PART or LARGE_BYTES) else "medium"


def default_for(device: DeviceInfo, purpose: Purpose) -> Variant:
    """Return the default of a device for a purpose; for a platform that nothing is known of, the safe one.

    It may not fit a launch (`Variant.fitted`), and is not looked up in what tuning found.
    """
    if device.kind == "cpu":
        tried = device.platform == POCL and device.driver_version.startswith(POCL_TRIED)
        if tried or device.platform == INTEL:
            return _by_size(device, purpose)
    return default_variant(device.kind, purpose.dtype, purpose.pairing)


def _by_size(device: DeviceInfo, purpose: Purpose) -> Variant:
    """Return vectors as long as the CPU's registers, 32 bytes of the computing type at least, 64 with AVX-512.

    Always 'clang': PoCL's library of built-in functions is compiled for another CPU name than a kernel, so that its
    compiler does not put them in line, and there are calls for every load, conversion and store, two to five times
    slower. Intel compiles the built-in ones as well as those.
    """
    width = (16 if device.native_widths.float >= 16 else 8) // (2 if purpose.dtype == "f64" else 1)
    nan: NanKind = "plain" if purpose.dtype == "bf16" and platform.machine() in X86 else "any"
    # AMD's share one cache among a few cores: what was written lies in it for whoever reads it next. Stores past it
    # have half of the speed, and what is there need not be fetched ahead.
    amd = AMD in device.name
    if purpose.size == "small" or (amd and purpose.size == "medium"):
        return Variant(width=width, access="clang", prepared=True, nan=nan)
    kind: PrefetchKind = "nta" if amd else "levels"
    distance = PREFETCH_NTA if amd else PREFETCH
    # Out of place a plain store first reads the line that it will overwrite, a third more traffic. In place the lines
    # are in the cache when they are written: going past it would only throw them out.
    return Variant(
        width=width, access="clang", prepared=True, store="plain" if purpose.in_place else "nontemporal",
        prefetch=distance, prefetch_kind=kind, nan=nan,
        angles="fused" if purpose.size == "large" and _making_is_quicker(device, purpose, width) else "cached",
    )  # fmt: skip


def _making_is_quicker(device: DeviceInfo, purpose: Purpose, width: int) -> bool:
    """Return whether making the angles was quicker than reading them from memory (docs/performance.md)."""
    kind = (purpose.dtype, purpose.pairing)
    if AMD not in device.name:
        return (*kind, purpose.in_place, width) == ("f16", "normal", True, 16)
    # On Intel's runtime by 2 to 4 % in that one case, of 32 heads; on PoCL by 1 to 4 %, and by 5 to 14 % of 8. There it
    # was 1 to 3 % slower for f16 and normal, and for 16 bits in place.
    if device.platform != POCL:
        return (*kind, purpose.in_place) == ("f32", "normal", False)
    if purpose.dtype == "f64":
        return False
    return purpose.dtype == "f32" if purpose.in_place else kind != ("f16", "normal")


def stage1_options(device: DeviceInfo, dtype: str, pairs: int) -> list[str]:
    """Return the options that make cos and sin of several pairs at once, where that was tried; none elsewhere.

    pairs: what one work-item does, which the vectors have to divide. Phases are 64-bit, so a vector of them is twice as
    long as one of floats; what crosses a function boundary must not be (`docs/drivers.md`), hence 'clang', and no more
    than 8.
    """
    variant = default_for(device, Purpose(dtype, "neox", False, "small"))
    width = min(variant.width, 4 if dtype == "f64" else 8)
    if variant.kernel != "rows" or not variant.prepared or pairs % width:
        return []
    return [f"-DW={width}", "-DCLANG_VECTORS"]
