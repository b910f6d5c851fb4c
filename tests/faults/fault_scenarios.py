"""Runs calls of the package while an OpenCL function fails, in a process of its own; prints one line of JSON a fault.

`OPENCL_LAYERS` names the layer. Each fault is followed by a run without one, which has to be right.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from fault_layer import LAST, Fault, Layer

import clrope
from clrope import RopeConfig
from clrope.call.runtime import runtimes
from clrope.device import child
from clrope.emulation import emulate_cos_sin, emulate_rope
from clrope.errors import RopeError
from clrope.kernels.variant import Variant
from clrope.select.records import TuningKey
from clrope.tune import worker
from clrope.tune.search import _Group

NEOX = RopeConfig("neox", 64, freq_base=1e4)
POISON = 0xA5
GUARD = 256
PLACES = np.array([5, 1, 70000, 2])
#: Seconds for a tuning that takes one: a machine that stands still for a while is not taken for a wrong result.
PATIENCE = 280.0
#: Functions that free something: an error of theirs loses the object.
FREEING = ("clReleaseMemObject", "clReleaseEvent", "clReleaseKernel", "clReleaseProgram", "clReleaseCommandQueue",
           "clReleaseContext")  # fmt: skip

#: What PyOpenCL itself loses when a function fails, seen without this package: `cl.Kernel` asks the kernel for its name
#: and arguments, and `ImmediateAllocator` writes to a new buffer.
LOST_BY_PYOPENCL = {
    ("clRetainContext", "kernels"), ("clGetKernelInfo", "kernels"), ("clEnqueueMigrateMemObjects", "buffers"),
}  # fmt: skip

#: Within, calls go wrong; returns nothing.
Armed = Callable[[Callable[[], Any]], Any]
Scenario = Callable[[clrope.DeviceInfo, np.random.Generator, Armed], Iterator[tuple[Any, Any]]]


def guarded(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return poisoned memory, and an output in its middle."""
    nbytes = int(np.prod(shape)) * 4
    memory = np.full(nbytes + 2 * GUARD, POISON, np.uint8)
    return memory, memory[GUARD : GUARD + nbytes].view(np.float32).reshape(shape)


def one_shot(device: clrope.DeviceInfo, rng: np.random.Generator, armed: Armed) -> Iterator[tuple[Any, Any]]:
    x = rng.standard_normal((1, 4, 2, 64)).astype(np.float32)
    before = x.copy()
    memory, out = guarded(x.shape)
    try:
        yield armed(lambda: clrope.rope(x, PLACES, NEOX, device=device)), emulate_rope(before, PLACES, NEOX)
        yield armed(lambda: clrope.rope(x, 7, NEOX, device=device, out=out)), emulate_rope(before, 7, NEOX)
        yield armed(lambda: clrope.rope((x, x[:, :, :1]), 7, NEOX, device=device)[0]), emulate_rope(before, 7, NEOX)
    finally:
        assert (np.delete(memory, slice(GUARD, -GUARD)) == POISON).all(), "memory next to the output was written"
        assert np.array_equal(x, before), "the input was written"


def plan(device: clrope.DeviceInfo, rng: np.random.Generator, armed: Armed) -> Iterator[tuple[Any, Any]]:
    x = rng.standard_normal((2, 4, 2, 64)).astype(np.float32)
    op = clrope.Rope(NEOX, device)
    made = armed(lambda: op.plan(x, PLACES))
    last: Any = PLACES
    for places in (PLACES, 9, PLACES + 2**40, 10, 11):
        try:
            yield armed(lambda places=places: made.run(positions=places)).copy(), emulate_rope(x, places, NEOX)
        except RopeError:  # the plan goes on
            assert made.run().tobytes() in (emulate_rope(x, p, NEOX).tobytes() for p in (places, last)), "plan"
            assert made.run(positions=3).tobytes() == emulate_rope(x, 3, NEOX).tobytes(), "plan"
            raise
        last = places


