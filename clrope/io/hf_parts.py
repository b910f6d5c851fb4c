"""The language model's part of a Hugging Face configuration of several models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError, shown
from .config_values import mapping, same
from .hf_axial import MODELS as AXIAL
from .hf_keys import UNSET, rotation_keys
from .hf_models import table

#: Names of the language model's part, the usual one first.
_TEXT = (
    *("text_config", "llm_config", "language_config", "language_model_config", "lm_config", "text_model_config"),
    *("llm", "language_model", "thinker_config", "vlm_config"),
)
_MOST_LEVELS = 4


def text_part(data: Mapping[str, Any], level: int = 0) -> Mapping[str, Any]:
    """Return the language model's part of a configuration of several models, or the whole."""
    outer = data.get("model_type")
    outer = outer if isinstance(outer, str) else None
    inner_types = table().parts.get(outer or "", {})
    if mapping(data, "text_config"):
        name = "text_config"
    else:
        name = "" if _is_known(outer) else next((key for key in _TEXT[1:] if _is_part(data.get(key))), "")
    if not name:
        if outer in table().flat:
            return {**data, "model_type": inner_types["text_config"]}
        _refuse_parts(data, outer)
        return data
    text = data[name]
    for key in ("rope_scaling", "rope_parameters", *rotation_keys(data)):
        if not any(same(data.get(key), other) for other in (*UNSET, text.get(key))):
            raise ConfigError(
                f"{key}: {name}, the only part that transformers reads it in, has "
                f"{'none' if text.get(key) is None else 'another one'}; give the {name} alone"
            )
    if text.get("model_type") is None and outer is not None:
        # Files written by hand leave the inner name out.
        by_name = f"{outer}_text" if _is_known(f"{outer}_text") else outer
        text = {**text, "model_type": inner_types.get(name, by_name)}
    return text_part(text, level + 1) if level < _MOST_LEVELS else text


def _is_known(model_type: str | None) -> bool:
    return model_type in table().models or model_type in table().refused or model_type in AXIAL


def _is_part(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value)


def _refuse_parts(data: Mapping[str, Any], outer: str | None) -> None:
    """A model type that is not known, whose parts have configurations of their own, none of which is the text's."""
    if _is_known(outer):
        return
    types = table().parts.get(outer or "", {})
    parts = {
        key: value.get("model_type", types.get(key))
        for key, value in data.items()
        if isinstance(value, Mapping) and ("model_type" in value or key in types)
    }
    known = [key for key, kind in parts.items() if isinstance(kind, str) and _is_known(kind)]
    if known or (parts and "hidden_size" not in data):
        raise ConfigError(
            f"model_type: got {shown(outer)}, whose parts have configurations of their own: "
            f"{', '.join(map(shown, known or parts))}; give one of them"
        )
