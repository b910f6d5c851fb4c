"""Reading Hugging Face configurations: layouts, choices and refusals. Needs nothing but NumPy."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_rope import axes, magnitude, omegas

from clrope.config import RopeConfig
from clrope.errors import ConfigError

LLAMA: dict[str, Any] = {"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4}
QWEN2: dict[str, Any] = {"model_type": "qwen2", "hidden_size": 512, "num_attention_heads": 4, "rope_theta": 1e6}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_plain() -> None:
    assert RopeConfig.from_hf({**LLAMA, "rope_theta": 5e5}) == RopeConfig("neox", n_dims=64, freq_base=5e5)


def test_source_may_be_a_file_or_its_folder(tmp_path: Path) -> None:
    data = {**LLAMA, "rope_theta": 5e5}
    (tmp_path / "config.json").write_text(json.dumps(data))
    assert RopeConfig.from_hf(tmp_path) == RopeConfig.from_hf(str(tmp_path / "config.json")) == RopeConfig.from_hf(data)
    assert RopeConfig.from_hf(tmp_path) == RopeConfig.from_hf(data)


def test_source_is_not_changed() -> None:
    data = {**LLAMA, "rope_scaling": dict(LLAMA3)}
    before = json.dumps(data)
    RopeConfig.from_hf(data)
    assert json.dumps(data) == before


def test_default_theta_is_the_model_type_s() -> None:
    assert RopeConfig.from_hf(LLAMA).freq_base == 10000
    assert RopeConfig.from_hf({**LLAMA, "model_type": "mixtral"}).freq_base == 1000000


@pytest.mark.parametrize("named", [{}, {"position_embedding_type": None}, {"position_embedding_type": "nope"}])
def test_granite_s_hybrid_has_rope_only_where_it_says_so(named: dict[str, Any]) -> None:
    data = {**LLAMA, "model_type": "granitemoehybrid"}
    assert RopeConfig.from_hf({**data, "position_embedding_type": "rope"}).n_dims == 64
    with pytest.raises(ConfigError, match=r"position_embedding_type: got .*, model type 'granitemoehybrid' has RoPE"):
        RopeConfig.from_hf({**data, **named})


def test_no_base_is_no_rope() -> None:
    with pytest.raises(ConfigError, match=r"^rope_theta: null, a model without a base has no RoPE"):
        RopeConfig.from_hf({**LLAMA, "rope_theta": None})
    with pytest.raises(ConfigError, match=r"^rope_parameters.rope_theta: null"):
        RopeConfig.from_hf({**LLAMA, "rope_theta": 1e4, "rope_parameters": {"rope_theta": None}})


def test_parameters_next_to_text_config() -> None:
    text = {**LLAMA, "rope_theta": 5e5, "rope_scaling": LLAMA3}
    config = RopeConfig.from_hf(text)
    outer = {"model_type": "some_vl", "text_config": text}
    # Older files have the same values in both places.
    both = {**outer, "rope_theta": 5e5, "rope_scaling": dict(LLAMA3), "rope_parameters": {}}
    assert RopeConfig.from_hf(both) == config
    for key, value in {"rope_theta": 1e4, "rope_scaling": YARN, "rope_parameters": LLAMA3, "rotary_dim": 8}.items():
        with pytest.raises(ConfigError, match=f"^{key}: text_config, the only part that transformers reads it in, has"):
            RopeConfig.from_hf({**outer, key: value})


def test_proportional_takes_the_model_type_s_share() -> None:
    data = {**LLAMA, "model_type": "phi", "rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}}
    factors = RopeConfig.from_hf(data).freq_factors
    assert factors is not None
    assert factors[:16] == (1.0,) * 16
    assert min(factors[16:]) > 1e20


def test_phi3_s_original_length() -> None:
    scaling = {"type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
    data = {**LLAMA, "model_type": "phi3", "max_position_embeddings": 131072, "rope_scaling": scaling}
    assert RopeConfig.from_hf(data, 4096).freq_factors == (1.0,) * 32
    assert RopeConfig.from_hf(data, 4097).freq_factors == (2.0,) * 32
    assert RopeConfig.from_hf(data, 1).attn_factor == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))


def test_partial_rotary_factor_at_the_root_and_inside() -> None:
    phi = {**LLAMA, "model_type": "phi"}
    assert RopeConfig.from_hf(phi).n_dims == 32
    assert RopeConfig.from_hf({**phi, "partial_rotary_factor": 0.25}).n_dims == 16
    assert (
        RopeConfig.from_hf({**phi, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.75}}).n_dims == 48
    )


def test_gpt_neox_and_gptj_spell_it_their_own_way() -> None:
    neox = {**LLAMA, "model_type": "gpt_neox", "rotary_pct": 0.5, "rotary_emb_base": 20000}
    assert RopeConfig.from_hf(neox) == RopeConfig("neox", n_dims=32, freq_base=20000)
    gptj = {"model_type": "gptj", "n_embd": 256, "n_head": 4, "rotary_dim": 16}
    assert RopeConfig.from_hf(gptj) == RopeConfig("normal", n_dims=16)


def test_minimax_rotary_dim() -> None:
    data = {**LLAMA, "model_type": "minimax_m2", "head_dim": 128, "rotary_dim": 64, "rope_theta": 5e6}
    assert RopeConfig.from_hf(data) == RopeConfig("neox", n_dims=64, freq_base=5e6)


def test_yarn_in_ggml_s_words() -> None:
    config = RopeConfig.from_hf({**QWEN2, "rope_scaling": YARN})
    assert config == RopeConfig(
        "neox", n_dims=128, freq_base=1e6, freq_scale=0.25, ext_factor=1, attn_factor=1.0, n_ctx_orig=32768
    )
    assert magnitude(config) == pytest.approx(1 + 0.1 * math.log(4))


def test_yarn_without_rounding_becomes_divisors() -> None:
    rounded = RopeConfig.from_hf({**QWEN2, "rope_scaling": YARN})
    exact = RopeConfig.from_hf({**QWEN2, "rope_scaling": {**YARN, "truncate": False}})
    assert exact.ext_factor == 0
    assert exact.freq_factors is not None
    assert exact.attn_factor == pytest.approx(magnitude(rounded))
    ratio = omegas(exact) / omegas(rounded)
    assert ratio[0] == 1
    assert ratio[-1] == pytest.approx(1)
    assert 0.9 < ratio.min() < 0.999


def test_llama3_divisors() -> None:
    config = RopeConfig.from_hf({**LLAMA, "rope_theta": 5e5, "rope_scaling": LLAMA3})
    assert config.freq_factors is not None
    assert config.freq_factors[0] == 1
    assert config.freq_factors[-1] == 8
    assert sorted(config.freq_factors) == list(config.freq_factors)


def test_longrope_chooses_by_length() -> None:
    short, long = [1.0 + i for i in range(32)], [2.0 + i for i in range(32)]
    scaling = {"type": "su", "short_factor": short, "long_factor": long}
    data = {**LLAMA, "model_type": "phi3", "max_position_embeddings": 131072, "rope_scaling": scaling}
    data["original_max_position_embeddings"] = 4096
    assert RopeConfig.from_hf(data, 4096).freq_factors == tuple(short)
    assert RopeConfig.from_hf(data, 4097).freq_factors == tuple(long)
    assert RopeConfig.from_hf(data, 1).attn_factor == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))
    # phi3's older word for it.
    assert RopeConfig.from_hf({**data, "rope_scaling": {**scaling, "type": "yarn"}}, 1) == RopeConfig.from_hf(data, 1)


def test_dynamic_grows_the_base() -> None:
    data = {**LLAMA, "max_position_embeddings": 2048, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    assert RopeConfig.from_hf(data, 100).freq_base == 10000
    assert RopeConfig.from_hf(data, 4096).freq_base == pytest.approx(10000 * 3 ** (64 / 62))


def test_proportional_leaves_the_last_pairs() -> None:
    params = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    config = RopeConfig.from_hf({**LLAMA, "rope_parameters": params})
    assert config.n_dims == 64
    assert config.freq_factors == (1.0,) * 8 + (1e30,) * 24


def test_nested_parameters_and_layer_type() -> None:
    params = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "chunked_attention": None,
    }
    data = {**LLAMA, "rope_parameters": params}
    assert RopeConfig.from_hf(data, layer_type="full_attention") == RopeConfig(
        "neox", n_dims=64, freq_base=1e6, freq_scale=0.125
    )
    assert RopeConfig.from_hf(data, layer_type="sliding_attention") == RopeConfig("neox", n_dims=64)
    assert RopeConfig.from_hf(data, layer_type="sliding_attention") == RopeConfig("neox", n_dims=64)
    with pytest.raises(ConfigError, match=r"layer_type: not given, .* 'full_attention', 'sliding_attention'"):
        RopeConfig.from_hf(data)
    with pytest.raises(ConfigError, match="layer_type: got 'x'"):
        RopeConfig.from_hf(data, layer_type="x")
    with pytest.raises(ConfigError, match=r"rope_parameters.chunked_attention: null, these layers have no RoPE"):
        RopeConfig.from_hf(data, layer_type="chunked_attention")


def test_gemma3_older_layout() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
    data = {"model_type": "gemma3", "text_config": text}
    full = RopeConfig("neox", n_dims=256, freq_base=1e6, freq_scale=0.125)
    assert RopeConfig.from_hf(data, layer_type="full_attention") == full
    assert RopeConfig.from_hf(data, layer_type="sliding_attention") == RopeConfig("neox", n_dims=256, freq_base=1e4)
    bases = {**text, "rope_theta": 2e6, "rope_local_base_freq": 3e4}
    assert RopeConfig.from_hf(bases, layer_type="full_attention").freq_base == 2e6
    assert RopeConfig.from_hf(bases, layer_type="sliding_attention").freq_base == 3e4
    with pytest.raises(ConfigError, match="layer_type: not given, this model type has"):
        RopeConfig.from_hf(data)


NESTED_YARN = {"rope_type": "yarn", "factor": 4.0}


def layouts(params: dict[str, Any]) -> list[dict[str, Any]]:
    """A model with full and sliding layers, with parameters per layer type and in the older layout."""
    model = {"model_type": "olmo3", "hidden_size": 256, "num_attention_heads": 2, "max_position_embeddings": 32768}
    nested = {"full_attention": params, "sliding_attention": {"rope_type": "default"}}
    return [{**model, "rope_parameters": nested}, {**model, "rope_scaling": params}]


@pytest.mark.parametrize("layout", [0, 1])
def test_original_length_at_the_root_is_for_one_rope(layout: int) -> None:
    """For one layer type transformers does not read it: `max_position_embeddings` is the default there."""
    data = {**layouts(NESTED_YARN)[layout], "original_max_position_embeddings": 4096}
    assert RopeConfig.from_hf(data, layer_type="full_attention").n_ctx_orig == 32768
    data = {**layouts({**NESTED_YARN, "original_max_position_embeddings": 8192})[layout]}
    without = RopeConfig.from_hf(data, layer_type="full_attention")
    assert without.n_ctx_orig == 8192
    data["original_max_position_embeddings"] = 4096
    assert RopeConfig.from_hf(data, layer_type="full_attention") == without


@pytest.mark.parametrize("layout", [0, 1])
def test_truncate_of_a_layer_type_is_refused(layout: int) -> None:
    with pytest.raises(ConfigError, match="truncate: false under a layer type is ignored by transformers"):
        RopeConfig.from_hf(layouts({**NESTED_YARN, "truncate": False})[layout], layer_type="full_attention")


def test_modernbert_s_older_layout_scales_both() -> None:
    data = {"model_type": "modernbert", "hidden_size": 128, "num_attention_heads": 2, "local_rope_theta": 2e4}
    data["rope_scaling"] = {"rope_type": "linear", "factor": 4.0}
    full, sliding = (RopeConfig.from_hf(data, layer_type=f"{kind}_attention") for kind in ("full", "sliding"))
    assert full == RopeConfig("neox", n_dims=64, freq_base=160000, freq_scale=0.25)
    assert sliding == RopeConfig("neox", n_dims=64, freq_base=20000, freq_scale=0.25)


def test_text_config_without_a_model_type() -> None:
    text = {"hidden_size": 256, "num_attention_heads": 4, "head_dim": 128, "rope_theta": 5e6}
    text["rope_scaling"] = {"mrope_section": [24, 20, 20], "mrope_interleaved": True, "rope_type": "default"}
    config = RopeConfig.from_hf({"model_type": "qwen3_vl", "text_config": text})
    assert (config.mode, config.sections) == ("imrope", (24, 20, 20, 0))


def test_sections_of_qwen2_vl_at_the_root() -> None:
    scaling = {"type": "mrope", "mrope_section": [16, 24, 24]}
    data = {**QWEN2, "model_type": "qwen2_vl", "vision_config": {"rope_theta": 1.0}, "rope_scaling": scaling}
    config = RopeConfig.from_hf(data)
    assert config == RopeConfig("mrope", n_dims=128, freq_base=1e6, sections=(16, 24, 24))
    assert list(axes(config)) == [0] * 16 + [1] * 24 + [2] * 24
    assert RopeConfig.from_hf({**data, "rope_scaling": {**scaling, "rope_type": "default"}}) == config
    long = RopeConfig.from_hf({**data, "rope_scaling": {**YARN, "mrope_section": [16, 24, 24]}})
    assert (long.mode, long.ext_factor) == ("mrope", 1.0)


def test_layer_type_of_a_file_with_one_rope() -> None:
    data = {**QWEN2, "layer_types": ["full_attention", "sliding_attention"]}
    assert RopeConfig.from_hf(data, layer_type="sliding_attention") == RopeConfig.from_hf(data)
    with pytest.raises(ConfigError, match="layer_type: got 'full_attention', this file has one RoPE"):
        RopeConfig.from_hf(QWEN2, layer_type="full_attention")


def test_mode_overrides_and_is_needed_for_the_unknown() -> None:
    unknown = {"model_type": "new_thing", "head_dim": 64, "rope_theta": 7e4}
    with pytest.raises(ConfigError, match="model_type: got 'new_thing', whose pairing is not known here; give mode="):
        RopeConfig.from_hf(unknown)
    assert RopeConfig.from_hf(unknown, mode="normal") == RopeConfig("normal", n_dims=64, freq_base=7e4)
    assert RopeConfig.from_hf(LLAMA, mode=0).mode == "normal"
    with pytest.raises(ConfigError, match="model_type: missing"):
        RopeConfig.from_hf({"head_dim": 64, "rope_theta": 1e4})
    with pytest.raises(ConfigError, match="rope_theta: missing"):
        RopeConfig.from_hf({"head_dim": 64}, mode="neox")


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"rope_scaling": {"type": "xpos", "factor": 2.0}}, "rope_scaling.type: got 'xpos', known types are default"),
    (
        {"rope_scaling": {"type": "linear", "factor": 2.0, "alpha": 3}},
        "rope_scaling.alpha: not a key of rope type 'linear'",
    ),
    ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor: missing"),
    ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor: got 0, it must be greater than 0"),
    ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling.factor: got '2', a finite number is needed"),
    (
        {"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}},
        "rope_type 'yarn' and type 'linear' disagree",
    ),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "max_position_embeddings: missing"),
    (
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 99},
        "seq_len: not given, rope type 'dynamic'",
    ),
    ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "original_max_position_embeddings: missing"),
    ({"rope_scaling": {**YARN, "beta_fast": 0}}, "rope_scaling.beta_fast: got 0"),
    ({"rope_scaling": {**YARN, "truncate": 1}}, "rope_scaling.truncate: got 1"),
    ({"rope_scaling": YARN, "original_max_position_embeddings": 5}, "32768 here, 5 at the root"),
    ({"rope_scaling": {**LLAMA3, "high_freq_factor": 0.5}}, "high_freq_factor: got 0.5, it must not be below"),
    (
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
        "original_max_position_embeddings: missing",
    ),
    (
        {
            "rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]},
            "max_position_embeddings": 99,
        },
        "rope_scaling.short_factor: has 1 numbers, one per pair is needed: 32",
    ),
    (
        {
            "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32},
            "max_position_embeddings": 99,
        },
        "seq_len: not given, rope type 'longrope' takes short_factor up to",
    ),
    (
        {"rope_scaling": {"mrope_section": [8, 12, 12]}},
        "mrope_section: model_type 'llama' .mode 'neox'. has no sections",
    ),
    ({"rope_scaling": {"type": "mrope"}}, "type 'mrope' in model_type 'llama'"),
    ({"rope_scaling": 3}, "rope_scaling: got int, an object is needed"),
    (
        {"rope_parameters": {"rope_theta": 5e5}, "rope_theta": 1e4},
        "rope_theta: 10000.0 at the root, 500000.0 in rope_parameters",
    ),
    ({"rope_parameters": {"rope_theta": -1}}, "rope_parameters.rope_theta: got -1"),
    (
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "rope_scaling": YARN},
        "rope_scaling: differs from rope_parameters",
    ),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: got 0.5, model_type 'llama' rotates the whole head"),
    ({"rotary_pct": 0.5}, "rotary_pct: not a key of model_type 'llama'"),
    ({"rope_interleave": True}, "rope_interleave: not a key of model_type 'llama'"),
    ({"alibi": True}, "alibi: true"),
    ({"hidden_size": None}, "hidden_size: missing"),
    ({"num_attention_heads": None}, "num_attention_heads: missing"),
    ({"head_dim": 63}, "63 of 63 elements would rotate, an even number is needed"),
    ({"head_dim": "64"}, "head_dim: got '64', an integer greater than 0 is needed"),
    (
        {"model_type": "phi", "partial_rotary_factor": 1.5},
        "partial_rotary_factor: got 1.5, allowed is above 0, at most 1",
    ),
    (
        {"model_type": "phi", "partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.25}},
        "partial_rotary_factor: 0.5 at the root, 0.25 in rope_parameters",
    ),
    ({"model_type": "gptj", "rotary_dim": 16, "rope_scaling": YARN}, "rope_scaling: model_type 'gptj' has none"),
    ({"model_type": "gptj"}, "rotary_dim: missing"),
    ({"model_type": "gptj", "rotary_dim": 128}, "rotary_dim: got 128, at most the head's 64"),
    ({"model_type": "gptj", "rotary_dim": 16, "rope_theta": 5.0}, "rope_theta: not a key of model_type 'gptj'"),
    ({"model_type": "glm4v_text"}, "'glm4v_text' is none of the five modes, because it combines mrope_section"),
    ({"model_type": "qwen2_vl"}, r"mrope_section: \[16, 24, 24\] add up to 64, the head has 32 rotated pairs"),
    ({"model_type": "qwen2_vl", "rope_scaling": {"mrope_section": [8, 12]}}, "mrope_section: got 2 numbers"),
    ({"model_type": "qwen2_vl", "rope_scaling": {"mrope_section": [8, 12, 11]}}, "add up to 31, the head has 32"),
    (
        {"model_type": "qwen2_vl", "rope_scaling": {"mrope_section": [8, 12, 12], "mrope_interleaved": True}},
        "mrope_interleaved: got True, the mode is 'mrope'",
    ),
    (
        {"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 1e4}},
        "rope_parameters: model_type 'gemma3_text' has them per layer type",
    ),
    (
        {"rope_parameters": {"full_attention": {**YARN, "truncate": False}}},
        "rope_parameters.full_attention.truncate: false under a layer type is ignored",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSALS, ids=[message[:40] for _, message in REFUSALS])
def test_refusals_name_the_key(changes: dict[str, Any], message: str) -> None:
    nested = "full_attention" in changes.get("rope_parameters", {})
    with pytest.raises(ConfigError, match=message):
        RopeConfig.from_hf({**LLAMA, **changes}, layer_type="full_attention" if nested else None)


def test_unreadable_sources(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config.json: cannot be read \(No such file"):
        RopeConfig.from_hf(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config.json: not a JSON file"):
        RopeConfig.from_hf(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="got a JSON list, an object is needed"):
        RopeConfig.from_hf(tmp_path)
    with pytest.raises(ConfigError, match="seq_len: got -1"):
        RopeConfig.from_hf(LLAMA, -1)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {"rope_scaling": {"sliding_attention": {"rope_theta": 1e4}}},
            "rope_scaling: model_type 'olmo3' has those ",
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_scaling.type: got 'linear' without rope_type",
        ),
        ({"rope_scaling": {"type": np.arange(2)}}, "rope_scaling.type: got array([0, 1]) without rope_type"),
        ({"rope_theta": 1e6}, "rope_theta: got 1000000.0, which transformers 4 takes for the sliding layers "),
        (
            {"model_type": "cohere2_moe", "rope_scaling": {"rope_type": "linear"}},
            "rope_scaling: transformers does not ",
        ),
        ({"model_type": "cohere2_moe", "partial_rotary_factor": 0.5}, "partial_rotary_factor: transformers does not "),
    ],
)
def test_what_transformers_reads_otherwise_is_refused(model: dict[str, Any], message: str) -> None:
    """Each was read as its words say, while transformers skips it."""
    file = {"model_type": "olmo3", "hidden_size": 256, "num_attention_heads": 2, **model}
    layer_type = "sliding_attention" if file["model_type"] == "olmo3" else None
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        RopeConfig.from_hf(file, layer_type=layer_type)


def test_a_base_at_the_root_where_it_is_read() -> None:
    file = {"model_type": "olmo3", "hidden_size": 256, "num_attention_heads": 2, "rope_theta": 1e6}
    assert RopeConfig.from_hf(file, layer_type="full_attention").freq_base == 1e6
    own = {"full_attention": {}, "sliding_attention": {"rope_theta": 1e4}}
    assert RopeConfig.from_hf({**file, "rope_parameters": own}, layer_type="sliding_attention").freq_base == 1e4
    assert RopeConfig.from_hf({**file, "rope_theta": 500000}, layer_type="sliding_attention").freq_base == 5e5
