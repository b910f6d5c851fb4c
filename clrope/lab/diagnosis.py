"""Why a rotation is wrong: hypotheses about what a kernel did, each tried against the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import reference
from ..compare import compare
from ..config import RopeConfig
from ..errors import RopeError
from ..positions import position_rows
from ..testing import bits, nmse

F64 = npt.NDArray[np.float64]
Array = npt.NDArray[Any]

#: A hypothesis holds if what it predicts is that much nearer than the right result, and near enough.
_NEARER = 1e-3
_NEAR = 1e-4


@dataclass(frozen=True)
class Evidence:
    """A wrong result, all arrays in the order b, s, n, d.

    x: the input. got, want: the result and the reference (float64). start: the output's memory before the call.
    call: 0 for the first. before: the result of the first call, for later ones. dense: what a kernel reads that ignores
    the strides of x; None for contiguous x.
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

    @cached_property
    def config(self) -> RopeConfig:
        """The configuration with n_dims set."""
        return self.given.for_head_dim(self.x.shape[3])

    @cached_property
    def rows(self) -> npt.NDArray[np.int64]:
        """Positions int64[axes, batches, tokens]."""
        b, s = self.x.shape[:2]
        where = position_rows(self.positions, self.config, batch=b, seq=s)
        index = np.stack([np.arange(w.start, w.stop) if isinstance(w, slice) else w for w in where.rows_of_batch(b)])
        return where.rows[:, index]

    @cached_property
    def unwritten(self) -> npt.NDArray[np.bool_]:
        """Elements that still hold what was there before the call, and are wrong."""
        same: npt.NDArray[np.bool_] = bits(self.got) == bits(self.start)
        return same & self.wrong

    @cached_property
    def wrong(self) -> npt.NDArray[np.bool_]:
        """Elements further from the reference than rounding explains."""
        got = self.got.astype(np.float64)
        scale = np.sqrt(np.mean(self.want**2)) if self.want.size else 1.0
        with np.errstate(invalid="ignore"):
            near = np.abs(got - self.want) <= 10 * np.sqrt(self.limit) * np.maximum(np.abs(self.want), scale)
        return np.asarray(~near)

    def first_wrong(self) -> tuple[int, ...] | None:
        """Return (b, s, n, d) of the first wrong element; the one furthest off if all are near."""
        if self.wrong.any():
            return tuple(int(i) for i in np.unravel_index(int(np.argmax(self.wrong)), self.wrong.shape))
        if not self.got.size:
            return None
        distance = np.abs(self.got.astype(np.float64) - self.want)
        return tuple(int(i) for i in np.unravel_index(int(np.argmax(distance)), distance.shape))

    def at(self, place: tuple[int, ...]) -> tuple[float, float, float]:
        """Return (got, want, distance in units of the last place) of an element."""
        one = tuple(slice(i, i + 1) for i in place)
        return float(self.got[place]), float(self.want[place]), compare(self.got[one].copy(), self.want[one]).max_ulp

    def cos_sin(self, config: RopeConfig, rows: npt.NDArray[np.int64]) -> tuple[F64, F64]:
        """Return cos and sin of positions int64[axes, b, s]: float64[b, s, 1, pairs]."""
        axes, b, s = rows.shape
        flat = rows.reshape(axes, -1)
        if config.uses_sections and axes == 1:
            flat = np.repeat(flat, 4, axis=0)
        cos, sin = reference.cos_sin(flat if config.uses_sections else flat[0], config)
        return cos.reshape(b, s, 1, -1), sin.reshape(b, s, 1, -1)

    def rotated(
        self,
        config: RopeConfig | None = None,
        rows: npt.NDArray[np.int64] | None = None,
        x: Array | None = None,
        *,
        forward: bool | None = None,
        places: tuple[Array, Array] | None = None,
        magnitude: float = 1.0,
    ) -> F64:
        """Return the rotation with some of its inputs changed, in float64."""
        config = self.config if config is None else config
        source = (self.x if x is None else x).astype(np.float64)
        cos, sin = self.cos_sin(config, self.rows if rows is None else rows)
        if not (self.forward if forward is None else forward):
            sin = -sin
        first, second = reference.pair_indices(config) if places is None else places
        pairs = min(len(first), cos.shape[3])
        first, second, cos, sin = first[:pairs], second[:pairs], cos[..., :pairs], sin[..., :pairs]
        out = source.copy()
        a, b = source[..., first], source[..., second]
        out[..., first] = (a * cos - b * sin) * magnitude
        out[..., second] = (a * sin + b * cos) * magnitude
        return out


