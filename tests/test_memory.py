"""Buffers over host memory: one for each range that tensors touch, only the written ones writable."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyopencl as cl
import pytest
from helpers import bits, same, with_largest_allocation

import clrope
from clrope import Rope, RopeConfig
from clrope.call import call as call_module
from clrope.call.memory import _joined
from clrope.call.plan import Plan
from clrope.call.runtime import runtime_for
from clrope.emulation import emulate_rope


@pytest.mark.parametrize("before", [0, 1, 5, 1000])
def test_neighbours_in_one_page(device: clrope.DeviceInfo, before: int, rng: np.random.Generator) -> None:
    """Input and output side by side, whatever pages they share."""
    memory = np.zeros(4096, np.float32)
    x, out = (memory[start : start + 48].reshape(3, 2, 8) for start in (before, before + 48))
    x[...] = rng.uniform(-1, 1, x.shape)
    after = memory.copy()
    assert clrope.rope(x, 2, RopeConfig("neox"), out=out, device=device.index) is out
    after[before + 48 : before + 96] = emulate_rope(x, 2, RopeConfig("neox")).ravel()
    assert (bits(memory) == bits(after)).all()


@pytest.fixture
def copying(
    device: clrope.DeviceInfo, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[tuple[Rope, list[range]]]:
    """An operation on a device whose buffers over host memory are copies until they are mapped, as OpenCL allows.

    Besides, the memory of the buffers that the last binding made. param: whether the queue is in order; if not, what
    nobody waits for comes late.
    """
    memory: dict[int, np.ndarray] = {}
    made: list[range] = []
    real = cl.Buffer

    def copies(context: Any, flags: int, size: int = 0, hostbuf: Any = None) -> Any:
        if not flags & cl.mem_flags.USE_HOST_PTR:
            return real(context, flags, size, hostbuf)
        buffer = real(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=hostbuf)
        memory[buffer.int_ptr] = np.frombuffer(hostbuf, np.uint8)
        start = memory[buffer.int_ptr].ctypes.data
        made.append(range(start, start + len(hostbuf)))
        return buffer

    def mapped(
        queue: Any, buffer: Any, access: int, _: int, shape: tuple[int], *__: Any, wait_for: Any, **___: Any
    ) -> Any:
        host = memory[buffer.int_ptr]
        assert shape == (host.size,)
        if not access & cl.map_flags.WRITE_INVALIDATE_REGION:
            cl.enqueue_copy(queue, host, buffer, wait_for=wait_for)

        def moved() -> None:
            if access & (cl.map_flags.WRITE | cl.map_flags.WRITE_INVALIDATE_REGION):
                cl.enqueue_copy(queue, buffer, host)

        def release(_: Any) -> Any:
            if in_order:
                moved()
            return SimpleNamespace(wait=moved)

        return SimpleNamespace(base=SimpleNamespace(release=release)), None

    monkeypatch.setattr(cl, "Buffer", copies)
    monkeypatch.setattr(cl, "enqueue_map_buffer", mapped)
    context = cl.Context([device.cl_device])
    in_order = getattr(request, "param", True)
    unordered = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    queue = cl.CommandQueue(context, properties=0 if in_order else unordered)
    monkeypatch.setattr(runtime_for(queue), "host_access", "mapped")
    yield Rope(RopeConfig("neox"), queue), made
    del context


@pytest.mark.parametrize("copying", [True, False], ids=["in order", "out of order"], indirect=True)
def test_a_plan_reads_what_was_written_after_it_was_made(copying: Any, rng: np.random.Generator) -> None:
    """By every run, the first one too."""
    op = copying[0]
    x = rng.uniform(-1, 1, (1, 12, 2, 16)).astype(np.float32)
    plan = op.plan(x, 5)
    for _ in range(3):
        x *= np.float32(-0.5)
        assert same(plan.run(), emulate_rope(x, 5, op.config)).all()


def run_twice(copying: tuple[Rope, list[range]], tensors: list[np.ndarray], layout: str, out: Any) -> Plan:
    """Rotate with a plan, again after the inputs were changed, and by a call; no two buffers may overlap."""
    op, made = copying
    made.clear()
    plan = op.plan(tensors, 5, layout=layout, out=out)
    assert all(a.stop <= b.start or b.stop <= a.start for k, a in enumerate(made) for b in made[:k])
    for call in (plan.run, plan.run, lambda: op(tensors, 5, layout=layout, out=out)):
        for x in tensors:
            x *= np.float32(-0.5)
        wants = [emulate_rope(x, 5, op.config, layout=layout) for x in tensors]
        for got, want in zip(call(), wants, strict=True):
            assert same(got, want).all()
    return plan


@pytest.mark.parametrize("out", ["new", "in place", "given"])
@pytest.mark.parametrize("layout", ["bsnd", "bnsd"])
@pytest.mark.parametrize("tokens", [1000, 4], ids=["whole", "chunks"])
def test_parts_of_one_array_where_buffers_are_copies(
    copying: Any, tokens: int, layout: str, out: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """q and k of a fused tensor, and chunks whose ranges interleave."""
    monkeypatch.setattr(call_module, "TABLE_BYTES", tokens * 8 * 4)
    heads = layout.index("n")
    fused, results = (rng.uniform(-1, 1, (1, 12, 12, 16)).astype(np.float32) for _ in range(2))
    before = fused.copy(), results.copy()
    q, k = np.split(fused, [7, 9], heads)[:2]
    tensors = [q, k]
    given = {"new": None, "in place": tensors, "given": np.split(results, [7, 9], heads)[:2]}[out]
    plan = run_twice(copying, tensors, layout, given)
    assert (plan.launches > 2) is (tokens == 4)
    for array, was in zip((fused, results), before, strict=True):
        rest, as_it_was = (np.split(a, [9], heads)[1] for a in (array, was))
        assert same(rest, as_it_was).all()


def test_memory_that_this_driver_maps(
    device: clrope.DeviceInfo, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = cl.Context([device.cl_device])
    queue = cl.CommandQueue(context)
    monkeypatch.setattr(runtime_for(queue), "host_access", "mapped")
    fused = rng.uniform(-1, 1, (1, 12, 12, 16)).astype(np.float32)[:, :, 1:]
    tensors = np.split(fused, [7], 2)
    for out in (None, tensors):
        run_twice((Rope(RopeConfig("neox"), queue), []), tensors, "bsnd", out)


def test_types_side_by_side_where_buffers_are_copies() -> None:
    """A buffer begins at a whole element of the largest type, and not in the buffer before it."""
    joined = _joined([(0, 12, True), (12, 60, False), (16, 80, False)], 8)
    assert joined == [(0, 80, True)]
    assert all(one[1] <= other[0] for one, other in pairwise(_joined([(0, 8, True), (8, 16, False)], 8)))


def test_tensors_too_large_for_one_buffer_are_copied(
    device: clrope.DeviceInfo, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that would fit by themselves: their memory may interleave, and then one buffer has to hold both."""
    fused = rng.uniform(-1, 1, (1, 40, 6, 16)).astype(np.float32)
    parts = fused[:, :, :2], fused[:, :, 2:]
    for limit, access in ((3 * fused.nbytes, "mapped"), (fused.nbytes, "copied")):
        small = with_largest_allocation(device, limit)
        monkeypatch.setattr(runtime_for(small), "host_access", "mapped")
        want = emulate_rope(fused, 3, RopeConfig("neox"))
        plan = Rope(RopeConfig("neox"), small).plan(parts, 3, out=parts)
        assert (plan.launches == 2) is (access == "copied")
        plan.run()
        assert same(fused, want).all()


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
