"""Kernel `gather`: tables of cos and sin from a caller's own: picks rows, widens them, puts columns in order."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .cos_sin import Real
from .launch import LaunchSpec, local_size_for
from .source import storage_options

if TYPE_CHECKING:
    from ..device import DeviceInfo

_TABLE = ("offset", "batch", "row", "column")


@lru_cache(maxsize=256)
def spec(width: int, rows: int, table_dtype: str, real: Real, device: DeviceInfo) -> LaunchSpec:
    """Return the launch that fills REAL[rows][width] tables; bound are all arguments of gather_tables.cl but width."""
    options = storage_options(table_dtype)
    if real == "f64" and table_dtype != "f64":
        options.append("-DREAL_F64")
    tables = [name for table in ("cosine", "sine") for name in (f"{table}_table", *(f"{table}_{n}" for n in _TABLE))]
    return LaunchSpec(
        "gather_tables.cl", "rope_gather_tables", tuple(options), (width, rows), local_size_for(device.kind, 2),
        (
            *((name, None) for name in (*tables, "index", "indexed", "rows_per_batch")), ("width", np.int32(width)),
            *((name, None) for name in ("split", "step", "distance", "cosine", "sine")),
        ),
    )  # fmt: skip
