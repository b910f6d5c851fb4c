"""What kernels get wrong: each mistake with the result that it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from ..angles import angle_table, magnitude_of
from ..config import RopeConfig
from .evidence import F64, Array, Evidence, Mask, Rows

#: Types that values are rounded to by mistake, with the largest relative error of a rounding.
_SHORT: dict[str, tuple[Any, float]] = {"float16": (np.float16, 2.0**-11), "bfloat16": (ml_dtypes.bfloat16, 2.0**-8)}


@dataclass(frozen=True)
class Mistake:
    """A mistake and the result that it gives.

    text:    what the kernel did, of the whole tensor.
    predict: returns what it gives, float64[b, s, n, d], NaN where that is open.
    local:   what to say of a part: '<part> is/are <local>'; '': '<part>: <text>'.
    config, rows: what the angles are computed from, where it is not the call's.
    ties:    what roundings the other way may change in a few elements, in units of their size.
    """

    text: str
    predict: Callable[[], F64]
    local: str = ""
    config: RopeConfig | None = None
    rows: Rows | None = None
    ties: float = 0.0


Mistakes = Iterator[Mistake]


def known_mistakes(e: Evidence) -> Mistakes:
    """Yield the mistakes that are possible in a call, the simplest first."""
    for group in (_undone, _lines, _pairings, _frequencies, _scalings, _doubled, _positions, _memory, _roundings):
        yield from group(e)


def measured_mistakes(e: Evidence, off: Mask) -> Mistakes:
    """Yield mistakes with a number that is measured where elements are off: for what no known mistake explains."""
    first, second = e.pairs
    got, want = (a[..., first] + 1j * a[..., second] for a in (np.where(e.finite, e.values, 0), e.want))
    use = off[..., first] | off[..., second]
    power = float(np.sum(np.abs(want[use]) ** 2))
    if not power:
        return
    factor = float(np.sum((got[use] * want[use].conj()).real)) / power
    yield Mistake(
        f"the rotated elements are {factor:.{6 if abs(factor - 1) < 0.01 else 4}g} times what they have to be",
        lambda: _scaled(e, factor),
    )
    if len(e.rows) > 1:
        return
    where = e.rows[0][..., None].astype(np.float64)
    phase = np.angle(np.sum(np.where(use, got * want.conj(), 0), axis=2))
    slope = np.sum(phase * where, axis=(0, 1)) / max(1.0, float(np.sum(where**2)))
    ratio = 1 + slope * (1 if e.forward else -1) / angle_table(e.config).omega
    some = np.abs(slope) > 0
    if some.any() and np.abs(phase).max() < 2 and np.abs(ratio[some] - 1).max() > 1e-4:
        turn = np.exp(1j * slope * where)[:, :, None, :]
        cos, sin = e.cos_sin()
        moved = (cos + 1j * sin) * turn
        low, high = ratio[some].min(), ratio[some].max()
        by = f"{low:.6g}" if high - low < 1e-4 else f"{low:.6g} to {high:.6g}"
        yield Mistake(
            f"the frequencies are wrong: pairs turn by {by} times the right angle",
            lambda: e.turned(moved.real, moved.imag),
        )


def _undone(e: Evidence) -> Mistakes:
    yield Mistake(
        "the input was copied, nothing is rotated", lambda: e.x.astype(np.float64), "not rotated: the input was copied"
    )
    zero = np.where(e.tail, e.want, 0.0)
    yield Mistake("the rotated elements are all zero: nothing was computed", lambda: zero, "zero")


def _doubled(e: Evidence) -> Mistakes:
    yield Mistake(
        "rotated twice: the angles are twice the right ones",
        lambda: e.turned(*e.cos_sin(), x=e.want),
        "rotated twice",
    )
    if abs(magnitude_of(e.config) - 1) > 1e-6:
        yield _by(e, "angles doubled: pairs turn by twice the right angle", rows=2 * e.rows)


def _lines(e: Evidence) -> Mistakes:
    """Yield what can be wrong in the two formulas of a rotation."""
    cos, sin = e.cos_sin()
    first, second = e.pairs
    x = e.x.astype(np.float64)
    a, b = x[..., first], x[..., second]
    way = "inverse" if e.forward else "forward"
    yield Mistake(f"the sign of sin is wrong: this is the {way} rotation", lambda: e.turned(cos, -sin))
    yield Mistake("sin and cos are exchanged", lambda: e.turned(sin, cos))

    def written(p: F64 | None, q: F64 | None) -> F64:
        out = e.want.copy()
        for part, values in ((first, p), (second, q)):
            if values is not None:
                out[..., part] = values
        return out

    yield Mistake(
        "the two elements of each pair are exchanged in the output",
        lambda: written(e.want[..., second], e.want[..., first]),
    )
    yield Mistake(
        "in place: the second element is computed from the first one after it was overwritten",
        lambda: written(None, e.want[..., first] * sin + b * cos),
    )
    yield Mistake("only the first element of each pair is rotated", lambda: written(None, b))
    yield Mistake("only the second element of each pair is rotated", lambda: written(a, None))
    signs, others = "wrong sign in one line", "one line is wrong"
    right = ("a * cos - b * sin", "a * sin + b * cos")
    for k, what, text, values in (
        (0, signs, "a * cos + b * sin", lambda: a * cos + b * sin),
        (1, signs, "b * cos - a * sin", lambda: b * cos - a * sin),
        (1, signs, "a * sin - b * cos", lambda: a * sin - b * cos),
        (0, signs, "b * sin - a * cos", lambda: b * sin - a * cos),
        (1, signs, "-a * sin - b * cos", lambda: -a * sin - b * cos),
        (0, signs, "-a * cos - b * sin", lambda: -a * cos - b * sin),
        (0, others, "a * sin + b * cos", lambda: a * sin + b * cos),
        (0, others, "a * sin - b * cos", lambda: a * sin - b * cos),
        (1, others, "a * cos - b * sin", lambda: a * cos - b * sin),
        (1, others, "a * cos + b * sin", lambda: a * cos + b * sin),
        (0, others, "a * cos", lambda: a * cos),
        (1, others, "a * sin", lambda: a * sin),
        (1, others, "b * cos", lambda: b * cos),
    ):
        name = ("first", "second")[k]
        yield Mistake(
            f"{what}: the {name} element of each pair (a, b) is {text} where it has to be {right[k]}",
            lambda k=k, values=values: written(None if k else values(), values() if k else None),  # type: ignore[misc]
        )


def _by(e: Evidence, text: str, config: RopeConfig | None = None, rows: Rows | None = None) -> Mistake:
    """Return the mistake of another configuration or other positions."""
    return Mistake(text, lambda: e.rotated(config, rows), config=config, rows=rows)


def _pairings(e: Evidence) -> Mistakes:
    c, d = e.config, e.x.shape[3]
    pairs = c.n_pairs(None)
    i = np.arange(pairs)
    asked, other = ("NORMAL", "NEOX") if c.mode == "normal" else ("NEOX", "NORMAL")
    swapped = (c.n_offs + i, c.n_offs + pairs + i) if c.mode == "normal" else (c.n_offs + 2 * i, c.n_offs + 2 * i + 1)
    yield Mistake(
        f"pairs swapped: it rotates {other} pairs where the case is {asked} "
        f"(if it is to do {other} only: `// lab: requires {other.lower()}`)",
        lambda: e.rotated(places=swapped),
    )
    even = d - d % 2
    if c.mode != "normal" and 2 * pairs < even:

        def first_halves() -> F64:
            """Return the first element of each pair; what the second half holds depends on the order of writes."""
            out = e.rotated(places=(i, d // 2 + i))
            out[..., pairs:] = np.nan
            return out

        yield Mistake(
            "halves at head_dim / 2 instead of n_dims / 2: the second element of pair i is i + n_dims / 2", first_halves
        )
        whole = replace(c, n_dims=even, freq_factors=None)
        yield _by(e, "n_dims ignored: the whole head is rotated, by the angles of n_dims", whole)
    if c.n_offs:
        moved = (e.pairs[0] - c.n_offs, e.pairs[1] - c.n_offs)
        yield Mistake("n_offs ignored: the rotated elements begin at n_offs", lambda: e.rotated(places=moved))


def _frequencies(e: Evidence) -> Mistakes:
    c, d = e.config, e.x.shape[3]
    pairs = c.n_pairs(None)
    if not e.own_angles:
        return  # tables have the right ones
    if not c.uses_sections:
        if 2 * pairs < d:
            exponent = replace(c, freq_base=c.freq_base ** (2 * pairs / d))
            yield _by(e, "frequencies by head_dim instead of n_dims: the exponent is -2 i / n_dims", exponent)
        half, double = (replace(c, freq_base=c.freq_base**power) for power in (0.5, 2))
        yield _by(e, "frequencies by -i / n_dims instead of -2 i / n_dims", half)
        yield _by(e, "frequencies by -4 i / n_dims instead of -2 i / n_dims", double)
    for base in (10000.0, 500000.0, 1000000.0):
        if base != c.freq_base:
            changed = replace(c, freq_base=base)
            yield _by(e, f"freq_base ignored: {base:g} where it is {c.freq_base:g}", changed)
    if c.uses_sections:
        one = np.repeat(e.rows[:1], 4, axis=0)
        yield _by(e, "sections ignored: the first row of positions drives all pairs", rows=one)


def _scalings(e: Evidence) -> Mistakes:
    c = e.config
    if e.own_angles and c.freq_scale != 1 and c.ext_factor == 0:
        yield _by(e, "freq_scale ignored", replace(c, freq_scale=1.0))
        inverted = replace(c, freq_scale=1 / c.freq_scale)
        yield _by(e, "freq_scale inverted: angles are multiplied by it", inverted)
    magnitude = magnitude_of(c)

    if abs(magnitude - 1) > 1e-6:
        text = f"magnitude missing: cos and sin have the factor {magnitude:.6g}"
        yield Mistake(text, lambda: _scaled(e, 1 / magnitude))
        yield Mistake(f"magnitude applied twice: the factor {magnitude:.6g} squared", lambda: _scaled(e, magnitude))
        copied = np.where(e.tail, e.x.astype(np.float64) * magnitude, e.want)
        yield Mistake("magnitude applied to the copied elements, too", lambda: copied)
    if e.own_angles and c.ext_factor != 0:
        plain = replace(c, ext_factor=0.0, attn_factor=magnitude)
        yield _by(e, "YaRN's ramp ignored: all angles are scaled by freq_scale", plain)
        yield _by(e, "YaRN's ramp and magnitude ignored", replace(c, ext_factor=0.0))
        yield _by(e, "YaRN's ramp wrong: no angle is scaled by freq_scale", replace(plain, freq_scale=1.0))
        text = "YaRN's ramp inverted: high frequencies are scaled instead of low ones"
        yield Mistake(text, lambda: _turned_by(e, _ramp_inverted(e)))
        exchanged = replace(c, beta_fast=c.beta_slow, beta_slow=c.beta_fast)
        yield _by(e, "YaRN's ramp wrong: beta_fast and beta_slow exchanged", exchanged)
        text = "YaRN's magnitude missing: 1 + 0.1 ln(1 / freq_scale)"
        yield Mistake(text, lambda: _scaled(e, c.attn_factor / magnitude))
    if e.own_angles and c.freq_factors is not None:
        yield _by(e, "freq_factors ignored", replace(c, freq_factors=None))
        factors = tuple(1 / f for f in c.freq_factors)
        yield _by(e, "freq_factors inverted: angles are divided by them", replace(c, freq_factors=factors))


def _scaled(e: Evidence, factor: float) -> F64:
    cos, sin = e.cos_sin()
    return e.turned(factor * cos, factor * sin)


def _ramp_inverted(e: Evidence) -> F64:
    """Return radians per position with each pair's two frequencies mixed the other way round."""
    scaled = replace(e.config, ext_factor=0.0)
    one, other, mixed = (angle_table(c).omega for c in (scaled, replace(scaled, freq_scale=1.0), e.config))
    return np.asarray(one + other - mixed)


