"""Why a rotation is wrong: first where it is wrong, then which mistake gives the values that are there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ..angles import angle_table
from ..errors import RopeError
from ..regions import box_around, box_text, touched
from ..testing import LIMITS, nmse
from .evidence import Evidence, Mask
from .mistakes import Mistake, known_mistakes, measured_mistakes

_AXES = ("batch", "token", "head", "pair")
#: Share of elements whose value may be rounded the other way than a prediction.
_TIES = 0.02
#: Largest error, in units of an element's size, that little precision explains.
_IMPRECISE = 2.0**-6


def diagnose(e: Evidence, most: int = 3) -> list[str]:
    """Return what the kernel probably did wrong, the likeliest first; one sentence each, at least one.

    A mistake is named only if it gives all values that are wrong, or all that are wrong in one part of the tensor.
    """
    structural = list(_structural(e))
    texts = [text for text, _ in structural]
    rest = e.finite & ~np.logical_or.reduce([mask for _, mask in structural], initial=False)
    if not rest.any() or not e.wrong[rest].any():
        return texts[:most] or _causes(e, rest)[:most] or [_regions(e, rest)]
    near = _causes(e, rest)
    if near and texts and texts[0].startswith("partly"):
        texts, near = near, texts  # what was written says more
    return [*texts, *(near or [_regions(e, rest)])][:most]


def _structural(e: Evidence) -> Iterator[tuple[str, Mask]]:
    """Yield what was not computed at all, and the elements that this explains."""
    missing, everywhere = e.unwritten, np.ones(e.x.shape, np.bool_)
    turned = np.concatenate(e.pairs)
    if e.call and e.before is not None:
        earlier = e.before[..., turned].astype(np.float64)
        if nmse(e.got[..., turned], earlier) <= e.limit:
            yield (
                "the result of the first call was given again, for another input (a cached answer is replayed)",
                everywhere,
            )
            return
    share = missing.mean()
    if share > 0.999 and not e.call:
        yield "nothing was written: the output is as it was before the call", everywhere
        return
    if e.call and share > 0.2:
        text = (
            f"in call {e.call + 1} {share:.0%} of the output was not written: results depend on the call or on poison"
        )
        yield text, missing
    elif e.tail.any() and missing[..., e.tail].all() and not missing[..., ~e.tail].any():
        yield "the tail was not copied: elements from n_dims on are as they were in the output", missing
    elif share:
        where = _in_brackets(e, missing)
        yield f"partly written: {share:.1%} of the elements are as they were before the call{where}", missing
    made = np.isnan(e.values) & ~missing & np.isfinite(e.want)
    if made.any():
        where = _in_brackets(e, made)
        yield f"NaN was made: {made.sum()} elements are NaN where the reference is finite{where}", made
    if e.tail.any() and not e.values[..., e.tail].any() and e.want[..., e.tail].any():
        yield (
            "the tail is zero: elements from n_dims on have to be copied from the input",
            everywhere & e.tail,
        )


def _causes(e: Evidence, rest: Mask) -> list[str]:
    """Return the mistakes that explain what is off in the rest; as precise as can be, or else as the limit asks for."""
    tight, loose = e.tolerances
    for tolerance in (tight, loose) if loose > 10 * tight else (max(tight, loose),):
        off = _off(e, rest, tolerance)
        if off.any():
            for mistakes in (known_mistakes(e), measured_mistakes(e, off)):
                if found := _fitting(e, rest, off, tolerance, mistakes):
                    return found
    return list(_numerical(e, rest))


def _off(e: Evidence, rest: Mask, tolerance: float) -> Mask:
    return rest & ~e.near(e.want, tolerance + e.doubt())


def _fitting(e: Evidence, rest: Mask, off: Mask, tolerance: float, mistakes: Iterable[Mistake]) -> list[str]:
    """Return the mistakes that give the whole result; if there is none, those that give what is wrong in a part."""
    found: list[tuple[str, float, str]] = []
    for mistake in mistakes:
        try:
            with np.errstate(all="ignore"):
                predicted = mistake.predict()
        except (RopeError, ValueError, IndexError, OverflowError, ZeroDivisionError):
            continue  # not possible with this configuration
        open_ = np.isnan(predicted)
        doubt = e.doubt(mistake.config, mistake.rows)
        near = e.near(predicted, tolerance + doubt)
        if mistake.ties:
            close = e.near(predicted, tolerance + doubt + mistake.ties)
            near = close if np.mean(near[rest]) >= 1 - _TIES and np.mean(near[off]) >= 0.9 else near
        seen = off & near & (doubt < 0.5)
        if not (near | open_)[off].all() or seen.sum() <= 0.01 * off.sum():
            continue
        error = nmse(e.got[seen], predicted[seen])
        if (near | open_)[rest].all():
            found.append(("whole", error, mistake.text))
        elif where := _where(e, off, near | ~rest):
            text, singular = where
            verb = f" {'is' if singular else 'are'} {mistake.local}" if mistake.local else f": {mistake.text}"
            found.append(("undone" if mistake.local else "part", error, text + verb))
    kinds = [kind for kind, _, _ in found]
    best = next((kind for kind in ("whole", "undone", "part") if kind in kinds), "")
    named = [(error, text) for kind, error, text in found if kind == best]
    least = min((error for error, _ in named), default=0.0)
    # Of those that explain the values alike the simplest comes first.
    named = [one for one in named if one[0] <= max(100 * least, e.limit)]
    named.sort(key=lambda one: one[0] > 4 * least + 1e-15)
    return list(dict.fromkeys(text for _, text in named))


def _where(e: Evidence, must: Mask, may: Mask) -> tuple[str, bool] | None:
    """Return the part of the tensor that holds all of must and nothing outside of may, and whether it is singular."""
    first, second = e.pairs
    last = "pair"
    if must[..., e.tail].any():
        last = "element"
        box = box_around(must, may)
    else:
        must, may = must[..., first] | must[..., second], may[..., first] & may[..., second]
        box = box_around(must, may)
    return None if box is None else box_text(box, must.shape, (*_AXES[:3], last))


def _in_brackets(e: Evidence, mask: Mask) -> str:
    """Return ' (tokens from 64 on)' and the like if a mask is all of a part of the tensor, and nothing else."""
    where = _where(e, mask, mask)
    if where is None or not where[0]:
        return ""
    remainder = where[0].startswith("tokens from")
    return f" ({where[0]}{': a remainder of the work-groups, perhaps' if remainder else ''})"


def _numerical(e: Evidence, rest: Mask) -> Iterator[str]:
    """Yield what is only imprecise: errors that grow with the angle, or small ones everywhere."""
    crossed = _drift(e) if e.own_angles and rest.all() else None
    if crossed is not None:
        yield (
            f"angle drift: the error grows with the position, and the limit is crossed at position {crossed}; "
            "compute angles in more than float32, or reduce them exactly"
        )
    elif _imprecise(e, rest):
        error = nmse(e.got[rest], e.want[rest])
        yield (
            f"too little precision (NMSE {error:.2g}): as of float16 or native_ functions where float32 is meant; "
            "compute in float32 and round once"
        )


def _imprecise(e: Evidence, rest: Mask) -> bool:
    """Whether errors are small, and spread over pairs, heads, tokens and batches."""
    first, second = e.pairs
    errors = np.where(rest, np.abs(e.values - e.want) / e.size, 0.0)
    if e.tail.any() and not e.near(e.want, e.tolerances[0])[..., e.tail].all():
        return False
    pairs = np.maximum(errors[..., first], errors[..., second])
    if not 0 < pairs.max() <= _IMPRECISE:
        return False
    for axis in range(4):
        spread = np.sqrt((pairs**2).mean(axis=tuple(k for k in range(4) if k != axis)))
        if np.mean(spread >= 0.02 * spread.max()) < 0.5:
            return False
    return True


def _drift(e: Evidence) -> int | None:
    """Return the smallest position over the limit if only angles are off, more so at high positions and frequencies."""
    first, second = e.pairs
    got, want = (a[..., first] + 1j * a[..., second] for a in (e.values, e.want))
    lengths = nmse(np.abs(got), np.abs(want))
    if (
        lengths > max(LIMITS[e.dtype], 0.05 * nmse(e.got, e.want))
        or not e.near(e.want, e.tolerances[1])[..., e.tail].all()
    ):
        return None
    table = angle_table(e.config)
    axes = table.axis if len(e.rows) > 1 else np.zeros(table.pairs, np.intp)
    theta = np.abs(np.moveaxis(e.rows[axes].astype(np.float64), 0, -1))[:, :, None, :] * np.abs(table.omega)
    error = np.abs(got - want)
    # In float32 an angle is wrong by a small part of itself, at most.
    if (error > (1e-4 * theta + e.tolerances[0]) * e.size[..., first]).any():
        return None
    by_pair = (error**2).mean(axis=(0, 1, 2))
    slow = max(1, len(by_pair) // 4)
    if by_pair[-slow:].mean() > 0.3 * by_pair[:slow].mean():
        return None
    power = np.maximum((np.abs(want) ** 2).mean(axis=(2, 3)), 1e-30)
    by_token = ((error**2).mean(axis=(2, 3)) / power).ravel()
    place = np.abs(e.rows.astype(np.float64)).max(axis=0).ravel()
    over = by_token > e.limit
    if not over.any() or place[over].min() < 256 or ((~over).any() and place[~over].min() > place[over].max()):
        return None
    return int(place[over].min())


def _regions(e: Evidence, rest: Mask) -> str:
    """Return which part is wrong where nothing else is known."""
    wrong = e.wrong & rest
    if not wrong.any():
        wrong = _off(e, rest, e.tolerances[0])
    if not wrong.any():
        return f"no element is far off; no hypothesis explains the errors (NMSE {nmse(e.got, e.want):.2g})"
    unknown = "no hypothesis explains the values"
    for text, chosen in _by_position(e):
        tokens = np.broadcast_to(chosen[..., None, None], wrong.shape)
        if 0 < chosen.mean() < 1 and not wrong[~tokens].any() and np.asarray(wrong.any(axis=(2, 3)))[chosen].all():
            if e.own_angles and text.endswith("negative positions"):
                unknown = "they are taken as unsigned, perhaps (in float32, angles that large cannot be checked)"
            return f"{text} are wrong, the others are right; {unknown}"
    if list(touched(wrong, 2)) == list(range(1, wrong.shape[2])):
        return f"heads beyond the first are wrong; {unknown}"
    first, second = e.pairs
    if not wrong[..., e.tail].any():
        wrong = wrong[..., first] | wrong[..., second]
    box = tuple(touched(wrong, axis) for axis in range(4))
    names = (*_AXES[:3], "element" if wrong.shape == e.x.shape else "pair")
    text, singular = box_text(box, wrong.shape, names)
    if not text:
        return f"{wrong.mean():.1%} of the {names[3]}s are wrong; {unknown}"
    return f"{text} {'is' if singular else 'are'} wrong, the rest is right; {unknown}"


def _by_position(e: Evidence) -> Iterator[tuple[str, Mask]]:
    """Yield sets of tokens by their positions: negative ones, and those beyond what a type holds."""
    rows = e.rows[0]
    yield "tokens at negative positions", rows < 0
    for bits in (7, 8, 15, 16, 24, 31, 32):
        yield f"tokens at positions from 2**{bits} on", rows >= 1 << bits
