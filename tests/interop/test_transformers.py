"""The rotary code of transformers, run live, against the same by clrope from the model's own configuration."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", minversion="5.0")
    transformers.logging.set_verbosity_error()

import clrope
from clrope.interop.torch import RoPE

# What transformers and torch warn of among themselves is not ours.
pytestmark = pytest.mark.filterwarnings("ignore")

SMALL: dict[str, Any] = {
    "vocab_size": 31, "num_hidden_layers": 2, "intermediate_size": 32, "hidden_size": 96, "pad_token_id": 0,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 131072,
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 5e5,
          "original_max_position_embeddings": 8192}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 4096,
        "short_factor": [1.0 + i / 64 for i in range(32)], "long_factor": [1.0 + i for i in range(32)]}  # fmt: skip
#: Name: model type, prefix of its classes, what its configuration sets on top, length for from_hf.
MODELS: dict[str, tuple[str, str, dict[str, Any], int | None]] = {
    "llama": ("llama", "Llama", {}, None),
    "llama3": ("llama", "Llama", {"rope_parameters": LLAMA3}, None),
    "mistral": ("mistral", "Mistral", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, None),
    "qwen3-yarn": ("qwen3", "Qwen3", {"rope_parameters": YARN}, None),
    "phi3-longrope": ("phi3", "Phi3", {"rope_parameters": LONG, "head_dim": None, "hidden_size": 256}, 100_000),
    "gpt_neox-partial": (
        "gpt_neox",
        "GPTNeoX",
        {
            "hidden_size": 256,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
        },
        None,
    ),
    "cohere": ("cohere", "Cohere", {"hidden_size": 256, "head_dim": None}, None),
    "glm": ("glm", "Glm", {}, None),
    "qwen3_vl": (
        "qwen3_vl",
        "Qwen3VLText",
        {
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 5e6, "mrope_section": [12, 10, 10], "mrope_interleaved": True,
            },
        },
        None,
    ),
}  # fmt: skip
#: Models that pair neighbours, and those whose cos and sin repeat each value instead of being two equal halves.
NEIGHBOURS, REPEATED = {"cohere", "glm"}, {"cohere"}


@pytest.fixture
def chosen(device, monkeypatch):
    monkeypatch.setenv("CLROPE_DEVICE", device.index)
    torch.use_deterministic_algorithms(True)  # torch.empty gives NaN: what no kernel wrote is seen
    yield device
    torch.use_deterministic_algorithms(False)


def real_parts(name: str) -> tuple[Any, Any, Any]:
    """Return (module, configuration, rotary embedding) of transformers."""
    package, prefix, options, _ = MODELS[name]
    module = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
    rotary = getattr(module, f"{prefix}RotaryEmbedding")
    names = {"GPTNeoX": "GPTNeoXConfig", "Qwen3VLText": "Qwen3VLTextConfig"}
    config_class = getattr(transformers, names.get(prefix, f"{prefix}Config"), None) or getattr(
        module, f"{prefix}Config"
    )
    given = {k: v for k, v in {**SMALL, **options}.items() if v is not None}
    config = config_class(**given)
    return module, config, rotary(config)


@pytest.mark.parametrize("name", MODELS)
def test_rotation_from_the_models_own_configuration(chosen, rng, name):
    module, config, rotary = real_parts(name)
    sections = "vl" in name
    batch, seq = 2, 12
    length = MODELS[name][3]
    ours = clrope.RopeConfig.from_hf(config.to_dict(), seq_len=length)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    generator = torch.Generator().manual_seed(int(rng.integers(1 << 62)))
    for high in (500, 100_000):
        shape = (3, batch, seq) if sections else (batch, seq)
        positions = torch.from_numpy(rng.integers(0, high, shape))
        # longrope chooses its factors by the longest position of a call.
        if length is not None:
            positions[0, 0] = length - 1
        q = torch.randn(batch, 4, seq, head_dim, generator=generator)
        k = torch.randn(batch, 2, seq, head_dim, generator=generator)
        cos, sin = rotary(q, positions)
        real = module.apply_rotary_pos_emb(q, k, cos, sin)
        got = clrope.rope((q, k), positions.numpy(), ours, layout="bnsd")
        # transformers multiplies position and frequency in float32, so that its angles are off by about p * 1e-7.
        bound = 1e-12 + (1.5e-7 * float(positions.max())) ** 2
        for a, b in zip(got, real, strict=True):
            nmse = float(((a.double() - b.double()) ** 2).sum() / (b.double() ** 2).sum())
            assert nmse <= bound, f"{name}, positions below {high}: NMSE {nmse:.3g}, {bound:.3g} is allowed"
        # By the tables of transformers itself there is no such difference: the same bits.
        pairs = cos.shape[-1] // 2
        half = slice(None, None, 2) if name in REPEATED else slice(None, pairs)
        adapter = RoPE(dims=2 * pairs, interleaved=name in NEIGHBOURS)
        for x, b in zip((q, k), real, strict=True):
            assert torch.equal(adapter(x, cos[:, None, :, half], sin[:, None, :, half]), b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_a_whole_model_trains_the_same(chosen, rng, monkeypatch, dtype):
    """The loss and every gradient of a Llama with clrope's rotation in place of its own."""
    module, config, _ = real_parts("llama3")
    torch.manual_seed(int(rng.integers(1 << 31)))
    model = module.LlamaForCausalLM(config).to(dtype).train()
    tokens = torch.randint(0, 31, (2, 16))

    def run():
        model.zero_grad()
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        return float(loss), {name: p.grad.clone() for name, p in model.named_parameters()}

    loss, gradients = run()
    calls = []

    def apply(q, k, cos, sin, unsqueeze_dim=1):
        calls.append(q.shape)
        half = cos.shape[-1] // 2
        tables = [t[..., :half].unsqueeze(unsqueeze_dim) for t in (cos, sin)]
        return RoPE()(q, *tables), RoPE()(k, *tables)

    monkeypatch.setattr(module, "apply_rotary_pos_emb", apply)
    our_loss, our_gradients = run()
    assert len(calls) == config.num_hidden_layers
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    assert abs(our_loss - loss) <= tolerance * abs(loss)
    for name, want in gradients.items():
        got = our_gradients[name]
        assert (got - want).norm() <= tolerance * want.norm(), name
