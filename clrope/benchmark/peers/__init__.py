"""Other libraries that rotate: one file a peer (`<name>_peer.py`), each with `name`, `colour`, `version()` and
`prepare(task)`.

`version` returns None where the library is not installed, and imports nothing heavy. `prepare` returns a call on set i
of the task's memory, or `Refused` with the reason; the call writes the task's outputs, or returns what `read` turns
into arrays. A peer that has `prepare_step(task)` also does the decode step of `calls.py`. A new peer is a new file.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from ... import reference
from ...config import RopeConfig
from ...errors import ConfigError
from ..buffers import HostSets
from ..entry import BenchmarkEntry, Refused, WrongResultError
from ..validation import ResultCheck
from ..workloads import Workload

#: Peers by the names of their files here.
NAMES = tuple(sorted(m.name.removesuffix("_peer") for m in pkgutil.iter_modules(__path__) if m.name.endswith("_peer")))


@dataclass(eq=False)
class Task:
    """What a peer is to do: rotate the tensors x[i] into y[i] (the same ones in place).

    cos, sin: float32 [rows, pairs], backward already in the sign of sin; row of batch b, token s: `s`, or `b * S + s`
    if `rows_per_batch`. interleaved: pairs (2i, 2i + 1), otherwise (i, i + pairs); rotated: elements in pairs.
    """

    workload: Workload
    config: RopeConfig
    positions: npt.NDArray[np.int64]
    cos: npt.NDArray[np.float32]
    sin: npt.NDArray[np.float32]
    rows_per_batch: bool
    x: Sequence[Sequence[npt.NDArray[Any]]]
    y: Sequence[Sequence[npt.NDArray[Any]]]
    threads: int

    @property
    def interleaved(self) -> bool:
        """Whether pairs are neighbours."""
        return self.config.mode == "normal"

    @property
    def rotated(self) -> int:
        """Elements of a head that are in pairs, the first ones."""
        return 2 * self.config.n_pairs(None)

    def broadcast(self, table: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a table as [B or 1, S, 1, pairs]."""
        seq = self.workload.tensors[0][1]
        return table.reshape(-1, seq, 1, table.shape[1])


@dataclass(eq=False)
class Prepared:
    """A call, what turns its return value into arrays (None: they are in y[i]), and how to end its threads.

    suffix: behind the peer's name, where it has several ways.
    """

    call: Callable[[int], Any]
    read: Callable[[Any], Sequence[npt.NDArray[Any]]] | None = None
    close: Callable[[], None] | None = None
    variant: str = ""
    suffix: str = ""


class BenchmarkPeer(Protocol):
    """A file of this folder."""

    name: str
    #: In the figure.
    colour: str

    def version(self) -> str | None:
        """Return the library's version, None if it is not installed."""

    def prepare(self, task: Task) -> Prepared | Refused:
        """Return what to call."""


def installed(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def peers(names: Iterable[str] = ()) -> list[BenchmarkPeer]:
    """Return the peers of those names (none: all), installed or not; raise `ConfigError` for an unknown one."""
    chosen = list(names) or list(NAMES)
    for name in chosen:
        if name not in NAMES:
            raise ConfigError(f"peer: got {name!r}, allowed are {', '.join(NAMES)}")
    return [cast(BenchmarkPeer, importlib.import_module(f"{__name__}.{name}_peer")) for name in NAMES if name in chosen]


def task_of(sets: HostSets, threads: int) -> Task:
    """Return the task of a workload on sets of host memory; cos and sin come from the float64 reference."""
    workload = sets.inputs.workload
    positions = workload.position_array()
    per_batch = workload.positions == "per batch"
    cos, sin = reference.cos_sin(positions.reshape(-1) if per_batch else positions, workload.config)
    sign = 1 if workload.forward else -1
    return Task(
        workload, workload.config, positions, cos.astype(np.float32), (sign * sin).astype(np.float32), per_batch,
        sets.x, sets.y, threads,
    )  # fmt: skip


def peer_entry(
    peer: BenchmarkPeer, sets: HostSets, task: Task, validate: ResultCheck
) -> tuple[BenchmarkEntry, Prepared] | Refused:
    """Return the peer as an entry, checked like everything else."""
    prepared = peer.prepare(task)
    if isinstance(prepared, Refused):
        return prepared
    call, read = prepared.call, prepared.read

    def check() -> float:
        worst = 0.0
        for number in {0, sets.count - 1}:
            sets.reset(number)
            returned = call(number)
            got = sets.y[number] if read is None else read(returned)
            if len(got) != len(sets.y[number]):
                raise WrongResultError(f"{len(got)} results for {len(sets.y[number])} tensors")
            worst = max(worst, validate(got))
            sets.reset(number)
        return worst

    moved = sets.inputs.workload.bytes_moved
    made = BenchmarkEntry("peer", peer.name, call, check, sets.count, moved, variant=prepared.variant)
    return made, prepared
