"""The contract `cos-sin-tables`: kernels that take finished tables, under the names that such kernels use.

As in InfiniOp (t_out, t_in, pos_ids, sin_table, cos_table, strides with _seqlen and _nhead) and NNTrainer (in, out,
freqs_cos, freqs_sin, dim, half_, from).
"""

from ..contract import Contract

_ALIASES = {
    "x": "in input src src0 t_in x_ data_in query",
    "y": "out output dst t_out y_ data_out",
    "xy": "inout data qk t",
    "cos_table": "cos cosine cos_ cos_cache freqs_cos t_cos cos_tab",
    "sin_table": "sin sine sin_ sin_cache freqs_sin t_sin sin_tab",
    "batch": "batches batch_size bsz b B",
    "tokens": "seq_len seqlen seq height rows_per_batch s S T_len",
    "heads": "nhead num_heads n_heads channel n N H",
    "head_dim": "dhead dim head_size d D width",
    "pairs": "half_ half_dim table_dim half_dims rotary_half",
    "n_dims": "rotary_dim rot_dim rope_dim",
    "x_batch": "x_stride_batch", "x_token": "x_stride_seqlen x_stride_token", "x_head": "x_stride_nhead x_stride_head",
    "y_batch": "y_stride_batch", "y_token": "y_stride_seqlen y_stride_token", "y_head": "y_stride_nhead y_stride_head",
    "neox": "is_neox use_neox",
    "row_numbers": "pos_ids position_ids pos",
}  # fmt: skip

CONTRACT = Contract(
    "cos-sin-tables",
    "kernels that read finished tables of cos and sin, one row for each token of each batch, in order or by pos_ids",
    {alias: meaning for meaning, names in _ALIASES.items() for alias in names.split()},
)
