"""PyOpenCL arrays stay on their own queue: events in and out, no waiting, offsets and strides honoured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pyopencl.array as cla
import pytest
from helpers import POISON, bits, same

import clrope
from clrope import DeviceError, Rope, RopeConfig, ShapeError
from clrope.emulation import emulate_rope, emulate_rotation
from clrope.layout import DTYPES
from clrope.reference import pair_indices

NEOX = RopeConfig("neox", 12)
#: Seconds after which a process counts as hanging.
HANGING = 600


@pytest.fixture
def queue(device: clrope.DeviceInfo) -> Iterator[cl.CommandQueue]:
    """A queue of the caller's own, in a context of its own."""
    context, made = own_queue(device)
    yield made
    del context  # Intel's queues do not keep their context


def own_queue(device: clrope.DeviceInfo) -> tuple[cl.Context, cl.CommandQueue]:
    context = cl.Context([device.cl_device])
    return context, cl.CommandQueue(context)


def host(rng: np.random.Generator, dtype: str = "f32", shape: tuple[int, ...] = (2, 5, 3, 16)) -> np.ndarray:
    return rng.uniform(-1, 1, shape).astype(DTYPES[dtype])


def to_device(queue: cl.CommandQueue, x: np.ndarray, before: int = 0) -> cla.Array:
    """Copy x behind `before` poisoned elements, with as many behind it. (bfloat16 arrays have no buffer protocol.)"""
    memory = np.full(x.nbytes + 2 * before * x.itemsize, POISON, np.uint8)
    memory[before * x.itemsize :][: x.nbytes] = np.ascontiguousarray(bits(x)).view(np.uint8).ravel()
    flags = cl.mem_flags
    data = cl.Buffer(queue.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=memory)
    return cla.Array(queue, x.shape, x.dtype, data=data, offset=before * x.itemsize)


def to_host(array: cla.Array) -> np.ndarray:
    """Read a C-order array after its events."""
    got = np.empty(array.size, np.dtype(f"u{array.dtype.itemsize}"))
    cl.enqueue_copy(array.queue, got, array.base_data, src_offset=array.offset, wait_for=array.events)
    return got.view(array.dtype).reshape(array.shape)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("out", [None, "in place", "given"])
def test_on_its_own_queue(queue: cl.CommandQueue, dtype: str, out: Any, rng: np.random.Generator) -> None:
    x = host(rng, dtype)
    positions = rng.integers(-9999, 9999, (2, 5))
    array = to_device(queue, x, before=3)
    target = {"in place": array, "given": to_device(queue, np.zeros_like(x), before=5)}.get(out)
    got = clrope.rope(array, positions, NEOX, out=target)
    assert isinstance(got, cla.Array)
    assert target is None or got is target
    assert (got.shape, got.dtype, got.context, got.queue) == (x.shape, x.dtype, queue.context, queue)
    assert got.events
    assert all(event.command_queue == queue for event in got.events)
    assert same(to_host(got), emulate_rope(x, positions, NEOX)).all()
    if out != "in place":
        assert same(to_host(array), x).all()
    for memory in (array, *([] if target is None else [target])):
        around = np.empty(memory.base_data.size, np.uint8)
        cl.enqueue_copy(queue, around, memory.base_data)
        assert (around[: memory.offset] == POISON).all()
        assert (around[memory.offset + x.nbytes :] == POISON).all()


