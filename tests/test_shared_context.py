"""Several devices of one platform in one context of the caller: each call runs on the queue that it was given."""

from __future__ import annotations

import numpy as np
import pyopencl as cl
import pytest
from helpers import same
from test_opencl_arrays import NEOX, host, to_device, to_host

import clrope
from clrope import DeviceError, Rope
from clrope.call.runtime import runtime_for
from clrope.emulation import emulate_rope


@pytest.fixture
def queues(devices: tuple[clrope.DeviceInfo, ...]) -> list[cl.CommandQueue]:
    """A queue of each device of the first platform that has several, all in one context."""
    for first in devices:
        together = [d for d in devices if d.platform_index == first.platform_index]
        if len(together) > 1:
            context = cl.Context([d.cl_device for d in together])
            return [cl.CommandQueue(context, d.cl_device) for d in together]
    pytest.skip("needs two devices of one platform")


def test_arrays_stay_on_their_device(queues: list[cl.CommandQueue], rng: np.random.Generator) -> None:
    for queue in [*queues, *reversed(queues)]:
        x, positions = host(rng), rng.integers(-9999, 9999, (2, 5))
        for given in (positions, 7):
            got = clrope.rope(to_device(queue, x), given, NEOX)
            assert got.queue == queue
            assert all(event.command_queue == queue for event in got.events)
            assert same(to_host(got), emulate_rope(x, given, NEOX)).all()


def test_plans_of_two_devices_take_turns(queues: list[cl.CommandQueue], rng: np.random.Generator) -> None:
    x = host(rng)
    plans = [Rope(NEOX, queue).plan(x, 11) for queue in queues]
    assert [plan.queue for plan in plans] == queues
    for position in (11, 3):
        want = emulate_rope(x, position, NEOX)
        for plan in plans:
            assert same(plan.run(positions=position), want).all()


def test_each_device_has_a_runtime(queues: list[cl.CommandQueue]) -> None:
    runtimes = [runtime_for(queue) for queue in queues]
    assert len(set(map(id, runtimes))) == len(queues)
    assert [runtime.cl_device for runtime in runtimes] == [queue.device for queue in queues]


def test_an_array_of_the_other_device_is_refused(
    queues: list[cl.CommandQueue], devices: tuple[clrope.DeviceInfo, ...], rng: np.random.Generator
) -> None:
    array = to_device(queues[0], host(rng))
    other = next(d for d in devices if d.cl_device == queues[1].device)
    with pytest.raises(DeviceError, match=r"device: '.*' was asked for, but x lives on '.*'"):
        clrope.rope(array, 0, NEOX, device=other.index)
