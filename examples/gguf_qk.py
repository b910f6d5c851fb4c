"""q and k of the first layer of a GGUF model: `gguf_qk.py model.gguf`; without a path, of a tiny model made here."""

import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np

import clrope


def tiny_model(path: Path) -> Path:
    """Write a Llama of one layer: 4 heads, 2 of them for k, of 32 elements, with the frequency factors of Llama 3."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(32)
    writer.add_rope_freq_base(5e5)
    writer.add_tensor("rope_freqs.weight", np.linspace(1, 8, 16, dtype=np.float32))
    for name, heads in (("q", 4), ("k", 2)):
        writer.add_tensor(f"blk.0.attn_{name}.weight", rng.normal(0, 0.1, (heads * 32, 128)).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


with tempfile.TemporaryDirectory() as folder:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else tiny_model(Path(folder) / "tiny.gguf")
    config = clrope.RopeConfig.from_gguf(path)  # the pairing follows from the architecture
    file = gguf.GGUFReader(path)
    stored = {tensor.name: tensor for tensor in file.tensors if tensor.name.startswith("blk.0.attn_")}
    q_weight, k_weight = (
        gguf.dequantize(stored[f"blk.0.attn_{name}.weight"].data, stored[f"blk.0.attn_{name}.weight"].tensor_type)
        for name in ("q", "k")
    )
    heads = next(int(f.parts[-1][0]) for name, f in file.fields.items() if name.endswith(".attention.head_count"))

head_dim = q_weight.shape[0] // heads
print(config)
states = np.random.default_rng(1).normal(size=(24, q_weight.shape[1])).astype(np.float32)  # [sequence, embedding]
q, k = ((states @ weight.T).reshape(len(states), -1, head_dim) for weight in (q_weight, k_weight))
positions = np.arange(len(states))
for name, got, x in zip("qk", clrope.rope((q, k), positions, config), (q, k), strict=True):
    result = clrope.compare(got, clrope.reference.rope(x, positions, config))
    print(f"{name} {list(x.shape)}: NMSE {result.nmse:.3g}")
    assert result.nmse < 1e-12
