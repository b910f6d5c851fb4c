"""RoPE in float64 straight from a `RopeConfig`, by ggml's rules, sharing nothing with `clrope.angles`."""

from __future__ import annotations

import math

import numpy as np

from clrope.config import RopeConfig


def omegas(config: RopeConfig) -> np.ndarray:
    """Radians per position of each pair, float64."""
    n_dims, pairs = config.n_dims, config.n_dims // 2
    index = np.arange(pairs)
    extrapolated = config.freq_base ** (-2.0 * index / n_dims)
    if config.freq_factors is not None:
        extrapolated = extrapolated / np.array(config.freq_factors[:pairs])
    interpolated = extrapolated * config.freq_scale
    if config.ext_factor == 0:
        return interpolated
    turns = np.array([config.beta_fast, config.beta_slow])
    ends = n_dims * np.log(config.n_ctx_orig / (turns * 2 * math.pi)) / (2 * math.log(config.freq_base))
    low, high = max(0, math.floor(ends[0])), min(n_dims - 1, math.ceil(ends[1]))
    mix = (1 - np.clip((index - low) / max(0.001, high - low), 0, 1)) * config.ext_factor
    return interpolated * (1 - mix) + extrapolated * mix


def magnitude(config: RopeConfig) -> float:
    """Factor on cos and sin."""
    return config.attn_factor * (1 + 0.1 * math.log(1 / config.freq_scale) if config.ext_factor else 1.0)


def axes(config: RopeConfig) -> np.ndarray:
    """Position row (t, h, w, e) of each pair."""
    pairs = config.n_dims // 2
    if config.mode not in ("mrope", "imrope"):
        return np.zeros(pairs, dtype=int)
    t, h, w, _ = config.sections
    sector = np.arange(pairs) % sum(config.sections)
    if config.mode == "mrope":
        return (sector >= t).astype(int) + (sector >= t + h) + (sector >= t + h + w)
    rest = sector % 3
    return np.where(sector < 3 * np.array([t, h, w])[rest], rest, 3)


def rope(x: np.ndarray, positions: np.ndarray, config: RopeConfig) -> np.ndarray:
    """Rotate x [B, S, N, D] at positions [B, S] or [3, B, S] (where the row e is that of t)."""
    x = x.astype(np.float64)
    rows = positions[None].repeat(4, axis=0) if positions.ndim == 2 else np.concatenate([positions, positions[:1]])
    pairs = config.n_dims // 2
    angle = np.moveaxis(rows[axes(config)], 0, -1) * omegas(config)  # [B, S, pairs]
    cos, sin = (f(angle)[:, :, None] * magnitude(config) for f in (np.cos, np.sin))
    first = np.arange(pairs) * 2 if config.mode == "normal" else np.arange(pairs)
    second = first + (1 if config.mode == "normal" else pairs)
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def nmse(got: np.ndarray, want: np.ndarray) -> float:
    """Mean squared error relative to the mean square of `want`."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    return float(((got - want) ** 2).sum() / (want**2).sum())
