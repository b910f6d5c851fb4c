"""Every rope type, model type and preset against transformers itself (skipped where it is not installed)."""

from __future__ import annotations

import copy
import importlib
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from plain_rope import omegas
from transformers_rope import (
    ADJUST,
    HEAD,
    MODELS,
    OWN_SIZES,
    SMALL,
    WITH_PARAMETERS,
    Probe,
    assert_same,
    build,
    families,
    pairing,
    rotary,
    row,
    tables,
    transformers,
)

from clrope.config import RopeConfig
from clrope.errors import ConfigError
from clrope.io import presets
from clrope.io.hf_axial import MODELS as AXIAL
from clrope.io.hf_models import ModelKind, _kind, table

pytestmark = pytest.mark.filterwarnings("ignore")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

ORIGINAL = {"original_max_position_embeddings": 8192}
SHORT, LONG = [1.0 + i / 40 for i in range(64)], [1.0 + i for i in range(64)]
CASES: dict[str, tuple[str, dict[str, Any], int | None]] = {
    "linear": ("llama", {"rope_type": "linear", "factor": 2.5}, None),
    "dynamic-short": ("llama", {"rope_type": "dynamic", "factor": 4.0}, 1000),
    "dynamic-long": ("llama", {"rope_type": "dynamic", "factor": 4.0}, 400_000),
    "yarn": ("llama", {"rope_type": "yarn", "factor": 16.0, **ORIGINAL}, None),
    "yarn-no-factor": ("llama", {"rope_type": "yarn", "factor": None, **ORIGINAL}, None),
    "yarn-factor-1": ("llama", {"rope_type": "yarn", "factor": 1.0, **ORIGINAL}, None),
    "yarn-attention": ("llama", {"rope_type": "yarn", "factor": 16.0, "attention_factor": 0.7, **ORIGINAL}, None),
    "yarn-mscale": (
        "llama",
        {"rope_type": "yarn", "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.0, **ORIGINAL},
        None,
    ),
    "yarn-mscale-alone": ("llama", {"rope_type": "yarn", "factor": 40.0, "mscale": 0.7, **ORIGINAL}, None),
    "yarn-betas": ("llama", {"rope_type": "yarn", "factor": 8.0, "beta_fast": 64, "beta_slow": 2, **ORIGINAL}, None),
    "yarn-betas-swapped": (
        "llama",
        {"rope_type": "yarn", "factor": 8.0, "beta_fast": 1, "beta_slow": 32, **ORIGINAL},
        None,
    ),
    "yarn-no-truncate": ("llama", {"rope_type": "yarn", "factor": 8.0, "truncate": False, **ORIGINAL}, None),
    "yarn-tiny-original": (
        "llama",
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4, "beta_fast": 4, "beta_slow": 3},
        None,
    ),
    "longrope-short": (
        "llama",
        {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, **ORIGINAL},
        8192,
    ),
    "longrope-long": ("llama", {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, **ORIGINAL}, 8193),
    "longrope-factor": (
        "llama",
        {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "factor": 3.0, **ORIGINAL},
        100,
    ),
    "llama3": (
        "llama",
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL},
        None,
    ),
    "llama3-equal": (
        "llama",
        {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0, **ORIGINAL},
        None,
    ),
    "proportional": ("llama", {"rope_type": "proportional", "partial_rotary_factor": 0.25}, None),
    "proportional-whole": ("llama", {"rope_type": "proportional", "factor": 4.0}, None),
    "partial-yarn": ("phi", {"rope_type": "yarn", "factor": 8.0, "partial_rotary_factor": 0.5, **ORIGINAL}, None),
    "partial-linear": ("stablelm", {"rope_type": "linear", "factor": 8.0, "partial_rotary_factor": 0.25}, None),
}


@pytest.mark.parametrize("theta", [10000.0, 1000000.0])
@pytest.mark.parametrize("name", CASES)
def test_rope_type(name: str, theta: float) -> None:
    model_type, params, seq_len = CASES[name]
    params = {**params, "rope_theta": theta}
    hf = build(model_type, **SMALL, rope_parameters=dict(params))
    inv_freq, attention = ROPE_INIT_FUNCTIONS[params["rope_type"]](hf, seq_len=seq_len)
    note = f"{model_type} {params}, seq_len {seq_len}"
    assert_same(RopeConfig.from_hf(hf.to_dict(), seq_len), inv_freq, attention, note)
    # The same by hand, and in the older layout.
    flat = {"model_type": model_type, **SMALL}
    assert RopeConfig.from_hf({**flat, "rope_parameters": params}, seq_len) == RopeConfig.from_hf(hf.to_dict(), seq_len)
    old = {key: value for key, value in params.items() if key not in ("rope_theta", "rope_type")}
    old = {**flat, "rope_theta": theta, "rope_scaling": {**old, "type": params["rope_type"]}}
    assert RopeConfig.from_hf(old, seq_len) == RopeConfig.from_hf(hf.to_dict(), seq_len)


