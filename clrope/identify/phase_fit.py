"""Frequencies fitted to measured phases: pair i turns by `scale * base ** (-2 i / n_dims)` for each position.

The score of frequencies is the sum of the measured products' real parts after they are turned back. It has one narrow
maximum and many lower ones. So the search goes from short differences of positions, where the maximum is wide, to long
ones, and ends with least squares on the angles that are left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .pairings import C128, Phasors
from .tokens import F64

#: Bases outside are not looked for: from 30 to 1e11.
_LOG_BASES = (3.4, 25.4)
_SCALES = (1 / 80, 20.0)
#: Radians between neighbouring trials of the pair that moves most.
_STEP = 0.7
_MOST_TRIALS = 400_000
#: Bases of a grid, at most; of longer grids than this many, cells of so many bases are looked at first.
_LONGEST_GRID, _SHORT_GRID = 1 << 21, 2000
#: Logarithm of a base: a grid that ends before it, for its length, would miss nearly all bases in use.
_LEAST_END = 6.9
_CELLS = (16, 4)
#: The least score of a cell that is looked at, and how many pairs have to give one.
_PROMISING, _ENOUGH_PAIRS = 0.6, 5
_CHUNK = 1 << 21
_KEPT = 8
#: Sigmas of a base that is looked for around a fitted one: the differences of rows are not independent.
_SURE = 30.0
#: Bases that are tried for a few thousand offsets, and for more.
_MOST_BASES = (200, 40)
_FEW_OFFSETS = 1 << 13


@dataclass(frozen=True)
class FrequencyLine:
    """Frequencies on a line in logarithms, and how precisely the base is known.

    sign: 1 forward, -1 inverse. offset: what was added to every position. spread: one sigma of log_base.
    """

    log_base: float
    scale: float
    sign: int
    offset: int = 0
    spread: float = 0.0

    def omega(self, exponents: F64) -> F64:
        """Return radians per position, float64[pairs]; exponents are 2 i / n_dims."""
        return np.exp(-exponents * self.log_base).astype(np.float64) * self.scale


@dataclass(frozen=True, eq=False)
class Turns:
    """Angles to be explained: distance[K] in positions and product complex128[K, pairs], shortest distance first."""

    distance: F64
    product: C128
    exponents: F64

    def up_to(self, most: float, count: int) -> Turns:
        """Return the longest few of the distances up to a limit, and one at least."""
        end = max(1, int(np.searchsorted(np.abs(self.distance), most, side="right")))
        part = slice(max(0, end - count), end)
        return replace(self, distance=self.distance[part], product=self.product[part])


def exponents_of(phasors: Phasors) -> F64:
    """Return 2 i / n_dims of every pair."""
    return np.arange(phasors.pairing.pairs, dtype=np.float64) * (2 / phasors.pairing.n_dims)


def absolute(phasors: Phasors, positions: F64) -> Turns:
    """Return the turns of the rows at their positions, without the rows at 0."""
    return _sorted(phasors, positions, phasors.product)


def differences(phasors: Phasors, positions: F64) -> Turns:
    """Return the turns between two rows each, which no offset of the positions changes."""
    apart = positions[:, None] - positions[None, :]
    lengths = np.unique(apart[apart > 0])
    if len(lengths) > 40:
        # The short ones, and some up to the longest.
        lengths = np.unique(lengths[np.r_[0:16, np.geomspace(16, len(lengths) - 1, 24).astype(int)]])
    size = np.sqrt(np.abs(phasors.product)) + np.finfo(float).tiny
    even = phasors.product / size
    products = []
    for length in lengths:
        later, earlier = np.nonzero(apart == length)
        products.append(np.sum(even[later] * even[earlier].conj(), axis=0))
    rows = np.array(products).reshape(len(lengths), phasors.pairing.pairs)
    return _sorted(phasors, lengths, rows)


def joined(first: Turns, second: Turns) -> Turns:
    """Return the turns of both."""
    distance = np.concatenate([first.distance, second.distance])
    order = np.argsort(np.abs(distance), kind="stable")
    return Turns(distance[order], np.concatenate([first.product, second.product])[order], first.exponents)


def _sorted(phasors: Phasors, distance: F64, product: C128) -> Turns:
    order = np.argsort(np.abs(distance), kind="stable")
    order = order[distance[order] != 0]
    return Turns(distance[order], product[order], exponents_of(phasors))


def scores(turns: Turns, omega: F64) -> tuple[F64, F64]:
    """Return the scores, at most 1, of frequencies [K, pairs] forward and inverse."""
    forward, inverse = np.empty(len(omega)), np.empty(len(omega))
    step = max(1, _CHUNK // max(1, turns.product.size))
    whole = float(np.sum(np.abs(turns.product))) or 1.0
    for begin in range(0, len(omega), step):
        part = slice(begin, begin + step)
        phase = omega[part, None, :] * turns.distance[:, None]
        even = np.einsum("kp,nkp->n", turns.product.real, np.cos(phase))
        odd = np.einsum("kp,nkp->n", turns.product.imag, np.sin(phase))
        forward[part], inverse[part] = (even + odd) / whole, (even - odd) / whole
    return forward, inverse


def best_of_grid(turns: Turns, scales: F64, log_bases: F64, kept: int = _KEPT) -> list[tuple[float, FrequencyLine]]:
    """Return the best of all scales times all bases, in both directions, with their scores."""
    scale, log_base = (grid.ravel() for grid in np.meshgrid(scales, log_bases, indexing="ij"))
    omega = scale[:, None] * np.exp(-log_base[:, None] * turns.exponents)
    found = []
    for sign, score in zip((1, -1), scores(turns, omega), strict=True):
        for k in np.argsort(-score, kind="stable")[:kept]:
            found.append((float(score[k]), FrequencyLine(float(log_base[k]), float(scale[k]), sign)))
    return sorted(found, key=lambda row: -row[0])[:kept]


def search_base(turns: Turns, scale: float) -> list[FrequencyLine]:
    """Return the lines of a known scale that explain the turns best; [] where the distances are too long for that."""
    first = turns.up_to(4 * abs(turns.distance[0]), 3)
    log_bases = _base_grid(scale * float(np.abs(first.distance).max()))
    if log_bases[-1] < _LEAST_END:
        return []
    if len(log_bases) > _SHORT_GRID:
        ratio = log_bases[1] / log_bases[0] - 1
        for cell in _CELLS:
            log_bases = _promising(first, scale, log_bases, cell, ratio * cell / 2)
    return [_zoom(turns, line, "base") for line in _peaks(first, np.array([scale]), log_bases)]


def search_line(turns: Turns) -> list[FrequencyLine]:
    """Return the lines of any scale that explain the turns best; [] where the distances are too long for that."""
    first = turns.up_to(2 * abs(turns.distance[0]), 3)
    far = float(np.abs(first.distance).max())
    log_bases = np.arange(*_LOG_BASES, 0.4)
    low = np.geomspace(_SCALES[0], 1, 32)
    step = 0.5 * _STEP / far
    if (len(low) + (_SCALES[1] - 1) / step) * len(log_bases) > _MOST_TRIALS:
        return []
    scales = np.concatenate([low, np.arange(1, _SCALES[1], step)])
    return [_zoom(turns, line, "both") for line in _peaks(first, scales, log_bases)]


def refined(turns: Turns, line: FrequencyLine, free: str) -> FrequencyLine:
    """Return the line after least squares on the angles that are left; free: 'base', or 'both' it and the scale."""
    x, weight = turns.exponents, np.abs(turns.product)
    freedom = max(1, turns.product.size - (2 if free == "both" else 1))
    for _ in range(8):
        omega = line.omega(x)
        phase = omega * (turns.distance[:, None] + line.offset)
        rest = np.angle(turns.product * np.exp(-1j * line.sign * phase)) * line.sign
        columns = [-x * phase, phase][: 2 if free == "both" else 1]
        use = weight * (np.abs(rest) < 1.5)
        normal = np.array([[np.sum(use * a * b) for b in columns] for a in columns])
        normal += np.eye(len(columns)) * (1e-30 + 1e-14 * np.trace(normal))
        step = np.linalg.solve(normal, [np.sum(use * a * rest) for a in columns])
        inverse = np.linalg.inv(normal)
        spread = float(np.sqrt(max(inverse[0, 0], 0) * np.sum(use * rest**2) / freedom))
        log_base = float(np.clip(line.log_base + np.clip(step[0], -0.5, 0.5), *_LOG_BASES))
        scale = line.scale * float(np.exp(np.clip(step[1], -0.2, 0.2))) if free == "both" else line.scale
        done = abs(log_base - line.log_base) < 1e-15 * log_base and scale == line.scale
        line = replace(line, log_base=log_base, scale=scale, spread=spread)
        if done:
            break
    return line


def search_offset(phasors: Phasors, positions: F64, line: FrequencyLine, most: int) -> list[FrequencyLine]:
    """Return the line with the offsets, up to ±most, that explain the rows best; the base moves as it is known."""
    x = exponents_of(phasors)
    reach = min(0.5, _SURE * line.spread)
    step = _STEP * np.e * line.log_base / (line.scale * (most + float(np.abs(positions).max())))
    count = int(min(_MOST_BASES[most > _FEW_OFFSETS], np.ceil(reach / step)))
    side = int(np.ceil(np.sqrt(2 * most + 1)))
    low, high = np.arange(side), np.arange(side) * side - most
    best: list[tuple[float, FrequencyLine]] = []
    for moved in np.linspace(-reach, reach, 2 * count + 1) if count else np.zeros(1):
        tried = replace(line, log_base=float(np.clip(line.log_base + moved, *_LOG_BASES)))
        omega = tried.omega(x) * line.sign
        left = np.sum(phasors.product * np.exp(-1j * omega * positions[:, None]), axis=0)
        # exp of a sum is a product: a matrix of low times high parts holds the scores of all offsets.
        outer = left * np.exp(-1j * omega * high[:, None])
        score = (outer @ np.exp(-1j * omega * low[:, None]).T).real.ravel()
        k = int(np.argmax(score))
        best.append((float(score[k]), replace(tried, offset=int(high[k // side] + k % side))))
    return [line for _, line in sorted(best, key=lambda row: -row[0])[:3]]


def _base_grid(reach: float) -> F64:
    """Return logarithms of bases so close that no pair moves by more than a step, at so many radians of pair 0."""
    low, high = _LOG_BASES
    # The pair that moves most with the base moves by reach / (e * log_base).
    step = np.log1p(min(0.05, _STEP * np.e / max(reach, 1e-9)))
    return np.asarray(low * np.exp(step * np.arange(min(_LONGEST_GRID, int(np.log(high / low) / step) + 1))))


def _promising(turns: Turns, scale: float, log_bases: F64, cell: int, half: float) -> F64:
    """Return the bases of a grid without those cells of it that pairs that move slowly with the base rule out.

    half: by what share a base at the edge of a cell differs from the one in its middle.
    """
    x, reach = turns.exponents, float(np.abs(turns.distance).max())
    cells = -(-len(log_bases) // cell)
    middles = log_bases[np.minimum(np.arange(cells) * cell + cell // 2, len(log_bases) - 1)]
    weight = np.sum(np.abs(turns.product), axis=0)
    turning = np.abs(np.angle(turns.product)).max(axis=0) > _STEP
    kept = np.empty(cells, dtype=bool)
    step = max(1, _CHUNK // max(1, turns.product.size))
    for begin in range(0, cells, step):
        part = slice(begin, begin + step)
        omega = scale * np.exp(-middles[part, None] * x)
        # Of pairs that stand still, in the trial and in the measurement, nothing can be seen.
        use = (turning | (reach * omega > _STEP)) & (reach * omega * x * middles[part, None] * half <= _STEP)
        phase = omega[:, None, :] * turns.distance[:, None]
        even = np.sum(np.einsum("kp,nkp->np", turns.product.real, np.cos(phase)) * use, axis=1)
        odd = np.sum(np.einsum("kp,nkp->np", turns.product.imag, np.sin(phase)) * use, axis=1)
        enough = even + np.abs(odd) >= _PROMISING * np.sum(use * weight, axis=1)
        kept[part] = enough | (np.sum(use, axis=1) < _ENOUGH_PAIRS)
    return np.asarray(log_bases[np.repeat(kept, cell)[: len(log_bases)]])


def _peaks(turns: Turns, scales: F64, log_bases: F64) -> Iterator[FrequencyLine]:
    """Yield the best few local maxima over the bases, of all scales and both directions."""
    found = []
    omega_of = -log_bases[:, None] * turns.exponents
    for scale in scales:
        for sign, score in zip((1, -1), scores(turns, scale * np.exp(omega_of)), strict=True):
            padded = np.pad(score, 1, constant_values=-np.inf)
            tops = np.flatnonzero((score >= padded[:-2]) & (score >= padded[2:]))
            found += [(float(score[k]), FrequencyLine(float(log_bases[k]), float(scale), sign)) for k in tops]
    found.sort(key=lambda row: -row[0])
    for _, line in found[:_KEPT]:
        yield line


def _zoom(turns: Turns, line: FrequencyLine, free: str) -> FrequencyLine:
    """Return the line after looking at longer and longer distances."""
    far = np.abs(turns.distance)
    reach, half = float(far[0]), 0.1
    while True:
        part = turns.up_to(reach, 12)
        moves = float(np.abs(part.distance).max()) * line.scale / (np.e * max(line.log_base, 1.0))
        if half * moves > _STEP:
            count = int(min(_MOST_TRIALS // 20, np.ceil(half * moves / _STEP)))
            near = line.log_base + np.linspace(-half, half, 2 * count + 1)
            line = _best_near(part, line, near)
        line = refined(part, line, free)
        half = min(half, max(6 * line.spread, 0.05 / max(moves, 1e-9)))
        longer = far[far > reach]
        if not len(longer):
            return line
        reach = max(float(longer[0]), 3 * reach)


def _best_near(turns: Turns, line: FrequencyLine, log_bases: npt.NDArray[np.float64]) -> FrequencyLine:
    omega = line.scale * np.exp(-log_bases[:, None] * turns.exponents)
    score = scores(turns, omega)[0 if line.sign == 1 else 1]
    return replace(line, log_base=float(log_bases[int(np.argmax(score))]))
