"""transformers' own rotary modules, to compare configurations with (what imports this is skipped without it)."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_rope import magnitude, omegas

from clrope.config import RopeConfig
from clrope.io.hf_models import ModelKind, table
from clrope.io.hf_rope import UNROTATED

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", minversion="5.0")
    transformers.logging.set_verbosity_error()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
    from tools.transformers_models import ADJUST, WITHOUT_PARAMETERS, Probe, families, pairing, row, tables

__all__ = [
    "ADJUST",
    "HEAD",
    "MODELS",
    "OWN_SIZES",
    "SMALL",
    "WITH_PARAMETERS",
    "Probe",
    "assert_same",
    "build",
    "families",
]
__all__ += ["pairing", "rotary", "row", "tables", "transformers"]

SMALL: dict[str, Any] = {
    "vocab_size": 32,
    "num_hidden_layers": 1,
    "hidden_size": 256,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 131072,
}
#: Model types with parts whose sizes have to agree with their own.
OWN_SIZES = {"gradium_phonon_tts", "pocket_tts", "dots3_note_audio_encoder", "nemotron3_5_transcribe_word_timestamp"}
OWN_SIZES |= {"zamba2", "cosmos3_edge_text"}
HEAD = {"head_dim": 128}
MODELS: dict[str, ModelKind] = dict(table().models)
#: Model types with `rope_parameters` that the installed version has.
WITH_PARAMETERS = sorted((MODELS.keys() & CONFIG_MAPPING_NAMES.keys()) - WITHOUT_PARAMETERS.keys())


def build(model_type: str, **options: Any) -> Any:
    """A configuration, also of a model type without a rotary class of its own."""
    if model_type in families():
        return families()[model_type].build(**options)
    return transformers.AutoConfig.for_model(model_type, **options)


def rotary(model_type: str, hf: Any) -> Any:
    """The model's rotary module, built from a configuration."""
    return families()[model_type].module(hf)


def assert_same(config: RopeConfig, inv_freq: Any, attention: float, note: str) -> None:
    got, want = omegas(config), np.asarray(inv_freq, dtype=np.float64)
    still = want == 0
    assert got.shape == want.shape, f"{note}: {got.shape} pairs, transformers has {want.shape}"
    assert (got[still] <= 1.0 / UNROTATED).all(), note
    # transformers computes in float32: base ** exponent is off by a few units of 6e-8, more for large exponents.
    np.testing.assert_allclose(got[~still], want[~still], rtol=3e-6, err_msg=note)
    assert magnitude(config) == pytest.approx(attention, rel=1e-12), note
