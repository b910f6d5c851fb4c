"""A decode loop: the prompt is rotated at once, then one token a step, as q and k of an attention layer.

A step gives its position as an int, so it uploads nothing and makes no table of cos and sin.
"""

import numpy as np

import clrope

PROMPT, STEPS, HEADS, KV_HEADS, HEAD_DIM = 64, 16, 32, 8, 128
config = clrope.RopeConfig.preset("llama-3.1-8b")
rng = np.random.default_rng(0)
total = PROMPT + STEPS
q = rng.uniform(-1, 1, (1, total, HEADS, HEAD_DIM)).astype(np.float16)  # [batch, sequence, heads, head_dim]
k = rng.uniform(-1, 1, (1, total, KV_HEADS, HEAD_DIM)).astype(np.float16)

rope = clrope.Rope(config)  # on CLROPE_DEVICE, or the fastest healthy device
rotated_q = np.empty_like(q)
k_cache = np.empty_like(k)

rotated_q[:, :PROMPT], k_cache[:, :PROMPT] = rope((q[:, :PROMPT], k[:, :PROMPT]), 0)  # positions 0, 1, ...

# One plan serves all steps: it reads the same two arrays again, at another position.
step_q, step_k = q[:, :1].copy(), k[:, :1].copy()
plan = rope.plan((step_q, step_k), PROMPT)
for position in range(PROMPT, total):
    step_q[:], step_k[:] = q[:, position : position + 1], k[:, position : position + 1]  # what the layer computes
    rotated_q[:, position : position + 1], k_cache[:, position : position + 1] = plan.run(positions=position)

print(f"device: {rope.device}")
for name, got, x in (("q", rotated_q, q), ("k", k_cache, k)):
    result = clrope.compare(got, clrope.reference.rope(x, np.arange(total), config))
    print(f"{name}: {PROMPT} tokens at once, {STEPS} one by one: NMSE {result.nmse:.3g}")
    assert result.nmse < 1e-7
