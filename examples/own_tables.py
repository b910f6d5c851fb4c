"""Your own tables of cos and sin: `rotate` picks a row per position; here the tables of dynamic NTK scaling.

The tables are computed in float64 and rounded once to float32.
"""

import numpy as np

import clrope

HEADS, HEAD_DIM, MAX_POSITION, ORIGINAL = 8, 64, 4096, 2048
base = 1e4 * (MAX_POSITION / ORIGINAL * 2 - 1) ** (HEAD_DIM / (HEAD_DIM - 2))
angles = np.outer(np.arange(MAX_POSITION), base ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM))  # [positions, pairs]
cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

rng = np.random.default_rng(0)
x = rng.uniform(-1, 1, (2, 16, HEADS, HEAD_DIM)).astype(np.float32)  # [batch, sequence, heads, head_dim]
positions = rng.integers(0, MAX_POSITION, (2, 16))  # each token has its own

for mode in ("neox", "normal"):
    got = clrope.rotate(x, cos, sin, positions, mode=mode)
    config = clrope.RopeConfig(mode, n_dims=HEAD_DIM, freq_base=base)
    result = clrope.compare(got, clrope.reference.rope(x, positions, config))
    print(f"{mode}, tables [{MAX_POSITION}, {HEAD_DIM // 2}]: NMSE {result.nmse:.3g}")
    assert result.nmse < 1e-12

# One row per token, and twice as many columns, as models of transformers hand them out.
rows = np.tile(cos[100:116], 2), np.tile(sin[100:116], 2)
got = clrope.rotate(x, *rows, mode="neox")
config = clrope.RopeConfig("neox", n_dims=HEAD_DIM, freq_base=base)
result = clrope.compare(got, clrope.reference.rope(x, 100, config))
print(f"neox, a row per token, both halves: NMSE {result.nmse:.3g}")
assert result.nmse < 1e-12
