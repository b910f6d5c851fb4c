"""RoPE of Dask arrays: one rotation a chunk, made lazily, with the bits of `clrope.rope` on the whole array.

The peer is `dask.array` (https://docs.dask.org/en/stable/array.html). Chunks may divide b, s and n in any way; d is
whole. Needs the extra `dask`.
"""

from __future__ import annotations

import itertools
import math
import warnings
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..api import config_of
from ..api import rope as rope_whole
from ..arrays import check_forward
from ..config import RopeConfig
from ..errors import ConfigError, ShapeError, shown
from ..layout import dtype_name, parse_layout
from ..positions import Offsets, chosen_positions, given_positions, integers, packed_positions, with_far_token

I64 = npt.NDArray[np.int64]
#: Positions within ± this are rotated by steps of 64 bits.
LIMIT = 1 << 31
_MOST = int(np.iinfo(np.int64).max)


def rope(
    x: Any,
    positions: Any = None,
    config: RopeConfig | None = None,
    forward: bool = True,
    layout: str = "bsnd",
    device: str | None = None,
    *,
    cu_seqlens: Any = None,
    offsets: Any = None,
    rechunk: bool = False,
    **fields: Any,
) -> Any:
    """Return the Dask array of x rotated by its positions, of x's shape, dtype and chunks; nothing is computed yet.

    x:         a `dask.array.Array` of rank 4 or 3 (no batch) in the order of `layout`, chunked in any way along b, s, n
               and not along d; its blocks are NumPy arrays of a float type in `layout.DTYPES`.
    positions: as for `clrope.rope`, of the whole x: an int, [S], [B, S], [B, 1] or [B]; in section modes also [3, S],
               [4, S], [3, B, S], [4, B, S]; integers, or a Dask array of integers. Each chunk gets its part.
    config, fields, forward, layout, cu_seqlens, offsets: as for `clrope.rope`.
    device:    the name of a device in each process that computes. None: its CLROPE_DEVICE, PYOPENCL_CTX, or its fastest
               healthy device.
    rechunk:   True makes d whole where it is divided, and says so by a `dask.array.core.PerformanceWarning`.

    Raises `ConfigError`, `ShapeError` here; the processes that compute raise `DeviceError` and `BuildError`, and what
    depends on the values of positions that are a Dask array.
    """
    da = _dask_array()
    if not isinstance(x, da.Array):
        raise ShapeError(f"x: got {type(x).__name__}, a dask.array.Array is needed (q and k by a call each)")
    dtype_name(x.dtype)
    letters = parse_layout(layout, x.ndim)
    if _unknown(x.shape):
        raise ShapeError(f"x: got chunks of unknown lengths, shape {list(x.shape)}; call x.compute_chunk_sizes() first")
    if not isinstance(rechunk, bool):
        raise ConfigError(f"rechunk: got {shown(rechunk)} of type {type(rechunk).__name__}, True or False is needed")
    x = _whole_heads(x, letters, rechunk)
    if config is None:
        config = config_of(fields)
    elif fields:
        raise ConfigError(f"config: given together with {', '.join(sorted(fields))}; use dataclasses.replace")
    elif not isinstance(config, RopeConfig):
        raise ConfigError(f"config: got {type(config).__name__}, a RopeConfig is needed")
    forward = check_forward(forward)
    if not (device is None or isinstance(device, str)):
        raise ConfigError(f"device: got {type(device).__name__}, a name is needed, which each process looks up")
    lengths = dict(zip(letters, x.shape, strict=True))
    batch, seq, head_dim = lengths.get("b", 1), lengths["s"], lengths["d"]
    if any(isinstance(given, da.Array) for given in (cu_seqlens, offsets)):
        raise ShapeError("cu_seqlens, offsets: got a Dask array, whose values are needed now; call its compute()")
    if cu_seqlens is not None:
        if positions is not None:
            raise ShapeError("positions: given together with cu_seqlens, which makes them")
        if batch != 1:
            raise ShapeError(f"cu_seqlens: got x of {batch} batches, packed sequences need 1")
        positions = packed_positions(cu_seqlens, seq, offsets)
    else:
        positions = chosen_positions(positions, offsets, "offsets, or cu_seqlens")
    known = config.for_head_dim(head_dim) if head_dim else config
    given, axes = _given(positions, known, batch, seq, da)
    more = 0 if "s" in axes else seq - 1
    if isinstance(given, da.Array):
        wide: Any = da.reduction(given, partial(_wide_block, more=more), np.any, dtype=np.bool_)
    else:
        wide = _wide(given, more)
    chunks = dict(zip(letters, x.chunks, strict=True))
    starts = np.array([0, *itertools.accumulate(chunks["s"])][:-1], np.int64)
    if isinstance(given, da.Array):
        given = given.rechunk({k: chunks.get(axis, -1) for k, axis in enumerate(axes)})
    else:
        given = da.from_array(given, chunks=tuple(chunks.get(axis, -1) for axis in axes))
    return da.blockwise(
        _rotate_block, letters, x, letters, given, axes, da.from_array(starts, chunks=1), "s",
        wide, "" if isinstance(wide, da.Array) else None,
        config=config, forward=forward, layout=letters, device=device, counted="s" not in axes,
        dtype=x.dtype, meta=x._meta, align_arrays=False, concatenate=True, name=None, token="clrope-rope",
    )  # fmt: skip


