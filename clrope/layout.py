"""`TensorView`: where the elements of a tensor are, without the data; BSND ↔ ggml's ne/nb. Knows nothing of RoPE.

A tensor of heads has four axes: b (batch), s (sequence), n (heads), d (elements of a head). A layout is an order of
those letters; rank 3 tensors have no b. ggml writes axes fastest first: a C-order `[B, S, N, D]` array *is* ggml's
`ne = [D, N, S, B]`, and `nb` are the byte strides in that order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, cast

import ml_dtypes
import numpy as np
import numpy.typing as npt

from .arguments import sequence
from .errors import ShapeError, reading, shown
from .integers import is_integer

Shape4 = tuple[int, int, int, int]

#: Storage types by their short names (ggml's), and their NumPy dtypes.
DTYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f8e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
#: NumPy has no more; for sequences that do not end.
_MOST_AXES = 64


def dtype_name(dtype: Any, argument: str = "x") -> str:
    """Return the short name in `DTYPES`; raise `ShapeError` for any other dtype or byte order."""
    name = _NAMES.get(dtype) if isinstance(dtype, np.dtype) else _NAMES.get(np.dtype(dtype))
    if name is None:
        raise ShapeError(
            f"{argument}: got dtype {np.dtype(dtype)}, allowed are {', '.join(map(str, _NAMES))} in native byte order"
        )
    return name


def parse_layout(layout: str, rank: int, argument: str = "x") -> str:
    """Return the layout as `rank` letters; `layout` is any order of b, s, n, d (without b for rank 3).

    h (heads) stands for n. A four-letter layout is taken for a rank 3 tensor by dropping its b.
    """
    if type(layout) is str and layout == "bsnd" and rank in (3, 4):
        return layout[4 - rank :]
    if rank not in (3, 4):
        raise ShapeError(f"{argument}: got rank {rank}, allowed are 3 [S, N, D] and 4 [B, S, N, D]")
    letters = layout.lower().replace("h", "n") if isinstance(layout, str) else ""
    if sorted(letters) not in (sorted("bsnd"), sorted("snd")):
        raise ShapeError(f"layout: got {shown(layout)}, allowed is any order of the letters b, s, n, d (h for n)")
    if rank == 3:
        return letters.replace("b", "")
    if len(letters) == 3:
        raise ShapeError(f"layout: got {layout!r} for a rank 4 {argument}, the letter b is missing")
    return letters


def canonical(array: npt.NDArray[Any], layout: str = "bsnd") -> npt.NDArray[Any]:
    """Return a NumPy view of `array` with the axes in the order b, s, n, d (b of length 1 for rank 3); no copy."""
    letters = parse_layout(layout, array.ndim)
    if array.ndim == 3:
        array, letters = array[None], "b" + letters
    return array.transpose([letters.index(c) for c in "bsnd"])


@dataclass(frozen=True)
class TensorView:
    """Shape, strides, offset and storage type of a tensor in the order b, s, n, d.

    shape:   (B, S, N, D).
    strides: in elements, in the same order; any sign.
    offset:  in elements, from the start of the buffer to element [0, 0, 0, 0].
    dtype:   a short name in `DTYPES`.
    """

    shape: Shape4
    strides: Shape4
    offset: int
    dtype: str

    @classmethod
    def of_array(cls, array: Any, layout: str = "bsnd", offset: int = 0, argument: str = "x") -> TensorView:
        """Describe a NumPy array (or anything with shape, strides in bytes and dtype), its first element at `offset`.

        Raises `ShapeError` for a wrong rank, dtype, layout, or strides that are no multiple of the element size.
        """
        name = dtype_name(array.dtype, argument)
        letters = parse_layout(layout, len(array.shape), argument)
        return _view(tuple(array.shape), tuple(array.strides), offset, name, letters, argument)

    @classmethod
    def dense(cls, shape: Sequence[int], dtype: str, layout: str = "bsnd") -> TensorView:
        """Return the C-order tensor of `shape` (in the order of `layout`); raises as `from_ggml` does."""
        _check_dtype(dtype)
        shape = [_whole("shape", length, 0) for length in sequence("shape", shape, _MOST_AXES, ShapeError)]
        letters = parse_layout(layout, len(shape))
        _check_bytes("shape", math.prod(shape), dtype)
        steps: dict[str, int] = {"b": 0}
        extent: dict[str, int] = {"b": 1}
        step = 1
        for letter, length in zip(reversed(letters), reversed(list(shape)), strict=True):
            steps[letter], extent[letter] = step, length
            step *= length
        return cls(_by_axis(extent), _by_axis(steps), 0, dtype)

    @classmethod
    def from_ggml(cls, ne: Sequence[int], nb: Sequence[int], dtype: str, view_offs: int = 0) -> TensorView:
        """Describe a ggml tensor: `ne` = [D, N, S, B] lengths, `nb` byte strides in the same order, byte offset.

        Raises `ShapeError` for another number of axes than 1 to 4, numbers that are no integers, negative lengths or
        offsets, a stride or an offset that is no multiple of the element, and what 64-bit byte addresses do not reach.
        """
        _check_dtype(dtype)
        lengths, strides = ([_whole(name, n, least) for n in sequence(name, given, _MOST_AXES, ShapeError)]
                            for name, given, least in (("ne", ne, 0), ("nb", nb, None)))  # fmt: skip
        if len(lengths) != len(strides) or not 1 <= len(lengths) <= 4:
            raise ShapeError(
                f"ne, nb: got {len(lengths)} and {len(strides)} numbers, allowed are 1 to 4, as many of each"
            )
        item = DTYPES[dtype].itemsize
        start = _whole("view_offs", view_offs, 0)
        if any(n % item for n in strides) or start % item:
            raise ShapeError(
                f"nb: got {shown(strides)} at offset {shown(start)}, multiples of the element size {item} are needed"
            )
        steps = [n // item for n in strides]
        lengths += [1] * (4 - len(lengths))
        while len(steps) < 4:
            steps.append(steps[-1] * lengths[len(steps) - 1])
        view = cls(cast(Shape4, tuple(lengths[::-1])), cast(Shape4, tuple(steps[::-1])), start // item, dtype)
        _check_bytes("ne, nb", max(view.size, *map(abs, view.span), *map(abs, steps)), dtype)
        return view

    def to_ggml(self) -> tuple[list[int], list[int], int]:
        """Return (ne, nb, view_offs): lengths and byte strides in ggml's order [D, N, S, B], and the byte offset."""
        item = self.itemsize
        return list(self.shape[::-1]), [step * item for step in self.strides[::-1]], self.offset * item

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPES[self.dtype].itemsize

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        b, s, n, d = self.shape
        return b * s * n * d

    @property
    def nbytes(self) -> int:
        """Bytes of all elements together (not of the span)."""
        return self.size * self.itemsize

    @cached_property
    def span(self) -> tuple[int, int]:
        """Half-open range of the elements of the buffer that the tensor touches; (offset, offset) if it is empty."""
        if self.size == 0:
            return self.offset, self.offset
        reach = [step * (length - 1) for step, length in zip(self.strides, self.shape, strict=True)]
        return self.offset + sum(min(0, r) for r in reach), self.offset + sum(max(0, r) for r in reach) + 1

    def same_places(self, other: TensorView) -> bool:
        """Whether two views with equal origins have their elements in the same places, of the same type and order."""
        steps = zip(self.shape, self.strides, other.strides, strict=True)
        return (self.shape, self.dtype) == (other.shape, other.dtype) and all(n == 1 or a == b for n, a, b in steps)

    @property
    def last_axis_dense(self) -> bool:
        """Whether the elements of a head are contiguous."""
        return self.strides[3] == 1 or self.shape[3] == 1

    @cached_property
    def overlaps_itself(self) -> bool:
        """Whether two elements share a place (as in a broadcast array)."""
        axes = sorted((abs(step), length) for step, length in zip(self.strides, self.shape, strict=True) if length > 1)
        reach = 0
        nested = True
        for step, length in axes:
            nested = nested and step > reach
            reach += step * (length - 1)
        if nested or self.size == 0:
            return False
        if self.size > reach + 1:
            return True
        index = np.zeros(1, dtype=np.int64)
        for step, length in axes:
            index = (index[:, None] + np.arange(length, dtype=np.int64) * step).ravel()
        if reach > 16 * self.size:  # a table of all places would be larger than the tensor
            return np.unique(index).size < self.size
        places = np.zeros(reach + 1, dtype=bool)
        places[index] = True
        return int(np.count_nonzero(places)) < self.size

    def part(self, b: slice, s: slice) -> TensorView:
        """Return the view of some batches and tokens; slices with step 1."""
        b0, b1, _ = b.indices(self.shape[0])
        s0, s1, _ = s.indices(self.shape[1])
        if (b0, b1, s0, s1) == (0, self.shape[0], 0, self.shape[1]):
            return self
        return replace(
            self,
            shape=(b1 - b0, s1 - s0, *self.shape[2:]),
            offset=self.offset + b0 * self.strides[0] + s0 * self.strides[1],
        )

    def moved(self, elements: int) -> TensorView:
        """Return the same view with the offset moved by so many elements."""
        return TensorView(self.shape, self.strides, self.offset + elements, self.dtype) if elements else self


