"""One set of Hugging Face RoPE parameters (a `rope_type` and its keys) as fields of `RopeConfig`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, shown
from .config_values import count, positive, real
from .hf_models import ModelKind

#: Divisor of the angle of a pair that 'proportional' leaves alone. Finite, because a divisor must be; large enough
#: that the angle is below half a unit of the 64-bit phase (and of float32 1.0) at every position.
UNROTATED = 1e30

#: Older or other names of the types.
_ALIASES = {"su": "longrope", "mrope": "default"}

_ORIGINAL = "original_max_position_embeddings"
#: Keys of each type beyond those common to all.
_KEYS: dict[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "yarn": frozenset(
        {"factor", _ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}
    ),
    "longrope": frozenset({"factor", _ORIGINAL, "attention_factor", "short_factor", "long_factor"}),
    "llama3": frozenset({"factor", _ORIGINAL, "low_freq_factor", "high_freq_factor"}),
    "proportional": frozenset({"factor"}),
}
#: HunYuan's files have these of 'yarn' next to `alpha`; transformers reads none of them.
_BESIDE_ALPHA = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
_MSCALES = ("short_mscale", "long_mscale")
#: Keys of every type, read by `clrope.io.hf` itself.
_COMMON = frozenset(
    {"rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved", "interleaved"}
)


@dataclass(frozen=True)
class Setting:
    """What the type's rule needs from the rest of the model's configuration.

    path:          where the parameters were found, for messages.
    theta:         base.
    dim:           number of rotated elements.
    head_dim:      size of the head.
    root_original: `original_max_position_embeddings` at the root of the file, else the model type's, if any; for one
                   layer type transformers does not read it.
    max_positions: `max_position_embeddings`, if any.
    seq_len:       length the caller will run with, if given.
    nested:        whether the parameters belong to one layer type.
    kind:          the model type's own rules.
    """

    path: str
    theta: float
    dim: int
    head_dim: int
    root_original: int | None
    max_positions: int | None
    seq_len: int | None
    nested: bool
    kind: ModelKind


def rope_type_of(params: Mapping[str, Any], path: str, *, yarn_is_longrope: bool = False) -> str:
    """Return the canonical type of one set of parameters."""
    names: list[str] = []
    for key in ("rope_type", "type"):
        given = params.get(key)
        if given is None:
            continue
        name = _ALIASES.get(given, given) if isinstance(given, str) else given
        if yarn_is_longrope and name == "yarn":
            name = "longrope"
        if isinstance(name, str) and name == "axial":
            raise ConfigError(
                f"{path}.{key}: 'axial' does not say which axis drives which pair, which is known of some vision "
                "encoders; give RopeConfig(pair_axes=...)"
            )
        if not isinstance(name, str) or name not in _KEYS:
            raise ConfigError(f"{path}.{key}: got {shown(given)}, known types are {', '.join(_KEYS)}")
        # 'mrope' is an older name that says nothing of the scaling, so the other key may name one.
        if given != "mrope" or not names:
            names.append(name)
    if not names:
        return "default"
    if names[0] == names[-1]:
        return names[0]
    raise ConfigError(f"{path}: rope_type {params['rope_type']!r} and type {params['type']!r} disagree")


def rope_fields(params: Mapping[str, Any], kind: str, setting: Setting) -> dict[str, Any]:
    """Return the fields of `RopeConfig` (all but mode, n_dims and sections) for parameters of the given type."""
    given = {key: value for key, value in params.items() if value is not None}
    for key in given:
        if not isinstance(key, str):
            raise ConfigError(f"{setting.path}: got the key {shown(key)}, names are needed")
    allowed_keys = _KEYS[kind] | _COMMON | set(setting.kind.ignored)
    if kind == "dynamic" and setting.kind.ntk_alpha and given.get("alpha"):
        allowed_keys |= {"alpha", *_BESIDE_ALPHA}
    if setting.kind.mscales and kind != "default":
        if kind != "longrope":
            raise ConfigError(f"{setting.path}: rope type {kind!r}, this model type has 'longrope' and 'default' only")
        allowed_keys |= set(_MSCALES)
    for key in sorted(given):
        if key not in allowed_keys:
            allowed = ", ".join(sorted(_KEYS[kind])) or "no keys of its own"
            raise ConfigError(f"{setting.path}.{key}: not a key of rope type {kind!r}, which has {allowed}")
    return _RULES[kind](given, setting)


def _need(params: Mapping[str, Any], key: str, setting: Setting) -> Any:
    if key not in params:
        raise ConfigError(f"{setting.path}.{key}: missing, rope type {_type_text(params)} needs it")
    return params[key]


def _type_text(params: Mapping[str, Any]) -> str:
    return repr(params.get("rope_type", params.get("type")))


def _factor(params: Mapping[str, Any], setting: Setting) -> float:
    return positive(f"{setting.path}.factor", _need(params, "factor", setting))


def _original(params: Mapping[str, Any], setting: Setting) -> int:
    inner = count(f"{setting.path}.{_ORIGINAL}", params[_ORIGINAL]) if _ORIGINAL in params else None
    root = None if setting.nested else setting.root_original
    if inner is not None and root is not None and inner != root:
        raise ConfigError(f"{setting.path}.{_ORIGINAL}: {inner} here, {root} at the root of the file or by default")
    value = inner if inner is not None else root
    # The rule of transformers where neither is there.
    value = value if value is not None else setting.max_positions
    if value is None:
        raise ConfigError(f"{setting.path}.{_ORIGINAL}: missing, rope type {_type_text(params)} needs it")
    return value


def _extension(params: Mapping[str, Any], original: int, setting: Setting) -> float:
    """`factor`, or where it is left out the ratio of the extended to the original context, as transformers does."""
    if "factor" in params:
        return positive(f"{setting.path}.factor", params["factor"])
    if setting.max_positions is None:
        raise ConfigError(f"{setting.path}.factor: missing, and so is {setting.kind.length_key} to take it from")
    return setting.max_positions / original


def _default(params: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    return {"freq_base": setting.theta}


def _linear(params: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    return {"freq_base": setting.theta, "freq_scale": 1.0 / _factor(params, setting)}


def _dynamic(params: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    if params.get("alpha"):
        if setting.dim <= 2:
            raise ConfigError(f"{setting.path}.alpha: heads of more than 2 elements are needed, got {setting.dim}")
        alpha = positive(f"{setting.path}.alpha", params["alpha"])
        return {"freq_base": setting.theta * alpha ** (setting.dim / (setting.dim - 2))}
    factor = _factor(params, setting)
    if setting.max_positions is None:
        raise ConfigError(f"{setting.kind.length_key}: missing, rope type 'dynamic' needs it")
    if setting.seq_len is None:
        raise ConfigError("seq_len: not given, rope type 'dynamic' depends on the length that will be run")
    if setting.dim <= 2:
        raise ConfigError(f"{setting.path}: got {setting.dim} rotated elements, rope type 'dynamic' needs more than 2")
    length = max(setting.seq_len, setting.max_positions)
    growth = factor * length / setting.max_positions - (factor - 1.0)
    if growth <= 0:
        raise ConfigError(f"{setting.path}.factor: got {factor}, the base of rope type 'dynamic' would not be positive")
    return {"freq_base": setting.theta * growth ** (setting.dim / (setting.dim - 2))}


def _yarn(params: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    original = _original(params, setting)
    factor = _extension(params, original, setting)
    attention = _yarn_attention(params, factor, setting)
    if factor == 1.0:
        return {"freq_base": setting.theta, "attn_factor": attention}
    fast = positive(f"{setting.path}.beta_fast", params.get("beta_fast", 32.0))
    slow = positive(f"{setting.path}.beta_slow", params.get("beta_slow", 1.0))
    truncate = params.get("truncate", True)
    if not isinstance(truncate, bool):
        raise ConfigError(f"{setting.path}.truncate: got {shown(truncate)}, true or false is needed")
    if setting.nested and not truncate:
        # transformers reads this key next to the layer types, not under one, so what was meant is not what it does.
        raise ConfigError(f"{setting.path}.truncate: false under a layer type is ignored by transformers; refused")
    if setting.theta == 1.0:
        raise ConfigError("rope_theta: got 1, the ramp of rope type 'yarn' is undefined there")
    low, high = (_turns_to_pair(turns, original, setting) for turns in (fast, slow))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, setting.dim - 1)
    ramp = _ramp(low, high + 0.001 if low == high else high, setting.dim // 2)
    magnitude = 1.0 + 0.1 * math.log(factor)
    if truncate and magnitude > 0 and ramp == _ramp(low, max(high, low + 0.001), setting.dim // 2):
        return {
            "freq_base": setting.theta,
            "freq_scale": 1.0 / factor,
            "ext_factor": 1.0,
            # With ext_factor other than 0 the rule multiplies by `magnitude` by itself.
            "attn_factor": attention / magnitude,
            "beta_fast": fast,
            "beta_slow": slow,
            "n_ctx_orig": original,
        }
    # A ramp the rule cannot express (it always rounds its ends): the same angles as one divisor per pair.
    divisors = tuple(1.0 / (share / factor + (1.0 - share)) for share in ramp)
    return {"freq_base": setting.theta, "freq_factors": divisors, "attn_factor": attention}


def _yarn_attention(params: Mapping[str, Any], factor: float, setting: Setting) -> float:
    if "attention_factor" in params:
        return positive(f"{setting.path}.attention_factor", params["attention_factor"])
    scale = real(f"{setting.path}.mscale", params.get("mscale", 0.0))
    scale_all = real(f"{setting.path}.mscale_all_dim", params.get("mscale_all_dim", 0.0))

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0

    return magnitude(scale) / magnitude(scale_all) if scale and scale_all else magnitude(1.0)


def _turns_to_pair(turns: float, original: int, setting: Setting) -> float:
    """Index of the pair that makes `turns` rotations over the original context."""
    return setting.dim * math.log(original / (turns * 2.0 * math.pi)) / (2.0 * math.log(setting.theta))


def _ramp(low: float, high: float, pairs: int) -> tuple[float, ...]:
    """Share of the interpolated angle in each pair."""
    return tuple(min(1.0, max(0.0, (i - low) / (high - low))) for i in range(pairs))


def _longrope(params: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    original = _original(params, setting)
    factor = _extension(params, original, setting)
    short, long = (_divisors(params, key, setting) for key in ("short_factor", "long_factor"))
    if setting.kind.mscales:
        return {"freq_base": setting.theta, "freq_factors": short, "attn_factor": _mscale(params, original, setting)}
    if setting.seq_len is None and short != long:
        raise ConfigError(
            "seq_len: not given, rope type 'longrope' takes short_factor up to and long_factor beyond "
            f"{original} positions"
        )
    chosen = long if setting.seq_len is not None and setting.seq_len > original else short
    if "attention_factor" in params:
        attention = positive(f"{setting.path}.attention_factor", params["attention_factor"])
    elif factor <= 1.0:
        attention = 1.0
    elif original == 1:
        raise ConfigError(f"{setting.path}: 1 original position, rope type 'longrope' needs more, or attention_factor")
    else:
        attention = math.sqrt(1.0 + math.log(factor) / math.log(original))
    return {"freq_base": setting.theta, "freq_factors": chosen, "attn_factor": attention}


def _mscale(params: Mapping[str, Any], original: int, setting: Setting) -> float:
    """PhiMoE's factor of cos and sin, which depends on the length; its divisors stay the short ones."""
    short, long = (positive(f"{setting.path}.{key}", _need(params, key, setting)) for key in _MSCALES)
    if short != long and _ORIGINAL not in params and original != setting.max_positions:
        raise ConfigError(f"{setting.path}.{_ORIGINAL}: missing, transformers reads it there only in this model type")
    if setting.seq_len is None and short != long:
        raise ConfigError(
            f"seq_len: not given, this model type takes short_mscale up to and long_mscale beyond {original} positions"
        )
    return long if setting.seq_len is not None and setting.seq_len > original else short


