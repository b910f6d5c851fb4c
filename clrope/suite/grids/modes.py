"""The suite 'modes': parameters of the five modes beyond ggml's own grid.

Sections that wrap, that do not sum to the pairs, that use all four axes; windows with an offset; YaRN's ramp with a
context length; bases; positions far away, negative, per batch, of every integer type; ggml's own angles; float64. Long
axes; views of inputs and outputs; inputs of all magnitudes with NaN and infinities.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, product

from ..case import INTEGERS, Case
from ..registry import suite
from ..rope_trial import CaseLine

_MODES = (0, 2, 8, 24, 40)
_SECTIONS = {
    # All of (t, h, w, e), counts of pairs; the heads below have 32 rotated pairs (vision: 64).
    8: [(16, 8, 8, 0), (8, 8, 8, 8), (3, 5, 7, 2), (0, 0, 5, 0), (40, 40, 40, 40), (1, 0, 0, 31)],
    40: [(12, 10, 10, 0), (11, 11, 10, 0), (3, 5, 7, 2), (1, 1, 1, 0), (20, 2, 2, 8), (0, 4, 0, 28)],
    24: [(32, 32, 0, 0), (16, 16, 16, 16), (3, 5, 7, 2), (64, 0, 0, 0), (0, 7, 0, 0), (40, 40, 40, 40)],
}


@suite("modes")
def modes() -> Iterator[CaseLine]:
    """Sections, windows, YaRN ramps, bases, far and negative positions, all integer types, in all five modes."""
    seen = set()
    for case in _cases():
        if case not in seen:
            seen.add(case)
            yield CaseLine(case)
    yield from map(CaseLine, _long_cases())
    yield from map(CaseLine, _laid_out_cases())
    yield from map(CaseLine, _wide_cases())


def _long_cases() -> Iterator[Case]:
    """Yield axes longer than 8 and 16 bits count, one at a time: errors that short tensors do not show."""
    for mode, shape, form in (
        (2, (4, 1, 70000, 1), "random"), (0, (8, 3, 2100, 2), "batch"), (2, (8, 2, 4200, 1), "offset"),
        (0, (8, 300, 3, 2), "batch"), (2, (16, 1, 3, 270), "batch"), (2, (1100, 2, 3, 2), "batch"),
        (0, (1100, 2, 3, 1), "random"), (2, (2, 70000, 1, 1), "random"),
    ):  # fmt: skip
        yield Case("f32", shape, shape[0], mode, 4096, 1.0, 0.0, 1.0, False, 0, pos=form)


def _laid_out_cases() -> Iterator[Case]:
    """Yield views with strides of their own in input and output, of either sign, for kernels that take strides."""
    kinds, directions = cycle(("f32", "f16", "f32")), cycle((True, True, False))
    for order, view, out in (
        ("bsnd", 1, 1), ("bsnd", 2, 1), ("bsnd", 3, 1), ("bsnd", 4, 0), ("bsnd", 4, 1), ("bsnd", 5, 1), ("bsnd", 6, 1),
        ("bnsd", 0, 0), ("bnsd", 1, 1), ("sbnd", 6, 0), ("dnsb", 0, 1), ("nsbd", 1, 1),
    ):  # fmt: skip
        for mode in (0, 2):
            yield Case(
                next(kinds), (80, 6, 5, 3), 40, mode, 512, 1.0, 0.0, 1.0, False, view,
                lo=order, o=out, forward=next(directions),
            )  # fmt: skip


def _wide_cases() -> Iterator[Case]:
    """Yield inputs of all magnitudes with NaN, infinities and signed zeros."""
    for mode, kind, forward in product((0, 2), ("f32", "f16", "bf16"), (True, False)):
        yield Case(
            kind, (80, 6, 5, 3), 40, mode, 512, 1.0, 0.0, 1.0, False, 0, inplace=not forward, forward=forward,
            vals="wide",
        )  # fmt: skip


def _cases() -> Iterator[Case]:
    types = cycle(("f32", "f16", "bf16", "f64"))
    directions = cycle((True, True, False))
    for mode in _MODES:
        # Batches of 3 with 7 tokens and 5 heads: no length is a multiple of a vector or of another.
        dims = 128 if mode == 24 else 64
        plain = Case("f32", (128, 5, 7, 3), dims, mode, 4096, 1.0, 0.0, 1.0, False, 0, bf=32.0)

        def varied(case: Case = plain, **changes: object) -> Iterator[Case]:
            """Yield the change in two types and directions."""
            for _ in range(2):
                yield replace(case, type=next(types), forward=next(directions), **changes)  # type: ignore[arg-type]

        for sections in _SECTIONS.get(mode, []):
            yield from varied(sections=sections)
            yield from varied(sections=sections, ff=True, pos="batch")
        for name in ("random", "signed", "offset", "offsets", "batch", "far") + (("three",) if mode >= 8 else ()):
            # Per-batch offsets have no rows t, h, w, e.
            yield from varied(pos=name, pt="int64")
        for integer in INTEGERS:
            yield from varied(pt=integer, n_ctx=100, inplace=True)
        for freq_base in (500000.0, 1000000.0, 100.0, 1.0):
            yield from varied(base=freq_base)
        # YaRN with a ramp inside the head: Qwen2.5's and DeepSeek's parameters, and a weight that is not 1.
        yield from varied(fs=0.25, ef=1.0, n_ctx_orig=32768, base=1000000.0, bs=1.0, n_ctx=100000)
        yield from varied(fs=0.025, ef=1.0, n_ctx_orig=4096, af=0.7, n_ctx=100000)
        yield from varied(fs=0.5, ef=0.6, n_ctx_orig=2048, ff=True, bf=16.0, bs=2.0)
        yield from varied(fs=0.125)
        yield from varied(af=-1.5, ff=True)
        yield from varied(angles="ggml")
        yield from varied(angles="ggml", fs=0.25, ef=1.0, n_ctx_orig=4096, ff=True, n_ctx=131072, inplace=True)
        if mode != 24:
            wrapping = (2, 1, 3, 1) if mode >= 8 else None
            for offset, count in ((64, 64), (2, 64), (32, 32), (126, 2), (20, 46)):
                yield from varied(n_offs=offset, n_dims=count, sections=wrapping)
            for size, count in ((2, 2), (6, 4), (34, 30), (66, 66), (96, 96), (130, 100), (256, 256), (576, 64)):
                yield from varied(
                    ne_a=(size, 3, 5, 2), n_dims=count, ff=True, sections=(2, 1, 3, 1) if mode >= 8 else None
                )
        else:
            for size in (4, 12, 36, 72, 80, 132):
                yield from varied(ne_a=(size, 3, 5, 2), n_dims=size, ff=True)
        for shape in ((128, 1, 1, 1), (128, 1, 300, 1), (128, 33, 1, 5)):
            yield from varied(ne_a=shape)