#: Kernels count tokens and heads in 32 bits, some of them a few beyond the end.
LONGEST_AXIS = 1 << 30


@lru_cache(maxsize=1024)
def _view(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, dtype: str, letters: str, argument: str
) -> TensorView:
    """Return the view of an array; the same object while it is remembered, with what it has found out of itself."""
    item = DTYPES[dtype].itemsize
    if any(step % item for step in strides):
        raise ShapeError(f"{argument}: byte strides {list(strides)} are no multiples of the element size {item}")
    lengths = {"b": 1} | dict(zip(letters, map(int, shape), strict=True))
    if max(lengths.values()) > LONGEST_AXIS:
        raise ShapeError(f"{argument}: got shape {list(shape)}, an axis has at most 2**30 elements")
    steps = {"b": 0} | dict(zip(letters, (int(step) // item for step in strides), strict=True))
    return TensorView(_by_axis(lengths), _by_axis(steps), int(offset), dtype)


def _by_axis(values: dict[str, int]) -> Shape4:
    return values["b"], values["s"], values["n"], values["d"]


def _check_dtype(dtype: str) -> None:
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ShapeError(f"dtype: got {shown(dtype)}, allowed are {', '.join(DTYPES)}")


def _whole(name: str, value: Any, least: int | None = None) -> int:
    if not is_integer(value):
        raise ShapeError(f"{name}: got {shown(value)} of type {type(value).__name__}, an integer is needed")
    with reading(name, value):
        number = int(value)
    if least is not None and number < least:
        raise ShapeError(f"{name}: got {shown(number)}, at least {least} is needed")
    return number


def _check_bytes(name: str, elements: int, dtype: str) -> None:
    if elements * DTYPES[dtype].itemsize >= 1 << 63:
        raise ShapeError(f"{name}: {shown(elements)} elements of {dtype} are beyond 64-bit byte addresses")
