"""The client's side: a task for every device of a Dask cluster, and what to do when workers end."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import ConfigError, RopeError
from .fleet_result import FleetResult, Status, WorkerResult, compare_bits
from .fleet_task import FleetAnswer, FleetTask
from .fleet_worker import FleetDevice, TaskOutcome, WorkerView, look, run_task

if TYPE_CHECKING:
    from distributed import Client, Future

#: Seconds between two looks at the tasks, and between two at the list of workers.
_PAUSE, _ROLL_CALL = 0.1, 0.5
#: Seconds to wait for the process that a nanny starts in place of one that ended.
RESTART_S = 60.0
#: Seconds in which a result has to arrive that a worker has.
FETCH_S = 60.0
#: Workers that a device's task is tried on.
_TRIES = 2
#: What the environment of every part of a cluster needs.
_SAME = "scheduler and workers need the client's versions of clrope and dask"


@contextmanager
def connect(address: str) -> Iterator[Client]:
    """Connect to a scheduler; `RopeError` if that fails within dask's `distributed.comm.timeouts.connect`.

    Raises `ConfigError` if distributed is not installed.
    """
    try:
        from distributed import Client
        from distributed.utils import LoopRunner
    except ImportError as error:
        raise ConfigError("--scheduler: distributed is needed, `pip install 'clrope[dask]'`") from error
    try:
        # Not left to the client, which prints a traceback, or never ends, if it cannot use the address.
        LoopRunner().run_sync(_reach, address)
        client = Client(address, set_as_default=False, name="clrope")
    except Exception as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise RopeError(f"--scheduler: {address} cannot be reached ({why})") from error
    with client:
        yield client


async def _reach(address: str) -> None:
    """Connect to an address and end the connection; raises whatever the address or the network gives."""
    from distributed import comm
    from distributed.security import Security

    connection = await comm.connect(address, **Security().get_connection_args("client"))
    await connection.close()


@dataclass(eq=False)
class _Member:
    """A worker: what it says of itself, and when it was found to have ended."""

    address: str
    view: WorkerView | None = None
    looking: Future[WorkerView] | None = None
    problem: str = ""
    ended: float | None = None

    @property
    def host(self) -> str:
        return self.view.host if self.view else ""


@dataclass(eq=False)
class _Job:
    """The task on one device. lost: the workers that ended while they had it."""

    number: int
    member: _Member
    device: FleetDevice
    future: Future[TaskOutcome] | None = None
    lost: list[_Member] = field(default_factory=list)
    status: Status | None = None
    reason: str = ""
    answer: FleetAnswer | None = None
    steps: int = 0

    def result(self) -> WorkerResult:
        """Return the entry of the result."""
        status, reason = self.status or "missing", self.reason if self.status else "interrupted before its end"
        if status == "ok" and self.lost:
            reason = f"in place of {_names(self.lost)}, which ended"
        member = self.lost[-1] if status == "missing" and self.lost else self.member
        return WorkerResult(member.address, member.host, self.device.name, self.device.platform, status, reason)


class FleetRun:
    """A task on every device of the workers that a cluster has at the start.

    say:      called with a line for people. progress: called with the number of steps done and of all steps.

    Each worker runs one task at a time; where tasks measure, one at a time on each machine. The task of a worker that
    ends is tried once more, on a device of the same key.
    """

    def __init__(
        self,
        client: Client,
        task: FleetTask,
        say: Callable[[str], None] = lambda text: None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._client, self._task, self._say, self._progress = client, task, say, progress
        self._topic = f"clrope-{uuid.uuid4().hex}"
        self._members: dict[str, _Member] = {}
        self._jobs: list[_Job] = []
        #: Entries of workers without a device.
        self._idle: list[WorkerResult] = []
        self._total = 0
        self._called = 0.0
        self._begun = time.monotonic()
        self._started = datetime.now(timezone.utc).isoformat(timespec="seconds")

    def run(self) -> FleetResult:
        """Run to the end and return the result; `RopeError` if there is no worker or the scheduler ends too early."""
        address = self._client.scheduler.address if self._client.scheduler else ""
        workers = self._roll_call()
        if not workers:
            raise RopeError(f"--scheduler: {address} has no workers; start some by `dask worker {address}`")
        self._client.subscribe_topic(self._topic, self._heard)
        self._say(f"{len(workers)} workers at {address}; looking for their devices")
        self._find_devices(workers)
        for job in self._jobs:
            self._say(f"{job.member.address} {job.member.host}: {job.device.name} [{job.device.platform}]")
        while any(job.status is None for job in self._jobs):
            if not self._collect() or not self._watch():
                self._give_up(address)
                break
            self._start()
            time.sleep(_PAUSE)
        return self.result()

    def result(self) -> FleetResult:
        """Return what has come so far; a device without an answer is missing."""
        answered = [job for job in self._jobs if job.answer is not None]
        return FleetResult(
            self._task.what, self._started, round(time.monotonic() - self._begun, 1),
            [*(job.result() for job in self._jobs), *self._idle],
            compare_bits([(f"{j.member.address} {j.device.index}", j.answer) for j in answered if j.answer]),
            [j.answer.result | {"worker": j.member.address} for j in answered if j.answer],
        )  # fmt: skip

    def _find_devices(self, workers: set[str]) -> None:
        for address in sorted(workers):
            self._members[address] = self._ask(address)
        while any(m.looking is not None for m in self._members.values()):
            if not self._hear_views() or not self._watch():
                raise RopeError("--scheduler: the scheduler ended while workers looked for devices")
            time.sleep(_PAUSE)
        for member in self._members.values():
            problem = member.problem or (member.view.problem if member.view else "")
            if problem:
                gone: Status = "missing" if member.ended is not None else "error"
                self._idle.append(WorkerResult(member.address, member.host, "", "", gone, problem))
                self._say(f"worker {_names([member])}: {problem.splitlines()[0]}")
            elif member.view is not None:
                self._jobs += [_Job(len(self._jobs) + k, member, d) for k, d in enumerate(member.view.devices)]

    def _ask(self, address: str) -> _Member:
        member = _Member(address)
        member.looking = self._client.submit(look, workers=[address], key=f"clrope-look-{uuid.uuid4().hex}", pure=False)
        return member

    def _hear_views(self) -> bool:
        """Take the views that have come; return whether the scheduler is there."""
        for member in self._members.values():
            future = member.looking
            if future is None or not future.done():
                continue
            if future.cancelled():
                return False
            if future.status == "error":
                member.looking, member.problem = None, _text(future)
                continue
            view = _value(future)
            if view is None:
                continue
            member.looking = None
            if view.version != __version__:
                member.problem = f"clrope {view.version} there, {__version__} here; {_SAME}"
            member.view = view
        return True

    def _collect(self) -> bool:
        """Take the results that have come; return whether the scheduler is there."""
        for job in self._jobs:
            future = job.future
            if job.status is not None or future is None or not future.done():
                continue
            if future.cancelled():
                return False
            outcome = TaskOutcome(problem=_text(future)) if future.status == "error" else _value(future)
            if outcome is None:
                continue
            job.future = None
            if outcome.answer is None:
                job.status, job.reason = "error", outcome.problem
            else:
                job.answer = answer = outcome.answer
                found = answer.wrong or answer.unusable
                job.status = "wrong" if answer.wrong else "error" if answer.unusable else "ok"
                job.reason = f"{found[0]}" + (f", and {len(found) - 1} more" if len(found) > 1 else "") if found else ""
            self._tell_end(job)
        return True

    def _watch(self) -> bool:
        """Find workers that have ended and new ones where one is needed; return whether the scheduler is there."""
        now = time.monotonic()
        if now - self._called < _ROLL_CALL:
            return True
        self._called = now
        present = self._roll_call()
        if present is None:
            return False
        for member in self._members.values():
            if member.address not in present and member.ended is None:
                member.ended = now
                if member.looking is not None:
                    member.looking, member.problem = None, "it ended while its devices were looked for"
                self._say(f"worker {_names([member])} ended")
        for job in self._jobs:
            if job.status is None and job.member.ended is not None and job.member not in job.lost:
                job.lost.append(job.member)
                self._drop(job)
        orphans = [job for job in self._jobs if job.status is None and job.member.ended is not None]
        if orphans:
            for address in sorted(present - self._members.keys()):
                self._members[address] = self._ask(address)
            for job in orphans:
                self._move(job, now)
        return self._hear_views()

    def _move(self, job: _Job, now: float) -> None:
        """Give the task of a worker that ended to another one, or wait for one, or give it up."""
        if len(job.lost) >= _TRIES:
            job.status, job.reason = "missing", f"{_names(job.lost)} ended, one after the other"
            self._tell_end(job)
            return
        choices = [
            (sum(j.status is None and j.member is m for j in self._jobs), k, m, device)
            for k, m in enumerate(self._members.values()) if m.ended is None and m.view is not None and not m.problem
            for device in m.view.devices if device.key == job.device.key
        ]  # fmt: skip
        if choices:
            _, _, job.member, job.device = min(choices, key=lambda choice: choice[:2])
            self._say(f"{job.device.name}: tried again on {_names([job.member])}")
            return
        ended = job.member
        waited = now - (ended.ended or now)
        looking = any(m.looking is not None and m.ended is None for m in self._members.values())
        if not looking and not (ended.view is not None and ended.view.nanny and waited < RESTART_S):
            job.status, job.reason = "missing", "the worker ended, and no other one has such a device"
            self._tell_end(job)

    def _start(self) -> None:
        """Start the next task of each worker, or machine, that has none."""
        running = [job for job in self._jobs if job.status is None and job.future is not None]
        busy = {self._place(job) for job in running}
        for job in self._jobs:
            if job.status is None and job.future is None and job.member.ended is None and self._place(job) not in busy:
                busy.add(self._place(job))
                key = f"clrope-{self._task.what}-{uuid.uuid4().hex}"
                arguments = (self._task, job.device.index, self._topic, job.number)
                job.steps = 0
                job.future = self._client.submit(
                    run_task, *arguments, workers=[job.member.address], key=key, pure=False
                )

    def _place(self, job: _Job) -> str:
        view = job.member.view
        return view.machine if view is not None and self._task.measures else job.member.address

    def _drop(self, job: _Job) -> None:
        if job.future is not None:
            # Without a worker it would wait for ever.
            job.future.cancel()
            job.future = None

    def _roll_call(self) -> Any:
        """Return the addresses of the workers, None if the scheduler is gone."""
        if self._client.status != "running":
            return None
        try:
            return set(self._client.nthreads())
        except (OSError, TypeError, AttributeError):  # what it raises while the connection breaks
            return None

    def _give_up(self, address: str) -> None:
        open_jobs = [job for job in self._jobs if job.status is None]
        if len(open_jobs) == len(self._jobs):
            raise RopeError(f"--scheduler: {address} ended before a device had a result")
        for job in open_jobs:
            job.status, job.reason = "missing", "the scheduler ended"
            self._tell_end(job)

    def _heard(self, event: tuple[float, Any]) -> None:
        """Take a task's progress, in a thread of the client's."""
        number, done, total = event[1]
        if 0 <= number < len(self._jobs):
            self._jobs[number].steps = done
            self._total = max(self._total, total)
            self._tell_progress()

    def _tell_progress(self) -> None:
        done = sum(self._total if job.status else job.steps for job in self._jobs)
        self._progress(done, self._total * len(self._jobs))

    def _tell_end(self, job: _Job) -> None:
        entry = job.result()
        text = entry.status + (f", {entry.reason.splitlines()[0]}" if entry.reason else "")
        self._say(f"{entry.worker} {entry.host} {entry.device}: {text}")
        self._tell_progress()


def run_fleet(
    address: str,
    task: FleetTask,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> FleetResult:
    """Run a task on every device of the cluster of a scheduler and return the result.

    address: 'tcp://host:8786'. say, progress: as for `FleetRun`. Raises `RopeError` if the scheduler cannot be reached,
    has no workers, or ends before the first result.
    """
    with connect(address) as client:
        return FleetRun(client, task, say, progress).run()


def _names(members: list[_Member]) -> str:
    return " and ".join(f"{m.address} ({m.host})" if m.host else m.address for m in members)


def _value(future: Future[Any]) -> Any:
    """Return a result; None if its worker ended before it could be fetched."""
    if future.status != "finished":
        return None
    try:
        return future.result(timeout=FETCH_S)
    except (OSError, TimeoutError, asyncio.TimeoutError):
        return None


def _text(future: Future[Any]) -> str:
    error = future.exception()
    text = " ".join(str(error).split()) or "no message"
    missing = isinstance(error, ImportError) or "deserialization" in text
    return f"{type(error).__name__}: {text}" + (f"; {_SAME}" if missing else "")
