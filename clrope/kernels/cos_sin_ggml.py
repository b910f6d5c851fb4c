"""Kernel `cos_sin_ggml`: tables of cos and sin with ggml's float32 recurrence for the angles."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .cos_sin import Real
from .launch import LaunchSpec, local_size_for
from .problem import AngleForm
from .source import storage_options

if TYPE_CHECKING:
    from ..device import DeviceInfo


@lru_cache(maxsize=256)
def spec(
    pairs: int, rows: int, real: Real, angles: AngleForm, device: DeviceInfo,
    theta_scale: float | np.float32, freq_scale: float | np.float32, magnitude: float | np.float32, yarn: bool,
) -> LaunchSpec:  # fmt: skip
    """Return the launch that fills REAL[rows][pairs] tables; the last four are `AngleTable.ggml`'s.

    Bound for each call: positions (with `angles.counting` an int64 scalar), exponent, factor, mix, axis, cosine, sine.
    """
    options = (*storage_options(real), *(["-DCOUNTING"] if angles.counting else ()))
    bound = ("exponent", "factor", "mix", "axis", "cosine", "sine")
    return LaunchSpec(
        "cache_init_ggml.cl", "rope_cache_init_ggml", options, (pairs, rows), local_size_for(device.kind, 2),
        (
            ("positions", None), ("rows", np.int32(rows)), ("pairs", np.int32(pairs)),
            ("theta_scale", np.float32(theta_scale)), ("freq_scale", np.float32(freq_scale)),
            ("magnitude", np.float32(magnitude)), ("yarn", np.int32(yarn)), *((name, None) for name in bound),
        ),
    )  # fmt: skip
