"""Reading a Hugging Face `config.json`: which parameters apply, to how many elements, in which pairing.

Both layouts are understood: `rope_parameters` (transformers 5; flat, or nested per layer type) and `rope_scaling` with
`rope_theta` next to it (before 5). What is not understood is refused with the name of the key, never skipped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from ..errors import ConfigError, shown
from ..mode import SECTION_MODES, Mode, parse_mode
from .config_values import MOST_DIMS, count, layer_name, mapping, needed_count, optional_count, positive, real, same
from .hf_heads import FULL_ATTENTION, head_size, layer_types, refuse_another_head
from .hf_models import MODELS, REFUSED, UNKNOWN, ModelKind
from .hf_rope import Setting, rope_fields, rope_type_of
from .json_object import read_json_object

#: Root keys that change RoPE in some model types; refused where the model type at hand does not read them.
_SUSPECTS = (
    *("rope_theta", "rotary_pct", "rope_pct", "rotary_dim", "rotary_emb_base", "rotary_emb_fraction", "rope_ratio"),
    *("rope_local_base_freq", "global_rope_theta", "local_rope_theta", "partial_rotary_factors", "rope_interleave"),
    "use_dynamic_ntk",
)
#: Keys that transformers reads in the language model's part only.
_PARAMETERS = ("rope_scaling", "rope_parameters", "partial_rotary_factor", *_SUSPECTS)
_UNSET: tuple[object, ...] = (None, False, {})
_SLIDING = "sliding_attention"


def fields_from_hf(
    source: str | os.PathLike[str] | Mapping[str, Any],
    seq_len: int | None = None,
    *,
    layer_type: str | None = None,
    mode: str | int | None = None,
) -> dict[str, Any]:
    """Return the fields of `RopeConfig` for a Hugging Face configuration; arguments as for `RopeConfig.from_hf`."""
    data = _text_part(_load(source))
    if seq_len is not None:
        seq_len = count("seq_len", seq_len)
    if layer_type is not None:
        layer_type = layer_name(layer_type)
    kind, chosen = _kind(data, mode)
    _refuse_unread(data, kind)
    part = _parameters(data, kind, layer_type)
    rope_type = rope_type_of(part.params, part.path, yarn_is_longrope=kind.yarn_is_longrope)
    head_dim = head_size(data, kind, layer_type)
    if kind is UNKNOWN:
        refuse_another_head(data, part.params, part.path, head_dim)
    dim = head_dim if rope_type == "proportional" else _rotated(data, kind, part, head_dim)
    if dim % 2 or dim < 2:
        raise ConfigError(f"{part.path}: {dim} of {head_dim} elements would rotate, an even number is needed")
    if head_dim > MOST_DIMS:
        raise ConfigError(f"head_dim: got {head_dim}, at most {MOST_DIMS} is allowed")
    setting = Setting(
        path=part.path,
        theta=_theta(data, kind, part),
        dim=dim,
        head_dim=head_dim,
        root_original=optional_count(data, "original_max_position_embeddings") or kind.original,
        max_positions=optional_count(data, "max_position_embeddings"),
        seq_len=seq_len,
        nested=part.nested,
    )
    params = part.params
    if rope_type == "proportional" and params.get("partial_rotary_factor") is None:
        params = {**params, "partial_rotary_factor": _default_share(data, kind, head_dim)}
    fields = rope_fields(params, rope_type, setting)
    sections = _sections(data, chosen, part, dim // 2)
    return {"mode": chosen, "n_dims": dim, "sections": sections, **fields}


@dataclass(frozen=True)
class _Part:
    """The parameters of one layer type: their keys, where they were, and the base where they hold none.

    theta_key: the root's key for this base; None where transformers 5 reads none, see `TwoThetas`.
    """

    params: Mapping[str, Any]
    path: str
    nested: bool
    theta_key: str | None
    theta: float | None


def _load(source: str | os.PathLike[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        return source
    path = Path(source)
    # Unlike Path.is_dir, False for a name that is too long.
    return read_json_object(path / "config.json" if os.path.isdir(path) else path)


def _text_part(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's part of a multimodal configuration, or the whole."""
    text = mapping(data, "text_config")
    if not text:
        return data
    for key in _PARAMETERS:
        if not any(same(data.get(key), other) for other in (*_UNSET, text.get(key))):
            raise ConfigError(
                f"{key}: text_config, the only part that transformers reads it in, has "
                f"{'none' if text.get(key) is None else 'another one'}; give the text_config alone"
            )
    if text.get("model_type") is None:
        outer = data.get("model_type")
        if outer is None:
            return text
        # Files written by hand leave the inner name out.
        return {**text, "model_type": f"{outer}_text" if f"{outer}_text" in MODELS else outer}
    return text


