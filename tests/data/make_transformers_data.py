"""Run small random models of transformers and keep what their own rotary code was given and made of it.

    python tests/data/make_transformers_data.py

Writes `transformers_*.safetensors` next to this file. Needs torch and transformers; the tests that
read the files do not.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

HERE = Path(__file__).parent
SHARED = {"vocab_size": 97, "num_hidden_layers": 1, "intermediate_size": 32, "hidden_size": 96}


def main() -> None:
    transformers.logging.set_verbosity_error()
    heads = {"num_attention_heads": 3, "num_key_value_heads": 1}
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    make("llama", "llama", "LlamaModel", {**SHARED, **heads, "head_dim": 64}, tokens(0, 700))
    make("llama_f16", "llama", "LlamaModel", {**SHARED, **heads, "head_dim": 64}, tokens(0, 700), torch.float16)
    make(
        "llama3",
        "llama",
        "LlamaModel",
        {
            **SHARED,
            **heads,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rope_parameters": {**llama3, "rope_theta": 500000.0, "original_max_position_embeddings": 8192},
        },
        tokens(0, 100_000),
    )
    make(
        "qwen2_yarn",
        "qwen2",
        "Qwen2Model",
        {
            **SHARED,
            **heads,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1000000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32768,
            },
        },
        tokens(0, 120_000),
    )
    make(
        "gpt_neox",
        "gpt_neox",
        "GPTNeoXModel",
        {
            **SHARED,
            "num_attention_heads": 3,
            "hidden_size": 192,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        },
        tokens(0, 2000),
    )
    gptj = {"vocab_size": 97, "n_embd": 192, "n_head": 3, "n_layer": 1, "n_inner": 32, "rotary_dim": 32}
    make("gptj", "gptj", "GPTJModel", {**gptj, "n_positions": 2048}, tokens(0, 2000))
    cohere = {**SHARED, "num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 192}
    cohere["rope_parameters"] = {"rope_type": "default", "rope_theta": 8000000.0}
    make("cohere_bf16", "cohere", "CohereModel", cohere, tokens(0, 5000), torch.bfloat16)
    mrope = {"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [8, 12, 12]}
    vl = {**SHARED, **heads, "hidden_size": 192, "rope_parameters": mrope}
    make("qwen2_vl", "qwen2_vl", "Qwen2VLTextModel", vl, three_rows(40, 900))
    imrope = {"rope_type": "default", "rope_theta": 5000000.0, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
    vl = {**SHARED, **heads, "head_dim": 128, "rope_parameters": imrope}
    make("qwen3_vl", "qwen3_vl", "Qwen3VLTextModel", vl, three_rows(40, 200_000))


def tokens(first: int, second: int) -> torch.Tensor:
    """Positions [2, 10]: one batch counts from `first`, the other from `second`."""
    return torch.tensor([[first], [second]]) + torch.arange(10)


def three_rows(first: int, second: int) -> torch.Tensor:
    """Positions [3, 2, 10] (t, h, w): an image of 2 × 5 patches each, so that the rows differ."""
    step = torch.arange(10)
    rows = torch.stack([torch.zeros_like(step), step // 5, step % 5])
    return rows[:, None, :] + torch.tensor([[first], [second]])[None]


def make(
    name: str,
    package: str,
    model_name: str,
    options: dict[str, object],
    positions: torch.Tensor,
    dtype: torch.dtype = torch.float32,
) -> None:
    torch.manual_seed(7)
    module = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
    model_class = getattr(module, model_name)
    config = model_class.config_class(**options)
    config._attn_implementation = "eager"
    # As from_pretrained does: `.to(dtype)` would round the frequencies as well, which no real model does.
    torch.set_default_dtype(dtype)
    model = model_class(config).eval()
    torch.set_default_dtype(torch.float32)
    inputs = torch.randint(0, 97, (2, 10))
    capture = capture_gptj if package == "gptj" else capture_function
    with capture(module, model) as seen, torch.no_grad():
        model(input_ids=inputs, position_ids=positions, use_cache=False)
    content = {key: value.contiguous().clone() for key, value in seen.items()}
    content["positions"] = positions.contiguous().clone()
    metadata = {
        "layout": "bsnd",
        "model": model_name,
        "config": json.dumps(config.to_dict(), sort_keys=True, default=str),
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    path = HERE / f"transformers_{name}.safetensors"
    save_file(content, path, metadata)
    path.chmod(0o644)
    print(path.name, path.stat().st_size, {key: list(value.shape) for key, value in content.items()}, dtype)


@contextlib.contextmanager
def capture_function(module: object, model: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """The model's `apply_rotary_pos_emb(q, k, cos, sin, …)`, which takes and gives [B, N, S, D]."""
    seen: dict[str, torch.Tensor] = {}
    real = module.apply_rotary_pos_emb

    def wrapped(q: torch.Tensor, k: torch.Tensor, *args: object, **kwargs: object) -> tuple[torch.Tensor, ...]:
        seen.update(q=q.transpose(1, 2).clone(), k=k.transpose(1, 2).clone())
        q_rot, k_rot = real(q, k, *args, **kwargs)
        seen.update(q_rot=q_rot.transpose(1, 2).clone(), k_rot=k_rot.transpose(1, 2).clone())
        return q_rot, k_rot

    module.apply_rotary_pos_emb = wrapped
    try:
        yield seen
    finally:
        module.apply_rotary_pos_emb = real


@contextlib.contextmanager
def capture_gptj(module: object, model: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """GPT-J cuts the rotated part out before the call, so take the projections and what attention receives."""
    seen: dict[str, torch.Tensor] = {}
    attention = model.h[0].attn
    real = attention._attn

    def projection(key: str) -> object:
        def hook(layer: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
            seen[key] = output.reshape(*output.shape[:2], attention.num_attention_heads, attention.head_dim).clone()

        return hook

    def wrapped(query: torch.Tensor, key: torch.Tensor, *args: object, **kwargs: object) -> object:
        seen.update(q_rot=query.transpose(1, 2).clone(), k_rot=key.transpose(1, 2).clone())
        return real(query, key, *args, **kwargs)

    handles = [attention.q_proj.register_forward_hook(projection("q"))]
    handles.append(attention.k_proj.register_forward_hook(projection("k")))
    attention._attn = wrapped
    try:
        yield seen
    finally:
        del attention._attn
        for handle in handles:
            handle.remove()


if __name__ == "__main__":
    main()
