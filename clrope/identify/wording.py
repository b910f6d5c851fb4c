"""Conventions and their differences from a configuration in words."""

from __future__ import annotations

import numpy as np

from ..angles import magnitude_of
from ..config import RopeConfig
from .candidates import changed_fields

_SCALING = {"freq_factors": "frequency factors", "ext_factor": "YaRN"}


def number(value: float) -> str:
    """Return a number without zeros or an exponent that it does not need."""
    return np.format_float_positional(value, trim="-")


def convention_text(config: RopeConfig, head_dim: int, forward: bool = True, offset: int = 0) -> str:
    """Return a convention in a few words, its usual parts left out."""
    n_dims = config.n_dims or head_dim
    parts = [config.mode.upper(), f"freq_base {number(config.freq_base)}"]
    if config.freq_scale != 1:
        parts.append(f"freq_scale {number(config.freq_scale)}")
    if config.n_offs or 2 * config.n_pairs(head_dim) != head_dim:
        where = f" from element {config.n_offs} on" if config.n_offs else ""
        parts.append(f"n_dims {n_dims} of {head_dim}{where}")
    parts += [text for name, text in _SCALING.items() if getattr(config, name)]
    if magnitude_of(config) != 1:
        parts.append(f"magnitude {magnitude_of(config):.9g}")
    if not forward:
        parts.append("inverse")
    if offset:
        parts.append(f"positions {offset:+d}")
    return ", ".join(parts)


def differences_from(config: RopeConfig, forward: bool, offset: int, given: RopeConfig) -> tuple[str, ...]:
    """Return how a convention differs from a configuration, one phrase for each difference."""
    found = []
    for name in changed_fields(config, given):
        got, want = getattr(config, name), getattr(given, name)
        if name == "mode":
            found.append(f"{got.upper()} where the config says {want.upper()}")
        elif name == "attn_factor":
            found.append(f"magnitude {magnitude_of(config):.9g} where the config says {magnitude_of(given):.9g}")
        elif name in _SCALING:
            what = _SCALING[name]
            has = f"other {what}" if got and want else what if want else "none"
            found.append(f"{what if got else f'no {what}'} where the config has {has}")
        elif name == "sections":
            continue  # goes with the mode
        elif isinstance(got, float):
            found.append(f"{name} {number(got)} where the config says {number(want)}")
        else:
            found.append(f"{name} {got} where the config says {want}")
    if not forward:
        found.append("inverse where the config means forward")
    if offset:
        found.append(f"positions {offset:+d} where the given ones are meant")
    return tuple(found)


def one_of(words: list[str]) -> str:
    """Return words as a list in a sentence."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
