"""Random configurations of every model type against transformers: the same angles, or a refusal."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from typing import Any

import pytest
from transformers_rope import (
    ADJUST,
    MODELS,
    OWN_SIZES,
    SMALL,
    WITH_PARAMETERS,
    Probe,
    assert_same,
    build,
    families,
    rotary,
)

from clrope.config import RopeConfig
from clrope.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore")

FILES = 12
TYPES = ["default", "default", "linear", "yarn", "llama3", "longrope", "dynamic", "proportional"]
LAYERS = ["full_attention", "sliding_attention"]
BASES = [1e4, 5e4, 5e5, 1e6]


def draw_parameters(draw: random.Random, with_base: bool = False) -> dict[str, Any]:
    """Parameters of one RoPE; the lists of 'longrope' follow later, when the number of pairs is known."""
    rope_type = draw.choice(TYPES)
    params: dict[str, Any] = {draw.choice(["rope_type", "rope_type", "type"]): rope_type}
    optional: dict[str, list[Any]] = {"rope_theta": BASES, "partial_rotary_factor": [0.25, 0.5, 1.0, 1.0]}
    if rope_type in ("linear", "yarn", "llama3", "dynamic"):
        params["factor"] = draw.choice([1.0, 2.0, 4.0, 8.5])
    if rope_type in ("yarn", "llama3", "longrope"):
        optional["original_max_position_embeddings"] = [4096, 8192]
    if rope_type == "llama3":
        params |= {"low_freq_factor": 1.0, "high_freq_factor": draw.choice([1.0, 4.0])}
    if rope_type == "longrope":
        params |= {"short_factor": [], "long_factor": []}
    if rope_type == "yarn":
        optional |= {"beta_fast": [32, 64], "mscale": [0, 0.7], "mscale_all_dim": [0, 1.0], "truncate": [True, False]}
        optional |= {"attention_factor": [0.7]}
    params |= {key: draw.choice(values) for key, values in optional.items() if draw.random() < 0.35}
    return params | ({"rope_theta": draw.choice(BASES)} if with_base else {})


def draw_file(model_type: str, draw: random.Random) -> dict[str, Any]:
    """A `config.json` with keys that this model type reads, those of others, and all layouts of the parameters."""
    kind = MODELS[model_type]
    adjusted = dict(ADJUST.get(model_type, {}))
    adjusted.pop("rope_parameters", {})
    adjusted.pop("head_dim", None)
    sections = {"mrope_section": []} if kind.sections else {}
    layers = list(kind.layers) or LAYERS
    file = {**SMALL, "num_hidden_layers": 2, **adjusted}
    file |= {"hidden_size": draw.choice([256, 384]), "num_attention_heads": draw.choice([2, 4])}
    if model_type in OWN_SIZES:
        hf = families()[model_type].build()
        sizes = ("hidden_size", "num_attention_heads", "max_position_embeddings")
        file = {key: getattr(hf, key) for key in sizes} | adjusted
    else:
        file["num_key_value_heads"] = file["num_attention_heads"]
    optional: dict[str, list[Any]] = {
        **{one.theta_key: BASES for one in (kind, *kind.layers.values()) if one.theta_key},
        kind.partial_key or "partial_rotary_factor": [0.25, 0.5, 1.0],
        "original_max_position_embeddings": [2048, 4096],
        "layer_types": [layers],
        "sliding_window": [64],
        "head_dim": [48, 64, 96, 128, None],
    }
    if kind.mla:
        # With heads of another size, transformers makes a table that does not fit its own slice.
        file["qk_rope_head_dim"] = draw.choice([32, 64])
        if kind.share_of_whole:
            del optional["head_dim"]
        else:
            optional["head_dim"] = [file["qk_rope_head_dim"]]
        file |= {"head_dim": file["qk_rope_head_dim"]} if model_type == "longcat_flash" else {}
    if kind.rotary_dim_key:
        optional[kind.rotary_dim_key] = [32, 48, 64]
    if kind.layers:
        file |= Probe(families()[model_type]).base
    if kind.full_head_dim:
        optional[kind.full_head_dim[0]] = [64, 512]
        optional["per_layer_config"] = [{"00": {"head_dim": 128}}, {"1": {"head_dim": 64}}, {}]
    file |= {key: draw.choice(values) for key, values in optional.items() if draw.random() < 0.35}
    key = draw.choice(["rope_parameters", "rope_parameters", "rope_scaling", None])
    if key is not None:
        nested = draw.random() < (0.9 if kind.scaled == () else 0.5 if kind.layers else 0.15)
        flat = {**draw_parameters(draw), **sections}
        file[key] = (
            {layer: {**draw_parameters(draw, not kind.params), **sections} for layer in layers} if nested else flat
        )
    return file


def with_lists(file: dict[str, Any], pairs: int) -> dict[str, Any]:
    """The same file with lists for this number of pairs."""
    file = copy.deepcopy(file)
    for key in ("rope_parameters", "rope_scaling"):
        params = file.get(key, {})
        for part in params.values() if all(isinstance(one, dict) for one in params.values()) else [params]:
            if "short_factor" in part:
                part["short_factor"] = [1.0 + i / 40 for i in range(pairs)]
                part["long_factor"] = [1.0 + i for i in range(pairs)]
            if "mrope_section" in part:
                part["mrope_section"] = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    return file


def transformers_tables(
    model_type: str, file: dict[str, Any]
) -> tuple[dict[str, Any], Mapping[str | None, Any]] | None:
    """The file that transformers takes, and its (inverse frequencies, attention factor) of each layer type."""
    for pairs in (64, 48, 32, 24, 16, 128, 256, 12, 8):
        complete = with_lists(file, pairs)
        try:
            module = rotary(model_type, build(model_type, **copy.deepcopy(complete)))
        except Exception:  # what transformers refuses needs no answer
            continue
        tables: dict[str | None, Any] = {}
        for name, table in module.named_buffers():
            if name.endswith("inv_freq") and "original" not in name:
                layer = name.removesuffix("inv_freq").removesuffix("_") or None
                attention = "attention_scaling" if layer is None else f"{layer}_attention_scaling"
                tables[layer] = table, getattr(module, attention)
        has_lists = complete != with_lists(file, 1)
        if not has_lists or all(len(table) == pairs for table, _ in tables.values()):
            return complete, tables
    return None


@pytest.mark.one_in(12)
@pytest.mark.parametrize("model_type", WITH_PARAMETERS)
def test_random_files(model_type: str, seed: int) -> None:
    compared = 0
    for number in range(200):
        file = draw_file(model_type, random.Random(f"{seed} {model_type} {number}"))
        found = transformers_tables(model_type, file)
        if found is None:
            continue
        complete, tables = found
        for layer, (inv_freq, attention) in tables.items():
            if MODELS[model_type].mla and 2 * len(inv_freq) != complete["qk_rope_head_dim"]:
                continue  # transformers' table does not fit its own slice
            try:
                config = RopeConfig.from_hf({"model_type": model_type, **complete}, 1000, layer_type=layer)
            except ConfigError:
                continue
            assert_same(config, inv_freq, attention, f"{model_type} {complete}, layer type {layer}")
            compared += 1
        if compared >= FILES:
            return
    pytest.fail(f"{compared} of 200 random files are read by transformers and here")
