"""Reading a Hugging Face `config.json`: which parameters apply, to how many elements, in which pairing.

Both layouts are understood: `rope_parameters` (transformers 5; flat, or nested per layer type) and `rope_scaling` with
`rope_theta` next to it (before 5). A key that concerns the rotation is used, agrees with what is used, or is refused by
name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import ConfigError, shown
from ..mode import SECTION_MODES, Mode, parse_mode
from .config_values import MOST_DIMS, count, layer_name, mapping, needed_count, optional_count, positive, real, same
from .hf_axial import axial_fields, axial_kind
from .hf_heads import head_size, layer_types, of_layers, refuse_another_head
from .hf_keys import UNSET, Facts, refuse_disagreeing
from .hf_models import UNKNOWN, LayerKind, ModelKind, table
from .hf_parts import text_part
from .hf_rope import Setting, rope_fields, rope_type_of
from .json_object import read_json_object

_LAYER_THETAS = "layer_rope_theta"
_QUERY_SCALE = "llama_4_scaling_beta"
_SCALED_LAYERS = "rope_scaling_layers"
_MOST_LAYERS = 1 << 16
_POSITION_TYPES = ("position_embedding_type", "position_embeddings_type")


def fields_from_hf(
    source: Any,
    seq_len: int | None = None,
    *,
    layer_type: str | None = None,
    mode: str | int | None = None,
) -> dict[str, Any]:
    """Return the fields of `RopeConfig` for a Hugging Face configuration; arguments as for `RopeConfig.from_hf`."""
    data = text_part(_load(source))
    if seq_len is not None:
        seq_len = count("seq_len", seq_len)
    if layer_type is not None:
        layer_type = layer_name(layer_type)
    axial = axial_kind(data)
    if axial is not None:
        return axial_fields(data, axial, layer_type, mode)
    kind, chosen = _kind(data, mode)
    _refuse_no_rope(data, kind)
    _refuse_older_layout(data, kind)
    part = _parameters(data, kind, layer_type)
    rope_type = rope_type_of(part.params, part.path, yarn_is_longrope=kind.yarn_is_longrope)
    head_dim = head_size(data, kind, layer_type)
    if kind is UNKNOWN:
        refuse_another_head(data, part.params, part.path, head_dim)
    if rope_type == "default" and part.own.plain_partial is not None:
        part = replace(part, own=replace(part.own, partial=part.own.plain_partial))
    dim = head_dim if rope_type == "proportional" else _rotated(data, kind, part, head_dim, rope_type)
    if dim % 2 or dim < 2:
        raise ConfigError(f"{part.path}: {dim} of {head_dim} elements would rotate, an even number is needed")
    if head_dim > MOST_DIMS:
        raise ConfigError(f"head_dim: got {head_dim}, at most {MOST_DIMS} is allowed")
    theta = _theta(data, kind, part)
    _refuse_unread(data, kind, part, Facts(theta, dim, head_dim, chosen))
    setting = Setting(
        path=part.path,
        theta=theta,
        dim=dim,
        head_dim=head_dim,
        root_original=optional_count(data, "original_max_position_embeddings") or kind.original,
        max_positions=optional_count(data, kind.length_key),
        seq_len=seq_len,
        nested=part.nested,
        kind=kind,
    )
    params = part.params
    if rope_type == "proportional" and params.get("partial_rotary_factor") is None:
        params = {**params, "partial_rotary_factor": _default_share(data, kind, part, head_dim)}
    fields = rope_fields(params, rope_type, setting)
    sections = _sections(data, chosen, kind, part, dim // 2)
    return {"mode": chosen, "n_dims": dim, "sections": sections, **fields}


def notes_from_hf(source: Any) -> list[str]:
    """Return what a file that `fields_from_hf` reads says besides the rotation, or against transformers' own."""
    data = text_part(_load(source))
    kind, _ = _kind(data, "neox" if data.get("model_type") not in table().models else None)
    model_type = shown(data.get("model_type"))
    values = {**(kind.params or {}), **(data.get("rope_parameters") or data.get("rope_scaling") or {})}
    notes = [
        f"{key}: {shown(data[key])}, which transformers does not read in model_type {model_type}"
        for key in kind.unread
        if data.get(key) is not None
    ]
    if _QUERY_SCALE in kind.ignored and values.get(_QUERY_SCALE):
        notes.append(f"{_QUERY_SCALE}: {shown(values[_QUERY_SCALE])}, which scales q by its position, not the angles")
    return notes


