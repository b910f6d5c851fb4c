"""`BenchmarkEntry`: a call that is timed interleaved with others, and the rounds in which that happens."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .samples import Stats, in_round, stats

Kind = Literal["clrope", "ceiling", "launch", "host", "peer"]
#: Seconds of work in a row that one entry gets in a round.
BLOCK_S = 0.03
#: Seconds of calls in a round, at most, that do not count.
WARM_UP_S = 0.25
#: Calls in a row of each of those that share a turn, and calls before them that do not count.
ALTERNATING, BEFORE_ALTERNATING = 20, 5
#: Seconds to wait at most for threads of the one before that still spin.
SETTLE_S = 0.5


class WrongResultError(Exception):
    """An entry's result is not the rotation; the message says how large the error is."""


class Refused(Exception):
    """There is nothing to time; the message says why."""


@dataclass(eq=False)
class SetCursor:
    """The number of the set that was used last."""

    last: int = 0


@dataclass(eq=False)
class BenchmarkEntry:
    """One call on several sets of buffers, one after the other.

    call:     rotates set i (or copies it, or launches nothing) and returns when that is done; on a device
              the OpenCL events, or None.
    check:    runs the call on some sets and returns the error (NMSE); raises `WrongResultError`.
    after:    what has to be done behind each call and is not timed; on a device it returns the OpenCL events.
    profiled: a call as `call` on a queue that takes times, where `call`'s own does not.
    cursor:     whose turn it is among the sets; shared by those that work on the same ones, or the second of them would
              find in the cache what the first has just used.
    took:     nanoseconds of the quickest call of the warm-up.
    most_turns: of how many rounds it is at most, evenly spread; None: of all.
    turn_group: those with the same word share their turns, a few calls each over and over. Where a call takes
              microseconds, up to half of them depend on whether its threads are on one processor or on two, which
              changes from turn to turn.
    least_warm_up: calls of a turn, at least, that do not count.
    """

    kind: Kind
    name: str
    call: Callable[[int], Any]
    check: Callable[[], float | None]
    sets: int = 1
    bytes: int = 0
    device: str | None = None
    variant: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    after: Callable[[int], Any] | None = None
    profiled: Callable[[int], Any] | None = None
    cursor: SetCursor = field(default_factory=SetCursor)
    most_turns: int | None = None
    turn_group: str | None = None
    least_warm_up: int = 1
    nmse: float | None = None
    wall: list[int] = field(default_factory=list)
    cpu: list[int] = field(default_factory=list)
    event: list[int] = field(default_factory=list)
    _ends: dict[str, list[int]] = field(default_factory=lambda: {"wall": [], "cpu": [], "event": []})
    took: int = 0
    _in_a_row: int = 1

    def next_set(self) -> int:
        """Return the number of the buffer set that was not used for longest."""
        self.cursor.last = (self.cursor.last + 1) % self.sets
        return self.cursor.last

    def takes_part(self, number: int, count: int) -> bool:
        """Whether it has a turn in a round, of so many, counted from 0."""
        return in_round(number, count if self.most_turns is None else self.most_turns, count)

    def end_turn(self) -> None:
        """Remember that what was measured up to here belongs to one turn."""
        for name, ends in self._ends.items():
            ends.append(len(getattr(self, name)))

    def forget(self) -> None:
        """Drop what was measured."""
        for times in (self.wall, self.cpu, self.event, *self._ends.values()):
            times.clear()

    def stats(self, name: str) -> Stats | None:
        """Return the statistics of 'wall', 'cpu' or 'event'."""
        return stats(getattr(self, name), self._ends[name])

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of a result file."""
        out: dict[str, Any] = {"kind": self.kind, "name": self.name, "status": "ok", "bytes": self.bytes}
        if self.device is not None:
            out["device"] = self.device
        if self.variant:
            out["variant"] = self.variant
        if self.nmse is not None:
            out["nmse"] = float(f"{self.nmse:.3g}")
        for name in ("wall", "cpu", "event"):
            found = self.stats(name)
            if found is not None:
                out[name] = found.to_dict()
        return out | self.details


def failure(kind: Kind, name: str, status: str, reason: str, device: str | None = None) -> dict[str, Any]:
    """Return the entry of something that was not timed. status: 'refused', 'wrong' or 'error'."""
    out: dict[str, Any] = {"kind": kind, "name": name, "status": status, "reason": reason}
    return out if device is None else out | {"device": device}


def settle(limit_s: float = SETTLE_S) -> None:
    """Wait until this process uses no CPU: thread pools of several libraries spin for a while after a call."""
    end = time.perf_counter() + limit_s
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(0.001)
        if time.process_time() - before < 0.0003:
            return


def event_ns(events: Any) -> int | None:
    """Return nanoseconds from the first event's start to the last one's end, None if the driver took no times."""
    if not events:
        return None
    import pyopencl as cl

    try:
        return int(max(e.profile.end for e in events) - min(e.profile.start for e in events))
    except cl.Error:
        return None


def calibrate(entry: BenchmarkEntry, calls: int) -> None:
    """Find how many calls in a row it gets: enough to be past the first, not more than `calls`."""
    took = _timed(entry, record=False)
    for _ in range(5):
        # The first calls load, compile and wake threads; one that takes long is not made better by more.
        if took < 2e8:
            took = min(took, _timed(entry, record=False))
    entry.took = took
    entry._in_a_row = max(1, min(calls, int(BLOCK_S * 1e9 / max(1, took))))


def rounds(entries: Sequence[BenchmarkEntry], count: int, seed: int = 0, *, warm_up: bool = True) -> None:
    """Time the entries interleaved, `count` rounds, each in an order of its own. First calls of a turn do not count.

    Those with the same word as `turn_group` have their turns together.

    seed: of the orders. In one and the same order, what comes behind what becomes part of the ratios
    (docs/performance.md). warm_up: whether turns begin with calls that do not count; without them many more rounds fit
    in, of entries that meet what the others left.
    """
    draw = random.Random(seed)
    alone = [[c] for c in entries if c.turn_group is None]
    words = dict.fromkeys(c.turn_group for c in entries if c.turn_group is not None)
    order = alone + [[c for c in entries if c.turn_group == word] for word in words]
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for number in range(count):
            draw.shuffle(order)
            for group in order:
                members = [c for c in group if c.takes_part(number, count)]
                if members:
                    _turn(members, draw, warm_up)
    finally:
        if collecting:
            gc.enable()


def _turn(members: list[BenchmarkEntry], draw: random.Random, warm_up: bool) -> None:
    if warm_up:
        settle()
        for entry in members:
            _warm_up(entry)
    several = len(members) > 1
    left = {entry: entry._in_a_row for entry in members}
    while any(left.values()):
        if several:
            draw.shuffle(members)
        for entry in members:
            calls = min(left[entry], ALTERNATING) if several else left[entry]
            for _ in range(BEFORE_ALTERNATING if several and calls else 0):
                _timed(entry, record=False)
            for _ in range(calls):
                _timed(entry, record=True)
            left[entry] -= calls
    for entry in members:
        if entry.profiled is not None:
            for _ in range(max(2, entry._in_a_row // 10)):
                taken = event_ns(entry.profiled(entry.next_set()))
                if taken is not None:
                    entry.event.append(taken)
        entry.end_turn()


def _warm_up(entry: BenchmarkEntry) -> None:
    """Make calls that do not count, once round the sets or for `WARM_UP_S`, one at least.

    What follows then meets the state that the entry itself makes: pages that count as used (docs/performance.md),
    a cache with its own lines in it, threads that the system has spread over the processors.
    """
    end = time.perf_counter() + WARM_UP_S
    for number in range(max(entry.sets, entry.least_warm_up)):
        _timed(entry, record=False)
        if number + 1 >= entry.least_warm_up and time.perf_counter() > end:
            return


def _timed(entry: BenchmarkEntry, *, record: bool) -> int:
    number, call = entry.next_set(), entry.call
    cpu = time.process_time_ns()
    start = time.perf_counter_ns()
    events = call(number)
    wall = time.perf_counter_ns() - start
    cpu = time.process_time_ns() - cpu
    if entry.after is not None:
        events = entry.after(number)
    if record:
        entry.wall.append(wall)
        entry.cpu.append(cpu)
        # Without a device, what came back is a peer's result.
        taken = event_ns(events) if entry.device is not None else None
        if taken is not None:
            entry.event.append(taken)
    return wall
