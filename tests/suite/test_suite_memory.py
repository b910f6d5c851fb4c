"""The memory around a case's tensors: guards that notice, poison that shows."""

from __future__ import annotations

import numpy as np
import pytest

from clrope.suite import Case
from clrope.suite.case import VIEWS
from clrope.suite.case_memory import Memory

CASE = Case("f32", (8, 4, 3, 2), 8, 2, 512, 1.0, 0.0, 1.0, False, 0)


@pytest.mark.parametrize("order", ["bsnd", "dnsb", "nbds"])
@pytest.mark.parametrize("view", VIEWS)
def test_views_have_the_shape_and_only_they_may_change(view: int, order: str, rng: np.random.Generator) -> None:
    case = Case(**{**CASE.__dict__, "lo": order})
    memory = Memory(case, view)
    memory.fill(rng)
    assert memory.changed() == memory.stray() == 0
    lengths = [dict(zip("dnsb", (8, 4, 3, 2), strict=True))[letter] for letter in order]
    assert list(memory.views[0].shape) == lengths
    assert len(memory.views) == (2 if view == 3 else 1)
    assert abs(memory.parent).max() <= 1
    # A bit flipped anywhere outside is noticed, one inside is not stray.
    inside = np.zeros(memory.parent.shape, bool)
    for place in memory._views_of(inside):
        place[...] = True
    assert inside.sum() == sum(v.size for v in memory.views)
    for where, stray in ((inside, 0), (~inside, 1)):
        index = tuple(rng.permutation(np.argwhere(where))[0])
        memory.parent[index] += 1
        assert (memory.changed(), memory.stray()) == (1, stray)
        memory.restore()
        assert memory.changed() == 0


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "f64"])
def test_poison_is_nan_everywhere(kind: str) -> None:
    memory = Memory(Case(**{**CASE.__dict__, "type": kind}), 1)
    memory.poison()
    assert np.isnan(memory.parent).all()
    assert memory.changed() == 0


def test_strides_of_views() -> None:
    backwards, third = Memory(CASE, 4).views[0], Memory(CASE, 5).views[0]
    assert backwards.strides[3] == -8
    assert third.strides[3] == 12
    assert all(step < 0 for step in third.strides[:3])
    assert Memory(CASE, 2).views[0].strides == (8 * 4 * 2 * 3 * 4, 8 * 2 * 4 * 4, 64, 4)
    q, k = Memory(CASE, 3).views
    assert (q.shape[2], k.shape[2]) == (4, 1)
    assert k.__array_interface__["data"][0] - q.__array_interface__["data"][0] == 4 * 8 * 4