@dataclass(frozen=True)
class _Part:
    """The parameters of one layer type: their keys, where they were, and what the model type has by default.

    nested:  whether they belong to one layer type.
    default: whether the file has none, and these are the model type's.
    """

    params: Mapping[str, Any]
    path: str
    own: LayerKind
    layer_type: str | None
    nested: bool = False
    default: bool = False


def _load(source: Any) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        return source
    if hasattr(source, "to_dict"):
        data = source.to_dict()
        if not isinstance(data, Mapping):
            raise ConfigError(f"source: to_dict() of {type(source).__name__} gives {type(data).__name__}, no object")
        return data
    path = Path(source)
    # Unlike Path.is_dir, False for a name that is too long.
    if os.path.isdir(path):
        path = path / "config.json"
    elif not (path.is_absolute() or path.suffix == ".json" or len(path.parts) > 2 or os.path.lexists(path)):
        raise ConfigError(
            f"{source}: there is no such file or folder; names on the Hugging Face Hub are not downloaded: give the "
            "path of the model's config.json, or its content, such as AutoConfig.from_pretrained(name)"
        )
    return read_json_object(path)


def _kind(data: Mapping[str, Any], mode: str | int | None) -> tuple[ModelKind, Mode]:
    name = data.get("model_type")
    kind = table().models.get(name) if isinstance(name, str) else None
    if mode is not None:
        return kind or UNKNOWN, parse_mode(mode)
    if isinstance(name, str) and name in table().refused:
        raise ConfigError(f"model_type: {name!r} is none of the five modes, because {table().refused[name]}")
    if kind is None and isinstance(name, str) and name in table().parts:
        parts = ", ".join(f"{key} ({inner})" for key, inner in table().parts[name].items())
        raise ConfigError(f"model_type: {name!r} is a model of several parts, none of which is here: {parts}")
    if kind is None:
        what = "missing" if name is None else f"got {shown(name)}, whose pairing is not known here"
        raise ConfigError(f"model_type: {what}; give mode='neox' (rotate_half) or mode='normal' (neighbouring pairs)")
    if kind.interleave_key is not None and data.get(kind.interleave_key) is not None:
        interleaved = data[kind.interleave_key]
        if not isinstance(interleaved, bool):
            raise ConfigError(f"{kind.interleave_key}: got {shown(interleaved)}, true or false is needed")
        return kind, "normal" if interleaved else "neox"
    return kind, kind.mode


def _refuse_no_rope(data: Mapping[str, Any], kind: ModelKind) -> None:
    alibi = data.get("alibi")
    if alibi is not None and not isinstance(alibi, bool):
        raise ConfigError(f"alibi: got {shown(alibi)}, true or false is needed")
    if alibi:
        raise ConfigError("alibi: true, this model uses ALiBi and no RoPE")
    if kind.only_if is not None and not same(data.get(kind.only_if[0]), kind.only_if[1]):
        raise ConfigError(
            f"{kind.only_if[0]}: got {shown(data.get(kind.only_if[0]))}, model type {shown(data.get('model_type'))} "
            f"has RoPE only if it is {kind.only_if[1]!r}"
        )
    for key in _POSITION_TYPES if kind is UNKNOWN else ():
        value = data.get(key)
        if value is not None and not (
            isinstance(value, str) and ("rope" in value.lower() or "rotary" in value.lower())
        ):
            raise ConfigError(f"{key}: got {shown(value)}, this model has no RoPE")


