"""Ctrl-C at random moments of calls: what comes after must be right, and nothing may be written late.

    python tests/faults/interrupts.py --device pocl --seconds 60 [--seed N] [--out-of-order]

A timer raises KeyboardInterrupt 1 µs to 5 ms after each call begins: new results, `out=`, plans with moving positions,
OpenCL arrays, several tensors, the caller's tables. Each result is compared with the float64 reference; after every
twentieth interrupt an output is watched for a while. Exit code 1 for a wrong result, a raw error or memory
written late.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyopencl as cl
import pyopencl.array as cla

import clrope

SHAPES = ((1, 1, 4, 64), (1, 300, 8, 64), (2, 2000, 16, 64))
CONFIG = clrope.RopeConfig("neox")


class Timer:
    """Raises KeyboardInterrupt once for each time it is armed, and never after it was disarmed."""

    def __init__(self) -> None:
        self._armed = False
        signal.signal(signal.SIGALRM, self._fire)

    def arm(self, seconds: float) -> None:
        self._armed = True
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def disarm(self) -> None:
        self._armed = False

    def _fire(self, *_: Any) -> None:
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt


class Calls:
    """The calls that are interrupted, and what each must return."""

    def __init__(self, device: str, out_of_order: bool, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.op = clrope.Rope(CONFIG, device=device)
        flags = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE if out_of_order else 0
        self.context = cl.Context([clrope.device(device).cl_device])  # kept: not every driver's queue does it
        self.queue = cl.CommandQueue(self.context, properties=flags)
        self.inputs = [rng.uniform(-1, 1, shape).astype(np.float32) for shape in SHAPES]
        self.rows = [rng.integers(0, 1000, shape[1]) for shape in SHAPES]
        self.tables = [self.op.cos_sin(rows, head_dim=64) for rows in self.rows]
        self.plans = [self.op.plan(x, 0) for x in self.inputs]
        self.arrays = [cla.to_device(self.queue, x) for x in self.inputs]
        self.wants = {
            (k, p): clrope.reference.rope(x, self.rows[k] if p == "rows" else p, CONFIG).astype(np.float32)
            for k, x in enumerate(self.inputs) for p in (0, 5, 77, "rows")
        }  # fmt: skip
        self.ways: list[Callable[[int, Any], Any]] = [
            lambda k, p: self.op(self.inputs[k], p),
            lambda k, p: self.op(self.inputs[k], p, out=np.empty_like(self.inputs[k])),
            lambda k, p: self.plans[k].run(positions=p),
            lambda k, p: self.op(self.arrays[k], p),
            lambda k, p: self.op((self.inputs[k], self.inputs[k][:, :, :2]), p)[0],
            lambda k, p: clrope.rotate(self.inputs[k], *self.tables[k], device=self.op.device),
        ]

    def is_right(self, k: int, p: Any, way: int, got: Any) -> bool:
        return bool(np.allclose(got.get() if way == 3 else got, self.wants[k, "rows" if way == 5 else p], atol=2e-5))

    def places(self) -> list[tuple[int, Any, int]]:
        return [(k, p, way) for k, p in self.wants for way in range(len(self.ways))]

    def call(self, k: int, p: Any, way: int) -> Any:
        return self.ways[way](k, self.rows[k] if p == "rows" else p)


def interrupt(calls: Calls, seconds: float) -> Counter[str]:
    """Interrupt calls for so long; returns how many ended how."""
    timer, ended, end = Timer(), Counter[str](), time.monotonic() + seconds
    places = calls.places()
    while time.monotonic() < end:
        k, p, way = random.choice(places)
        try:
            timer.arm(random.choice([1e-5, 5e-5, 2e-4, 1e-3, 5e-3]) * random.random() + 1e-6)
            got = calls.call(k, p, way)
            timer.disarm()
            ended["right" if calls.is_right(k, p, way, got) else "wrong"] += 1
        except KeyboardInterrupt:
            ended["interrupted"] += 1
            if ended["interrupted"] % 20 == 0:
                ended["written late"] += written_late(calls, timer)
        except Exception as error:
            timer.disarm()
            ended[f"{type(error).__name__}: {str(error)[:100]}"] += 1
    timer.disarm()
    signal.setitimer(signal.ITIMER_REAL, 0)
    for k, p, way in places:
        ended["right" if calls.is_right(k, p, way, calls.call(k, p, way)) else "wrong at the end"] += 1
    return +ended


def written_late(calls: Calls, timer: Timer) -> bool:
    """Interrupt a call once, and return whether its output changes after the call has ended."""
    out = np.zeros_like(calls.inputs[2])
    try:
        timer.arm(1e-3 * random.random() + 1e-5)
        calls.op(calls.inputs[2], calls.rows[2], out=out)
        timer.disarm()
    except KeyboardInterrupt:
        before = out.copy()
        time.sleep(0.05)
        return not np.array_equal(before, out)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--out-of-order", action="store_true")
    given = parser.parse_args()
    random.seed(given.seed)
    calls = Calls(given.device, given.out_of_order, given.seed)
    for place in calls.places():  # everything compiled and kept before the first interrupt
        calls.call(*place)
    ended = interrupt(calls, given.seconds)
    print(f"{given.device}, seed {given.seed}: " + ", ".join(f"{count} {how}" for how, count in ended.most_common()))
    return int(bool(set(ended) - {"right", "interrupted"}))


if __name__ == "__main__":
    sys.exit(main())
