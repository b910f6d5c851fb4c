"""Running a piece of OpenCL work in a child process, so that a driver that crashes or hangs does no further harm."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

#: `unavailable`: the child did not come as far as OpenCL, which says nothing about any driver.
Outcome = Literal["ok", "crash", "timeout", "error", "unavailable"]

#: The child gets its parent's sys.path before it imports anything, so that it finds the same packages.
_BOOT = (
    "import sys; sys.path[:] = sys.argv[3].split('\\n'); "
    "import importlib; importlib.import_module(sys.argv[4]).main(sys.argv[1], sys.argv[2])"
)
#: What the child is doing before any driver is loaded.
STARTING = "starting"
IMPORTING = "importing PyOpenCL"


@dataclass(frozen=True)
class ChildResult:
    """How a child ended: its answer, or in words why there is none and what it was doing.

    entries: all else it wrote before it ended, in order.
    """

    outcome: Outcome
    answer: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    stage: str = ""
    output: str = ""
    entries: list[dict[str, Any]] = field(default_factory=list)


def available() -> bool:
    """Whether children can be started: not where `sys.executable` is missing, or a program that embeds Python."""
    name = os.path.basename(sys.executable or "").lower()
    return not getattr(sys, "frozen", False) and ("python" in name or "pypy" in name)


def time_limit() -> float:
    """Return seconds a child may take: `CLROPE_PROBE_TIMEOUT`, default 60."""
    try:
        return max(1.0, float(os.environ["CLROPE_PROBE_TIMEOUT"]))
    except (KeyError, ValueError):
        return 60.0


def run(
    job: Mapping[str, Any],
    env: Mapping[str, str | None] | None = None,
    *,
    module: str = "clrope.device.probe",
    limit: float | None = None,
) -> ChildResult:
    """Run `main` of `module` on `job` with changes `env` to the environment (None removes a variable).

    It writes one JSON object a line: `{"stage": ...}`, `{"answer": ...}` or others. limit: seconds it may take; it may
    set itself a shorter one by SIGALRM, which counts as a timeout too.
    """
    if not available():
        return ChildResult("unavailable", reason="no Python executable to start a child process with")
    limit = time_limit() if limit is None else limit
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "PYOPENCL_NO_CACHE": "1"}
    for name, value in (env or {}).items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    with tempfile.TemporaryDirectory(prefix="clrope-") as folder:
        job_path, result_path, log_path = (os.path.join(folder, n) for n in ("job", "result", "log"))
        with open(job_path, "w", encoding="utf-8") as file:
            json.dump(job, file)
        with open(log_path, "wb") as log:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-c", _BOOT, job_path, result_path,
                     "\n".join(p or os.getcwd() for p in sys.path), module],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,  # so that a hanging driver's own helpers go with it
                )  # fmt: skip
            except OSError as error:
                return ChildResult("unavailable", reason=f"could not start a child process: {error}")
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    _end(process)
        stages, answer, entries = _read_result(result_path)
        output = Path(log_path).read_bytes()[-4000:].decode(errors="replace").strip()
    stage = stages[-1] if stages else STARTING
    if code is None:
        return ChildResult("timeout", {}, f"no answer in {limit:g} s while {stage}", stage, output, entries)
    if code < 0 and signal_name(-code) == "SIGALRM":
        return ChildResult("timeout", {}, f"no end in the time it was given while {stage}", stage, output, entries)
    if code < 0:
        reason = f"the driver crashed with {signal_name(-code)} while {stage}"
        return ChildResult("crash", {}, reason, stage, output, entries)
    if code or answer is None:
        last = output.splitlines()[-1] if output else "no output"
        outcome: Outcome = "unavailable" if stage in (STARTING, IMPORTING) else "error"
        return ChildResult(outcome, {}, f"exit status {code} while {stage}: {last}", stage, output, entries)
    return ChildResult("ok", answer, "", stage, output, entries)


def signal_name(number: int) -> str:
    """Return 'SIGSEGV' for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)  # its own session, so its id is the group's
        else:
            process.kill()
    process.wait()


def _read_result(path: str) -> tuple[list[str], dict[str, Any] | None, list[dict[str, Any]]]:
    # One JSON object a line: {"stage": ...} as the work goes on, {"answer": ...} at its end, others as a job has them.
    stages: list[str] = []
    entries: list[dict[str, Any]] = []
    answer = None
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if "stage" in entry:
                    stages.append(entry["stage"])
                elif "answer" in entry:
                    answer = entry["answer"]
                else:
                    entries.append(entry)
    return stages, answer, entries
