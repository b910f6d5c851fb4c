"""Positions in every accepted form to one shape: int64 rows per axis, and which row a token of a batch uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from .config import SECTION_MODES, RopeConfig
from .errors import ShapeError, reading, shown, unreadable
from .integers import is_integer
from .layout import LONGEST_AXIS

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PositionRows:
    """Positions ready for a kernel.

    rows:         int64[axes, R]; axes is `RopeConfig.position_axes`; R is S (shared) or B * S.
    batch_stride: 0 if all batches share the S rows, S if batch b uses rows b * S ... b * S + S - 1.
    """

    rows: I64
    batch_stride: int

    @property
    def count(self) -> int:
        """Number of rows, R."""
        return int(self.rows.shape[1])

    def rows_of_batch(self, batch: int) -> list[slice]:
        """Return for each batch the slice of rows it uses."""
        if self.batch_stride == 0:
            return [slice(0, self.count)] * batch
        return [slice(b * self.batch_stride, (b + 1) * self.batch_stride) for b in range(batch)]

    @cached_property
    def beyond_32_bits(self) -> bool:
        """Whether a position is outside ±2**31, where 64-bit steps no longer suffice."""
        return bool(self.rows.size) and (int(self.rows.min()) < -(1 << 31) or int(self.rows.max()) > 1 << 31)


@dataclass(frozen=True, eq=False)
class GivenPositions:
    """Checked positions in the form they came in, which may be far smaller than the rows that they stand for.

    array:    integers of any width. offsets: they are first positions, which `seq` tokens of each batch count up from:
              one for all batches, or [B].
    batch_stride: as in `PositionRows`. axes: how many the rows get.
    """

    array: npt.NDArray[Any]
    offsets: bool
    seq: int
    batch_stride: int
    axes: int

    @property
    def first(self) -> int | None:
        """The position that the tokens of all batches count up from; None if they are not given by one number."""
        return int(self.array[0]) if self.offsets and self.array.size == 1 else None

    @property
    def limits(self) -> tuple[int, int] | None:
        """The least and the greatest position; None if there is none."""
        if self.array.size == 0 or self.seq == 0:
            return None
        return int(self.array.min()), int(self.array.max()) + (self.seq - 1 if self.offsets else 0)

    @property
    def beyond_32_bits(self) -> bool:
        """Whether a position is outside ±2**31, as of `PositionRows`."""
        least, greatest = self.limits or (0, 0)
        return least < -(1 << 31) or greatest > 1 << 31

    def part(self, batches: slice, tokens: slice) -> Any:
        """Return the positions of some batches and tokens in a form that is accepted for them alone."""
        if self.first is not None:
            return self.first + tokens.start
        if self.offsets:  # not [B], which may be as long as the part has tokens
            rows = self.array[batches].astype(np.int64)[:, None] + np.arange(tokens.start, tokens.stop)
            return np.broadcast_to(rows, (self.axes, *rows.shape)) if self.axes > 1 else rows
        return self.array[..., batches, tokens] if self.batch_stride else self.array[..., tokens]

    def rows(self) -> PositionRows:
        """Return the rows, one for each token (of each batch, where batches differ)."""
        rows = self.array.astype(np.int64)
        if self.offsets:
            rows = rows[:, None] + np.arange(self.seq, dtype=np.int64)
        given = rows.shape[0] if self.axes > 1 and not self.offsets and rows.ndim > 1 else 1
        return PositionRows(_axes(rows.reshape(given, -1), self.axes), self.batch_stride)


class Offsets:
    """First positions, one per batch, of any integers: what `offsets` of a call becomes."""

    def __init__(self, offsets: Any) -> None:
        self.array = integers(offsets, "offsets")
        _check_64_bits(self.array, "offsets")


def chosen_positions(positions: Any, offsets: Any, others: str = "or offsets") -> Any:
    """Return the positions of a call that takes either; others: what it takes in place of positions."""
    if offsets is None:
        if positions is None:
            raise ShapeError(f"positions: not given; an int, an array of integers, {others} is needed")
        return positions
    if positions is not None:
        raise ShapeError("offsets: given together with positions, one of the two is needed")
    return Offsets(offsets)


def position_rows(positions: Any, config: RopeConfig, *, batch: int | None, seq: int | None) -> PositionRows:
    """Check and normalise positions for `batch` × `seq` tokens (both None: whatever rows come, for tables).

    Accepted, integers of any of the 8 widths: an int p (p, p+1, ... for every batch); [S]; [B, S] or [1, S]; [B, 1]
    (the first position of each batch), or [B] if B is not S; `Offsets`; in section modes [4, S], [3, S], [4, B, S],
    [3, B, S] with the rows t, h, w (, e) instead of [B, S], also for S = 1; with A axes of a grid [A, S], [A, B, S].
    Positions of one row drive all axes alike. Of three rows in section modes e follows t, so that text rotates in every
    section mode as it does without sections.

    Raises `ShapeError` naming what came and what is allowed.
    """
    return given_positions(positions, config, batch=batch, seq=seq).rows()


def given_positions(positions: Any, config: RopeConfig, *, batch: int | None, seq: int | None) -> GivenPositions:
    """Check positions as `position_rows` does, and make no rows of them."""
    axes = config.position_axes
    #: Numbers of rows, one per axis.
    rows = (3, 4) if config.mode in SECTION_MODES else (axes,) if axes > 1 else ()
    if isinstance(positions, Offsets):
        offsets = positions.array
        if batch is None or seq is None or offsets.shape != (batch,):
            raise ShapeError(f"offsets: got shape {list(offsets.shape)}, one per batch is needed: {[batch]}")
        return _counted(offsets, seq, seq, axes, "offsets")
    array = integers(positions)
    _check_64_bits(array, "positions")
    if batch is None or seq is None:
        batch, seq = 1, _free_length(array, rows)
    if array.ndim == 0:
        return _counted(array.reshape(1), seq, 0, axes)
    if array.ndim == 1:
        if array.shape[0] == seq:
            return GivenPositions(array, False, seq, 0, axes)
        if array.shape[0] == batch:
            return _counted(array, seq, seq, axes)
    elif array.ndim == 2:
        if array.shape[1] == seq and array.shape[0] in (1, *rows):
            return GivenPositions(array, False, seq, 0, axes)
        if array.shape == (batch, seq) and not rows:
            return GivenPositions(array, False, seq, seq, axes)
        if array.shape == (batch, 1):
            return _counted(array[:, 0], seq, seq, axes)
    elif array.ndim == 3 and array.shape[0] in rows and array.shape[2] == seq:
        if array.shape[1] == batch and batch != 1:
            return GivenPositions(array, False, seq, seq, axes)
        if array.shape[1] == 1:
            return GivenPositions(array, False, seq, 0, axes)
    allowed = _allowed(batch, seq, rows)
    raise ShapeError(f"positions: got shape {list(array.shape)}, allowed here are {allowed}")


def with_far_token(x: npt.NDArray[Any], positions: Any, axis: int) -> tuple[npt.NDArray[Any], I64]:
    """Return x and its positions with one more token at the end of an axis, whose position is beyond ±2**31.

    Such a position gives all tokens of a call steps of more bits. So a part of a call that has one elsewhere gets one.
    """
    if isinstance(positions, int):
        positions = np.arange(positions, positions + x.shape[axis])
    rows = np.asarray(positions, np.int64)
    far = np.full((*rows.shape[:-1], 1), 1 << 32, np.int64)
    return np.concatenate([x, np.take(x, [0], axis)], axis), np.concatenate([rows, far], -1)


def packed_positions(cu_seqlens: Any, total: int, offsets: Any = None) -> I64:
    """Return int64[T] positions of sequences packed one after the other.

    cu_seqlens: [n + 1] integers, ascending from 0 to T, as FlashAttention and vLLM use them: sequence j holds tokens
    cu_seqlens[j] ... cu_seqlens[j+1] - 1 and counts from offsets[j] (0 without offsets).
    """
    bounds, start = _packed(cu_seqlens, total, offsets)
    lengths = np.diff(bounds)
    positions = np.arange(total, dtype=np.int64) - np.repeat(bounds[:-1], lengths)
    if start is not None:
        positions += np.repeat(start, lengths)
    return positions


def scaled_positions(coordinates: Any, config: RopeConfig) -> I64:
    """Return coordinates as positions of a configuration, in units of 1 / coordinate_scale.

    coordinates: numbers of any shape. A float is taken if it is the float64 nearest to a whole number of units, of at
    most 2**53; with a coordinate_scale that is a power of two it then is exactly that number.

    Raises `ShapeError` for any other, naming the first.
    """
    scale = config.coordinate_scale
    with reading("coordinates", coordinates):
        given = np.asarray(coordinates)
    if given.dtype.kind in "iu":
        numbers = _wide(given, "coordinates")
        if numbers.size and max(-int(numbers.min()), int(numbers.max())) * scale > np.iinfo(np.int64).max:
            raise ShapeError(f"coordinates: beyond 64-bit integers in units of 1/{scale}")
        return numbers * scale
    if given.dtype.kind != "f":
        raise ShapeError(f"coordinates: got dtype {given.dtype}, real numbers are needed")
    values = given.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        units = np.rint(values * scale)
        wrong = ~((units / scale == values) & (np.abs(units) <= 1 << 53))
    if wrong.any():
        raise ShapeError(f"coordinates: got {float(values[wrong][0])!r}, whole units of 1/{scale} are needed")
    return units.astype(np.int64)


def check_packed(cu_seqlens: Any, total: int, offsets: Any = None) -> None:
    """Check the arguments of `packed_positions`, and make no positions."""
    _packed(cu_seqlens, total, offsets)


def _packed(cu_seqlens: Any, total: int, offsets: Any) -> tuple[I64, I64 | None]:
    """Return bounds and offsets, checked."""
    given: object = total
    with reading("total", total):
        right = is_integer(given) and 0 <= int(total) <= LONGEST_AXIS
    if not right:
        raise ShapeError(f"total: got {shown(total)}, the number of tokens is needed, at most 2**30")
    bounds = _wide(integers(cu_seqlens, "cu_seqlens"), "cu_seqlens")
    if bounds.ndim != 1 or bounds.shape[0] < 2:
        raise ShapeError(f"cu_seqlens: got shape {list(bounds.shape)}, a vector of at least 2 bounds is needed")
    descends = bool((bounds[1:] < bounds[:-1]).any())  # a difference could wrap
    if bounds[0] != 0 or bounds[-1] != total or descends:
        raise ShapeError(
            f"cu_seqlens: must ascend from 0 to the number of tokens {total}, got {bounds[0]} ... {bounds[-1]}"
            + (" with a descent" if descends else "")
        )
    if offsets is None:
        return bounds, None
    lengths = np.diff(bounds)
    start = _wide(integers(offsets, "offsets"), "offsets")
    if start.shape != lengths.shape:
        raise ShapeError(f"offsets: got shape {list(start.shape)}, one per sequence is needed: {list(lengths.shape)}")
    beyond = start > np.iinfo(np.int64).max - np.maximum(lengths - 1, 0)
    if beyond.any():
        j = int(beyond.argmax())
        raise ShapeError(
            f"offsets: got {start[j]} for sequence {j} of {lengths[j]} tokens, which goes beyond 64-bit integers"
        )
    return bounds, start


def integers(positions: Any, name: str = "positions") -> npt.NDArray[Any]:
    """Return an argument as an array of integers; raise `ShapeError` for others, ragged lists and masked arrays."""
    try:
        array = np.asarray(positions)
    except (ValueError, TypeError, OverflowError) as error:  # rows of different lengths, for one
        raise ShapeError(f"{name}: got {type(positions).__name__} that is no array ({error})") from error
    except MemoryError:
        raise
    except Exception as error:
        raise ShapeError(unreadable(name, positions, error)) from error
    with reading(name, positions):
        return _checked_integers(array, positions, name)


def _checked_integers(array: npt.NDArray[Any], positions: Any, name: str) -> npt.NDArray[Any]:
    if isinstance(positions, np.ma.MaskedArray):
        raise ShapeError(f"{name}: got a masked array, whose mask would be ignored; allowed are arrays of integers")
    if array.size and hasattr(positions, "data_ptr") and not positions.data_ptr():
        # NumPy makes memory of its own for what `torch.func.functionalize` wraps.
        raise ShapeError(f"{name}: the tensor has no memory of its own; it stands for another one while torch traces")
    if array.size == 0 and array.dtype == np.float64 and not isinstance(positions, np.ndarray):
        array = array.astype(np.int64)  # an empty list has no dtype of its own
    if array.dtype.kind in "fO" and isinstance(positions, (Integral, list, tuple)):
        _refuse_beyond_64_bits(np.asarray(positions, object), name)
    if array.dtype.kind not in "iu":
        raise ShapeError(
            f"{name}: got dtype {array.dtype}, allowed are the integer dtypes int8 ... int64, uint8 ... uint64"
        )
    if isinstance(positions, (list, tuple)) and _holds_bool(positions):
        raise ShapeError(f"{name}: got a bool in a list, allowed are integers")
    return array


def _holds_bool(values: Sequence[Any]) -> bool:
    """Whether a bool is in a list, or in lists in it: NumPy takes True for 1 among integers."""
    return any(
        _holds_bool(value) if isinstance(value, (list, tuple)) else isinstance(value, (bool, np.bool_))
        for value in values
    )


def _refuse_beyond_64_bits(numbers: npt.NDArray[Any], name: str) -> None:
    """Raise `ShapeError` for integers that NumPy made floats or objects of, because they are too large."""
    for number in numbers.flat:
        if isinstance(number, Integral) and not -(1 << 63) <= int(number) < 1 << 63:
            raise ShapeError(f"{name}: got {shown(int(number))}, allowed are -2**63 ... 2**63 - 1")


def _wide(array: npt.NDArray[Any], name: str) -> I64:
    _check_64_bits(array, name)
    return array.astype(np.int64)


def _check_64_bits(array: npt.NDArray[Any], name: str) -> None:
    wide = array.dtype.kind == "u" and array.dtype.itemsize == 8  # in either byte order
    if wide and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise ShapeError(f"{name}: got {int(array.max())}, allowed are -2**63 ... 2**63 - 1")


def _counted(
    offsets: npt.NDArray[Any], seq: int, batch_stride: int, axes: int, name: str = "positions"
) -> GivenPositions:
    if offsets.size and int(offsets.max()) + seq - 1 > np.iinfo(np.int64).max:
        raise ShapeError(f"{name}: offset {int(offsets.max())} with {seq} tokens goes beyond 64-bit integers")
    return GivenPositions(offsets, True, seq, batch_stride, axes)


def _axes(rows: I64, axes: int) -> I64:
    if rows.shape[0] == 1 < axes:
        rows = np.repeat(rows, axes, axis=0)
    elif rows.shape[0] < axes:  # three of a section mode
        rows = np.concatenate([rows, rows[:1]])
    return np.ascontiguousarray(rows)


def _free_length(array: npt.NDArray[Any], rows: tuple[int, ...]) -> int:
    if array.ndim == 0:
        return 1
    if array.ndim == 1 or (array.ndim == 2 and rows and array.shape[0] in (1, *rows)):
        if array.shape[-1] > LONGEST_AXIS:
            raise ShapeError(f"positions: got shape {list(array.shape)}, an axis has at most 2**30 elements")
        return int(array.shape[-1])
    raise ShapeError(
        f"positions: got shape {list(array.shape)}, allowed here are an int, [R]" + "".join(f", [{n}, R]" for n in rows)
    )


def _allowed(batch: int, seq: int, rows: tuple[int, ...]) -> str:
    forms = ["an int", f"[{seq}]"]
    if rows:
        forms += [f"[{n}, {seq}]" for n in reversed(rows)] + [f"[{n}, {batch}, {seq}]" for n in reversed(rows)]
    else:
        forms += [f"[{batch}, {seq}]"]
    if batch != seq:
        forms += [f"[{batch}] (an offset per batch)"]
    if seq != 1:
        forms += [f"[{batch}, 1] (an offset per batch)"]
    return ", ".join(dict.fromkeys(forms))
