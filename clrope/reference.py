"""RoPE in NumPy float64, and ggml's float32 recurrence of angles: what every device's result is compared with.

`rope` is written for clarity, straight from the formulas, and shares nothing with the kernels but the fractions of a
turn (which are tested against an arbitrary-precision library on their own).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .angles import AngleTable, angle_table
from .config import RopeConfig
from .errors import reading
from .layout import canonical, dtype_name
from .norm import Norm
from .positions import PositionRows, position_rows

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


def turns(rows: npt.NDArray[np.int64], table: AngleTable) -> F64:
    """Return `position * omega / 2π` modulo one turn, in [-1/2, 1/2), for rows int64[axes, R]: float64[R, pairs].

    Computed in 128-bit integers, so it is right to the last bit of float64 at any position.
    """
    out = np.empty((rows.shape[1], table.pairs), dtype=np.float64)
    half, full = 1 << 127, 1 << 128
    for i, (turn, axis) in enumerate(zip(table.turn128, table.axis, strict=True)):
        unique, inverse = np.unique(rows[int(axis) if rows.shape[0] > 1 else 0], return_inverse=True)
        signed = [((int(p) * turn + half) % full - half) for p in unique]
        out[:, i] = np.array([s / full for s in signed], dtype=np.float64)[inverse]
    return out


def ggml_theta(rows: npt.NDArray[np.int64], table: AngleTable) -> npt.NDArray[np.float32]:
    """Return ggml's angle in radians, float32[R, pairs], by its repeated float32 multiplication.

    Source: `ggml_rope_cache_init` and `rope_yarn` of ggml: theta = position; then per pair theta / factor, the YaRN
    blend, and theta *= theta_scale. Each operation is rounded to float32 on its own, but for the blend
    `interp * (1 - mix) + extrap * mix`, of which compilers make one fused multiply-add (and so ggml's builds compute).
    """
    g = table.ggml
    out = np.empty((rows.shape[1], table.pairs), dtype=np.float32)
    for i in range(table.pairs):
        theta = rows[int(table.axis[i]) if rows.shape[0] > 1 else 0].astype(np.float32)
        for _ in range(int(g.exponent[i])):
            theta *= g.theta_scale
        extrap = theta / g.factor[i]
        interp = g.freq_scale * extrap
        if g.yarn:
            interp = _multiply_add_once(interp, np.float32(1) - g.mix[i], extrap * g.mix[i])
        out[:, i] = interp
    return out


def _multiply_add_once(a: Any, b: Any, c: Any) -> npt.NDArray[np.float32]:
    """Return a * b + c of float32 numbers, rounded once to float32; beyond 1e30 each operation is rounded.

    In float64 the product is exact and the sum is rounded to odd (to the neighbour whose last bit is 1, if it is not
    exact), so that rounding it again to float32 is as rounding once.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        plain = a * b + c
        largest = np.maximum(np.maximum(np.abs(a), np.abs(b)), np.maximum(np.abs(a * b), np.abs(c)))
        product, addend = np.float64(a) * np.float64(b), np.float64(c)
        total = np.asarray(product + addend)
        part = total - product
        error = (product - (total - part)) + (addend - part)
        even = (total.view(np.int64) & 1) == 0
        odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
        once = np.where((error != 0) & even, odd, total).astype(np.float32)
    return np.where(largest < np.float32(1e30), once, plain)


def cos_sin(positions: Any, config: RopeConfig, *, head_dim: int | None = None) -> tuple[F64, F64]:
    """Return (cos, sin), float64, times the magnitude, one row per position.

    positions: an int, [R] integers, or [4, R] / [3, R] for section modes. Shapes returned: [R, pairs].
    """
    config = config if head_dim is None else config.for_head_dim(head_dim)
    return _cos_sin(position_rows(positions, config, batch=None, seq=None), config)


def _cos_sin(where: PositionRows, config: RopeConfig) -> tuple[F64, F64]:
    table = angle_table(config)
    if config.angles == "ggml":
        theta = ggml_theta(where.rows, table).astype(np.float64)
        magnitude = float(table.ggml.magnitude)
    else:
        theta = 2 * np.pi * turns(where.rows, table)
        magnitude = table.magnitude
    return np.cos(theta) * magnitude, np.sin(theta) * magnitude


def pair_indices(config: RopeConfig) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the element indices (first, second) of each pair of a head."""
    pairs = config.n_pairs(None)
    i = np.arange(pairs)
    if config.mode == "normal":
        return config.n_offs + 2 * i, config.n_offs + 2 * i + 1
    return config.n_offs + i, config.n_offs + pairs + i


def rms_norm(x: Any, norm: Norm, layout: str = "bsnd") -> F64:
    """Return the RMS norm of x in float64, x / sqrt(mean(x²) + eps) · (weight + weight_offset), as a new array.

    x, layout: as for `rope`.
    """
    with reading("x", x):
        array = np.asarray(x)
    dtype_name(array.dtype)
    out = np.array(array, np.float64, order="C")
    heads = canonical(out, layout)
    norm.check(heads.shape)
    groups = heads.reshape(*heads.shape[:2], -1, norm.weight.size)
    root = np.sqrt((groups**2).mean(axis=-1, keepdims=True) + norm.eps)
    heads[...] = (groups / root * (norm.weight + norm.weight_offset)).reshape(heads.shape)
    return out


def norm_rope(x: Any, positions: Any, config: RopeConfig, norm: Norm, layout: str = "bsnd") -> F64:
    """Return x normed and rotated in float64, in the order that the norm says; arguments as for `rope`."""
    if norm.order == "before":
        return rope(rms_norm(x, norm, layout), positions, config, layout=layout)
    return rms_norm(rope(x, positions, config, layout=layout), norm, layout)


def rope(x: Any, positions: Any, config: RopeConfig, forward: bool = True, layout: str = "bsnd") -> F64:
    """Rotate x in float64 and return a new float64 array of its shape.

    x: rank 3 or 4 array in the given layout; any supported dtype, taken exactly as stored.
    positions: as for `clrope.rope`. forward=False applies the transpose (the sign of sin flipped).
    """
    with reading("x", x):
        array = np.asarray(x)
    dtype_name(array.dtype)
    out = array.astype(np.float64)
    view = canonical(array, layout)
    source = canonical(out, layout).copy()
    target = canonical(out, layout)
    config = config.for_head_dim(view.shape[3])
    where = position_rows(positions, config, batch=view.shape[0], seq=view.shape[1])
    cos, sin = _cos_sin(where, config)
    if not forward:
        sin = -sin
    batch_rows = where.rows_of_batch(view.shape[0])
    first, second = pair_indices(config)
    for b in range(view.shape[0]):
        c, s = cos[batch_rows[b]][:, None, :], sin[batch_rows[b]][:, None, :]
        x0, x1 = source[b][..., first], source[b][..., second]
        target[b][..., first] = x0 * c - x1 * s
        target[b][..., second] = x0 * s + x1 * c
    return out
