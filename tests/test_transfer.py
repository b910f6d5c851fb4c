"""Copies to and from a device that overlap with rotations: the same bits, in order, and nothing lost on the way."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyopencl as cl
import pyopencl.array as cla
import pytest
from helpers import Case, View, assert_rotated, bits, same

import clrope.call.call
import clrope.call.runtime
from clrope import DeviceError, DeviceInfo, Rope, RopeConfig
from clrope.call.call import Call
from clrope.call.runner import Runner
from clrope.call.runtime import Runtime, runtime_for
from clrope.call.transfer import SLOTS
from clrope.emulation import emulate_rope
from clrope.kernels.launch import Launch

NEOX = RopeConfig("neox")
#: Eight tokens, one a chunk below: more chunks than slots.
SHAPE = (1, 8, 2, 16)
#: Seconds after which a test that waits is wrong, far beyond what a busy machine takes.
SAFETY = 3600
GAPS = View(pads=(0, 1, 1, 3), before=2)


@pytest.fixture(autouse=True)
def _chunks_of_one_token(device: DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime_for(device).calls.clear()
    # A constructor's default, so bound once: patched there.
    monkeypatch.setitem(Call.__init__.__kwdefaults__, "copy_chunk_bytes", 1)  # type: ignore[index]


@pytest.fixture
def queue(device: DeviceInfo) -> Iterator[cl.CommandQueue]:
    """A queue in a context that nobody else uses, so that nobody else's buffers are counted."""
    context = cl.Context([device.cl_device])  # kept: not every driver's queue does it
    yield cl.CommandQueue(context)
    del context


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def new(rng: np.random.Generator, view: View | None = None, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    _, x = (view or View()).place(shape, np.dtype(np.float32))
    x[...] = rng.uniform(-1, 1, shape)
    return x


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + SAFETY
    while not condition():
        assert time.monotonic() < end, f"never came about: {what}"
        time.sleep(0.001)


class Recorder:
    """The copies and rotations that were enqueued, in order, with their events."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first_waits_for: Any = None, fails_at: int = -1) -> None:
        self.uploads: list[Any] = []
        self.rotations: list[Any] = []
        self.downloads: list[Any] = []
        self.seen: list[tuple[str, int]] = []
        copy, enqueue = cl.enqueue_copy, Launch.enqueue

        def copied(queue: Any, target: Any, source: Any, **options: Any) -> Any:
            event = copy(queue, target, source, **options)
            events = self.uploads if isinstance(source, np.ndarray) else self.downloads
            self.seen.append(("upload" if events is self.uploads else "download", len(events)))
            events.append(event)
            return event

        def launched(launch: Launch, queue: Any, wait_for: Any = None) -> Any:
            if "rotate" in launch.kernel.function_name:
                if len(self.rotations) == fails_at:
                    raise RuntimeError("an error midway")
                if not self.rotations and first_waits_for is not None:
                    wait_for = [*(wait_for or ()), first_waits_for]
                self.rotations.append(enqueue(launch, queue, wait_for))
                self.seen.append(("rotation", len(self.rotations) - 1))
                return self.rotations[-1]
            return enqueue(launch, queue, wait_for)

        monkeypatch.setattr(cl, "enqueue_copy", copied)
        monkeypatch.setattr(Launch, "enqueue", launched)


def done(event: Any) -> bool:
    return bool(event.command_execution_status == cl.command_execution_status.COMPLETE)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("layout", ["bsnd", "bnsd"])
@pytest.mark.parametrize("out", [None, "in place", GAPS, View()], ids=["new", "in place", "gaps", "dense"])
@pytest.mark.parametrize("x", [View(), GAPS, View((2, 1, 1, 1), (3, 0, 0, 0))], ids=["dense", "gaps", "batches"])
def test_the_same_bits_as_mapped(device: DeviceInfo, x: View, out: Any, layout: str, dtype: str, seed: int) -> None:
    """Several chunks in every slot; not a byte of the gaps is touched."""
    lengths = {"b": 2, "s": 2 * SLOTS + 1, "n": 3, "d": 16}
    case = Case(
        {"mode": "neox", "n_dims": 12}, tuple(lengths[c] for c in layout), dtype, layout,
        positions="BS", x=x, out=out, seed=seed,
    )  # fmt: skip
    results = []
    for transfer in ("copy", "map"):
        built = case.build()
        op = Rope(RopeConfig.from_dict(case.config), device.index)
        plan = op.plan(built.x, built.positions, out=built.out, layout=layout, transfer=transfer)  # type: ignore[arg-type]
        assert transfer == "map" or plan.launches > 2 * SLOTS
        results.append(plan.run())
        assert_rotated(results[-1], built, device, by_oracle=False)
    assert (bits(results[0]) == bits(results[1])).all()


def test_parts_of_different_kinds(device: DeviceInfo, queue: cl.CommandQueue, rng: np.random.Generator) -> None:
    """In place and apart, strided and dense, of different sizes and types take turns in the same slots."""
    q, k, v = new(rng, GAPS), new(rng).astype(np.float16), new(rng, shape=(1, 8, 5, 16))
    wants = [emulate_rope(t, 7, NEOX) for t in (q, k, v)]
    before = k.copy()
    plan = Rope(NEOX, queue).plan((q, k, v), 7, out=(q, None, v), transfer="copy")
    assert plan.launches == 24
    for got, want in zip(plan.run(), wants, strict=True):
        assert same(got, want).all()
    assert (k == before).all()


def test_device_arrays_beside_host_arrays(device: DeviceInfo, queue: cl.CommandQueue, rng: np.random.Generator) -> None:
    q, k = new(rng), new(rng)
    got_q, got_k = Rope(NEOX, queue).plan((q, cla.to_device(queue, k)), 7, transfer="copy").run()
    assert same(got_q, emulate_rope(q, 7, NEOX)).all()
    assert same(got_k.get(), emulate_rope(k, 7, NEOX)).all()


@pytest.mark.parametrize("view", [View(), GAPS], ids=["dense", "gaps"])
@pytest.mark.parametrize("in_place", [True, False])
def test_run_again(device: DeviceInfo, view: View, in_place: bool, rng: np.random.Generator) -> None:
    x = new(rng, view)
    positions = rng.integers(0, 999, 8)
    plan = Rope(NEOX, device.index).plan(x, positions, out=x if in_place else None, transfer="copy")
    for k in range(6):
        x[...] = rng.uniform(-1, 1, SHAPE)
        if k % 2:
            positions = rng.integers(0, 999, 8)
        want = emulate_rope(x, positions, NEOX)
        assert same(plan.run(positions=positions if k % 2 else None), want).all()
    other = new(rng, view)
    want = emulate_rope(other, positions, NEOX)
    assert same(plan.run(other), want).all()


@pytest.mark.parametrize("view", [View(), GAPS], ids=["dense", "gaps"])
def test_a_queue_out_of_order(device: DeviceInfo, view: View, rng: np.random.Generator) -> None:
    """Without anything to wait for, and with an event."""
    context = cl.Context([device.cl_device])
    queue = cl.CommandQueue(context, properties=cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE)
    x = new(rng, view)
    plan = Rope(NEOX, queue).plan(x, 7, transfer="copy")
    for waits in ([], [cl.enqueue_marker(queue)]):
        assert same(plan.run(wait_for=waits), emulate_rope(x, 7, NEOX)).all()


@pytest.mark.parametrize("view", [View(), GAPS], ids=["dense", "gaps"])
@pytest.mark.parametrize("by_queue", [False, True], ids=["wait_for", "earlier on the queue"])
def test_nothing_is_read_too_early(
    device: DeviceInfo,
    queue: cl.CommandQueue,
    view: View,
    by_queue: bool,
    rng: np.random.Generator,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the host writes before the event that a run waits for is what the run reads."""
    x, late = new(rng, view), new(rng)
    plan = Rope(NEOX, queue).plan(x, 7, transfer="copy")
    plan.run()
    go = cl.UserEvent(queue.context)
    if by_queue:
        cl.enqueue_marker(queue, wait_for=[go])
        queue.flush()
    started = threading.Event()
    real = Runner.run_on_host

    def watched(runner: Runner, *arguments: Any) -> Any:
        started.set()
        return real(runner, *arguments)

    monkeypatch.setattr(Runner, "run_on_host", watched)
    wait_on_host = clrope.call.call.wait_on_host
    monkeypatch.setattr(clrope.call.call, "wait_on_host", lambda events: (started.set(), wait_on_host(events)))
    running = pool.submit(plan.run, wait_for=None if by_queue else [go])
    try:
        assert started.wait(SAFETY)
        time.sleep(0.02)  # a run that did not wait would have read by now
        x[...] = late
        assert not running.done()
    finally:
        go.set_status(cl.command_execution_status.COMPLETE)
    assert same(running.result(SAFETY), emulate_rope(late, 7, NEOX)).all()


def test_nothing_is_read_too_early_next_to_device_arrays(
    device: DeviceInfo, rng: np.random.Generator, pool: ThreadPoolExecutor
) -> None:
    """A run waits before it reads host memory, also where an OpenCL array comes along and nothing keeps the order."""
    context = cl.Context([device.cl_device])
    queue = cl.CommandQueue(context, properties=cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE)
    x, late = new(rng), new(rng)
    plan = Rope(NEOX, queue).plan((x, cla.to_device(queue, x)), 7, transfer="copy")
    plan.run()
    go = cl.UserEvent(context)
    running = pool.submit(plan.run, wait_for=[go])
    try:
        time.sleep(0.1)  # a run that did not wait would have read by now
        x[...] = late
        assert not running.done()
    finally:
        go.set_status(cl.command_execution_status.COMPLETE)
    assert same(running.result(SAFETY)[0], emulate_rope(late, 7, NEOX)).all()


@pytest.mark.parametrize("view", [View(), GAPS], ids=["dense", "gaps"])
@pytest.mark.parametrize("in_place", [True, False])
def test_next_uploads_do_not_wait_for_a_rotation(
    device: DeviceInfo,
    queue: cl.CommandQueue,
    view: View,
    in_place: bool,
    rng: np.random.Generator,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the first rotation held back, the uploads into every other slot are not only enqueued but done."""
    x = new(rng, view)
    want = emulate_rope(x, 7, NEOX)
    plan = Rope(NEOX, queue).plan(x, 7, out=x if in_place else None, transfer="copy")
    go = cl.UserEvent(queue.context)
    record = Recorder(monkeypatch, first_waits_for=go)
    running = pool.submit(plan.run)
    try:
        until(lambda: len(record.uploads) >= SLOTS, f"{SLOTS} uploads enqueued")
        until(lambda: all(map(done, record.uploads[:SLOTS])), f"{SLOTS} uploads done")
        assert record.rotations
        assert not any(map(done, record.rotations))
        assert not any(map(done, record.uploads[SLOTS:]))  # their buffer is in use
        assert not any(map(done, record.downloads))
    finally:
        go.set_status(cl.command_execution_status.COMPLETE)
    assert same(running.result(SAFETY), want).all()
    assert len(record.uploads) == len(record.rotations) == len(record.downloads) == 8
    assert record.seen.index(("upload", 1)) < record.seen.index(("rotation", 1))


@pytest.mark.parametrize("view", [View(), GAPS], ids=["dense", "gaps"])
@pytest.mark.parametrize("fails_at", [0, 1, SLOTS + 1])
def test_an_error_midway(
    device: DeviceInfo, queue: cl.CommandQueue, view: View, fails_at: int, rng: np.random.Generator
) -> None:
    """The error is raised as it is, after all that was enqueued has ended, and the plan can be run again."""
    x = new(rng, view)
    out = np.full(SHAPE, 77, np.float32)
    plan = Rope(NEOX, queue).plan(x, 7, out=out, transfer="copy")
    with pytest.MonkeyPatch.context() as patch:
        record = Recorder(patch, fails_at=fails_at)
        with pytest.raises(RuntimeError, match="an error midway"):
            plan.run()
        assert len(record.uploads) == fails_at + 1
        assert all(map(done, [*record.uploads, *record.rotations, *record.downloads]))
    assert (out[:, fails_at:] == 77).all()
    assert same(plan.run(), emulate_rope(x, 7, NEOX)).all()


def test_an_event_that_failed(device: DeviceInfo, queue: cl.CommandQueue, rng: np.random.Generator) -> None:
    """A failed event to wait for is an error, and the output stays as it was."""
    x = new(rng)
    out = np.full(SHAPE, 77, np.float32)
    plan = Rope(NEOX, queue).plan(x, 7, out=out, transfer="copy")
    failed = cl.UserEvent(queue.context)
    failed.set_status(-5)
    with pytest.raises(DeviceError, match="wait_for: an event has failed with status -5, nothing was launched"):
        plan.run(wait_for=[failed])
    assert (out == 77).all()
    assert same(plan.run(), emulate_rope(x, 7, NEOX)).all()


def blocks(runtime: Runtime) -> int:
    """Return how many staging buffers there are, in use or not."""
    pool = runtime.staging.memory
    return int(pool.active_blocks + pool.held_blocks)


def test_buffers_and_queues_are_used_again(
    device: DeviceInfo, queue: cl.CommandQueue, rng: np.random.Generator
) -> None:
    """A plan for each call makes no buffer and no queue after the first; two plans at once have their own."""
    runtime = runtime_for(queue)
    op = Rope(NEOX, queue)
    x = new(rng)
    for k in range(5):
        assert same(op.plan(x, k, transfer="copy").run(), emulate_rope(x, k, NEOX)).all()
        assert same(op.plan(x + 1, k, transfer="copy").run(), emulate_rope(x + 1, k, NEOX)).all()
        assert blocks(runtime) == 2 * SLOTS
        assert len(runtime.copy_queues) == 2
    one, two = (op.plan(t, 3, transfer="copy") for t in (x, -x))
    for _ in range(2):
        assert same(one.run(), emulate_rope(x, 3, NEOX)).all()
        assert same(two.run(), emulate_rope(-x, 3, NEOX)).all()
    assert blocks(runtime) == 4 * SLOTS
    assert len(runtime.copy_queues) == 2
    del one, two
    in_place = op.plan(x, 3, out=x, transfer="copy")
    in_place.run()
    assert blocks(runtime) == 4 * SLOTS


def test_calls_keep_kernel_objects_but_no_device_memory(
    device: DeviceInfo, queue: cl.CommandQueue, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, op, made, kernel = runtime_for(queue), Rope(NEOX, queue), [], cl.Kernel
    monkeypatch.setattr(runtime, "host_access", "copied", raising=False)
    monkeypatch.setattr(cl, "Kernel", lambda *arguments: made.append(arguments) or kernel(*arguments))
    counts, x, y = [], new(rng), new(rng)
    for k in range(4):
        x -= y
        for a, b in zip(op((x, y), k), (x, y), strict=True):
            assert same(a, emulate_rope(b, k, NEOX)).all()
        counts.append(len(made))
        assert runtime.staging.memory.active_blocks == 0
    assert 0 < counts[0] == counts[-1]


def test_the_pool_is_bounded(
    device: DeviceInfo, queue: cl.CommandQueue, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = runtime_for(queue).staging.memory
    op = Rope(NEOX, queue)
    x = new(rng)
    plans = [op.plan(x, 3, transfer="copy") for _ in range(4)]
    assert pool.held_blocks == 0
    plans.clear()
    gc.collect()
    size = pool.managed_bytes
    assert size >= 4 * 2 * SLOTS * x.nbytes // 8
    monkeypatch.setattr(clrope.call.runtime, "SMALL_BUFFER", 0)
    monkeypatch.setattr(clrope.call.runtime, "POOL_BYTES_KEPT", size - 1)
    assert same(op.plan(x, 3, transfer="copy").run(), emulate_rope(x, 3, NEOX)).all()
    assert pool.managed_bytes < size


def test_a_buffer_too_large_to_be_rounded_up(
    device: DeviceInfo, queue: cl.CommandQueue, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool rounds sizes up; a chunk of the device's largest allocation is made to size, and not kept."""
    x = new(rng, shape=(1, 8, 3, 16))
    pool = runtime_for(queue).staging
    monkeypatch.setattr(clrope.call.runtime, "SMALL_BUFFER", 0)
    monkeypatch.setattr(pool, "largest", x.nbytes // 8)
    for _ in range(2):
        assert same(Rope(NEOX, queue).plan(x, 3, transfer="copy").run(), emulate_rope(x, 3, NEOX)).all()
        assert pool.memory.managed_bytes == 0


@pytest.mark.parametrize("view", [View(), GAPS], ids=["dense", "gaps"])
def test_two_threads(
    device: DeviceInfo, queue: cl.CommandQueue, view: View, rng: np.random.Generator, pool: ThreadPoolExecutor
) -> None:
    """Two threads on one queue, with a plan for each call and with one plan run again and again."""
    op = Rope(NEOX, queue)
    inputs = [new(rng, view), new(rng, view)]
    together = threading.Barrier(2)

    def work(x: np.ndarray) -> bool:
        together.wait(SAFETY)
        plan = op.plan(x, 5, transfer="copy")
        right = True
        for k in range(30):
            right &= bool(same(plan.run(positions=k), emulate_rope(x, k, NEOX)).all())
            right &= bool(same(op.plan(x, k, transfer="copy").run(), emulate_rope(x, k, NEOX)).all())
        return right

    assert all(pool.map(work, inputs))
