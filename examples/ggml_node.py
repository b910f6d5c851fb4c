"""Reproduce a rope node of a ggml graph from its `op_params`, sixteen int32 as a debugger shows them.

The node's sources are a tensor `a` (ne, nb), int32 positions `b`, and frequency factors `c` or nothing.
"""

import numpy as np

import clrope
from clrope.interop import ggml

# NEOX, n_dims 64, YaRN from 4096 tokens by factor 4; floats are stored as their bits.
OP_PARAMS = [
    0, 64, 2, 0, 4096, 0x461C4000, 0x3E800000, 0x3F800000, 0x3F800000, 0x42000000, 0x3F800000, 0, 0, 0, 0, 0,
]  # fmt: skip
params = ggml.OpParams.decode(OP_PARAMS)
print(params)

# src[0]: ne = [80, 4, 6], a view with nb[2] of five heads: every fifth head belongs to another tensor.
memory = np.random.default_rng(0).uniform(-1, 1, 80 * 5 * 6).astype(np.float32)
a = ggml.Tensor(memory, "f32", ne=[80, 4, 6], nb=[4, 320, 1600])
b = np.array([5, 6, 7, 1000, 1001, 8191], np.int32)
before = memory.copy()

config = params.config(angles="ggml")  # ggml's float32 angles; the default angles are exact
want = clrope.reference.rope(a.array(), b, config)
got = ggml.rope_ext(
    a, b, None, params.n_dims, params.mode, params.n_ctx_orig, params.freq_base, params.freq_scale,
    params.ext_factor, params.attn_factor, params.beta_fast, params.beta_slow, angles="ggml",
)  # fmt: skip
result = clrope.compare(got.array(), want)
print(f"rope_ext on ne = {got.ne}: NMSE {result.nmse:.3g}")
assert result.nmse < 1e-12

assert (clrope.rope(a.array(), b, config) == got.array()).all()  # the same by the configuration
assert (memory == before).all()
assert params.encode().tolist() == OP_PARAMS
