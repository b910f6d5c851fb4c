"""`BenchmarkEntry`: a call to time, and the rounds that time entries interleaved."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from .samples import Stats, in_round, stats

Kind = Literal["clrope", "kernel", "ceiling", "launch", "host", "peer"]
#: Seconds of work of one entry in a round.
BLOCK_S = 0.03
#: The most seconds of warm-up in a turn.
WARM_UP_S = 0.25
#: Timed calls in a row of entries that share a turn, and the warm-up calls before them.
ALTERNATING, BEFORE_ALTERNATING = 20, 5
#: Turns of an entry with audited calls, and audited calls in a row.
AUDITED_TURNS, AUDITED_CALLS = 3, 2
#: For so many recorded calls one that finds a part of a right output, and the largest such part, 1 - 2**-MOST_KEPT.
RECORDED, MOST_KEPT = 4, 12
#: The most seconds to wait for spinning threads of the entry before.
SETTLE_S = 0.5


class WrongResultError(Exception):
    """An entry's result is not the rotation; the message says how large the error is."""


class Refused(Exception):
    """There is nothing to time; the message says why."""


@dataclass(eq=False)
class SetCursor:
    """The number of the set used last."""

    last: int = 0


class Checker(Protocol):
    """Checks all timed calls; both methods take the number of the call's set."""

    def damage(self, number: int, kept: float) -> None:
        """Damage the set's output, before the call, all but a share of it."""

    def verify(self, number: int) -> None:
        """Compare what the call wrote; raise `WrongResultError`."""


class Auditor(Protocol):
    """Checks some timed calls, with inputs of their own; both take the number of the call's set."""

    def prepare(self, number: int) -> None:
        """Make the set's memory ready, before the call."""

    def call_for(self, number: int) -> Callable[[int], Any] | None:
        """Return a call with other positions, to be made in place of the entry's own; None for the entry's own."""

    def verify(self, number: int) -> None:
        """Compare what the call did; raise `WrongResultError`."""

    def end(self) -> None:
        """End a turn's audited calls, between which nothing else is launched."""


