"""Buffers over host memory: one for each range that tensors touch, only the written ones writable."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyopencl as cl
import pytest
from helpers import bits, same

import clrope
from clrope import Rope, RopeConfig
from clrope.arrays import operand
from clrope.emulation import emulate_rope
from clrope.plan.host_buffers import HostBuffers, MemoryRange
from clrope.runtime import Runtime, runtime_for


def buffers(device: clrope.DeviceInfo, *ranges: MemoryRange) -> HostBuffers:
    """Buffers as a device without fine-grained system SVM has them."""
    runtime = Runtime(runtime_for(device).context, device)
    runtime._host_access = "direct" if runtime.host_access == "svm" else runtime.host_access
    return HostBuffers(runtime, runtime.queue, ranges)


@pytest.mark.parametrize("before", [0, 1, 5, 1000])
def test_neighbours_in_one_page(device: clrope.DeviceInfo, before: int, rng: np.random.Generator) -> None:
    """Input and output side by side: the output's buffer is the writable one, whatever pages they share."""
    memory = np.zeros(4096, np.float32)
    x, out = (memory[start : start + 48].reshape(3, 2, 8) for start in (before, before + 48))
    x[...] = rng.uniform(-1, 1, x.shape)
    read, written = operand(x, "bsnd"), operand(out, "bsnd", "out")
    host = buffers(device, MemoryRange.of(read, read.view, False), MemoryRange.of(written, written.view, True))
    places = [host.place(read, read.view), host.place(written, written.view)]
    flags = [buffer.get_info(cl.mem_info.FLAGS) for buffer, _ in places]
    assert flags[0] & cl.mem_flags.READ_ONLY
    assert flags[1] & cl.mem_flags.READ_WRITE
    for (buffer, view), array in zip(places, (x, out), strict=True):
        start = view.offset * 4
        assert start >= 0
        assert start + array.nbytes <= buffer.size
    after = memory.copy()
    assert clrope.rope(x, 2, RopeConfig("neox"), out=out, device=device.index) is out
    after[before + 48 : before + 96] = emulate_rope(x, 2, RopeConfig("neox")).ravel()
    assert (bits(memory) == bits(after)).all()


def test_overlapping_ranges_share_a_buffer(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    memory = rng.uniform(-1, 1, (3, 2, 2, 8)).astype(np.float32)
    read, written = operand(memory[:, 0], "bsnd"), operand(memory[:, 1], "bsnd", "out")
    host = buffers(device, MemoryRange.of(read, read.view, False), MemoryRange.of(written, written.view, True))
    (a, _), (b, _) = host.place(read, read.view), host.place(written, written.view)
    assert a is b
    assert a.get_info(cl.mem_info.FLAGS) & cl.mem_flags.READ_WRITE


@pytest.fixture
def copying(device: clrope.DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Rope, list[range]]]:
    """An operation on a device whose buffers over host memory are copies until they are mapped, as OpenCL allows.

    Besides, the memory of the buffers that the last binding made.
    """
    memory: dict[int, np.ndarray] = {}
    made: list[range] = []
    real = HostBuffers.__init__

    def copies(self: HostBuffers, runtime: Runtime, *arguments: Any) -> None:
        real(self, runtime, *arguments)
        for k, place in enumerate(self._places):
            of_host = (ctypes.c_ubyte * (place.high - place.low)).from_address(place.low)
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
            buffer = cl.Buffer(runtime.context, flags, hostbuf=of_host)
            memory[buffer.int_ptr] = np.frombuffer(of_host, np.uint8)
            made.append(range(place.low, place.high))
            self._places[k] = place._replace(buffer=buffer)

    def moved(queue: Any, buffer: Any, size: int, *, write: bool, wait_for: Any = None) -> None:
        host = memory[buffer.int_ptr]
        assert host.size == size
        cl.enqueue_copy(queue, *((buffer, host) if write else (host, buffer)), wait_for=wait_for)

    monkeypatch.setattr(HostBuffers, "__init__", copies)
    monkeypatch.setattr(HostBuffers, "_map", staticmethod(moved))
    context = cl.Context([device.cl_device])
    queue = cl.CommandQueue(context)
    monkeypatch.setattr(runtime_for(queue), "_host_access", "mapped")
    yield Rope(RopeConfig("neox"), queue), made
    del context


def test_a_plan_reads_what_was_written_after_it_was_made(copying: Any, rng: np.random.Generator) -> None:
    """By every run, the first one too."""
    op = copying[0]
    x = rng.uniform(-1, 1, (1, 12, 2, 16)).astype(np.float32)
    plan = op.plan(x, 5)
    for _ in range(3):
        x *= np.float32(-0.5)
        assert same(plan.run(), emulate_rope(x, 5, op.config)).all()


def test_what_was_written_is_read_and_the_other_way_round(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """With and without the driver's using the memory itself, and at any alignment."""
    for start in range(0, 40, 3):
        memory = rng.uniform(-1, 1, 3000).astype(np.float16)
        x = memory[start : start + 1000].reshape(5, 10, 20)
        plan = clrope.Rope(RopeConfig("normal"), device.index).plan(x, 3, out=x, transfer="map")
        for _ in range(3):
            want = emulate_rope(x, 3, RopeConfig("normal"))
            plan.run()
            assert same(x, want).all()
            x *= np.float16(-0.5)