def _turned_by(e: Evidence, omega: F64, rounded: Callable[[F64], F64] = lambda theta: theta) -> F64:
    """Return the rotation by other radians per position; rounded: what is done to each angle."""
    table = angle_table(e.config)
    axes = table.axis if len(e.rows) > 1 else np.zeros(table.pairs, np.intp)
    theta = rounded(np.moveaxis(e.rows[axes].astype(np.float64), 0, -1) * omega)[:, :, None, :]
    magnitude = magnitude_of(e.config)
    return e.turned(np.cos(theta) * magnitude, np.sin(theta) * (magnitude if e.forward else -magnitude))


def _positions(e: Evidence) -> Mistakes:
    rows = e.rows
    b, s = rows.shape[1:]

    def of(text: str, changed: Any) -> Mistake:
        whole = np.ascontiguousarray(np.broadcast_to(changed, rows.shape)).astype(np.int64)
        return _by(e, text, rows=whole)

    batches, tokens = np.arange(b)[:, None], np.arange(s)
    yield of("positions ignored: the token's index is used (an offset is left out)", tokens)
    if b > 1:
        yield of("positions of batch 0 are used for all batches", rows[:, :1])
        text = "the number of the batch is used as if tokens of all batches counted up"
        yield of(text, batches * s + tokens)
        text = "positions run on across batches: token t of batch b is taken for token b * tokens + t"
        yield of(text, rows + batches * s)
    if s > 1:
        yield of("the position of token 0 is used for all tokens", rows[:, :, :1])
        yield of("the position of the token before is used (a row too early)", np.roll(rows, 1, axis=2))
        yield of("the position of the next token is used (a row too late)", np.roll(rows, -1, axis=2))
        if b > 1:
            flat = rows.reshape(len(rows), -1)
            text = "batches and tokens of the positions exchanged: position t * batches + b is used"
            yield of(text, flat[:, tokens * b + batches])
    yield of("positions are one too large", rows + 1)
    yield of("positions are one too small", rows - 1)
    for name in ("int16", "int8"):
        yield of(f"positions truncated to {name}", rows.astype(name))
        yield of(f"positions truncated to u{name}", rows.astype(f"u{name}"))
    yield of("positions truncated to int32", rows.astype(np.int32))
    yield of("positions taken as unsigned: negative ones wrap to 2**32 - n", rows.astype(np.uint32))
    if (rows < 0).any():
        yield of("the sign of negative positions is lost", np.abs(rows))
        yield of("negative positions are taken as 0", np.maximum(rows, 0))


