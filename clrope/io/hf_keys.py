"""Root keys of a Hugging Face `config.json` that concern the rotation, under all their names, and what they say."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, shown
from ..mode import Mode
from .config_values import same

#: What says nothing.
UNSET: tuple[object, ...] = (None, False, {}, [])

#: A word for the rotation, anywhere in a key.
_CONCERNS = re.compile(
    r"rope(?![a-z])|(^|_)rope|rotary|rotat(e|ion|ed)(_|$)|theta|partial_rot|mscale|(^|_)(ntk|yarn|xpos)|base_freq|freq_base"
    r"|emb_base|(short|long|(low|high)_freq)_factor|beta_(fast|slow)|inv_freq|(^|_)alibi$"
)
#: Parameters in their two places, which are read elsewhere, and the rotations of other parts of a model.
_ELSEWHERE = re.compile(r"rope_(scaling|parameters)$|(index|indexer|vision|visual|image|video|audio|mtp|compress)_")
_ATTENTION = re.compile(r"attn|attention")
#: Which layers have RoPE is no part of a configuration.
_WHICH_LAYERS = re.compile(r"no_?rope|nope|rope_scaling_layers$")
_BASE = re.compile(r"(theta|(rope|rotary|rotary_emb|rotary_embedding)_base|base_freq|freq_base)$")
_SHARE = re.compile(r"partial_rotary_factors?$|(rope|rotary|rotary_emb)_(pct|percent|percentage|fraction)$")
_SIZE = re.compile(r"(rope|rotary)(_emb)?(_head)?_(dim|dims|ndims|size)$|attn_rotary_emb$")
_NEIGHBOURS = re.compile(r"(rope|rotary).*(interleaved?|traditional)$")
_SWITCH = re.compile(r"^(use|has|enable|with)_.*(rope|rotary)|^(rope|rotary)$|^use_rotary")
_FACTOR = re.compile(r"(ratio|factor|scale|mscale)$")
_TYPE = re.compile(r"type$")


@dataclass(frozen=True)
class Facts:
    """What is used: the base, the rotated elements of a head, its size, and the pairing."""

    theta: float
    dim: int
    head_dim: int
    mode: Mode


def rotation_keys(data: Mapping[str, Any]) -> list[str]:
    """Return the root's keys that concern the rotation, but for the parameters."""
    return [key for key in data if isinstance(key, str) and _CONCERNS.search(key) and not _ELSEWHERE.match(key)]


def refuse_disagreeing(
    data: Mapping[str, Any], read: Collection[str], facts: Facts, layer_type: str | None, others: Mapping[str, float]
) -> None:
    """Refuse a key that concerns the rotation, was not read, and does not say what is used.

    read: keys that were read; others: the bases of the other types of layers.
    """
    inner = {f"{part}.": values for part, values in data.items() if _is_attention(part, values)}
    for where, values in {"": data, **inner}.items():
        for key in rotation_keys(values):
            name = f"{where}{key}"
            if name not in read and not _agrees(key, values[key], facts, layer_type, others):
                raise ConfigError(
                    f"{name}: not a key of model_type {shown(data.get('model_type'))} that is understood here, "
                    f"and {shown(values[key])} is not what is used without it (base {facts.theta:g}, {facts.dim} of "
                    f"{facts.head_dim} elements, mode {facts.mode!r})"
                )


def _is_attention(part: object, values: object) -> bool:
    if not isinstance(part, str) or not isinstance(values, Mapping):
        return False
    return bool(_ATTENTION.search(part)) and not _ELSEWHERE.match(part)


def _agrees(key: str, value: object, facts: Facts, layer_type: str | None, others: Mapping[str, float]) -> bool:
    if isinstance(value, (list, tuple)) and not _WHICH_LAYERS.search(key):
        return all(_agrees(key, one, facts, layer_type, others) for one in value)
    if _NEIGHBOURS.search(key) and isinstance(value, bool):
        return value == (facts.mode == "normal")
    if _SWITCH.search(key) and isinstance(value, bool):
        return value
    if any(same(value, unset) for unset in UNSET) or _WHICH_LAYERS.search(key):
        return True
    if _BASE.search(key):
        return any(same(value, theta) for theta in _bases(key, facts.theta, layer_type, others))
    if isinstance(value, (int, float)) and _SHARE.search(key):
        return abs(value) <= 1 and int(facts.head_dim * value) == facts.dim
    if _SIZE.search(key):
        return same(value, facts.dim)
    if _FACTOR.search(key):
        return same(value, 1)
    return bool(_TYPE.search(key)) and same(value, "default")


def _bases(key: str, theta: float, layer_type: str | None, others: Mapping[str, float]) -> Iterable[float]:
    """The bases of the layers that a key is for, by its name."""
    if not others:
        return (theta,)
    sliding = re.search("swa|local|sliding", key) is not None
    every = {**others, layer_type or "": theta}
    return tuple(base for name, base in every.items() if ("sliding" in name) == sliding)
