"""PoCL's `basic` device runs commands at once, whatever they wait for: a call that would have to wait is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

import clrope

SCRIPT = """
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


@pytest.mark.one_in(8)
def test_calls_that_would_have_to_wait_are_refused(devices: list[clrope.DeviceInfo]) -> None:
    if not any(device.platform == "Portable Computing Language" for device in devices):
        pytest.skip("needs PoCL")
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
