"""The two tensors as rows of tokens, each with its position, whatever their layout and batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..arrays import operand
from ..config import RopeConfig
from ..errors import ShapeError
from ..layout import canonical, dtype_name
from ..positions import position_rows
from ..regions import Box, Mask

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

#: Rows and heads that the search reads; its answers are checked on all of them.
SAMPLE_ROWS, SAMPLE_HEADS = 48, 16
#: Squares of float64 values under- and overflow, and the search has thresholds: it gets values up to 2**±32.
_ORDINARY_EXPONENT = 32
_CHUNK_ELEMENTS = 1 << 22


@dataclass(frozen=True, eq=False)
class TokenRows:
    """Tokens with their heads, before and after the rotation.

    before, after: [R, H, D] as stored, but for a power of two in both; batches that share positions count as heads.
    positions:     int64[axes, R].
    dtype:         the storage type of after, whose rounding limits what can be told.
    subnormal:     whether most values of after are subnormal in it, so that rounding hides much of the rotation.
    """

    before: Array
    after: Array
    positions: I64
    dtype: str
    subnormal: bool = False

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return int(self.before.shape[2])

    @property
    def elements(self) -> int:
        """Elements of one tensor."""
        return int(self.before.size)

    def chunks(self) -> Iterator[tuple[slice, F64, F64]]:
        """Yield parts of the rows with (before, after) in float64."""
        rows = max(1, _CHUNK_ELEMENTS // max(1, self.before[0].size))
        for begin in range(0, self.before.shape[0], rows):
            part = slice(begin, begin + rows)
            yield part, self.before[part].astype(np.float64), self.after[part].astype(np.float64)

    def sample(self) -> TokenRows:
        """Return at most `SAMPLE_ROWS` rows of `SAMPLE_HEADS` heads: half of the rows from the start, half spread."""
        rows, heads = self.before.shape[:2]
        if rows <= SAMPLE_ROWS and heads <= SAMPLE_HEADS:
            return self
        half = SAMPLE_ROWS // 2
        spread = np.linspace(min(half, rows - 1), rows - 1, half).astype(int)
        chosen = np.unique(np.concatenate([np.arange(min(half, rows)), spread])) if rows > SAMPLE_ROWS else slice(None)
        some = np.unique(np.linspace(0, heads - 1, min(heads, SAMPLE_HEADS)).astype(int))
        return TokenRows(
            self.before[chosen][:, some],
            self.after[chosen][:, some],
            self.positions[:, chosen],
            self.dtype,
            self.subnormal,
        )


@dataclass(frozen=True, eq=False)
class Tensors:
    """The tensors before and after [b, s, n, d], positions int64[axes, b, s], and whether the batches share these.

    dtype, subnormal: as in `TokenRows`.
    """

    before: Array
    after: Array
    positions: I64
    shared: bool
    dtype: str
    subnormal: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        """Batches, tokens and heads."""
        b, s, n, _ = self.before.shape
        return b, s, n

    def rows(self, box: Box | None = None) -> TokenRows:
        """Return the rows of all tokens, or of those in a box of batches, tokens and heads."""
        batches, tokens, heads = box or tuple(np.arange(size) for size in self.shape)
        tensors = [x if box is None else x[np.ix_(batches, tokens, heads)] for x in (self.before, self.after)]
        b, s, n, d = tensors[0].shape
        positions = self.positions[:, batches][:, :, tokens]
        if self.shared:
            before, after = (x.transpose(1, 0, 2, 3).reshape(s, b * n, d) for x in tensors)
            positions = positions[:, 0]
        else:
            before, after = (x.reshape(b * s, n, d) for x in tensors)
            positions = positions.reshape(-1, b * s)
        return TokenRows(before, after, positions, self.dtype, self.subnormal)

    def by_head(self, values: Array) -> Array:
        """Return values of each head of each row of all tokens, [R, H], as [b, s, n]."""
        b, s, n = self.shape
        return values.reshape(s, b, n).swapaxes(0, 1) if self.shared else values.reshape(b, s, n)

    def unchanged(self) -> Mask:
        """Return which heads are the same before and after, bool[b, s, n]."""
        return np.asarray((self.before.astype(self.after.dtype) == self.after).all(axis=3))

    def running_on(self) -> Tensors:
        """Return the same with positions that run on from batch to batch."""
        b, s, _ = self.shape
        return replace(self, positions=self.positions + np.arange(b)[:, None] * s, shared=False)

    def twice_as_far(self) -> Tensors:
        """Return the same with positions twice as large."""
        return replace(self, positions=2 * self.positions)


def tensors_of(before: Any, after: Any, positions: Any, layout: str, config: RopeConfig) -> Tensors:
    """Check the two tensors and the positions and return them; config says how many axes positions have."""
    tensors = [_host(x, layout, name) for x, name in ((before, "before"), (after, "after"))]
    shapes = [list(x.shape) for x in tensors]
    if shapes[0] != shapes[1]:
        raise ShapeError(f"after: got shape {shapes[1]}, before has {shapes[0]}")
    if not tensors[0].size:
        raise ShapeError(f"before: got shape {shapes[0]}, at least one element is needed")
    for x, name in zip(tensors, ("before", "after"), strict=True):
        if not np.isfinite(x).all():
            raise ShapeError(f"{name}: holds NaN or infinity, finite numbers are needed")
    if not tensors[0].any():
        raise ShapeError("before: every element is 0, which shows no rotation")
    subnormal = _mostly_subnormal(tensors[1])
    views = [canonical(x, layout) for x in _ordinary(tensors)]
    b, s = views[0].shape[:2]
    where = position_rows(0 if positions is None else positions, config, batch=b, seq=s)
    shared = not where.batch_stride
    rows = np.broadcast_to(where.rows[:, None], (len(where.rows), b, s)) if shared else where.rows.reshape(-1, b, s)
    return Tensors(views[0], views[1], rows, shared, dtype_name(tensors[1].dtype, "after"), subnormal)


def _mostly_subnormal(x: Array) -> bool:
    """Whether most of the values that are not 0 are below the least normal number of their type."""
    least = float(ml_dtypes.finfo(x.dtype).smallest_normal)  # type: ignore[no-untyped-call]
    sizes = np.abs(x)
    return 2 * int(np.count_nonzero((sizes < least) & (sizes > 0))) > int(np.count_nonzero(sizes))


def _ordinary(tensors: list[Array]) -> list[Array]:
    """Return the tensors, scaled by one power of two if they are so large or small that products of values suffer."""
    exponent = math.frexp(max(float(np.abs(x).max()) for x in tensors))[1]
    if abs(exponent) <= _ORDINARY_EXPONENT:
        return tensors
    return [np.ldexp(x.astype(np.float64), -exponent).astype(x.dtype) for x in tensors]


def _host(x: Any, layout: str, name: str) -> Array:
    described = operand(x, layout, name)
    if described.host is not None:
        return described.host
    values: Array = described.array.get()
    return values
