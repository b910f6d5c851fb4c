"""Reading GGUF files, written here with `gguf.GGUFWriter`."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_rope import magnitude

from clrope.config import RopeConfig
from clrope.errors import ConfigError
from clrope.io.gguf_file import _Header
from clrope.io.gguf_models import ARCHITECTURES, NO_ROPE, SCALED_SLIDING, UNSCALED_SLIDING

gguf = pytest.importorskip("gguf")


def write(path: Path, arch: str, keys: dict[str, Any], tensors: dict[str, np.ndarray] | None = None) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {"context_length": 4096, "embedding_length": 512, "attention.head_count": 4, **keys}.items():
        name = f"{arch}.{key}"
        if value is None:
            continue
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    for name, tensor in (tensors or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_plain_llama(file: Path) -> None:
    write(file, "llama", {"rope.freq_base": 500000.0, "rope.dimension_count": 128})
    assert RopeConfig.from_gguf(file) == RopeConfig("normal", n_dims=128, freq_base=5e5)
    assert RopeConfig.from_gguf(file) == RopeConfig.from_gguf(str(file))
    assert RopeConfig.from_gguf(file, mode="neox").mode == "neox"


def test_defaults_of_llama_cpp(file: Path) -> None:
    write(file, "qwen2", {})
    assert RopeConfig.from_gguf(file) == RopeConfig("neox", n_dims=128)
    write(file, "qwen2", {"attention.key_length": 64})
    assert RopeConfig.from_gguf(file).n_dims == 64
    write(file, "qwen2", {"attention.head_count": [8, 8, 8]})
    assert RopeConfig.from_gguf(file).n_dims == 64


def test_freq_factors(file: Path) -> None:
    factors = np.linspace(1, 8, 64, dtype=np.float32)
    write(
        file, "llama", {"rope.dimension_count": 128}, {"rope_freqs.weight": factors, "blk.0.x": np.ones(3, np.float32)}
    )
    assert RopeConfig.from_gguf(file).freq_factors == tuple(float(f) for f in factors)
    write(file, "llama", {"rope.dimension_count": 256}, {"rope_freqs.weight": factors})
    with pytest.raises(ConfigError, match=r"rope_freqs.weight: has 64 numbers, one per pair is needed: 128"):
        RopeConfig.from_gguf(file)


@pytest.mark.parametrize("alignment", [None, 8, 32, 128])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_where_tensors_are(file: Path, alignment: int | None, dtype: Any, rng: np.random.Generator) -> None:
    """Behind others of any size, at multiples of the file's alignment."""
    factors = rng.uniform(1, 8, 32).astype(dtype)
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_uint32("llama.rope.dimension_count", 64)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for name, tensor in (("a", rng.uniform(size=(3, 5))), ("rope_freqs.weight", factors), ("b", np.ones(7))):
        writer.add_tensor(name, tensor.astype(dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert RopeConfig.from_gguf(file).freq_factors == tuple(map(float, factors))
    (there,) = (t for t in gguf.GGUFReader(file).tensors if t.name == "rope_freqs.weight")
    np.testing.assert_array_equal(there.data, factors)
    file.write_bytes(file.read_bytes()[: there.data_offset + 1])
    with pytest.raises(ConfigError, match=r"rope_freqs.weight: its \d+ bytes from \d+ on are beyond the file"):
        RopeConfig.from_gguf(file)


def test_only_what_is_needed_is_read(file: Path) -> None:
    """Words of a vocabulary, and values of other keys that are large or no text, are passed over."""
    write(file, "llama", {"rope.dimension_count": 64, "words": ["a", "bc", ""], "numbers": list(range(70000))})
    data = file.read_bytes().replace(b"tokenizer.ggml.tokens", b"tokenizer.\xff\xfeml.tokens")
    file.write_bytes(data)
    assert RopeConfig.from_gguf(file) == RopeConfig("normal", n_dims=64)


def test_long_and_short_factors_by_length(file: Path) -> None:
    short, long = np.full(16, 1.5, np.float32), np.full(16, 4.0, np.float32)
    keys = {"rope.dimension_count": 32, "rope.scaling.original_context_length": 2048, "rope.scaling.attn_factor": 1.25}
    write(file, "phi3", keys, {"rope_factors_short.weight": short, "rope_factors_long.weight": long})
    want = RopeConfig("neox", n_dims=32, attn_factor=1.25, freq_factors=(1.5,) * 16)
    assert RopeConfig.from_gguf(file, seq_len=2048) == want
    assert RopeConfig.from_gguf(file, seq_len=2049).freq_factors == (4.0,) * 16
    with pytest.raises(ConfigError, match="seq_len: not given, this file has rope_factors_long"):
        RopeConfig.from_gguf(file)
    write(file, "phi3", keys, {"rope_factors_short.weight": short})
    with pytest.raises(ConfigError, match=r"rope_factors_long.weight: missing, it is needed for seq_len 4096"):
        RopeConfig.from_gguf(file, seq_len=4096)


@pytest.mark.parametrize(
    ("keys", "scale"),
    [
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, 0.25),
        ({"rope.scaling.factor": 4.0}, 0.25),
        ({"rope.scale_linear": 8.0}, 0.125),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, 1.0),
        ({"rope.scaling.factor": 0.0}, 1.0),
        ({"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}, 0.5),
    ],
)
def test_linear_scaling(file: Path, keys: dict[str, Any], scale: float) -> None:
    write(file, "llama", keys)
    assert RopeConfig.from_gguf(file) == RopeConfig("normal", n_dims=128, freq_scale=scale)


YARN: dict[str, Any] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32768,
    "rope.freq_base": 1000000.0,
}


def test_yarn(file: Path) -> None:
    write(file, "qwen2", YARN)
    config = RopeConfig.from_gguf(file)
    assert config == RopeConfig("neox", n_dims=128, freq_base=1e6, freq_scale=0.25, ext_factor=1, n_ctx_orig=32768)
    assert magnitude(config) == pytest.approx(1 + 0.1 * math.log(4))
    write(file, "qwen2", {**YARN, "rope.scaling.original_context_length": None})
    assert RopeConfig.from_gguf(file).n_ctx_orig == 4096


def test_yarn_s_own_keys(file: Path) -> None:
    own = {"ext_factor": 0.5, "attn_factor": 2.0, "beta_fast": 16.0, "beta_slow": 2.0}
    keys = {
        **YARN,
        "rope.scaling.attn_factor": 1.5,
        **{f"rope.scaling.yarn_{key}": value for key, value in own.items()},
    }
    write(file, "qwen2", keys)
    config = RopeConfig.from_gguf(file)
    assert (config.ext_factor, config.attn_factor, config.beta_fast, config.beta_slow) == (0.5, 1.5, 16.0, 2.0)
    write(file, "qwen2", {**YARN, "rope.scaling.yarn_ext_factor": 0.0})
    assert RopeConfig.from_gguf(file) == RopeConfig("neox", n_dims=128, freq_base=1e6, freq_scale=0.25)


@pytest.mark.parametrize(
    ("keys", "factor"),
    [
        ({}, 1.0),
        ({"rope.scaling.attn_factor": 1.5}, 1.5),
        ({"rope.scaling.yarn_ext_factor": 0.0}, 2.0),
        ({"rope.scaling.yarn_ext_factor": 0.0, "rope.scaling.attn_factor": 1.5}, 3.0),
        ({"rope.scaling.type": "linear", "rope.scaling.attn_factor": 1.5}, 3.0),
    ],
)
def test_yarn_s_own_magnitude_counts_without_yarn(file: Path, keys: dict[str, Any], factor: float) -> None:
    write(file, "qwen2", {**YARN, "rope.scaling.yarn_attn_factor": 2.0, **keys})
    assert RopeConfig.from_gguf(file).attn_factor == factor


def test_converted_yarn_has_the_magnitude_of_its_config(file: Path) -> None:
    """The converter writes the whole `attention_factor` of config.json; it must not be multiplied in again."""
    attention = 0.1 * math.log(4) + 1
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    model = {"model_type": "qwen2", "hidden_size": 512, "num_attention_heads": 4, "rope_theta": 1e6}
    want = RopeConfig.from_hf({**model, "rope_scaling": {**scaling, "attention_factor": attention}})
    write(file, "qwen2", {**YARN, "rope.scaling.yarn_attn_factor": attention})
    assert RopeConfig.from_gguf(file) == want
    assert magnitude(want) == pytest.approx(attention)


@pytest.mark.parametrize(
    ("arch", "multiplier", "want"),
    [
        ("deepseek2", 0.1, 1.0),  # DeepSeek-V3: mscale = mscale_all_dim = 1
        ("deepseek2", 0.0707, 1.0),  # DeepSeek-V2: both 0.707
        ("mistral3", 1.0, 1.0),
        ("mistral3", 0.5, (0.1 * math.log(40) + 1) / (0.05 * math.log(40) + 1)),
        ("mistral3", 0.0, 0.1 * math.log(40) + 1),
    ],
)
def test_log_multiplier_is_deepseek_s_rule(file: Path, arch: str, multiplier: float, want: float) -> None:
    scaling = {"rope.scaling.factor": 40.0, "rope.scaling.yarn_log_multiplier": multiplier}
    write(file, arch, {**YARN, **scaling, "rope.dimension_count": 64})
    assert magnitude(RopeConfig.from_gguf(file)) == pytest.approx(want, rel=1e-6)


def test_sections(file: Path) -> None:
    keys = {"rope.dimension_sections": [16, 24, 24, 0]}
    write(file, "qwen2vl", keys)
    assert RopeConfig.from_gguf(file) == RopeConfig("mrope", n_dims=128, sections=(16, 24, 24))
    write(file, "qwen3vl", keys)
    assert RopeConfig.from_gguf(file).mode == "imrope"
    write(file, "glm4", keys)
    assert RopeConfig.from_gguf(file).mode == "mrope"
    write(file, "glm4", {"rope.dimension_sections": [0, 0, 0, 0]})
    assert RopeConfig.from_gguf(file) == RopeConfig("normal", n_dims=128)
    write(file, "qwen2", keys)
    with pytest.raises(ConfigError, match=r"qwen2.rope.dimension_sections: got .*, mode 'neox' has no sections"):
        RopeConfig.from_gguf(file)
    write(file, "qwen2vl", {})
    with pytest.raises(ConfigError, match="sections: mode 'mrope' needs them"):
        RopeConfig.from_gguf(file)


def test_sliding_layers_of_gemma3(file: Path) -> None:
    keys = {"rope.freq_base": 1000000.0, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    write(file, "gemma3", {**keys, "attention.key_length": 256})
    full = RopeConfig("neox", n_dims=256, freq_base=1e6, freq_scale=0.125)
    assert RopeConfig.from_gguf(file, layer_type="full_attention") == full
    assert RopeConfig.from_gguf(file, layer_type="sliding_attention") == RopeConfig("neox", n_dims=256)
    with pytest.raises(ConfigError, match="layer_type: not given, this file's 'full_attention'"):
        RopeConfig.from_gguf(file)
    with pytest.raises(ConfigError, match="layer_type: got 'global', allowed are"):
        RopeConfig.from_gguf(file, layer_type="global")


def test_sliding_layers_with_their_own_size(file: Path) -> None:
    keys = {"rope.freq_base": 1000000.0, "rope.freq_base_swa": 20000.0, "rope.dimension_count": 512}
    factors = np.array([1.0] * 64 + [1e30] * 192, np.float32)
    write(file, "gemma4", {**keys, "rope.dimension_count_swa": 256}, {"rope_freqs.weight": factors})
    full = RopeConfig.from_gguf(file, layer_type="full_attention")
    assert (full.n_dims, full.freq_base, len(full.freq_factors or ())) == (512, 1e6, 256)
    assert RopeConfig.from_gguf(file, layer_type="sliding_attention") == RopeConfig("neox", n_dims=256, freq_base=20000)


def test_sliding_layers_of_another_architecture(file: Path) -> None:
    keys = {"rope.freq_base": 150000.0, "rope.freq_base_swa": 150000.0, "rope.dimension_count": 64}
    write(file, "gpt-oss", keys)
    assert RopeConfig.from_gguf(file) == RopeConfig("neox", n_dims=64, freq_base=150000)
    write(file, "gpt-oss", {**keys, "rope.freq_base_swa": 10000.0})
    assert RopeConfig.from_gguf(file, layer_type="sliding_attention").freq_base == 10000
    write(file, "mimo2", {**keys, "rope.freq_base_swa": 10000.0, "rope.scaling.factor": 2.0})
    with pytest.raises(ConfigError, match="not known whether the sliding layers of architecture 'mimo2' are scaled"):
        RopeConfig.from_gguf(file, layer_type="sliding_attention")


OLMO3: dict[str, Any] = {**YARN, "attention.sliding_window": 1024}


def test_sliding_layers_of_olmo3_have_no_scaling(file: Path) -> None:
    write(file, "olmo2", {**OLMO3, "rope.scaling.attn_factor": 1.5})
    full = RopeConfig.from_gguf(file, layer_type="full_attention")
    assert (full.ext_factor, full.freq_scale, full.attn_factor, full.n_ctx_orig) == (1.0, 0.25, 1.5, 32768)
    plain = RopeConfig("neox", n_dims=128, freq_base=1e6)
    assert RopeConfig.from_gguf(file, layer_type="sliding_attention") == plain
    with pytest.raises(ConfigError, match="layer_type: not given, this file's 'full_attention'"):
        RopeConfig.from_gguf(file)
    write(file, "olmo2", {**OLMO3, "rope.freq_base_swa": 20000.0})
    assert RopeConfig.from_gguf(file, layer_type="sliding_attention").freq_base == 20000


def test_laguna_s_two_kinds_of_layers(file: Path) -> None:
    """The full layers rotate half of a head, with YaRN; the sliding ones all of it, without."""
    keys = {**OLMO3, "rope.freq_base_swa": 1e4, "rope.dimension_count": 64, "rope.dimension_count_swa": 128}
    write(file, "laguna", keys)
    full, sliding = (RopeConfig.from_gguf(file, layer_type=f"{kind}_attention") for kind in ("full", "sliding"))
    assert (full.mode, full.n_dims, full.freq_base, full.ext_factor) == ("neox", 64, 1e6, 1.0)
    assert sliding == RopeConfig("neox", n_dims=128, freq_base=1e4)


def test_olmo3_agrees_with_its_config(file: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    model = {"model_type": "olmo3", "hidden_size": 512, "num_attention_heads": 4}
    params = {"full_attention": {**scaling, "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e6}}
    write(file, "olmo2", {**OLMO3, "rope.scaling.yarn_attn_factor": 0.1 * math.log(4) + 1})
    for layer in ("full_attention", "sliding_attention"):
        want = RopeConfig.from_hf({**model, "rope_parameters": params}, layer_type=layer)
        assert RopeConfig.from_gguf(file, layer_type=layer) == want


@pytest.mark.parametrize(
    ("keys", "scaled"),
    [
        (YARN, True),  # OLMo 2
        ({**YARN, "attention.sliding_window": 0}, True),
        ({"attention.sliding_window": 1024, "rope.freq_base": 1e6}, False),
        ({**OLMO3, "rope.scaling.type": "none"}, False),
        ({**OLMO3, "rope.scaling.type": "linear", "rope.scaling.factor": 1.0}, False),
    ],
)
def test_olmo_with_the_same_rope_in_all_layers(file: Path, keys: dict[str, Any], scaled: bool) -> None:
    write(file, "olmo2", keys)
    config = RopeConfig.from_gguf(file)
    assert (config.freq_scale != 1.0) == scaled
    for layer in ("full_attention", "sliding_attention"):
        assert RopeConfig.from_gguf(file, layer_type=layer) == config


@pytest.mark.parametrize(
    "scaling",
    [YARN, {"rope.scaling.factor": 2.0}, {"rope.scaling.attn_factor": 1.5}, {"rope.scaling.yarn_attn_factor": 1.5}],
)
@pytest.mark.parametrize("window", [1024, [0, 1024, 0]])
def test_scaled_sliding_layers_that_nothing_is_known_of(file: Path, scaling: dict[str, Any], window: Any) -> None:
    write(file, "mimo2", {**scaling, "attention.sliding_window": window})
    full = RopeConfig.from_gguf(file, layer_type="full_attention")
    assert RopeConfig.from_gguf(file) == full
    with pytest.raises(ConfigError, match="not known whether the sliding layers of architecture 'mimo2' are scaled"):
        RopeConfig.from_gguf(file, layer_type="sliding_attention")
    write(file, "mimo2", scaling)
    assert RopeConfig.from_gguf(file, layer_type="sliding_attention") == full
    write(file, "mimo2", {"attention.sliding_window": window})
    assert RopeConfig.from_gguf(file, layer_type="sliding_attention") == RopeConfig.from_gguf(file)


def test_factors_of_sliding_layers_that_nothing_is_known_of(file: Path) -> None:
    factors = {"rope_freqs.weight": np.full(64, 2, np.float32)}
    write(file, "mimo2", {"attention.sliding_window": 1024}, factors)
    assert RopeConfig.from_gguf(file).freq_factors == (2.0,) * 64
    with pytest.raises(ConfigError, match="not known whether the sliding layers of architecture 'mimo2' are scaled"):
        RopeConfig.from_gguf(file, layer_type="sliding_attention")


@pytest.mark.parametrize("arch", sorted(SCALED_SLIDING))
def test_sliding_layers_that_are_scaled_too(file: Path, arch: str) -> None:
    write(file, arch, OLMO3)
    config = RopeConfig.from_gguf(file)
    assert config.ext_factor == 1
    assert RopeConfig.from_gguf(file, layer_type="sliding_attention") == config


def test_scaled_sliding_layers_with_their_own_base(file: Path) -> None:
    write(file, "gpt-oss", {**OLMO3, "rope.freq_base_swa": 20000.0})
    full = RopeConfig.from_gguf(file, layer_type="full_attention")
    assert RopeConfig.from_gguf(file, layer_type="sliding_attention") == replace(full, freq_base=20000)


@pytest.mark.parametrize("value", [["full_attention"], {"a"}, np.array(["a", "b"]), b"full_attention", 5])
def test_a_layer_type_is_a_name(file: Path, value: Any) -> None:
    write(file, "llama", {})
    with pytest.raises(ConfigError, match=r"layer_type: got .*, a name is needed"):
        RopeConfig.from_gguf(file, layer_type=value)


@pytest.mark.parametrize(
    ("arch", "keys", "message"),
    [
        ("whatever", {}, "general.architecture: got 'whatever', whose pairing is not known here; give mode="),
        ("bert", {}, "general.architecture: 'bert' uses no RoPE"),
        ("granite", {"rope.scaling.finetuned": False}, "granite.rope.scaling.finetuned: false, with which llama.cpp"),
        ("granitemoe", {"rope.scaling.finetuned": False}, "granitemoe.rope.scaling.finetuned: false, with which"),
        ("granitehybrid", {"rope.scaling.finetuned": False}, "granitehybrid.rope.scaling.finetuned: false, with which"),
        ("gpt2", {}, "general.architecture: 'gpt2' uses no RoPE"),
        ("llama", {"rope.scaling.alpha": 2.0}, "llama.rope.scaling.alpha: not understood"),
        ("llama", {"rope.scaling.type": "xpos"}, "llama.rope.scaling.type: got 'xpos'"),
        ("llama", {"rope.scaling.factor": -2.0}, "llama.rope.scaling.factor: got -2.0"),
        ("llama", {"rope.freq_base": 0.0}, "llama.rope.freq_base: got 0.0"),
        ("llama", {"rope.scaling.factor": 2.0, "rope.scale_linear": True}, "llama.rope.scale_linear: got True"),
        ("llama", {"rope.scaling.yarn_beta_fast": [1, 2]}, "llama.rope.scaling.yarn_beta_fast: got an array of 2"),
        ("llama", {"rope.scaling.finetuned": [1, 2]}, "llama.rope.scaling.finetuned: got an array of 2 numbers"),
        ("llama", {"rope.scaling.finetuned": 1}, "llama.rope.scaling.finetuned: got 1, true or false is needed"),
        ("llama", {"attention.head_count": ["a"]}, "head_count: got an array of 1 strings, numbers are needed"),
        ("llama", {"attention.head_count": [4] * 4097}, "head_count has 4097 elements, at most 4096 are read"),
        ("llama", {"attention.head_count": None}, "dimension_count: missing, and so is llama.attention.head_count"),
        ("llama", {"attention.head_count": [4, 8]}, "llama.attention.head_count: differs between layers"),
        ("qwen2vl", {"rope.dimension_sections": [16, 24]}, "dimension_sections: got .*, 3 or 4 counts"),
        (
            "qwen2",
            {**YARN, "rope.scaling.yarn_log_multiplier": 0.1},
            "yarn_log_multiplier: its meaning for architecture",
        ),
    ],
)
def test_refusals_name_the_key(file: Path, arch: str, keys: dict[str, Any], message: str) -> None:
    write(file, arch, keys)
    with pytest.raises(ConfigError, match=message):
        RopeConfig.from_gguf(file)


@pytest.mark.parametrize(
    ("arch", "finetuned"), [("granite", True), ("granite", None), ("llama", False), ("minicpm", False)]
)
def test_the_switch_of_granite(file: Path, arch: str, finetuned: bool | None) -> None:
    write(file, arch, {"rope.scaling.finetuned": finetuned})
    assert RopeConfig.from_gguf(file) == RopeConfig("normal", n_dims=128)


def test_unknown_keys_are_refused_before_they_are_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a few megabytes would become gigabytes of Python's numbers."""
    write(file, "llama", {**{f"rope.k{n}": [1] * 9 for n in range(20)}, "rope.dimension_sections": [1, 2, 3]})
    read: list[str] = []
    content = _Header.content

    def noted(header: _Header, found: Any, what: str, most: int = 1) -> Any:
        read.append(what)
        return content(header, found, what, most)

    monkeypatch.setattr(_Header, "content", noted)
    with pytest.raises(ConfigError, match=r"llama[.]rope[.]k0: not understood; known are "):
        RopeConfig.from_gguf(file)
    assert not any("rope" in name for name in read)


def test_unreadable_files(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.gguf: cannot be read \(No such file"):
        RopeConfig.from_gguf(file)
    file.write_bytes(b"not a gguf file" * 10)
    with pytest.raises(ConfigError, match=r"model.gguf: not a GGUF file"):
        RopeConfig.from_gguf(file)


def test_table_covers_the_package_s_architectures() -> None:
    assert not set(ARCHITECTURES) & NO_ROPE
    assert not set(UNSCALED_SLIDING) & SCALED_SLIDING
    assert set(UNSCALED_SLIDING) | SCALED_SLIDING <= set(ARCHITECTURES)
    # Later versions of the package will name more; those are refused until someone says how they pair.
    assert len(set(gguf.MODEL_ARCH_NAMES.values()) & (set(ARCHITECTURES) | NO_ROPE)) >= 50
