"""The table that is drawn while a run measures: figures, the time that is left, and no thread."""

import io
import threading

import pytest
from made_up_results import made_up
from rich.console import Console

from clrope.benchmark.measure import Options
from clrope.benchmark.results import WorkloadRecord
from clrope.benchmark.workloads import select
from clrope.cli import live_table
from clrope.cli.live_table import LiveTable, TimeLeft, device_cell

NAMES = ["prefill/f32/neox/out/forward", "decode-1/f32/neox/out/forward"]


class MadeUpRun:
    """What the table asks a run for."""

    def __init__(self, measured=()):
        self.whole = made_up(workloads=select(NAMES))
        self.options, self.devices = Options(), self.whole["devices"]
        self.records = [w for w in self.whole["workloads"] if w["name"] in measured]

    def result(self):
        return self.whole | {"workloads": self.records}


def shown(table, height=20):
    console = Console(file=io.StringIO(), width=150)
    console.print(table.picture(height))
    return console.file.getvalue()


def test_rows_come_as_workloads_are_measured():
    run = MadeUpRun(NAMES[:1])
    table = LiveTable(run, select(NAMES), quiet=True)
    table.begins(1, 2, NAMES[1])
    text = shown(table)
    assert "48 GB/s, 96% of copy" in text
    assert [line for line in text.splitlines() if NAMES[1] in line and "preparing ..." in line]
    table.doing(f"timing {NAMES[1]}", 0.0)
    table.doing(f"timing {NAMES[1]}", 0.25)
    assert "timing 25%" in shown(table)
    assert "1 of 2 measured" in shown(table)


def test_only_the_last_rows_are_drawn_in_a_small_terminal():
    run = MadeUpRun(NAMES)
    table = LiveTable(run, select(NAMES), quiet=True)
    assert NAMES[0] in shown(table)
    assert NAMES[0] not in shown(table, height=6)
    assert "6.00 µs, 1.20 launches" in shown(table, height=6)


def test_what_a_cell_says():
    result = made_up(workloads=select(NAMES))
    prefill, decode = result["workloads"]
    assert device_cell(WorkloadRecord(result, prefill), "intel") == "49 GB/s, 98% of copy"
    assert device_cell(WorkloadRecord(result, decode), "pocl") == "6.00 µs, 1.20 launches"
    prefill["entries"][0] = {"kind": "clrope", "name": "arrays", "status": "wrong", "reason": "x", "device": "pocl"}
    assert device_cell(WorkloadRecord(result, prefill), "pocl") == "WRONG"
    prefill["entries"] = []
    assert device_cell(WorkloadRecord(result, prefill), "pocl") == "-"


def test_the_time_that_is_left():
    left = TimeLeft({"a": 1.0, "b": 6.0})
    assert left.seconds("a", 3.0, 0.0, 0.0, ["b"]) is None
    # A quarter of the turns took 2 s, so all take 8 s, and with 4 s before them 12 s a unit of weight.
    assert left.seconds("a", 4.0, 2.0, 0.25, ["b", "b"]) == pytest.approx(6 + 12 * 12)
    left.add("a", 10.0)
    assert left.seconds("b", 20.0, 0.0, 0.0, []) == pytest.approx(60 - 20)
    assert left.seconds("b", 80.0, 0.0, 0.0, ["a"]) == pytest.approx(10)


def test_no_thread_draws(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    run, screen, kept = MadeUpRun(), Terminal(), []
    console = Console(file=screen, force_terminal=True, width=100, height=20)
    monkeypatch.setattr(live_table, "stderr_console", lambda: console)
    before = threading.active_count()
    with LiveTable(run, select(NAMES), quiet=False, kept=lambda: kept.append(len(run.records))) as table:
        table.begins(0, 2, NAMES[0])
        assert threading.active_count() == before
        assert "preparing" in screen.getvalue()
        run.records.append(run.whole["workloads"][0])
        table.measured(run.records[0])
        assert "48 GB/s" in screen.getvalue()
        begun = len(screen.getvalue())
        for _ in range(100):
            table.doing(f"timing {NAMES[0]}", 0.5)
        # A drawing is for people: not after every turn of milliseconds.
        assert len(screen.getvalue()) - begun < 2000
    assert kept == [1]


def test_quiet_runs_draw_nothing(capfd):
    run = MadeUpRun()
    with LiveTable(run, select(NAMES), quiet=True) as table:
        table.begins(0, 2, NAMES[0])
        run.records.append(run.whole["workloads"][0])
        table.measured(run.records[0])
    assert capfd.readouterr() == ("", "")
