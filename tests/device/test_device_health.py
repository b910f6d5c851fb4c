"""How children end, and how the probe checks the output of a kernel."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clrope import store
from clrope.device import child, health, probe
from clrope.device.info import Health

WANT = np.arange(16, dtype=np.float32)
POISON = np.frombuffer(b"\xa5" * 80, dtype=np.float32)


def check(got: np.ndarray) -> None:
    probe.check("k", got.view(np.uint8), WANT.view(np.uint8), POISON.view(np.uint8), 4)


def test_check_of_what_a_kernel_wrote() -> None:
    right = POISON.copy()
    right[:16] = WANT
    check(right)
    with pytest.raises(probe.ProbeError, match="silently did not run"):
        check(POISON.copy())
    wrong = right.copy()
    wrong[[3, 5]] = -0.0
    with pytest.raises(probe.ProbeError, match="2 wrong values of 16"):
        check(wrong)
    half_done = right.copy()
    half_done[8:16] = POISON[8:16]
    with pytest.raises(probe.ProbeError, match="8 wrong values"):
        check(half_done)
    beyond = right.copy()
    beyond[16] = 1
    with pytest.raises(probe.ProbeError, match="past the end of its output"):
        check(beyond)


def ending(monkeypatch: pytest.MonkeyPatch, text: str, stage: str = "running the kernel x") -> child.ChildResult:
    write = f"import json, os, sys, time; print(json.dumps({{'stage': {stage!r}}}), flush=True); "
    monkeypatch.setattr(child, "_MAIN", write + text)
    return child.run({"job": "probe"})


def test_a_failure_holds_for_processes_with_the_same_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLROPE_CACHE_DIR", str(tmp_path / "cache"))
    answers = {
        "small": child.ChildResult("crash", reason="no memory"),
        "large": child.ChildResult("ok", {"cause": "", "copy_gbs": 1.0}),
    }
    limits, jobs = "small", []

    def answer(*_: Any) -> child.ChildResult:
        jobs.append(limits)
        return answers[limits]

    monkeypatch.setattr(health, "run_child", answer)
    monkeypatch.setattr(health, "limits_key", lambda: limits)

    def healthy(refresh: bool = False) -> bool:
        return health.examine("key", ["a", "b", "c"], 0, {}, "", refresh=refresh).ok

    assert [healthy(), healthy()] == [False, False]
    limits = "large"
    assert health.remembered("key") is None
    assert [healthy(), healthy()] == [True, True]
    assert jobs == ["small", "large"]
    limits = "small"
    assert [healthy(), healthy(refresh=True)] == [False, False]
    limits = "large"
    assert healthy()
    answers["large"] = answers["small"]
    assert [healthy(refresh=True), healthy()] == [False, False]
    answers["large"] = child.ChildResult("ok", {"cause": "", "copy_gbs": 1.0})
    assert [healthy(refresh=True), healthy()] == [True, True]


def test_a_crash_is_reported_by_its_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    result = ending(monkeypatch, "os.kill(os.getpid(), 11)")
    assert result.outcome == "crash"
    assert result.reason == "the driver crashed with SIGSEGV while running the kernel x"
    assert health.failure(result.outcome, result.reason).hint


def test_a_hang_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "there"
    monkeypatch.setenv("CLROPE_PROBE_TIMEOUT", "3")
    started: list[Hanging] = []

    class Hanging(subprocess.Popen[bytes]):
        """A child whose time is over as soon as it hangs."""

        def __init__(self, command: list[str], **options: Any) -> None:
            super().__init__(command, **options)
            started.append(self)

        def wait(self, timeout: float | None = None) -> int:
            if timeout is None:
                return super().wait()
            assert timeout == 3
            while not there.exists():
                assert self.poll() is None
                time.sleep(0.01)
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(child.subprocess, "Popen", Hanging)
    result = ending(monkeypatch, f"open({str(there)!r}, 'w'); time.sleep(3600)")
    assert result.outcome == "timeout"
    assert result.reason == "no answer in 3 s while running the kernel x"
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def test_an_exception_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    result = ending(monkeypatch, "raise ValueError('what it said')")
    assert result.outcome == "error"
    assert "what it said" in result.reason


def test_a_child_that_never_loads_opencl_blames_no_driver(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ending(monkeypatch, "sys.exit(3)", child.IMPORTING).outcome == "unavailable"
    found = health.examine("k", ["p", "d", "v"], 0, {}, "")
    assert found.status == "unknown"
    assert "ulimit" in found.hint
    assert health.remembered("k") is None
    monkeypatch.setattr(child.sys, "executable", "")
    assert child.run({"job": "probe"}).outcome == "unavailable"


def test_chatter_of_a_driver_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    result = ending(monkeypatch, "print('noise' * 100000); print(json.dumps({'answer': {'cause': ''}}))")
    assert result.outcome == "ok"
    assert result.answer == {"cause": ""}


def test_results_are_remembered_failures_not_for_ever(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def answer(cause: str) -> None:
        def run(job: object, env: object = None) -> child.ChildResult:
            calls.append(job)
            return child.ChildResult("ok", {"cause": cause, "reason": "why", "copy_gbs": 3.5})

        monkeypatch.setattr(health, "run_child", run)

    def examine(key: str, refresh: bool = False) -> Health:
        return health.examine(key, ["p", "d", "v"], 0, {}, "", refresh=refresh)

    answer("")
    assert examine("good") == examine("good") == Health("ok", copy_gbs=3.5)
    assert len(calls) == 1
    examine("good", refresh=True)
    assert len(calls) == 2
    answer("wrong")
    assert examine("bad").cause == "wrong"
    assert examine("bad").hint
    assert len(calls) == 3
    later = time.time() + health.FAILURE_KEPT_S + 1
    monkeypatch.setattr(store.time, "time", lambda: later)
    examine("good")
    assert len(calls) == 3
    examine("bad")
    assert len(calls) == 4


def test_the_key_tells_drivers_and_cpu_names_apart() -> None:
    keys = {
        health.health_key(["p", "d", "1"], "v", "pv", ["lib", 1], ""),
        health.health_key(["p", "d", "2"], "v", "pv", ["lib", 1], ""),
        health.health_key(["p", "d", "1"], "v", "pv", ["lib", 2], ""),
        health.health_key(["p", "d", "1"], "v", "pv", ["lib", 1], "haswell"),
    }
    assert len(keys) == 4
