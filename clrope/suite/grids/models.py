"""The suite 'models': q and k of current models in one call, in their real shapes, by each convention in use.

Sizes and constants are those of the models' published configurations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import api, reference, tables
from ...config import RopeConfig
from ...emulation import emulate_cos_sin, emulate_rope
from ...layout import DTYPES
from ...norm import Norm
from ...norm_emulation import emulate_norm_rope
from ..call_trial import CallTrial, Place
from ..registry import suite
from ..rope_trial import generator

if TYPE_CHECKING:
    from ...device import DeviceInfo

Array = npt.NDArray[Any]
TOKENS = 5
#: Kinds of qk-norms, as arguments of `Norm`. Llama's class rounds before the weight, Gemma's and OLMo's after it.
_LLAMA: dict[str, Any] = {"eps": 1e-6, "rounding": "each"}
_GEMMA: dict[str, Any] = {"eps": 1e-6, "weight_offset": 1.0}
_OLMO: dict[str, Any] = {"eps": 1e-6, "over": "heads"}
_AFTER: dict[str, Any] = {"eps": 1e-5, "order": "after", "rounding": "each"}


class Model(NamedTuple):
    """A model's attention. config: a preset, or keys of `config.json`; layer_type: as for `RopeConfig.from_hf`.

    heads: of q and of k. head_dim: of what is rotated. norm: of q and k. context: positions are below it.
    places: of q and k where they are parts of longer heads. halves: neighbours are rotated, and put out as halves.
    """

    name: str
    heads: tuple[int, int]
    head_dim: int
    config: Mapping[str, Any] | RopeConfig | None = None
    norm: Mapping[str, Any] | None = None
    context: int = 131072
    layer_type: str | None = None
    places: tuple[Place, Place] | None = None
    halves: bool = False

    def rope_config(self) -> RopeConfig:
        """Return the configuration; without one of its own the preset of this name."""
        if self.config is None:
            return RopeConfig.preset(self.name)
        if isinstance(self.config, RopeConfig):
            return self.config
        return RopeConfig.from_hf(self.config, self.context, layer_type=self.layer_type)


def _hf(model_type: str, **keys: Any) -> dict[str, Any]:
    return {"model_type": model_type, **keys}


_GEMMA_4 = {
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
_LLAMA_3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
#: Multi-head latent attention: the part of q that is rotated follows 128 elements, that of k the 512 latent ones.
_MLA = (Place(192, 128), Place(576, 512))

MODELS = (
    Model("llama-2-7b", (32, 32), 128, context=4096),
    Model("llama-3.1-8b", (32, 8), 128),
    Model("llama-3.2-1b", (32, 8), 64),
    Model("smollm2-135m", (9, 3), 64, _hf("llama", hidden_size=576, num_attention_heads=9, rope_theta=1e5), None, 8192),
    Model("llama-4-scout", (40, 8), 128, None, _AFTER, 10485760),
    Model("qwen2.5-7b", (28, 4), 128),
    Model("qwen2.5-7b-yarn-128k", (28, 4), 128),
    Model("qwen3-8b", (32, 8), 128, None, _LLAMA, 40960),
    Model(
        "qwen3-next-80b", (16, 2), 256,
        _hf("qwen3_next", head_dim=256, partial_rotary_factor=0.25, rope_theta=1e7), _GEMMA, 262144,
    ),
    Model("gpt-oss-20b", (64, 8), 64),
    Model("phi-2", (32, 32), 80, context=2048),
    Model("phi-3-vision-128k-short", (32, 32), 96, context=4096),
    Model("phi-3-vision-128k-long", (32, 32), 96),
    Model("gemma-2-9b", (16, 8), 256, context=8192),
    Model("gemma-3-4b-full", (8, 4), 256, None, _GEMMA),
    Model("gemma-3-4b-sliding", (8, 4), 256, None, _GEMMA),
    Model(
        "gemma-4-26b-full", (16, 2), 512, _hf("gemma4_text", global_head_dim=512, rope_parameters=_GEMMA_4),
        {"eps": 1e-6}, 262144, "full_attention",
    ),
    Model("gpt-j-6b", (16, 16), 256, context=2048),
    Model("gpt-neox-20b", (64, 64), 96, context=2048),
    Model("falcon-7b", (71, 1), 64, context=2048),
    Model("stablelm-2-1.6b", (32, 32), 64, context=4096),
    Model("command-r-v01", (64, 64), 128),
    Model("glm-4-9b-0414", (32, 2), 128, context=32768),
    Model(
        "exaone-4-32b", (40, 8), 128,
        _hf(
            "exaone4", head_dim=128, rope_theta=1e6, max_position_embeddings=131072,
            rope_scaling={**_LLAMA_3, "factor": 16.0, "original_max_position_embeddings": 8192},
        ),
        _LLAMA | {"eps": 1e-5},
    ),
    Model(
        "olmo-2-7b", (32, 32), 128, _hf("olmo2", hidden_size=4096, num_attention_heads=32, rope_theta=5e5), _OLMO,
        4096,
    ),
    Model(
        "minimax-m2", (48, 8), 128, _hf("minimax_m2", head_dim=128, rotary_dim=64, rope_theta=5e6),
        _LLAMA | {"over": "heads"},
    ),
    Model(
        "hunyuan-7b", (32, 8), 128,
        _hf(
            "hunyuan_v1_dense", head_dim=128, rope_theta=1e4, max_position_embeddings=32768,
            rope_scaling={"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
        ),
        _AFTER, 32768,
    ),
    Model("deepseek-v2-lite", (16, 1), 64, places=_MLA),
    Model("deepseek-v3", (128, 1), 64, places=_MLA, halves=True),
    Model("qwen2-vl-7b", (28, 4), 128, context=32768),
    Model("qwen3-vl-8b", (32, 8), 128, None, _LLAMA, 262144),
    Model("qwen2-vl-vision", (16, 16), 80, RopeConfig("vision", 40, sections=(20, 20, 0, 0)), context=256),
    Model("qwen2.5-vl-vision", (16, 16), 80, _hf("qwen2_5_vl_vision", hidden_size=1280, num_heads=16), context=256),
    Model("pixtral", (16, 16), 64, _hf("pixtral", hidden_size=1024, num_attention_heads=16), context=64),
    Model("kimi-k2.5-vision", (16, 16), 72, _hf("kimi_k25_vision", hidden_size=1152, num_attention_heads=16), None, 64),
)  # fmt: skip


@dataclass(frozen=True)
class ModelLine:
    """One model in one type. bf16: in place. f16: q and k are parts of a tensor that has v, too."""

    model: Model
    type: str

    @property
    def label(self) -> str:
        """A text like the notation of the grid."""
        q, k = self.model.heads
        return f"MODEL(name={self.model.name},type={self.type},q={q},k={k},head_dim={self.model.head_dim})"

    def prepare(self, seed: int) -> CallTrial:
        """Draw q, k, positions and the norms' weights, and compute the references."""
        model, rng = self.model, generator(seed, self.label)
        config = model.rope_config().for_head_dim(model.head_dim)
        axes = (config.position_axes,) if config.position_axes > 1 else ()
        positions = rng.integers(0, model.context, (*axes, TOKENS))
        x = [rng.uniform(-2, 2, (1, TOKENS, n, model.head_dim)).astype(DTYPES[self.type]) for n in model.heads]
        places = model.places
        if places is None and self.type == "f16":
            q, k = model.heads
            places = (Place(more_heads=2 * k), Place(more_heads=q + k))
        if model.halves:
            return _put_out_as_halves(x, positions, config, places)
        norms = [_norm(rng, n, model) for n in model.heads]
        both = [
            (reference.rope(a, positions, config), emulate_rope(a, positions, config)) if norm is None
            else (reference.norm_rope(a, positions, config, norm), emulate_norm_rope(a, positions, config, norm))
            for a, norm in zip(x, norms, strict=True)
        ]  # fmt: skip

        def run(x: Sequence[Array], out: Sequence[Array], device: DeviceInfo) -> None:
            api.rope(tuple(x), positions, config, out=tuple(out), device=device, norm=tuple(norms))

        rounded = 4 if model.norm is not None and model.norm.get("rounding") == "each" else 1
        return CallTrial(
            run, x, positions, config, [want for want, _ in both], [right for _, right in both], places=places or (),
            inplace=self.type == "bf16", rounded=rounded,
        )  # fmt: skip


