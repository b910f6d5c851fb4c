"""What `RopeConfig` takes and refuses; every refusal names the field, what came and what is allowed."""

from __future__ import annotations

import json
import math
import pickle
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from clrope import ConfigError, RopeConfig, RopeError

REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"mode": "gptj"},
        "mode: got 'gptj', allowed are 'normal' (ggml 0), .* (ggml 40); what others call 'gptj' is 'normal' here",
    ),
    ({"mode": "NEOX"}, "mode: got 'NEOX', allowed are 'normal'"),
    ({"mode": 1}, "mode: got 1, allowed are"),
    ({"mode": True}, "mode: got True of type bool, allowed are"),
    ({"mode": None}, "mode: got None of type NoneType, allowed are"),
    ({"n_dims": 7}, "n_dims: got 7, it must be even"),
    ({"n_dims": 0}, "n_dims: got 0, the least allowed is 2"),
    ({"n_dims": -2}, "n_dims: got -2, the least allowed is 2"),
    ({"n_dims": 8.0}, "n_dims: got 8.0 of type float, an integer is needed"),
    ({"freq_base": float("nan")}, "freq_base: got nan, it must be finite"),
    ({"freq_base": float("inf")}, "freq_base: got inf, it must be finite"),
    ({"freq_base": 0}, "freq_base: got 0.0, it must be greater than 0"),
    ({"freq_base": -1e4}, "freq_base: got -10000.0, it must be greater than 0"),
    ({"freq_base": "10000"}, "freq_base: got '10000' of type str, a real number is needed"),
    ({"freq_scale": 0.0}, "freq_scale: got 0.0, it must be greater than 0"),
    ({"freq_scale": float("nan")}, "freq_scale: got nan, it must be finite"),
    ({"ext_factor": float("inf")}, "ext_factor: got inf, it must be finite"),
    ({"attn_factor": float("nan")}, "attn_factor: got nan, it must be finite"),
    ({"beta_fast": 0.0, "ext_factor": 1.0}, "beta_fast (with ext_factor other than 0): got 0.0, it must be"),
    ({"beta_slow": -1.0, "ext_factor": 1.0}, "beta_slow (with ext_factor other than 0): got -1.0, it must be"),
    (
        {"freq_base": 1.0, "ext_factor": 1.0},
        "freq_base: got 1.0, YaRN's ramp (ext_factor other than 0) is undefined there",
    ),
    ({"n_ctx_orig": -1}, "n_ctx_orig: got -1, the least allowed is 0"),
    ({"n_ctx_orig": 4096.0}, "n_ctx_orig: got 4096.0 of type float, an integer is needed"),
    ({"freq_factors": [1.0] * 3, "n_dims": 8}, "freq_factors: got 3, one per pair is needed: 4"),
    ({"freq_factors": [1.0, 0.0, 1.0, 1.0]}, "freq_factors[1]: got 0, angles are divided by it"),
    ({"freq_factors": [1.0, float("nan")]}, "freq_factors[1]: got nan, it must be finite"),
    ({"freq_factors": 2.0}, "freq_factors: got 2.0 of type float, a sequence of numbers is needed"),
    ({"freq_factors": {1.0, 2.0}}, "freq_factors: got {1.0, 2.0} of type set, a sequence of numbers is needed"),
    ({"freq_factors": {1: 2.0}}, "freq_factors: got {1: 2.0} of type dict, a sequence of numbers is needed"),
    ({"freq_factors": bytearray(b"ab")}, "freq_factors: got bytearray(b'ab') of type bytearray, a sequence"),
    ({"mode": "mrope", "sections": frozenset([8])}, "sections: got frozenset({8}) of type frozenset, a sequence"),
    ({"freq_base": np.timedelta64(5, "s")}, "freq_base: got .* of type timedelta64, a real number"),
    ({"angles": np.array("exact")}, "angles: got array('exact', dtype='<U5'), allowed are 'exact', 'ggml'"),
    ({"angles": np.array(["exact", "ggml"])}, "angles: got array(['exact', 'ggml']"),
    ({"freq_factors": "ab"}, "freq_factors: got 'ab' of type str, a sequence of numbers is needed"),
    ({"n_offs": 3}, "n_offs: got 3, it must be even"),
    ({"n_offs": -2}, "n_offs: got -2, the least allowed is 0"),
    (
        {"n_offs": 2, "mode": "vision", "sections": (1, 1, 0, 0)},
        "n_offs: got 2, mode 'vision' rotates the whole head and allows only 0",
    ),
    ({"mode": "mrope"}, "sections: mode 'mrope' needs them"),
    ({"mode": 40}, "sections: mode 'imrope' needs them"),
    ({"mode": "vision", "sections": (0, 0, 0, 5)}, "sections: got (0, 0, 0, 5), one of t, h, w must be greater than 0"),
    ({"mode": "mrope", "sections": (1, 2)}, "sections: got 2 numbers, allowed are 3 (t, h, w) or 4 (t, h, w, e)"),
    ({"mode": "mrope", "sections": (1, 2, -3)}, "sections[2]: got -3, the least allowed is 0"),
    ({"mode": "mrope", "sections": 4}, "sections: got 4 of type int, a sequence of numbers is needed"),
    ({"sections": (1, 1, 1)}, "sections: got (1, 1, 1, 0), mode 'neox' has no sections"),
    ({"angles": "fast"}, "angles: got 'fast', allowed are 'exact', 'ggml'"),
    # Python prints no integer of so many digits.
    ({"mode": 10**5000}, "mode: got an integer of 16610 bits, allowed are"),
    ({"mode": [10**5000]}, "mode: got a list that cannot be printed of type list"),
    ({"freq_base": [10**5000]}, "freq_base: got a list that cannot be printed of type list"),
    ({"n_offs": [10**5000]}, "n_offs: got a list that cannot be printed of type list"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=[m[:40] for _, m in REFUSED])
