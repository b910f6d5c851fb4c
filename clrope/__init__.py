"""Rotary position embedding (RoPE) as OpenCL C kernels, with the same bits on every tested driver.

    import clrope
    y = clrope.rope(x, positions, mode="neox", n_dims=128, freq_base=5e5)

Importing this starts no device.
"""

from __future__ import annotations

from .interrupt import leave_if_command

leave_if_command()  # before the imports that take time

from . import errors, lab, layout, reference
from .api import rope
from .compare import Comparison, compare
from .config import RopeConfig
from .device import DeviceInfo, device, devices
from .errors import BuildError, ConfigError, DeviceError, RopeError, ShapeError, UnsupportedError
from .identify import Hypothesis, Identification, identify
from .kv_cache import PagedCache, RowCache
from .kv_write import rope_cache, shift_cache
from .layout import TensorView
from .norm import Norm
from .norm_alone import rms_norm
from .operation import Rope
from .permute import permute_qk
from .positions import packed_positions, scaled_positions
from .tables import rotate

__version__ = "0.1.0"

__all__ = [
    "BuildError",
    "Comparison",
    "ConfigError",
    "DeviceError",
    "DeviceInfo",
    "Hypothesis",
    "Identification",
    "Norm",
    "PagedCache",
    "Rope",
    "RopeConfig",
    "RopeError",
    "RowCache",
    "ShapeError",
    "TensorView",
    "UnsupportedError",
    "compare",
    "device",
    "devices",
    "errors",
    "identify",
    "lab",
    "layout",
    "packed_positions",
    "permute_qk",
    "reference",
    "rms_norm",
    "rope",
    "rope_cache",
    "rotate",
    "scaled_positions",
    "shift_cache",
]