@dataclass(eq=False)
class BenchmarkEntry:
    """One call on several sets of buffers, set after set.

    call:       rotates set i (or copies it, or launches an empty kernel) and waits; returns OpenCL events, or None.
    check:      runs the call on some sets and returns the error (NMSE); raises `WrongResultError`.
    before:     untimed work before each call.
    after:      untimed work after each call; on a device it returns the OpenCL events.
    profiled:   a call as `call` on a queue that profiles, where the queue of `call` does not.
    cursor:     the position in the sets. Entries of the same sets share it: no entry finds the set of the one before
                in the cache.
    most_turns: the most rounds with a turn, evenly spread; None: all rounds.
    turn_group: entries with the same group share their turns, a few calls each at a time. The time of a call of
                microseconds depends on the processors of its threads, which differ from turn to turn.
    least_warm_up: the least number of warm-up calls of a turn.
    outputs:    checks all timed calls. audit: checks some, with other inputs. problem: what either found; the entry
                has no more turns then.
    took:       nanoseconds of the fastest call of the calibration.
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
    before: Callable[[], object] | None = None
    after: Callable[[int], Any] | None = None
    profiled: Callable[[int], Any] | None = None
    cursor: SetCursor = field(default_factory=SetCursor)
    most_turns: int | None = None
    turn_group: str | None = None
    least_warm_up: int = 1
    outputs: Checker | None = None
    audit: Auditor | None = None
    problem: str = ""
    nmse: float | None = None
    wall: list[int] = field(default_factory=list)
    cpu: list[int] = field(default_factory=list)
    event: list[int] = field(default_factory=list)
    _ends: dict[str, list[int]] = field(default_factory=lambda: {"wall": [], "cpu": [], "event": []})
    took: int = 0
    _in_a_row: int = 1

    def next_set(self) -> int:
        """Return the number of the least recently used set."""
        self.cursor.last = (self.cursor.last + 1) % self.sets
        return self.cursor.last

    def takes_part(self, number: int, count: int) -> bool:
        """Whether the entry has a turn in round `number` of `count`, counted from 0."""
        return not self.problem and in_round(number, count if self.most_turns is None else self.most_turns, count)

    def end_turn(self) -> None:
        """Mark the end of a turn in what was measured."""
        for name, ends in self._ends.items():
            ends.append(len(getattr(self, name)))

    def forget(self) -> None:
        """Drop what was measured."""
        for times in (self.wall, self.cpu, self.event, *self._ends.values()):
            times.clear()

    def stats(self, name: str) -> Stats | None:
        """Return the statistics of 'wall', 'cpu' or 'event'."""
        return stats(getattr(self, name), self._ends[name])

    def to_dict(self, samples: bool = False) -> dict[str, Any]:
        """Return the entry of a result file. samples: with the time of every call."""
        out: dict[str, Any] = {"kind": self.kind, "name": self.name, "status": "ok", "bytes": self.bytes}
        out |= {name: value for name in ("device", "variant") if (value := getattr(self, name))}
        if self.nmse is not None:
            out["nmse"] = float(f"{self.nmse:.3g}")
        times = {name: found.to_dict() for name in self._ends if (found := self.stats(name)) is not None}
        if samples:
            for name, told in times.items():
                told["samples"] = [int(taken) for taken in getattr(self, name)]
        return out | times | self.details


def failure(kind: Kind, name: str, status: str, reason: str, device: str | None = None) -> dict[str, Any]:
    """Return the record of an entry that is not timed. status: 'refused', 'wrong' or 'error'."""
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
    """Return nanoseconds from the first event's start to the last event's end, None without profiling."""
    if not events:
        return None
    import pyopencl as cl

    try:
        return int(max(e.profile.end for e in events) - min(e.profile.start for e in events))
    except cl.Error:
        return None


def calibrate(entry: BenchmarkEntry, calls: int) -> None:
    """Set the entry's number of calls in a row, `calls` at most."""
    took = _timed(entry, record=False)
    for _ in range(5):
        # The first calls load, compile and wake threads. A long call gains nothing from more of them.
        if took < 2e8:
            took = min(took, _timed(entry, record=False))
    entry.took = took
    entry._in_a_row = max(1, min(calls, int(BLOCK_S * 1e9 / max(1, took))))


def rounds(
    entries: Sequence[BenchmarkEntry],
    count: int,
    seed: int = 0,
    *,
    warm_up: bool = True,
    turned: Callable[[float], None] = lambda share: None,
) -> None:
    """Time the entries interleaved, `count` rounds, each in a new order; entries of one `turn_group` share a turn.

    seed: of the orders. A fixed order would become part of the ratios (docs/performance.md). warm_up: whether turns
    begin with untimed calls; without them many more rounds fit, of entries that meet the cache of the entry before.
    turned: called after each turn with the share of the turns that are done.
    """
    draw = random.Random(seed)
    # The first one too: an entry that is wrong is to be found at once.
    audits = {0, *draw.sample(range(count), min(AUDITED_TURNS - 1, count))}
    alone = [[c] for c in entries if c.turn_group is None]
    groups = dict.fromkeys(c.turn_group for c in entries if c.turn_group is not None)
    order = alone + [[c for c in entries if c.turn_group == group] for group in groups]
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for number in range(count):
            draw.shuffle(order)
            for place, group in enumerate(order, 1):
                members = [c for c in group if c.takes_part(number, count)]
                if members:
                    _turn(members, draw, warm_up, audited=number in audits)
                    turned((number + place / len(order)) / count)
    finally:
        if collecting:
            gc.enable()


