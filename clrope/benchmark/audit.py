"""Rules that a timed kernel cannot get round: what the timed calls wrote is checked, and speeds beyond the memory's.

Every timed call begins with a damaged output, and all that it wrote is compared (`OutputCheck`). Before some calls of a
turn (`Audit`), the input of their sets is replaced by another one, too, and the output by poison or plausible numbers;
after each of these calls, which are timed like the others, the output, the input and the guards behind the buffers are
compared. Some of them get other positions, too; these are not recorded, because a call at new positions may have to
make tables.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np

from ..testing import NAN_POISON, POISON, count_differing
from .buffers import UNCHANGED, Change, DeviceSets, tensors_of
from .entry import BenchmarkEntry, WrongResultError
from .samples import Stats
from .validation import ResultCheck

#: A speed of more times the best ceiling's, in the same run, is no record but a mistake. Copies that are written in
#: another way differ by less (`docs/performance.md`).
BEYOND = 1.5
#: Fewest timed calls that make a ceiling: on a busy machine, one or two may all be slow.
FEWEST = 3
#: The least share of an empty launch's time that a call can take.
LAUNCH_SHARE = 0.5
#: Events that are longer than calls by this factor belong to a clock that is wrong.
LONGEST_EVENT = 1.2
#: Positions of an audited call are moved by at most this.
MOST_MOVED = 1000


class OutputCheck:
    """Damages outputs before timed calls on sets of device memory, and compares all that the calls wrote.

    validate: None for copies, to which the same is done so that they find the same caches; their bits are not compared.
    start: returns by how much the positions of the last call on a set were moved.
    """

    def __init__(
        self, sets: DeviceSets, validate: ResultCheck | None = None, start: Callable[[int], int] = lambda number: 0
    ) -> None:
        self._sets, self._validate, self._start = sets, validate, start
        self._draw = random.Random(0)
        #: What was compared value by value and found right.
        self._right: set[tuple[int, bytes]] = set()

    def damage(self, number: int, kept: float) -> None:
        """Make a set ready, before the call. kept: the share of its output that is left as it is."""
        byte = self._draw.choice((NAN_POISON, POISON, 0)) if kept else POISON
        self._sets.damage(number, byte, kept, self._draw.getrandbits(32))

    def verify(self, number: int) -> None:
        """Compare what the call wrote; raise `WrongResultError`."""
        found = self._start(number), self._sets.digest(number)
        if self._validate is None or found in self._right:
            return
        what = "a timed call, whose output was damaged before it"
        _compare(self._sets, self._validate, number, Change(start=found[0]), what)
        self._right.add(found)


def _compare(sets: DeviceSets, validate: ResultCheck, number: int, change: Change, what: str) -> None:
    """Compare what a call wrote, and what it must not write. Raises `WrongResultError`."""
    workload = sets.inputs.workload
    if not workload.in_place:
        touched = count_differing(sets.read_input(number), sets.inputs.changed(change))
        if touched:
            raise WrongResultError(f"a timed call changed {touched} bytes of its input")
    around = sets.guards_changed(number)
    if around:
        raise WrongResultError(f"a timed call changed {around} bytes behind its buffers")
    try:
        validate(tensors_of(workload, sets.read(number)), change)
    except WrongResultError as error:
        raise WrongResultError(f"{what}: {error}") from None


class Audit:
    """Audited calls of one entry on sets of device memory.

    moved: makes a call on set i with the workload's positions moved by a number.
    """

    def __init__(self, sets: DeviceSets, validate: ResultCheck, seed: int, moved: Callable[[int, int], object]) -> None:
        self._sets, self._validate, self._moved = sets, validate, moved
        self._draw = random.Random(seed)
        # All of them within three calls: a kernel may compute only where it sees one.
        self._poisons = cycle(self._draw.sample((NAN_POISON, POISON, None), 3))
        self._moves = cycle(self._draw.sample((True, False), 2))
        #: Sets whose plans are at other positions.
        self._away: set[int] = set()

    def prepare(self, number: int) -> None:
        """Give a set another input, and an output of poison or of plausible numbers."""
        sets = self._sets
        start = self._draw.randint(1, MOST_MOVED) if next(self._moves) else 0
        change = replace(Change.drawn(self._draw, sets.inputs.workload), start=start)
        poison = next(self._poisons)
        if poison is None:
            block = sets.inputs.changed(Change.drawn(self._draw, sets.inputs.workload))
        else:
            block = np.full(sets.inputs.block.size, poison, np.uint8)
        sets.change(number, change, block)

    def call_for(self, number: int) -> Callable[[int], Any] | None:
        """Return a call at the positions that the set is prepared for, None if the entry's own call is one."""
        start = self._sets.changes[number].start
        if not start and number not in self._away:
            return None
        self._away.add(number)
        return lambda i: self._moved(i, start)

    def end(self) -> None:
        """Bring later calls back to the workload's input and positions."""
        for number, change in enumerate(self._sets.changes):
            if change != UNCHANGED:
                self._sets.reset(number)
        for number in self._away:
            self._moved(number, 0)
        self._away.clear()

    def verify(self, number: int) -> None:
        """Compare what the call wrote, and what it must not write. Raises `WrongResultError`."""
        change = self._sets.changes[number]
        own = "an input and positions" if change.start else "an input"
        _compare(self._sets, self._validate, number, change, f"a timed call, with {own} of its own")


