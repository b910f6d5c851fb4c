"""`clrope devices` and `clrope tune` as processes, while an OpenCL function goes wrong in each child process.

A probe has to survive more than a call: a driver that hangs, does nothing, or changes what is read.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fault_layer import Fault

ACTIONS = ("fail", "event", "drop", "corrupt", "hang")
COMMANDS: dict[str, list[str]] = {
    "devices": ["devices", "--json"],
    "tune": ["tune", "--type", "f32", "--budget", "2", "--json"],
}
#: Exit codes that are promised: done, done with something that failed, no device.
PROMISED = (0, 1, 2)
HANG_LIMIT = 4
#: Calls of each function that go wrong in `clrope tune`, which makes more than 100,000, without a given number.
TUNE_SAMPLE = 3
#: Seconds for a command: several of its children may each take the whole time that a probe has, 60 s.
PATIENCE = 900.0


def attempt(what: str, device: str | None, library: Path, fault: Fault | None, folder: Path) -> tuple[str, list[str]]:
    """Run the command with an empty cache; return the outcome and the lines of the layer about its calls."""
    cache, hits = folder / "cache", folder / "calls"
    subprocess.run(["rm", "-rf", str(cache), str(hits)], check=True)
    env = {**os.environ, "OPENCL_LAYERS": str(library), "CLROPE_CACHE_DIR": str(cache)}
    if fault is None:
        env["CLROPE_TEST_FAULT_CALLS"] = str(hits)
    else:
        env |= {"CLROPE_TEST_FAULT": fault.variable, "CLROPE_TEST_FAULT_HIT": str(hits)}
        if fault.action == "hang":
            env["CLROPE_PROBE_TIMEOUT"] = str(HANG_LIMIT)
    command = [sys.executable, "-m", "clrope", *COMMANDS[what], *(["--device", device] if device else [])]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return "HANG", []
    lines = hits.read_text().splitlines() if hits.exists() else []
    if "Traceback" in done.stderr or done.returncode not in PROMISED:
        return f"RAW exit code {done.returncode}: {' '.join(done.stderr.split())[-200:]}", lines
    return outcome(what, done.returncode, done.stdout, done.stderr), lines


def outcome(what: str, code: int, printed: str, errors: str) -> str:
    """Return 'right', 'error: ...' with what the command says, or what is wrong."""
    said = " ".join(errors.split())
    if code == 2 and not said:
        return "RAW exit code 2 without a message"
    try:
        read: Any = json.loads(printed)
    except ValueError:
        return f"error: {said[:150]}" if code == 2 else f"NO JSON: {printed[:100]!r}"
    if what == "devices":
        sick = [d["health"] for d in read["devices"] if d["health"]["status"] != "ok"]
        # The table takes a semicolon for what is wrong besides an error.
        told = (f"{health['status']}: {health['reason']}".replace(";", ",") for health in sick)
        reasons = [" ".join(text.split())[:120] for text in told]
        if any(not health["reason"] or not health["hint"] for health in sick):
            return f"NO REASON: {sick}"
        return f"error: {' / '.join(dict.fromkeys(reasons))}" if reasons else "right"
    failed = read_failures(read)
    return f"error: {failed[0][:150]} ({len(failed)})" if failed else "right" if code == 0 else "error: nothing found"


def read_failures(read: Any) -> list[str]:
    """Return what tuning says of variants that failed, and of tuning keys that have no result."""
    text = [read] if isinstance(read, dict) else list(read)
    found: list[str] = []
    while text:
        part = text.pop()
        if isinstance(part, dict):
            found += [str(part[key]) for key in ("reason", "error") if isinstance(part.get(key), str) and part[key]]
            for key in ("errors", "not_tuned"):
                found += [line for line in part.get(key) or () if isinstance(line, str)]
            text += part.values()
        elif isinstance(part, list):
            text += part
    # A semicolon would mark what is not fine (`Row.fine`).
    return [" ".join(one.split()).replace(";", ",") for one in found]


def rows(
    what: str, devices: Sequence[str], library: Path, action: str, sample: int, seed: int, folder: Path
) -> Iterator[tuple[str, str, str, str, int, int, str]]:
    """Yield the fields of a row for each fault. 'devices' probes all devices at once, each in a child of its own."""
    if what == "tune":
        sample = sample or TUNE_SAMPLE
    for device in devices if what == "tune" else [None]:
        fine, lines = attempt(what, device, library, None, folder)
        assert lines, fine  # or the table would be empty
        assert fine == "right" or what == "tune", fine
        most: Counter[str] = Counter()
        for line, n in Counter(lines).items():  # a line is a process and a function
            function = line.split()[1]
            most[function] = max(most[function], n)
        for function, count in sorted(most.items()):
            if action == "event" and not function.startswith("clEnqueue"):
                continue
            every = range(1, count + 1)
            rng = random.Random(f"{seed} {what} {action} {function}")
            chosen = every if not sample or sample >= count else sorted(rng.sample(every, sample))
            for index in chosen:
                ended, hits = attempt(what, device, library, Fault(function, index, index, action), folder)
                yield device or "all", what, action, function, index, len(hits), ended
