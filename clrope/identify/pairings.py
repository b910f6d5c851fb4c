"""Which elements were rotated as pairs: the pairings that leave the length of every pair as it was."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..testing import LIMITS
from .tokens import F64, TokenRows

C128 = npt.NDArray[np.complex128]
_FEW_ROWS, _FEW_HEADS = 8, 4
#: A pairing may leave so many roundings: implementations round more than once.
_FLOORS = 40


@dataclass(frozen=True)
class Pairing:
    """A way to pair elements of a head: neighbours or halves, of so many elements from n_offs on."""

    kind: Literal["neighbours", "halves"]
    n_dims: int
    n_offs: int = 0

    @property
    def pairs(self) -> int:
        """Number of pairs."""
        return self.n_dims // 2

    def complex(self, heads: F64) -> C128:
        """Return the pairs of [..., D] as complex numbers [..., pairs]."""
        window = heads[..., self.n_offs : self.n_offs + self.n_dims]
        if self.kind == "neighbours":
            return np.asarray(window[..., 0::2] + 1j * window[..., 1::2])
        return np.asarray(window[..., : self.pairs] + 1j * window[..., self.pairs :])

    def outside(self, heads: F64) -> F64:
        """Return the elements that belong to no pair."""
        parts = [heads[..., : self.n_offs], heads[..., self.n_offs + self.n_dims :]]
        return np.concatenate(parts, axis=-1)


@dataclass(frozen=True, eq=False)
class Phasors:
    """What a pairing measures of each row and pair.

    product:   complex128[R, pairs], sum over heads of after times conj(before): its phase is the angle of the rotation.
    magnitude: the factor on the length of the pairs, 1 if that explains them.
    floor:     NMSE that is left if every row and pair may turn by an angle of its own.
    total:     sum of squares of after, all elements.
    """

    pairing: Pairing
    product: C128
    magnitude: float
    floor: float
    total: float

    def excess(self, product: C128, turned: F64) -> float:
        """Return the NMSE that angles add to the floor; product and its angles are [R, pairs] or broadcast to it."""
        rest = np.angle(product * np.exp(-1j * turned))
        return float(4 * self.magnitude * np.sum(np.abs(product) * np.sin(rest / 2) ** 2) / self.total)


def measure(rows: TokenRows, pairing: Pairing) -> Phasors:
    """Measure every row and pair of a pairing."""
    before, after = rows.before.astype(np.float64), rows.after.astype(np.float64)
    a, b = pairing.complex(after), pairing.complex(before)
    product = np.einsum("rhp,rhp->rp", a, b.conj())
    total = float(np.sum(after**2)) or 1.0
    power, turned_power = float(np.sum(np.abs(b) ** 2)), float(np.sum(np.abs(a) ** 2))
    magnitude = float(np.sqrt(turned_power / power)) if power else 1.0
    if (magnitude - 1) ** 2 <= 64 * rounding(rows.dtype) / a.size:
        magnitude = 1.0
    turn = np.exp(1j * np.angle(product))[:, None, :]
    left = float(np.sum(np.abs(a - magnitude * b * turn) ** 2))
    left += float(np.sum((pairing.outside(after) - pairing.outside(before)) ** 2))
    return Phasors(pairing, product, magnitude, left / total, total)


def rounding(dtype: str) -> float:
    """Return the NMSE of results that are computed well: of rounding to a short type, of arithmetic in a long one."""
    return {"f32": 1e-13, "f64": 1e-16}.get(dtype) or LIMITS.get(dtype, 1e-2)


def possible_pairings(rows: TokenRows, more: tuple[Pairing, ...] = ()) -> list[Pairing]:
    """Return the pairings that keep the length of every pair and copy what is outside; more: others to be asked.

    Those with plain numbers of elements come first.
    """
    some = rows.sample()
    pick = np.unique(np.linspace(0, some.before.shape[0] - 1, _FEW_ROWS).astype(int))
    heads = np.unique(np.linspace(0, some.before.shape[1] - 1, _FEW_HEADS).astype(int))
    few = TokenRows(some.before[pick][:, heads], some.after[pick][:, heads], some.positions[:, pick], some.dtype)
    width = rows.head_dim
    begin = _first_changed(rows)
    found = []
    for candidate in dict.fromkeys([*more, *_all_pairings(width, 0), *(_all_pairings(width, begin) if begin else ())]):
        if _keeps_lengths(few, candidate):
            found.append(candidate)
    return sorted(found, key=lambda p: (plainness(p.n_dims, width - p.n_offs), -p.n_dims))


def _keeps_lengths(rows: TokenRows, pairing: Pairing) -> bool:
    """Whether the lengths of all pairs are as before, but for one factor, and what is outside of pairs is copied."""
    before, after = rows.before.astype(np.float64), rows.after.astype(np.float64)
    a, b = np.abs(pairing.complex(after)), np.abs(pairing.complex(before))
    power = float(np.sum(b**2))
    magnitude = np.sqrt(float(np.sum(a**2)) / power) if power else 1.0
    left = float(np.sum((a - magnitude * b) ** 2))
    left += float(np.sum((pairing.outside(after) - pairing.outside(before)) ** 2))
    total = float(np.sum(after**2)) or 1.0
    return left <= _FLOORS * rounding(rows.dtype) * total and not np.allclose(magnitude, 0)


def common_pairings(rows: TokenRows, pairings: list[Pairing]) -> list[Pairing]:
    """Return the pairings of which each pair turns by one angle in all heads of a row."""
    return [p for p in pairings if measure(rows, p).floor <= _FLOORS * rounding(rows.dtype)]


def plainness(n_dims: int, width: int) -> float:
    """Return 0 for the whole head, 1 for the fractions that models use, more for other numbers."""
    if n_dims == width:
        return 0.0
    for cost, parts in ((1.0, (2, 4)), (1.3, (3, 8, 5, 10))):
        if any(n_dims * part % width == 0 for part in parts):
            return cost
    return 1.6 if n_dims % 16 == 0 else 2.0 if n_dims % 4 == 0 else 2.4


def _first_changed(rows: TokenRows) -> int:
    """Return the even index of the first element of a head that changes in any row; 0 where nothing changes."""
    some = rows.sample()
    changed = np.flatnonzero(np.asarray(some.before.astype(some.after.dtype) != some.after).any(axis=(0, 1)))
    return int(changed[0]) // 2 * 2 if changed.size else 0


@lru_cache(maxsize=16)
def _all_pairings(width: int, n_offs: int) -> tuple[Pairing, ...]:
    kinds: Any = ("halves", "neighbours")
    return tuple(
        Pairing(k, n, n_offs) for n in range(2, width - n_offs + 1, 2) for k in kinds if n > 2 or k == kinds[0]
    )
