"""The worker's side: which devices a worker process was told to use, and tasks on them.

What OpenCL needs is made in the worker and kept there by this package's registry: another task finds context, queues
and programs again.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass, field

from .. import __version__
from ..device import DeviceInfo, device, devices
from ..errors import RopeError
from .fleet_task import FleetAnswer, FleetTask

#: Seconds between two reports of a task's progress.
_PAUSE = 0.5


@dataclass(frozen=True)
class FleetDevice:
    """A device of a worker. index: 'P:D' in its process. key: equal for equal devices of equal drivers."""

    index: str
    key: str
    name: str
    platform: str


@dataclass(frozen=True)
class WorkerView:
    """What a worker says of itself.

    machine: equal for workers on the same machine, whose processes and memory they share.
    nanny:   whether a new process takes its place when it ends.
    problem: why it has no device to use.
    """

    host: str
    machine: str
    version: str
    nanny: bool
    devices: tuple[FleetDevice, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class TaskOutcome:
    """How a task ended on a worker: the answer, or the error's text."""

    answer: FleetAnswer | None = None
    problem: str = field(default="")


def look() -> WorkerView:
    """Describe this worker: the device that CLROPE_DEVICE or PYOPENCL_CTX names, else all healthy ones."""
    from distributed import get_worker

    host = platform.node()
    told = any(os.environ.get(name, "").strip() for name in ("CLROPE_DEVICE", "PYOPENCL_CTX"))
    found: list[DeviceInfo] = []
    problem = ""
    try:
        found = [device()] if told else [d for d in devices() if d.health.ok and not d.simulator]
        problem = "" if found else "no healthy device"
    except RopeError as error:
        problem = str(error)
    described = tuple(FleetDevice(d.index, d.key, d.name, d.platform) for d in found)
    return WorkerView(host, _machine() or host, __version__, get_worker().nanny is not None, described, problem)


def run_task(task: FleetTask, index: str, topic: str, number: int) -> TaskOutcome:
    """Run a task on the device of that index; tell the topic of its progress as (number, steps done, all steps)."""
    from distributed import get_worker

    worker = get_worker()
    told = 0.0

    def step(done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told > _PAUSE or done == total:
            told = now
            worker.log_event(topic, [number, done, total])

    try:
        return TaskOutcome(task.run(device(index), step))
    except Exception as error:
        # Some errors do not survive being sent; the text does.
        text = str(error) if isinstance(error, RopeError) else f"{type(error).__name__}: {error}"
        return TaskOutcome(problem=text.strip() or type(error).__name__)


def _machine() -> str:
    """Return what containers on the same machine have in common; '' if the system has no such thing."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