def diagnose(e: Evidence, most: int = 3) -> list[str]:
    """Return what the kernel probably did wrong, the likeliest first; one sentence each, at least one."""
    structural = list(_structural(e))
    if structural and e.unwritten.mean() > 0.999:
        return structural[:most]
    found: list[tuple[float, str]] = []
    written = ~e.unwritten & np.isfinite(e.got.astype(np.float64))
    for text, predicted in _formulas(e):
        where = written & np.isfinite(predicted)
        error, base = _error(e.got, predicted, where), _error(e.got, e.want, where)
        if error < _NEAR and base > e.limit and error < _NEARER * base:
            found.append((error, text))
    found.sort(key=lambda pair: pair[0])
    near = [text for error, text in found if error <= max(100 * found[0][0], e.limit)]
    if near and structural and structural[0].startswith("partly"):
        structural, near = near, structural  # what was written says more
    out = [*structural, *near, *(() if near else _gradual(e))]
    return out[:most] or [_regions(e)]


def _error(got: Array, want: Array, where: Array) -> float:
    if not where.any():
        return float("inf")
    return nmse(got[where], want[where])


def _structural(e: Evidence) -> Iterator[str]:
    missing = e.unwritten
    first, second = reference.pair_indices(e.config)
    turned = np.concatenate([first, second])
    if (
        e.call
        and e.before is not None
        and nmse(e.got[..., turned], e.before[..., turned].astype(np.float64)) <= e.limit
    ):
        yield "the result of the first call was given again, for another input (a cached answer is replayed)"
        return
    share = missing.mean()
    if share > 0.999 and not e.call:
        yield "nothing was written: the output is as it was before the call"
        return
    if e.call and share > 0.2:
        yield f"in call {e.call + 1} {share:.0%} of the output was not written: results depend on the call or on poison"
    tail = np.ones(e.x.shape[3], np.bool_)
    tail[turned] = False
    if tail.any() and missing[..., tail].all() and not missing[..., ~tail].any():
        yield "the tail was not copied: elements from n_dims on are as they were in the output"
        return
    if share and not (e.call and share > 0.2):
        yield f"partly written: {share:.1%} of the elements are as they were before the call{_where(missing)}"
    made = np.asarray(np.isnan(e.got.astype(np.float64))) & ~missing
    if made.any() and np.isfinite(e.want).all():
        yield f"NaN was made: {made.sum()} elements are NaN where the reference is finite{_where(made)}"
    if not e.got[..., turned].astype(np.float64).any():
        yield "the rotated elements are all zero: nothing was computed"
    if tail.any() and not (e.got[..., tail].astype(np.float64)).any() and (e.x[..., tail].astype(np.float64)).any():
        yield "the tail is zero: elements from n_dims on have to be copied from the input"


def _where(mask: npt.NDArray[np.bool_]) -> str:
    """Return ' (tokens from 64 on)' and the like if a mask is all of one end of an axis, and nothing else."""
    for axis, name in ((1, "tokens"), (2, "heads"), (0, "batches"), (3, "elements")):
        others = tuple(k for k in range(4) if k != axis)
        whole, touched = np.asarray(mask.all(axis=others)), np.asarray(mask.any(axis=others))
        if (whole == touched).all() and touched.any() and not touched.all():
            start = int(np.argmax(touched))
            if touched[start:].all():
                kind = ": a remainder of the work-groups, perhaps" if axis == 1 else ""
                return f" ({name} from {start} on{kind})"
            return f" ({name} {_ranges(touched)})"
    return ""


