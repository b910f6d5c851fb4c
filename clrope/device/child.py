"""OpenCL work in a child process, so that a driver that crashes or hangs does not affect this process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

#: `unavailable`: the child ended before it loaded OpenCL, so no driver is to blame.
Outcome = Literal["ok", "crash", "timeout", "error", "unavailable"]
#: Writes one entry, given by keywords, to the result file.
Write = Callable[..., None]

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
    """How a child ended: the answer; or the reason why there is none, and the stage that it had reached.

    output: the end of stdout and stderr. entries: all entries of the result file, in order.
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
    """Return the seconds that a child may take: `CLROPE_PROBE_TIMEOUT`, default 60."""
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

    limit: seconds until the child is killed, default `time_limit()`. An alarm (SIGALRM) in the child counts as a
    timeout, too.
    """
    if not available():
        return ChildResult("unavailable", reason="no Python executable to start a child process with")
    limit = time_limit() if limit is None else limit
    changed = {**os.environ, "PYTHONWARNINGS": "ignore", "PYOPENCL_NO_CACHE": "1", **(env or {})}
    environment = {name: value for name, value in changed.items() if value is not None}
    packages = "\n".join(path or os.getcwd() for path in sys.path)
    with tempfile.TemporaryDirectory(prefix="clrope-") as folder:
        job_path, result_path, log_path = (os.path.join(folder, n) for n in ("job", "result", "log"))
        Path(job_path).write_text(json.dumps(job), encoding="utf-8")
        with open(log_path, "wb") as log:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-c", _BOOT, job_path, result_path, packages, module],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment,
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
        entries = _read_result(result_path)
        output = Path(log_path).read_bytes()[-4000:].decode(errors="replace").strip()
    stage = next((entry["stage"] for entry in reversed(entries) if "stage" in entry), STARTING)
    answer = next((entry["answer"] for entry in entries if "answer" in entry), None)
    outcome: Outcome
    if code is None:
        outcome, reason = "timeout", f"no answer in {limit:g} s while {stage}"
    elif code < 0 and signal_name(-code) == "SIGALRM":
        outcome, reason = "timeout", f"no end before its alarm while {stage}"
    elif code < 0:
        outcome, reason = "crash", f"the driver crashed with {signal_name(-code)} while {stage}"
    elif code or answer is None:
        last = output.splitlines()[-1] if output else "no output"
        outcome = "unavailable" if stage in (STARTING, IMPORTING) else "error"
        reason = f"exit status {code} while {stage}: {last}"
    else:
        return ChildResult("ok", answer, "", stage, output, entries)
    return ChildResult(outcome, {}, reason, stage, output, entries)


def serve(job_path: str, result_path: str, work: Callable[[dict[str, Any], Write], dict[str, Any]]) -> NoReturn:
    """In a child: run `work(job, write)`, write its answer, and leave by `os._exit`: a driver's tear-down may crash.

    write: takes one entry of the result file as keywords; `stage=` names the step that comes next.
    """
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    job = json.loads(Path(job_path).read_bytes())
    with open(result_path, "w", encoding="utf-8", buffering=1) as out:

        def write(**entry: Any) -> None:
            out.write(json.dumps(entry) + "\n")

        write(answer=work(job, write))
    os._exit(0)


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


def _read_result(path: str) -> list[dict[str, Any]]:
    """Return the objects of a file of one JSON object a line; the last line may be cut off."""
    entries: list[dict[str, Any]] = []
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                entries.append(json.loads(line))
    return entries
