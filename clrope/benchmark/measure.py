"""One run: for every workload, all entries are prepared, checked, and timed interleaved; what comes out is a result."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

from ..device import DeviceInfo
from ..device.select import ALIASES
from ..errors import ConfigError, RopeError
from ..runtime import context_for
from . import calls, processes
from .buffers import DeviceSets, HostSets, Inputs, block_bytes, make_inputs, sides, usable_cpus
from .ceilings import Ceilings, host_copy
from .entry import BenchmarkEntry, Refused, WrongResultError, calibrate, failure, rounds
from .environment import describe, environment, load
from .peers import BenchmarkPeer, Prepared, peer_entry, peers, task_of
from .results import SCHEMA
from .subject import on_device, on_host
from .validation import ResultCheck
from .workloads import Workload

if TYPE_CHECKING:
    import pyopencl

#: A ceiling that takes so many times as long as the best one in the warm-up has only the turns that peers have.
HOPELESS = 1.4
#: Called with the number of workloads done, how many there are, and what comes next.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Options:
    """How much is measured. calls: at most so many in a row a round; peers: names, none for all that are installed.

    repeats: times that each workload is measured, every time with buffers newly made: where they are placed matters.
    call_rounds: rounds of the workloads that say what a call costs, in which everything is timed once.
    peer_rounds: of the rounds, how many peers, the host's copy and ceilings that are far from the best are in at most
    tiny: short axes, everything is tried, no figure means anything. processes: also measure first calls and memory.
    """

    rounds: int = 9
    peer_rounds: int = 9
    repeats: int = 1
    call_rounds: int = 60
    calls: int = 5
    latency_calls: int = 100
    peers: tuple[str, ...] = ()
    with_peers: bool = True
    threads: int = 0
    seed: int = 0
    tiny: bool = False
    processes: bool = False

    def __post_init__(self) -> None:
        for name in ("rounds", "peer_rounds", "repeats", "call_rounds", "calls", "latency_calls"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: got {getattr(self, name)}, the least allowed is 1")


@dataclass(eq=False)
class Bench:
    """A device on the bench: its queues (one that takes times, one that does not) and its ceilings."""

    device: DeviceInfo
    label: str
    plain: pyopencl.CommandQueue
    profiled: pyopencl.CommandQueue
    ceilings: Ceilings


def labels(devices: Sequence[DeviceInfo]) -> list[str]:
    """Return short names of devices, all different: 'pocl', 'intel', ..., with a number from the second on."""
    out: list[str] = []
    for device in devices:
        known = [alias for alias, text in ALIASES.items() if text in device.platform.lower()]
        base = known[0] if known else device.platform.split()[0].lower()
        taken = sum(1 for label in out if label == base or label.startswith(f"{base}-"))
        out.append(f"{base}-{taken + 1}" if taken else base)
    return out


def open_bench(device: DeviceInfo, label: str) -> Bench:
    """Return queues of the device's own context, and nothing measured yet."""
    import pyopencl as cl

    context = context_for(device)
    plain = cl.CommandQueue(context, device.cl_device)
    profiled = cl.CommandQueue(context, device.cl_device, properties=cl.command_queue_properties.PROFILING_ENABLE)
    return Bench(device, label, plain, profiled, Ceilings(device, profiled, label))