def test_plain_yarn_is_said_in_ggml_s_words() -> None:
    params = {**CASES["yarn"][1], "rope_theta": 1e6}
    config = RopeConfig.from_hf({"model_type": "llama", **SMALL, "rope_parameters": params})
    assert (config.ext_factor, config.freq_scale, config.n_ctx_orig, config.freq_factors) == (1.0, 1 / 16, 8192, None)


#: Where transformers' float32 products of position and frequency are off by up to 0.008.
POSITIONS = [0, 1, 4095, 8191, 131071]


@pytest.mark.parametrize("model_type", WITH_PARAMETERS)
def test_model_type_by_default(model_type: str) -> None:
    """Sizes, bases and pairing of a default configuration, by the model's own rotary class and function."""
    family = families()[model_type]
    hf = family.build(**{**Probe(family).base, **ADJUST.get(model_type, {})})
    data = hf.to_dict()
    made = tables(family, hf)
    assert made
    for layer, (inv_freq, attention) in made.items():
        config = RopeConfig.from_hf(data, layer_type=layer)
        assert_same(config, inv_freq, attention, f"{model_type}, layer type {layer}")
        # Of the model's function with its own cos and sin, to what rounding of the angle to float32 allows.
        rule, size = pairing(family, hf, layer, POSITIONS, 1.3e-7 * max(POSITIONS) * attention)
        assert (rule == "neox") == (config.mode != "normal"), f"{model_type}: {rule}"
        assert pairing(family, hf, layer)[0] == rule
        assert size >= config.n_dims


def test_every_family_is_known() -> None:
    """A model type with a rotary class is in the table, or refused with a reason."""
    if transformers.__version__ != table().transformers:
        pytest.skip(f"the table is of {table().transformers}, this is transformers {transformers.__version__}")
    assert set(families()) <= {*MODELS, *AXIAL, *table().refused}
    assert not {*MODELS, *AXIAL} & table().refused.keys()


@pytest.mark.one_in(10)
@pytest.mark.parametrize("model_type", WITH_PARAMETERS)
def test_row_is_what_transformers_does(model_type: str) -> None:
    """Which keys are read, and all defaults."""
    fields = {name: value for name, value in row(families()[model_type]).items() if name in FIELDS}
    assert _kind(fields) == MODELS[model_type]


def with_head(model_type: str, head: dict[str, Any]) -> dict[str, Any]:
    """A file with heads of 384 / 4 elements unless it, or a default, says otherwise."""
    adjusted = {key: value for key, value in ADJUST.get(model_type, {}).items() if key != "head_dim"}
    given = {
        **SMALL,
        "num_hidden_layers": 2,
        "hidden_size": 384,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        **adjusted,
        **head,
    }
    params: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e4}
    if MODELS[model_type].layers:
        given |= Probe(families()[model_type]).base
        given["rope_parameters"] = dict.fromkeys(MODELS[model_type].layers, params)
    elif MODELS[model_type].params:
        given["rope_parameters"] = params
    return copy.deepcopy(given)


@pytest.mark.parametrize("head", [{}, {"head_dim": None}, {"head_dim": 48}], ids=["absent", "null", "given"])
@pytest.mark.parametrize("model_type", [name for name in WITH_PARAMETERS if not MODELS[name].mla])
def test_size_of_a_head(model_type: str, head: dict[str, Any]) -> None:
    """With sizes that are nobody's defaults: a default of `head_dim`, or what follows from the other sizes."""
    given = with_head(model_type, head)
    layer = next((name for name in MODELS[model_type].layers if name != "full_attention"), None)
    try:
        hf = build(model_type, **copy.deepcopy(given))
    except Exception:
        assert head or model_type in OWN_SIZES, given
        pytest.skip(f"transformers refuses {head}")
    inv_freq = dict(rotary(model_type, hf).named_buffers())["inv_freq" if layer is None else f"{layer}_inv_freq"]
    pairs = inv_freq.shape[0]
    data: dict[str, Any] = {"model_type": model_type, **given}
    if MODELS[model_type].sections:
        sections = {"mrope_section": [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]}
        params = data.setdefault("rope_parameters", {"rope_theta": 1e4})
        data["rope_parameters"] = {k: v | sections for k, v in params.items()} if layer else params | sections
    kind = MODELS[model_type]
    if head.get("head_dim") and (not kind.head_keys or int(48 * (kind.partial or 1)) % 2):
        with pytest.raises(ConfigError, match=r"head_dim: got 48, but heads|an even number is needed"):
            RopeConfig.from_hf(data, layer_type=layer)
        return
    assert RopeConfig.from_hf(data, layer_type=layer).n_dims == 2 * pairs, given