def _kind(data: Mapping[str, Any], mode: str | int | None) -> tuple[ModelKind, Mode]:
    name = data.get("model_type")
    kind = MODELS.get(name) if isinstance(name, str) else None
    if mode is not None:
        return kind or UNKNOWN, parse_mode(mode)
    if isinstance(name, str) and name in REFUSED:
        raise ConfigError(f"model_type: {name!r} is none of the five modes, because {REFUSED[name]}")
    if kind is None:
        what = "missing" if name is None else f"got {shown(name)}, whose pairing is not known here"
        raise ConfigError(f"model_type: {what}; give mode='neox' (rotate_half) or mode='normal' (neighbouring pairs)")
    if kind.interleave_key is not None and data.get(kind.interleave_key) is not None:
        interleaved = data[kind.interleave_key]
        if not isinstance(interleaved, bool):
            raise ConfigError(f"{kind.interleave_key}: got {shown(interleaved)}, true or false is needed")
        return kind, "normal" if interleaved else "neox"
    return kind, kind.mode


def _refuse_unread(data: Mapping[str, Any], kind: ModelKind) -> None:
    if not isinstance(data.get("alibi"), (bool, NoneType)):
        raise ConfigError(f"alibi: got {shown(data['alibi'])}, true or false is needed")
    if data.get("alibi"):
        raise ConfigError("alibi: true, this model uses ALiBi and no RoPE")
    if kind.rope_if_named and not same(data.get("position_embedding_type"), "rope"):
        raise ConfigError(
            f"position_embedding_type: got {shown(data.get('position_embedding_type'))}, model type "
            f"{shown(data.get('model_type'))} has RoPE only if it is 'rope'"
        )
    if kind.only_parameters:
        for key in ("rope_scaling", kind.partial_key):
            if not any(same(data.get(key), unset) for unset in _UNSET):
                raise ConfigError(
                    f"{key}: transformers does not read it in model_type {shown(data.get('model_type'))}; "
                    "give rope_parameters"
                )
    read = {"" if kind.plain else kind.theta_key, kind.partial_key, kind.rotary_dim_key, kind.interleave_key}
    if kind.two_thetas is not None:
        read |= {kind.two_thetas.full_key, kind.two_thetas.sliding_key or ""}
    for key in _SUSPECTS:
        value = data.get(key)
        if value is not None and not same(value, False) and key not in read:
            raise ConfigError(f"{key}: not a key of model_type {shown(data.get('model_type'))} that is understood here")


def _parameters(data: Mapping[str, Any], kind: ModelKind, layer_type: str | None) -> _Part:
    old, new = (mapping(data, key) for key in ("rope_scaling", "rope_parameters"))
    if old and new and not same(dict(old), dict(new)):
        raise ConfigError("rope_scaling: differs from rope_parameters in the same file")
    path = "rope_parameters" if new or not old else "rope_scaling"
    params = new or old
    if kind.needs_params and not params:
        raise ConfigError(f"rope_parameters: missing, model_type {shown(data.get('model_type'))} has no plain default")
    if kind.plain and params:
        raise ConfigError(f"{path}: model_type {shown(data.get('model_type'))} has none, its frequencies are fixed")
    values = [value for value in params.values() if value is not None]
    if values and all(isinstance(value, Mapping) for value in values):
        if kind.two_thetas is not None and path == "rope_scaling":
            raise ConfigError(
                f"rope_scaling: model_type {shown(data.get('model_type'))} has those of a layer type in rope_parameters"
            )
        return _nested_part(params, path, kind, layer_type)
    if kind.two_thetas is not None:
        if path == "rope_parameters" and params:
            raise ConfigError(f"rope_parameters: model_type {shown(data.get('model_type'))} has them per layer type")
        return _two_thetas_part(data, params, kind, layer_type)
    types = layer_types(data)
    if layer_type is not None and layer_type not in types:
        raise ConfigError(f"layer_type: got {layer_type!r}, this file has one RoPE and names no such layer type")
    return _Part(params, path, nested=False, theta_key=kind.theta_key, theta=kind.theta)


def _nested_part(params: Mapping[str, Any], path: str, kind: ModelKind, layer_type: str | None) -> _Part:
    names = ", ".join(shown(name) for name in params)
    if layer_type is None:
        raise ConfigError(f"layer_type: not given, {path} has one set per layer type: {names}")
    if layer_type not in params:
        raise ConfigError(f"layer_type: got {layer_type!r}, {path} has {names}")
    chosen = params[layer_type]
    if chosen is None:
        raise ConfigError(f"{path}.{layer_type}: null, these layers have no RoPE")
    both = kind.two_thetas
    key: str | None = kind.theta_key
    theta = kind.theta
    if both is not None:
        key, theta = (both.full_key, both.full) if layer_type == FULL_ATTENTION else (both.sliding_key, both.sliding)
    return _Part(chosen, f"{path}.{layer_type}", nested=True, theta_key=key, theta=theta)


