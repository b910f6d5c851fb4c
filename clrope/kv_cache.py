"""`RowCache` and `PagedCache`: where keys and values of tokens are kept, as checked descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from .arrays import Operand, operand, operands_overlap
from .errors import ConfigError, ShapeError, renamed, shown
from .layout import DTYPES
from .positions import integers

#: Storage types of caches, and of tensors that are written to them.
CACHE_DTYPES = ("f32", "f16", "bf16")


@dataclass(frozen=True, eq=False)
class RowCache:
    """Keys and values, one row for each token: that of token t is row `rows[t]`.

    k_rows, v_rows: [total_rows, kv_heads, head_dim] of float32, float16 or bfloat16, with any strides: NumPy or OpenCL
                    arrays or torch CPU tensors, which calls write into. v_rows may have another head_dim and type; None
                    for a cache of keys alone.
    rows:           integers in host memory, one per token: [S], or [B, S]; one below 0 skips its token. No row may come
                    twice.

    Checked by the call that it is given to, not here.
    """

    k_rows: Any
    v_rows: Any
    rows: Any


@dataclass(frozen=True, eq=False)
class PagedCache:
    """Keys and values in pages: those of token t are in page `slots[t] // page_size`, row `slots[t] % page_size` of it.

    k_pages, v_pages: [pages, page_size, kv_heads, head_dim] with layout "NHD", [pages, kv_heads, page_size, head_dim]
                      with "HND"; otherwise as of `RowCache`.
    slots:            integers as `rows` of `RowCache`.
    """

    k_pages: Any
    v_pages: Any
    slots: Any
    layout: Literal["NHD", "HND"] = "NHD"


class CacheArrays(NamedTuple):
    """The arrays of a cache as views (pages, page_size, kv_heads, head_dim)."""

    k: Operand
    v: Operand | None

    @property
    def sides(self) -> list[Operand]:
        """Keys, and values if there are any."""
        return [self.k] if self.v is None else [self.k, self.v]


def checked_slots(name: str, given: Any, tokens: tuple[int, int], capacity: int) -> npt.NDArray[np.int64]:
    """Return slots as int64[B * S]; raises `ShapeError` for a wrong shape, one outside the cache, and one twice."""
    plain = type(given) is np.ndarray and given.dtype.kind == "i"
    array = given if plain else integers(given, name)
    if array.shape != tokens and (tokens[0] != 1 or array.shape != tokens[1:]):
        wanted = f"{list(tokens)}" + (f" or {list(tokens[1:])}" if tokens[0] == 1 else "")
        raise ShapeError(f"{name}: got shape {list(array.shape)}, {wanted} is needed: one per token")
    if array.size and array.max() >= capacity:
        raise ShapeError(f"{name}: got {int(array.max())}, the cache has rows 0 ... {capacity - 1}")
    slots = array.astype(np.int64).reshape(-1)
    if slots.size > 1:
        ordered = np.sort(slots[slots >= 0])
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if twice.size:
            raise ShapeError(f"{name}: got {int(twice[0])} twice, each row may be written once")
    return slots


def names_of(cache: Any) -> tuple[str, str, str, str]:
    """Return (keys, values, slots, letters of the axes) of a cache; raises `ConfigError` for anything else."""
    if isinstance(cache, RowCache):
        return "k_rows", "v_rows", "rows", "snd"
    if not isinstance(cache, PagedCache):
        raise ConfigError(f"cache: got {type(cache).__name__}, a clrope.RowCache or clrope.PagedCache is needed")
    if not isinstance(cache.layout, str) or cache.layout not in ("NHD", "HND"):
        raise ConfigError(f"layout: got {shown(cache.layout)}, allowed are 'NHD', 'HND'")
    return "k_pages", "v_pages", "slots", "bsnd" if cache.layout == "NHD" else "bnsd"


def arrays_of(cache: Any) -> CacheArrays:
    """Return the checked arrays of a cache; raises `ConfigError`, `ShapeError`."""
    k_name, v_name, _, letters = names_of(cache)
    k = _checked(getattr(cache, k_name), k_name, letters)
    given = getattr(cache, v_name)
    v = None if given is None else _checked(given, v_name, letters)
    if v is not None:
        if v.view.shape[:3] != k.view.shape[:3]:
            raise ShapeError(f"{v_name}: got shape {list(given.shape)}, {k_name} has {list(k.original.shape)}")
        if (v.kind == "opencl") != (k.kind == "opencl"):
            raise ShapeError(f"{v_name}: {v_name} and {k_name} must both be OpenCL arrays or both in host memory")
        if operands_overlap(k, v):
            raise ShapeError(f"{v_name}: shares memory with {k_name}")
    return CacheArrays(k, v)


def _checked(given: Any, name: str, letters: str) -> Operand:
    with renamed({"layout": name}):
        side = operand(given, letters, name, writable=True)
    if side.view.dtype not in CACHE_DTYPES:
        allowed = ", ".join(str(DTYPES[d]) for d in CACHE_DTYPES)
        raise ShapeError(f"{name}: got dtype {DTYPES[side.view.dtype]}, allowed are {allowed}")
    if side.view.overlaps_itself:
        raise ShapeError(f"{name}: elements share memory, each needs a place of its own")
    return side


def write_rows(side: npt.NDArray[Any], slots: npt.NDArray[np.int64], rows: npt.NDArray[Any]) -> None:
    """Put rows [tokens, heads, head_dim] into host memory (pages, page_size, heads, head_dim), rounded to nearest even.

    What `move_rows.cl` does; those of slots below 0 are skipped.
    """
    kept = slots >= 0
    pages, within = np.divmod(slots[kept], side.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        side[pages, within] = rows[kept].astype(side.dtype)


def read_rows(side: npt.NDArray[Any], slots: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return the rows of slots, which are not below 0, of a cache in host memory."""
    pages, within = np.divmod(slots, side.shape[1])
    return side[pages, within]


def check_operands(inputs: Sequence[Operand], arrays: CacheArrays) -> None:
    """Raise `ShapeError` for q, k, v that cannot be written to a cache: types, sides, heads, memory that overlaps."""
    names = ("q", "k", "v")
    if len(inputs) - 1 != len(arrays.sides):
        what = "None, the cache has values" if arrays.v else "an array, the cache has keys alone"
        raise ShapeError(f"v: got {what}")
    for name, o in zip(names, inputs, strict=False):
        if o.view.dtype != inputs[0].view.dtype or o.view.dtype not in CACHE_DTYPES:
            allowed = ", ".join(str(DTYPES[d]) for d in CACHE_DTYPES)
            raise ShapeError(f"{name}: got dtype {DTYPES[o.view.dtype]}, q, k and v need the same one of {allowed}")
        if (o.kind == "opencl") != (arrays.k.kind == "opencl"):
            raise ShapeError(f"{name}: {name} and the cache must both be OpenCL arrays or both in host memory")
    for name, o, side in zip(names[1:], inputs[1:], arrays.sides, strict=False):
        if o.view.shape[2:] != side.view.shape[2:]:
            raise ShapeError(
                f"{name}: got {o.view.shape[2]} heads of {o.view.shape[3]} elements, the cache has "
                f"{side.view.shape[2]} of {side.view.shape[3]}"
            )
    for name, o in zip(names, inputs, strict=False):
        if any(operands_overlap(o, side) for side in arrays.sides):
            raise ShapeError(f"{name}: shares memory with the cache")
