"""A wrong result of a lab kernel with all that is known of the call: the evidence for a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import reference
from ..angles import angle_table
from ..compare import compare
from ..config import RopeConfig
from ..positions import position_rows
from ..testing import LIMITS, bits

F64 = npt.NDArray[np.float64]
Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]

#: Relative error of an angle that is computed in float32: of the frequency, of the product, of the range reduction.
_FLOAT32_ANGLE = 2.0**-21


@dataclass(frozen=True)
class Evidence:
    """A wrong result, all arrays in the order b, s, n, d.

    x: the input. got, want: the result and the reference (float64). start: the output's memory before the call.
    call: 0 for the first. before: the result of the first call, for later ones. dense: what a kernel reads that ignores
    the strides of x; None for contiguous x. own_angles: whether the kernel computes angles from positions.
    """

    x: Array
    got: Array
    want: Array
    start: Array
    given: RopeConfig
    positions: Any
    forward: bool
    dtype: str
    limit: float
    call: int = 0
    before: Array | None = None
    dense: Array | None = None
    own_angles: bool = False

    @cached_property
    def config(self) -> RopeConfig:
        """The configuration with n_dims set."""
        return self.given.for_head_dim(self.x.shape[3])

    @cached_property
    def pairs(self) -> tuple[Array, Array]:
        """The elements of each pair."""
        return reference.pair_indices(self.config)

    @cached_property
    def tail(self) -> Mask:
        """Which elements of a head are copied."""
        tail = np.ones(self.x.shape[3], np.bool_)
        tail[np.concatenate(self.pairs)] = False
        return tail

    @cached_property
    def rows(self) -> Rows:
        """Positions int64[axes, batches, tokens]."""
        b, s = self.x.shape[:2]
        where = position_rows(self.positions, self.config, batch=b, seq=s)
        index = np.stack([np.arange(w.start, w.stop) if isinstance(w, slice) else w for w in where.rows_of_batch(b)])
        return where.rows[:, index]

    @cached_property
    def values(self) -> F64:
        """The result in float64."""
        return self.got.astype(np.float64)

    @cached_property
    def finite(self) -> Mask:
        """Elements of the result that are finite."""
        return np.isfinite(self.values)

    @cached_property
    def size(self) -> F64:
        """What the error of an element is compared with: the length of its pair, and not much less than the usual."""
        with np.errstate(invalid="ignore"):
            usual = float(np.sqrt(np.mean(self.want**2))) if self.want.size else 1.0
        sizes = np.abs(self.want)
        first, second = self.pairs
        sizes[..., first] = sizes[..., second] = np.hypot(self.want[..., first], self.want[..., second])
        return np.maximum(sizes, 0.05 * usual)

    @cached_property
    def unwritten(self) -> Mask:
        """Elements that still hold what was there before the call, and are wrong; none if that is the input."""
        same: Mask = bits(self.got) == bits(self.start)
        if (bits(self.start) == bits(self.x)).all():
            return np.zeros_like(same)
        return same & self.wrong

    @cached_property
    def wrong(self) -> Mask:
        """Elements further from the reference than rounding explains."""
        return ~self.near(self.want, self.tolerances[1])

    @property
    def tolerances(self) -> tuple[float, float]:
        """Errors that count as none: of a kernel as precise as can be, and of one that just passes."""
        return 3 * float(np.sqrt(LIMITS[self.dtype])), 10 * float(np.sqrt(self.limit))

    def near(self, predicted: F64, tolerance: float | F64) -> Mask:
        """Return which elements of the result are as predicted. Where a prediction is NaN, it is open: False."""
        with np.errstate(invalid="ignore"):
            return np.asarray(np.abs(self.values - predicted) <= tolerance * self.size)

    def doubt(self, config: RopeConfig | None = None, rows: Rows | None = None) -> F64:
        """Return by how much float32 angles may turn pairs wrongly, for each element: float64[b, s, 1, d].

        0 for kernels that read tables, and 2 at most: nothing is known.
        """
        config, rows = config or self.config, self.rows if rows is None else rows
        doubt = np.zeros((*self.x.shape[:2], 1, self.x.shape[3]))
        if self.own_angles:
            table = angle_table(config)
            axes = table.axis if len(rows) > 1 else np.zeros(table.pairs, np.intp)
            theta = np.abs(np.moveaxis(rows[axes].astype(np.float64), 0, -1)) * np.abs(table.omega)
            pairs = min(table.pairs, len(self.pairs[0]))
            for part in self.pairs:
                doubt[:, :, 0, part[:pairs]] = np.minimum(2.0, _FLOAT32_ANGLE * theta[..., :pairs])
        return doubt

    def first_wrong(self) -> tuple[int, ...] | None:
        """Return (b, s, n, d) of the first wrong element; the one furthest off if all are near."""
        if self.wrong.any():
            return tuple(int(i) for i in np.unravel_index(int(np.argmax(self.wrong)), self.wrong.shape))
        if not self.got.size:
            return None
        distance = np.abs(self.values - self.want)
        return tuple(int(i) for i in np.unravel_index(int(np.argmax(distance)), distance.shape))

    def at(self, place: tuple[int, ...]) -> tuple[float, float, float]:
        """Return (got, want, distance in units of the last place) of an element."""
        one = tuple(slice(i, i + 1) for i in place)
        return float(self.got[place]), float(self.want[place]), compare(self.got[one].copy(), self.want[one]).max_ulp

    def cos_sin(self, config: RopeConfig | None = None, rows: Rows | None = None) -> tuple[F64, F64]:
        """Return cos and sin of positions [axes, b, s], by the call's direction: float64[b, s, 1, pairs]."""
        config, rows = config or self.config, self.rows if rows is None else rows
        axes, b, s = rows.shape
        flat = rows.reshape(axes, -1)
        if config.uses_sections and axes == 1:
            flat = np.repeat(flat, config.position_axes, axis=0)
        cos, sin = reference.cos_sin(flat if config.uses_sections else flat[0], config)
        sin = sin if self.forward else -sin
        return cos.reshape(b, s, 1, -1), sin.reshape(b, s, 1, -1)

    def turned(self, cos: F64, sin: F64, x: Array | None = None, places: tuple[Array, Array] | None = None) -> F64:
        """Return x, or another input, rotated by cos and sin [b, s, 1 or n, pairs], in float64."""
        source = (self.x if x is None else x).astype(np.float64)
        first, second = self.pairs if places is None else places
        pairs = min(len(first), cos.shape[3])
        first, second, cos, sin = first[:pairs], second[:pairs], cos[..., :pairs], sin[..., :pairs]
        out = source.copy()
        a, b = source[..., first], source[..., second]
        out[..., first] = a * cos - b * sin
        out[..., second] = a * sin + b * cos
        return out

    def rotated(
        self,
        config: RopeConfig | None = None,
        rows: Rows | None = None,
        x: Array | None = None,
        places: tuple[Array, Array] | None = None,
    ) -> F64:
        """Return the rotation with some of its inputs changed, in float64."""
        if places is None and config is not None:
            places = reference.pair_indices(config)
        return self.turned(*self.cos_sin(config, rows), x, places)