def _ranges(touched: npt.NDArray[Any]) -> str:
    """Return '0 to 7, 9' for the places that are true, at most four ranges."""
    places = np.flatnonzero(touched)
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    texts = [str(run[0]) if run.size == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return ", ".join(texts[:4]) + (", ..." if len(texts) > 4 else "")


def _formulas(e: Evidence) -> Iterator[tuple[str, F64]]:
    """Yield (what the kernel did, what it then gives, NaN where that is open)."""
    for made in (_pairings, _signs, _angles, _scalings, _positions, _memory):
        for text, predict in made(e):
            try:
                predicted = predict()
            except (RopeError, ValueError, IndexError, OverflowError, ZeroDivisionError):
                continue
            yield text, predicted


Hypotheses = Iterator[tuple[str, Callable[[], F64]]]


def _pairings(e: Evidence) -> Hypotheses:
    c, d = e.config, e.x.shape[3]
    pairs = c.n_pairs(None)
    i = np.arange(pairs)
    asked, other = ("NORMAL", "NEOX") if c.mode == "normal" else ("NEOX", "NORMAL")
    swapped = (c.n_offs + i, c.n_offs + pairs + i) if c.mode == "normal" else (c.n_offs + 2 * i, c.n_offs + 2 * i + 1)
    yield (
        f"pairs swapped: it rotates {other} pairs where the case is {asked} "
        f"(if it is to do {other} only: `// lab: requires {other.lower()}`)",
        lambda: e.rotated(places=swapped),
    )
    if c.mode != "normal" and 2 * pairs < d:
        yield (
            "halves at head_dim / 2 instead of n_dims / 2: the second element of pair i is i + n_dims / 2",
            lambda: _first_halves(e, i, d),
        )
        full = np.arange(d // 2)
        yield "n_dims ignored: the whole head is rotated, by the angles of n_dims", lambda: _whole_head(e, full, d)
    if c.n_offs:
        yield (
            "n_offs ignored: the rotated elements begin at n_offs",
            lambda: e.rotated(places=tuple(p - c.n_offs for p in reference.pair_indices(c))),  # type: ignore[arg-type]
        )


def _first_halves(e: Evidence, i: Array, d: int) -> F64:
    """Return the first element of each pair; what the second half holds depends on the order of writes."""
    out = e.rotated(places=(i, d // 2 + i))
    out[..., i.size :] = np.nan
    return out


def _whole_head(e: Evidence, first: Array, d: int) -> F64:
    config = replace(e.config, n_dims=d, freq_factors=None)
    return e.rotated(config)


def _signs(e: Evidence) -> Hypotheses:
    way = "inverse" if e.forward else "forward"
    yield f"the sign of sin is wrong: this is the {way} rotation", lambda: e.rotated(forward=not e.forward)
    yield "the input was copied, nothing is rotated", lambda: e.x.astype(np.float64)
    first, second = reference.pair_indices(e.config)
    yield "sin and cos are exchanged", lambda: _exchanged(e)
    yield "the two elements of each pair are exchanged in the output", lambda: _flipped(e.rotated(), first, second)
    yield (
        "in place: the second element is computed from the first one after it was overwritten",
        lambda: _overwritten(e),
    )
    yield "only the first element of each pair is rotated", lambda: _half(e, first, second)
    yield "only the second element of each pair is rotated", lambda: _half(e, second, first)


def _exchanged(e: Evidence) -> F64:
    cos, sin = e.cos_sin(e.config, e.rows)
    first, second = reference.pair_indices(e.config)
    out = e.x.astype(np.float64)
    a, b = out[..., first].copy(), out[..., second].copy()
    out[..., first], out[..., second] = a * sin - b * cos, a * cos + b * sin
    return out


def _flipped(rotated: F64, first: Array, second: Array) -> F64:
    out = rotated.copy()
    out[..., first], out[..., second] = rotated[..., second], rotated[..., first]
    return out


def _half(e: Evidence, kept: Array, lost: Array) -> F64:
    out = e.x.astype(np.float64)
    out[..., kept] = e.want[..., kept]
    return out


def _overwritten(e: Evidence) -> F64:
    cos, sin = e.cos_sin(e.config, e.rows)
    sin = sin if e.forward else -sin
    first, second = reference.pair_indices(e.config)
    out = e.x.astype(np.float64)
    b = out[..., second].copy()
    out[..., first] = out[..., first] * cos - b * sin
    out[..., second] = out[..., first] * sin + b * cos
    return out


def _angles(e: Evidence) -> Hypotheses:
    c, d = e.config, e.x.shape[3]
    pairs = c.n_pairs(None)
    if not c.uses_sections and 2 * pairs < d:
        exponent = replace(c, freq_base=c.freq_base ** (2 * pairs / d))
        yield "frequencies by head_dim instead of n_dims: the exponent is -2 i / n_dims", lambda: e.rotated(exponent)
    if not c.uses_sections:
        yield (
            "frequencies by -i / n_dims instead of -2 i / n_dims",
            lambda: e.rotated(replace(c, freq_base=c.freq_base**0.5)),
        )
        yield (
            "frequencies by -4 i / n_dims instead of -2 i / n_dims",
            lambda: e.rotated(replace(c, freq_base=c.freq_base**2)),
        )
    for base in (10000.0, 500000.0, 1000000.0):
        if base != c.freq_base:
            yield f"freq_base ignored: {base:g} where it is {c.freq_base:g}", _rotating(e, replace(c, freq_base=base))
    if c.uses_sections:
        one = np.repeat(e.rows[:1], 4, axis=0)
        yield "sections ignored: the first row of positions drives all pairs", lambda: e.rotated(rows=one)


def _rotating(e: Evidence, config: RopeConfig) -> Callable[[], F64]:
    return lambda: e.rotated(config)


def _scalings(e: Evidence) -> Hypotheses:
    c = e.config
    if c.freq_scale != 1 and c.ext_factor == 0:
        yield "freq_scale ignored", _rotating(e, replace(c, freq_scale=1.0))
        yield "freq_scale inverted: angles are multiplied by it", _rotating(e, replace(c, freq_scale=1 / c.freq_scale))
    magnitude = _magnitude(e)
    if abs(magnitude - 1) > 1e-6:
        yield (
            f"magnitude missing: cos and sin have the factor {magnitude:.6g}",
            lambda: e.rotated(magnitude=1 / magnitude),
        )
        yield f"magnitude applied twice: the factor {magnitude:.6g} squared", lambda: e.rotated(magnitude=magnitude)
        yield "magnitude applied to the copied elements, too", lambda: _all_scaled(e, magnitude)
    if c.ext_factor != 0:
        factor = c.attn_factor
        plain = replace(c, ext_factor=0.0, attn_factor=magnitude)
        yield "YaRN's ramp ignored: all angles are scaled by freq_scale", _rotating(e, plain)
        yield "YaRN's ramp and magnitude ignored", _rotating(e, replace(c, ext_factor=0.0))
        unscaled = replace(c, ext_factor=0.0, freq_scale=1.0, attn_factor=magnitude)
        yield "YaRN's ramp wrong: no angle is scaled by freq_scale", _rotating(e, unscaled)
        yield "YaRN's ramp inverted: high frequencies are scaled instead of low ones", lambda: _ramp_inverted(e)
        swapped = replace(c, beta_fast=c.beta_slow, beta_slow=c.beta_fast)
        yield "YaRN's ramp wrong: beta_fast and beta_slow exchanged", _rotating(e, swapped)
        yield "YaRN's magnitude missing: 1 + 0.1 ln(1 / freq_scale)", lambda: e.rotated(magnitude=factor / magnitude)
    if c.freq_factors is not None:
        yield "freq_factors ignored", _rotating(e, replace(c, freq_factors=None))
        inverted = tuple(1 / f for f in c.freq_factors)
        yield "freq_factors inverted: angles are divided by them", _rotating(e, replace(c, freq_factors=inverted))


def _magnitude(e: Evidence) -> float:
    cos, sin = e.cos_sin(e.config, np.zeros_like(e.rows[:, :1, :1]))
    return float(np.hypot(cos, sin).ravel()[0])


def _all_scaled(e: Evidence, magnitude: float) -> F64:
    out = e.x.astype(np.float64) * magnitude
    first, second = reference.pair_indices(e.config)
    for part in (first, second):
        out[..., part] = e.want[..., part]
    return out


def _ramp_inverted(e: Evidence) -> F64:
    """Return the rotation with each pair's two angles mixed the other way round."""
    c, magnitude = e.config, _magnitude(e)
    inter, extra, mixed = (
        replace(c, ext_factor=0.0, attn_factor=1.0), replace(c, ext_factor=0.0, attn_factor=1.0, freq_scale=1.0), c
    )  # fmt: skip
    one = np.ones_like(e.rows[:, :1, :1])
    a, b, m = (np.arctan2(*e.cos_sin(config, one)[::-1]).ravel() for config in (inter, extra, mixed))
    theta = (a + b - m) * e.rows[0][..., None, None]
    cos, sin = np.cos(theta) * magnitude, np.sin(theta) * magnitude * (1 if e.forward else -1)
    first, second = reference.pair_indices(c)
    out = e.x.astype(np.float64)
    p, q = out[..., first].copy(), out[..., second].copy()
    out[..., first], out[..., second] = p * cos - q * sin, p * sin + q * cos
    return out


def _positions(e: Evidence) -> Hypotheses:
    rows = e.rows
    b, s = rows.shape[1:]
    index = np.broadcast_to(np.arange(s, dtype=np.int64), rows.shape)

    def of(changed: Any) -> Callable[[], F64]:
        return lambda: e.rotated(rows=np.ascontiguousarray(np.broadcast_to(changed, rows.shape)).astype(np.int64))

    yield "positions ignored: the token's index is used (an offset is left out)", of(index)
    if b > 1:
        yield "positions of batch 0 are used for all batches", of(rows[:, :1])
        yield (
            "the number of the batch is used as if tokens of all batches counted up",
            of((np.arange(b)[:, None] * s + np.arange(s))[None]),
        )
    if s > 1:
        yield "the position of token 0 is used for all tokens", of(rows[:, :, :1])
        yield "the position of the token before is used (a row too early)", of(np.roll(rows, 1, axis=2))
        yield "the position of the next token is used (a row too late)", of(np.roll(rows, -1, axis=2))
    yield "positions are one too large", of(rows + 1)
    yield "positions are one too small", of(rows - 1)
    for bits_of, name in ((16, "int16"), (8, "int8")):
        yield f"positions truncated to {name}", of(rows.astype(name))
        yield f"positions truncated to u{name}", of(rows.astype(f"u{name}"))
        assert bits_of
    yield "positions truncated to int32", of(rows.astype(np.int32))
    with np.errstate(over="ignore", invalid="ignore"):
        halves = rows.astype(np.float16).astype(np.float64)
        singles = rows.astype(np.float32).astype(np.float64)
    if np.isfinite(halves).all() and (halves != rows).any():
        yield "positions rounded to float16", of(halves)
    if (singles != rows).any() and (np.abs(singles) < 2**63).all():
        yield "positions rounded to float32", of(singles)
    if (rows < 0).any():
        yield "the sign of negative positions is lost", of(np.abs(rows))


def _memory(e: Evidence) -> Hypotheses:
    b, s, n, d = e.x.shape
    dense = e.dense
    if dense is not None:
        yield "strides of x ignored: it is read as if it were contiguous", lambda: e.rotated(x=dense)
    if n > 1:
        yield "every head is rotated from head 0 of the input", lambda: e.rotated(x=np.repeat(e.x[:, :, :1], n, axis=2))
    if b > 1:
        yield "every batch is rotated from batch 0 of the input", lambda: e.rotated(x=np.repeat(e.x[:1], b, axis=0))
    if n > 1 and s > 1:
        order = np.ascontiguousarray(e.x).reshape(b, n, s, d).swapaxes(1, 2)
        yield (
            "heads and tokens exchanged: memory is read as [batch][head][token]",
            lambda: _as_other_order(e, order),
        )


def _as_other_order(e: Evidence, x: Array) -> F64:
    b, s, n, d = e.x.shape
    rotated = e.rotated(x=x)
    return np.ascontiguousarray(rotated.swapaxes(1, 2)).reshape(b, s, n, d)


def _gradual(e: Evidence) -> Iterator[str]:
    """Yield what no single formula explains: precision, drift with the position, wrong parts."""
    got = e.got.astype(np.float64)
    first, second = reference.pair_indices(e.config)
    total = nmse(e.got, e.want)
    crossed = _drift(e, got, first, second)
    if crossed is not None:
        yield (
            f"angle drift: the error grows with the position, and the limit is crossed at position {crossed}; "
            "compute angles in more than float32, or reduce them exactly"
        )
        return
    if e.dtype in ("f32", "f16", "bf16", "f64") and total < 1e-4:
        half = _in_float16(e)
        if half is not None and nmse(e.got, half) < total / 2:
            yield "float16 arithmetic where float32 is meant: products and sums are rounded to float16"
            return
        if 1e-10 < total < 1e-4:
            yield (
                f"too little precision (NMSE {total:.2g}): as of float16 or native_ functions where float32 is meant; "
                "compute in float32 and round once"
            )


def _drift(e: Evidence, got: F64, first: Array, second: Array) -> int | None:
    """Return the smallest position over the limit if only angles are off, more so at high positions and frequencies."""
    lengths = [np.hypot(a[..., first], a[..., second]) for a in (got, e.want)]
    if not np.isfinite(got).all() or nmse(*lengths) > max(1e-6, e.limit):
        return None
    off = (got - e.want)[..., first] ** 2 + (got - e.want)[..., second] ** 2
    by_pair = off.mean(axis=(0, 1, 2))
    slow = max(1, len(by_pair) // 4)
    if by_pair[-slow:].mean() > 0.3 * by_pair[:slow].mean():
        return None
    power = np.maximum((lengths[1] ** 2).mean(axis=(2, 3)), 1e-30)
    by_token = (off.mean(axis=(2, 3)) / power).ravel()
    place = np.abs(e.rows.astype(np.float64)).max(axis=0).ravel()
    over = by_token > e.limit
    if not over.any() or place[over].min() < 256 or ((~over).any() and place[~over].min() > place[over].max()):
        return None
    return int(place[over].min())


def _in_float16(e: Evidence) -> F64 | None:
    cos, sin = (a.astype(np.float16) for a in e.cos_sin(e.config, e.rows))
    sin = sin if e.forward else -sin
    first, second = reference.pair_indices(e.config)
    with np.errstate(over="ignore", invalid="ignore"):
        x = e.x.astype(np.float16)
        a, b = x[..., first], x[..., second]
        out = x.astype(np.float64)
        out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
    tail = np.ones(e.x.shape[3], bool)
    tail[first], tail[second] = False, False
    out[..., tail] = e.x.astype(np.float64)[..., tail]
    return out if np.isfinite(out).all() else None


def _regions(e: Evidence) -> str:
    """Return which part is wrong where nothing else is known."""
    wrong = e.wrong
    for axis, name in ((2, "heads"), (0, "batches"), (1, "tokens"), (3, "elements")):
        others = tuple(k for k in range(4) if k != axis)
        touched = np.asarray(wrong.any(axis=others))
        if touched.any() and not touched.all():
            right = np.flatnonzero(~touched)
            if axis == 2 and list(right) == [0]:
                return "heads beyond the first are wrong"
            start = int(np.argmax(touched))
            if touched[start:].all():
                return f"{name} from {start} on are wrong, {name} before are right"
            return f"{name} {_ranges(touched)} are wrong, the others are right"
    return f"{wrong.mean():.1%} of the elements are wrong; no hypothesis explains them"
