"""OpenCL devices: found, made visible, repaired, probed, chosen. Knows nothing of what will be computed there.

`devices()` lists, `device(selector)` chooses, `context_for` and `queue_for` open. Importing this starts nothing.
"""

from .discovery import devices
from .info import DeviceInfo, Health, VectorWidths
from .select import device
from .session import context_for, queue_for

__all__ = ["DeviceInfo", "Health", "VectorWidths", "context_for", "device", "devices", "queue_for"]
