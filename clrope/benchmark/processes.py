"""Measurements in new processes: the time of the first call, and the peak memory of a call."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from ..device import child
from .samples import stats

#: The first call: interpreter, imports, device, kernels from the drivers' caches, a tensor there and back.
_FIRST = """
import time
begun = time.perf_counter()
import numpy as np
x = np.full((1, 512, 32, 128), 0.5, np.float16)
import clrope
imported = time.perf_counter()
y = clrope.rope(x, 1, mode="neox", device=sys.argv[1])
ended = time.perf_counter()
assert y.shape == x.shape and 0.49 < float(np.sqrt((y[0, 7].astype(np.float64) ** 2).mean())) < 0.51
import json
print(json.dumps({"inside": ended - begun, "imports": imported - begun}))
"""

#: Peak of resident memory over a call with a new result, after calls that made the kernels and tables.
_MEMORY = """
import json
import numpy as np
import clrope

def status(name):
    for line in open("/proc/self/status"):
        if line.startswith(name):
            return int(line.split()[1]) * 1024

x = np.full((1, 4096, 32, 128), 0.5, np.float32)
given = np.zeros_like(x)
for _ in range(2):
    y = clrope.rope(x, 1, mode="neox", out=given, device=sys.argv[1])
    assert y is given and abs(float(np.sqrt((y[0, 7].astype(np.float64) ** 2).mean())) - 0.5) < 1e-3
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
y = clrope.rope(x, 1, mode="neox", device=sys.argv[1])
extra = status("VmHWM") - before
assert np.array_equal(y, given)
print(json.dumps({"output": y.nbytes, "extra": extra}))
"""

LIMIT_S = 180


def first_call(selector: str, label: str, repeats: int = 5) -> dict[str, Any]:
    """Return the time from the start of a process to its first result, after one process that filled the caches."""
    out: dict[str, Any] = {"kind": "first call", "device": label}
    times: dict[str, list[float]] = {"whole": [], "inside": [], "imports": []}
    for number in range(repeats + 1):
        start = time.perf_counter()
        found = _child(_FIRST, selector)
        whole = time.perf_counter() - start
        if "reason" in found:
            return out | {"status": "error", "reason": found["reason"]}
        for name, seconds in (found | {"whole": whole}).items() if number else ():
            times[name].append(seconds * 1e9)
    return out | {"status": "ok"} | {name: s.to_dict() for name, t in times.items() if (s := stats(t)) is not None}


def peak_memory(selector: str, label: str) -> dict[str, Any]:
    """Return the peak bytes of `rope` on a NumPy array [1, 4096, 32, 128] f32, output included."""
    out: dict[str, Any] = {"kind": "peak memory", "device": label}
    if not Path("/proc/self/clear_refs").exists():
        return out | {"status": "refused", "reason": "this system has no /proc/self/clear_refs"}
    found = _child(_MEMORY, selector)
    if "reason" in found:
        return out | {"status": "error", "reason": found["reason"]}
    return out | {"status": "ok", "output_bytes": found["output"], "extra_bytes": found["extra"]}


def _child(code: str, selector: str) -> dict[str, Any]:
    command = child.command(code, selector)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"reason": f"{type(error).__name__}: no answer from the child process"}
    if done.returncode:
        last = done.stderr.strip().splitlines()
        return {"reason": f"exit status {done.returncode}: {last[-1] if last else 'no output'}"}
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer
