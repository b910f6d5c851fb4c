"""OpenCL devices: found, made visible, repaired, probed, chosen. Knows nothing of what will be computed there.

`devices()` lists, `device(selector)` chooses, `context_for` and `queue_for` open. Importing this starts nothing.
The module itself can be called like its function: `clrope.device("pocl")` is right whether the name `clrope.device`
is bound to the function or, after `import clrope.device.info`, to this module.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING

from .discovery import devices
from .info import DeviceInfo, Health, VectorWidths
from .select import device
from .session import context_for, queue_for

if TYPE_CHECKING:
    from .select import Selector

__all__ = ["DeviceInfo", "Health", "VectorWidths", "context_for", "device", "devices", "queue_for"]


class _CallableModule(types.ModuleType):
    def __call__(self, selector: Selector = None) -> DeviceInfo:
        return device(selector)


sys.modules[__name__].__class__ = _CallableModule
