"""OpenCL devices: found, made visible, repaired, probed, chosen. Knows nothing of what will be computed there.

`devices()` lists, `device(selector)` chooses. Importing this starts nothing.
"""

from .discovery import devices
from .info import DeviceInfo, Health, VectorWidths
from .select import device

__all__ = ["DeviceInfo", "Health", "VectorWidths", "device", "devices"]
