"""Some of the rows of `fault_table.py`; and that the table shows what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import fault_commands
import fault_table
import pytest
from fault_layer import Fault

import clrope
from clrope import DeviceInfo


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = fault_table.compile_layer(tmp_path_factory.mktemp("layer"))
    if built is None:
        pytest.skip("no C compiler")
    return Path(built)


@pytest.mark.one_in(60)
@pytest.mark.parametrize("action", ["fail", "fail on", "late", "late on", "event", "delay"])
@pytest.mark.parametrize("what", ["one_shot", "plan", "copies", "arrays", "tables", "tuning"])
def test_calls(device: DeviceInfo, library: Path, what: str, action: str, seed: int) -> None:
    rows = list(fault_table.calls(device.index, library, what, action, sample=1, seed=seed))
    assert len(rows) > (0 if action == "event" else 10)
    assert any(row.hits for row in rows)
    assert not [row for row in rows if not row.fine]


@pytest.mark.one_in(24)
@pytest.mark.parametrize("function", ["clEnqueueNDRangeKernel", "clCreateContext", "clBuildProgram", "clFinish"])
@pytest.mark.parametrize("action", ["fail", "drop", "hang"])
def test_probes(library: Path, function: str, action: str, tmp_path: Path) -> None:
    fault = Fault(function, 1, 1, action)
    ended, hits = fault_commands.attempt("devices", None, library, fault, tmp_path)
    assert hits, function
    assert ended == "right" or ended.startswith("error: "), ended


@pytest.mark.one_in(8)
@pytest.mark.parametrize("action", ["drop", "corrupt"])
def test_what_is_wrong_is_shown(device: DeviceInfo, library: Path, action: str, capsys: Any) -> None:
    rows = list(fault_table.calls(device.index, library, "copies", action, sample=1, seed=0))
    assert any(row.outcome.startswith("WRONG VALUES") for row in rows)
    assert fault_table.report(iter(rows))
    assert "WRONG VALUES" in capsys.readouterr().out


def test_a_process_that_ends_or_crashes_or_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(code: str) -> list[str | None]:
        return list(fault_table.lines_of([sys.executable, "-c", code], {}))

    assert lines("print(1); print(2)") == ["1\n", "2\n"]
    with pytest.raises(ChildProcessError, match="CRASH, exit code -6"):
        lines("import os; print(1, flush=True); os.abort()")
    monkeypatch.setattr(fault_table, "PATIENCE", 1.0)
    assert lines("import time; time.sleep(60)") == [None]


def test_an_unknown_device(library: Path) -> None:
    rows = list(fault_table.calls("9:9", library, "plan", "fail", sample=1, seed=0))
    assert [row.fine for row in rows] == [False]
    with pytest.raises(clrope.DeviceError):
        clrope.device("9:9")


def test_actions_that_are_not_possible_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("sys.argv", ["fault_table.py", "--what", "tuning", "--action", "hang"])
    with pytest.raises(SystemExit) as stopped:
        fault_table.main()
    assert stopped.value.code == 2
    assert "what can go wrong in tuning is fail, fail on" in capsys.readouterr().err