def test_nothing_waits(queue: cl.CommandQueue, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is put on the queue behind an event that has not happened yet; a call that waited would hang."""
    x, positions = host(rng), np.arange(5)
    array = to_device(queue, x)
    q2, k2 = clrope.rope((array, array), positions, NEOX)  # kernels built, tables there
    cl.wait_for_events([*q2.events, *k2.events])
    waited: list[str] = []
    for kind, name in ((cl.CommandQueue, "finish"), (cl.Event, "wait"), (cl, "wait_for_events")):
        monkeypatch.setattr(kind, name, lambda *_, name=name: waited.append(name))
    gate = cl.UserEvent(queue.context)
    try:
        results = [clrope.rope(array, positions, NEOX, wait_for=[gate]) for _ in range(3)]
        in_place = clrope.rope(results[0], positions, NEOX, out=results[0])
        pending = [event for result in results for event in result.events]
        states = [event.command_execution_status for event in pending]
    finally:
        gate.set_status(cl.command_execution_status.COMPLETE)
    monkeypatch.undo()
    assert not waited
    assert len(pending) >= 3
    assert all(state != cl.command_execution_status.COMPLETE for state in states)
    once = emulate_rope(x, positions, NEOX)
    assert same(to_host(results[1]), once).all()
    assert same(to_host(in_place), emulate_rope(once, positions, NEOX)).all()


HELD_BACK = """
import sys
import numpy as np, pyopencl as cl, pyopencl.array as cla
import clrope
from clrope.emulation import emulate_rope

config = clrope.RopeConfig("neox", 16)
context = cl.Context([clrope.device(sys.argv[1]).cl_device])
queue = cl.CommandQueue(context)
x = np.random.default_rng(int(sys.argv[2])).standard_normal((1, 4, 2, 16)).astype(np.float32)
op, array = clrope.Rope(config, queue), cla.to_device(queue, x)
places = [[3, 1, 2, n] for n in range(40)]
op(array, places[0])
plan = op.plan(array, places[0])
queue.finish()
gate = cl.UserEvent(context)
got = [op(array, p, wait_for=[gate] if p is places[0] else None) for p in places]
for p in places[1:4]:
    plan.run(positions=p)
del op, plan
gate.set_status(0)
queue.finish()
assert all(np.array_equal(y.get(), emulate_rope(x, p, config)) for y, p in zip(got, places))
"""


def test_positions_behind_a_launch_that_is_held_back(device: clrope.DeviceInfo, seed: int) -> None:
    """PyOpenCL waits for a copy whose event is dropped, and no other thread can run then: in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HELD_BACK, device.index, str(seed)],
        env={**os.environ, "PYTHONPATH": str(Path(clrope.__file__).parent.parent)},
        capture_output=True, text=True, timeout=HANGING, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_events_of_the_input_are_waited_for(queue: cl.CommandQueue, rng: np.random.Generator) -> None:
    other = cl.CommandQueue(queue.context, queue.device)
    x = host(rng)
    array = to_device(queue, np.zeros_like(x))
    gate = cl.UserEvent(queue.context)
    array.add_event(cl.enqueue_copy(other, array.base_data, x, is_blocking=False, wait_for=[gate]))
    got = clrope.rope(array, 4, NEOX)
    assert got.events[-1].command_execution_status != cl.command_execution_status.COMPLETE
    gate.set_status(cl.command_execution_status.COMPLETE)
    assert same(to_host(got), emulate_rope(x, 4, NEOX)).all()


@pytest.fixture
def unordered(device: clrope.DeviceInfo) -> Iterator[cl.CommandQueue]:
    """A queue of the caller's own, out of order."""
    context = cl.Context([device.cl_device])
    yield cl.CommandQueue(context, properties=cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE)
    del context


def rotations(queue: cl.CommandQueue, x: cla.Array, cos: cla.Array, sin: cla.Array) -> dict[str, Any]:
    """Return the ways to rotate x into an array of its own; each has been used before."""
    op, other = Rope(NEOX, queue), to_device(queue, np.zeros(x.shape, np.float32))
    plan = op.plan(x, 5)
    ways = {
        "call": lambda **options: op(x, 5, out=other, **options),
        "new result": lambda **options: op(x, 5, **options),
        "two arrays": lambda **options: op((x, x), 5, **options)[1],
        "plan": plan.run,
        "recent call": lambda: op(x, 5),
        "tables": lambda: clrope.rotate(x, cos, sin, n_dims=12),
    }
    for _ in range(3):
        for way in ways.values():
            cl.wait_for_events(way().events)
    return ways


