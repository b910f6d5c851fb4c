"""The table that `clrope bench` draws on stderr while it measures, with the time that is left.

It is drawn between turns only, at most twice a second, and by no thread: a thread would take part in what is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..benchmark.measure import Watcher
from ..benchmark.report import number
from ..benchmark.results import WorkloadRecord
from .output import stderr_console

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from ..benchmark.measure import BenchRun
    from ..benchmark.workloads import Workload

#: Seconds between two drawings.
PAUSE_S = 0.5
#: The time of a workload from memory, in times of one from the cache; of what is measured in new processes.
FROM_MEMORY, OTHER = 6.0, 4.0


class TimeLeft:
    """An estimate from the time that the work until now took. weights: of measurements, by their names."""

    def __init__(self, weights: dict[str, float]) -> None:
        self._weights = weights
        self._weight = self._seconds = 0.0

    def weight(self, name: str) -> float:
        """Return the weight of one measurement."""
        return self._weights.get(name, OTHER)

    def add(self, name: str, seconds: float) -> None:
        """Note how long a measurement took."""
        self._weight += self.weight(name)
        self._seconds += seconds

    def seconds(
        self, current: str, prepared: float, timed: float, share: float, following: Sequence[str]
    ) -> float | None:
        """Return the seconds left; None before anything can be known.

        prepared, timed: seconds of the current measurement before its first turn and since. share: of its turns that
        are done. following: names of what comes after it.
        """
        weight, taken = self._weight, self._seconds
        if share > 0:
            weight, taken = weight + self.weight(current), taken + prepared + timed / share
        if not weight:
            return None
        each = taken / weight
        rest = timed / share - timed if share > 0 else each * self.weight(current) - prepared
        return max(0.0, rest) + each * sum(self.weight(name) for name in following)


class LiveTable(Watcher):
    """Rows of workloads as they come. kept: called when a workload is complete, before the table is drawn."""

    def __init__(
        self, run: BenchRun, workloads: Sequence[Workload], quiet: bool, kept: Callable[[], None] = lambda: None
    ) -> None:
        self._run, self._kept = run, kept
        self._quiet = quiet
        self._live: Live | None = None
        weights = {w.name: 1.0 if w.cached else FROM_MEMORY for w in workloads}
        self._left = TimeLeft(weights)
        self._following = [w.name for w in workloads for _ in range(run.options.repeats)][len(run.records) :]
        self._rows = [self._row(record) for record in run.records]
        self._began = self._drawn = self._current_began = self._timing_began = time.monotonic()
        self._done, self._total, self._current, self._stage, self._share = len(run.records), 0, "", "", 0.0

    def __enter__(self) -> LiveTable:
        console = stderr_console()
        if not self._quiet and console.is_terminal:
            from rich.live import Live

            self._live = Live(
                console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False,
                vertical_overflow="crop",
            )  # fmt: skip
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def begins(self, done: int, total: int, what: str) -> None:
        """Show what is measured next."""
        self._done, self._total, self._current, self._stage, self._share = done, total, what, "", 0.0
        self._current_began = time.monotonic()
        if what in self._following:
            self._following.remove(what)
        self._draw(at_once=True)

    def doing(self, what: str, share: float) -> None:
        """Show how far the current workload is."""
        if not share:
            self._timing_began = time.monotonic()
        self._stage, self._share = what, share
        self._draw()

    def measured(self, record: dict[str, Any]) -> None:
        """Show the figures of a workload."""
        self._left.add(record["name"], record["seconds"])
        self._kept()
        if self._live is not None:
            self._rows.append(self._row(record))
            self._draw(at_once=True)

    def _draw(self, at_once: bool = False) -> None:
        if self._live is not None and (at_once or time.monotonic() - self._drawn > PAUSE_S):
            self._live.update(self.picture(self._live.console.height), refresh=True)
            self._drawn = time.monotonic()

    def picture(self, height: int) -> RenderableType:
        """Return what is drawn in a terminal of so many lines: the last rows, the current one, a line on the time."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        labels = list(self._run.devices)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for head in ("workload", *labels, "times the best peer"):
            table.add_column(Text(head), no_wrap=True, overflow="crop")
        shown = max(1, height - 5)
        for row in self._rows[-shown:]:
            table.add_row(*map(Text, row))
        if self._current:
            table.add_row(Text(self._current, style="bold"), Text(self._progress()))
        return Group(table, Text(self.time_line(), no_wrap=True, overflow="crop"))

    def _progress(self) -> str:
        if not self._share:
            return self._stage.partition(" ")[0] + " ..." if self._stage.startswith("checking") else "preparing ..."
        return f"timing {self._share:.0%}"

    def time_line(self) -> str:
        """Return a line such as '2 of 5 workloads, 0:41 passed, about 1:05 left; Ctrl-C keeps these'."""
        now = time.monotonic()
        passed = now - self._began
        timed = now - self._timing_began if self._share else 0.0
        prepared = now - self._current_began - timed
        left = self._left.seconds(self._current, prepared, timed, self._share, self._following)
        rest = "time left not known yet" if left is None else f"about {_minutes(left)} left"
        return f"{self._done} of {self._total} measured, {_minutes(passed)} passed, {rest}; Ctrl-C keeps these"

    def _row(self, record: dict[str, Any]) -> list[str]:
        read = WorkloadRecord(self._run.result(), record)
        cells = [device_cell(read, label) for label in self._run.devices]
        best = [found for label in self._run.devices if (found := read.best_peer(label)) is not None]
        peers = [f"{number(ratio)} ({name})" for name, ratio in best]
        return [read.name, *cells, ", ".join(peers) or "-"]


def device_cell(record: WorkloadRecord, label: str) -> str:
    """Return this package's speed on a device with its share of the ceiling, or a call's time; or why there is none."""
    own = record.arrays(label)
    if record.calls:
        timed = record.entries("clrope", None, label)
        return f"{record.time(timed[0]) / 1e3:.4g} µs" if timed else "-"
    if own is None:
        failed = [e["status"] for e in record.workload["entries"] if e["kind"] == "clrope" and e.get("device") == label]
        return failed[0].upper() if failed else "-"
    if record.workload["latency"]:
        return f"{number(record.time(own) / 1e3)} µs, {number(record.launches(label))} launches"
    share = record.of_ceiling(label)
    return f"{number(record.rate(label))} GB/s" + ("" if share is None else f", {share:.0%} of copy")


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
