"""Keys of a Hugging Face configuration whose value has another type than models have."""

import contextlib
import json
from typing import Any

import numpy as np
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
        ({"0": {"head_dim": [1]}}, "per_layer_config.0.head_dim: got [1], an integer greater than 0 is needed"),
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


PHI = {**LLAMA, "model_type": "phi"}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024}
#: Values of types that `json` never makes, and that have no hash, no order, or no single answer to `==`.
STRANGE: list[Any] = [
    *(["a"], {"a"}, {1: 2}, b"ab", bytearray(b"ab"), (), object(), complex(1), 10**400, 10**5000, float("nan")),
    *(np.array([0.5, 0.25]), np.array(["a", "b"], dtype=object), np.array([]), np.array(0.5), np.bool_(True)),
    *(np.timedelta64(5, "s"), np.timedelta64("NaT", "s"), np.datetime64("2020")),
]


def describe(value: object) -> str:
    return f"{type(value).__name__}-{repr(value)[:20] if not isinstance(value, int) else 'long'}"


@pytest.mark.parametrize("value", STRANGE, ids=describe)
def test_a_strange_value_is_an_error_of_the_configuration(value: Any) -> None:
    """Whatever a key or an argument holds: a result or `ConfigError`, never another exception."""
    nested = {"full_attention": {**YARN, "partial_rotary_factor": value, "rope_theta": 1e4}}
    changes: list[dict[str, Any]] = [
        *({"rope_scaling": {**YARN, key: value}} for key in (*YARN, "beta_fast", "truncate", "type", "rope_theta")),
        *({"rope_scaling": {"rope_type": "longrope", key: value}} for key in ("short_factor", "long_factor")),
        *({key: {**YARN, "partial_rotary_factor": value}} for key in ("rope_scaling", "rope_parameters")),
        {"rope_scaling": {**YARN, "mrope_section": value}, "rope_parameters": {**YARN, "mrope_section": value}},
        {"rope_scaling": {**YARN, "factor": np.ones(2)}, "rope_parameters": {**YARN, "factor": value}},
        {"rope_scaling": {"mrope_section": value}, "model_type": "qwen2_vl"},
        {"rope_parameters": nested, "partial_rotary_factor": value},
        {"rotary_dim": 64, "rope_parameters": {"partial_rotary_factor": value}, "model_type": "minimax_m2"},
        *({key: value} for key in (*LLAMA, "rope_scaling", "rope_parameters", "layer_types", "text_config", "alibi")),
        *({key: value} for key in ("partial_rotary_factor", "rotary_pct", "rope_interleave", "per_layer_config")),
        {"layer_types": [value, "full_attention"]},
    ]
    for base in (LLAMA, {**PHI, "partial_rotary_factor": 0.5}, {**GEMMA, "model_type": "gemma3_text"}, GEMMA):
        for change in changes:
            for layer in (None, "full_attention"):
                with contextlib.suppress(ConfigError):
                    RopeConfig.from_hf({**base, **change}, layer_type=layer)
        for named in ({"layer_type": value}, {"seq_len": value}, {"mode": value}):
            with contextlib.suppress(ConfigError):
                RopeConfig.from_hf(base, **named)


@pytest.mark.parametrize("value", [value for value in STRANGE if not isinstance(value, (int, float))], ids=describe)
@pytest.mark.parametrize("base", [LLAMA, GEMMA, {"model_type": "gemma3_text", "head_dim": 128}])
def test_a_layer_type_is_a_name(base: dict[str, Any], value: Any) -> None:
    with pytest.raises(ConfigError, match=r"layer_type: got .*, a name is needed") as caught:
        RopeConfig.from_hf(base, layer_type=value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("key", [1, None, (1, 2), b"x", frozenset(), 10**5000], ids=describe)
@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
def test_a_parameter_has_a_name(key: Any, place: str) -> None:
    with pytest.raises(ConfigError, match=rf"{place}: got the key .*, names are needed"):
        RopeConfig.from_hf({**LLAMA, place: {key: 2, "type": "linear", "factor": 2.0}})


@pytest.mark.parametrize("value", [np.timedelta64(5, "s"), np.timedelta64("NaT", "s")])
def test_a_span_of_time_is_no_number(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"rope_theta: got .*, a finite number is needed"):
        RopeConfig.from_hf({**LLAMA, "rope_theta": value})


def test_arrays_are_compared_as_wholes() -> None:
    parts = [{**YARN, "partial_rotary_factor": np.array([0.5, 0.25])} for _ in range(2)]
    with pytest.raises(ConfigError, match="rope_scaling: differs from rope_parameters"):
        RopeConfig.from_hf({**LLAMA, "rope_scaling": parts[0], "rope_parameters": parts[1]})
    with pytest.raises(ConfigError, match=r"rope_scaling.partial_rotary_factor: got array"):
        RopeConfig.from_hf({**PHI, "partial_rotary_factor": 0.5, "rope_scaling": parts[0]})
    with pytest.raises(ConfigError, match=r"layer_types\[1\]: got ndarray, a name is needed"):
        RopeConfig.from_hf({**LLAMA, "layer_types": ["a", np.ones(2)]}, layer_type="a")


class Unreadable(int):
    def __float__(self) -> float:
        raise ZeroDivisionError("no")


def test_a_number_that_cannot_be_read() -> None:
    with pytest.raises(ConfigError, match="rope_theta: Unreadable cannot be read: ZeroDivisionError: no"):
        RopeConfig.from_hf({**LLAMA, "rope_theta": Unreadable(5)})
