"""What may go wrong around a launch: interrupts, forks, failed events, memory that is not there."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pyopencl.array as cla
import pytest
from helpers import same

import clrope
from clrope import DeviceError, Rope, RopeConfig
from clrope.call.events import all_ended
from clrope.call.runner import Runner
from clrope.call.runtime import Kept, QueueState, Runtime, runtime_for, runtimes
from clrope.emulation import emulate_rope
from clrope.tables import rotate_plan

NEOX = RopeConfig("neox")
SHAPE = (1, 5, 4, 16)


def new(rng: np.random.Generator, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return rng.uniform(-1, 1, shape).astype(np.float32)


class Interrupting:
    """The event of launches; waiting for it is interrupted the first `times` times, before it begins."""

    def __init__(self, queue: Any, times: int) -> None:
        self._queue, self.left = queue, times

    def wait(self) -> None:
        if self.left:
            self.left -= 1
            raise KeyboardInterrupt
        self._queue.finish()

    def of(self, enqueue: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: (enqueue(), self)[1]


@pytest.mark.parametrize("times", [1, 2, 3])
def test_an_interrupt_frees_no_memory_under_a_kernel(
    device: clrope.DeviceInfo, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Between launch and wait: however often it is interrupted, the call has waited when it raises."""
    if runtime_for(device).host_access not in ("svm", "direct"):
        pytest.skip("host memory is copied or mapped: the commands that do it wait")
    op = Rope(NEOX, device)
    x = new(rng, (1, 5, 4, 64))
    op(x, 1)
    ended: list[bool] = []
    run = Runner.run_on_host

    def interrupted(runner: Runner, keep: Any) -> None:
        stub = Interrupting(runner._queue, times)
        runner._enqueues = [stub.of(enqueue) for enqueue in runner._enqueues]
        monkeypatch.setattr("clrope.call.runner.all_ended", lambda queue: all_ended(stub_queue))  # type: ignore[arg-type]
        stub_queue = type("Queue", (), {"finish": stub.wait})()
        try:
            run(runner, keep)
        finally:
            ended.append(stub.left == 0)

    monkeypatch.setattr(Runner, "run_on_host", interrupted)
    before = len(runtimes.busy)
    with pytest.raises(KeyboardInterrupt):
        op(x, 1)
    monkeypatch.undo()
    assert ended == [True]
    assert len(runtimes.busy) == before
    assert same(op(x, 7), emulate_rope(x, 7, NEOX)).all()


@pytest.mark.parametrize("markers", [True, False])
def test_no_memory_is_freed_where_waiting_fails(
    device: clrope.DeviceInfo, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, markers: bool
) -> None:
    """By a trial of host memory, or any call: waited for by a marker, or, where that fails too, kept for good."""
    monkeypatch.setattr(runtimes, "busy", {})
    runtime = Runtime(runtime_for(device).context, device)
    queue = runtime.queue
    with monkeypatch.context() as patch:
        patch.setattr(cl.CommandQueue, "finish", refuse)
        if not markers:
            patch.setattr(cl, "enqueue_marker", refuse)
        assert all_ended(queue) == markers
        runtime.host_access  # noqa: B018 - tried out now
        unified_cpu = device.host_unified and device.kind == "cpu"
        assert bool(runtimes.busy) == (unified_cpu and not markers)
        x = np.ones(4, np.float32)
        with pytest.raises(DeviceError), runtime.using(queue, x):
            queue.finish()
        assert any(memory is x for memory in runtimes.busy.values()) == (not markers)
    queue.finish()


