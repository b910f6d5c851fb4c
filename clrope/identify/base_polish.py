"""A fitted base made exact by the values of short storage types: with the right one, every rounded value is equal.

Angles below the rounding of a type are lost in sums over values, which least squares use. They show in single values:
in small ones next to large ones of their pair.
"""

from __future__ import annotations

import math

import numpy as np

from .candidates import Trial, pairing_of
from .tokens import TokenRows

#: First step of the logarithm of the base, and how often it is halved.
_FIRST, _HALVINGS = 0.01, 18


def polished_base(rows: TokenRows, trial: Trial, magnitude: float) -> float:
    """Return the base near that of a trial, of plain frequencies, with which the fewest values differ from after."""
    config = trial.config
    pairing = pairing_of(config, rows.head_dim)
    storage = rows.after.dtype
    before = pairing.complex(rows.before.astype(np.float64)) * magnitude
    after = pairing.complex(rows.after.astype(np.float64))
    exponents = np.arange(pairing.pairs) * (2 / pairing.n_dims)
    where = (rows.positions[0] + trial.offset)[:, None] * config.freq_scale * (1 if trial.forward else -1)

    def differing(log_base: float) -> int:
        turned = before * np.exp(1j * where * np.exp(-exponents * log_base))[:, None, :]
        parts = ((turned.real, after.real), (turned.imag, after.imag))
        return sum(int(np.count_nonzero(got.astype(storage) != want.astype(storage))) for got, want in parts)

    best = math.log(config.freq_base)
    least, step = differing(best), _FIRST
    for _ in range(_HALVINGS):
        tried = [(differing(log), log) for log in (best - step, best + step)]
        if min(tried)[0] < least:
            least, best = min(tried)
        step /= 2
    base = math.exp(best)
    for digits in range(1, 12):
        rounder = float(f"{base:.{digits}g}")
        if differing(math.log(rounder)) <= least:
            return rounder
    return base
