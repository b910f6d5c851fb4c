"""Ascend's `npu_rotary_mul`: `y = x * r1 + rotate(x) * r2`, element by element, in its four rotary modes.

Formulas: torch_npu's `npu_rotary_mul` and CANN's `aclnnRotaryPositionEmbedding`. r1 and r2 are whole rows, one number
for each element of a head, and need not hold the same number twice. The axes of x have no names there: BNSD, BSND and
SBND differ in which axes of r1 and r2 have length 1, and so they do here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import Operand, check_out, empty_like, operand
from ..call.plan import Plan
from ..errors import ConfigError, ShapeError, reading, renamed, shown
from ..integers import is_integer
from ..tables import FullTables, rotate_plan

__all__ = ["ROTARY_MODES", "rotary_mul"]

#: Names and aclnn's numbers of the modes.
ROTARY_MODES: dict[str, int] = {"half": 0, "interleave": 1, "quarter": 2, "interleave-half": 3}
#: Layout of a mode's pairs in x, in y (None: as in x), and of a pair's two numbers in r1 and r2.
_PAIRS: dict[str, tuple[str, str | None, FullTables]] = {
    "half": ("neox", None, "halves"),
    "interleave": ("normal", None, "interleaved"),
    "interleave-half": ("normal", "neox", "halves"),
}


def rotary_mul(
    x: Any, r1: Any, r2: Any, rotary_mode: str | int = "half", *, out: Any = None, device: Any = None
) -> Any:
    """Return `x * r1 + rotate(x) * r2`, an array of x's kind, shape and dtype.

    x:      rank 4, BNSD, BSND or SBND; float16, bfloat16, float32 (and float64); any strides.
    r1, r2: cos and sin, rank 4, of x's dtype; the last axis as long as x's, the others as long as x's or 1: 11SD, B1SD,
            BNSD for x in BNSD, 1S1D, BS1D, BSND for BSND, S11D, SB1D, SBND for SBND, and any other choice of ones.
    rotary_mode, with D the length of the last axis, or aclnn's number of it:
        'half' (0):            rotate(x) = (-x[D/2:], x[:D/2]).
        'interleave' (1):      rotate(x)[2i] = -x[2i + 1], rotate(x)[2i + 1] = x[2i].
        'quarter' (2):         quarters (x1, x2, x3, x4) become (-x2, x1, -x4, x3); D a multiple of 4.
        'interleave-half' (3): x is first put in the order (x[0::2], x[1::2]), then as 'half'; y stays in that order.
    out, device: as for `clrope.rope`; 'interleave-half' moves elements and cannot work in place.

    Raises `ShapeError`, `ConfigError`, `DeviceError`, `BuildError` before anything is launched.
    """
    mode = _mode(rotary_mode)
    for name, tensor in (("x", x), ("r1", r1), ("r2", r2)):
        with reading(name, tensor):
            if len(getattr(tensor, "shape", (0,) * 4)) != 4:
                raise ShapeError(f"{name}: got rank {len(tensor.shape)}, 4 is needed (BNSD, BSND or SBND)")
    source = operand(x, "bsnd", "x")
    if source.view.size:
        tables = operand(r1, "bsnd", "r1"), operand(r2, "bsnd", "r2")
        _check(source, *tables, mode)
    target = empty_like(source) if out is None else operand(out, "bsnd", "out", writable=True)
    check_out(source, target)
    y = target.original
    if source.view.size:
        x, r1, r2, out = (_sliceable(tensor) for tensor in (source, *tables, target))
        plans = [plan for cut in _windows(mode, x.shape[3]) for plan in _plans(x, r1, r2, out, mode, cut, device)]
        for plan in plans:
            plan.run()
    return y


def _mode(rotary_mode: str | int) -> str:
    names = {number: name for name, number in ROTARY_MODES.items()}
    mode = names.get(int(rotary_mode)) if is_integer(rotary_mode) else rotary_mode
    if not isinstance(mode, str) or mode not in ROTARY_MODES:
        allowed = ", ".join(f"{name!r} ({number})" for name, number in ROTARY_MODES.items())
        raise ConfigError(f"rotary_mode: got {shown(rotary_mode)}, allowed are {allowed}")
    return mode


def _sliceable(tensor: Operand) -> Any:
    """Return a tensor as what can be cut into windows: of a buffer, which has no such slices, the NumPy view."""
    return tensor.host if tensor.kind == "numpy" else tensor.original


def _check(x: Operand, r1: Operand, r2: Operand, mode: str) -> None:
    shape = tuple(_sliceable(x).shape)
    multiple = 4 if mode == "quarter" else 2
    if shape[3] % multiple:
        raise ShapeError(f"x: the last axis has {shape[3]} elements, mode {mode!r} needs a multiple of {multiple}")
    rows = [tuple(_sliceable(table).shape) for table in (r1, r2)]
    for name, found, given in zip(("r1", "r2"), (r1, r2), rows, strict=True):
        if given[3] != shape[3] or any(n not in (1, m) for n, m in zip(given, shape, strict=True)):
            raise ShapeError(
                f"{name}: got shape {list(given)}, x has {list(shape)}: the last axis must be the same, each other the "
                "same or 1"
            )
        if found.view.dtype != x.view.dtype:
            raise ShapeError(f"{name}: got dtype {_sliceable(found).dtype}, x has {_sliceable(x).dtype}")
        if found.kind != x.kind:
            raise ShapeError(f"{name}: got {found.kind} memory, x is in {x.kind} memory")
    if rows[0] != rows[1]:
        raise ShapeError(f"r2: got shape {list(rows[1])}, r1 has {list(rows[0])}")


def _windows(mode: str, head_dim: int) -> list[slice]:
    """Return the parts of a head that are rotated on their own."""
    half = head_dim // 2
    return [slice(0, half), slice(half, head_dim)] if mode == "quarter" else [slice(0, head_dim)]


def _plans(x: Any, r1: Any, r2: Any, y: Any, mode: str, window: slice, device: Any) -> list[Plan]:
    """Plan one window. Axes on which r1 differs are tokens, then batches; what is left are heads."""
    own = [axis for axis in range(3) if r1.shape[axis] > 1]
    if len(own) == 3:
        # Tables per head as well: one plan for each place on the shortest axis.
        axis = min(own, key=lambda a: int(x.shape[a]))
        plans = []
        for i in range(x.shape[axis]):
            at = tuple(slice(i, i + 1) if a == axis else slice(None) for a in range(4))
            plans += _plans(x[at], r1[at], r2[at], y[at], mode, window, device)
        return plans
    rest = [axis for axis in range(3) if axis not in own]
    token = own[-1] if own else rest.pop()
    batch = own[0] if len(own) == 2 else rest.pop(0)
    layout = "".join({token: "s", batch: "b"}.get(axis, "n") for axis in range(3)) + "d"
    row = tuple(slice(None) if axis in own else 0 for axis in range(3))
    cosine, sine = r1[(*row, window)], r2[(*row, window)]
    positions = None
    if not own:  # one row for all tokens
        cosine, sine, positions = cosine[None], sine[None], np.zeros(x.shape[token], np.int64)
    pairs, out_pairs, full = _PAIRS.get(mode, _PAIRS["half"])
    cut = (slice(None), slice(None), slice(None), window)
    with renamed({"cos": "r1", "sin": "r2"}):
        return [
            rotate_plan(
                x[cut], cosine, sine, positions, pairs, y[cut], layout, device, n_dims=window.stop - window.start,
                full_tables=full, out_mode=out_pairs,
            )
        ]  # fmt: skip