@pytest.mark.parametrize("ended", [True, False])
def test_no_memory_of_copies_is_freed_where_waiting_fails(
    device: clrope.DeviceInfo, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    monkeypatch.setattr(runtimes, "busy", {})
    x = new(rng)
    plan = Rope(NEOX, device).plan(x, 3, transfer="copy")
    with monkeypatch.context() as patch:
        patch.setattr(cl, "wait_for_events", refuse)
        patch.setattr("clrope.call.transfer.all_ended", lambda queue: ended)
        with pytest.raises(DeviceError):
            plan.run()
    assert bool(runtimes.busy) == (not ended)
    assert same(plan.run(), emulate_rope(x, 3, NEOX)).all()


def test_an_interrupt_by_a_signal(device: clrope.DeviceInfo, tmp_path: Path) -> None:
    """SIGINT at random moments of many calls: results that were handed out before stay as they were."""
    script = tmp_path / "interrupted.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, random, signal, threading, time
            import numpy as np, clrope
            op = clrope.Rope(clrope.RopeConfig("neox"), {device.index!r})
            x = np.random.rand(1, 64, 32, 128).astype(np.float32)
            want = op(x, 0)
            stop = threading.Event()
            def send():
                while not stop.is_set():
                    time.sleep(random.uniform(0.0005, 0.004))
                    os.kill(os.getpid(), signal.SIGINT)
            armed, seen, old = False, 0, []
            def interrupt(*_):
                global armed
                if armed:  # once per call: a second one would come while the first is handled
                    armed = False
                    raise KeyboardInterrupt
            signal.signal(signal.SIGINT, interrupt)
            sender = threading.Thread(target=send, daemon=True)
            sender.start()
            while seen < 30:
                try:
                    armed = True
                    y = op(x, 0)
                    armed = False
                    old.append((y, y.copy()))
                except KeyboardInterrupt:
                    seen += 1
                    foreign = np.full(x.size, 7, np.float32)
                    time.sleep(0.001)
                    assert (foreign == 7).all(), "a kernel wrote into memory that was given away"
                del old[:-4]
                assert all((a == b).all() for a, b in old)
            stop.set()
            sender.join()
            assert (op(x, 0) == want).all()
            print("interrupts:", seen)
            """
        )
    )
    # Not measured by coverage, which keeps a lock of its own for good if it is interrupted in it.
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split(":")[1]) > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("what", ["op", "plan", "rope", "new op"])
def test_a_forked_child_is_told(device: clrope.DeviceInfo, rng: np.random.Generator, what: str) -> None:
    """Used in the parent before the fork: an error in the child, not a hang."""
    x = new(rng)
    op = Rope(NEOX, device)
    op(x, 1)
    plan = op.plan(x, 1)
    plan.run()
    clrope.rope(x, 1, NEOX, device=device.index)
    calls = {
        "op": lambda: op(x, 2),
        "plan": plan.run,
        "rope": lambda: clrope.rope(x, 2, NEOX, device=device.index),
        "new op": lambda: Rope(NEOX, device)(x, 3),
    }
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        said = "nothing was raised"
        try:
            calls[what]()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert said.startswith("DeviceError: device: this process was forked after OpenCL had been started")
    assert same(op(x, 4), emulate_rope(x, 4, NEOX)).all()


def _in_a_worker(index: str) -> str:
    try:
        clrope.rope(np.ones(SHAPE, np.float32), 1, NEOX, device=index)
    except DeviceError as error:
        return str(error)
    return "nothing was raised"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_pool_of_forked_workers_is_told(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("no fork on this system")
    from concurrent.futures import ProcessPoolExecutor

    clrope.rope(new(rng), 1, NEOX, device=device.index)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        assert "was forked after OpenCL" in pool.submit(_in_a_worker, device.index).result(120)


@pytest.mark.parametrize("kind", ["numpy", "opencl", "torch", "copied"])
@pytest.mark.parametrize("again", [False, True])
def test_a_failed_event(device: clrope.DeviceInfo, rng: np.random.Generator, kind: str, again: bool) -> None:
    """An error for every kind of array, by a call and by a plan; the output stays as it was."""
    runtime = runtime_for(device)
    op, x = Rope(NEOX, device), new(rng)
    out = np.full(SHAPE, 77, np.float32)
    given: Any = (x, out)
    if kind == "opencl":
        given = tuple(cla.to_device(runtime.queue, a) for a in given)
    elif kind == "torch":
        torch = pytest.importorskip("torch")
        given = tuple(torch.from_numpy(a) for a in given)
    failed = cl.UserEvent(runtime.context)
    failed.set_status(-5)
    transfer: Any = "copy" if kind == "copied" else "auto"
    plan = op.plan(given[0], 3, out=given[1], transfer=transfer)
    if again:
        plan.run()
        if kind != "copied":
            op(given[0], 3, out=given[1])
        given[1][...] = 77
    with pytest.raises(DeviceError, match="wait_for: an event has failed with status -5, nothing was launched"):
        plan.run(wait_for=[failed])
    if kind != "copied":
        with pytest.raises(DeviceError, match="wait_for: an event has failed with status -5, nothing was launched"):
            op(given[0], 3, out=given[1], wait_for=[failed])
    got = given[1].get() if kind == "opencl" else np.asarray(given[1])
    assert (got == 77).all()
    result = plan.run()
    assert same(result.get() if kind == "opencl" else np.asarray(result), emulate_rope(x, 3, NEOX)).all()


def test_an_array_whose_event_has_failed(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    runtime = runtime_for(device)
    array = cla.to_device(runtime.queue, new(rng))
    failed = cl.UserEvent(runtime.context)
    failed.set_status(-5)
    array.add_event(failed)
    for _ in range(2):
        with pytest.raises(DeviceError, match="an event has failed with status -5"):
            clrope.rope(array, 3, NEOX)


@pytest.mark.parametrize("name", ["x", "cos", "sin", "out"])
def test_rotate_with_an_array_whose_event_has_failed(
    device: clrope.DeviceInfo, name: str, rng: np.random.Generator
) -> None:
    """An error by a call and by a plan, and nothing is launched."""
    queue = runtime_for(device).queue
    x, table = new(rng), np.ones((SHAPE[1], SHAPE[3] // 2), np.float32)
    arrays = {key: cla.to_device(queue, a) for key, a in (("x", x), ("cos", table), ("sin", 0 * table), ("out", x))}
    plan = rotate_plan(**arrays)
    failed = cl.UserEvent(queue.context)
    failed.set_status(-5)
    arrays[name].events.append(failed)
    for call in (lambda: clrope.rotate(**arrays), plan.run, lambda: rotate_plan(**arrays).run()):
        with pytest.raises(DeviceError, match="an event has failed with status -5"):
            call()
    arrays[name].events.clear()
    assert same(plan.run().get(), x).all()


def refuse(*_: Any, **__: Any) -> Any:
    raise cl.MemoryError("create_buffer failed: MEM_OBJECT_ALLOCATION_FAILURE")


def test_no_memory_for_a_result(
    device: clrope.DeviceInfo, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that names the bytes, and nothing is kept of the call."""
    runtime = runtime_for(device)
    x = new(rng)
    # A queue that no other test has used: states of queues are kept in a bounded number.
    queue = cl.CommandQueue(runtime.context, device.cl_device)
    array = cla.to_device(queue, x)
    clrope.rope(array, 3, NEOX)
    state = runtimes.of_queue(queue)

    class Full:
        held_blocks = 0

        def bin_number(self, nbytes: int) -> int:
            return 0

        def alloc_size(self, _: int) -> int:
            return 0

        allocate = refuse

    with monkeypatch.context() as patch:
        patch.setattr(state.results, "memory", Full())
        for _ in range(2):
            with pytest.raises(DeviceError, match=f"{x.nbytes} bytes of memory could not be allocated"):
                clrope.rope(array, 4, NEOX)
    assert same(clrope.rope(array, 4, NEOX).get(), emulate_rope(x, 4, NEOX)).all()
    assert isinstance(state, QueueState)


def test_no_memory_while_binding(
    device: clrope.DeviceInfo, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buffers over host memory, or for copies, that the driver refuses: the same."""
    x = new(rng)
    runtime = Runtime(runtime_for(device).context, device)
    runtime.queue, runtime.staging  # noqa: B018 - made before memory runs out
    transfer: Any = "map" if runtime.host_access == "direct" else "copy"
    op = Rope(NEOX, device)
    first, other = op.plan(x, 3, transfer=transfer).run(), new(rng)  # at other addresses, for which there is no buffer
    busy = len(runtimes.busy)
    with monkeypatch.context() as patch:
        patch.setattr(cl, "Buffer", refuse)
        patch.setattr("clrope.call.runtime.SMALL_BUFFER", 0)
        patch.setattr(op._target().runtime.staging, "largest", 0)  # a buffer of its own, not one that is kept
        patch.setattr(op._target().runtime, "host_buffers", Kept(1))  # there may be one for an earlier array's address
        with pytest.raises(DeviceError, match=r"\d+ bytes of memory could not be allocated"):
            op.plan(other, 3, transfer=transfer).run()
    assert len(runtimes.busy) == busy
    assert same(first, emulate_rope(x, 3, NEOX)).all()
    assert same(op.plan(x, 3, transfer=transfer).run(), emulate_rope(x, 3, NEOX)).all()
