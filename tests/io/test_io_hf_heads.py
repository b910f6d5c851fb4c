"""The size of a head of a Hugging Face configuration. Needs nothing but NumPy."""

from __future__ import annotations

import re
from typing import Any

import pytest

from clrope.config import RopeConfig
from clrope.errors import ConfigError

LLAMA: dict[str, Any] = {"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4}


def test_head_dim_before_the_quotient() -> None:
    assert RopeConfig.from_hf({**LLAMA, "head_dim": 128}).n_dims == 128
    assert RopeConfig.from_hf({**LLAMA, "head_dim": None}).n_dims == 64
    # A default of the model type counts where the key is absent, not where it is null.
    assert RopeConfig.from_hf({**LLAMA, "model_type": "seed_oss"}).n_dims == 128
    assert RopeConfig.from_hf({**LLAMA, "model_type": "seed_oss", "head_dim": None}).n_dims == 64


@pytest.mark.parametrize("model_type", ["cohere2", "hyperclovax", "jais2"])
def test_head_dim_of_model_types_without_a_default(model_type: str) -> None:
    assert RopeConfig.from_hf({**LLAMA, "model_type": model_type}).n_dims == 64
    assert RopeConfig.from_hf({**LLAMA, "model_type": model_type, "head_dim": 48}).n_dims == 48


def test_nemotron_s_head() -> None:
    sizes = {"model_type": "nemotron", "hidden_size": 18432, "num_attention_heads": 96}
    assert RopeConfig.from_hf(sizes).n_dims == 96


def test_mla_rotates_its_own_slice() -> None:
    data = {**LLAMA, "model_type": "deepseek_v3", "qk_rope_head_dim": 32, "head_dim": 192}
    assert RopeConfig.from_hf(data) == RopeConfig("normal", n_dims=32)
    assert RopeConfig.from_hf({**data, "rope_interleave": False}).mode == "neox"
    assert RopeConfig.from_hf({**data, "rope_interleave": True}).mode == "normal"


def test_gemma4_full_layers_have_larger_heads() -> None:
    params = {
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    data = {"model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 512, "rope_parameters": params}
    full = RopeConfig.from_hf(data, layer_type="full_attention")
    assert (full.n_dims, full.freq_factors) == (512, (1.0,) * 64 + (1e30,) * 192)
    assert RopeConfig.from_hf(data, layer_type="sliding_attention").n_dims == 256
    types = ["sliding_attention", "full_attention"]
    for key in ("1", "01", 1):
        per_layer = {**data, "layer_types": types, "per_layer_config": {key: {"head_dim": 128}}}
        assert RopeConfig.from_hf(per_layer, layer_type="full_attention").n_dims == 128
        assert RopeConfig.from_hf(per_layer, layer_type="sliding_attention").n_dims == 256
    assert RopeConfig.from_hf({**per_layer, "per_layer_config": {}}, layer_type="full_attention").n_dims == 256


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kv_channels": 128}, "kv_channels: got 128, but heads of 64 elements would rotate"),
        ({"attention_head_dim": 128}, "attention_head_dim: got 128, but heads of 64 elements would rotate"),
        ({"head_dim": 256, "global_head_dim": 512}, "global_head_dim: got 512, but heads of 256 elements would rotate"),
        ({"qk_rope_head_dim": 32, "partial_rotary_factor": 0.5}, "partial_rotary_factor: got 0.5 next to qk_rope_head"),
    ],
)
def test_heads_of_a_model_type_that_is_not_known(keys: dict[str, Any], message: str) -> None:
    file = {**LLAMA, "model_type": "another", "rope_theta": 1e4, **keys}
    if share := file.pop("partial_rotary_factor", None):
        file["rope_parameters"] = {"partial_rotary_factor": share}
    with pytest.raises(ConfigError, match=message):
        RopeConfig.from_hf(file, mode="neox")
    agrees = {**LLAMA, "model_type": "another", "rope_theta": 1e4, "kv_channels": 64, "attention_head_dim": None}
    assert RopeConfig.from_hf(agrees, mode="neox").n_dims == 64


@pytest.mark.parametrize(
    ("table", "layer_type", "message"),
    [
        (
            {"1": {"head_dim": 128}},
            "full_attention",
            "the 'full_attention' layers have heads of several sizes: [64, 128]",
        ),
        ({"1": {"head_dim": 128}}, None, "the layers have heads of several sizes: [64, 128]"),
        ({10**5000: {}}, "full_attention", "per_layer_config: got the key "),
        ({"x": {}}, "full_attention", "got the key 'x', numbers of layers are needed"),
        ({"1": {}, "01": {}}, "full_attention", "1: this layer is there twice"),
        ({"1": {"head_dim": 128}}, "another", "layer_types does not say which layers are 'another'"),
    ],
)
def test_heads_of_several_sizes(table: dict[Any, Any], layer_type: str | None, message: str) -> None:
    file = {
        **LLAMA,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "per_layer_config": table,
    }
    if layer_type is not None:
        file["rope_parameters"] = {name: {"rope_theta": 1e4} for name in ("full_attention", "another")}
    with pytest.raises(ConfigError, match=re.escape(message)):
        RopeConfig.from_hf(file, layer_type=layer_type)
    file["per_layer_config"] = {"02": {"head_dim": 128}, "1": {"head_dim": 128}}
    if layer_type == "full_attention":
        assert RopeConfig.from_hf(file, layer_type=layer_type).n_dims == 128
