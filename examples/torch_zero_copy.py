"""torch CPU tensors without a copy: a bfloat16 q is rotated in its own memory, and a view of a fused qkv in place."""

import numpy as np
import torch

import clrope

TOKENS, HEADS, KV_HEADS, HEAD_DIM = 32, 8, 2, 64
config = clrope.RopeConfig("neox", n_dims=HEAD_DIM, freq_base=5e5)
positions = torch.arange(100, 100 + TOKENS)
torch.manual_seed(0)


def as_float32(tensor: torch.Tensor) -> np.ndarray:
    """Widen for the reference, which is exact for every bfloat16 value."""
    return tensor.to(torch.float32).numpy()


def check(name: str, got: torch.Tensor, want: np.ndarray) -> None:
    """Print how far a bfloat16 result is from the float64 reference, which bfloat16 itself rounds by 1e-6."""
    result = clrope.compare(as_float32(got), want)
    print(f"{name}: NMSE {result.nmse:.3g}")
    assert result.nmse < 1e-5


q = torch.rand(1, TOKENS, HEADS, HEAD_DIM, dtype=torch.bfloat16)  # [batch, sequence, heads, head_dim]
want = clrope.reference.rope(as_float32(q), positions.numpy(), config)
address = q.data_ptr()
result = clrope.rope(q, positions, config, out=q)
assert result is q
assert q.data_ptr() == address
check("q in place", q, want)

# Heads of q and k inside one tensor [sequence, q k v heads, head_dim]: strided views, the values stay as they are.
qkv = torch.rand(TOKENS, HEADS + 2 * KV_HEADS, HEAD_DIM, dtype=torch.bfloat16)
q_view, k_view, v_view = qkv.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
want_q, want_k = (clrope.reference.rope(as_float32(x), positions.numpy(), config) for x in (q_view, k_view))
v_before = v_view.clone()
clrope.rope((q_view, k_view), positions, config, out=(q_view, k_view))
check("q of a fused qkv", qkv[:, :HEADS], want_q)
check("k of a fused qkv", qkv[:, HEADS : HEADS + KV_HEADS], want_k)
assert torch.equal(v_view, v_before)