PARTIAL = [
    name
    for name in WITH_PARAMETERS
    if MODELS[name].partial is not None and MODELS[name].mode != "imrope" and not MODELS[name].layers
]


@pytest.mark.parametrize("model_type", PARTIAL)
def test_proportional_with_the_model_type_s_share(model_type: str) -> None:
    given = {**SMALL, "rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}}
    given |= {"rotary_dim": 64} if MODELS[model_type].rotary_dim_key else {}
    try:
        module = rotary(model_type, build(model_type, **copy.deepcopy(given)))
    except Exception:
        pytest.skip("transformers refuses it")
    if MODELS[model_type].mode == "mrope":
        given["rope_parameters"]["mrope_section"] = [32, 16, 16]
    config = RopeConfig.from_hf({"model_type": model_type, **given})
    assert_same(config, module.inv_freq, module.attention_scaling, f"{model_type} {given}")


@pytest.mark.parametrize("root", [{}, {"original_max_position_embeddings": 2048}])
@pytest.mark.parametrize("inner", [{}, ORIGINAL])
@pytest.mark.parametrize("model_type", sorted(name for name, kind in MODELS.items() if kind.original))
def test_original_length_by_default(model_type: str, inner: dict[str, Any], root: dict[str, Any]) -> None:
    """These model types have a length of their own at the root, which comes before that of the parameters."""
    params = {"type": "longrope", "short_factor": SHORT, "long_factor": LONG, **inner}
    given = {**SMALL, "rope_scaling": params, **root}
    hf = build(model_type, **copy.deepcopy(given))
    original = hf.rope_parameters["original_max_position_embeddings"]
    assert original == root.get("original_max_position_embeddings", MODELS[model_type].original)
    data = {"model_type": model_type, **given}
    if inner:
        with pytest.raises(ConfigError, match=f"8192 here, {original} at the root of the file or by default"):
            RopeConfig.from_hf(data, 100)
        return
    for seq_len in (original, original + 1):
        inv_freq, attention = ROPE_INIT_FUNCTIONS["longrope"](hf, seq_len=seq_len)
        assert_same(RopeConfig.from_hf(data, seq_len), inv_freq, attention, f"{model_type} {root}, seq_len {seq_len}")


@pytest.mark.parametrize("inner", ["qwen2_vl_text", "gemma3_text"])
def test_parameters_next_to_text_config(inner: str) -> None:
    """transformers reads those in text_config only; others at the root are refused, not skipped."""
    text = {"model_type": inner, **SMALL, **HEAD, **ADJUST.get(inner, {})}
    plain = build(inner.removesuffix("_text"), text_config=copy.deepcopy(text)).text_config
    for given in ({"rope_theta": 5e5}, {"rope_scaling": {"type": "linear", "factor": 4.0}}):
        outer = {"model_type": inner.removesuffix("_text"), "text_config": text, **given}
        hf = build(**copy.deepcopy(outer)).text_config
        assert hf.rope_parameters == plain.rope_parameters
        with pytest.raises(ConfigError, match=f"^{next(iter(given))}: text_config, the only part that"):
            RopeConfig.from_hf(outer, layer_type="full_attention")


def test_no_rope_without_a_base() -> None:
    for given in ({"rope_theta": None}, {"rope_theta": 1e4, "rope_parameters": {"rope_theta": None}}):
        hf = build("olmo_hybrid", **SMALL | {"num_hidden_layers": 2}, **copy.deepcopy(given))
        assert hf.rope_parameters["rope_theta"] is None
        with pytest.raises(ConfigError, match="rope_theta: null, a model without a base has no RoPE"):
            RopeConfig.from_hf({"model_type": "olmo_hybrid", **SMALL, **given})


@pytest.mark.parametrize("model_type", ["gptj", "codegen"])
def test_model_type_with_a_fixed_table(model_type: str) -> None:
    family = families()[model_type]
    hf = family.build()
    table = vars(sys.modules[family.rotary.__module__])["create_sinusoidal_positions"](50, hf.rotary_dim).double()
    config = RopeConfig.from_hf(hf.to_dict())
    angle = np.arange(50)[:, None] * omegas(config)
    np.testing.assert_allclose(table, np.concatenate([np.sin(angle), np.cos(angle)], axis=1), atol=2e-5)
    turned = family.apply(torch.eye(8)[None, :1, None], torch.ones(1, 1, 4), torch.zeros(1, 1, 4))
    assert int(turned.abs().argmax()) == 1


@pytest.mark.parametrize("model_type", ["wav2vec2-bert", "wav2vec2-conformer", "seamless_m4t"])
def test_speech_encoders(model_type: str) -> None:
    given = {"position_embeddings_type": "rotary", "rotary_embedding_base": 5000}
    hf = build(model_type, **given)
    name = f"transformers.models.{hf.__module__.split('.')[2]}.modeling_{hf.__module__.split('.')[2]}"
    module = importlib.import_module(name)
    rotary_class = next(value for key, value in vars(module).items() if key.endswith("RotaryPositionalEmbedding"))
    config = RopeConfig.from_hf(hf.to_dict())
    assert_same(config, rotary_class(hf).inv_freq.numpy(), 1.0, model_type)
    with pytest.raises(ConfigError, match=r"position_embeddings_type: got 'relative', .* only if it is 'rotary'"):
        RopeConfig.from_hf({**hf.to_dict(), "position_embeddings_type": "relative"})


def test_esm_and_roformer() -> None:
    esm = build("esm", position_embedding_type="rotary", vocab_size=33, mask_token_id=1, rope_theta=500.0)
    family = families()["esm"]
    assert_same(RopeConfig.from_hf(esm.to_dict()), *tables(family, esm)[None], "esm")
    assert pairing(family, esm, None)[0] == "neox"
    roformer = importlib.import_module("transformers.models.roformer.modeling_roformer")
    attention = roformer.RoFormerSelfAttention
    config = RopeConfig.from_hf(build("roformer").to_dict())
    weight = roformer.RoFormerSinusoidalPositionalEmbedding(10, 64).create_weight()[3]
    turned, _ = attention.apply_rotary_position_embeddings(weight, torch.eye(64), torch.eye(64))
    angle = 3.0 * omegas(config)[0]
    assert (config.mode, config.n_dims) == ("normal", 64)
    np.testing.assert_allclose(turned[0, :2], [np.cos(angle), np.sin(angle)], atol=1e-6)


@pytest.mark.parametrize("seq_len", [4096, 4097])
def test_phimoe(seq_len: int) -> None:
    """The magnitude is short_mscale or long_mscale, by length; the divisors stay the short ones."""
    params = {"type": "longrope", "short_factor": SHORT, "long_factor": LONG, "short_mscale": 1.25, "long_mscale": 1.5}
    given = {**SMALL, "rope_scaling": {**params, "original_max_position_embeddings": 4096}}
    hf = build("phimoe", **copy.deepcopy(given))
    cos, sin = rotary("phimoe", hf)(torch.zeros(1, 1), torch.tensor([[1, seq_len - 1]]))
    config = RopeConfig.from_hf({"model_type": "phimoe", **given}, seq_len)
    assert config.attn_factor == (1.25 if seq_len == 4096 else 1.5)
    got = omegas(config), config.attn_factor
    np.testing.assert_allclose(cos[0, 0, :64], np.cos(got[0]) * got[1], atol=1e-6)
    np.testing.assert_allclose(sin[0, 0, :64], np.sin(got[0]) * got[1], atol=1e-6)
    assert RopeConfig.from_hf(hf.to_dict(), seq_len) == config
    for changes, message in (
        ({"rope_scaling": {**params, "short_mscale": None}}, "short_mscale: missing, rope type 'longrope' needs it"),
        ({"rope_scaling": params, "original_max_position_embeddings": 4096}, "embeddings: missing, transformers reads"),
    ):
        with pytest.raises(ConfigError, match=message):
            RopeConfig.from_hf({"model_type": "phimoe", **given, **changes}, seq_len)


@pytest.mark.parametrize("model_type", ["hunyuan_v1_dense", "hunyuan_v1_moe"])
def test_hunyuan_s_alpha(model_type: str) -> None:
    ignored = {"beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0, "factor": 1.0}
    given = {**SMALL, **HEAD, "rope_scaling": {"type": "dynamic", "alpha": 1000.0, **ignored}}
    hf = build(model_type, **copy.deepcopy(given))
    config = RopeConfig.from_hf({"model_type": model_type, **given})
    assert_same(config, *tables(families()[model_type], hf)[None], model_type)
    assert config.freq_base == pytest.approx(1.11588e7, rel=1e-5)


def test_a_configuration_object() -> None:
    hf = build("qwen3", **SMALL, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert RopeConfig.from_hf(hf) == RopeConfig("neox", n_dims=128, freq_base=5e5)


@pytest.mark.parametrize(("model_type", "sections"), [("qwen3_vl_text", [24, 20, 20]), ("qwen3_5_text", [11, 11, 10])])
def test_interleaved_sections(model_type: str, sections: list[int]) -> None:
    """imrope's rule is transformers' with row e = row t: beyond 3 * h (and 3 * w) transformers falls back to t."""
    from plain_rope import axes

    hf = build(model_type, rope_parameters={"mrope_section": sections, "mrope_interleaved": True, "rope_theta": 1e4})
    module = rotary(model_type, hf)
    pairs = module.inv_freq.shape[0]
    rows = torch.arange(3.0)[:, None, None, None].expand(3, 1, 1, pairs).clone()
    want = module.recomposition_frequencies(rows)[0, 0, :pairs].int().numpy()
    got = axes(RopeConfig.from_hf(hf.to_dict()))
    np.testing.assert_array_equal(np.where(got == 3, 0, got), want)


@pytest.mark.parametrize("name", presets.names())
def test_preset(name: str) -> None:
    data = presets.hf_config(name)
    entry = presets._entry(name)
    text = data.get("text_config", data)
    model_type = {"qwen2_vl": "qwen2_vl_text"}.get(text["model_type"], text["model_type"])
    if model_type == "gptj":
        assert RopeConfig.preset(name).n_dims == text["rotary_dim"]
        return
    options = {key: value for key, value in text.items() if key != "model_type"}
    if seq_len := entry.get("seq_len"):
        # transformers 5 still knows 'su' as another word for 'longrope', but no longer completes such a file.
        options["rope_scaling"] = {**options["rope_scaling"], "type": "longrope"}
    hf = build(model_type, **options)
    layer = entry.get("layer_type")
    module = rotary(model_type, hf)
    if seq_len is not None:
        inv_freq, attention = ROPE_INIT_FUNCTIONS["longrope"](hf, seq_len=seq_len)
    else:
        inv_freq = getattr(module, "inv_freq" if layer is None else f"{layer}_inv_freq")
        attention = getattr(module, "attention_scaling" if layer is None else f"{layer}_attention_scaling")
    assert_same(RopeConfig.preset(name), inv_freq, attention, name)
    # What transformers would save as config.json today says the same.
    assert RopeConfig.from_hf(hf.to_dict(), seq_len, layer_type=layer) == RopeConfig.preset(name)


FIELDS = set(ModelKind.__dataclass_fields__)
PER_LAYER: dict[str, dict[str, Any]] = {
    "yarn": {"rope_type": "yarn", "factor": 4.0},
    "yarn-own-length": {"rope_type": "yarn", "factor": 4.0, **ORIGINAL},
    "linear-own-base": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e4},
    "llama3": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "longrope": {"rope_type": "longrope", "factor": 4.0, "short_factor": SHORT, "long_factor": SHORT},
}


@pytest.mark.parametrize("root", [None, 4096])
@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("name", PER_LAYER)
@pytest.mark.parametrize("model_type", ["gemma3_text", "olmo3", "modernbert"])
def test_scaling_per_layer_type(model_type: str, name: str, older: bool, root: int | None) -> None:
    """Parameters of layer types and the older layout, with and without an original length at the root."""
    params = PER_LAYER[name]
    nested = {"full_attention": params, "sliding_attention": {"rope_type": "default"}}
    given: dict[str, Any] = {**SMALL, "layer_types": ["full_attention", "sliding_attention"], "num_hidden_layers": 2}
    given |= {"rope_scaling": params} if older else {"rope_parameters": nested}
    if root is not None:
        given["original_max_position_embeddings"] = root
    if model_type == "gemma3_text":
        given |= HEAD
    module = rotary(model_type, build(model_type, **copy.deepcopy(given)))
    for layer in nested:
        config = RopeConfig.from_hf({"model_type": model_type, **given}, layer_type=layer)
        want = getattr(module, f"{layer}_inv_freq"), getattr(module, f"{layer}_attention_scaling")
        assert_same(config, *want, f"{model_type} {params}, older {older}, root {root}, layer type {layer}")


def test_layer_type_is_needed() -> None:
    data = build("gemma3_text").to_dict()
    with pytest.raises(ConfigError, match="layer_type: not given, rope_parameters has one set per layer type"):
        RopeConfig.from_hf(data)
