"""The suite 'layouts': orders of axes, strides of either sign, views into parents, in place with guards around."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, permutations, product

from ..case import VIEWS, Case
from ..registry import suite
from ..rope_trial import CaseLine

_MODES = (0, 2, 8, 40, 24)


@suite("layouts")
def layouts() -> Iterator[CaseLine]:
    """Every order of axes, every view, in place and out of place, every type, with guards around."""
    types = cycle(("f32", "f16", "bf16", "f64"))
    modes = cycle(_MODES)

    def case(view: int, order: str, **changes: object) -> CaseLine:
        mode = next(modes)
        heads = (80, 6, 5, 3 if "b" in order else 1)
        # Half of the head, with a rest to copy; vision takes all of it.
        dims = 80 if mode == 24 else 40
        return CaseLine(
            Case(next(types), heads, dims, mode, 512, 1.0, 0.0, 1.0, False, view, lo=order, **changes)  # type: ignore[arg-type]
        )

    # The numbers of orders (24 and 6), types (4) and modes (5) share few factors: the cycles give many combinations.
    orders = ["".join(p) for p in (*permutations("bsnd"), *permutations("snd"))]
    for order in orders:
        for inplace in (False, True):
            yield case(0, order, inplace=inplace)
    for order, view in product(("bsnd", "bnsd", "sbnd", "snd", "bsdn", "dnsb"), VIEWS):
        for inplace, out in ((True, 0), (False, 0), (False, 1)):
            if view:
                yield case(view, order, inplace=inplace, o=out)
                yield case(view, order, inplace=inplace, o=out, forward=False)
    for view, form in product(VIEWS, ("offset", "batch", "signed")):
        yield case(view, "bsnd", pos=form)
        yield case(view, "bsnd", pos=form, inplace=True)
