"""vLLM's operator `rotary_embedding`: q and k rotated in place by a cache of cos and sin, in one launch.

Arguments, shapes and rounding are those of `csrc/pos_encoding_kernels.cu` in vLLM: float32 arithmetic, rounded once.
Unlike there, a position outside the cache is an error and not a read out of bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import integer
from ..arrays import is_torch
from ..errors import ConfigError, ShapeError, renamed, shown
from ..positions import integers
from ..tables import rotate


def rotary_embedding(
    positions: Any,
    query: Any,
    key: Any,
    head_size: int,
    cos_sin_cache: Any,
    is_neox: bool,
    rope_dim_offset: int = 0,
    inverse: bool = False,
    *,
    device: Any = None,
) -> None:
    """Rotate query and key in place.

    positions:     [num_tokens] or [batch, seq] integers (vLLM: int64), 0 <= position < max_position.
    query, key:    as many leading axes as positions, then [heads * head_size] or [heads, head_size]; NumPy arrays or
                   torch CPU tensors of one type, any of `clrope.rope` (vLLM: float32, float16, bfloat16). Any strides,
                   so slices of one qkv tensor, too. key may be None and have another number of heads.
    head_size:     elements of a head.
    cos_sin_cache: [max_position, rot_dim], cos in the first half of the columns and sin in the second, rot_dim even;
                   float32, float16 or bfloat16, whatever query is.
    is_neox:       True pairs the elements (i, i + rot_dim / 2), False (2i, 2i + 1).
    rope_dim_offset: even; where the rotated elements of a head begin. Those outside of rot_dim stay as they are.
    inverse:       True rotates back: sin gets the other sign.
    device:        as for `clrope.rope`.

    Raises `ShapeError`, `ConfigError`, `DeviceError`, `BuildError` before anything is written.
    """
    for name, value in (("is_neox", is_neox), ("inverse", inverse)):
        if not isinstance(value, (bool, np.bool_)):
            raise ConfigError(f"{name}: got {shown(value)} of type {type(value).__name__}, True or False is needed")
    head_size = integer("head_size", head_size, 2)
    rows = positions if type(positions) is np.ndarray else integers(positions)
    if rows.ndim not in (1, 2):
        raise ShapeError(f"positions: got shape {list(rows.shape)}, [num_tokens] or [batch, seq] is needed")
    heads = [_heads("query", query, rows.shape, head_size)]
    if key is not None:
        heads.append(_heads("key", key, rows.shape, head_size))
        if key.dtype != query.dtype:
            raise ShapeError(f"key: got dtype {key.dtype}, query has {query.dtype}")
    shape = _checked("cos_sin_cache", cos_sin_cache).shape
    if len(shape) != 2 or shape[1] % 2 or not 0 < shape[1] <= head_size:
        raise ShapeError(
            f"cos_sin_cache: got shape {list(shape)}, [max_position, rot_dim] is needed, rot_dim even and at most "
            f"head_size {head_size}"
        )
    pairs = shape[1] // 2
    with renamed(_NAMES):
        rotate(
            heads, cos_sin_cache[:, :pairs], cos_sin_cache[:, pairs:], rows, "neox" if is_neox else "normal", heads,
            "bsnd", device, n_dims=2 * pairs, n_offs=rope_dim_offset, forward=not inverse,
        )  # fmt: skip


#: Arguments of `rotate` by this operator's names.
_NAMES = {
    "x": "query, key", "out": "query, key", "cos": "cos_sin_cache", "sin": "cos_sin_cache", "n_dims": "rot_dim",
    "n_offs": "rope_dim_offset",
}  # fmt: skip


def _checked(name: str, x: Any) -> Any:
    if not (isinstance(x, np.ndarray) or is_torch(x)):
        raise ShapeError(f"{name}: got {type(x).__name__}, a NumPy array or a torch CPU tensor is needed")
    return x


def _heads(name: str, x: Any, tokens: tuple[int, ...], head_size: int) -> Any:
    """Return a view [*tokens, heads, head_size] of query or key."""
    shape, axes = tuple(_checked(name, x).shape), len(tokens)
    if shape[:axes] == tokens:
        if len(shape) == axes + 2 and shape[-1] == head_size:
            return x
        if len(shape) == axes + 1 and shape[-1] % head_size == 0:
            return x.reshape(*tokens, shape[-1] // head_size, head_size)  # to cut an axis in two takes no copy
    wanted = ", ".join(map(str, tokens))
    raise ShapeError(
        f"{name}: got shape {list(shape)}, [{wanted}, heads * {head_size}] or [{wanted}, heads, {head_size}] is needed"
    )