def _refuse_older_layout(data: Mapping[str, Any], kind: ModelKind) -> None:
    """Where transformers does not read `rope_scaling`, it does not read a share at the root of one RoPE either."""
    for key in ("rope_scaling", "" if kind.layers else "partial_rotary_factor") if kind.scaled == () else ():
        if not any(same(data.get(key), unset) for unset in UNSET):
            raise ConfigError(
                f"{key}: transformers does not read it in model_type {shown(data.get('model_type'))}; "
                "give rope_parameters"
            )


def _refuse_unread(data: Mapping[str, Any], kind: ModelKind, part: _Part, facts: Facts) -> None:
    """What concerns the rotation and was not read has to agree with what was."""
    read = {kind.rotary_dim_key, kind.interleave_key, kind.only_if and kind.only_if[0], *kind.head_keys, *kind.unread}
    # Default parameters of layer types are complete: what the root says is not read.
    for one in kind.layers.values() if kind.layers and not part.default else () if kind.layers else (kind,):
        read |= {one.theta_key, one.partial_key}
    if kind.mla or kind is UNKNOWN:
        read.add("qk_rope_head_dim")
    if kind.layer_theta_is_base:
        read.add(_LAYER_THETAS)
    others = {}
    for name in kind.layers:
        if name != part.layer_type:
            try:
                others[name] = _theta(data, kind, _parameters(data, kind, name))
            except ConfigError:  # layers without RoPE
                continue
    refuse_disagreeing(data, {key for key in read if key}, facts, part.layer_type, others)


def _parameters(data: Mapping[str, Any], kind: ModelKind, layer_type: str | None) -> _Part:
    old, new = (mapping(data, key) for key in ("rope_scaling", "rope_parameters"))
    if old and new and not same(dict(old), dict(new)):
        raise ConfigError("rope_scaling: differs from rope_parameters in the same file")
    model_type = shown(data.get("model_type"))
    path = "rope_parameters" if new or not old else "rope_scaling"
    params = new or old
    default = not params and data.get("rope_parameters") is None and kind.params is not None
    if default:
        assert kind.params is not None
        params, path = kind.params, f"rope_parameters of model_type {model_type} by default"
    if kind.plain and params:
        raise ConfigError(f"{path}: model_type {model_type} has none, its frequencies are fixed")
    own = kind.of_layer(layer_type)
    values = [value for value in params.values() if value is not None]
    if values and all(isinstance(value, Mapping) for value in values):
        if kind.layers and path == "rope_scaling":
            raise ConfigError(f"rope_scaling: model_type {model_type} has those of a layer type in rope_parameters")
        if kind.older_only:
            own = replace(own, theta_key=None, partial_key=None)
        return _nested_part(params, path, own, layer_type, default)
    if not kind.layers:
        types = layer_types(data)
        if layer_type is not None and layer_type not in types:
            raise ConfigError(f"layer_type: got {layer_type!r}, this file has one RoPE and names no such layer type")
        return _Part(_of_scaled_layers(data, params), path, own, layer_type, default=default)
    if path == "rope_parameters" and params:
        raise ConfigError(f"rope_parameters: model_type {model_type} has them per layer type")
    return _older_part(data, params, kind, layer_type)


