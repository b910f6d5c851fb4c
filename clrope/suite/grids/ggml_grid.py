"""The suite 'ggml': the parameters of ggml's test_rope, with ggml itself as a second reference where it is installed.

The grid has the dimensions of ggml's tests/test-backend-ops.cpp, and windows with an offset (n_offs) for the four modes
that have them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from .. import ggml_live
from ..case import Case
from ..registry import suite
from ..rope_trial import CaseLine

NORMAL, NEOX, MROPE, VISION, IMROPE = 0, 2, 8, 24, 40
SCALED = 1.4245
YARN = 0.7465

Row = tuple[tuple[int, int, int, int], int, int]
#: (ne_a, n_dims, mode), in every combination of scalings.
_ALWAYS: list[Row] = [((128, 32, 2, 1), 128, NORMAL), ((64, 128, 2, 1), 64, NEOX)]
#: Likewise, without scaling and in f32 only.
_PLAIN: list[Row] = [
    ((128, 40, 2, 1), 128, NORMAL), ((128, 52, 2, 1), 128, NORMAL), ((128, 64, 2, 1), 128, NORMAL),
    ((16, 16, 8192, 1), 16, NORMAL),
    ((64, 1, 2, 1), 64, NEOX), ((64, 71, 2, 1), 64, NEOX), ((64, 8, 2, 1), 64, NEOX),
    *(((80, 32, tokens, 1), dims, mode) for mode in (NORMAL, NEOX) for dims, tokens in ((20, 2), (32, 2), (32, 4))),
    ((16, 16, 8192, 1), 16, NEOX),
    *(
        ((128, heads, 2, 1), dims, mode)
        for mode in (MROPE, IMROPE) for heads, dims in ((12, 128), (28, 128), (12, 20), (28, 32))
    ),
    ((80, 16, 2, 1), 80, VISION), ((128, 16, 2, 1), 128, IMROPE), ((16, 16, 8192, 1), 16, IMROPE),
]  # fmt: skip
_MODES = (NORMAL, NEOX, MROPE, IMROPE, VISION)


@dataclass(frozen=True)
class GgmlLine(CaseLine):
    """A case that ggml computes too, if it can."""

    def prepare(self, seed: int) -> ggml_live.LiveTrial:
        """Draw the inputs, compute the reference, and let ggml compute its answer."""
        return ggml_live.LiveTrial(self.case, seed)


@suite("ggml", remark=ggml_live.remark)
def ggml() -> Iterator[GgmlLine]:
    """868 cases: ggml's test_rope in five modes, forward and back, views, in place, offsets."""
    for case in _cases():
        yield GgmlLine(case)


def _cases() -> Iterator[Case]:
    for forward in (True, False):
        for fs, ef, af in product((1.0, SCALED), (0.0, YARN), (1.0, SCALED)):
            for kind, ff in product(("f32", "f16"), (False, True)):
                base = Case(kind, (2, 1, 1, 1), 2, NORMAL, 512, fs, ef, af, ff, 0, forward=forward)
                more = _PLAIN if (fs, ef, af, kind) == (1.0, 0.0, 1.0, "f32") else []
                for (ne, dims, mode), view in product(_ALWAYS + more, (0, 1)):
                    yield replace(base, ne_a=ne, n_dims=dims, mode=mode, v=view)
                for mode in _MODES:
                    yield replace(base, ne_a=(36, 16, 2457, 1), n_dims=36, mode=mode, v=2)
    for kind, mode, ff in product(("f32", "f16"), _MODES, (False, True)):
        base = Case(kind, (128, 32, 2, 1), 128, mode, 512, SCALED, YARN, SCALED, ff, 0, inplace=True)
        yield base
        yield replace(base, v=1)
        yield replace(base, v=1, ne_a=(128, 32, 2, 3))
    for kind, mode, ff, view in product(("f32", "f16"), (NORMAL, NEOX, MROPE, IMROPE), (False, True), (0, 1)):
        yield Case(kind, (128, 12, 2, 1), 48, mode, 512, 1.0, 0.0, 1.0, ff, view, n_offs=80 if view else 32)
