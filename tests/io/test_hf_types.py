"""Keys of a Hugging Face configuration whose value has another type than models have."""

import json

import pytest

from clrope import RopeConfig
from clrope.errors import ConfigError

LLAMA = {"model_type": "llama", "head_dim": 128, "rope_theta": 1e4, "max_position_embeddings": 4096}
VISION = {"model_type": "qwen3_vl_text", "head_dim": 128, "rope_theta": 1e6}
GEMMA = {
    "model_type": "gemma4_text",
    "head_dim": 128,
    "layer_types": ["full_attention", "sliding_attention"],
    "rope_parameters": {"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e4}},
}


def interleaved(value):
    return {
        **VISION,
        "rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": value},
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**LLAMA, "text_config": "x"}, "text_config: got str, an object is needed"),
        ({**LLAMA, "text_config": [1]}, "text_config: got list, an object is needed"),
        ({**LLAMA, "text_config": 0}, "text_config: got int, an object is needed"),
        ({**LLAMA, "layer_types": "full_attention"}, "layer_types: got str, a list of names is needed"),
        ({**LLAMA, "alibi": "false"}, "alibi: got 'false', true or false is needed"),
        (interleaved("false"), "rope_scaling.mrope_interleaved: got 'false', true or false is needed"),
        (interleaved(1), "rope_scaling.mrope_interleaved: got 1, true or false is needed"),
        (
            {
                **LLAMA,
                "original_max_position_embeddings": 1,
                "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 64, "long_factor": [1.0] * 64},
            },
            "rope_scaling: 1 original position, rope type 'longrope' needs more, or attention_factor",
        ),
        (
            {"model_type": "llama", "hidden_size": 4097, "num_attention_heads": 32, "rope_theta": 1e4},
            "hidden_size: got 4097, num_attention_heads 32 does not divide it; give head_dim",
        ),
        (
            {**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "attention_factor": 0}},
            "rope_scaling.attention_factor: got 0, it must be greater than 0",
        ),
    ],
)
def test_another_type_is_refused(config, message):
    with pytest.raises(ConfigError) as caught:
        RopeConfig.from_hf(config)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("x", "per_layer_config: got str, an object is needed"),
        ({"0": {"head_dim": [1]}}, "per_layer_config.head_dim: got [1], an integer greater than 0 is needed"),
        ({"0": 5}, "per_layer_config.0: got int, an object is needed"),
    ],
)
def test_another_type_of_a_layer_is_refused(table, message):
    with pytest.raises(ConfigError) as caught:
        RopeConfig.from_hf({**GEMMA, "per_layer_config": table}, layer_type="full_attention")
    assert str(caught.value) == message


def test_a_size_of_a_layer_is_read():
    with_size = {**GEMMA, "per_layer_config": {"0": {"head_dim": 64}, "1": None}}
    assert RopeConfig.from_hf(with_size, layer_type="full_attention").n_dims == 64


def test_keys_that_are_there_twice(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA)[:-1] + ', "rope_theta": 5e5}')
    with pytest.raises(ConfigError, match=r"config.json: not a JSON file \(the key 'rope_theta' is there twice\)"):
        RopeConfig.from_hf(path)
