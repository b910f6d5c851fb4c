"""`permute_qk`: the rows of q and k projections in the order that the other pairing needs."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .arguments import integer
from .config import parse_mode
from .errors import ConfigError, ShapeError, reading

_PAIRINGS = ("normal", "neox")


def permute_qk(weight: Any, n_heads: int, source: str | int, target: str | int, *, n_dims: int | None = None) -> Any:
    """Return the weight of a q or k projection with the rows of each head in the order of another pairing.

    A model whose q and k projections are both permuted gives the same attention scores with RoPE in mode `target` as
    it gave before in mode `source`. The values and the output projection stay as they are.

    weight:  NumPy array or torch tensor [n_heads * head_dim, ...]: a weight [rows, hidden], or a bias [rows].
    n_heads: heads of this weight; for k under grouped-query attention the number of key heads.
    source:  the mode that the weight is for, 'normal' or 'neox'.
    target:  the mode that it shall be for.
    n_dims:  rotated elements of a head, from its first one on. None: the whole head.

    Returns a new array of the same kind, dtype and shape. Raises `ConfigError`, and `ShapeError` for a weight whose
    rows are no multiple of n_heads.
    """
    modes = {name: parse_mode(mode) for name, mode in (("source", source), ("target", target))}
    for name, mode in modes.items():
        if mode not in _PAIRINGS:
            raise ConfigError(f"{name}: got {mode!r}, allowed are 'normal', 'neox'; the section modes pair as 'neox'")
    if not _is_array(weight):
        raise ShapeError(f"weight: got {type(weight).__name__}, allowed are NumPy arrays and torch tensors")
    if isinstance(weight, np.matrix):
        raise ShapeError("weight: got matrix, which has two axes always; pass np.asarray(weight)")
    heads = integer("n_heads", n_heads, 1)
    if weight.ndim < 1 or weight.shape[0] == 0 or weight.shape[0] % heads:
        raise ShapeError(
            f"weight: got shape {list(weight.shape)}, the first axis must be a multiple of n_heads {heads}"
        )
    head_dim = weight.shape[0] // heads
    rotated = head_dim if n_dims is None else integer("n_dims", n_dims, 1)
    if rotated % 2 or rotated > head_dim:
        raise ConfigError(f"n_dims: got {rotated}, an even number up to head_dim = {head_dim} is needed")
    order = list(range(head_dim))
    if modes["source"] != modes["target"]:
        pairs = np.arange(rotated).reshape((-1, 2) if modes["source"] == "normal" else (2, -1))
        order[:rotated] = pairs.T.ravel().tolist()
    with reading("weight", weight):  # torch does not reshape sparse tensors
        return weight.reshape(heads, head_dim, *weight.shape[1:])[:, order].reshape(weight.shape)


def _is_array(weight: object) -> bool:
    torch = sys.modules.get("torch")
    return isinstance(weight, np.ndarray) or (torch is not None and isinstance(weight, torch.Tensor))
