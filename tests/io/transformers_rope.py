"""transformers' own rotary modules, to compare configurations with (what imports this is skipped without it)."""

from __future__ import annotations

import importlib
import inspect
import warnings
from typing import Any

import numpy as np
import pytest
from plain_rope import magnitude, omegas

from clrope.config import RopeConfig
from clrope.io.hf_rope import UNROTATED

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", minversion="5.0")
    transformers.logging.set_verbosity_error()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, model_type_to_module_name

SMALL: dict[str, Any] = {
    "vocab_size": 32,
    "num_hidden_layers": 1,
    "hidden_size": 256,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 131072,
}

# What a model type's default configuration needs to be one that can be read.
HEAD = {"head_dim": 128}
ADJUST: dict[str, dict[str, Any]] = {
    "granitemoehybrid": {"position_embedding_type": "rope"},
    "glm4_moe": HEAD,
    "glm4v_moe_text": {**HEAD, "rope_parameters": {"mrope_section": [8, 12, 12]}},
    "qwen2_vl_text": {"rope_parameters": {"mrope_section": [16, 24, 24]}},
    "qwen2_5_vl_text": {"rope_parameters": {"mrope_section": [16, 24, 24]}},
    "qwen2_5_omni_text": {"rope_parameters": {"mrope_section": [16, 24, 24]}},
    "qwen3_vl_text": {"rope_parameters": {"mrope_section": [24, 20, 20], "mrope_interleaved": True}},
    "qwen3_vl_moe_text": {"rope_parameters": {"mrope_section": [24, 20, 20], "mrope_interleaved": True}},
    "qwen3_omni_moe_text": {**HEAD, "rope_parameters": {"mrope_section": [24, 20, 20]}},
    "qwen3_5_text": {"rope_parameters": {"mrope_section": [11, 11, 10], "mrope_interleaved": True}},
    "qwen3_5_moe_text": {"rope_parameters": {"mrope_section": [11, 11, 10], "mrope_interleaved": True}},
}
#: Outer names for files that hold the text model's keys at the root; their inner names are tested.
OUTER = {"qwen2_vl", "qwen2_5_vl"}
PLAIN = {"gptj", "codegen"}


def modeling(model_type: str) -> Any:
    name = model_type_to_module_name(model_type).replace("-", "_")
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def rotary(model_type: str, hf: Any) -> Any:
    """The text model's rotary module, built from a configuration."""
    found = []
    for name, value in vars(modeling(model_type)).items():
        other = any(word in name for word in ("Vision", "Audio", "DiT", "Talker", "Esm", "SaProt"))
        if inspect.isclass(value) and name.endswith("RotaryEmbedding") and not other:
            found.append(value)
    assert found, f"no rotary module in {modeling(model_type).__name__}"
    text = [value for value in found if "Text" in value.__name__] or found
    return text[0](hf)


def build(model_type: str, **options: Any) -> Any:
    module = importlib.import_module(f"transformers.models.{model_type_to_module_name(model_type)}")
    return getattr(module, CONFIG_MAPPING_NAMES[model_type])(**options)


def assert_same(config: RopeConfig, inv_freq: Any, attention: float, note: str) -> None:
    got, want = omegas(config), inv_freq.double().numpy()
    still = want == 0
    assert got.shape == want.shape, f"{note}: {got.shape} pairs, transformers has {want.shape}"
    assert (got[still] <= 1.0 / UNROTATED).all(), note
    # transformers computes in float32: base ** exponent is off by a few units of 6e-8, more for large exponents.
    np.testing.assert_allclose(got[~still], want[~still], rtol=2e-6, err_msg=note)
    assert magnitude(config) == pytest.approx(attention, rel=1e-12), note
