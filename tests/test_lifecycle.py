"""The ends of processes that use clrope, and processes that begin in the middle of its use: exit codes, no abort."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import clrope

#: Seconds after which a process counts as hanging. No result depends on how long one takes.
HANGING = 1800

#: `check(how)` makes a call in some way and compares its bits; `KINDS` are the ways.
PRELUDE = """
import atexit, gc, multiprocessing, os, sys, threading, weakref
import numpy as np, pyopencl as cl, pyopencl.array as cla
import clrope
from clrope.emulation import emulate_rope

index, seed = sys.argv[1], int(sys.argv[2])
config = clrope.RopeConfig("neox", 16)
x = np.random.default_rng(seed).standard_normal((1, 5, 4, 16)).astype(np.float32)

def right(y, position):
    return y.tobytes() == emulate_rope(x, position, config).tobytes()

class Use:
    \"\"\"Everything that a program may have alive: an operation, plans for host and OpenCL arrays, their results.\"\"\"

    def __init__(self):
        self.device = clrope.device(index)
        self.op = clrope.Rope(config, self.device)
        self.plan = self.op.plan(x, 3)
        self.context = cl.Context([self.device.cl_device])
        self.queue = cl.CommandQueue(self.context)
        self.array = cla.to_device(self.queue, x)
        self.array_plan = self.op.plan(self.array, 4)
        self.results = [self.op(x, 1), self.op(self.array, 2), self.plan.run(), self.array_plan.run()]

    def check(self):
        assert right(clrope.rope(x, 7, config, device=self.device), 7)
        assert right(self.op(x, 8), 8)
        assert right(self.plan.run(positions=9), 9)
        assert right(self.op(self.array, 10).get(), 10)
        self.array_plan.run(positions=11)

def call(connection):
    \"\"\"In another process.\"\"\"
    try:
        connection.send("right" if right(clrope.rope(x, 5, config, device=index), 5) else "wrong")
    except clrope.errors.DeviceError as error:
        connection.send(f"DeviceError: {error}")

def answer_of(method):
    \"\"\"What a child process says that `method` starts, and its exit code.\"\"\"
    context = multiprocessing.get_context(method)
    mine, its = context.Pipe(False)
    child = context.Process(target=call, args=(its,))
    child.start()
    its.close()
    said = mine.recv()
    child.join()
    return said, child.exitcode

if __name__ == "__main__":
"""

#: What a process does, and its exit code.
ENDS = {
    "alive": ("use = Use(); use.check()", 0),
    "in a cycle": ("use = Use(); use.check(); use.itself = use; use.results.append(use.results); del use", 0),
    "in a collected cycle": (
        "use = Use(); use.check(); use.itself = use; gone = weakref.ref(use); del use; gc.collect()\nassert not gone()",
        0,
    ),
    "exit code": ("use = Use(); use.check(); sys.exit(7)", 7),
    "exception": ("use = Use(); use.check(); raise KeyError('on purpose')", 1),
    "at exit": ("use = Use(); atexit.register(use.check)", 0),
    "finalizer": ("use = Use(); weakref.finalize(config, use.check)", 0),
    "launched": ("use = Use(); use.check(); [use.array_plan.run(positions=n) for n in range(50)]", 0),
    "threads that ended": (
        "use = Use(); threads = [threading.Thread(target=use.check) for _ in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]",
        0,
    ),
    "threads that go on": (
        "use = Use()\n[threading.Thread(target=lambda: [Use().check() for _ in range(5)]).start() for _ in range(4)]",
        0,
    ),
    "first call in a thread": ("threading.Thread(target=lambda: Use().check()).start()", 0),
    "thread-local": (
        "here = threading.local()\ndef work():\n    here.use = Use(); here.use.check()\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join(); here.use = Use()",
        0,
    ),
    "queue without its context": (
        "use = Use(); use.check(); del use.context; context = cl.Context([use.device.cl_device])\n"
        "y = clrope.rope(cla.to_device(cl.CommandQueue(context), x), 3, config); del context; assert right(y.get(), 3)",
        0,
    ),
    "in a module": ("sys.modules['other'] = Use(); sys.modules['other'].check()", 0),
}

#: Processes that start others: before or after their own use of OpenCL.
FORKED = "said.startswith('DeviceError: device: this process was forked after OpenCL had been started')"
CHILDREN = {
    "fork after use": ("use = Use(); said, code = answer_of('fork'); use.check(); assert code == 0; assert " + FORKED),
    "fork before use": "assert answer_of('fork') == ('right', 0); Use().check(); assert " + FORKED.replace(
        "said", "answer_of('fork')[0]"
    ),
    "spawn": "use = Use(); assert answer_of('spawn') == ('right', 0); use.check()",
    "forkserver": "use = Use(); assert answer_of('forkserver') == ('right', 0); use.check()",
    "forkserver before use": (
        "assert answer_of('forkserver') == ('right', 0); use = Use(); use.check()\n"
        "assert answer_of('forkserver') == ('right', 0)"
    ),
    "fork that does not call": (
        "use = Use()\npid = os.fork()\nif not pid:\n    os._exit(5)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5; use.check()"
    ),
    "fork while another thread starts OpenCL": (
        "import importlib\nstarting = importlib.import_module('clrope.device.discovery')\n"
        "plan, begun, go = starting.make_plan, threading.Event(), threading.Event()\n"
        "starting.make_plan = lambda: begun.set() or go.wait() and plan()\n"
        "thread = threading.Thread(target=lambda: Use().check()); thread.start(); begun.wait()\n"
        "pid = os.fork()\nif not pid:\n    try:\n        Use()\n    except clrope.DeviceError:\n        os._exit(5)\n"
        "    os._exit(6)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5; go.set(); thread.join()"
    ),
    "fork that ends as usual": (
        "use = Use()\npid = os.fork()\nif not pid:\n    sys.exit(5)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5; use.check()"
    ),
}  # fmt: skip


def ended(text: str, device: clrope.DeviceInfo, tmp_path: Path, seed: int) -> subprocess.CompletedProcess[str]:
    """A process that runs a text as its program, which other processes can import."""
    program = tmp_path / "program.py"
    program.write_text(PRELUDE + "".join(f"    {line}\n" for line in text.splitlines()), encoding="utf-8")
    path = os.pathsep.join([str(Path(clrope.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-W", "ignore", program, device.index, str(seed)],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=HANGING, check=False,
    )  # fmt: skip


@pytest.mark.one_in(10)
@pytest.mark.parametrize("name", ENDS)
def test_a_process_ends_as_usual(name: str, device: clrope.DeviceInfo, tmp_path: Path, seed: int) -> None:
    text, code = ENDS[name]
    done = ended(text, device, tmp_path, seed)
    assert done.returncode == code, done.stderr
    last = done.stderr.splitlines()[-1:]
    assert last == (["KeyError: 'on purpose'"] if name == "exception" else []), done.stderr


@pytest.mark.one_in(10)
@pytest.mark.skipif(sys.platform == "win32", reason="forks are POSIX")
@pytest.mark.parametrize("name", CHILDREN)
def test_processes_start_others(name: str, device: clrope.DeviceInfo, tmp_path: Path, seed: int) -> None:
    done = ended(CHILDREN[name], device, tmp_path, seed)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
