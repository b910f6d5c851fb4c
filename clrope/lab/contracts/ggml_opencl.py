"""The contract `ggml-opencl`: llama.cpp's `ggml/src/ggml-opencl/kernels/rope.cl` as it is, as its host code calls it.

Arguments, offsets and work-group sizes as `ggml_cl_rope` gives them: one work-group for each head, token and batch, of
at most 64 work-items; without freq_factors src2 is src0 again.
"""

from ..contract import Contract

_NE = {
    f"ne{tensor}{k}": name for tensor in ("0", "") for k, name in enumerate(("head_dim", "heads", "tokens", "batch"))
}
_NB = {
    f"nb{tensor}{k}": f"{side}_{axis} * itemsize"
    for tensor, side in (("0", "x"), ("", "y"))
    for k, axis in enumerate(("element", "head", "token", "batch"))
}
_SAME = ("freq_base", "freq_scale", "ext_factor", "attn_factor", "beta_fast", "beta_slow", "n_ctx_orig", "sections")

CONTRACT = Contract(
    "ggml-opencl",
    "llama.cpp's rope.cl: norm, neox, multi and vision, in f32 and f16",
    {
        "src0": "x", "offset0": "x_offset_bytes", "src1": "positions", "offset1": "0",
        "src2": "freq_factors if has_factors else x", "offset2": "0 if has_factors else x_offset_bytes",
        "dst": "y", "offsetd": "y_offset_bytes", **_NE, **_NB, "n_past": "0", "n_dims": "config_n_dims",
        "n_offs": "n_offs", "is_imrope": "1 if mode == 40 else 0", **{name: name for name in _SAME},
    },
    function="kernel_rope_{ggml_kind}_{dtype}",
    global_size=("heads * min(64, head_dim)", "tokens", "batch"),
    local_size=("min(64, head_dim)", "1", "1"),
    requires=(
        ("dtype == 'f32' or dtype == 'f16'", "storage types other than f32 and f16"),
        ("row_stride == 0 or batch == 1", "positions of each batch's own"),
        ("x_element == 1 and y_element == 1", "elements of a head that are not contiguous"),
        ("forward == 1", "the inverse rotation"),
    ),
    own_words=False,
    shared_rows=True,
    checks_types=False,
)  # fmt: skip
