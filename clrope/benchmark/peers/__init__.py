"""Other libraries that rotate. A peer is one file `<name>_peer.py` with `packages` and `prepare(task)`.

packages: the distributions that the peer needs. `prepare` returns a call on set i of the task's memory, or raises
`Refused`. The call writes the task's outputs, or returns what `read` turns into arrays. A peer with
`prepare_step(task)` also does the decode step of `calls.py`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import reference
from ...errors import ConfigError
from ..buffers import HostSets, check_sets
from ..entry import BenchmarkEntry, Refused, WrongResultError
from ..validation import ResultCheck
from ..workloads import Workload

#: Peers by the names of their files here.
NAMES = tuple(sorted(m.name.removesuffix("_peer") for m in pkgutil.iter_modules(__path__) if m.name.endswith("_peer")))


@dataclass(eq=False)
class Task:
    """The work of a peer: rotate the tensors x[i] into y[i] (the same tensors in place).

    cos, sin: float32 [rows, pairs]; backward, sin has the opposite sign. Token s of batch b has row `s`, or `b * S + s`
    if `rows_per_batch`.
    """

    workload: Workload
    positions: npt.NDArray[np.int64]
    cos: npt.NDArray[np.float32]
    sin: npt.NDArray[np.float32]
    rows_per_batch: bool
    x: Sequence[Sequence[npt.NDArray[Any]]]
    y: Sequence[Sequence[npt.NDArray[Any]]]
    threads: int

    @property
    def interleaved(self) -> bool:
        """Whether pairs are (2i, 2i + 1); otherwise (i, i + pairs)."""
        return self.workload.mode == "normal"

    @property
    def rotated(self) -> int:
        """Number of rotated elements of a head, the first ones."""
        return 2 * self.workload.config.n_pairs(None)

    def broadcast(self, table: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a table as [B or 1, S, 1, pairs]."""
        return table.reshape(-1, self.workload.tensors[0][1], 1, table.shape[1])


@dataclass(eq=False)
class Prepared:
    """A call, what turns its return value into arrays (None: they are in y[i]), and how to end its threads.

    suffix: follows the peer's name where it has several ways.
    """

    call: Callable[[int], Any]
    read: Callable[[Any], Sequence[npt.NDArray[Any]]] | None = None
    close: Callable[[], None] | None = None
    variant: str = ""
    suffix: str = ""


def no_step(task: Task) -> list[Prepared]:
    """Refuse a decode step."""
    raise Refused("does no decode step here")


@dataclass(frozen=True)
class BenchmarkPeer:
    """A peer by the name of its file."""

    name: str
    packages: Sequence[str]
    prepare: Callable[[Task], Prepared]
    prepare_step: Callable[[Task], list[Prepared]] = no_step

    def version(self) -> str | None:
        """Return the version of the first package, None if one is not installed."""
        try:
            versions = [importlib.metadata.version(name) for name in self.packages]
        except importlib.metadata.PackageNotFoundError:
            return None
        return versions[0]


def peers(names: Iterable[str] = ()) -> list[BenchmarkPeer]:
    """Return the peers of these names (none: all), installed or not; raise `ConfigError` for an unknown name."""
    chosen = list(names) or list(NAMES)
    for name in chosen:
        if name not in NAMES:
            raise ConfigError(f"peer: got {name!r}, allowed are {', '.join(NAMES)}")
    files = {name: vars(importlib.import_module(f"{__name__}.{name}_peer")) for name in NAMES if name in chosen}
    known = [field.name for field in fields(BenchmarkPeer)]
    return [BenchmarkPeer(name, **{k: v for k, v in file.items() if k in known}) for name, file in files.items()]


def task_of(sets: HostSets, threads: int) -> Task:
    """Return the task of a workload on sets of host memory."""
    workload = sets.inputs.workload
    positions, per_batch = workload.position_array(), workload.positions == "per batch"
    cos, sin = tables_of(workload, positions.reshape(-1) if per_batch else positions)
    return Task(workload, positions, cos, sin, per_batch, sets.x, sets.y, threads)


def tables_of(
    workload: Workload, positions: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return cos and sin of a task, rounded from the float64 reference."""
    cos, sin = reference.cos_sin(positions, workload.config)
    return cos.astype(np.float32), (sin if workload.forward else -sin).astype(np.float32)


def peer_entry(
    peer: BenchmarkPeer, sets: HostSets, task: Task, validate: ResultCheck
) -> tuple[BenchmarkEntry, Prepared]:
    """Return the peer as an entry with the checks of every entry; raise `Refused`."""
    prepared = peer.prepare(task)
    call, read = prepared.call, prepared.read

    def result(i: int) -> Sequence[npt.NDArray[Any]]:
        returned = call(i)
        got = sets.y[i] if read is None else read(returned)
        if len(got) != len(sets.y[i]):
            raise WrongResultError(f"{len(got)} results for {len(sets.y[i])} tensors")
        return got

    check = partial(check_sets, sets, result, validate)
    moved = sets.inputs.workload.bytes_moved
    return BenchmarkEntry("peer", peer.name, call, check, sets.count, moved, variant=prepared.variant), prepared