def _norm(rng: np.random.Generator, heads: int, model: Model) -> Norm | None:
    if model.norm is None:
        return None
    count = model.head_dim * (heads if model.norm.get("over") == "heads" else 1)
    weight = rng.uniform(0.5, 1.5, count) - model.norm.get("weight_offset", 0.0)
    return Norm(weight.astype(np.float32), **model.norm)


def _put_out_as_halves(
    x: Sequence[Array], positions: Array, config: RopeConfig, places: Sequence[Place] | None
) -> CallTrial:
    """Return the trial of `clrope.rotate` with another order of the pairs in its output."""
    cos, sin = emulate_cos_sin(positions, config)

    def run(x: Sequence[Array], out: Sequence[Array], device: DeviceInfo) -> None:
        tables.rotate(tuple(x), cos, sin, mode="normal", out=tuple(out), device=device, out_mode="neox")

    def moved(a: Array) -> Array:
        return np.concatenate([a[..., 0::2], a[..., 1::2]], axis=-1)

    want = [moved(reference.rope(a, positions, config)) for a in x]
    right = [moved(emulate_rope(a, positions, config)) for a in x]
    return CallTrial(run, x, positions, config, want, right, places=places or ())


@suite("models")
def models() -> Iterator[ModelLine]:
    """q and k of current models in one call: their head sizes, GQA, scalings, norms, MLA, vision and grids."""
    for model, kind in product(MODELS, ("f32", "f16", "bf16")):
        yield ModelLine(model, kind)
