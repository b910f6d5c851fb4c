"""OpenCL work in a child process, so that a driver that crashes or hangs does not affect this process.

The job is one line of JSON on the child's stdin, which stays open: its end tells the child that the parent is gone.
Each line on stdout is one entry of the results. No file is written.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Literal, NoReturn

#: `unavailable`: the child ended before it loaded OpenCL, so no driver is to blame.
Outcome = Literal["ok", "crash", "timeout", "error", "unavailable"]
#: Writes one entry, given by keywords, to the results.
Write = Callable[..., None]

#: What a child runs first: it gets its parent's sys.path, so that it finds the same packages, and asks Linux to end it
#: with its parent, before imports that take seconds on a loaded machine. Until then sys.path begins with the current
#: directory, whose files may be anybody's: `sys` alone is imported from nowhere.
_BOOT = """
import sys
sys.path[:] = sys.argv.pop(1).split("\\n")
if sys.platform == "linux":
    try:
        import ctypes
        ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
    except (ImportError, OSError, AttributeError):
        pass
"""
#: A module's `main`.
_MAIN = "import importlib; importlib.import_module(sys.argv[1]).main()"
#: Another program, in the place of this process.
_PROGRAM = "import os; os.execvp(sys.argv[1], sys.argv[1:])"
#: Bytes kept of what a child prints.
_OUTPUT = 4000
#: What the child is doing before any driver is loaded.
STARTING = "starting"
IMPORTING = "importing PyOpenCL"
#: Seconds between two looks at what a child has written.
_HEARING = 0.05
#: Seconds in which an ended child's last output is read; a helper of the driver may hold its pipes open for longer.
_DRAINING = 1.0


@dataclass(frozen=True)
class ChildResult:
    """How a child ended: the answer; or the reason why there is none, and the stage that it had reached.

    output: the end of stdout and stderr. entries: all entries of the results, in order.
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
        seconds = float(os.environ["CLROPE_PROBE_TIMEOUT"])
    except (KeyError, ValueError):
        return 60.0
    return max(1.0, seconds) if math.isfinite(seconds) else 60.0


def command(code: str, *arguments: str) -> list[str]:
    """Return the command of a child that runs Python code with this process's sys.path, and ends with it on Linux.

    What this process was told not to run (`python -I`, `-s`, ...), its children do not run either.
    """
    here = _current_directory()
    # With a name for the current directory; without it where that was deleted.
    packages = "\n".join(path or here for path in sys.path if path or here)
    flags = sys.flags
    kept = {"-I": flags.isolated, "-E": flags.ignore_environment, "-s": flags.no_user_site, "-S": flags.no_site}
    return [
        sys.executable,
        *(flag for flag, given in kept.items() if given),
        "-c",
        f"{_BOOT}\n{code}",
        packages,
        *arguments,
    ]


def program_command(*words: str) -> list[str]:
    """Return the command of another program that ends with this process on Linux."""
    return command(_PROGRAM, *words) if sys.platform == "linux" and available() else [*words]


