"""Calls of many threads, while one process tunes the same device and another deletes the cache; prints what it found.

`python tests/load/load.py --device intel` takes some minutes. Each thread calls in all ways, with the shapes, modes and
positions of a fixed list, and compares every byte of each result. Half as many calls come first, in which drivers and
`malloc` fill their pools. Exit code 1 for a wrong result, an error, or memory that grows by 5 MB or more from then on.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pyopencl.array as cla

import clrope
from clrope import RopeConfig
from clrope.emulation import emulate_rope

#: Bytes that the process may not grow by in the measured parts.
GROWTH = 5_000_000
#: Parts of the calls: what comes first, and what is measured.
FIRST, PARTS = 5, 10
CONFIGS = [RopeConfig(mode, 64, freq_base=1e4) for mode in ("normal", "neox")]
SHAPES = [(1, 1, 8, 64), (1, 7, 4, 64), (2, 16, 2, 64), (1, 64, 8, 128)]
DTYPES = (np.float32, np.float16)
PLACES = (0, 7, 70001)


class Case:
    """One call with its inputs and the right result."""

    def __init__(self, config: RopeConfig, shape: tuple[int, ...], dtype: Any, place: int, seed: int) -> None:
        self.config, self.place = config, place
        self.x = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
        self.want = emulate_rope(self.x, place, config).tobytes()
        self.positions = np.arange(place, place + shape[1])


def resident() -> int:
    """Return the bytes of memory that this process has, without what the C library keeps for later."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # the GNU C library's
    if trim is not None:
        trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Worker:
    """The ways of calling, of one thread; plans and queues are its own, `Rope` objects are shared."""

    def __init__(self, ops: dict[RopeConfig, clrope.Rope], cases: list[Case], device: clrope.DeviceInfo) -> None:
        self.ops, self.cases, self.device = ops, cases, device
        self.context = cl.Context([device.cl_device])  # Intel's queues do not keep theirs
        self.queue = cl.CommandQueue(self.context)
        self.plans: dict[int, Any] = {}
        self.ways: list[Callable[[int, Case], Any]] = [self.rope, self.operation, self.in_place, self.plan, self.array]

    def rope(self, k: int, case: Case) -> Any:
        return clrope.rope(case.x, case.positions, case.config, device=self.device)

    def operation(self, k: int, case: Case) -> Any:
        return self.ops[case.config](case.x, case.place)

    def in_place(self, k: int, case: Case) -> Any:
        x = case.x.copy()
        return self.ops[case.config](x, case.place, out=x)

    def plan(self, k: int, case: Case) -> Any:
        if k not in self.plans:
            self.plans[k] = self.ops[case.config].plan(case.x, case.place + 5)
        return self.plans[k].run(positions=case.place)

    def array(self, k: int, case: Case) -> Any:
        x = cla.to_device(self.queue, case.x)
        y = clrope.rope(x, case.place, case.config)
        found = y.get()
        self.queue.finish()
        return found

    def calls(self, rng: random.Random, count: int) -> Counter[str]:
        """Make calls in random ways; return how often each outcome came."""
        every = [(k, way) for k in range(len(self.cases)) for way in self.ways]
        return Counter(self.call(*rng.choice(every)) for _ in range(count))

    def every_call(self, rng: random.Random) -> Counter[str]:
        """Make each call in each way: plans, programs and buffers are made."""
        every = [(k, way) for k in range(len(self.cases)) for way in self.ways]
        return Counter(self.call(k, way) for k, way in rng.sample(every, len(every)))

    def call(self, k: int, way: Callable[[int, Case], Any]) -> str:
        """Return the way, behind what is wrong if the result is."""
        case = self.cases[k]
        try:
            right = way(k, case).tobytes() == case.want
        except Exception as error:
            return f"{type(error).__name__} in {way.__name__}: {' '.join(str(error).split())[:200]}"
        return way.__name__ if right else f"WRONG VALUES in {way.__name__} of case {k}"


def calls(device: clrope.DeviceInfo, threads: int, count: int, seed: int) -> tuple[Counter[str], list[int]]:
    """Make about `count` measured calls after the first ones.

    Returns how often each outcome came, the first calls' among them, and the memory before the measured parts and after
    each.
    """
    numbers = [(c, s, t, p) for c in CONFIGS for s in SHAPES for t in DTYPES for p in PLACES]
    cases = [Case(*case, seed=seed + k) for k, case in enumerate(numbers)]
    ops = {config: clrope.Rope(config, device) for config in CONFIGS}
    outcomes: Counter[str] = Counter()
    lock = threading.Lock()
    workers = [Worker(ops, cases, device) for _ in range(threads)]

    def together(work: Callable[[Worker, random.Random], Counter[str]], name: str) -> None:
        def one(part: int, worker: Worker) -> None:
            mine = work(worker, random.Random(f"{seed} {name} {part}"))
            with lock:
                outcomes.update(mine)

        group = [threading.Thread(target=one, args=given) for given in enumerate(workers)]
        for thread in group:
            thread.start()
        for thread in group:
            thread.join()

    together(Worker.every_call, "first")
    sizes = []
    for part in range(FIRST + PARTS):
        together(lambda worker, rng: worker.calls(rng, -(-count // PARTS // threads)), f"part {part}")
        sizes.append(resident())
    return outcomes, sizes[FIRST - 1 :]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % (1 << 32))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CLROPE_CACHE_DIR"] = cache = str(Path(folder) / "cache")
        device = clrope.device(given.device)
        tune = [sys.executable, "-m", "clrope", "tune", "--device", device.index, "--type", "f32", "--budget", "600"]
        loops = [
            ["sh", "-c", 'while "$@"; do :; done', "sh", *tune],
            ["sh", "-c", 'while sleep 0.5; do rm -rf "$0"; done', cache],
        ]
        silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        others = [subprocess.Popen(loop, **silent) for loop in loops]
        begun = time.perf_counter()
        try:
            outcomes, sizes = calls(device, given.threads, given.calls, given.seed)
            codes = [other.poll() for other in others]
        finally:
            for other in others:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(other.pid, signal.SIGTERM)
                other.wait()
    seconds = time.perf_counter() - begun
    growth = sizes[-1] - sizes[0]
    wrong = sum(n for outcome, n in outcomes.items() if " " in outcome)
    for outcome, n in outcomes.most_common():
        print(f"{n:8} {outcome}")
    print(
        f"{device.name}, seed {given.seed}: {sum(outcomes.values())} calls by {given.threads} threads in "
        f"{seconds:.0f} s, {wrong} wrong; in the last {given.calls} or more, memory grew by "
        f"{growth / 1e6:.1f} MB; after each tenth: {', '.join(f'{(size - sizes[0]) / 1e6:.1f}' for size in sizes[1:])}"
    )
    ended = codes != [None, None]
    if ended:
        print(f"the tuner or what deletes the cache ended before the calls did: {codes}")
    return 1 if wrong or growth >= GROWTH or ended else 0


if __name__ == "__main__":
    sys.exit(main())