def test_refusals(fields: dict[str, Any], message: str) -> None:
    pattern = ".*".join(re.escape(part) for part in message.split(" .* "))
    with pytest.raises(ConfigError, match=f"^{pattern}"):
        RopeConfig(**{"mode": "neox", **fields})


def test_errors_are_one_family() -> None:
    with pytest.raises(RopeError):
        RopeConfig("nothing")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mode"):
        RopeConfig("nothing")  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "number"), [("normal", 0), ("neox", 2), ("mrope", 8), ("vision", 24), ("imrope", 40)])
def test_modes_by_name_and_by_number(name: Any, number: Any) -> None:
    sections = (1, 1, 1) if number & 8 else None
    assert RopeConfig(name, sections=sections) == RopeConfig(number, sections=sections)
    assert RopeConfig(np.int32(number), sections=sections).mode == name  # type: ignore[arg-type]
    assert RopeConfig(name, sections=sections).ggml_mode == number


def test_defaults_are_ggmls() -> None:
    c = RopeConfig("neox")
    assert (c.freq_base, c.freq_scale, c.ext_factor, c.attn_factor) == (10000.0, 1.0, 0.0, 1.0)
    assert (c.beta_fast, c.beta_slow, c.n_ctx_orig, c.n_offs) == (32.0, 1.0, 0, 0)
    assert (c.freq_factors, c.sections, c.angles) == (None, None, "exact")


def test_dictionaries_both_ways() -> None:
    c = RopeConfig(
        "imrope",
        8,
        freq_base=5e5,
        freq_scale=0.25,
        ext_factor=1.0,
        attn_factor=1.5,
        beta_fast=16,
        beta_slow=2,
        n_ctx_orig=8192,
        freq_factors=[1, 2.5, 3, 4],
        sections=[2, 1, 1],
        n_offs=2,
        angles="ggml",
    )
    again = RopeConfig.from_dict(json.loads(json.dumps(c.to_dict())))
    assert again == c
    assert hash(again) == hash(c)
    assert again.sections == (2, 1, 1, 0)
    with pytest.raises(ConfigError, match="config: unknown key 'rope_theta', known are mode, n_dims"):
        RopeConfig.from_dict({"mode": "neox", "rope_theta": 1})
    with pytest.raises(ConfigError, match="mode: missing, it has no default"):
        RopeConfig.from_dict({"n_dims": 8})
    with pytest.raises(ConfigError, match="config: got list, a mapping"):
        RopeConfig.from_dict([])  # type: ignore[arg-type]