WAYS = ["call", "new result", "two arrays", "plan", "recent call", "tables"]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_read_out_of_order_is_written_later(
    unordered: cl.CommandQueue, way: str, rng: np.random.Generator
) -> None:
    """A rotation in place waits for those that still read the array, and so do writes into tables."""
    x, pairs = host(rng), NEOX.n_pairs(None)
    tables = [host(rng, shape=(x.shape[1], pairs)) for _ in range(2)]
    array, cos, sin = (to_device(unordered, a) for a in (x, *tables))
    rotate = rotations(unordered, array, cos, sin)[way]
    array.finish()
    gate = cl.UserEvent(unordered.context)
    if way in ("recent call", "tables"):  # which take no events to wait for
        (cos if way == "tables" else array).events.append(gate)
        got = rotate()
    else:
        got = rotate(wait_for=[gate])
    try:
        read = list(array.events)
        assert all(event in read for event in got.events)
        if way == "tables":
            assert cos.events == sin.events != [gate]
        clrope.rope(array, 9, NEOX, out=array)
        assert not any(event in array.events for event in read)
        unordered.flush()
    finally:
        gate.set_status(cl.command_execution_status.COMPLETE)
    unordered.finish()
    want = emulate_rope(x, 5, NEOX)
    if way == "tables":
        rows = [np.broadcast_to(table, (2, *table.shape)) for table in tables]
        want = emulate_rotation(x, *rows, pair_indices(NEOX), True)
    assert same(to_host(got), want).all()
    assert same(to_host(array), emulate_rope(x, 9, NEOX)).all()


@pytest.mark.parametrize("way", WAYS)
def test_what_another_queue_reads_is_written_later(queue: cl.CommandQueue, way: str, rng: np.random.Generator) -> None:
    """An array's own queue does not know of launches on another one that read it; its events do."""
    other = cl.CommandQueue(queue.context, queue.device)
    x, pairs = host(rng), NEOX.n_pairs(None)
    tables = [host(rng, shape=(x.shape[1], pairs)) for _ in range(2)]
    array, (cos, sin) = to_device(queue, x), (to_device(queue, table) for table in tables)
    rotate = rotations(other, to_device(other, x) if way == "tables" else array, cos, sin)[way]
    read = cos if way == "tables" else array
    for a in (array, cos, sin):
        a.finish()
    gate = cl.UserEvent(queue.context)
    read.events.append(gate)
    try:
        got = rotate()
        assert got.queue == other
        assert read.events != [gate]
        if way == "tables":
            zeros = np.zeros_like(tables[0])
            options = {"dst_offset": cos.offset, "is_blocking": False, "wait_for": cos.events}
            written = cl.enqueue_copy(queue, cos.base_data, zeros, **options)
        else:
            clrope.rope(array, 9, NEOX, out=array)
        queue.flush()
    finally:
        gate.set_status(cl.command_execution_status.COMPLETE)
    other.finish()
    queue.finish()
    want = emulate_rope(x, 5, NEOX)
    if way == "tables":
        written.wait()
        rows = [np.broadcast_to(table, (2, *table.shape)) for table in tables]
        want = emulate_rotation(x, *rows, pair_indices(NEOX), True)
    else:
        assert same(to_host(array), emulate_rope(x, 9, NEOX)).all()
    assert same(to_host(got), want).all()


WRITES = ["out", "in place", "twin", "several", "plan", "plan again", "tables"]


@pytest.mark.parametrize("way", WRITES)
@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.one_in(4)
def test_what_its_own_queue_reads_another_one_writes_later(
    queue: cl.CommandQueue, way: str, begun: bool, rng: np.random.Generator
) -> None:
    """An array has no event of what its own queue reads; a launch elsewhere that writes it waits for that queue."""
    other = cl.CommandQueue(queue.context, queue.device)
    x = host(rng)
    array, further = to_device(queue, x), to_device(other, x)
    cos, sin = (to_device(other, host(rng, shape=(x.shape[1], NEOX.n_pairs(None)))) for _ in range(2))
    twin = cla.Array(queue, array.shape, array.dtype, data=array.base_data, offset=array.offset)
    op = Rope(NEOX, other)
    plan = op.plan(further, 9, out=array)
    if way == "plan again":
        plan.run()
    write = {
        "out": lambda: op(further, 9, out=array), "in place": lambda: op(array, 9, out=array),
        "twin": lambda: op(array, 9, out=twin), "several": lambda: op((further, further), 9, out=(None, array)),
        "plan": plan.run, "plan again": plan.run,
        "tables": lambda: clrope.rotate(further, cos, sin, mode="neox", out=array, device=other),
    }[way]  # fmt: skip
    for _ in range(begun):  # then the template of the call is known, or the plan has run
        write()
    other.finish()
    queue.finish()
    array.events.clear()
    twin.events.clear()
    cl.enqueue_copy(queue, array.base_data, np.ascontiguousarray(x), dst_offset=array.offset)
    gate = cl.UserEvent(queue.context)
    try:
        got = clrope.rope(array, 5, NEOX, wait_for=[gate])
        write()
        other.flush()
    finally:
        gate.set_status(cl.command_execution_status.COMPLETE)
    other.finish()
    queue.finish()
    assert same(to_host(got), emulate_rope(x, 5, NEOX)).all()
    if way not in ("tables", "in place", "twin"):
        assert same(to_host(array), emulate_rope(x, 9, NEOX)).all()


