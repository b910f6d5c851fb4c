"""The spelling to use on a device that was not tuned: good from the first call, and only what was tried there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .outcome import Purpose
from .variants import Variant, default_variant

if TYPE_CHECKING:
    from ..device import DeviceInfo

POCL = "Portable Computing Language"
INTEL = "Intel(R) OpenCL"


def default_for(device: DeviceInfo, purpose: Purpose) -> Variant:
    """Return the default of a device for a purpose; for a platform that nothing is known of, the safe one.

    It may not fit a launch (`Variant.fitted`), and is not looked up in what tuning found.
    """
    return default_variant(device.kind, purpose.dtype, purpose.pairing)
