"""The functions: `rope` for one call, with the operation behind it kept for the next."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from .config import RopeConfig
from .errors import ConfigError
from .operation import Rope

_OPS_KEPT = 64
_ops: OrderedDict[tuple[Any, ...], Rope] = OrderedDict()
_lock = threading.Lock()


def rope(
    x: Any,
    positions: Any,
    config: RopeConfig | None = None,
    forward: bool = True,
    out: Any = None,
    layout: str = "bsnd",
    device: Any = None,
    *,
    wait_for: Any = None,
    **fields: Any,
) -> Any:
    """Rotate x by its positions on an OpenCL device and return an array of the same kind, shape and dtype.

    x:         float16, bfloat16 (ml_dtypes), float32 or float64; rank 4 or 3 (no batch) in the order of `layout`; a
               NumPy array or view with any strides, a `pyopencl.array.Array`, a torch CPU tensor, or anything with the
               buffer protocol; or a tuple of such arrays (q, k) that share positions.
    positions: an int (offset of the first token), [S], [B, S], [B] offsets; in section modes also [3, S], [4, S],
               [3, B, S], [4, B, S]; any integer dtype.
    config:    a `RopeConfig`; or its fields as keywords (mode="neox", n_dims=128, freq_base=5e5, ...).
    forward:   False applies the transpose: the sign of sin flipped.
    out:       where to put the result: None for a new array, x itself to rotate in place, or an array of the same
               shape and dtype that does not overlap x.
    layout:    the order of x's axes, any order of the letters b, s, n, d.
    device:    what `clrope.device` takes. None: CLROPE_DEVICE, PYOPENCL_CTX, or the fastest healthy one. OpenCL arrays
               stay on their own queue; their results carry events, and nothing waits for them here.
    wait_for:  events to wait for first.

    Raises `ConfigError`, `ShapeError`, `DeviceError`, `BuildError` (all `RopeError`) before anything is launched.
    """
    if config is None:
        if "mode" not in fields:
            raise ConfigError("mode: not given; it has no default because a wrong pairing gives fluent garbage")
        config = RopeConfig(**_known(fields))
    elif fields:
        raise ConfigError(f"config: given together with {', '.join(sorted(fields))}; use dataclasses.replace")
    return operation(config, device)(x, positions, forward, out, layout, wait_for=wait_for)


def operation(config: RopeConfig, device: Any = None) -> Rope:
    """Return the `Rope` of a configuration and device, the same one while it is among the last used."""
    if not isinstance(config, RopeConfig):
        raise ConfigError(f"config: got {type(config).__name__}, a RopeConfig is needed")
    if not (device is None or isinstance(device, str)):
        return Rope(config, device)
    import os

    key = (config, device, os.environ.get("CLROPE_DEVICE"), os.environ.get("PYOPENCL_CTX"))
    with _lock:
        op = _ops.get(key)
        if op is None:
            op = _ops[key] = Rope(config, "auto" if device is None else device)
        _ops.move_to_end(key)
        while len(_ops) > _OPS_KEPT:
            _ops.popitem(last=False)
        return op


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    import dataclasses

    names = [f.name for f in dataclasses.fields(RopeConfig)]
    unknown = sorted(set(fields) - set(names))
    if unknown:
        raise ConfigError(f"{unknown[0]}: no such field, known are {', '.join(names)}")
    return fields
