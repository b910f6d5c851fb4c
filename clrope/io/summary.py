"""A configuration in numbers a person can check: what each pair of a head does per position."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..angles import angle_table
from ..config import RopeConfig
from ..reference import pair_indices

_AXES = "thwe"


@dataclass(frozen=True)
class PairRow:
    """One pair of elements of a head.

    index:      number of the pair.
    first, second: the elements that form it.
    axis:       position row that drives it: 't', 'h', 'w' or 'e' ('t' without sections), or a number with pair_axes.
    omega:      radians per position (per unit of 1 / coordinate_scale), with every scaling applied.
    wavelength: positions per turn; infinite for a pair that does not turn.
    """

    index: int
    first: int
    second: int
    axis: str
    omega: float
    wavelength: float


def summarise(config: RopeConfig, head_dim: int | None = None) -> list[PairRow]:
    """Return one row per pair; `head_dim` is needed where the configuration leaves n_dims open.

    The factor on cos and sin is the same for all pairs: `clrope.angles.magnitude_of(config)`.
    """
    if head_dim is not None:
        config = config.for_head_dim(head_dim)
    table = angle_table(config)
    first, second = pair_indices(config)
    rows = []
    for i in range(table.pairs):
        omega = float(table.omega[i])
        # Below half a unit of the 64-bit phase a pair stands still at every position (`proportional` does that).
        still = table.step[i] == 0 and abs(omega) < 2.0**-62
        wavelength = math.inf if still else 2.0 * math.pi / abs(omega)
        axis = int(table.axis[i])
        name = _AXES[axis] if config.pair_axes is None else str(axis)
        rows.append(PairRow(i, int(first[i]), int(second[i]), name, omega, wavelength))
    return rows
