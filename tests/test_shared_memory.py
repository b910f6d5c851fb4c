"""Arrays over one memory in ways that buffers' handles do not show: parts, host memory, SVM, tensors of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyopencl as cl
import pyopencl.array as cla
import pytest
from helpers import same

import clrope
from clrope import Rope, RopeConfig, ShapeError
from clrope.emulation import emulate_rope

NEOX = RopeConfig("neox")
SHAPE = (1, 64, 2, 64)
NBYTES = 4 * 64 * 2 * 64
#: Bytes that parts of buffers may begin at on every device.
STEP = 4096
OVERLAPS = "out: overlaps x"
OTHERS = "out: an output overlaps another tensor of the same call"


@pytest.fixture
def queue(device: clrope.DeviceInfo) -> Iterator[cl.CommandQueue]:
    context = cl.Context([device.cl_device])
    yield cl.CommandQueue(context)
    del context  # Intel's queues do not keep their context


def values(rng: np.random.Generator, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return rng.uniform(-1, 1, shape).astype(np.float32)


def over(queue: cl.CommandQueue, data: Any, offset: int = 0) -> cla.Array:
    return cla.Array(queue, SHAPE, np.float32, data=data, offset=offset)


def in_one_buffer(queue: cl.CommandQueue) -> tuple[cla.Array, cla.Array, Any]:
    buffer = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, NBYTES + 2 * STEP)
    return over(queue, buffer[STEP : STEP + NBYTES]), over(queue, buffer[2 * STEP : 2 * STEP + NBYTES]), buffer


def part_and_whole(queue: cl.CommandQueue) -> tuple[cla.Array, cla.Array, Any]:
    _, part, buffer = in_one_buffer(queue)
    return over(queue, buffer, STEP), part, buffer


def over_host_memory(queue: cl.CommandQueue) -> tuple[cla.Array, cla.Array, Any]:
    memory = np.zeros(NBYTES // 4 + STEP, np.float32)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    halves = memory[: NBYTES // 4], memory[STEP : STEP + NBYTES // 4]
    a, b = (over(queue, cl.Buffer(queue.context, flags, hostbuf=half)) for half in halves)
    return a, b, memory


@pytest.mark.parametrize("made", [in_one_buffer, part_and_whole, over_host_memory])
def test_overlapping_buffers_are_refused(queue: cl.CommandQueue, made: Any, rng: np.random.Generator) -> None:
    x, y, memory = made(queue)
    other, free = (cla.to_device(queue, values(rng)) for _ in range(2))
    for _ in range(3):  # also after calls alike
        with pytest.raises(ShapeError, match=OVERLAPS):
            clrope.rope(x, 3, NEOX, out=y)
        with pytest.raises(ShapeError, match=OTHERS):
            clrope.rope((other, free), 3, NEOX, out=(x, y))
        with pytest.raises(ShapeError, match=OTHERS):
            clrope.rope((x, other), 3, NEOX, out=(None, y))
        apart = values(rng)
        x.set(apart)
        clrope.rope(x, 3, NEOX, out=free)
        assert same(free.get(), emulate_rope(apart, 3, NEOX)).all()
        clrope.rope((x, other), 3, NEOX, out=(free, cla.empty_like(other)))
    del memory


def test_parts_apart_are_taken(queue: cl.CommandQueue, rng: np.random.Generator) -> None:
    buffer = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 2 * NBYTES)
    x, y = over(queue, buffer[:NBYTES]), over(queue, buffer[NBYTES:])
    for _ in range(3):
        given = values(rng)
        x.set(given)
        assert clrope.rope(x, 3, NEOX, out=y) is y
        assert same(y.get(), emulate_rope(given, 3, NEOX)).all()
        assert same(x.get(), given).all()


def test_the_same_part_twice_is_in_place(queue: cl.CommandQueue, rng: np.random.Generator) -> None:
    buffer = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 4 * NBYTES)
    x, y = (over(queue, buffer[:NBYTES]) for _ in range(2))
    apart = over(queue, buffer[2 * NBYTES : 3 * NBYTES])
    for _ in range(3):
        given = values(rng)
        x.set(given)
        assert clrope.rope(x, 3, NEOX, out=y) is y
        assert same(y.get(), emulate_rope(given, 3, NEOX)).all()
        # A call of the same description that is not in place must not be taken for the one before.
        assert same(clrope.rope(y, 3, NEOX, out=apart).get(), emulate_rope(x.get(), 3, NEOX)).all()
        assert same(y.get(), emulate_rope(given, 3, NEOX)).all()


@pytest.mark.parametrize("plan", [False, True])
def test_events_of_an_array_over_the_same_memory(queue: cl.CommandQueue, plan: bool, rng: np.random.Generator) -> None:
    """The array given as out knows of a copy into the memory of both; afterwards both know of the rotation."""
    given = values(rng)
    x = cla.to_device(queue, np.zeros_like(given))
    x.finish()
    twin = over(queue, x.base_data)
    other = cl.CommandQueue(queue.context)
    twin.add_event(cl.enqueue_copy(other, x.base_data, given, is_blocking=False))
    got = Rope(NEOX, queue).plan(x, 3, out=twin).run() if plan else clrope.rope(x, 3, NEOX, out=twin)
    assert got is twin
    assert len(x.events) == 1
    assert x.events == twin.events
    for array in (x, twin):
        array.finish()
        assert same(array.get(), emulate_rope(given, 3, NEOX)).all()


@pytest.fixture
def in_svm(queue: cl.CommandQueue, rng: np.random.Generator) -> Iterator[list[cla.Array]]:
    from pyopencl.tools import SVMAllocator

    try:
        allocator = SVMAllocator(queue.context, alignment=0, flags=cl.svm_mem_flags.READ_WRITE, queue=queue)
        arrays = [cla.to_device(queue, values(rng), allocator=allocator) for _ in range(3)]
    except cl.Error as error:
        pytest.skip(f"no shared virtual memory: {error}")
    yield arrays
    for array in arrays:
        # If the queue freed it, PyPI's PoCL would free other memory (docs/drivers.md).
        array.base_data.unbind_from_queue()


def test_shared_virtual_memory(in_svm: list[cla.Array]) -> None:
    x, y, both = in_svm
    given = x.get()
    for _ in range(3):
        assert same(clrope.rope(x, 3, NEOX, out=y).get(), emulate_rope(given, 3, NEOX)).all()
        with pytest.raises(ShapeError, match=OTHERS):
            clrope.rope((x, both), 3, NEOX, out=(y, y))
        window, shifted = (both.ravel()[i : i + 4096].reshape(1, 32, 2, 64) for i in (0, 2048))
        with pytest.raises(ShapeError, match=OVERLAPS):
            clrope.rope(window, 3, NEOX, out=shifted)


@pytest.mark.parametrize("kind", ["numpy", "opencl"])
def test_arrays_of_a_plan_that_overlap_its_others(
    queue: cl.CommandQueue, device: clrope.DeviceInfo, kind: str, rng: np.random.Generator
) -> None:
    q, k, q_out, k_out, free = (values(rng) if kind == "numpy" else cla.to_device(queue, values(rng)) for _ in range(5))
    op = Rope(NEOX, device if kind == "numpy" else queue)
    plan = op.plan((q, k), 3, out=(q_out, k_out))
    before = [np.copy(a if kind == "numpy" else a.get()) for a in plan.run()]
    for wrong in ((q, q_out), (k_out, k), (k_out, q_out)):
        with pytest.raises(ShapeError, match=OTHERS):
            plan.run(wrong)
    for after, was in zip((q_out, k_out), before, strict=True):
        assert same(after if kind == "numpy" else after.get(), was).all()
    in_place = op.plan((q, k), 3, out=(q, k))
    with pytest.raises(ShapeError, match=OTHERS):
        in_place.run((free, free))
    assert plan.run((free, free)) is not None  # read twice, written to places of their own


def test_another_context(queue: cl.CommandQueue, rng: np.random.Generator) -> None:
    context = cl.Context([queue.device])  # Intel's queues do not keep their context
    elsewhere = cl.CommandQueue(context)
    x, far = cla.to_device(queue, values(rng)), cla.to_device(elsewhere, values(rng))
    with pytest.raises(ShapeError, match="x: the arrays live in different OpenCL contexts"):
        clrope.rope(x, 3, NEOX, out=far)
    with pytest.raises(ShapeError, match="x: the array lives in another OpenCL context than the plan"):
        Rope(NEOX, queue).plan(x, 3).run(far)
    tables = [cla.to_device(elsewhere, np.ones((64, 32), np.float32)) for _ in range(2)]
    with pytest.raises(ShapeError, match="x: the arrays live in different OpenCL contexts"):
        clrope.rotate(x, *tables)


def test_host_memory_and_an_array_over_it(queue: cl.CommandQueue, rng: np.random.Generator) -> None:
    memory, k = values(rng), cla.to_device(queue, values(rng))
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    out = over(queue, cl.Buffer(queue.context, flags, hostbuf=memory))
    with pytest.raises(ShapeError, match=OTHERS):
        Rope(NEOX, queue)((memory, k), 3, out=(memory, out))
