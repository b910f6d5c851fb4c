"""Presets: every one can be built, and those whose values are easily recalled are as published."""

from __future__ import annotations

import pytest

from clrope.config import RopeConfig
from clrope.errors import ConfigError
from clrope.io import presets


def test_every_preset_is_complete() -> None:
    assert len(presets.names()) >= 12
    for name in presets.names():
        config = RopeConfig.preset(name)
        assert config.n_dims is not None
        assert config == RopeConfig.from_dict(config.to_dict())
        assert "config.json" in presets.source(name)


def test_known_values() -> None:
    assert RopeConfig.preset("llama-2-7b") == RopeConfig("neox", n_dims=128)
    assert RopeConfig.preset("gpt-j-6b") == RopeConfig("normal", n_dims=64)
    assert RopeConfig.preset("gpt-neox-20b") == RopeConfig("neox", n_dims=24)
    assert RopeConfig.preset("falcon-7b") == RopeConfig("neox", n_dims=64)
    assert RopeConfig.preset("phi-2") == RopeConfig("neox", n_dims=32)
    assert RopeConfig.preset("qwen2-vl-7b") == RopeConfig("mrope", 128, 1e6, sections=(16, 24, 24))
    assert RopeConfig.preset("glm-4-9b-0414") == RopeConfig("normal", n_dims=64)


def test_a_preset_s_source_cannot_be_changed() -> None:
    presets.hf_config("llama-3.1-8b")["rope_scaling"]["factor"] = 99.0
    assert presets.hf_config("llama-3.1-8b")["rope_scaling"]["factor"] == 8.0


def test_unknown_name_lists_what_is_close() -> None:
    with pytest.raises(
        ConfigError, match=r"preset: got 'llama-3.1'; close are .*'llama-3.1-8b'.*known are llama-2-7b, "
    ):
        RopeConfig.preset("llama-3.1")
