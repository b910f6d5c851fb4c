"""A Dask cluster of processes on 127.0.0.1: a scheduler, and workers that are each told a device."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distributed import Client

ROOT = Path(__file__).parents[2]
#: Seconds after which something counts as hanging. No verdict depends on how long a thing takes.
HANGING = 600
LOCAL = ("--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0")


class Processes:
    """The processes of a cluster; all are ended with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.started: list[subprocess.Popen[Any]] = []
        self.workers: dict[str, subprocess.Popen[Any]] = {}
        file = folder / "scheduler.json"
        self.scheduler = self._start("scheduler", "--port", "0", "--scheduler-file", file)
        wait_for(file.exists, "the scheduler's file")
        with Client(scheduler_file=str(file), set_as_default=False) as client:
            self.address = client.scheduler.address

    def _start(self, what: str, *words: object, **variables: str) -> subprocess.Popen[Any]:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with (self._folder / f"{what}-{len(self.started)}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", what, *LOCAL, *map(str, words)],
                stdout=log, stderr=subprocess.STDOUT, cwd=self._folder,
                env={**os.environ, "PYTHONPATH": path, **variables},
                start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    def add(self, name: str, device: str, *words: object, nanny: bool = False) -> None:
        """Start a worker of that name, told to use a device."""
        keeper = "--nanny" if nanny else "--no-nanny"
        folder = ("--local-directory", self._folder / "space")
        self.workers[name] = self._start(
            "worker", self.address, keeper, "--nthreads", "2", "--name", name, *folder, *words, CLROPE_DEVICE=device
        )

    def names(self) -> dict[str, str]:
        """Wait until all workers are there; return their addresses by name."""
        with Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(len(self.workers), timeout=HANGING)
            return {w["name"]: address for address, w in client.scheduler_info()["workers"].items()}

    def tasks(self, prefix: str) -> set[str]:
        """Return the addresses of workers that have a task whose key begins so."""
        with Client(self.address, set_as_default=False) as client:
            return {address for address, keys in client.processing().items() if str(keys).find(prefix) >= 0}

    def end(self) -> None:
        """End everything that was started."""
        for process in reversed(self.started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(HANGING)


def wait_for(done: Any, what: str) -> None:
    """Wait until it is true."""
    end = time.monotonic() + HANGING
    while not done():
        assert time.monotonic() < end, f"{what}: never came"
        time.sleep(0.05)


def children(pid: int) -> Iterator[int]:
    """Yield the processes that a process started."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                yield int(stat.parent.name)