def run(
    job: Mapping[str, Any],
    env: Mapping[str, str | None] | None = None,
    *,
    module: str = "clrope.device.probe",
    limit: float | None = None,
    silence: float | None = None,
    heard: Callable[[dict[str, Any]], None] | None = None,
) -> ChildResult:
    """Run `main` of `module` on `job` with changes `env` to the environment (None removes a variable).

    limit: seconds until the child is killed, default `time_limit()`. An alarm (SIGALRM) in the child counts as a
    timeout, too. silence: seconds without an entry until it is killed. heard: called with each entry as it comes.
    """
    if not available():
        return ChildResult("unavailable", reason="no Python executable to start a child process with")
    limit = time_limit() if limit is None else limit
    changed = {**os.environ, "PYTHONWARNINGS": "ignore", "PYOPENCL_NO_CACHE": "1", **(env or {})}
    environment = {name: value for name, value in changed.items() if value is not None}
    try:
        process = subprocess.Popen(
            command(_MAIN, module),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env=environment,
            start_new_session=True,  # so that a hanging driver's own helpers go with it
            # NumPy 2.5 in Python 3.13.0 cannot be imported in a deleted one.
            cwd=None if _current_directory() else os.sep,
        )  # fmt: skip
    except OSError as error:
        return ChildResult("unavailable", reason=f"could not start a child process: {error}")
    results, printed = bytearray(), bytearray()
    pipes = [
        threading.Thread(target=target, args=arguments, daemon=True)
        for target, arguments in (
            (_send, (process.stdin, json.dumps(job).encode() + b"\n")),
            (_receive, (process.stdout, results)),
            (_receive, (process.stderr, printed, _OUTPUT)),
        )
    ]
    code = None
    try:
        for pipe in pipes:
            pipe.start()
        if heard is None and silence is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(limit)
        else:
            code = _wait_and_hear(process, pipes[1], results, limit, silence or limit, heard or (lambda entry: None))
    finally:
        if process.poll() is None:
            _end(process)
        for pipe in pipes:
            if pipe.ident is not None:
                pipe.join(_DRAINING)
        for stream in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]
    entries = _entries(bytes(results))
    output = bytes(printed).decode(errors="replace").strip()
    stage = next((entry["stage"] for entry in reversed(entries) if "stage" in entry), STARTING)
    answer = next((entry["answer"] for entry in entries if "answer" in entry), None)
    outcome: Outcome
    if code is None:
        outcome, reason = "timeout", f"no answer in {min(limit, silence or limit):g} s while {stage}"
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


def _current_directory() -> str:
    """Return the current directory, '' if it was deleted."""
    with contextlib.suppress(OSError):
        return os.getcwd()
    return ""


def _wait_and_hear(
    process: subprocess.Popen[bytes],
    receiver: threading.Thread,
    results: bytearray,
    limit: float,
    silence: float,
    heard: Callable[[dict[str, Any]], None],
) -> int | None:
    """Wait for the child's end; tell of each entry. Returns its exit code, None if time is over."""
    done, begin = 0, time.monotonic()
    last = begin
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_HEARING)
        ended, now = process.poll(), time.monotonic()
        if ended is not None:
            receiver.join(_DRAINING)  # on a busy machine the last entries are still in the pipe
        whole = bytes(results).rpartition(b"\n")[0]
        if len(whole) > done:
            for entry in _entries(whole[done:]):
                heard(entry)
            done, last = len(whole), now
        if ended is not None:
            return ended
        if now - last > silence or now - begin > limit:
            return None


def serve(work: Callable[[dict[str, Any], Write], dict[str, Any]]) -> NoReturn:
    """In a child: run `work(job, write)`, write its answer, and leave by `os._exit`: a driver's tear-down may crash.

    write: takes one entry of the results as keywords; `stage=` names the step that comes next.
    """
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stdin, results = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    # Drivers may print, and may read: neither touches the pipes.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    line = stdin.readline()
    _end_with_parent(stdin)

    def write(**entry: Any) -> None:
        results.write(json.dumps(entry) + "\n")

    write(answer=work(json.loads(line), write))
    os._exit(0)


def _end_with_parent(stdin: IO[bytes]) -> None:
    """End this process, and its helpers, when its parent ends: by a thread that sees the end of stdin.

    A driver that holds the GIL stops this thread; Linux's own signal, which `_BOOT` asks for, still comes.
    """

    def watch() -> None:
        stdin.read()
        if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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


def _send(stream: IO[bytes], data: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):  # the child ended first
        while data:
            data = data[stream.write(data) :]


def _receive(stream: IO[bytes], into: bytearray, most: int | None = None) -> None:
    with contextlib.suppress(OSError, ValueError):
        while chunk := stream.read(1 << 16):
            into += chunk
            if most:
                del into[:-most]


def _entries(results: bytes) -> list[dict[str, Any]]:
    """Return the objects of lines of JSON; the last line may be cut off, and a driver may have printed in between."""
    entries: list[dict[str, Any]] = []
    for line in results.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                entries.append(entry)
    return entries
