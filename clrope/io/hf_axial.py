"""Vision encoders of transformers whose positions are coordinates of patches: type 'axial' as fields of `RopeConfig`.

The rows are what their rotary classes do; `tests/io/test_io_hf_axial.py` compares each with the installed transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import ConfigError, shown
from ..mode import Mode, parse_mode
from .config_values import MOST_DIMS, mapping, needed_count, optional_count, positive, same
from .hf_keys import UNSET, rotation_keys


class AxialKind(NamedTuple):
    """One model type: its pairing, and which axis drives which pairs.

    order:   the axes in the order of the pairs; rows of positions are t, h, w or h, w.
    turns:   whether they change from pair to pair; otherwise all pairs of an axis are together.
    freqs:   as `RopeConfig.axis_freqs`.
    theta:   base where the file has none.
    size_key, heads_key: hidden size and number of heads, whose quotient is the head's size where there is no head_dim.
    """

    mode: Mode = "neox"
    order: tuple[int, ...] = (0, 1)
    turns: bool = False
    freqs: str = "restart"
    theta: float = 10000.0
    size_key: str = "hidden_size"
    heads_key: str = "num_attention_heads"


_HEADS = AxialKind(heads_key="num_heads")
MODELS: dict[str, AxialKind] = {
    **dict.fromkeys(
        (
            "cohere_compass_vision", "ernie4_5_vl_moe_vision", "exaone4_5_vision", "glm4v_vision", "glm4v_moe_vision",
            "glm5_next_vision", "glm_ocr_vision", "qwen2_5_omni_vision_encoder", "qwen2_5_vl_vision", "qwen3_5_vision",
            "qwen3_5_moe_vision", "qwen3_omni_moe_vision_encoder", "qwen3_vl_vision", "qwen3_vl_moe_vision",
            "qwen4_exp_vision",
        ),
        _HEADS,
    ),
    **dict.fromkeys(
        (
            "dots3_note_vision_encoder", "mlcd_vision_model", "muse_glimmer_vision", "muse_spark_vision",
            "paddleocr_vl_vision", "video_llama_3_vision",
        ),
        AxialKind(),
    ),
    "qwen2_vl_vision": _HEADS._replace(size_key="embed_dim"),
    "lfm3_vl_vision": AxialKind(theta=1e6),
    "step3p5_vision": AxialKind(order=(1, 0)),
    "kimi_k25_vision": AxialKind(order=(1, 0), turns=True),
    "minimax_m3_vl_vision": AxialKind(order=(0, 1, 2)),
    "inkling2_vision": AxialKind(mode="normal", order=(1, 0)),
    "sam3_vit_model": AxialKind(mode="normal"),
    "pixtral": AxialKind(freqs="deal"),
}  # fmt: skip


def axial_kind(data: Mapping[str, Any]) -> AxialKind | None:
    """Return the row of a configuration's model type; None if it is no such vision encoder."""
    name = data.get("model_type")
    return MODELS.get(name) if isinstance(name, str) else None


def axial_fields(
    data: Mapping[str, Any], kind: AxialKind, layer_type: str | None, mode: str | int | None
) -> dict[str, Any]:
    """Return the fields of `RopeConfig` for the configuration of a vision encoder."""
    name = data["model_type"]
    if layer_type is not None:
        raise ConfigError(f"layer_type: got {shown(layer_type)}, model_type {name!r} has one RoPE")
    old, new = (mapping(data, key) for key in ("rope_scaling", "rope_parameters"))
    if old and new and not same(dict(old), dict(new)):
        raise ConfigError("rope_scaling: differs from rope_parameters in the same file")
    path, params = ("rope_scaling", old) if old and not new else ("rope_parameters", new)
    for key, value in params.items():
        if key not in ("rope_type", "type", "rope_theta") and value is not None:
            raise ConfigError(f"{path}.{shown(key, str)}: not a key of rope type 'axial', which has rope_theta")
        if key in ("rope_type", "type") and not same(value, "axial"):
            raise ConfigError(f"{path}.{key}: got {shown(value)}, model_type {name!r} has 'axial' only")
    thetas = {f"{path}.rope_theta": params.get("rope_theta"), "rope_theta": data.get("rope_theta")}
    bases = {key: positive(key, value) for key, value in thetas.items() if value is not None}
    if len(set(bases.values())) > 1:
        raise ConfigError(f"rope_theta: {shown(data['rope_theta'])} at the root, {params['rope_theta']} in {path}")
    for key in rotation_keys(data):
        if key != "rope_theta" and not any(same(data[key], unset) for unset in UNSET):
            raise ConfigError(f"{key}: not a key of model_type {name!r} that is understood here")
    head_dim = optional_count(data, "head_dim")
    if head_dim is None:
        size, heads = (
            needed_count(data, key, "a head's size is their quotient") for key in (kind.size_key, kind.heads_key)
        )
        head_dim = size // heads
    number = len(kind.order)
    pairs = head_dim // number // 2
    if pairs < 1 or head_dim > MOST_DIMS or (number == 2 and head_dim % 4):
        wanted = "a multiple of 4" if number == 2 else f"at least {2 * number}"
        raise ConfigError(f"head_dim: got {head_dim}, {wanted} is needed, at most {MOST_DIMS}")
    axes = kind.order * pairs if kind.turns else tuple(axis for axis in kind.order for _ in range(pairs))
    chosen = kind.mode if mode is None else parse_mode(mode)
    base = next(iter(bases.values()), kind.theta)
    return {"mode": chosen, "freq_base": base, "pair_axes": axes, "axis_freqs": kind.freqs}
