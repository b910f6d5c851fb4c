"""Vision encoders against their rotary classes in the installed transformers, and what is refused of their files."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clrope
from clrope import ConfigError, RopeConfig
from clrope.io.hf_axial import MODELS
from clrope.reference import pair_indices

#: Head sizes that are nobody's default; 66 elements of 72 are rotated by three axes.
HEADS, HEAD_DIM = 3, 72
#: What their configuration classes need besides.
OTHERS = {"dots3_note_vision_encoder": {"adapter_in_dim": HEADS * HEAD_DIM}}


def rotary_classes() -> Iterator[tuple[str, Any, Any]]:
    """Yield (model type, configuration class, rotary class) of the installed transformers' encoders of type 'axial'."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    for file in sorted(Path(transformers.__file__).parent.glob("models/*/configuration_*.py")):
        if '"axial"' not in file.read_text(encoding="utf-8"):
            continue
        package = f"transformers.models.{file.parent.name}"
        configuration = importlib.import_module(f"{package}.{file.stem}")
        modeling = importlib.import_module(f"{package}.{file.stem.replace('configuration', 'modeling')}")
        rotary = {
            inspect.signature(c).parameters["config"].annotation: c
            for c in vars(modeling).values()
            if inspect.isclass(c) and hasattr(c, "compute_axial_rope_parameters") and c.__module__ == modeling.__name__
        }
        for name, c in vars(configuration).items():
            axial = inspect.isclass(c) and getattr(c, "default_rope_type", None) == "axial"
            for annotation in (name, c) if axial else ():
                if annotation in rotary and c.__name__ == name:
                    yield c.model_type, c, rotary[annotation]


def test_every_class(rng: np.random.Generator) -> None:
    """cos and sin of every class: which pair, axis and frequency, at random sizes, bases and positions."""
    torch = pytest.importorskip("torch")

    seen = set()
    for model_type, configuration, rotary in rotary_classes():
        if model_type not in MODELS:
            continue
        kind = MODELS[model_type]
        sizes = {kind.size_key: HEADS * HEAD_DIM, kind.heads_key: HEADS}
        for theta in (None, 12345.0):
            given = {} if theta is None else {"rope_parameters": {"rope_type": "axial", "rope_theta": theta}}
            config = configuration(**sizes, **given, **OTHERS.get(model_type, {}))
            if "head_dim" in config.to_dict():
                config.head_dim = HEAD_DIM
            read = RopeConfig.from_hf(config)
            # A file may have no parameters.
            file = {k: v for k, v in config.to_dict().items() if k != "rope_parameters"}
            assert theta is not None or RopeConfig.from_hf(file) == read
            positions = rng.integers(0, 300, (read.position_axes, 50))
            cos, sin = rotary(config)(torch.zeros(1), torch.from_numpy(positions.T.copy()))
            first, second = pair_indices(read)
            for got, want in zip((cos, sin), clrope.reference.cos_sin(positions, read), strict=True):
                table = got.numpy().reshape(50, -1)
                assert table.shape[1] == read.n_dims, model_type
                for elements in (first, second):
                    assert np.abs(table[:, elements] - want).max() < 1e-4, model_type
        seen.add(model_type)
    assert seen == MODELS.keys()


def test_centres_of_patches() -> None:
    """DINOv3: fractions between -1 and 1 in turns, which no file says; cos and sin of its class."""
    torch = pytest.importorskip("torch")
    dinov3 = pytest.importorskip("transformers.models.dinov3_vit.modeling_dinov3_vit")
    model = dinov3.DINOv3ViTConfig(hidden_size=HEADS * HEAD_DIM, num_attention_heads=HEADS, patch_size=16)
    rows, columns = 5, 7
    cos, sin = dinov3.DINOv3ViTRopePositionEmbedding(model).eval()(torch.zeros(1, 3, 16 * rows, 16 * columns))
    each = HEAD_DIM // 4
    config = RopeConfig(
        "neox", pair_axes=(0,) * each + (1,) * each, freq_base=model.rope_theta, freq_scale=2 * np.pi,
        coordinate_scale=rows * columns,
    )  # fmt: skip
    centres = [(2 * np.arange(n) + 1 - n) / n for n in (rows, columns)]
    grid = np.stack(np.meshgrid(*centres, indexing="ij")).reshape(2, -1)
    made = clrope.reference.cos_sin(clrope.scaled_positions(grid, config), config)
    for got, want in zip((cos, sin), made, strict=True):
        for half in (slice(0, HEAD_DIM // 2), slice(HEAD_DIM // 2, HEAD_DIM)):
            assert np.abs(got.numpy()[:, half] - want).max() < 1e-5


VISION = {"model_type": "qwen3_vl_vision", "hidden_size": 1152, "num_heads": 16}


def test_fields() -> None:
    config = RopeConfig.from_hf(VISION)
    assert config == RopeConfig("neox", pair_axes=(0,) * 18 + (1,) * 18)
    assert config.n_dims == 72
    assert RopeConfig.from_hf({**VISION, "head_dim": 64}).n_dims == 64
    assert RopeConfig.from_hf({**VISION, "rope_theta": 500}).freq_base == 500
    assert RopeConfig.from_hf(VISION, mode="normal").mode == "normal"
    outer = {"model_type": "qwen3_vl", "vision_config": VISION}
    with pytest.raises(ConfigError, match="vision_config"):
        RopeConfig.from_hf(outer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_parameters": {"rope_type": "default"}}, "rope_parameters.rope_type: got 'default'"),
        ({"rope_parameters": {"rope_type": "axial", "factor": 2.0}}, "rope_parameters.factor: not a key"),
        ({"rope_parameters": {"rope_theta": 100.0}, "rope_theta": 50.0}, "rope_theta: 50.0 at the root, 100.0 in"),
        ({"rope_theta": 0}, "rope_theta: got 0"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: not a key"),
        ({"hidden_size": None}, "hidden_size: missing"),
        ({"hidden_size": 1056}, "head_dim: got 66, a multiple of 4"),
        (
            {"rope_scaling": {"type": "axial", "rope_theta": 5.0}, "rope_parameters": {"rope_theta": 6.0}},
            "rope_scaling",
        ),
        (
            {"model_type": "qwen2", "num_attention_heads": 8, "rope_parameters": {"rope_type": "axial"}},
            "'axial' does not",
        ),
    ],
)
def test_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RopeConfig.from_hf({**VISION, **change})
