"""Files as models are published, of model types that spell the rotation in their own way. Needs nothing but NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from plain_rope import magnitude

from clrope.config import RopeConfig
from clrope.errors import ConfigError
from clrope.io.hf import notes_from_hf
from clrope.io.hf_models import table

SIZES = {"hidden_size": 4096, "num_attention_heads": 32}
HUNYUAN = {
    **SIZES,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "alpha": 1000.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "type": "dynamic",
    },
}
MLA = {**SIZES, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "rope_theta": 1e6, "rope_interleave": True}
MINISTRAL = {
    "rope_type": "yarn",
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "rope_theta": 1e6,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
MIMO = {"model_type": "mimo_v2_flash", "hidden_size": 4096, "num_attention_heads": 64, "head_dim": 192}
MIMO |= {"rope_theta": 5e6, "swa_rope_theta": 1e4, "partial_rotary_factor": 0.334}

READ: list[tuple[str, dict[str, Any], tuple[str, int, float]]] = [
    (
        "bailing_hybrid",
        {**MLA, "qk_nope_head_dim": 128, "head_dim": 128, "partial_rotary_factor": 0.5, "rotary_dim": 64},
        ("normal", 64, 1e6),
    ),
    ("bamba", {**SIZES, "attn_rotary_emb": 64, "rope_theta": 1e4}, ("neox", 64, 1e4)),
    ("hunyuan_v1_dense", HUNYUAN, ("neox", 128, 1.11588e7)),
    ("hunyuan_v1_moe", HUNYUAN, ("neox", 128, 1.11588e7)),
    ("cohere2", {**SIZES, "rotary_pct": 1.0, "rope_theta": 5e4}, ("normal", 128, 5e4)),
    ("glm_moe_dsa", {**MLA, "indexer_rope_interleave": False}, ("normal", 64, 1e6)),
    ("glm4_moe_lite", MLA, ("normal", 64, 1e6)),
    ("glm4_moe_lite", {**MLA, "rope_interleave": False}, ("neox", 64, 1e6)),
    (
        "mistral4",
        {**MLA, "qk_nope_head_dim": 64, "rope_parameters": {**MINISTRAL, "partial_rotary_factor": 0.5}},
        ("normal", 64, 1e6),
    ),
    ("ministral3", {**SIZES, "head_dim": 128, "rope_parameters": MINISTRAL}, ("neox", 128, 1e6)),
    ("minimax", {**SIZES, "head_dim": 128, "rotary_dim": 64, "rope_theta": 1e7}, ("neox", 128, 1e7)),
    (
        "minimax_m3_vl",
        {"text_config": {"head_dim": 128, "rotary_dim": 64, "partial_rotary_factor": 0.5, "rope_theta": 5e6}},
        ("neox", 64, 5e6),
    ),
    ("nomic_bert", {**SIZES, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False},
     ("neox", 128, 1000)),
    ("dbrx", {"d_model": 6144, "n_heads": 48, "attn_config": {"rope_theta": 10000.0}}, ("neox", 128, 1e4)),
    ("jetmoe", {**SIZES, "kv_channels": 128, "rope_theta": 1e4}, ("neox", 128, 1e4)),
    ("zamba2", {**SIZES, "use_mem_rope": True, "rope_theta": 1e4}, ("neox", 256, 1e4)),
]  # fmt: skip


@pytest.mark.parametrize(("model_type", "file", "expected"), READ, ids=[name for name, *_ in READ])
def test_read(model_type: str, file: dict[str, Any], expected: tuple[str, int, float]) -> None:
    config = RopeConfig.from_hf({"model_type": model_type, **file})
    assert (config.mode, config.n_dims) == expected[:2]
    assert config.freq_base == pytest.approx(expected[2], rel=1e-5)


LAYERS: list[tuple[dict[str, Any], str, tuple[int, float]]] = [
    (MIMO, "full_attention", (64, 5e6)),
    (MIMO, "sliding_attention", (64, 1e4)),
    ({"model_type": "laguna"}, "full_attention", (64, 5e5)),
    ({"model_type": "laguna"}, "sliding_attention", (128, 1e4)),
    ({"model_type": "lfm3"}, "sliding_attention", (128, 1e4)),
    *(
        (
            {
                "model_type": "step3p5",
                "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
                "rope_theta": [5e6, 1e4, 1e4],
                "partial_rotary_factors": [0.5, 1.0, 1.0],
            },
            name,
            expected,
        )
        for name, expected in {"full_attention": (64, 5e6), "sliding_attention": (128, 1e4)}.items()
    ),
    *(
        (
            {
                "model_type": "granite_swa",
                **SIZES,
                "layer_types": ["full_attention", "sliding_attention"],
                "layer_rope_theta": [1e6, 1e4],
            },
            name,
            (128, base),
        )
        for name, base in {"full_attention": 1e6, "sliding_attention": 1e4}.items()
    ),
]


@pytest.mark.parametrize(("file", "layer_type", "expected"), LAYERS)
def test_bases_of_layers(file: dict[str, Any], layer_type: str, expected: tuple[int, float]) -> None:
    config = RopeConfig.from_hf(file, layer_type=layer_type)
    assert (config.n_dims, config.freq_base) == expected


UNKNOWN = {"model_type": "new_thing", **SIZES, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("attn_rotary_emb", 64), ("swa_rope_theta", 5e4), ("rotary_pct", 0.5), ("rope_interleave", True)),
        *(("use_rope", False), ("layer_rope_theta", [1e4, 0, 5e5]), ("rope_ratio", 2), ("mscale", 0.7)),
        *(("rope_type", "yarn"), ("rotary_emb_scale_base", 512), ("rope_local_base_freq", 5e5), ("long_factor", [2.0])),
        *(
            ("attn_config", {"rope_theta": 5e5}),
            ("use_dynamic_ntk", True),
            ("use_alibi", True),
            ("partial_rotary_factors", [0.5, 1.0]),
        ),
        *(("mrope_section", [1, 2, 3]), ("rotary_dim", 32), ("xdrope_section", [1, 2]), ("rope_position_ids", "2d")),
    ],
)
def test_what_is_not_used_is_named(key: str, value: object) -> None:
    """In a model type that is not known, and in one that is."""
    for file in (UNKNOWN, {**UNKNOWN, "model_type": "llama"}):
        with pytest.raises(ConfigError, match=rf"^{key}(\.rope_theta)?: "):
            RopeConfig.from_hf({**file, key: value}, mode="neox")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("attn_rotary_emb", 128), ("rotary_pct", 1.0), ("rope_interleave", False), ("use_rope", True)),
        *(("layer_rope_theta", [1e4, 0, 1e4]), ("rope_ratio", 1), ("rope_type", "default"), ("rotary_dim", None)),
        *(("no_rope_layers", [0, 1, 1]), ("vision_rope_theta", 1e2), ("property", "europe"), ("rotary_emb_base", 1e4)),
    ],
)
def test_what_says_the_same_is_read(key: str, value: object) -> None:
    assert RopeConfig.from_hf({**UNKNOWN, key: value}, mode="neox") == RopeConfig("neox", n_dims=128, freq_base=1e4)


@pytest.mark.parametrize("key", ["position_embedding_type", "position_embeddings_type"])
def test_positions_of_another_kind(key: str) -> None:
    assert RopeConfig.from_hf({**UNKNOWN, key: "rotary"}, mode="neox").n_dims == 128
    with pytest.raises(ConfigError, match=f"^{key}: got 'absolute', this model has no RoPE"):
        RopeConfig.from_hf({**UNKNOWN, key: "absolute"}, mode="neox")


def test_notes_of_what_is_no_part_of_the_rotation() -> None:
    file = {"model_type": "ministral3", **SIZES, "head_dim": 128, "rope_parameters": MINISTRAL}
    assert notes_from_hf(file) == ["llama_4_scaling_beta: 0.1, which scales q by its position, not the angles"]
    assert magnitude(RopeConfig.from_hf(file)) == 1.0
    assert notes_from_hf({"model_type": "minimax", "rotary_dim": 64}) == [
        "rotary_dim: 64, which transformers does not read in model_type 'minimax'"
    ]
    assert notes_from_hf(UNKNOWN) == []


@pytest.mark.parametrize("model_type", sorted(table().refused))
def test_refused_with_a_reason(model_type: str) -> None:
    with pytest.raises(ConfigError, match=rf"^model_type: '{model_type}' is none of the five modes, because [a-z]"):
        RopeConfig.from_hf({"model_type": model_type})


QWEN = {"model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28, "rope_theta": 1e6}


def test_the_language_model_s_part() -> None:
    config = RopeConfig.from_hf(QWEN)
    for outer in (
        {"model_type": "any_vl", "llm_config": QWEN, "vision_config": {"rope_theta": 1.0}},
        {"model_type": "llava_next", "text_config": QWEN},
        {"model_type": "deep", "thinker_config": {"model_type": "deeper", "text_config": QWEN}},
        {"model_type": "fast_vlm", "text_config": {k: v for k, v in QWEN.items() if k != "model_type"}},
    ):
        assert RopeConfig.from_hf(outer) == config
    with pytest.raises(ConfigError, match="'new', whose parts have configurations of their own: 'a', 'b'; give one"):
        RopeConfig.from_hf({"model_type": "new", "a": QWEN, "b": QWEN})
    with pytest.raises(ConfigError, match=r"'dia', whose parts have .*: 'encoder_config', 'decoder_config'; give one"):
        RopeConfig.from_hf({"model_type": "dia", "encoder_config": {"head_dim": 128}, "decoder_config": {}})
    with pytest.raises(
        ConfigError, match=r"'qwen4_exp' is a model of .*, none of which is here: text_config \(qwen4_exp_t"
    ):
        RopeConfig.from_hf({"model_type": "qwen4_exp", "hidden_size": 256, "num_attention_heads": 2})
    with pytest.raises(ConfigError, match="rope_theta: llm_config, the only part that transformers reads it"):
        RopeConfig.from_hf({"model_type": "any_vl", "llm_config": QWEN, "rope_theta": 5.0})


def test_a_name_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("Qwen/Qwen2.5-7B", "gpt2"):
        with pytest.raises(ConfigError, match=f"^{name}: .* on the Hugging Face Hub are not downloaded: give the "):
            RopeConfig.from_hf(name)
    (tmp_path / "Qwen").mkdir()
    (tmp_path / "Qwen/config.json").write_text(json.dumps(QWEN))
    assert RopeConfig.from_hf("Qwen").freq_base == 1e6


class Configuration:
    """As those of transformers."""

    def __init__(self, data: object) -> None:
        self.data = data

    def to_dict(self) -> object:
        return self.data


def test_an_object_with_to_dict() -> None:
    assert RopeConfig.from_hf(Configuration(QWEN)) == RopeConfig.from_hf(QWEN)
    with pytest.raises(ConfigError, match=r"source: to_dict\(\) of Configuration gives list, no object"):
        RopeConfig.from_hf(Configuration([]))
