"""Timing in rounds: who is faster is found though the machine's speed changes, and those far behind drop out."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from clrope.tune.race import CUTS, MOST_ROUNDS, Race

#: What each takes at full speed.
TRUE = {0: 1.05e-3, 1: 1e-3, 2: 1.15e-3, 3: 1.4e-3, 4: 4e-3, 5: 1.02e-3}


class Machine:
    """It has one of two speeds for some rounds' time, and now and then is away."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.speed, self.timed = rng, 1.0, Counter[int]()

    def seconds_of(self, runner: int) -> float:
        if self.rng.random() < 0.01:
            self.speed = 1.5 - self.speed
        self.timed[runner] += 1
        away = 5e-3 if self.rng.random() < 0.02 else 0.0
        return TRUE.get(runner, 0.9e-3) / self.speed * self.rng.normal(1, 0.02) + away


def test_speeds_of_the_machine_do_not_decide() -> None:
    rng = np.random.default_rng(11)  # what is claimed holds nearly always, so not of any seed
    firsts: Counter[int] = Counter()
    for _ in range(20):
        machine = Machine(rng)
        race = Race(list(TRUE), rng, reference=9)
        for _ in range(MOST_ROUNDS):
            race.round(machine.seconds_of)
        seconds = race.seconds()
        assert set(seconds) == {*TRUE, 9}
        for runner in (0, 1, 2, 5):
            assert seconds[runner] / seconds[1] == pytest.approx(TRUE[runner] / TRUE[1], rel=0.05)
        assert seconds[4] > 2.5 * seconds[1]
        assert seconds[9] / seconds[1] == pytest.approx(0.9, rel=0.05)
        # What is twice as slow is not at one speed what others are at the other.
        assert TRUE[1] * 0.9 < seconds[1] < TRUE[1] / 0.5 * 1.1
        firsts[min(TRUE, key=seconds.__getitem__)] += 1
        assert 1 in race.alive
        assert 4 not in race.alive
        assert machine.timed[4] == min(CUTS)
        assert machine.timed[9] == MOST_ROUNDS, "what is timed reference never drops out"
    assert firsts[1] + firsts[5] == 20


def test_everyone_is_timed_once_a_round_in_changing_order(rng: np.random.Generator) -> None:
    race = Race("abc", rng, reference="d")
    orders = []
    for _ in range(max(CUTS) + 3):
        seen: list[str] = []
        race.round(lambda runner, seen=seen: seen.append(runner) or 1.0)  # type: ignore[misc]
        orders.append("".join(seen))
    assert {"".join(sorted(order)) for order in orders} == {"abcd"}
    assert len(set(orders)) > 4
    assert race.seconds() == dict.fromkeys("abcd", 1.0)


def test_one_alone_and_none(rng: np.random.Generator) -> None:
    race = Race([7], rng)
    assert race.seconds() == {}
    race.round(lambda _: 3.0)
    race.round(lambda _: 1.0)
    assert race.seconds() == {7: 2.0}
    empty: Race[int] = Race([], rng)
    empty.round(lambda _: 1.0)
    assert empty.seconds() == {}
    reference: Race[int] = Race([], rng, reference=1)
    for _ in range(max(CUTS) + 1):
        reference.round(lambda _: 2.0)
    assert reference.seconds() == {1: 2.0}
