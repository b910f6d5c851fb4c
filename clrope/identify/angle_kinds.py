"""The check of a convention: the rotation computed again, with each kind of angles that implementations have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from ..angles import angle_table, magnitude_of
from ..config import RopeConfig
from ..reference import cos_sin, pair_indices
from ..testing import LIMITS, PEER_LIMITS, limit_for
from .tokens import F64, I64, TokenRows

#: 'exact'; 'ggml', its float32 recurrence; 'float32', position times frequency in float32, as torch's models have it.
AngleKind = Literal["exact", "ggml", "float32"]
ANGLE_KINDS: tuple[AngleKind, ...] = get_args(AngleKind)
#: Tables, products and sums that are each rounded to a short type add up to less than this many roundings.
_ROUNDINGS = 4
#: Relative error of an angle in float32: of the frequency, of its factors, and of the product.
_FLOAT32_ANGLE = 2.0**-22


def error_of(rows: TokenRows, config: RopeConfig, forward: bool, offset: int, kind: AngleKind) -> tuple[float, float]:
    """Return how after differs from before rotated in float64 by a convention with that kind of angles.

    That is the NMSE, and the share of values that differ after rounding to the storage type.
    """
    error = power = 0.0
    different = 0
    storage = rows.after.dtype
    for turned, after in _rotated(rows, config, forward, offset, kind):
        error += float(np.sum((after - turned) ** 2))
        power += float(np.sum(turned**2))
        different += int(np.count_nonzero(turned.astype(storage) != after.astype(storage)))
    return (error / power if power else float("inf")), different / rows.elements


def errors_of_heads(rows: TokenRows, config: RopeConfig, forward: bool, offset: int, kind: AngleKind) -> F64:
    """Return the NMSE of each head of each row: float64[R, H]."""
    parts = []
    for turned, after in _rotated(rows, config, forward, offset, kind):
        power = np.sum(turned**2, axis=2)
        parts.append(np.sum((after - turned) ** 2, axis=2) / np.where(power, power, 1.0))
    return np.concatenate(parts)


def _rotated(
    rows: TokenRows, config: RopeConfig, forward: bool, offset: int, kind: AngleKind
) -> Iterator[tuple[F64, F64]]:
    """Yield before rotated, and after, in parts of the rows."""
    first, second = pair_indices(config)
    positions = rows.positions + offset
    for part, before, after in rows.chunks():
        cos, sin = (table[:, None, :] for table in _cos_sin(positions[:, part], config, kind))
        if not forward:
            sin = -sin
        x0, x1 = before[..., first], before[..., second]
        before[..., first], before[..., second] = x0 * cos - x1 * sin, x0 * sin + x1 * cos
        yield before, after


def limit_of(rows: TokenRows, config: RopeConfig, offset: int, kind: AngleKind) -> float:
    """Return the largest NMSE at which a convention counts as the one that was used.

    Implementations that round tables or angles to a short type are within it.
    """
    own = limit_for(rows.dtype, rows.elements, rounding=True)
    if rows.dtype == "f64":
        return LIMITS["f32"]
    if rows.dtype != "f32":
        return _ROUNDINGS * own
    if kind == "exact":
        return own
    table = angle_table(config)
    reach = np.abs(rows.positions + offset).max(axis=0).astype(np.float64)
    squares = np.mean(reach**2) * np.mean((table.omega * _FLOAT32_ANGLE) ** 2)
    return own + min(PEER_LIMITS["f32"], float(squares))


def _cos_sin(positions: I64, config: RopeConfig, kind: AngleKind) -> tuple[F64, F64]:
    if kind != "float32":
        return cos_sin(positions if config.uses_sections else positions[0], replace(config, angles=kind))
    table = angle_table(config)
    frequencies = _plain_float32(config) if _is_plain(config) else table.omega.astype(np.float32)
    axes = table.axis if positions.shape[0] > 1 else np.zeros(table.pairs, dtype=np.intp)
    theta = (positions[axes].T.astype(np.float32) * frequencies).astype(np.float64)
    return np.cos(theta) * magnitude_of(config), np.sin(theta) * magnitude_of(config)


def _is_plain(config: RopeConfig) -> bool:
    others = config.freq_factors is not None or config.pair_axes is not None or config.coordinate_scale != 1
    return config.ext_factor == 0 and config.mode != "vision" and not others


def _plain_float32(config: RopeConfig) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return `1 / base ** (2 i / n_dims)` times the scale, each step rounded to float32."""
    assert config.n_dims is not None
    exponents = (np.arange(0, config.n_dims, 2, dtype=np.float32) / np.float32(config.n_dims)).astype(np.float64)
    powers = (config.freq_base**exponents).astype(np.float32)
    scale = np.float32(config.freq_scale)
    return np.asarray(np.float32(1) / powers * scale, dtype=np.float32)