def copies(device: clrope.DeviceInfo, rng: np.random.Generator, armed: Armed) -> Iterator[tuple[Any, Any]]:
    x = rng.standard_normal((1, 64, 2, 64)).astype(np.float32)
    memory, out = guarded(x.shape)
    op = clrope.Rope(NEOX, device)
    op.copy_chunk_bytes = 8192
    made = armed(lambda: op.plan(x, 3, out=out, transfer="copy"))
    try:
        yield armed(made.run), emulate_rope(x, 3, NEOX)
        yield armed(lambda: made.run(positions=90)), emulate_rope(x, 90, NEOX)
    finally:
        assert (np.delete(memory, slice(GUARD, -GUARD)) == POISON).all(), "memory next to the output was written"


def read(array: Any) -> np.ndarray:
    """Read an OpenCL array as a careful caller does, who looks at its events."""
    array.queue.finish()
    if any(event.command_execution_status < 0 for event in array.events):
        raise RopeError("the array's event has failed")
    return array.get()


def arrays(device: clrope.DeviceInfo, rng: np.random.Generator, armed: Armed) -> Iterator[tuple[Any, Any]]:
    """OpenCL arrays on the caller's queue; only the package's calls go wrong."""
    import pyopencl as cl
    import pyopencl.array

    context = cl.Context([device.cl_device])  # Intel's queues do not keep theirs
    queue = cl.CommandQueue(context)
    host = rng.standard_normal((1, 4, 2, 64)).astype(np.float32)
    x = cl.array.to_device(queue, host)
    op = clrope.Rope(NEOX, device)
    for places in (7, PLACES, 8):
        yield read(armed(lambda places=places: op(x, places))), emulate_rope(host, places, NEOX)
    made = op.plan(x, 7)
    for places in (7, 8, 9):
        yield read(armed(lambda places=places: made.run(positions=places))), emulate_rope(host, places, NEOX)
    armed(lambda: op(x, 7, out=x))
    yield read(x), emulate_rope(host, 7, NEOX)


def tables(device: clrope.DeviceInfo, rng: np.random.Generator, armed: Armed) -> Iterator[tuple[Any, Any]]:
    op = clrope.Rope(NEOX, device)
    yield from zip(armed(lambda: op.cos_sin(PLACES)), emulate_cos_sin(PLACES, NEOX), strict=True)
    x = rng.standard_normal((1, 4, 2, 64)).astype(np.float32)
    cos, sin = emulate_cos_sin(PLACES, NEOX)
    yield armed(lambda: clrope.rotate(x, cos, sin, device=device)), emulate_rope(x, PLACES, NEOX)


def tuning(device: clrope.DeviceInfo, rng: np.random.Generator, armed: Armed) -> Iterator[tuple[Any, Any]]:
    """A small tuning whose child processes run in this one: one round of two variants on 64 KiB."""
    keys = [TuningKey("f32", "neox", False, "medium")]
    group = _Group(device, 0, "f32", "neox", keys, TUNED, {"medium": 64 << 10}, PATIENCE, {}, int(rng.integers(99)))
    with children(lambda job, **_: in_process(job, armed)):
        records = group.run(time.monotonic() + PATIENCE)
    failed = [f"{r.variant}: {r.outcome}, {r.reason}" for r in group.failed.values()]
    if failed or group.errors:
        raise RopeError(" / ".join((*failed, *group.errors)))
    found = [f"{record.key}: {record.winner in TUNED}, {len(record.results)}" for record in records]
    yield found, [f"{key}: True, {len(TUNED)}" for key in keys]


#: What `tuning` tries: a kernel with tables, and one that computes the angles.
TUNED = [Variant("rows", width=4), Variant("rows", width=4, angles="fused")]


def in_process(job: dict[str, Any], armed: Armed) -> child.ChildResult:
    """Do a child's job here; how it ends is told as `child.run` tells it."""
    entries: list[dict[str, Any]] = []
    try:
        armed(lambda: worker._work(json.loads(json.dumps(job)), lambda **entry: entries.append(entry)))
    except Exception as error:
        stage = next((e["stage"] for e in reversed(entries) if "stage" in e), "starting")
        return child.ChildResult("error", {}, f"exit status 1 while {stage}: {error}", stage, "", entries)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return child.ChildResult("ok", {}, "", "", "", json.loads(json.dumps(entries)))


@contextmanager
def children(run: Callable[..., child.ChildResult]) -> Iterator[None]:
    """Tune by another `child.run`, in one round of one run each, so that an index always means the same call."""
    with (
        mock.patch.object(child, "run", run), mock.patch.object(worker, "MOST_ROUNDS", 1),
        mock.patch.object(worker, "TURN_BYTES", 1),
    ):  # fmt: skip
        yield


SCENARIOS: dict[str, Scenario] = {f.__name__: f for f in (one_shot, plan, copies, arrays, tables, tuning)}


#: What goes wrong. "on": all later calls, too. Dropped commands and changed bytes are found by probes only: a call does
#: not check what the driver tells it.
ACTIONS = ("fail", "fail on", "late", "late on", "event", "delay")


def forget() -> None:
    """Drop every OpenCL object that the package keeps."""
    with runtimes.lock:
        for kept in (runtimes.own, runtimes.foreign, runtimes.queues, runtimes.targets):
            kept.clear()
    gc.collect()


def attempt(scenario: Scenario, device: clrope.DeviceInfo, armed: Armed) -> str:
    """Return 'right', 'error: ...' for an error of this package, or what is wrong."""
    try:
        for got, want in scenario(device, np.random.default_rng(), armed):
            if np.asarray(got).tobytes() != np.asarray(want).tobytes():
                return "WRONG VALUES"
    except RopeError as error:
        return f"error: {type(error).__name__}: {' '.join(str(error).split())[:150]}"
    except AssertionError as error:
        return f"WRITTEN: {error}"
    except BaseException as error:
        return f"RAW {type(error).__name__}: {' '.join(str(error).split())[:150]}"
    return "right"


def indices(count: int, sample: int, rng: random.Random) -> Sequence[int]:
    """Return which of `count` calls go wrong, each in its turn: all of them, or a sample."""
    every = range(1, count + 1)
    return every if not sample or sample >= count else sorted(rng.sample(every, sample))


def rows(device: clrope.DeviceInfo, name: str, action: str, sample: int, seed: int) -> Iterator[list[Any]]:
    """Yield function, index, number of calls that went wrong, and outcome of each fault."""
    layer, scenario = Layer(), SCENARIOS[name]
    layer.arm(False)

    def armed(call: Callable[[], Any]) -> Any:
        layer.arm(True)
        try:
            return call()
        finally:
            layer.arm(False)

    calls, resting = {}, {}
    for _ in range(2):
        layer.clear()
        fine = attempt(scenario, device, armed)
        assert fine == "right", f"without a fault: {fine}"
        calls = layer.calls()
        forget()
        resting = layer.live()
    kind, _, on = action.partition(" ")
    for function, count in calls.items():
        if kind == "event" and not function.startswith("clEnqueue"):
            continue
        for index in indices(count, sample, random.Random(f"{seed} {name} {action} {function}")):
            with layer.set(Fault(function, index, LAST if on else index, kind)):
                outcome = attempt(scenario, device, armed)
                hits = layer.hits
            again = attempt(scenario, device, armed)
            if again != "right":
                outcome += f"; NOT RECOVERED: {again}"
            forget()
            live = layer.live()
            left = {kind: n - resting[kind] for kind, n in live.items()}
            lost = {kind: n for kind, n in left.items() if n and (function, kind) not in LOST_BY_PYOPENCL}
            if lost and function not in FREEING:
                outcome += f"; LEAK: {lost}"
            resting = live
            yield [function, index, hits, outcome]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("device")
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("action", choices=(*ACTIONS, "drop", "corrupt"))
    parser.add_argument("--sample", type=int, default=0, help="indices of each function; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    device = clrope.device(given.device)
    device.cl_device  # noqa: B018 - prepares it
    for row in rows(device, given.scenario, given.action, given.sample, given.seed):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
