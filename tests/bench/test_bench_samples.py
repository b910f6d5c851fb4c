"""Statistics of times, and the order in which contenders take turns."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clrope.benchmark.contender import Contender, event_ns, rounds, warm_up
from clrope.benchmark.samples import stats


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


class Turns:
    def __init__(self):
        self.order = []

    def contender(self, name, sets=1, **more):
        def call(i):
            self.order.append((name, i))

        return Contender("clrope", name, call, lambda: None, sets, **more)


def test_contenders_take_turns_and_go_through_their_sets():
    turns = Turns()
    a, b = turns.contender("a", 3), turns.contender("b")
    rounds([a, b], 4)
    # One call of each round is not counted.
    assert [name for name, _ in turns.order] == ["a", "a", "b", "b"] * 4
    assert [i for name, i in turns.order if name == "a"] == [1, 2, 0, 1, 2, 0, 1, 2]
    for made in (a, b):
        assert len(made.wall) == len(made.cpu) == 4
        assert not made.event
        assert min(made.wall) > 0


def test_calls_in_a_row_fit_a_block():
    turns = Turns()
    quick = turns.contender("quick")
    warm_up(quick, 7)
    turns.order.clear()
    rounds([quick], 2)
    assert len(quick.wall) == 14
    slow = Contender("peer", "slow", lambda i: time.sleep(0.05), lambda: None)
    warm_up(slow, 7)
    rounds([slow], 2)
    assert len(slow.wall) == 2
    assert min(slow.wall) >= 50e6


def test_what_follows_a_call_is_not_timed():
    turns = Turns()
    made = turns.contender("a", after=lambda i: time.sleep(0.02), device="pocl")
    rounds([made], 2)
    assert max(made.wall) < 20e6


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


def test_entry_of_a_contender():
    turns = Turns()
    made = turns.contender("a", bytes=64, device="pocl", spelling="one way")
    made.nmse = 1.23456e-15
    rounds([made], 3)
    entry = made.to_dict()
    assert entry["wall"]["n"] == 3
    assert entry["wall"]["median"] == pytest.approx(np.median(made.wall), abs=1)
    assert entry["nmse"] == 1.23e-15
    assert (entry["kind"], entry["bytes"], entry["device"], entry["spelling"]) == ("clrope", 64, "pocl", "one way")
    assert "event" not in entry