def _two_thetas_part(
    data: Mapping[str, Any], params: Mapping[str, Any], kind: ModelKind, layer_type: str | None
) -> _Part:
    """The older layout of such models, which transformers turns into parameters per layer type."""
    assert kind.two_thetas is not None
    if layer_type not in (FULL_ATTENTION, _SLIDING):
        got = "not given" if layer_type is None else f"got {layer_type!r}"
        raise ConfigError(f"layer_type: {got}, this model type has {FULL_ATTENTION!r} and {_SLIDING!r}")
    both = kind.two_thetas
    if params.get("rope_type") is None and not any(same(params.get("type"), plain) for plain in (None, "default")):
        # What transformers 4 read; transformers 5 computes type 'default'.
        raise ConfigError(
            f"rope_scaling.type: got {shown(params['type'])} without rope_type, "
            f"the only key that transformers 5 reads in model_type {shown(data.get('model_type'))}"
        )
    if layer_type == FULL_ATTENTION:
        return _Part(params, "rope_scaling", nested=True, theta_key=both.full_key, theta=both.full)
    if both.scaled_alike:
        return _Part(params, "rope_scaling", nested=True, theta_key=both.sliding_key, theta=both.sliding)
    return _Part({}, _SLIDING, nested=True, theta_key=both.sliding_key, theta=both.sliding)


def _theta(data: Mapping[str, Any], kind: ModelKind, part: _Part) -> float:
    root_key = part.theta_key or kind.theta_key
    inner, outer = part.params.get("rope_theta"), data.get(root_key)
    for where, values, key in ((f"{part.path}.", part.params, "rope_theta"), ("", data, root_key)):
        if key in values:
            if values[key] is None:
                raise ConfigError(f"{where}{key}: null, a model without a base has no RoPE")
            break
    if inner is not None:
        theta = positive(f"{part.path}.rope_theta", inner)
        # Per layer type the root's value is a default only.
        if not part.nested and outer is not None and positive(root_key, outer) != theta:
            raise ConfigError(f"{root_key}: {shown(outer)} at the root, {shown(inner)} in {part.path}")
        return theta
    if outer is not None:
        theta = positive(root_key, outer)
        if part.theta_key is None and theta != part.theta:
            raise ConfigError(
                f"{root_key}: got {shown(outer)}, which transformers 4 takes for the sliding layers of model_type "
                f"{shown(data.get('model_type'))}, but transformers 5 takes {part.theta}; "
                "give rope_parameters with a base per layer type"
            )
        return theta
    if part.theta is None:
        raise ConfigError(f"{root_key}: missing, and model_type {shown(data.get('model_type'))} has no known default")
    return part.theta


def _rotated(data: Mapping[str, Any], kind: ModelKind, part: _Part, head_dim: int) -> int:
    """Number of rotated elements of a head."""
    inner, outer = part.params.get("partial_rotary_factor"), data.get(kind.partial_key)
    if kind.rotary_dim_key is not None and (kind.plain or data.get(kind.rotary_dim_key) is not None):
        dim = needed_count(data, kind.rotary_dim_key, "it is the number of rotated elements")
        for share in (inner, outer):
            if share is not None and int(head_dim * real("partial_rotary_factor", share)) != dim:
                raise ConfigError(f"{kind.rotary_dim_key}: {dim}, partial_rotary_factor {share} says otherwise")
        if dim > head_dim:
            raise ConfigError(f"{kind.rotary_dim_key}: got {dim}, at most the head's {head_dim} elements can rotate")
        return dim
    given = inner if inner is not None else outer
    where = f"{part.path}.partial_rotary_factor" if inner is not None else kind.partial_key
    if given is None:
        return head_dim if kind.partial is None else int(head_dim * kind.partial)
    share = real(where, given)
    # Per layer type the root's value is a default only.
    if inner is not None and outer is not None and not part.nested and real(kind.partial_key, outer) != share:
        raise ConfigError(f"{kind.partial_key}: {shown(outer)} at the root, {shown(inner)} in {part.path}")
    if not 0.0 < share <= 1.0:
        raise ConfigError(f"{where}: got {share}, allowed is above 0, at most 1")
    if kind.partial is None and share != 1.0:
        raise ConfigError(f"{where}: got {share}, model_type {shown(data.get('model_type'))} rotates the whole head")
    return int(head_dim * share)


def _default_share(data: Mapping[str, Any], kind: ModelKind, head_dim: int) -> Any:
    """`partial_rotary_factor` where the parameters have none: the root's, else the model type's."""
    if data.get(kind.partial_key) is not None:
        return data[kind.partial_key]
    dim = None if kind.rotary_dim_key is None else optional_count(data, kind.rotary_dim_key)
    return kind.partial if dim is None else dim / head_dim


def _sections(data: Mapping[str, Any], mode: Mode, part: _Part, pairs: int) -> tuple[int, int, int, int] | None:
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
