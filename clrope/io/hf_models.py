"""What `config.json` does not say: how each Hugging Face model type pairs elements, and its defaults.

Read from the modeling and configuration sources of transformers 5; `tests/io/test_io_hf_transformers.py` compares every
row with them. A model type that is not here is refused unless the caller names a mode.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..mode import Mode


@dataclass(frozen=True)
class TwoThetas:
    """Bases of a model with full and sliding layers: the root keys of the older layout and the defaults.

    sliding_key:  None where transformers 5 takes the default for these layers whatever the root says.
    scaled_alike: whether in the older layout `rope_scaling` is for both, not for the full layers only.
    """

    full_key: str
    full: float
    sliding_key: str | None
    sliding: float
    scaled_alike: bool = False


@dataclass(frozen=True)
class ModelKind:
    """One model type's conventions.

    mode:         which elements form a pair, and for 'mrope'/'imrope' which position row drives one.
    theta:        base where the file has none (None: the file must have it).
    partial:      default of partial_rotary_factor; None where the model's code rotates the whole head regardless.
    head_dim:     size of a head where the file has none; None: hidden size / number of heads.
    size_keys:    names of hidden size and number of heads.
    mla:          only a slice of `qk_rope_head_dim` elements is rotated, given to RoPE as a tensor of its own.
    interleave_key: root key (bool) that decides between 'normal' (its default) and 'neox'.
    rotary_dim_key: root key holding the number of rotated elements instead of a factor.
    theta_key, partial_key: root keys' names in the older layout.
    two_thetas:   layers of two kinds, with a base each.
    full_head_dim: root key and default of the head size of full-attention layers where it differs.
    plain:        its frequencies are fixed: no base, no scaling in the file.
    needs_params: the model type has scaling of its own by default, so the file must state its parameters.
    yarn_is_longrope: 'yarn' was this model type's older word for 'longrope'.
    original:     `original_max_position_embeddings` where the root has none; one among the parameters has no effect.
    rope_if_named: there is RoPE only where `position_embedding_type` is 'rope'.
    only_parameters: of the older layout, transformers reads the base only.
    """

    mode: Mode
    theta: float | None = 10000.0
    partial: float | None = None
    head_dim: int | None = None
    size_keys: tuple[str, str] = ("hidden_size", "num_attention_heads")
    mla: bool = False
    interleave_key: str | None = None
    rotary_dim_key: str | None = None
    theta_key: str = "rope_theta"
    partial_key: str = "partial_rotary_factor"
    two_thetas: TwoThetas | None = None
    full_head_dim: tuple[str, int] | None = None
    plain: bool = False
    needs_params: bool = False
    yarn_is_longrope: bool = False
    original: int | None = None
    rope_if_named: bool = False
    only_parameters: bool = False


#: Used with the caller's `mode` for a model type that is not in the table: nothing is assumed.
UNKNOWN = ModelKind("neox", theta=None, partial=1.0)


def _each(names: str, kind: ModelKind, **changes: Any) -> dict[str, ModelKind]:
    return dict.fromkeys(names.split(), replace(kind, **changes))


_HALF = ModelKind("neox")  # (i, i + d/2), `rotate_half`
_ADJACENT = ModelKind("normal")  # (2i, 2i + 1)
_GEMMA3 = TwoThetas("rope_theta", 1000000.0, "rope_local_base_freq", 10000.0)
_MODERNBERT = TwoThetas("global_rope_theta", 160000.0, "local_rope_theta", 10000.0, scaled_alike=True)

MODELS: dict[str, ModelKind] = {
    # The whole head, base 10000 unless the file says otherwise.
    **_each(
        "llama mistral ministral qwen2 qwen2_moe qwen3_moe granite granitemoe granitemoeshared olmo olmo2 olmoe "
        "starcoder2 aria_text chameleon diffllama doge dots1 exaone4 exaone_moe falcon falcon_h1 hunyuan_v1_dense "
        "hunyuan_v1_moe idefics olmo_hybrid hyperclovax jais2",
        _HALF,
    ),
    **_each("gemma gemma2 vaultgemma", _HALF, head_dim=256),
    **_each("qwen3 afmoe seed_oss", _HALF, head_dim=128),
    **_each("granitemoehybrid", _HALF, rope_if_named=True),
    **_each("bitnet flex_olmo mllama_text_model", _HALF, theta=500000.0),
    **_each("mixtral phimoe lfm2 lfm2_moe", _HALF, theta=1000000.0),
    **_each("smollm3", _HALF, theta=2000000.0),
    **_each("apertus", _HALF, theta=None, needs_params=True),
    **_each("cwm", _HALF, theta=None, head_dim=128, needs_params=True),
    **_each("gpt_oss", _HALF, theta=None, head_dim=64, needs_params=True),
    # The first part of the head.
    **_each("phi persimmon recurrent_gemma nemotron glm4_moe", _HALF, partial=0.5),
    **_each("stablelm", _HALF, partial=0.25),
    **_each("qwen3_next", _HALF, partial=0.25, head_dim=256),
    **_each("phi3 phi4_multimodal", _HALF, partial=1.0, yarn_is_longrope=True, original=4096),
    **_each("gpt_neox", _HALF, partial=0.25, partial_key="rotary_pct", theta_key="rotary_emb_base"),
    **_each("gpt_neox_japanese", _HALF, partial=1.0, partial_key="rotary_pct", theta_key="rotary_emb_base"),
    **_each("minimax_m2", _HALF, partial=1.0, theta=5000000.0, head_dim=128, rotary_dim_key="rotary_dim"),
    # Two kinds of layers.
    **_each("gemma3_text gemma3n_text t5gemma2_text", _HALF, head_dim=256, two_thetas=_GEMMA3),
    **_each("olmo3", _HALF, two_thetas=TwoThetas("rope_theta", 500000.0, None, 500000.0)),
    **_each("modernbert modernbert-decoder", _HALF, two_thetas=_MODERNBERT),
    **_each(
        "gemma4_text gemma4_unified_text",
        _HALF,
        theta=None,
        head_dim=256,
        full_head_dim=("global_head_dim", 512),
        needs_params=True,
    ),
    # Neighbours form a pair.
    **_each("cohere", _ADJACENT, theta=500000.0),
    **_each("cohere2", _ADJACENT),
    **_each("cohere2_moe", _ADJACENT, head_dim=128, only_parameters=True),
    **_each("helium", _ADJACENT, theta=100000.0, head_dim=128),
    **_each("ernie4_5", _ADJACENT, theta=500000.0, head_dim=128),
    **_each("ernie4_5_moe", _ADJACENT, theta=500000.0),
    **_each("llama4_text", _ADJACENT, theta=500000.0, head_dim=128),
    **_each("glm glm4", _ADJACENT, partial=0.5, head_dim=128),
    **_each("gptj codegen", _ADJACENT, size_keys=("n_embd", "n_head"), rotary_dim_key="rotary_dim", plain=True),
    # Multi-head latent attention: transformers rotates neighbours and, in deepseek_v3's line, stores the result with
    # its halves apart. That reorders q and k alike, so q·k is the same; 'normal' leaves the elements where they were.
    **_each("deepseek_v2", _ADJACENT, mla=True),
    **_each("deepseek_v3 youtu", _ADJACENT, mla=True, interleave_key="rope_interleave"),
    **_each("longcat_flash", _ADJACENT, mla=True, theta=10000000.0),
    **_each("minicpm3", _HALF, mla=True),
    # Positions of several axes. The outer model types are here for files that keep the text model's keys at the root.
    **_each("qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen2_5_omni_text", ModelKind("mrope", theta=1000000.0)),
    **_each("glm4v_moe_text", ModelKind("mrope", partial=0.5)),
    **_each("qwen3_vl_text", ModelKind("imrope", theta=500000.0, head_dim=128)),
    **_each("qwen3_vl_moe_text", ModelKind("imrope", theta=500000.0)),
    **_each("qwen3_omni_moe_text", ModelKind("imrope", theta=1000000.0)),
    **_each("qwen3_5_text qwen3_5_moe_text", ModelKind("imrope", partial=0.25, head_dim=256)),
}

#: Known, and not one of the five modes; the reason is the error message.
REFUSED: dict[str, str] = {
    "glm4v_text": "it combines mrope_section with neighbouring pairs (2i, 2i + 1)",
    "glm_ocr_text": "it combines mrope_section with neighbouring pairs (2i, 2i + 1)",
    "ernie4_5_vl_moe_text": "it alternates h and w between neighbouring pairs",
    "hunyuan_vl_text": "its multi-axis sections count elements of both halves",
    "nanochat": "it rotates in the opposite direction",
    "deepseek_v4": "it rotates the last elements of the head, which takes n_offs",
}