def too_fast(entry: BenchmarkEntry, entries: Sequence[BenchmarkEntry]) -> str:
    """Return why an entry's time is impossible, given the ceilings of its device and run; '' if it is possible."""
    wall = entry.stats("wall")
    if wall is None:
        return ""
    best, rate = _best_copy(entry, entries, "wall"), entry.bytes / wall.median
    if best and rate > BEYOND * best:
        return (
            f"faster than the memory: {rate:.3g} GB/s, where the best copy of this run has {best:.3g} GB/s; "
            "it cannot have moved its bytes"
        )
    # Waking a thread takes one of several times, on a busy machine one of them in a whole turn.
    launches = [s.min for _, s in _ceilings(entry, entries, "launch", "wall")]
    if launches and wall.median < LAUNCH_SHARE * min(launches):
        return f"faster than an empty launch: {wall.median / 1e3:.3g} us, where that takes {min(launches) / 1e3:.3g} us"
    return ""


def clocks_disagree(entry: BenchmarkEntry, entries: Sequence[BenchmarkEntry]) -> str:
    """Return why the event times of an entry cannot belong to its calls, whose time the host took; '' if they can.

    Events last no longer than their calls. By their events, too, no call is faster than the memory: such events end
    before the work.
    """
    wall, event = entry.stats("wall"), entry.stats("event")
    if wall is None or event is None or entry.profiled is not None:  # those are events of other calls
        return ""
    found = f"events of {event.median / 1e3:.4g} us in calls of {wall.median / 1e3:.4g} us"
    if event.median > LONGEST_EVENT * wall.median:
        return f"{found}: the device's clock cannot be right"
    best, rate = _best_copy(entry, entries, "event"), entry.bytes / event.median
    if best and rate > BEYOND * best:
        return f"{found}: they end before the work, at {rate:.3g} GB/s, where the best copy has {best:.3g} GB/s"
    return ""


def _best_copy(entry: BenchmarkEntry, entries: Sequence[BenchmarkEntry], clock: str) -> float:
    """Return bytes a nanosecond of the fastest call of a copy on the entry's device, 0 if there is none."""
    return max((c.bytes / s.min for c, s in _ceilings(entry, entries, "ceiling", clock)), default=0.0)


def _ceilings(
    entry: BenchmarkEntry, entries: Sequence[BenchmarkEntry], kind: str, clock: str
) -> list[tuple[BenchmarkEntry, Stats]]:
    """Return the ceilings of a kind on the entry's device that were timed often enough, with their times."""
    same = [c for c in entries if (c.device, c.kind) == (entry.device, kind)]
    return [(c, s) for c in same for s in [c.stats(clock)] if s is not None and s.n >= FEWEST]
