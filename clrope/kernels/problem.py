"""What one launch has to rotate and how it is laid out: all that decides which kernel fits, nothing about addresses."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import Any, Literal

import numpy as np

from ..buffer_place import BUFFER_ALIGNMENT
from ..config import RopeConfig
from ..layout import DTYPES, Shape4, TensorView
from ..norm import NormForm

Pairing = Literal["normal", "neox"]


@dataclass(frozen=True)
class PairLayout:
    """Which two elements of a head form a pair: from element `window` on, in the input and in the output."""

    pairs: int
    window: int
    head_dim: int
    x_pairing: Pairing
    y_pairing: Pairing

    @classmethod
    def of_config(cls, config: RopeConfig, head_dim: int) -> PairLayout:
        """Return the pairs of a configuration (with n_dims set) in heads of head_dim elements."""
        pairing: Pairing = "normal" if config.mode == "normal" else "neox"
        return cls(config.n_pairs(head_dim), config.n_offs, head_dim, pairing, pairing)

    @classmethod
    def none(cls, head_dim: int) -> PairLayout:
        """Return no pairs: for a norm without a rotation."""
        return cls(0, 0, head_dim, "neox", "neox")

    @property
    def pairing(self) -> Pairing | None:
        """The pairing 'normal' or 'neox'; None if input and output differ, which only 'strided' can do."""
        return self.x_pairing if self.x_pairing == self.y_pairing else None

    @property
    def rest(self) -> int:
        """Elements of a head that are copied, not rotated."""
        return self.head_dim - 2 * self.pairs


@dataclass(frozen=True)
class AngleForm:
    """Where a launch gets its cos and sin from.

    exact:       a configuration's exact angles, which a kernel can compute itself.
    full_tables: the tables hold cos and sin for both elements of each pair.
    sections:    the pairs of a token have positions of several axes.
    counting:    row r has the position `positions + r`, a scalar argument; otherwise positions are int64[axes][rows].
    one_axis:    the first row of positions drives all pairs.
    wide:        positions may be outside ±2**31, so the lower 64 bits of the steps are needed.
    callers:     the tables are the caller's: numbers of any bits, NaNs too.
    table_row:   elements from one row to the next of tables that are read where the caller has them; None: of others.
    """

    exact: bool = False
    full_tables: bool = False
    sections: bool = False
    counting: bool = False
    one_axis: bool = True
    wide: bool = False
    callers: bool = False
    table_row: int | None = None

    def options(self, dtype: str) -> tuple[str, ...]:
        """Return the compiler options of `angles.clh` for a storage type."""
        wide = self.wide or dtype == "f64"  # steps of 64 bits are not enough for double
        flags = (("-DCOUNTING", self.counting), ("-DONE_AXIS", self.one_axis), ("-DWIDE_PHASE", wide))
        return tuple(option for option, wanted in flags if wanted)


@dataclass(frozen=True)
class SlotForm:
    """How rows of a KV cache are addressed: by a number for each token, below 0 for none.

    dtype: of the cache. page_size: rows of a page. from_cache: the input is the cache; otherwise the output.
    """

    dtype: str
    page_size: int
    from_cache: bool = False


@dataclass(frozen=True)
class Problem:
    """One tensor to rotate. Strides are in elements; alignments are those of element [0, 0, 0, 0], in bytes, up to 64.

    row_stride: rows of cos and sin from one batch to the next; 0 if all batches share them.
    norm: the norm before or after the rotation.
    slots: the output is a KV cache, or the input. Its strides are those of pages, rows, heads and elements.
    """

    shape: Shape4
    dtype: str
    x_strides: Shape4
    y_strides: Shape4
    pairs: PairLayout
    in_place: bool = False
    forward: bool = True
    angles: AngleForm = field(default_factory=AngleForm)
    row_stride: int = 0
    x_alignment: int = BUFFER_ALIGNMENT
    y_alignment: int = BUFFER_ALIGNMENT
    norm: NormForm | None = None
    slots: SlotForm | None = None

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.dtype].itemsize

    @property
    def direction(self) -> np.floating[Any]:
        """The argument 1, or -1 for the transpose, in the computing type."""
        return (np.float64 if self.dtype == "f64" else np.float32)(1 if self.forward else -1)

    @property
    def x(self) -> TensorView:
        """The input, with offset 0."""
        return TensorView(self.shape, self.x_strides, 0, self.dtype)

    @property
    def y(self) -> TensorView:
        """The output, with offset 0."""
        return TensorView(self.shape, self.y_strides, 0, self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's elements."""
        return self.x.nbytes

    @property
    def vector_alignments(self) -> tuple[int, int]:
        """The bytes to which every place of input and output is aligned at which a run of vectors begins."""
        pairs = self.pairs
        inside = [pairs.window, pairs.pairs if pairs.pairing == "neox" else 0]
        inside.append(2 * pairs.pairs if pairs.rest and not self.in_place else 0)

        def common(strides: Shape4, alignment: int) -> int:
            steps = (step for step, length in zip(strides[:3], self.shape[:3], strict=True) if length > 1)
            return gcd(alignment, *(place * self.itemsize for place in (*inside, *steps)))

        return common(self.x_strides, self.x_alignment), common(self.y_strides, self.y_alignment)