def _of_scaled_layers(data: Mapping[str, Any], params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuse scaling that is for some layers only (Molmo 2)."""
    layers, number = data.get(_SCALED_LAYERS), data.get("num_hidden_layers")
    every = list(range(number if isinstance(number, int) and 0 <= number < _MOST_LAYERS else 0))
    if layers is not None and not same(layers, every) and rope_type_of(params, "rope_parameters") != "default":
        raise ConfigError(
            f"{_SCALED_LAYERS}: got {shown(layers)}, the other layers are not scaled; "
            "leave it out for those layers, and the scaling for the others"
        )
    return params


def _nested_part(params: Mapping[str, Any], path: str, own: LayerKind, layer_type: str | None, default: bool) -> _Part:
    names = ", ".join(shown(name) for name in params)
    if layer_type is None:
        raise ConfigError(f"layer_type: not given, {path} has one set per layer type: {names}")
    if layer_type not in params:
        raise ConfigError(f"layer_type: got {layer_type!r}, {path} has {names}")
    chosen = params[layer_type]
    if chosen is None:
        raise ConfigError(f"{path}.{layer_type}: null, these layers have no RoPE")
    return _Part(chosen, f"{path}.{layer_type}", own, layer_type, nested=True, default=default)


def _older_part(data: Mapping[str, Any], params: Mapping[str, Any], kind: ModelKind, layer_type: str | None) -> _Part:
    """The older layout of models with several kinds of layers, which transformers turns into parameters of each."""
    if layer_type not in kind.layers:
        got = "not given" if layer_type is None else f"got {layer_type!r}"
        raise ConfigError(f"layer_type: {got}, this model type has {' and '.join(map(repr, kind.layers))}")
    if params.get("rope_type") is None and not any(same(params.get("type"), plain) for plain in (None, "default")):
        # What transformers 4 read; transformers 5 computes type 'default'.
        raise ConfigError(
            f"rope_scaling.type: got {shown(params['type'])} without rope_type, "
            f"the only key that transformers 5 reads in model_type {shown(data.get('model_type'))}"
        )
    scaled = layer_type in (kind.scaled or ())
    path = "rope_scaling" if scaled else str(layer_type)
    return _Part(params if scaled else {}, path, kind.of_layer(layer_type), layer_type, nested=True)


def _theta(data: Mapping[str, Any], kind: ModelKind, part: _Part) -> float:
    own = part.own
    root_key = own.theta_key or ("rotary_emb_base" if kind.plain else "rope_theta")
    inner, outer = part.params.get("rope_theta"), of_layers(data, root_key, part.layer_type)
    for where, values, key in ((f"{part.path}.", part.params, "rope_theta"), ("", data, root_key)):
        if key in values:
            if values[key] is None:
                raise ConfigError(f"{where}{key}: null, a model without a base has no RoPE")
            break
    if kind.layer_theta_is_base and data.get(_LAYER_THETAS) is not None:
        return positive(_LAYER_THETAS, of_layers(data, _LAYER_THETAS, part.layer_type))
    if inner is not None:
        theta = positive(f"{part.path}.rope_theta", inner)
        # Per layer type the root's value is a default only.
        if not part.nested and outer is not None and positive(root_key, outer) != theta:
            raise ConfigError(f"{root_key}: {shown(outer)} at the root, {shown(inner)} in {part.path}")
        return theta
    if outer is not None and not (kind.plain and own.theta_key is None):
        theta = positive(root_key, outer)
        if own.theta_key is None and theta != own.theta:
            raise ConfigError(
                f"{root_key}: got {shown(outer)}, which transformers 4 takes for the sliding layers of model_type "
                f"{shown(data.get('model_type'))}, but transformers 5 takes {own.theta}; "
                "give rope_parameters with a base per layer type"
            )
        return theta
    if own.theta is None:
        raise ConfigError(f"{root_key}: missing, and model_type {shown(data.get('model_type'))} has no known default")
    return own.theta


def _rotated(data: Mapping[str, Any], kind: ModelKind, part: _Part, head_dim: int, rope_type: str) -> int:
    """Number of rotated elements of a head."""
    own, key = part.own, part.own.partial_key
    inner = part.params.get("partial_rotary_factor")
    outer = None if key is None else of_layers(data, key, part.layer_type)
    if kind.rotary_dim_key is not None and (kind.plain or data.get(kind.rotary_dim_key) is not None):
        dim = needed_count(data, kind.rotary_dim_key, "it is the number of rotated elements")
        for share in (inner, outer):
            if share is not None and int(head_dim * real("partial_rotary_factor", share)) != dim:
                raise ConfigError(f"{kind.rotary_dim_key}: {dim}, partial_rotary_factor {share} says otherwise")
        if dim > head_dim:
            raise ConfigError(f"{kind.rotary_dim_key}: got {dim}, at most the head's {head_dim} elements can rotate")
        return dim
    given = inner if inner is not None else outer
    where = f"{part.path}.partial_rotary_factor" if inner is not None else str(key)
    if given is None:
        return head_dim if own.partial is None else int(head_dim * own.partial)
    share = real(where, given)
    # Per layer type the root's value is a default only.
    if inner is not None and outer is not None and not part.nested and real(str(key), outer) != share:
        raise ConfigError(f"{key}: {shown(outer)} at the root, {shown(inner)} in {part.path}")
    if not 0.0 < share <= 1.0:
        raise ConfigError(f"{where}: got {share}, allowed is above 0, at most 1")
    if own.partial is not None:
        return int(head_dim * share)
    wholes = set() if kind.share_of_whole else {head_dim}
    if kind.share_of_whole or (kind.mla and rope_type == "default"):
        # The share that the rotated slice has of a head. Other types take it of the slice.
        rest = optional_count(data, "qk_nope_head_dim") or 0
        wholes |= {head_dim + rest, optional_count(data, "head_dim") or head_dim + rest}
    if head_dim not in {int(whole * share) for whole in wholes}:
        raise ConfigError(f"{where}: got {share}, model_type {shown(data.get('model_type'))} rotates the whole head")
    return head_dim


def _default_share(data: Mapping[str, Any], kind: ModelKind, part: _Part, head_dim: int) -> Any:
    """`partial_rotary_factor` where the parameters have none: the root's, else the model type's."""
    key = part.own.partial_key
    if key is not None and data.get(key) is not None:
        return of_layers(data, key, part.layer_type)
    dim = None if kind.rotary_dim_key is None else optional_count(data, kind.rotary_dim_key)
    return part.own.partial if dim is None else dim / head_dim


def _sections(
    data: Mapping[str, Any], mode: Mode, kind: ModelKind, part: _Part, pairs: int
) -> tuple[int, int, int, int] | None:
    given = part.params.get("mrope_section")
    flags = {key: part.params.get(key) for key in ("mrope_interleaved", "interleaved")}
    path = f"{part.path}.mrope_section"
    for key, value in flags.items():
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"{part.path}.{key}: got {shown(value)}, true or false is needed")
    if mode not in SECTION_MODES:
        if given is not None:
            raise ConfigError(f"{path}: model_type {shown(data.get('model_type'))} (mode {mode!r}) has no sections")
        if "mrope" in (part.params.get("type"), part.params.get("rope_type")) or any(flags.values()):
            raise ConfigError(
                f"{part.path}: type 'mrope' in model_type {shown(data.get('model_type'))} (mode {mode!r})"
            )
        return None
    for key, value in flags.items():
        if value is not None and value != (mode == "imrope"):
            raise ConfigError(f"{part.path}.{key}: got {shown(value)}, the mode is {mode!r}")
    if given is None and mode == kind.mode:
        given = kind.sections
    if isinstance(given, (str, bytes)) or not isinstance(given, (list, tuple)):
        what = "missing" if given is None else f"got {shown(given)}"
        raise ConfigError(f"{path}: {what}, mode {mode!r} needs the pairs of t, h and w")
    sizes = [count(path, size) for size in given]
    if len(sizes) != 3:
        raise ConfigError(f"{path}: got {len(sizes)} numbers, the pairs of t, h and w are needed")
    total = sum(sizes)
    # Beyond the sections transformers fails ('mrope') or uses t ('imrope'), where ggml's rule begins again.
    if total < pairs or (mode == "mrope" and total != pairs):
        raise ConfigError(f"{path}: {sizes} add up to {total}, the head has {pairs} rotated pairs")
    return (sizes[0], sizes[1], sizes[2], 0)