def _memory(e: Evidence) -> Mistakes:
    b, s, n, d = e.x.shape
    dense = e.dense
    if dense is not None:
        text = "strides of x ignored: it is read as if it were contiguous"
        yield Mistake(text, lambda: e.rotated(x=dense))
    if n > 1:
        heads = np.repeat(e.x[:, :, :1], n, axis=2)
        yield Mistake("every head is rotated from head 0 of the input", lambda: e.rotated(x=heads))
    if b > 1:
        batches = np.repeat(e.x[:1], b, axis=0)
        yield Mistake("every batch is rotated from batch 0 of the input", lambda: e.rotated(x=batches))
    if n > 1 and s > 1:

        def other_order() -> F64:
            order = np.ascontiguousarray(e.x).reshape(b, n, s, d).swapaxes(1, 2)
            return np.ascontiguousarray(e.rotated(x=order).swapaxes(1, 2)).reshape(b, s, n, d)

        yield Mistake("heads and tokens exchanged: memory is read as [batch][head][token]", other_order)


def _roundings(e: Evidence) -> Mistakes:
    """Yield values of short types where float32 is meant."""
    for name, (dtype, ties) in _SHORT.items():

        def short(values: Array, dtype: Any = dtype) -> F64:
            return np.asarray(values, np.float32).astype(dtype).astype(np.float64)

        if e.own_angles:
            yield from _rounded_angles(e, name, "rounded", short, ties)
        if e.dtype not in ("bf16", {"float16": "f16"}.get(name)):
            yield from _rounded_values(e, name, short, ties)
    if e.own_angles:
        yield from _rounded_angles(e, "bfloat16", "truncated", _cut, 2 * _SHORT["bfloat16"][1])
    singles = e.rows.astype(np.float32).astype(np.float64)
    if (singles != e.rows).any() and (np.abs(singles) < 2**63).all():
        yield _by(e, "positions rounded to float32", rows=singles.astype(np.int64))