def test_equal_configurations_have_one_hash_in_every_process() -> None:
    config = RopeConfig("neox", 8, attn_factor=-0.0)
    assert hash(config) == hash(RopeConfig("neox", 8, attn_factor=0.0))
    assert math.copysign(1.0, config.attn_factor) == 1.0
    code = (
        "import pickle, sys; from clrope import RopeConfig\n"
        "found = pickle.load(sys.stdin.buffer); assert found in {RopeConfig('neox', 8, attn_factor=0.0)}"
    )
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(config), check=True)


@pytest.mark.parametrize("head_dim", ["8", 8.0, None, [8], True])
def test_head_dim_is_an_integer(head_dim: Any) -> None:
    with pytest.raises(ConfigError, match=r"head_dim: got .* of type .*, an integer is needed"):
        RopeConfig("neox").for_head_dim(head_dim)
    with pytest.raises(ConfigError, match="head_dim"):
        RopeConfig("neox").n_pairs(head_dim)
    with pytest.raises(ConfigError, match="head_dim: got -2, the least allowed is 0"):
        RopeConfig("neox").n_pairs(-2)


@pytest.mark.parametrize("name", [None, 5, [], b"llama-2-7b"])
def test_a_preset_has_a_name(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"preset: got .*, a name is needed"):
        RopeConfig.preset(name)


def test_keys_of_any_type_are_refused() -> None:
    with pytest.raises(ConfigError, match="config: unknown key 5, known are mode"):
        RopeConfig.from_dict({5: 1, "a": 2})  # type: ignore[dict-item]


def test_frozen() -> None:
    with pytest.raises(AttributeError):
        RopeConfig("neox").n_dims = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fields", "head_dim", "message"),
    [
        ({"mode": "neox", "n_dims": 16}, 8, r"n_dims: got 16, at most head_dim = 8 is allowed"),
        (
            {"mode": "neox", "n_dims": 8, "n_offs": 4},
            8,
            r"n_offs \+ n_dims: got 4 \+ 8, at most head_dim = 8 is allowed",
        ),
        ({"mode": "neox"}, 7, r"n_dims: not given, and head_dim - n_offs = 7 is not a positive even number"),
        ({"mode": "neox", "n_offs": 8}, 8, r"n_dims: not given, and head_dim - n_offs = 0"),
        ({"mode": "vision", "sections": (1, 1, 0)}, 6, "head_dim: got 6, mode 'vision' needs a positive multiple of 4"),
        (
            {"mode": "vision", "sections": (1, 1, 0), "n_dims": 8},
            8,
            "n_dims: got 8, mode 'vision' needs head_dim / 2 = 4",
        ),
        ({"mode": "normal", "freq_factors": (1.0, 1.0, 1.0)}, 8, "freq_factors: got 3, one per pair is needed: 4"),
    ],
)
def test_heads_that_do_not_fit(fields: dict[str, Any], head_dim: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RopeConfig(**fields).for_head_dim(head_dim)


def test_n_dims_follows_the_head() -> None:
    assert RopeConfig("neox").for_head_dim(12).n_dims == 12
    assert RopeConfig("neox", n_offs=4).for_head_dim(12).n_dims == 8
    assert RopeConfig("neox", 6).for_head_dim(12).n_dims == 6
    vision = RopeConfig("vision", sections=(1, 1, 0)).for_head_dim(12)
    assert (vision.n_dims, vision.n_pairs(None)) == (6, 6)
    # More factors than pairs are allowed, as in ggml: the rest is not used.
    assert RopeConfig("neox", 4, freq_factors=(1, 2, 3)).n_pairs(None) == 2