def _turn(members: list[BenchmarkEntry], draw: random.Random, warm_up: bool, audited: bool) -> None:
    if warm_up:
        settle()
        for entry in members:
            _warm_up(entry)
    if audited:
        for entry in members:
            _audited_calls(entry, draw)
        members = [entry for entry in members if not entry.problem]
    several = len(members) > 1
    left = {entry: entry._in_a_row for entry in members}
    while any(left.values()):
        if several:
            draw.shuffle(members)
        for entry in members:
            calls = min(left[entry], ALTERNATING) if several else left[entry]
            for _ in range(BEFORE_ALTERNATING if several and calls else 0):
                _timed(entry, record=False)
            _checked(entry, calls, _timed, draw)
            left[entry] -= calls
    for entry in members:
        if entry.profiled is not None:
            _checked(entry, max(2, entry._in_a_row // 10), _profiled, draw)
        entry.end_turn()


def _checked(entry: BenchmarkEntry, calls: int, call: Callable[..., object], draw: random.Random) -> None:
    """Make calls that are recorded, each on a damaged output; compare what they wrote, until one is wrong.

    Between them are calls that find a part of a right output, at random places: they are not recorded, because a
    kernel may leave work out there, and are wrong if it does. As many calls go in a row as there are sets.
    """
    outputs = entry.outputs
    parts = [0.0] * calls
    if outputs is not None:
        parts += [1 - 2.0 ** -draw.randint(1, MOST_KEPT) for _ in range(-(-calls // RECORDED))]
        draw.shuffle(parts)
    while parts and not entry.problem:
        some, parts = parts[: entry.sets], parts[entry.sets :]
        numbers = [(entry.cursor.last + 1 + k) % entry.sets for k in range(len(some))]
        for number, kept in zip(numbers, some, strict=True):
            if outputs is not None:
                outputs.damage(number, kept)
        for kept in some:
            call(entry, record=not kept)
        for number in numbers:
            if outputs is not None:
                _verify(entry, outputs, number)


def _profiled(entry: BenchmarkEntry, *, record: bool) -> None:
    assert entry.profiled is not None
    taken = event_ns(entry.profiled(entry.next_set()))
    if record and taken is not None:
        entry.event.append(taken)


def _audited_calls(entry: BenchmarkEntry, draw: random.Random) -> None:
    """Make audited calls in a row, which are timed; recorded if the calls between moved their sets out of the cache."""
    if entry.audit is None:
        return
    # A kernel may do without the work in each call of a fixed number.
    for _ in range(draw.randrange(AUDITED_CALLS + 2)):
        _timed(entry, record=False)
    if entry.sets < AUDITED_CALLS:
        for _ in range(AUDITED_CALLS):
            entry.audit.prepare(0)
            _timed(entry, record=False, other=entry.audit.call_for(0))
            _verify(entry, entry.audit, 0)
        entry.audit.end()
        return
    numbers = [(entry.cursor.last - k) % entry.sets for k in reversed(range(AUDITED_CALLS))]
    for number in numbers:
        entry.audit.prepare(number)
    while (entry.cursor.last + 1) % entry.sets != numbers[0]:
        _timed(entry, record=False)
    for number in numbers:
        other = entry.audit.call_for(number)
        _timed(entry, record=other is None and entry.sets > AUDITED_CALLS, other=other)
        _verify(entry, entry.audit, number)
    entry.audit.end()


def _verify(entry: BenchmarkEntry, checker: Checker | Auditor, number: int) -> None:
    try:
        checker.verify(number)
    except WrongResultError as error:
        entry.problem = entry.problem or str(error)


def _warm_up(entry: BenchmarkEntry) -> None:
    """Make untimed calls, once round the sets or for `WARM_UP_S`, one at least.

    They bring the state of the entry itself: used pages (docs/performance.md), a cache with its own lines, threads
    spread over the processors.
    """
    end = time.perf_counter() + WARM_UP_S
    for number in range(max(entry.sets, entry.least_warm_up)):
        _timed(entry, record=False)
        if number + 1 >= entry.least_warm_up and time.perf_counter() > end:
            return


def _timed(entry: BenchmarkEntry, *, record: bool, other: Callable[[int], Any] | None = None) -> int:
    number, call = entry.next_set(), other or entry.call
    if entry.before is not None:
        entry.before()
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
        # Without a device, the call returned a peer's result.
        taken = event_ns(events) if entry.device is not None else None
        if taken is not None:
            entry.event.append(taken)
    return wall
