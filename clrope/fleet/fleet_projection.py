"""What a fleet of N devices would take, from measured times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..benchmark.results import WorkloadRecord, records
from ..errors import ConfigError
from ..portability.report_files import read_files


@dataclass(frozen=True)
class FleetProjection:
    """A projected time.

    device:  the name of the measured device, of which the fleet has `workers`.
    calls:   of the workload, for all tokens together; the most that one worker makes are `calls_of_one`.
    seconds: from the first call to the last, with the data in the workers' memory.
    shipped: the same with the data sent to the workers and back over one link; None without `link_gbs`.
    """

    device: str
    workload: str
    workers: int
    calls: int
    calls_of_one: int
    seconds: float
    shipped: float | None = None


def projection(
    source: str | Path,
    workers: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    tokens: int = 1_000_000,
    workload: str = "prefill/f16/neox/out/forward",
    link_gbs: float | None = None,
) -> list[FleetProjection]:
    """Return what fleets of so many equal devices take for a number of tokens, for each measured device.

    source:   a file of `clrope bench --json`, with or without --scheduler, or a device's summary in bench/results.
    tokens:   of one layer, in the workload's shape of heads. link_gbs: GB/s of the sender's network.

    It assumes that every device takes the measured median time, that a call of the workload is not divided, that no two
    devices share a memory, and that Dask's own time (about a millisecond a task) is hidden behind calls. With
    `link_gbs` nothing is sent while something is computed. Raises `ConfigError` for a file without such results.
    """
    for name, value in (("tokens", tokens), *(("workers", n) for n in workers)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name}: got {value!r}, an integer of at least 1 is needed")
    if link_gbs is not None and not 0 < link_gbs < float("inf"):
        raise ConfigError(f"link_gbs: got {link_gbs!r}, a positive number is needed")
    out = []
    found = list(records(_benches(Path(source))))
    for record, label, taken in _measured(found, workload):
        batch, seq = record.workload["tensors"][0][:2]
        calls = -(-tokens // (batch * seq))
        moved = 2 * calls * record.workload["tensor_bytes"]
        for count in workers:
            of_one = -(-calls // count)
            seconds = of_one * taken / 1e9
            shipped = None if link_gbs is None else seconds + moved / (link_gbs * 1e9)
            device = record.result["devices"][label]["name"]
            out.append(FleetProjection(device, workload, count, calls, of_one, seconds, shipped))
    if not out:
        names = ", ".join(sorted({r.name for r in found})) or "none"
        raise ConfigError(f"workload: {source} has no right result of {workload!r}; it has {names}")
    return out


def _measured(found: Sequence[WorkloadRecord], workload: str) -> Iterator[tuple[WorkloadRecord, str, float]]:
    """Yield the last measurement of each device: record, label, nanoseconds."""
    last: dict[str, tuple[WorkloadRecord, str, float]] = {}
    for record in found:
        for label in record.devices if record.name == workload else ():
            taken = record.own(label)
            if taken:
                last[record.result["devices"][label]["key"]] = record, label, taken
    yield from last.values()


def _benches(path: Path) -> list[dict[str, Any]]:
    """Return the results in a file of other people, whose fields have been checked."""
    found = read_files([str(path)])
    if found.unread:
        raise ConfigError(found.unread[0])
    if not found.benches:
        raise ConfigError(f"{path}: has no results of clrope bench")
    return found.benches