def _rotate_block(
    x: Any, positions: Any, start: Any, wide: Any, *, config: RopeConfig, forward: bool, layout: str,
    device: str | None, counted: bool,
) -> Any:  # fmt: skip
    """Rotate one chunk.

    counted: positions are of the first token of the whole array, and count up from there to this chunk. wide: whether
    some of the whole array's positions are beyond ±2**31.
    """
    if 0 in x.shape:
        return x
    if isinstance(x, np.ndarray) and not x.flags.aligned:
        x = x.copy()  # it was sent, and begins anywhere in a message
    axis = layout.index("s")
    tokens = x.shape[axis]
    if counted:
        positions = _from_first(np.asarray(positions), int(start[0]), tokens, config.position_axes)
    if not wide or _wide(positions, tokens - 1 if isinstance(positions, int) else 0):
        return rope_whole(x, positions, config, forward, layout=layout, device=device)
    more, positions = with_far_token(x, positions, axis)
    rotated = rope_whole(more, positions, config, forward, layout=layout, device=device)
    return np.take(rotated, range(tokens), axis)


def _wide(positions: Any, more: int) -> bool:
    """Return whether positions, or those `more` after them, are beyond ±2**31."""
    if isinstance(positions, int):
        return positions < -LIMIT or positions + more > LIMIT
    return bool(positions.size) and (int(positions.min()) < -LIMIT or int(positions.max()) + more > LIMIT)


def _wide_block(positions: npt.NDArray[Any], axis: Any, keepdims: bool, more: int) -> npt.NDArray[np.bool_]:
    """Do so for one chunk of a reduction; some have no element."""
    return np.full([1] * positions.ndim, _wide(positions, more))


def _from_first(first: npt.NDArray[Any], start: int, tokens: int, axes: int) -> int | I64:
    """Return the positions of a chunk's tokens: an int, or [B, S] ([axes, B, S]) where the batches differ."""
    _check_end(first, start + tokens)
    if first.ndim == 0:
        return int(first) + start
    rows: I64 = first.astype(np.int64)[:, None] + np.arange(start, start + tokens, dtype=np.int64)
    # One row for each batch, whose number may be that of the tokens.
    return np.broadcast_to(rows, (axes, *rows.shape)) if axes > 1 else rows


def _check_end(first: npt.NDArray[Any], tokens: int) -> None:
    if first.size and int(first.max()) + max(0, tokens - 1) > _MOST:
        raise ShapeError(f"positions: offset {int(first.max())} with {tokens} tokens goes beyond 64-bit integers")


def _given(positions: Any, config: RopeConfig, batch: int, seq: int, da: Any) -> tuple[Any, str]:
    """Return positions as an array with a letter for each axis: b, s, or r for the rows of section modes.

    Without an s they are of the first token. Values are checked, if there are any yet.
    """
    if isinstance(positions, Offsets):
        return given_positions(positions, config, batch=batch, seq=seq).array, "b"
    lazy = isinstance(positions, da.Array)
    array = positions if lazy else integers(positions)
    if array.ndim == 0 and array.dtype.kind in "iu":
        if not lazy:
            _check_end(array, seq)
        return array, ""
    shape = tuple(array.shape)
    if lazy and _unknown(shape):
        raise ShapeError("positions: got chunks of unknown lengths; call positions.compute_chunk_sizes() first")
    # Of a lazy array only the form can be checked.
    given = given_positions(
        np.broadcast_to(np.zeros((), array.dtype), shape) if lazy else positions, config, batch=batch, seq=seq
    )
    if given.offsets:
        return array if array.ndim == 1 else array[:, 0], "b"
    if array.ndim == 1:
        return array, "s"
    if array.ndim == 3:
        return (array[:, 0], "rs") if shape[1] == 1 else (array, "rbs")
    if shape[0] == 1:
        return array[0], "s"
    return array, "rs" if config.uses_sections else "bs"


def _unknown(shape: tuple[float, ...]) -> bool:
    return any(math.isnan(length) for length in shape)


def _whole_heads(x: Any, letters: str, rechunk: bool) -> Any:
    import dask.array.core

    axis = letters.index("d")
    cut = x.chunks[axis]
    if len(cut) == 1:
        return x
    if not rechunk:
        raise ShapeError(
            f"x: got chunks {list(cut)} along d, a head has to be in one chunk; call x.rechunk({{{axis}: -1}}), or "
            "give rechunk=True"
        )
    warnings.warn(
        f"x: rechunked along d from {list(cut)} to [{x.shape[axis]}]; chunks of one head are brought to one worker",
        dask.array.core.PerformanceWarning,
        stacklevel=3,
    )
    return x.rechunk({axis: -1})


def _dask_array() -> Any:
    try:
        import dask.array
    except ImportError as error:
        raise ConfigError("dask: the package is needed, `pip install 'clrope[dask]'`") from error
    return dask.array
