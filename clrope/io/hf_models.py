"""What `config.json` does not say: how each Hugging Face model type pairs elements, and its defaults.

The rows are data, `data/hf_models.json`, which `bench/tools/transformers_models.py` makes from an installed
transformers; `tests/io/test_io_hf_transformers.py` compares every row with the installed one. A model type that is not
there is refused unless the caller names a mode.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from ..mode import Mode


@dataclass(frozen=True)
class LayerKind:
    """Base and share of the layers of one type, or of all layers.

    theta:       base where the file has none; None where transformers then fails.
    theta_key:   root key of the base; None where transformers reads none.
    partial:     default of partial_rotary_factor; None where the model's code rotates the whole head regardless.
    partial_key: root key of the share, as `theta_key`.
    plain_partial: as `partial`, of rope type 'default' alone.
    """

    theta: float | None = 10000.0
    theta_key: str | None = "rope_theta"
    partial: float | None = None
    partial_key: str | None = "partial_rotary_factor"
    plain_partial: float | None = None


@dataclass(frozen=True)
class ModelKind(LayerKind):
    """One model type's conventions.

    mode:         which elements form a pair, and for 'mrope'/'imrope' which position row drives one.
    layers:       types of layers with parameters of their own.
    scaled:       with `layers`, those that `rope_scaling` at the root is for; () where transformers does not read it.
    older_only:   with `layers`, keys of the root count only where there are no parameters of layer types.
    params:       `rope_parameters` of a file that has none, where they are more than the base and the share.
    head_dim:     size of a head where the file has none; None: `size_factor` times the quotient of `size_keys`.
    head_keys:    root keys of the size of a head.
    size_keys:    names of hidden size and number of heads.
    length_key:   name of the longest length, else max_position_embeddings.
    full_head_dim: root key and default of the head size of full-attention layers where it differs.
    mla:          only a slice of `qk_rope_head_dim` elements is rotated, given to RoPE as a tensor of its own.
    share_of_whole: with `mla`, partial_rotary_factor is the slice's share of the head.
    interleave_key: root key (bool) that decides between 'normal' (its default) and 'neox'.
    rotary_dim_key: root key holding the number of rotated elements instead of a factor.
    plain:        there are no rope parameters: no scaling, and a base only if `theta_key` is there.
    only_if:      root key and the value without which there is no RoPE.
    original:     `original_max_position_embeddings` where the root has none; one among the parameters has no effect.
    sections:     pairs of t, h and w where the file has none.
    layer_theta_is_base: `layer_rope_theta` has a base for each layer, or (false) only says which layers have RoPE.
    yarn_is_longrope: 'yarn' was this model type's older word for 'longrope'.
    ntk_alpha:    type 'dynamic' with `alpha` is a fixed base.
    mscales:      type 'longrope' needs `short_mscale` and `long_mscale`, and keeps the short factors.
    ignored:      keys among the parameters that say nothing of the rotation.
    unread:       root keys of published files that transformers does not read, though they say another rotation.
    """

    mode: Mode = "neox"
    layers: Mapping[str, LayerKind] = field(default_factory=dict)
    scaled: tuple[str, ...] | None = None
    older_only: bool = False
    params: Mapping[str, Any] | None = None
    head_dim: int | None = None
    head_keys: tuple[str, ...] = ("head_dim",)
    size_keys: tuple[str, str] = ("hidden_size", "num_attention_heads")
    size_factor: int = 1
    length_key: str = "max_position_embeddings"
    full_head_dim: tuple[str, int] | None = None
    mla: bool = False
    share_of_whole: bool = False
    interleave_key: str | None = None
    rotary_dim_key: str | None = None
    plain: bool = False
    only_if: tuple[str, Any] | None = None
    original: int | None = None
    sections: tuple[int, int, int] | None = None
    layer_theta_is_base: bool | None = None
    yarn_is_longrope: bool = False
    ntk_alpha: bool = False
    mscales: bool = False
    ignored: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    def of_layer(self, layer_type: str | None) -> LayerKind:
        """Return the defaults of a type of layers."""
        return self.layers.get(layer_type or "", self)


#: Used with the caller's `mode` for a model type that is not in the table: nothing is assumed.
UNKNOWN = ModelKind(theta=None, partial=1.0)


@dataclass(frozen=True)
class ModelTable:
    """Rows by model type, reasons of refusal, and the model types of configurations inside others.

    flat: the outer types that take the keys of their text_config at the root, too.
    """

    models: Mapping[str, ModelKind]
    refused: Mapping[str, str]
    parts: Mapping[str, Mapping[str, str]]
    flat: list[str]
    transformers: str


@cache
def table() -> ModelTable:
    """Return the content of `data/hf_models.json`."""
    text = resources.files(__package__).joinpath("data/hf_models.json").read_text(encoding="utf-8")
    data = json.loads(text)
    return ModelTable({name: _kind(row) for name, row in data["models"].items()}, *(data[key] for key in _OTHERS))


_OTHERS = ("refused", "parts", "flat", "transformers")


def _kind(row: Mapping[str, Any]) -> ModelKind:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    fields["layers"] = {name: LayerKind(**layer) for name, layer in row.get("layers", {}).items()}
    return ModelKind(**fields)
