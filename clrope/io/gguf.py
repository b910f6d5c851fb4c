"""Reading the RoPE configuration of a GGUF model file, as llama.cpp would apply it.

Keys under `{arch}.rope.`, the head's size, and the tensors `rope_freqs.weight` and `rope_factors_{long,short}.weight`.
A key under `{arch}.rope.` that is not understood is refused by name.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..mode import SECTION_MODES, Mode, parse_mode
from .config_values import count, layer_name, positive, real
from .gguf_file import read_gguf
from .gguf_models import (
    ARCHITECTURES,
    FINETUNED_IS_A_SWITCH,
    LOG_MULTIPLIER_AS_IT_IS,
    LOG_MULTIPLIER_IS_A_TENTH,
    NO_ROPE,
    SCALED_SLIDING,
    SECTIONS_DECIDE,
    UNSCALED_SLIDING,
)

_FULL, _SLIDING = "full_attention", "sliding_attention"
_UNDERSTOOD = frozenset(
    {"dimension_count", "dimension_count_swa", "dimension_sections", "freq_base", "freq_base_swa", "scale_linear"}
    | {f"scaling.{key}" for key in ("type", "factor", "attn_factor", "original_context_length", "finetuned")}
    | {f"scaling.yarn_{key}" for key in ("ext_factor", "attn_factor", "beta_fast", "beta_slow", "log_multiplier")}
)
#: Of these, the numbers that are checked also where another key decides.
_NUMBERS = (
    *("freq_base", "freq_base_swa", "scale_linear", "scaling.factor", "scaling.attn_factor"),
    *(f"scaling.yarn_{key}" for key in ("ext_factor", "attn_factor", "beta_fast", "beta_slow", "log_multiplier")),
)
#: Keys of an architecture that are read besides those of RoPE.
_OTHERS = (
    *("attention.key_length", "attention.head_count", "attention.sliding_window"),
    *("embedding_length", "context_length"),
)
#: Keys that may hold an array: of sections, or a number for each layer; far beyond any model's layers.
_ARRAYS = frozenset({"rope.dimension_sections", "attention.head_count", "attention.sliding_window"})
_MOST_ELEMENTS = 1 << 12
_TENSORS = {"rope_freqs.weight": "freqs", "rope_factors_long.weight": "long", "rope_factors_short.weight": "short"}


@dataclass(frozen=True)
class _File:
    """What is needed of a file: metadata without the tokenizer, and the three tensors where present."""

    arch: str
    keys: Mapping[str, Any]
    tensors: Mapping[str, tuple[float, ...]]

    def rope(self, key: str) -> Any:
        return self.keys.get(f"{self.arch}.rope.{key}")

    def path(self, key: str) -> str:
        return f"{self.arch}.rope.{key}"


def fields_from_gguf(
    path: str | os.PathLike[str],
    *,
    mode: str | int | None = None,
    seq_len: int | None = None,
    layer_type: str | None = None,
) -> dict[str, Any]:
    """Return the fields of `RopeConfig` for a GGUF model file; arguments as for `RopeConfig.from_gguf`.

    As in llama.cpp: freq_scale is 1 / scaling.factor (1 for type 'none'); type 'yarn' sets ext_factor 1 unless
    `yarn_ext_factor` is there; with `yarn_log_multiplier` the magnitude is that of DeepSeek's mscale rule; attn_factor
    is `scaling.attn_factor`, times `yarn_attn_factor` only where ext_factor is 0. Raises `ConfigError` naming the key.
    """
    file = _read(Path(path))
    for key in sorted(file.keys):
        inner = key.removeprefix(f"{file.arch}.rope.")
        if inner in _NUMBERS:
            real(key, file.keys[key])
        elif inner == "scaling.finetuned" and not isinstance(file.keys[key], bool):
            raise ConfigError(f"{key}: got {file.keys[key]!r:.80}, true or false is needed")
    if file.arch in FINETUNED_IS_A_SWITCH and file.rope("scaling.finetuned") is False:
        raise ConfigError(
            f"{file.path('scaling.finetuned')}: false, with which llama.cpp uses no RoPE for {file.arch!r}"
        )
    sections = _sections(file)
    chosen = _mode(file, mode, sections)
    sliding = _is_sliding(file, layer_type)
    n_dims = _n_dims(file, sliding)
    fields: dict[str, Any] = {"freq_base": _freq_base(file, sliding)}
    if not (sliding and file.arch in UNSCALED_SLIDING):
        fields |= _scaling(file)
        fields["freq_factors"] = _freq_factors(file, seq_len, n_dims // 2)
    if chosen not in SECTION_MODES and sections is not None:
        raise ConfigError(f"{file.path('dimension_sections')}: got {list(sections)}, mode {chosen!r} has no sections")
    return {"mode": chosen, "n_dims": n_dims, "sections": sections, **fields}


def _read(path: Path) -> _File:
    try:
        found = read_gguf(path, _wanted, _TENSORS)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    return _File(found.architecture, found.keys, {_TENSORS[name]: numbers for name, numbers in found.tensors.items()})


def _wanted(arch: str, key: str) -> int:
    """Return how many elements of a key are read; refuse an unknown one before its value is."""
    inner = key.removeprefix(f"{arch}.")
    if inner == key or not (inner.startswith("rope.") or inner in _OTHERS):
        return 0
    if inner not in _OTHERS and inner.removeprefix("rope.") not in _UNDERSTOOD:
        raise ConfigError(f"{key[:200]}: not understood; known are {', '.join(sorted(_UNDERSTOOD))}")
    return _MOST_ELEMENTS if inner in _ARRAYS else 1


def _mode(file: _File, mode: str | int | None, sections: tuple[int, int, int, int] | None) -> Mode:
    if mode is not None:
        return parse_mode(mode)
    if file.arch in NO_ROPE:
        raise ConfigError(f"general.architecture: {file.arch!r} uses no RoPE in llama.cpp")
    if file.arch not in ARCHITECTURES:
        raise ConfigError(
            f"general.architecture: got {file.arch!r}, whose pairing is not known here; give mode='normal', 'neox', …"
        )
    if file.arch in SECTIONS_DECIDE and sections is not None and sections[0] > 0 and sections[1] > 0:
        return "mrope"
    return ARCHITECTURES[file.arch]


def _sections(file: _File) -> tuple[int, int, int, int] | None:
    given = file.rope("dimension_sections")
    if given is None:
        return None
    values = given if isinstance(given, list) else []
    if len(values) not in (3, 4) or any(type(size) is not int or size < 0 for size in values):
        raise ConfigError(f"{file.path('dimension_sections')}: got {given!r}, 3 or 4 counts of pairs are needed")
    t, h, w, e = [*values, 0][:4]
    # Converters write zeros where a model has no sections.
    return (t, h, w, e) if any(values) else None


def _is_sliding(file: _File, layer_type: str | None) -> bool:
    """Whether the layers asked for have a RoPE other than the full ones."""
    if layer_type is not None and layer_name(layer_type) not in (_FULL, _SLIDING):
        raise ConfigError(f"layer_type: got {layer_type!r}, allowed are {_FULL!r}, {_SLIDING!r}")
    own_base = UNSCALED_SLIDING.get(file.arch)
    unscaled = own_base is not None or (file.arch in UNSCALED_SLIDING and _has_window(file))
    own = (file.rope("freq_base_swa"), file.rope("dimension_count_swa"))
    same = (file.rope("freq_base"), file.rope("dimension_count"))
    differ = own_base is not None or any(a is not None and a != b for a, b in zip(own, same, strict=True))
    if layer_type is None and (differ or (unscaled and _is_scaled(file))):
        raise ConfigError(f"layer_type: not given, this file's {_FULL!r} and {_SLIDING!r} layers differ in RoPE")
    if layer_type != _SLIDING or not (differ or _has_window(file)):
        return False
    if not unscaled and file.arch not in SCALED_SLIDING and (_is_scaled(file) or (_factor(file) or 1.0) != 1.0):
        raise ConfigError(
            f"layer_type: it is not known whether the sliding layers of architecture {file.arch!r} are scaled too"
        )
    return True


def _has_window(file: _File) -> bool:
    window = file.keys.get(f"{file.arch}.attention.sliding_window")
    return any(window) if isinstance(window, list) else bool(window)


def _is_scaled(file: _File) -> bool:
    """Whether the full layers have another RoPE than that of their base alone."""
    return bool(file.tensors) or _scaling(file) != {"freq_scale": 1.0, "ext_factor": 0.0, "attn_factor": 1.0}


def _n_dims(file: _File, sliding: bool) -> int:
    if sliding and file.rope("dimension_count_swa") is not None:
        return count(file.path("dimension_count_swa"), file.rope("dimension_count_swa"))
    if file.rope("dimension_count") is not None:
        return count(file.path("dimension_count"), file.rope("dimension_count"))
    key = f"{file.arch}.attention.key_length"
    if file.keys.get(key) is not None:
        return count(key, file.keys[key])
    width_key, heads_key = f"{file.arch}.embedding_length", f"{file.arch}.attention.head_count"
    width, heads = file.keys.get(width_key), file.keys.get(heads_key)
    if isinstance(heads, (list, tuple)):
        if len(set(heads)) != 1:
            raise ConfigError(f"{heads_key}: differs between layers, and {file.path('dimension_count')} is missing")
        heads = heads[0]
    if width is None or heads is None:
        missing = width_key if width is None else heads_key
        raise ConfigError(f"{file.path('dimension_count')}: missing, and so is {missing} to take it from")
    return count(width_key, width) // count(heads_key, heads)


def _freq_base(file: _File, sliding: bool) -> float:
    base = file.rope("freq_base")
    full = 10000.0 if base is None else positive(file.path("freq_base"), base)
    if not sliding:
        return full
    own = file.rope("freq_base_swa")
    if own is None:
        return UNSCALED_SLIDING.get(file.arch) or full
    return positive(file.path("freq_base_swa"), own)


def _factor(file: _File) -> float | None:
    """The scaling factor; 0 and a missing key mean none."""
    for key in ("scaling.factor", "scale_linear"):
        value = file.rope(key)
        if value is not None:
            factor = real(file.path(key), value)
            if factor < 0:
                raise ConfigError(f"{file.path(key)}: got {factor}, it must not be negative")
            return factor or None
    return None


def _scaling_type(file: _File) -> str:
    kind = file.rope("scaling.type")
    if kind is None:
        return "linear"
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise ConfigError(f"{file.path('scaling.type')}: got {kind!r}, known are none, linear, yarn, longrope")
    return str(kind)


def _scaling(file: _File) -> dict[str, Any]:
    kind = _scaling_type(file)
    factor = 1.0 if kind == "none" else _factor(file) or 1.0
    attention = real(file.path("scaling.attn_factor"), _or(file.rope("scaling.attn_factor"), 1.0))
    ext = real(file.path("scaling.yarn_ext_factor"), _or(file.rope("scaling.yarn_ext_factor"), -1.0))
    if ext < 0:  # not set
        ext = 1.0 if kind == "yarn" else 0.0
    fields: dict[str, Any] = {"freq_scale": 1.0 / factor, "ext_factor": ext}
    if ext == 0:
        own = real(file.path("scaling.yarn_attn_factor"), _or(file.rope("scaling.yarn_attn_factor"), 1.0))
        return fields | {"attn_factor": attention * own}
    for key in ("beta_fast", "beta_slow"):
        value = file.rope(f"scaling.yarn_{key}")
        if value is not None:
            fields[key] = positive(file.path(f"scaling.yarn_{key}"), value)
    key = "scaling.original_context_length"
    original = file.rope(key)
    if original is None:
        key, original = f"{file.arch}.context_length", file.keys.get(f"{file.arch}.context_length")
        if original is None:
            raise ConfigError(f"{file.path('scaling.original_context_length')}: missing, scaling type 'yarn' needs it")
    fields["n_ctx_orig"] = count(key, original)
    # With YaRN on, llama.cpp computes the magnitude; converters write that of the model into `yarn_attn_factor`.
    fields["attn_factor"] = attention * _log_multiplier_ratio(file, factor)
    return fields


def _log_multiplier_ratio(file: _File, factor: float) -> float:
    """The magnitude divided by `1 + 0.1 ln(factor)`, which ggml's rule multiplies in; 1 but for DeepSeek's rule."""

    def magnitude(scale: float) -> float:
        return 1.0 if factor <= 1.0 else 0.1 * scale * math.log(factor) + 1.0

    by_rule = 1.0 + 0.1 * math.log(factor)
    value = file.rope("scaling.yarn_log_multiplier")
    key = file.path("scaling.yarn_log_multiplier")
    weight_all = 0.0 if value is None else real(key, value)
    if weight_all == 0:
        return magnitude(1.0) / by_rule
    if file.arch in LOG_MULTIPLIER_IS_A_TENTH:
        weight_all /= float(np.float32(0.1))
        if math.isclose(weight_all, 1.0, rel_tol=1e-6):
            weight_all = 1.0
    elif file.arch not in LOG_MULTIPLIER_AS_IT_IS:
        raise ConfigError(f"{key}: its meaning for architecture {file.arch!r} is not known here")
    weight = 1.0
    if file.arch == "deepseek2" and weight_all != 1.0:
        weight = weight_all  # DeepSeek-V2 has mscale = mscale_all_dim
    return magnitude(weight) / magnitude(weight_all) / by_rule


def _freq_factors(file: _File, seq_len: int | None, pairs: int) -> tuple[float, ...] | None:
    factors = file.tensors.get("freqs")
    name = "rope_freqs.weight"
    if factors is None and ("long" in file.tensors or "short" in file.tensors):
        if seq_len is None:
            raise ConfigError("seq_len: not given, this file has rope_factors_long and rope_factors_short")
        key = file.path("scaling.original_context_length")
        original = file.rope("scaling.original_context_length") or file.keys.get(f"{file.arch}.context_length")
        if original is None:
            raise ConfigError(f"{key}: missing, long or short factors are chosen by it")
        which = "long" if count("seq_len", seq_len) > count(key, original) else "short"
        factors, name = file.tensors.get(which), f"rope_factors_{which}.weight"
        if factors is None:
            raise ConfigError(f"{name}: missing, it is needed for seq_len {seq_len}")
    if factors is None:
        return None
    if len(factors) < pairs:
        raise ConfigError(f"{name}: has {len(factors)} numbers, one per pair is needed: {pairs}")
    return factors[:pairs]


def _or(value: Any, default: float) -> Any:
    return default if value is None else value
