"""PoCL's `basic` device runs commands in the calling thread: alone, and for small calls next to `pthread`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import clrope

ALONE = """
import os
os.environ["POCL_DEVICES"] = "basic"
import numpy as np, pyopencl as cl, pyopencl.array as cla, clrope
from clrope.call.runtime import queue_for
device = clrope.device("pocl")
assert device.name.startswith("basic"), device.name
queue, op = queue_for(device), clrope.Rope(clrope.RopeConfig("neox"), device)
x = np.random.default_rng(0).uniform(-1, 1, (1, 3, 2, 16)).astype(np.float32)
array = cla.to_device(queue, x)
event = cl.UserEvent(queue.context)
plan = op.plan(array, 3)
waits = [event]
for call in (lambda: op(array, 3, wait_for=waits), lambda: op(x, 3, wait_for=waits), lambda: plan.run(wait_for=waits)):
    try:
        call()
        raise SystemExit("not refused")
    except clrope.DeviceError as error:
        assert "does not wait for events (1 have not ended)" in str(error), error
event.set_status(0)
want = clrope.reference.rope(x, 3, op.config)
for got in (op(array, 3, wait_for=[event]).get(), op(x, 3, wait_for=[event]), plan.run(wait_for=[event]).get()):
    assert clrope.compare(got, want).nmse < 1e-12
"""


#: Small calls on host arrays are for `basic`, large ones and OpenCL arrays are for `pthread`, as is a caller's queue.
NEXT_TO_PTHREAD = """
import os, threading
os.environ["POCL_DEVICES"] = "basic pthread"
import numpy as np, pyopencl as cl, pyopencl.array as cla, clrope
from clrope.call.runtime import queue_for, runtime_for
device = clrope.device("pocl")
basic = next(d for d in clrope.devices() if d.runs_at_once)
assert device.name.startswith("pthread") and not device.runs_at_once and basic.name.startswith("basic"), device.name
op = clrope.Rope(clrope.RopeConfig("neox"), "pocl")
assert op.device == device and clrope.device("basic") == basic
rng = np.random.default_rng()

def check(x, call):
    plain = call(clrope.Rope(op.config, basic)).tobytes()
    got = call(op)
    assert got.tobytes() == plain
    assert clrope.compare(got, clrope.reference.rope(x, 3, op.config)).nmse < 1e-12

small = rng.uniform(-1, 1, (1, 3, 2, 16)).astype(np.float32)
large = rng.uniform(-1, 1, (1, runtime_for(device).local_state[1] // 512 + 1, 8, 16)).astype(np.float32)
for x in (small, large):
    for _ in range(3):
        check(x, lambda op: op(x, 3))
        check(x, lambda op: op(x, 3, out=np.full_like(x, np.nan)))
        check(x, lambda op: op(in_place := x.copy(), 3, out=in_place))
cos, sin = op.cos_sin(np.arange(3, 6), head_dim=16)
check(small, lambda op: clrope.rotate(small, cos, sin, mode="neox", device=op.device))
assert op.plan(small, 3).device == basic and op.plan(large, 3).device == device
assert op.plan(cla.to_device(queue_for(device), small), 3).device == device
assert clrope.Rope(op.config, queue_for(device)).plan(small, 3).device == device
assert any(call.state.runtime.info == basic for call in runtime_for(device).calls.values())

event = cl.UserEvent(queue_for(device).context)
threading.Timer(0.3, lambda: event.set_status(0)).start()
check(small, lambda op: op(small, 3, wait_for=[event]))
"""


@pytest.mark.parametrize("script", [ALONE, NEXT_TO_PTHREAD], ids=["alone", "next to pthread"])
def test_basic(devices: list[clrope.DeviceInfo], script: str) -> None:
    if not any(device.platform == "Portable Computing Language" for device in devices):
        pytest.skip("needs PoCL")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
