"""The conventions that models have, and how usual each is: of two that fit alike the more usual one is named."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any

from ..angles import magnitude_of
from ..config import RopeConfig
from ..errors import ConfigError
from .pairings import Pairing, plainness
from .tokens import I64

#: freq_base of published models, the most frequent first.
KNOWN_BASES = (
    1e4, 5e5, 1e6, 1e7, 1.5e5, 1e5, 8e6, 5e6, 1e8, 2.5e4, 5e4, 1.6e5, 2e6, 3e6, 4e6, 1e3, 100.0, 7.5e7, 1e9,
)  # fmt: skip
#: freq_scale: linear scaling by 1, 2, 4, …, and its reverse.
KNOWN_SCALES = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 2.0, 4.0, 8.0, 1 / 32, 1 / 3, 1 / 6, 1 / 10, 1 / 12, 1 / 64, 16.0)


@dataclass(frozen=True)
class Trial:
    """A convention to be checked: config (with n_dims), direction, offset, and its NMSE on a sample of the tokens."""

    config: RopeConfig
    forward: bool
    offset: int
    error: float


def pairing_of(config: RopeConfig, head_dim: int) -> Pairing:
    """Return the pairing of a configuration."""
    kind = "neighbours" if config.mode == "normal" else "halves"
    return Pairing(kind, 2 * config.n_pairs(head_dim), config.n_offs)  # type: ignore[arg-type]


def unusual(config: RopeConfig, forward: bool, offset: int, head_dim: int, given: RopeConfig | None) -> float:
    """Return how far a convention is from the usual ones; from what a given configuration says, if there is one."""
    if given is not None:
        changed = len(changed_fields(config, given)) + (not forward) + (offset != 0)
        if changed <= 1:
            return -10.0 + changed + 0.1 * (offset != 0)
    cost = plainness(config.n_dims or head_dim, head_dim - config.n_offs)
    if config.freq_base in KNOWN_BASES:
        cost += 0.1 * KNOWN_BASES.index(config.freq_base)
    else:
        cost += 1.8 + 0.15 * len(f"{config.freq_base:.12g}".replace(".", "").rstrip("0"))
        cost += 1.5 * (not 500 <= config.freq_base <= 2e8)
    if config.freq_scale != 1:
        cost += 1.5 + 0.1 * KNOWN_SCALES.index(config.freq_scale) if config.freq_scale in KNOWN_SCALES else 6.0
    if config.ext_factor or config.freq_factors or config.uses_sections:
        cost += 1.0
    if offset:
        cost += 2.5 + 0.2 * math.log(abs(offset))
    return cost + 1.2 * (not forward) + 1.0 * (magnitude_of(config) != 1)


def changed_fields(config: RopeConfig, given: RopeConfig) -> list[str]:
    """Return the fields in which a convention differs from a configuration, but for the arithmetic of the angles."""
    names = [f.name for f in fields(config) if f.name not in ("angles", "attn_factor")]
    if config.ext_factor == 0 and given.ext_factor == 0:
        names = [name for name in names if name not in ("n_ctx_orig", "beta_fast", "beta_slow")]
    changed = [name for name in names if getattr(config, name) != getattr(given, name)]
    same = math.isclose(magnitude_of(config), magnitude_of(given), rel_tol=1e-9)
    return changed if same else [*changed, "attn_factor"]


def variants_of(given: RopeConfig, head_dim: int) -> list[RopeConfig]:
    """Return a configuration with all changes that implementations forget or confuse, itself first."""
    made = [given]
    changes: tuple[dict[str, Any], ...] = (
        {"freq_factors": None}, {"ext_factor": 0.0}, {"freq_scale": 1.0}, {"n_offs": 0},
        {"mode": "normal", "sections": None}, {"mode": "neox", "sections": None},
    )  # fmt: skip
    for change in changes:
        made += [new for old in made if (new := _changed(old, change, head_dim)) is not None and new not in made]
    if len(variants_without(given)) > 0:
        bases = [base for base in KNOWN_BASES if base != given.freq_base]
        made += [new for base in bases if (new := _changed(given, {"freq_base": base}, head_dim)) is not None]
    return list(dict.fromkeys(made))


def same_rotations(
    config: RopeConfig, forward: bool, offset: int, positions: I64, given: RopeConfig | None
) -> list[tuple[RopeConfig, bool, int]]:
    """Return conventions (config, forward, offset) that rotate tokens at these positions [axes, R] in the same way.

    One pair is the same in both pairings. At a single position only its product with scale and direction shows.
    """
    plain = config.mode in ("normal", "neox") and config.n_dims == 2
    modes: Any = ("neox", "normal") if plain else (config.mode,)
    where = positions if config.uses_sections else positions[:1]
    turns = [(config.freq_scale, forward, offset)]
    if where.min() == where.max():
        position = int(where.min())
        # YaRN's scale is no factor of the angle.
        others = () if config.ext_factor else (*KNOWN_SCALES, *(() if given is None else (given.freq_scale,)))
        for scale in dict.fromkeys((config.freq_scale, *others)):
            moved = Fraction(config.freq_scale / scale).limit_denominator(1 << 20) * (position + offset)
            if moved.denominator == 1:
                turns += [(scale, forward, int(moved) - position), (scale, not forward, -int(moved) - position)]
    return [
        (replace(config, mode=mode, freq_scale=scale), towards, by)
        for mode in modes
        for scale, towards, by in turns
        if max(abs(by), abs(int(where.min()) + by), abs(int(where.max()) + by)) < 1 << 63
    ]


def variants_without(given: RopeConfig) -> list[str]:
    """Return what a configuration has that no line of frequencies shows: factors, YaRN, sections, axes."""
    return [name for name in ("freq_factors", "ext_factor", "sections", "pair_axes") if getattr(given, name)]


def with_magnitude(config: RopeConfig, magnitude: float) -> RopeConfig:
    """Return the configuration with the attention factor that gives a magnitude."""
    now = magnitude_of(config)
    if math.isclose(now, magnitude, rel_tol=1e-9):
        return config
    return replace(config, attn_factor=magnitude / (now / config.attn_factor if config.attn_factor else 1.0))


def _changed(config: RopeConfig, change: dict[str, Any], head_dim: int) -> RopeConfig | None:
    fresh: dict[str, Any] = {"n_dims": None} if config.mode == "vision" and "mode" in change else {}
    try:
        return replace(config, **fresh, **change).for_head_dim(head_dim)
    except ConfigError:
        return None
