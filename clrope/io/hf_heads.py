"""The size of a head in a Hugging Face `config.json`: given, by default, by layer type, or by other sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigError, shown
from ..integers import is_integer
from .config_values import count, mapping, needed_count, optional_count, real, same
from .hf_models import UNKNOWN, ModelKind

FULL_ATTENTION = "full_attention"
#: The number of a layer as the key of an object.
_LAYER = re.compile("[0-9]{1,9}")
_MOST_LAYERS = 10**9
#: Sizes of heads, or of those of some layers, in a few model types each.
_HEAD_SIZES = ("global_head_dim", "attention_head_dim", "kv_channels")


def head_size(data: Mapping[str, Any], kind: ModelKind, layer_type: str | None) -> int:
    """Return the size of a head, of a slice of it where only that is given to RoPE."""
    if kind.mla or (kind is UNKNOWN and data.get("qk_rope_head_dim") is not None):
        size = optional_count(data, "qk_rope_head_dim") if "qk_rope_head_dim" in data else kind.head_dim
        size = size or needed_count(data, "qk_rope_head_dim", "this model type rotates that many elements")
        if kind.share_of_whole and data.get("head_dim") is not None:
            whole = size + needed_count(data, "qk_nope_head_dim", "it is the rest of the head")
            if count("head_dim", data["head_dim"]) != whole:
                raise ConfigError(f"head_dim: got {shown(data['head_dim'])}, the two parts of a head have {whole}")
        return size
    own = _layer_head_dims(data)
    if own:
        return _own_head_dim(data, kind, layer_type, own)
    if kind.full_head_dim is not None and layer_type == FULL_ATTENTION and "per_layer_config" not in data:
        key, default = kind.full_head_dim
        return optional_count(data, key) or default
    return _common_head_dim(data, kind)


def _common_head_dim(data: Mapping[str, Any], kind: ModelKind) -> int:
    """Return the size of a head in layers that have none of their own."""
    sizes = {key: optional_count(data, key) for key in kind.head_keys if key in data}
    # null is not the default: the size follows from the others, as where the model type has none.
    size = next((size for size in sizes.values() if size), None) if sizes else kind.head_dim
    size = size or _quotient(data, kind, 1 if sizes else kind.size_factor)
    for key in {"head_dim", *sizes}:
        if optional_count(data, key) not in (None, size):
            raise ConfigError(
                f"{key}: got {shown(data[key])}, but heads of model_type {shown(data.get('model_type'))} "
                f"have {size} elements here"
            )
    return size


def _quotient(data: Mapping[str, Any], kind: ModelKind, factor: int) -> int:
    width_key, heads_key = (
        usual if data.get(key) is None and data.get(usual) is not None else key
        for key, usual in zip(kind.size_keys, ("hidden_size", "num_attention_heads"), strict=True)
    )
    width = needed_count(data, width_key, "the size of a head follows from it")
    heads = needed_count(data, heads_key, "the size of a head follows from it")
    if width % heads:
        raise ConfigError(f"{width_key}: got {width}, {heads_key} {heads} does not divide it; give head_dim")
    return factor * width // heads


def refuse_another_head(data: Mapping[str, Any], params: Mapping[str, Any], path: str, size: int) -> None:
    """In a model type that is not known, what may be the size of its heads, or of some, has to agree."""
    for key in _HEAD_SIZES:
        if optional_count(data, key) not in (None, size):
            raise ConfigError(
                f"{key}: got {shown(data[key])}, but heads of {size} elements would rotate; model_type "
                f"{shown(data.get('model_type'))} is not known here, so leave out of the two what does not apply"
            )
    share = params.get("partial_rotary_factor")
    if data.get("qk_rope_head_dim") is not None and share is not None and real("partial_rotary_factor", share) != 1.0:
        raise ConfigError(
            f"{path}.partial_rotary_factor: got {shown(share)} next to qk_rope_head_dim; model_type "
            f"{shown(data.get('model_type'))} is not known here, so leave out of the two what does not apply"
        )


def _layer_head_dims(data: Mapping[str, Any]) -> dict[int, int]:
    """`head_dim` of the layers that have one of their own in `per_layer_config` (layer index → overrides)."""
    table: Mapping[Any, Any] = mapping(data, "per_layer_config")
    sizes: dict[int, int | None] = {}
    for number, entry in table.items():
        # transformers writes '05'; in a file all keys are texts.
        index = int(number) if is_integer(number) or (isinstance(number, str) and _LAYER.fullmatch(number)) else -1
        if not 0 <= index < _MOST_LAYERS:
            raise ConfigError(f"per_layer_config: got the key {shown(number)}, numbers of layers are needed")
        path = f"per_layer_config.{index}"
        if entry is not None and not isinstance(entry, Mapping):
            raise ConfigError(f"{path}: got {type(entry).__name__}, an object is needed")
        if index in sizes:
            raise ConfigError(f"{path}: this layer is there twice")
        size = None if entry is None else entry.get("head_dim")
        sizes[index] = None if size is None else count(f"{path}.head_dim", size)
    return {index: size for index, size in sizes.items() if size is not None}


def _own_head_dim(data: Mapping[str, Any], kind: ModelKind, layer_type: str | None, own: Mapping[int, int]) -> int:
    """Return the size of a head where layers have sizes of their own; it must be one for all layers of a type."""
    types = layer_types(data)
    if layer_type is None:
        sizes = {*own.values(), _common_head_dim(data, kind)}
        which = "the layers"
    else:
        sizes = {own.get(i) or _common_head_dim(data, kind) for i, name in enumerate(types) if name == layer_type}
        which = f"the {layer_type!r} layers"
    if not sizes:
        raise ConfigError(f"per_layer_config: layer_types does not say which layers are {layer_type!r}")
    if len(sizes) > 1:
        raise ConfigError(f"per_layer_config: {which} have heads of several sizes: {sorted(sizes)}")
    return sizes.pop()


def layer_types(data: Mapping[str, Any]) -> Sequence[str]:
    """Return the type of each layer, () where the file has none."""
    types = data.get("layer_types")
    if types is None:
        return ()
    if not isinstance(types, (list, tuple)):
        raise ConfigError(f"layer_types: got {type(types).__name__}, a list of names is needed")
    for i, name in enumerate(types):
        if not isinstance(name, str):
            raise ConfigError(f"layer_types[{i}]: got {type(name).__name__}, a name is needed")
    return types


def of_layers(data: Mapping[str, Any], key: str, layer_type: str | None) -> Any:
    """Return a value of the root; of a list with one for each layer the value of a type of layers, which must be one.

    0 and null stand for layers without RoPE.
    """
    value = data.get(key)
    if not isinstance(value, (list, tuple)):
        return value
    types = layer_types(data)
    chosen = [one for i, one in enumerate(value) if layer_type is None or not types or types[i : i + 1] == [layer_type]]
    own: list[Any] = []
    for one in chosen:
        if not any(same(one, other) for other in (None, 0, *own)):
            own.append(one)
    if len(own) != 1:
        which = "the layers" if layer_type is None else f"the {layer_type!r} layers"
        what = f"several values for {which}: {shown(own)}" if own else f"none for {which}"
        raise ConfigError(f"{key}: {what}; give layer_type, or a number instead of the list")
    return own[0]
