"""The function `rope`, for one call."""

from __future__ import annotations

from typing import Any

from .arrays import operand
from .config import RopeConfig
from .errors import ConfigError, ShapeError
from .mode import modes_text
from .operation import Rope
from .positions import check_packed, chosen_positions, packed_positions


def rope(
    x: Any,
    positions: Any = None,
    config: RopeConfig | None = None,
    forward: bool = True,
    out: Any = None,
    layout: str = "bsnd",
    device: Any = None,
    *,
    cu_seqlens: Any = None,
    offsets: Any = None,
    wait_for: Any = None,
    norm: Any = None,
    **fields: Any,
) -> Any:
    """Rotate x by its positions on an OpenCL device and return an array of the same kind, shape and dtype.

    x:         a float type in `layout.DTYPES`; rank 4 or 3 (no batch) in the order of `layout`; a
               NumPy array or view with any strides, a `pyopencl.array.Array`, a torch CPU tensor, or anything with the
               buffer protocol or DLPack on the CPU, whose results are NumPy arrays; or a tuple of such arrays (q, k)
               that share positions.
    positions: an int (the position of the first token), [S], [1, S], [B, S], [B, 1] (the first position of each batch);
               in section modes [3, S], [4, S], [3, B, S], [4, B, S] instead of [B, S]; any integer dtype. [B] is as
               [B, 1], but where B is S, it is [S]: give `offsets` instead.
    config:    a `RopeConfig`; or its fields as keywords (mode="neox", n_dims=128, freq_base=5e5, ...).
    forward:   False applies the transpose: the sign of sin flipped.
    out:       where to put the result: None for a new array, x itself to rotate in place, or an array of the same
               shape and dtype that does not overlap x.
    layout:    the order of x's axes, any order of the letters b, s, n, d (h for n).
    device:    what `clrope.device` takes. None: CLROPE_DEVICE, PYOPENCL_CTX, or the fastest healthy one. OpenCL arrays
               stay on their own queue; their results carry events, and nothing waits for them here.
    offsets:   [B], the first position of each batch, instead of positions.
    cu_seqlens: [n + 1] bounds of sequences packed along s (x of rank 3, or one batch), instead of positions: each
               counts from 0, or from its number in `offsets` [n].
    wait_for:  events to wait for first.
    norm:      a `clrope.Norm` before or after the rotation, in the same launch; for a tuple x a tuple with one for each
               array, None for none. Forward only.

    Raises `ConfigError`, `ShapeError`, `DeviceError`, `BuildError` (all `RopeError`) before anything is launched.
    """
    if config is None:
        config = config_of(fields)
    elif fields:
        raise ConfigError(f"config: given together with {', '.join(sorted(fields))}; use dataclasses.replace")
    if cu_seqlens is not None:
        positions = _packed(x, positions, layout, cu_seqlens, offsets)
    elif positions is None or offsets is not None:
        positions = chosen_positions(positions, offsets, "offsets, or cu_seqlens")
    return Rope(config, device)(x, positions, forward, out, layout, wait_for=wait_for, norm=norm)


def _packed(x: Any, positions: Any, layout: str, cu_seqlens: Any, offsets: Any) -> Any:
    if positions is not None:
        raise ShapeError("positions: given together with cu_seqlens, which makes them")
    views = [operand(a, layout).view for a in (x if isinstance(x, (tuple, list)) else [x])]
    if not views:
        raise ShapeError("x: got no arrays")
    if any(view.shape[0] != 1 for view in views):
        raise ShapeError(f"cu_seqlens: got x of {views[0].shape[0]} batches, packed sequences need 1")
    if not any(view.size for view in views):
        check_packed(cu_seqlens, views[0].shape[1], offsets)
        return 0  # positions may take gigabytes where the tensor takes nothing
    return packed_positions(cu_seqlens, views[0].shape[1], offsets)


def config_of(fields: dict[str, Any]) -> RopeConfig:
    """Return the configuration of `rope`'s keywords; `ConfigError` without a mode, or for an unknown field."""
    import dataclasses

    if "mode" not in fields:
        raise ConfigError(
            f"mode: not given, allowed are {modes_text()}; it has no default, since no error shows a wrong one"
        )
    names = [f.name for f in dataclasses.fields(RopeConfig)]
    unknown = sorted(set(fields) - set(names))
    if unknown:
        raise ConfigError(f"{unknown[0]}: no such field, known are {', '.join(names)}")
    return RopeConfig(**fields)
