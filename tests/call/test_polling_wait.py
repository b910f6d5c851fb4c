"""`PollingWait`: it waits for every launch, and asks no longer than that pays."""

import pytest

from clrope.call.events import POLLS, RUNS_IN_VAIN, RUNS_PER_TRIAL, PollingWait


class Event:
    """An event that has ended after so many questions, or `fails` with its wait."""

    def __init__(self, questions: int, fails: bool = False) -> None:
        self.questions, self.fails, self.asked, self.waited = questions, fails, 0, 0

    @property
    def command_execution_status(self) -> int:
        self.asked += 1
        return (-5 if self.fails else 0) if self.asked >= self.questions else 3

    def wait(self) -> None:
        self.waited += 1
        if self.fails:
            raise RuntimeError("the launch has failed")


def run(wait: PollingWait, *events: Event) -> None:
    wait.run([lambda event=event: event for event in events])
    assert all(event.waited == 1 for event in events)


def test_a_quick_launch_is_asked_until_it_has_ended() -> None:
    wait = PollingWait(set())
    for questions in (1, 300, POLLS):
        first, last = Event(1), Event(questions)
        run(wait, first, last)
        assert (first.asked, last.asked) == (0, questions)


def test_a_long_launch_is_asked_again_only_now_and_then() -> None:
    wait, asked = PollingWait(set()), []
    for _ in range(2 * RUNS_PER_TRIAL):
        event = Event(POLLS + 1)
        run(wait, event)
        asked.append(event.asked)
    trial = [0] * (RUNS_PER_TRIAL - 1) + [POLLS]
    assert asked == [POLLS] * RUNS_IN_VAIN + trial[RUNS_IN_VAIN:] + trial
    for _ in range(RUNS_PER_TRIAL):
        run(wait, quick := Event(5))
    assert quick.asked == 5, "a launch that is quick again is asked again"
    run(wait, Event(POLLS + 1))
    run(wait, quick := Event(5))
    assert quick.asked == 5, "one long launch is no reason to stop"


def test_a_failed_launch_raises() -> None:
    event = Event(3, fails=True)
    with pytest.raises(RuntimeError, match="has failed"):
        PollingWait(set()).run([lambda: event])
    assert (event.asked, event.waited) == (3, 1)


def test_next_to_another_call_nothing_is_asked() -> None:
    in_flight: set[PollingWait] = set()
    wait, other, alone = PollingWait(in_flight), Event(5), Event(5)

    class Launch(Event):
        def wait(self) -> None:
            run(PollingWait(in_flight), other)
            super().wait()

    run(wait, Launch(1))
    run(wait, alone)
    assert (other.asked, alone.asked) == (0, 5)
    assert not in_flight
