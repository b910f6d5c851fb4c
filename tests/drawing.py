"""Which parameter sets of tests marked `one_in(n)` a run takes."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest


def draw(items: Iterable[pytest.Item], seed: int, rarer: int = 1) -> set[pytest.Item]:
    """Return the items of a run: of those of a test marked `one_in(n)`, for each device, one in n drawn by the seed.

    A test without parameters is taken by one run in n. rarer: draw so many times fewer.
    """
    groups: dict[tuple[object, ...], list[pytest.Item]] = {}
    drawn = set(items)
    for item in items:
        if item.get_closest_marker("one_in"):
            spec = getattr(item, "callspec", None)
            tested = spec.params.get("device") if spec is not None else None
            groups.setdefault((item.path, getattr(item, "originalname", ""), tested), []).append(item)
    for group in groups.values():
        marker = group[0].get_closest_marker("one_in")
        assert marker is not None
        rng = random.Random(f"{seed} {group[0].nodeid}")
        one_in = marker.args[0] * rarer
        taken, rest = divmod(len(group), one_in)
        taken += rng.random() < rest / one_in
        drawn.difference_update(rng.sample(group, len(group) - taken))
    return drawn
