"""Launches that fill tables of cos and sin: from exact phases, by ggml's recurrence, from a caller's own tables."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from .launch import LaunchSpec, local_size_for
from .problem import AngleForm
from .source import storage_options

if TYPE_CHECKING:
    from ..device import DeviceInfo

Real = Literal["f32", "f64"]
#: Vectors of pairs at once. Phases are 64-bit, so a vector of them is twice as long as one of floats; what crosses a
#: function boundary must not be (`docs/drivers.md`), hence no more than these.
WIDTH = 8
#: CPU drivers by platform, and how their versions begin, on which vectors by clang's conversions were tried.
TRIED = {"Portable Computing Language": ("3.0", "3.1"), "Intel(R) OpenCL": ("",)}


@lru_cache(maxsize=256)
def exact_tables(pairs: int, rows: int, real: Real, angles: AngleForm, device: DeviceInfo) -> LaunchSpec:
    """Return the launch that fills REAL[rows][pairs] tables from exact phases.

    Bound for each call: positions (with `angles.counting` an int64 scalar), step, step_low, axis, magnitude (of the
    computing type), cosine, sine.
    """
    tried = device.kind == "cpu" and device.driver_version.startswith(TRIED.get(device.platform, ()))
    per_item, flags = pairs if device.kind == "cpu" else 1, angles.options(real)
    vectors = tried and angles.one_axis and "-DWIDE_PHASE" not in flags and per_item % WIDTH == 0
    options = [*storage_options(real, WIDTH if vectors else 1), *flags, *(["-DCLANG_VECTORS"] if vectors else ())]
    bound = ("step", "step_low", "axis", "magnitude", "cosine", "sine")
    return LaunchSpec(
        "cache_init.cl", "rope_cache_init", tuple(options), (-(-pairs // per_item), rows),
        local_size_for(device.kind, 2),
        (
            ("positions", None), ("rows", np.int32(rows)), ("pairs", np.int32(pairs)),
            ("pairs_per_item", np.int32(per_item)), *((name, None) for name in bound),
        ),
    )  # fmt: skip


@lru_cache(maxsize=256)
def ggml_tables(
    pairs: int, rows: int, real: Real, angles: AngleForm, device: DeviceInfo,
    theta_scale: float | np.float32, freq_scale: float | np.float32, magnitude: float | np.float32, yarn: bool,
) -> LaunchSpec:  # fmt: skip
    """Return the launch that fills REAL[rows][pairs] tables; the last four are `AngleTable.ggml`'s.

    Bound for each call: positions (with `angles.counting` an int64 scalar), exponent, factor, mix, axis, cosine, sine.
    """
    bound = ("exponent", "factor", "mix", "axis", "cosine", "sine")
    return LaunchSpec(
        "cache_init_ggml.cl", "rope_cache_init_ggml",
        (*storage_options(real), *(["-DCOUNTING"] if angles.counting else ())), (pairs, rows),
        local_size_for(device.kind, 2),
        (
            ("positions", None), ("rows", np.int32(rows)), ("pairs", np.int32(pairs)),
            ("theta_scale", np.float32(theta_scale)), ("freq_scale", np.float32(freq_scale)),
            ("magnitude", np.float32(magnitude)), ("yarn", np.int32(yarn)), *((name, None) for name in bound),
        ),
    )  # fmt: skip


@lru_cache(maxsize=256)
def gathered_tables(width: int, rows: int, table_dtype: str, real: Real, device: DeviceInfo) -> LaunchSpec:
    """Return the launch that fills REAL[rows][width] tables from a caller's; bound are all arguments but width."""
    options = [*storage_options(table_dtype), *(["-DREAL_F64"] if real == "f64" and table_dtype != "f64" else ())]
    parts = ("table", "offset", "batch", "row", "column")
    tables = (f"{table}_{part}" for table in ("cosine", "sine") for part in parts)
    return LaunchSpec(
        "gather_tables.cl", "rope_gather_tables", tuple(options), (width, rows), local_size_for(device.kind, 2),
        (
            *((name, None) for name in (*tables, "index", "indexed", "rows_per_batch")), ("width", np.int32(width)),
            *((name, None) for name in ("split", "step", "distance", "cosine", "sine")),
        ),
    )  # fmt: skip