def _cut(values: Array) -> F64:
    """Return values cut off to bfloat16."""
    words = np.array(values, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return words.view(np.float32).astype(np.float64)


def _rounded_angles(e: Evidence, name: str, how: str, to: Callable[[Array], F64], ties: float) -> Mistakes:
    omega = angle_table(e.config).omega
    plain = angle_table(replace(e.config, freq_scale=1.0, ext_factor=0.0, freq_factors=None)).omega
    with np.errstate(over="ignore"):
        rows = to(e.rows)
    if np.isfinite(rows).all() and (rows != e.rows).any() and (np.abs(rows) < 2**62).all():
        yield _by(e, f"positions {how} to {name}", rows=rows.astype(np.int64))
    yield Mistake(f"frequencies {how} to {name}", lambda: _turned_by(e, to(omega)))
    if not np.array_equal(plain, omega):
        yield Mistake(f"frequencies {how} to {name}", lambda: _turned_by(e, to(plain) * (omega / plain)))
    yield Mistake(f"angles {how} to {name}", lambda: _turned_by(e, omega, to), ties=4 * ties)


def _rounded_values(e: Evidence, name: str, to: Callable[[Array], F64], ties: float) -> Mistakes:
    x, (cos, sin) = e.x.astype(np.float64), e.cos_sin()
    tail = to(x) if e.near(to(x), e.tolerances[0])[..., e.tail].all() else x

    def arithmetic() -> F64:
        out, short = tail.copy(), to(x)
        a, b = short[..., e.pairs[0]], short[..., e.pairs[1]]
        c, s = to(cos), to(sin)
        out[..., e.pairs[0]] = to(to(a * c) - to(b * s))
        out[..., e.pairs[1]] = to(to(a * s) + to(b * c))
        return out

    def turned(c: F64, s: F64, values: F64) -> F64:
        return np.where(e.tail, tail, e.turned(c, s, values))

    text = f"{name} arithmetic where float32 is meant: products and sums are rounded to {name}"
    yield Mistake(text, arithmetic, ties=4 * ties)
    yield Mistake(f"cos and sin rounded to {name}", lambda: turned(to(cos), to(sin), x), ties=ties)
    yield Mistake(f"the input rounded to {name}", lambda: turned(cos, sin, to(x)), ties=ties)
    text = f"the input, cos and sin rounded to {name}"
    yield Mistake(text, lambda: turned(to(cos), to(sin), to(x)), ties=2 * ties)
    yield Mistake(f"the result rounded to {name}", lambda: np.where(e.tail, tail, to(e.want)), ties=2 * ties)