def run(
    workloads: Sequence[Workload],
    devices: Sequence[DeviceInfo],
    options: Options = Options(),
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure and return the result, as `results.schema.json` describes it."""
    options = replace(options, threads=options.threads or usable_cpus())
    chosen = peers(options.peers) if options.with_peers else []
    versions = {peer.name: peer.version() for peer in chosen}
    present = [peer for peer in chosen if versions[peer.name] is not None]
    benches = [open_bench(d, label) for d, label in zip(devices, labels(devices), strict=True)]
    begun = load()
    started = datetime.now(timezone.utc)
    records: list[dict[str, Any]] = []
    # Each with orders of its own: what follows what shall not be the same in all of them.
    turns = [
        (workload, replace(options, seed=(options.seed + k) ^ crc32(workload.name.encode())))
        for workload in workloads
        for k in range(options.repeats)
    ]
    total = len(turns) + (2 * len(benches) if options.processes else 0)
    for number, (workload, given) in enumerate(turns):
        if progress is not None:
            progress(number, total, workload.name)
        records.append(measure(workload.tiny() if options.tiny else workload, benches, present, given))
        gc.collect()
    found: list[dict[str, Any]] = []
    if options.processes:
        for bench in benches:
            for what in (processes.first_call, processes.peak_memory):
                if progress is not None:
                    progress(len(turns) + len(found), total, f"{what.__name__} {bench.label}")
                found.append(what(bench.device.index, bench.label))
    if progress is not None:
        progress(total, total, "")
    return {
        "schema": SCHEMA,
        "started": started.isoformat(timespec="seconds"),
        "seconds": round((datetime.now(timezone.utc) - started).total_seconds(), 1),
        "options": {"rounds": options.rounds, "peer_rounds": min(options.rounds, options.peer_rounds),
                    "repeats": options.repeats, "call_rounds": options.call_rounds, "calls": options.calls,
                    "latency_calls": options.latency_calls, "threads": options.threads, "seed": options.seed,
                    "tiny": options.tiny},
        "environment": environment() | {"load_before": begun, "load_after": load()},
        "devices": {bench.label: describe(bench.device) for bench in benches},
        "peers": versions,
        "workloads": records,
        "processes": found,
    }  # fmt: skip


def measure(
    workload: Workload, benches: Sequence[Bench], present: Sequence[BenchmarkPeer], options: Options
) -> dict[str, Any]:
    """Return the record of one workload: its entries, the number of buffer sets, the load."""
    record: dict[str, Any] = {"name": workload.name} | workload.to_dict() | {"load": load()}
    begun = time.perf_counter()
    if workload.calls:
        gathering = _calls(workload, benches, present, options)
        for made in gathering.entries:
            calibrate(made, 1)
        record |= {"sets": 1, "rounds": options.call_rounds}
        return _timed(record, gathering, options.call_rounds, options.seed, begun)
    inputs = make_inputs(workload, options.seed)
    validate = ResultCheck(inputs, options.seed)
    gathering = _Gathering([], [], [])
    for bench in benches:
        _device_side(gathering, bench, inputs, validate)
    with_peers = workload.peers and bool(present)
    if with_peers or workload.host:
        host = HostSets(inputs)
        record["host_sets"] = host.count
        if not workload.in_place and not workload.latency:
            gathering.take(host_copy(host.x_blocks, host.y_blocks), host)
        if workload.host:
            for bench in benches:
                _host_side(gathering, bench, host, validate)
        if with_peers:
            task = task_of(host, options.threads)
            for peer in present:
                _peer_side(gathering, peer, host, task, validate)
    in_a_row = options.latency_calls if workload.latency else options.calls
    for made in gathering.entries:
        calibrate(made, in_a_row)
    for made in gathering.entries:
        # Where a call takes no longer than waking threads, one that was slow may not be so the next time.
        if made.kind in ("peer", "host") or (not workload.latency and hopeless(made, gathering.entries)):
            made.most_turns = options.peer_rounds
    record["sets"] = max((c.sets for c in gathering.entries if c.kind == "clrope"), default=0)
    return _timed(record, gathering, options.rounds, options.seed, begun)


def _timed(record: dict[str, Any], gathering: _Gathering, count: int, seed: int, begun: float) -> dict[str, Any]:
    rounds(gathering.entries, count, seed)
    for prepared in gathering.prepared:
        if prepared.close is not None:
            prepared.close()
    record["entries"] = [c.to_dict() for c in gathering.entries] + gathering.failures
    record["seconds"] = round(time.perf_counter() - begun, 1)
    return record


def _calls(
    workload: Workload, benches: Sequence[Bench], present: Sequence[BenchmarkPeer], options: Options
) -> _Gathering:
    import pyopencl as cl

    gathering = _Gathering([], [], [])
    if workload.calls == "new":
        inputs = make_inputs(workload, options.seed)
        validate = ResultCheck(inputs, options.seed)
        for bench in benches:
            try:
                for made in calls.new_result_entries(
                    DeviceSets(bench.plain, bench.device, inputs), validate, bench.label
                ):
                    gathering.take(made)
            except (RopeError, cl.Error) as error:
                gathering.failures.append(failure("clrope", "new array", "error", _line(error), bench.label))
        return gathering
    step = calls.make_step(workload, options.seed)
    for bench in benches:
        try:
            for made in (
                *calls.host_entries(step, bench.device, bench.label),
                *calls.array_entries(step, bench.plain, bench.label),
                *calls.raw_entries(step, bench.device, bench.plain, bench.label),
            ):
                gathering.take(made)
            on_torch = calls.torch_entry(step, bench.device, bench.label)
            if isinstance(on_torch, Refused):
                gathering.failures.append(failure("clrope", "rope torch", "refused", on_torch.reason, bench.label))
            else:
                gathering.take(on_torch)
        except (RopeError, cl.Error) as error:
            gathering.failures.append(failure("clrope", "plan.run()", "error", _line(error), bench.label))
    for peer in present:
        _peer(gathering, peer, partial(calls.peer_entries, peer, step, options.threads), None)
    return gathering


def hopeless(ceiling: BenchmarkEntry, entries: Sequence[BenchmarkEntry]) -> bool:
    """Whether a way of copying is so much slower than another one of its device that it will not be the ceiling."""
    if ceiling.kind != "ceiling" or not ceiling.bytes:
        return False
    others = [c for c in entries if (c.kind, c.device) == ("ceiling", ceiling.device)]
    # Parts of rows are compared by themselves.
    rates = [c.bytes / max(1, c.took) for c in others if (c.name == "windows") == (ceiling.name == "windows")]
    return ceiling.bytes / max(1, ceiling.took) < max(rates) / HOPELESS


@dataclass(eq=False)
class _Gathering:
    entries: list[BenchmarkEntry]
    failures: list[dict[str, Any]]
    prepared: list[Prepared]

    def take(self, made: BenchmarkEntry, sets: DeviceSets | HostSets | None = None) -> bool:
        """Keep an entry if its result is right, else the reason. sets: the memory it works on."""
        if sets is not None:
            made.cursor = sets.cursor
        try:
            made.nmse = made.check()
        except WrongResultError as error:
            self.failures.append(failure(made.kind, made.name, "wrong", str(error), made.device))
            return False
        self.entries.append(made)
        return True


def _device_side(gathering: _Gathering, bench: Bench, inputs: Inputs, validate: ResultCheck) -> None:
    import pyopencl as cl

    workload, label = inputs.workload, bench.label
    size = block_bytes(workload)
    reason = None
    if size > bench.device.max_alloc:
        reason = f"a block of {size} bytes is more than the device's largest allocation, {bench.device.max_alloc}"
    elif sides(workload) * size > 0.6 * bench.device.global_mem:
        reason = f"{sides(workload) * size} bytes do not fit the device's memory of {bench.device.global_mem}"
    if reason is not None:
        gathering.failures.append(failure("clrope", "arrays", "refused", reason, label))
        return
    try:
        # Taking times costs little compared with megabytes, and much with an empty launch.
        sets = DeviceSets(bench.plain if workload.latency else bench.profiled, bench.device, inputs)
        before = len(gathering.entries)
        gathering.take(on_device(sets, bench.profiled, validate, label), sets)
        if workload.latency:
            for made in bench.ceilings.launches(bench.plain):
                gathering.take(made)
        made_here, failed = bench.ceilings.entries(sets)
        gathering.failures += failed
        for made in made_here:
            gathering.take(made, sets)
        if workload.latency:
            for made in gathering.entries[before:]:
                made.turn_group = label
    except (RopeError, cl.Error) as error:
        gathering.failures.append(failure("clrope", "arrays", "error", _line(error), label))


def _host_side(gathering: _Gathering, bench: Bench, host: HostSets, validate: ResultCheck) -> None:
    import pyopencl as cl

    try:
        for made in on_host(host, bench.plain, validate, bench.label):
            gathering.take(made, host)
    except (RopeError, cl.Error) as error:
        gathering.failures.append(failure("clrope", "numpy", "error", _line(error), bench.label))


def _peer_side(gathering: _Gathering, peer: BenchmarkPeer, host: HostSets, task: Any, validate: ResultCheck) -> None:
    def make() -> list[tuple[BenchmarkEntry, Prepared]] | Refused:
        made = peer_entry(peer, host, task, validate)
        return made if isinstance(made, Refused) else [made]

    _peer(gathering, peer, make, host)


def _peer(
    gathering: _Gathering,
    peer: BenchmarkPeer,
    make: Callable[[], list[tuple[BenchmarkEntry, Prepared]] | Refused],
    host: HostSets | None,
) -> None:
    try:
        made = make()
        if isinstance(made, Refused):
            gathering.failures.append(failure("peer", peer.name, "refused", made.reason))
        else:
            gathering.prepared += [prepared for _, prepared in made]
            for entry, _ in made:
                gathering.take(entry, host)
    except Exception as error:  # other people's code: whatever it raises is the entry
        gathering.failures.append(failure("peer", peer.name, "error", _line(error)))


def _line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300] if text else ''}"
