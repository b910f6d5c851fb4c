"""Which of several variants is fastest on a machine whose speed changes: each runs in every round."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from statistics import median
from typing import Generic, TypeVar

import numpy as np

#: By number of rounds: runners slower than the best by this factor are dropped. Fewer runners leave time for more
#: rounds, which close runners need.
CUTS = {4: 2.5, 8: 1.5, 12: 1.2, 24: 1.1, 48: 1.05}
MOST_ROUNDS = 120

Runner = TypeVar("Runner", bound=Hashable)


class Race(Generic[Runner]):
    """Times of some runners, taken in rounds, each round in a random order.

    runners: the competing runners. reference: a runner that is timed in every round and does not compete.

    A round is short, so that a change of the machine's speed affects all runners of the round alike. Best times or
    medians of times would favour the runners timed in fast periods.
    """

    def __init__(self, runners: Sequence[Runner], rng: np.random.Generator, reference: Runner | None = None) -> None:
        self._rng = rng
        self._reference = reference
        self.alive: list[Runner] = list(runners)
        self.rounds: list[dict[Runner, float]] = []

    def round(self, seconds_of: Callable[[Runner], float]) -> None:
        """Time every runner once, in random order, so that no runner always profits from the same one's cache lines."""
        entrants = [*self.alive, *([] if self._reference is None else [self._reference])]
        times = {entrants[n]: seconds_of(entrants[n]) for n in self._rng.permutation(len(entrants))}
        self.rounds.append(times)
        if len(self.rounds) in CUTS:
            seconds = self.seconds()
            limit = CUTS[len(self.rounds)] * min((seconds[r] for r in self.alive), default=math.inf)
            self.alive = [r for r in self.alive if seconds[r] <= limit]

    def seconds(self) -> dict[Runner, float]:
        """Return the time of each runner in seconds: its median share of a round's pace, times the median pace.

        The pace of a round is the median time of the runners that are in all rounds.
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
