"""Which of several variants is fastest on a machine whose speed changes: each runs in every round."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from statistics import median
from typing import Generic, TypeVar

import numpy as np

#: Rounds after which those that take this many times as long as the best are not timed again: the fewer are left, the
#: more rounds there is time for, and the closer two are, the more they need.
CUTS = {4: 2.5, 8: 1.5, 12: 1.2, 24: 1.1, 48: 1.05}
MOST_ROUNDS = 120

Runner = TypeVar("Runner", bound=Hashable)


class Race(Generic[Runner]):
    """Times of some runners, taken in rounds, each round in an order of its own.

    runners: those that compete. reference: one that is timed with them in every round, and does not compete.

    A round is short, so that a change of the machine's speed (memory, clock, what else runs on it) hits all of a round
    alike. Best times, or medians of times, would favour whoever met the fast spells.
    """

    def __init__(self, runners: Sequence[Runner], rng: np.random.Generator, reference: Runner | None = None) -> None:
        self._rng = rng
        self._reference = reference
        self.alive: list[Runner] = list(runners)
        self.rounds: list[dict[Runner, float]] = []

    def round(self, seconds_of: Callable[[Runner], float]) -> None:
        """Time everyone once, in random order: what one leaves in the caches is not always the same one's gain."""
        entrants = [*self.alive, *([] if self._reference is None else [self._reference])]
        times = {entrants[n]: seconds_of(entrants[n]) for n in self._rng.permutation(len(entrants))}
        self.rounds.append(times)
        if len(self.rounds) in CUTS:
            seconds = self.seconds()
            limit = CUTS[len(self.rounds)] * min((seconds[r] for r in self.alive), default=math.inf)
            self.alive = [r for r in self.alive if seconds[r] <= limit]

    def seconds(self) -> dict[Runner, float]:
        """Return each one's time: its median share of its rounds' paces, in seconds at the middle round's pace.

        The pace of a round is the median of those that are in all rounds.
        """
        steady = self.alive or ([] if self._reference is None else [self._reference])
        if not self.rounds or not steady:
            return {}
        paces = [median(times[r] for r in steady) for times in self.rounds]
        shares: dict[Runner, list[float]] = {}
        for times, pace in zip(self.rounds, paces, strict=True):
            for runner, seconds in times.items():
                shares.setdefault(runner, []).append(seconds / pace)
        typical = median(paces)
        return {runner: median(some) * typical for runner, some in shares.items()}
