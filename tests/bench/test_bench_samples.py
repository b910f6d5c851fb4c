"""Statistics of times, and the order in which entries take turns."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.shares import error_of_median

from clrope.benchmark.entry import BenchmarkEntry, SetCursor, calibrate, event_ns, rounds, settle
from clrope.benchmark.measure import hopeless
from clrope.benchmark.samples import by_round, in_round, middle, paired, stats


def test_known_numbers():
    found = stats([50, 10, 30, 20, 40])
    assert (found.min, found.p20, found.median, found.p80, found.n) == (10, 18, 30, 42, 5)


def test_nothing_measured():
    assert stats([]) is None


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=60))
def test_order_and_bounds(samples):
    found = stats(samples)
    assert found.min <= found.p20 <= found.median <= found.p80 <= max(samples)
    assert found.min == min(samples)
    assert found.n == len(samples)
    assert sum(s <= found.median for s in samples) * 2 >= len(samples)
    assert all(isinstance(v, int) for v in found.to_dict().values())


def test_the_median_of_each_turn():
    found = stats([5, 1, 3, 10, 30, 7], [3, 5, 6])
    assert found.turns == (3, 20, 7)
    assert found.to_dict()["turns"] == [3, 20, 7]
    assert stats([5, 1], [1, 1, 2]).turns == (), "a turn without samples belongs to no round"
    assert "turns" not in stats([5, 1]).to_dict()


def test_the_middle_one_of_several():
    assert [middle(list(text), ord) for text in ("b", "ca", "cab", "dbca", "eadcb")] == ["b", "a", "b", "b", "c"]


def test_error_of_a_median():
    assert error_of_median([1.0] * 4) is None
    assert error_of_median([2.0] * 9) == 0
    rng = np.random.default_rng(7)

    def ratios(count):
        return list(rng.normal(3e6, 2e5, count) / rng.normal(2e6, 1e5, count))

    # What medians of many such runs differ by is what is said from one.
    found = [np.median(ratios(31)) for _ in range(300)]
    said = [error_of_median(ratios(31)) for _ in range(20)]
    assert np.median(said) == pytest.approx(np.std(found), rel=0.35)
    assert error_of_median(ratios(9)) > error_of_median(ratios(99))


def test_turns_by_round():
    assert by_round([], 9) == {}
    assert by_round([7, 8, 9], 3) == {0: 7, 1: 8, 2: 9}
    some = by_round([7, 8, 9], 9)
    assert list(some.values()) == [7, 8, 9]
    for turns in range(1, 12):
        for count in range(1, 30):
            rounds = [k for k in range(count) if in_round(k, turns, count)]
            assert by_round([*range(turns)], count) == dict(zip(rounds, range(turns), strict=False))
    assert list(some) == [0, 3, 6]
    assert paired({0: 4, 3: 9}, {0: 2, 1: 5, 3: 3}) == [2, 3]
    assert paired({0: 4}, {}) == []


class Clock:
    """Time that only passes when a call says so."""

    def __init__(self):
        self.now = 0

    def perf_counter_ns(self):
        return self.now

    process_time_ns = perf_counter_ns

    def perf_counter(self):
        return self.now / 1e9

    process_time = perf_counter

    def sleep(self, seconds):
        self.now += int(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("clrope.benchmark.entry.time", made)
    # With this clock, sleeping looks like work.
    monkeypatch.setattr("clrope.benchmark.entry.settle", lambda: None)
    return made


class Turns:
    def __init__(self, clock):
        self.clock, self.order = clock, []

    def entry(self, name, sets=1, takes=1000, **more):
        def call(i):
            self.order.append((name, i))
            self.clock.now += takes

        return BenchmarkEntry("clrope", name, call, lambda: None, sets, **more)


def test_entries_take_turns_and_go_through_their_sets(clock):
    turns = Turns(clock)
    a, b = turns.entry("a", 3), turns.entry("b", takes=70)
    rounds([a, b], 4)
    # Once round the sets is not counted.
    turn = {"a": "aaaa", "b": "bb"}
    text = "".join(name for name, _ in turns.order)
    assert len(text) == 4 * 6
    for k in range(0, len(text), 6):
        assert text[k : k + 6] in (turn["a"] + turn["b"], turn["b"] + turn["a"]), text
    assert [i for name, i in turns.order if name == "a"] == [1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1]
    assert a.wall == a.cpu == [1000] * 4
    assert b.wall == b.cpu == [70] * 4
    assert not a.event


def test_each_round_has_an_order_of_its_own(clock):
    def order(seed, count=30):
        turns = Turns(clock)
        # A turn is one call that does not count and one that does.
        rounds([turns.entry(name) for name in "abcd"], count, seed)
        names = [name for name, _ in turns.order[::2]]
        return ["".join(names[k : k + 4]) for k in range(0, len(names), 4)]

    found = order(5)
    assert all(sorted(one) == list("abcd") for one in found)
    assert {one[0] for one in found} == set("abcd"), "each is the first some time"
    assert len(set(found)) > 10
    assert order(5) == found
    assert order(6) != found


@pytest.mark.parametrize(("most", "count", "turns"), [(3, 9, 3), (None, 4, 4), (9, 4, 4), (1, 5, 1), (4, 6, 4)])
@pytest.mark.one_in(4)
def test_some_are_not_in_every_round(clock, most, count, turns):
    seen = Turns(clock)
    rounds([seen.entry("a", most_turns=most), seen.entry("b")], count)
    # A turn is one call that does not count and one that does.
    assert sum(name == "a" for name, _ in seen.order) == 2 * turns
    assert sum(name == "b" for name, _ in seen.order) == 2 * count
    places = [k for k in range(count) if seen.entry("a", most_turns=most).takes_part(k, count)]
    assert len(places) == turns
    assert places[0] == 0
    assert all(b - a <= -(-count // turns) for a, b in zip(places, [*places[1:], count], strict=True)), places


def test_some_share_their_turns(clock):
    turns = Turns(clock)
    a, b = turns.entry("a", turn_group="pocl"), turns.entry("b", turn_group="pocl", most_turns=1)
    c, other = turns.entry("c", takes=70, turn_group="pocl"), turns.entry("d")
    for made in (a, b, c, other):
        calibrate(made, 50)
    turns.order.clear()
    rounds([a, other, b, c], 3)
    assert (a.wall, b.wall, c.wall, other.wall) == ([1000] * 150, [1000] * 50, [70] * 150, [1000] * 150)
    assert [len(made.to_dict()["wall"]["turns"]) for made in (a, b, c, other)] == [3, 1, 3, 3]
    names = "".join(name for name, _ in turns.order)
    # Without the fourth, whose turns are its own: parts of 25, 25 and 15 calls, of which 5 do not count.
    alone, shared = (re.findall(f"{among}+", names) for among in ("d", "[abc]"))
    assert [len(part) for part in alone] in ([51] * 3, [51, 102], [102, 51])
    assert "".join(shared).count("b") == 1 + 50 + 3 * 5
    longest = max(len(part) for part in re.findall("a+|b+|c+", "".join(shared)))
    assert longest <= 2 * 25 + 1, "two parts of one follow each other at most"


def test_copies_far_from_the_best_have_no_hope(clock):
    def ceiling(name, took, device="pocl", kind="ceiling"):
        return BenchmarkEntry(kind, name, lambda i: None, lambda: None, bytes=1000, device=device, took=took)

    best, near, far = ceiling("stream", 100), ceiling("copy", 139), ceiling("enqueue_copy", 141)
    part, elsewhere, own = ceiling("windows", 500), ceiling("copy", 900, "intel"), ceiling("arrays", 900, kind="clrope")
    everyone = [own, far, part, best, near, elsewhere]
    assert [c for c in everyone if hopeless(c, everyone)] == [far]
    assert hopeless(part, [*everyone, ceiling("windows", 300)])


@pytest.mark.parametrize(
    ("takes", "in_a_row"), [(1000, 7), (4_200_000, 7), (10_000_000, 3), (40_000_000, 1), (10**9, 1)]
)
@pytest.mark.one_in(4)
def test_calls_in_a_row_fit_a_block(clock, takes, in_a_row):
    turns = Turns(clock)
    made = turns.entry("a", takes=takes)
    calibrate(made, 7)
    assert len(turns.order) == (1 if takes >= 2e8 else 6)
    assert not made.wall
    rounds([made], 2)
    assert made.wall == [takes] * in_a_row * 2


def test_what_follows_a_call_is_not_timed(clock):
    turns = Turns(clock)
    seen = []

    def after(i):
        seen.append(i)
        clock.now += 10**6

    made = turns.entry("a", 2, after=after, device="pocl")
    rounds([made], 2)
    assert made.wall == [1000, 1000]
    assert seen == [1, 0, 1, 0, 1, 0]


def test_a_warm_up_ends_after_its_time(clock):
    turns = Turns(clock)
    made = turns.entry("a", 8, takes=90_000_000)
    rounds([made], 1)
    assert [i for _, i in turns.order] == [1, 2, 3, 4]
    assert made.wall == [90_000_000]


def test_entries_of_the_same_sets_share_the_cursor(clock):
    turns = Turns(clock)
    a, b = turns.entry("a", 3), turns.entry("b", 3)
    a.cursor = b.cursor = SetCursor()
    rounds([a, b], 1)
    assert [i for _, i in turns.order] == [1, 2, 0, 1, 2, 0, 1, 2]
    assert len({name for name, _ in turns.order[:4]}) == len({name for name, _ in turns.order[4:]}) == 1


def test_settling_waits_for_threads_that_spin(monkeypatch):
    clock = Clock()
    busy = iter([1e-3, 1e-3, 1e-3, 1e-5, 1e-3])
    used = [0.0]

    def sleep(seconds):
        clock.now += int(seconds * 1e9)
        used[0] += next(busy)

    monkeypatch.setattr(clock, "sleep", sleep)
    monkeypatch.setattr(clock, "process_time", lambda: used[0])
    monkeypatch.setattr("clrope.benchmark.entry.time", clock)
    settle()
    assert clock.now == 4_000_000


def test_event_times_span_the_launches():
    class Profile:
        def __init__(self, start, end):
            self.start, self.end = start, end

    class Event:
        def __init__(self, start, end):
            self.profile = Profile(start, end)

    assert event_ns([Event(100, 300), Event(250, 420)]) == 320
    assert event_ns([]) is None
    assert event_ns(None) is None


def test_record_of_an_entry(clock):
    turns = Turns(clock)
    made = turns.entry("a", bytes=64, device="pocl", variant="one way")
    made.nmse = 1.23456e-15
    rounds([made], 3)
    entry = made.to_dict()
    assert entry["wall"]["n"] == 3
    assert entry["wall"]["median"] == pytest.approx(np.median(made.wall), abs=1)
    assert entry["wall"]["turns"] == [1000] * 3
    assert entry["nmse"] == 1.23e-15
    assert (entry["kind"], entry["bytes"], entry["device"], entry["variant"]) == ("clrope", 64, "pocl", "one way")
    assert "event" not in entry