def test_arrays_of_two_queues(queue: cl.CommandQueue, rng: np.random.Generator) -> None:
    """One launch on the first one's queue: the results are on it, and the other input carries its event."""
    other = cl.CommandQueue(queue.context, queue.device)
    x = host(rng)
    q, k = to_device(queue, x), to_device(other, x)
    gate = cl.UserEvent(queue.context)
    try:
        results = clrope.rope((q, k), 5, NEOX, wait_for=[gate])
        assert [result.queue for result in results] == [queue, queue]
        assert not q.events
        assert k.events == results[1].events
        clrope.rope(k, 9, NEOX, out=k)
        other.flush()
    finally:
        gate.set_status(cl.command_execution_status.COMPLETE)
    for result in results:
        assert same(to_host(result), emulate_rope(x, 5, NEOX)).all()
    assert same(to_host(k), emulate_rope(x, 9, NEOX)).all()


@pytest.mark.parametrize("waiting", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_events_of_an_array_read_often_do_not_pile_up(
    unordered: cl.CommandQueue, way: str, waiting: bool, rng: np.random.Generator
) -> None:
    x, pairs = host(rng), NEOX.n_pairs(None)
    array, cos, sin = (to_device(unordered, a) for a in (x, *(np.ones((x.shape[1], pairs), np.float32),) * 2))
    rotate = rotations(unordered, array, cos, sin)[way]
    gate = cl.UserEvent(unordered.context)
    if waiting:
        array.events.append(gate)
    try:
        for _ in range(20):
            got = rotate()
            if not waiting:
                cl.wait_for_events(got.events)
        assert max(len(a.events) for a in (array, cos, sin)) <= 2
    finally:
        gate.set_status(cl.command_execution_status.COMPLETE)
    unordered.finish()


def test_outputs_with_one_list_of_events(unordered: cl.CommandQueue, rng: np.random.Generator) -> None:
    """Parts of one array share its list: it has the events of every launch."""
    fused = cla.to_device(unordered, host(rng, shape=(2, 5, 6, 16)))
    parts = fused[:, :, :2], fused[:, :, 2:3], fused[:, :, 3:]
    plan = Rope(NEOX, unordered).plan(parts, 7, out=parts)
    assert plan.launches > 1
    plan.run()
    assert len(fused.events) == plan.launches
    unordered.finish()


def test_outputs_with_one_list_of_events_in_order(queue: cl.CommandQueue, rng: np.random.Generator) -> None:
    """Parts 0 and 2 are rotated by one launch, part 1 by another one."""
    fused = cla.to_device(queue, host(rng, shape=(2, 5, 6, 16)))
    parts = fused[:, :, :2], fused[:, :, 2:5, :14], fused[:, :, 5:]
    plan = Rope(NEOX, queue).plan(parts, 7, out=parts)
    assert plan.launches > 1
    for run in (plan.run, plan.run, lambda: clrope.rope(parts, 7, NEOX, out=parts)):
        run()
        assert len(fused.events) == plan.launches
        queue.finish()


def test_a_place_between_elements_is_refused_by_known_calls(queue: cl.CommandQueue, rng: np.random.Generator) -> None:
    """Over host memory that is aligned to 2 bytes, such places have the alignment of the right ones."""
    x, op = to_device(queue, host(rng, shape=(1, 2, 3, 16))), Rope(NEOX)
    memory = np.full(8192, POISON, np.uint8)
    aligned = memory[-memory.ctypes.data % 64 + 2 :][:4096]
    before = aligned.copy()
    flags = cl.mem_flags
    data = cl.Buffer(queue.context, flags.READ_WRITE | flags.USE_HOST_PTR, hostbuf=aligned)
    good, odd = (cla.Array(queue, x.shape, np.float32, data=data, offset=offset) for offset in (0, 1026))
    for _ in range(2):
        op(x, 3, out=good)
        op(good, 3)
        for call in (lambda: op(x, 3, out=odd), lambda: op(odd, 3), lambda: op(odd, 3, out=odd)):
            with pytest.raises(ShapeError, match="got offset 1026, a multiple of the element size 4 is needed"):
                call()
    queue.finish()
    now = np.empty_like(before)
    cl.enqueue_copy(queue, now, data)
    assert (now[x.nbytes :] == before[x.nbytes :]).all()


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_views_of_arrays(queue: cl.CommandQueue, dtype: str, rng: np.random.Generator) -> None:
    x = host(rng, dtype, (2, 6, 5, 16))
    before = x.copy()
    array = cla.to_device(queue, x)
    part = array[:, 1:5:2, 2:4]
    cut = x[:, 1:5:2, 2:4]
    got = clrope.rope(part, [3, 4], NEOX)
    assert (got.shape, got.flags.c_contiguous) == (cut.shape, True)
    want = emulate_rope(cut, [3, 4], NEOX)
    assert same(to_host(got), want).all()
    assert clrope.rope(part, [3, 4], NEOX, out=part) is part
    cl.wait_for_events(part.events)
    before[:, 1:5:2, 2:4] = want
    assert (bits(array.get()) == bits(before)).all()


def test_letters_and_fortran_order(queue: cl.CommandQueue, rng: np.random.Generator) -> None:
    x = np.asfortranarray(host(rng))
    array = cla.to_device(queue, x)
    assert same(to_host(clrope.rope(array, 1, NEOX)), emulate_rope(x, 1, NEOX)).all()
    y = host(rng, shape=(2, 3, 5, 12))
    got = clrope.rope(cla.to_device(queue, y), 1, NEOX, layout="bnsd")
    assert same(to_host(got), emulate_rope(y, 1, NEOX, layout="bnsd")).all()


def test_plans_and_several_arrays(queue: cl.CommandQueue, rng: np.random.Generator) -> None:
    q, k = host(rng), host(rng, shape=(2, 5, 1, 14))
    arrays = tuple(to_device(queue, a, 1) for a in (q, k))
    plan = Rope(NEOX, None).plan(arrays, [1, 2])
    assert plan.queue == queue
    for positions in ([1, 2], [100, -7]):
        for got, x in zip(plan.run(positions=positions), (q, k), strict=True):
            assert same(to_host(got), emulate_rope(x, positions, NEOX)).all()
    more = host(rng)
    single = Rope(NEOX, None).plan(arrays[0], 0)
    assert same(to_host(single.run(to_device(queue, more, 9))), emulate_rope(more, 0, NEOX)).all()


def test_an_array_without_queue(queue: cl.CommandQueue, rng: np.random.Generator) -> None:
    x = host(rng)
    made = to_device(queue, x)
    bare = cla.Array(queue.context, x.shape, x.dtype, data=made.base_data)
    got = clrope.rope(bare, 2, NEOX)
    value = np.empty_like(x)
    cl.enqueue_copy(queue, value, got.base_data, wait_for=got.events)
    assert same(value, emulate_rope(x, 2, NEOX)).all()


def test_empty(queue: cl.CommandQueue) -> None:
    got = clrope.rope(cla.empty(queue, (2, 0, 3, 16), np.float32), [], NEOX)
    assert isinstance(got, cla.Array)
    assert got.shape == (2, 0, 3, 16)


def test_outputs_side_by_side_in_one_buffer(queue: cl.CommandQueue, rng: np.random.Generator) -> None:
    """q and k of a fused QKV tensor: their ranges of memory overlap, their elements do not."""
    fused = host(rng, shape=(2, 5, 6, 16))
    array = to_device(queue, fused)
    start, step = array.offset, 16 * array.dtype.itemsize
    q, k = (
        cla.Array(
            queue, (2, 5, heads, 16), array.dtype, data=array.base_data, offset=start + first * step,
            strides=array.strides,
        )
        for first, heads in ((0, 4), (4, 1))
    )  # fmt: skip
    want = fused.copy()
    for _ in range(2):
        want[:, :, :5] = emulate_rope(want[:, :, :5], 7, NEOX)
        clrope.rope((q, k), 7, NEOX, out=(q, k))
        queue.finish()
        assert same(to_host(array), want).all()
    whole = cla.Array(queue, (2, 5, 2, 16), array.dtype, data=array.base_data, offset=start, strides=array.strides)
    with pytest.raises(ShapeError, match="out: an output overlaps another tensor of the same call"):
        clrope.rope((q, whole), 7, NEOX, out=(q, whole))
    assert same(to_host(array), want).all()


def test_refusals(queue: cl.CommandQueue, device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    x = host(rng)
    array = to_device(queue, x)
    _context, other = own_queue(device)
    elsewhere = to_device(other, x)
    out = np.zeros_like(x)
    for arguments, kind, message in (
        ({"x": array, "out": out}, ShapeError, "out: got host memory for x in an OpenCL array, both must be"),
        ({"x": x, "out": array}, ShapeError, "out: got an OpenCL array for x in host memory"),
        ({"x": (array, elsewhere)}, ShapeError, "x: the arrays live in different OpenCL contexts"),
        ({"x": array, "device": elsewhere.queue}, DeviceError, "x: the array lives in another OpenCL context than"),
        ({"x": array, "out": cla.Array(queue, x.shape, x.dtype, data=array.base_data, offset=0, strides=(0, 0, 64, 4))},
         ShapeError, "out: elements share memory"),
        ({"x": array[:, 1:], "out": array[:, :4], "positions": 0}, ShapeError, "out: overlaps x"),
        ({"x": cla.zeros(queue, (2, 5, 3, 16), np.int32)}, ShapeError, "x: got dtype int32"),
        ({"x": cla.zeros(queue, (5, 16), np.float32)}, ShapeError, "x: got rank 2"),
    ):  # fmt: skip
        with pytest.raises(kind, match=message):
            clrope.rope(**{"positions": np.arange(5), "config": NEOX, **arguments})
    assert same(to_host(array), x).all()
    assert not out.any()


def test_another_device_is_refused(devices: tuple[clrope.DeviceInfo, ...], rng: np.random.Generator) -> None:
    if len(devices) < 2:
        pytest.skip("needs two devices")
    _context, queue = own_queue(devices[0])
    array = to_device(queue, host(rng))
    with pytest.raises(DeviceError, match=r"device: '.*' was asked for, but x lives on '.*'"):
        clrope.rope(array, 0, NEOX, device=devices[1].index)


def test_the_callers_context_and_queue(
    queue: cl.CommandQueue, device: clrope.DeviceInfo, rng: np.random.Generator
) -> None:
    x = host(rng)
    want = emulate_rope(x, 11, NEOX)
    for given in (queue, queue.context, device.cl_device, device):
        op = Rope(NEOX, given)
        plan = op.plan(x, 11)
        assert (
            plan.queue.context == queue.context
            if given in (queue, queue.context)
            else plan.queue.device == queue.device
        )
        assert plan.queue == queue or given is not queue
        assert same(plan.run(), want).all()
        assert same(clrope.rope(x, 11, NEOX, device=given), want).all()
    on_it = Rope(NEOX, queue)(to_device(queue, x), 11)
    assert same(to_host(on_it), want).all()


@pytest.mark.parametrize("several", [False, True])
def test_a_launch_is_given_each_buffer_once(queue: cl.CommandQueue, several: bool, rng: np.random.Generator) -> None:
    # Each one makes a launch longer, and a single tensor has no second one.
    arrays = [to_device(queue, host(rng, shape=(2, 5, heads, 16))) for heads in ((8, 2) if several else (8,))]
    plan = Rope(NEOX, queue).plan(tuple(arrays), 3)
    for _ in range(3):
        for got, x in zip(plan.run(), arrays, strict=True):
            assert same(to_host(got), emulate_rope(to_host(x), 3, NEOX)).all()
    for spec in plan.specs:
        memory = [name for name, value in spec.arguments if value is None and name in ("x", "y", "x2", "y2")]
        assert memory == (["x", "y", "x2", "y2"] if several and plan.launches == 1 else ["x", "y"])


def test_each_run_leaves_its_own_event(queue: cl.CommandQueue, rng: np.random.Generator) -> None:
    array = to_device(queue, host(rng))
    plan = Rope(NEOX, queue).plan(array, 3)
    seen: list[cl.Event] = []
    for _ in range(4):
        out = plan.run()
        assert out.events
        assert not any(event in seen for event in out.events)
        seen += out.events
