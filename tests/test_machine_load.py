"""What other programs use of the CPUs, from /proc/stat and this process's own time."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clrope import machine_load
from clrope.machine_load import OthersLoad, load_text


def test_the_share_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat, own = tmp_path / "stat", [0.0] * 5
    fake: Any = SimpleNamespace(
        sched_getaffinity=lambda _: {0, 2}, sysconf=lambda _: 100, times=lambda: tuple(own), fspath=os.fspath
    )
    monkeypatch.setattr(machine_load, "os", fake)
    monkeypatch.setattr(machine_load, "_STAT", stat)

    def write(user: int, idle: int, steal: int) -> None:
        line = f"{user} 0 0 {idle} 0 0 0 {steal} {user} 0"
        stat.write_text(f"cpu 1 1 1 1\ncpu0 {line}\ncpu1 9999 9 9 9 9 9 9 9 0 0\ncpu2 {line}\nintr 5\n", "ascii")

    write(100, 100, 0)
    load = OthersLoad()
    assert load.share() is None, "no time has passed"
    write(300, 850, 50)  # 10 s of each of two CPUs: 2.5 s used, of which 0.5 s are stolen
    assert load.share() == 0.25
    own[:4] = [1.0, 0.5, 0.5, 0.0]
    assert load.share() == 0.15
    own[0] = 99.0
    assert load.share() == 0.0
    stat.unlink()
    assert load.share() is None


def test_the_sentence_on_it() -> None:
    assert load_text(None) == ""
    assert load_text(0.04) == "other programs used 4% of the CPUs during the run"
    assert "BUSY" in load_text(0.5)


def test_this_machine() -> None:
    load = OthersLoad()
    sum(range(3_000_000))
    share = load.share()
    assert share is None or 0 <= share <= 1