def _divisors(params: Mapping[str, Any], key: str, setting: Setting) -> tuple[float, ...]:
    value = _need(params, key, setting)
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ConfigError(f"{setting.path}.{key}: got {type(value).__name__}, a list of numbers is needed")
    if len(value) != setting.dim // 2:
        raise ConfigError(f"{setting.path}.{key}: has {len(value)} numbers, one per pair is needed: {setting.dim // 2}")
    return tuple(positive(f"{setting.path}.{key}[{i}]", number) for i, number in enumerate(value))


def _llama3(params: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    factor = _factor(params, setting)
    low = positive(f"{setting.path}.low_freq_factor", _need(params, "low_freq_factor", setting))
    high = positive(f"{setting.path}.high_freq_factor", _need(params, "high_freq_factor", setting))
    if high < low:
        raise ConfigError(f"{setting.path}.high_freq_factor: got {high}, it must not be below low_freq_factor = {low}")
    original = _original(params, setting)
    divisors = []
    for i in range(setting.dim // 2):
        wavelength = 2.0 * math.pi * setting.theta ** (2.0 * i / setting.dim)
        if wavelength > original / low:
            divisors.append(factor)
        elif wavelength < original / high or high == low:
            divisors.append(1.0)
        else:
            smooth = (original / wavelength - low) / (high - low)
            divisors.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return {"freq_base": setting.theta, "freq_factors": tuple(divisors)}


def _proportional(params: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    factor = positive(f"{setting.path}.factor", params.get("factor", 1.0))
    share = real(f"{setting.path}.partial_rotary_factor", params.get("partial_rotary_factor", 1.0))
    if not 0.0 <= share <= 1.0:
        raise ConfigError(f"{setting.path}.partial_rotary_factor: got {share}, allowed is 0 to 1")
    # The pairs span the whole head, and the exponent counts in the whole head; the last pairs stand still.
    pairs, turned = setting.head_dim // 2, int(share * setting.head_dim // 2)
    fields: dict[str, Any] = {"freq_base": setting.theta, "freq_scale": 1.0 / factor}
    if turned < pairs:
        fields["freq_factors"] = (1.0,) * turned + (UNROTATED,) * (pairs - turned)
    return fields


_RULES: dict[str, Callable[[Mapping[str, Any], Setting], dict[str, Any]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}
