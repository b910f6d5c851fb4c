"""One run: the entries of every workload are prepared, checked, and timed interleaved."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from zlib import crc32

from ..call.runtime import context_for
from ..device import DeviceInfo
from ..device.info import usable_cpus
from ..device.select import ALIASES
from ..errors import ConfigError, DeviceError, RopeError, UnsupportedError
from ..machine_load import OthersLoad
from . import calls, processes
from .audit import OutputCheck, clocks_disagree, too_fast
from .buffers import DeviceSets, HostSets, Inputs, aligned, block_bytes, make_inputs, sides
from .ceilings import Ceilings, host_copy
from .clpeak import clpeak
from .entry import BenchmarkEntry, Kind, Refused, WrongResultError, calibrate, failure, rounds
from .environment import describe, environment, load
from .peers import BenchmarkPeer, Prepared, peer_entry, peers, task_of
from .results import SCHEMA
from .subject import on_device, on_host
from .validation import ResultCheck
from .workloads import Workload

if TYPE_CHECKING:
    import pyopencl

    from ..kernels.kernel import Kernel
    from ..kernels.variant import Variant

#: A ceiling that takes more times the best ceiling's time in the warm-up has only as many turns as peers.
HOPELESS = 1.4
#: The options in a result; `samples` only where it is true.
TOLD = ("rounds", "peer_rounds", "repeats", "call_rounds", "calls", "latency_calls", "threads", "seed", "tiny")
#: Called with the number of workloads done, the number of all, and the name of the next.
Progress = Callable[[int, int, str], None]
#: Called with what is done next, and the share of a workload's turns that are done.
Doing = Callable[[str, float], None]


@dataclass(frozen=True)
class Options:
    """How much is measured.

    peer_rounds:  the most rounds for peers, the host's copy, and ceilings far from the best.
    repeats:      measurements of each workload, with new buffers each time: their addresses matter.
    call_rounds:  rounds of the workloads that measure the cost of calls; each entry is timed once a round.
    calls, latency_calls: the most calls in a row, for workloads of bytes a second and of time a call.
    peers:        names; none for all that are installed. threads: of the peers; 0: one for each usable processor.
    tiny:         short axes, for a trial without meaningful figures. processes: also measure first calls and memory.
    others:       kernels of users, and variants, by name, to be measured as the chosen variant is.
    needed:       names of these; where none of them can do a workload, nothing else is measured, either.
    sources:      hashes of the users' kernels, by the same names.
    samples:      keep the time of every call, not only the medians of turns.
    clpeak:       measure each device by the program clpeak, too, if it is installed.
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
    others: Mapping[str, Kernel | Variant] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    samples: bool = False
    clpeak: bool = False

    def __post_init__(self) -> None:
        for name in TOLD[:6]:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: got {getattr(self, name)}, the least allowed is 1")


@dataclass(eq=False)
class Bench:
    """A device with its queues (one that profiles, one that does not) and its ceilings."""

    device: DeviceInfo
    label: str
    plain: pyopencl.CommandQueue
    profiled: pyopencl.CommandQueue
    ceilings: Ceilings


def labels(devices: Sequence[DeviceInfo]) -> list[str]:
    """Return unique short names of devices: 'pocl', 'intel', ..., then 'pocl-2'."""
    out: list[str] = []
    for device in devices:
        known = [alias for alias, text in ALIASES.items() if text in device.platform.lower()]
        base = known[0] if known else device.platform.split()[0].lower()
        taken = sum(1 for label in out if label == base or label.startswith(f"{base}-"))
        out.append(f"{base}-{taken + 1}" if taken else base)
    return out


def open_bench(device: DeviceInfo, label: str) -> Bench:
    """Return queues of the device's context, and ceilings without measurements. Raises `DeviceError`."""
    import pyopencl as cl

    context = context_for(device)
    try:
        plain = cl.CommandQueue(context, device.cl_device)
        profiled = cl.CommandQueue(context, device.cl_device, properties=cl.command_queue_properties.PROFILING_ENABLE)
    except cl.Error as error:
        raise DeviceError(f"device {device.name!r}: no command queue could be made: {error}") from error
    return Bench(device, label, plain, profiled, Ceilings(device, profiled, label))


class Watcher:
    """What a run tells while it goes on. These methods do nothing; they are called only between turns."""

    def begins(self, done: int, total: int, what: str) -> None:
        """Hear the number of workloads done, the number of all, and the name of the next; '' at the end."""

    def doing(self, what: str, share: float) -> None:
        """Hear what is done next, and the share of the workload's turns that are done, from 0 to 1."""

    def measured(self, record: dict[str, Any]) -> None:
        """Hear the record of a workload that is complete."""


@dataclass(frozen=True)
class _ByProgress(Watcher):
    """Tells a function what begins."""

    progress: Progress

    def begins(self, done: int, total: int, what: str) -> None:
        self.progress(done, total, what)


class BenchRun:
    """A run whose result can be asked for at any time, so that an interrupted one keeps what it measured.

    earlier: the unfinished result that this run continues; its records are kept (`resume.py` says whether they fit).
    """

    def __init__(
        self,
        workloads: Sequence[Workload],
        devices: Sequence[DeviceInfo],
        options: Options = Options(),
        earlier: dict[str, Any] | None = None,
    ) -> None:
        self.options = replace(options, threads=options.threads or usable_cpus())
        chosen = peers(options.peers) if options.with_peers else []
        self.versions = {peer.name: peer.version() for peer in chosen}
        self._present = [peer for peer in chosen if self.versions[peer.name] is not None]
        self._benches = [open_bench(d, label) for d, label in zip(devices, labels(devices), strict=True)]
        self._turns = [(workload, k) for workload in workloads for k in range(options.repeats)]
        outside = [(measured, b) for b in self._benches for measured in (processes.first_call, processes.peak_memory)]
        self._outside = outside if options.processes else []
        self._started = datetime.now(timezone.utc)
        self.environment = environment() | {"load_before": load()}
        self._others = OthersLoad()
        self.environment["kernels"] |= dict(options.sources)
        self._earlier = earlier or {}
        self.devices = {bench.label: self._described(bench) for bench in self._benches}
        self.records: list[dict[str, Any]] = list(self._earlier.get("workloads", ()))
        self.found: list[dict[str, Any]] = list(self._earlier.get("processes", ()))

    def _described(self, bench: Bench) -> dict[str, Any]:
        before = self._earlier.get("devices", {}).get(bench.label, {})
        return describe(bench.device) | {name: before[name] for name in ("clpeak_gbs", "clpeak") if name in before}

    @property
    def _left(self) -> list[tuple[Workload, int]]:
        done = Counter(record["name"] for record in self.records)
        return [(workload, k) for workload, k in self._turns if k >= done[workload.name]]

    @property
    def _left_outside(self) -> list[tuple[Callable[..., dict[str, Any]], Bench]]:
        done = {(p["kind"], p["device"]) for p in self.found}
        return [(m, bench) for m, bench in self._outside if (m.__name__.replace("_", " "), bench.label) not in done]

    @property
    def missing(self) -> list[str]:
        """Names of the workloads that are not measured, each once; then of what is measured in new processes."""
        outside = [f"{measured.__name__.replace('_', ' ')} {bench.label}" for measured, bench in self._left_outside]
        return [*dict.fromkeys(workload.name for workload, _ in self._left), *outside]

    def measure_all(self, watcher: Watcher) -> None:
        """Measure what is missing."""
        total = len(self._turns) + len(self._outside)
        for bench in self._benches if self.options.clpeak else ():
            if "clpeak" not in self.devices[bench.label]:
                watcher.begins(len(self.records) + len(self.found), total, f"clpeak {bench.label}")
                self.devices[bench.label] |= clpeak(bench.device)
        for workload, k in self._left:
            watcher.begins(len(self.records), total, workload.name)
            # A seed for each: the order of entries differs between workloads and repeats.
            given = replace(self.options, seed=(self.options.seed + k) ^ crc32(workload.name.encode()))
            chosen = workload.tiny() if self.options.tiny else workload
            record = measure(chosen, self._benches, self._present, given, watcher.doing)
            self.records.append(record)
            watcher.measured(record)
            gc.collect()
        for measured, bench in self._left_outside:
            watcher.begins(len(self.records) + len(self.found), total, f"{measured.__name__} {bench.label}")
            self.found.append(measured(bench.device.index, bench.label))
        watcher.begins(total, total, "")

    def result(self) -> dict[str, Any]:
        """Return what is measured until now, in the form of `results.schema.json`, and what is missing."""
        missing = self.missing
        seconds = (datetime.now(timezone.utc) - self._started).total_seconds()
        earlier = self._earlier.get("environment", {})
        before = earlier.get("load_before", self.environment["load_before"])
        busy = max((share for share in (earlier.get("busy"), self._others.share()) if share is not None), default=None)
        return {
            "schema": SCHEMA,
            "started": self._earlier.get("started", self._started.isoformat(timespec="seconds")),
            "seconds": round(self._earlier.get("seconds", 0) + seconds, 1),
            "options": {name: getattr(self.options, name) for name in TOLD}
            | {"peer_rounds": min(self.options.rounds, self.options.peer_rounds)}
            | ({"samples": True} if self.options.samples else {}),
            "environment": self.environment | {"load_before": before, "load_after": load(), "busy": busy},
            "devices": self.devices,
            "peers": self.versions,
            "workloads": list(self.records),
            "processes": list(self.found),
        } | ({"missing": missing} if missing else {})


def run(
    workloads: Sequence[Workload],
    devices: Sequence[DeviceInfo],
    options: Options = Options(),
    progress: Progress = lambda done, total, following: None,
) -> dict[str, Any]:
    """Measure and return the result, in the form of `results.schema.json`."""
    made = BenchRun(workloads, devices, options)
    made.measure_all(_ByProgress(progress))
    return made.result()


def measure(
    workload: Workload,
    benches: Sequence[Bench],
    present: Sequence[BenchmarkPeer],
    options: Options,
    doing: Doing = lambda what, share: None,
) -> dict[str, Any]:
    """Return the record of one workload: its entries, the number of buffer sets, the load.

    doing: called some times a second with what is done next, and the share of the turns that are done; a kernel that
    never ends is known by it.
    """
    record: dict[str, Any] = {"name": workload.name} | workload.to_dict() | {"load": load()}
    begun = time.perf_counter()
    made = _Entries(workload, benches, present, options, doing)
    make = {"": made.with_sets, "new": made.with_new_results, "step": made.with_steps, "one-shot": made.with_one_shot}
    record |= make[workload.calls]()
    in_a_row = 1 if "rounds" in record else options.latency_calls if workload.latency else options.calls
    for entry in made.timed:
        calibrate(entry, in_a_row)
    for entry in made.timed if not workload.calls else ():
        # Where a call takes no longer than waking threads, a slow ceiling may be the best one the next time.
        if entry.kind in ("peer", "host") or (not workload.latency and hopeless(entry, made.timed)):
            entry.most_turns = options.peer_rounds
    doing(f"timing {workload.name}", 0.0)
    count = record.get("rounds", options.rounds)
    rounds(made.timed, count, options.seed, turned=lambda share: doing(f"timing {workload.name}", share))
    made.leave_out_impossible()
    for prepared in made.prepared:
        if prepared.close is not None:
            prepared.close()
    record["entries"] = [entry.to_dict(options.samples) for entry in made.timed] + made.failures
    record["seconds"] = round(time.perf_counter() - begun, 1)
    return record


def hopeless(ceiling: BenchmarkEntry, entries: Sequence[BenchmarkEntry]) -> bool:
    """Whether a way of copying is so much slower than another on its device that it will not be the ceiling."""
    if ceiling.kind != "ceiling" or not ceiling.bytes:
        return False
    others = [c for c in entries if (c.kind, c.device) == ("ceiling", ceiling.device)]
    # Parts of rows are compared with parts of rows.
    rates = [c.bytes / max(1, c.took) for c in others if (c.name == "windows") == (ceiling.name == "windows")]
    return ceiling.bytes / max(1, ceiling.took) < max(rates) / HOPELESS


@dataclass(eq=False)
class _Entries:
    """The entries of a workload: those to time, the records of the others, and peers to close."""

    workload: Workload
    benches: Sequence[Bench]
    present: Sequence[BenchmarkPeer]
    options: Options
    doing: Doing
    timed: list[BenchmarkEntry] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    prepared: list[Prepared] = field(default_factory=list)

    @contextmanager
    def _attempt(self, kind: Kind, name: str, label: str | None = None) -> Iterator[None]:
        """Record why an entry is not timed; a peer's code may raise anything."""
        import pyopencl as cl

        try:
            yield
        except WrongResultError as error:
            self.failures.append(failure(kind, name, "wrong", str(error), label))
        except (Refused, UnsupportedError) as error:
            self.failures.append(failure(kind, name, "refused", str(error), label))
        except Exception as error:
            if kind != "peer" and not isinstance(error, (RopeError, cl.Error)):
                raise
            text = str(error).strip().splitlines()
            line = f"{type(error).__name__}: {text[0][:300] if text else ''}"
            self.failures.append(failure(kind, name, "error", line, label))

    def _take(self, entries: Iterable[BenchmarkEntry], sets: DeviceSets | HostSets | None = None) -> None:
        """Keep each entry if its result is right, else the reason. sets: the memory of its calls."""
        for entry in entries:
            if sets is not None:
                entry.cursor = sets.cursor
            with self._attempt(entry.kind, entry.name, entry.device):
                entry.nmse = entry.check()
                self.timed.append(entry)

    def _take_peers(
        self,
        make: Callable[[BenchmarkPeer], Sequence[tuple[BenchmarkEntry, Prepared]]],
        host: HostSets | None = None,
    ) -> None:
        for peer in self.present:
            with self._attempt("peer", peer.name):
                made = make(peer)
                self.prepared += [prepared for _, prepared in made]
                self._take([entry for entry, _ in made], host)

    def leave_out_impossible(self) -> None:
        """Make failures of the entries whose timed calls were wrong, or faster than is possible."""
        for entry in list(self.timed):
            reason = entry.problem
            if entry.audit is not None:
                reason = reason or too_fast(entry, self.timed) or clocks_disagree(entry, self.timed)
            if reason:
                self.timed.remove(entry)
                self.failures.append(failure(entry.kind, entry.name, "wrong", reason, entry.device))

    def with_new_results(self) -> dict[str, int]:
        """Make the entries with new arrays for results; return fields of the record."""
        inputs = make_inputs(self.workload, self.options.seed)
        validate = ResultCheck(inputs, self.options.seed)
        for bench in self.benches:
            with self._attempt("clrope", "new array", bench.label):
                sets = DeviceSets(bench.plain, bench.device, inputs)
                self._take(calls.new_result_entries(sets, validate, bench.label))
        return {"sets": 1, "rounds": self.options.call_rounds}

    def with_steps(self) -> dict[str, int]:
        """Make the entries of a decode step; return fields of the record."""
        step = calls.make_step(self.workload, self.options.seed)
        for bench in self.benches:
            with self._attempt("clrope", "plan.run()", bench.label):
                self._take(calls.host_entries(step, bench.device, bench.label))
                self._take(calls.array_entries(step, bench.plain, bench.label))
                self._take(calls.raw_entries(step, bench.device, bench.plain, bench.label))
            with self._attempt("clrope", "rope torch", bench.label):
                self._take([calls.torch_entry(step, bench.device, bench.label)])
        self._take_peers(lambda peer: calls.peer_entries(peer, step, self.options.threads))
        read = calls.read_other_memory() if self.workload.cold else None
        for entry in self.timed:
            entry.before = read
        return {"sets": 1, "rounds": self.options.call_rounds}

    def with_one_shot(self) -> dict[str, int]:
        """Make the entries of one-shot calls on NumPy arrays; return fields of the record."""
        step = calls.one_shot_step(self.workload, self.options.seed)
        block = aligned(block_bytes(self.workload))
        self._take([host_copy([block], [aligned(block.size)])])
        for bench in self.benches:
            with self._attempt("clrope", "numpy new", bench.label):
                self._take(calls.one_shot_entries(step, bench.device, bench.label))
        self._take_peers(lambda peer: calls.peer_entries(peer, step, self.options.threads))
        return {"sets": 1}

    def with_sets(self) -> dict[str, int]:
        """Make the entries that go through sets of buffers; return fields of the record."""
        workload, inputs = self.workload, make_inputs(self.workload, self.options.seed)
        validate = ResultCheck(inputs, self.options.seed)
        for bench in self.benches:
            with self._attempt("clrope", "arrays", bench.label):
                self._on_device(bench, inputs, validate)
        out = {}
        if workload.host or (workload.peers and self.present):
            host = HostSets(inputs)
            out["host_sets"] = host.count
            if not workload.in_place and not workload.latency:
                self._take([host_copy(host.x_blocks, host.y_blocks)], host)
            for bench in self.benches if workload.host else ():
                with self._attempt("clrope", "numpy", bench.label):
                    self._take(on_host(host, bench.plain, validate, bench.label), host)
            if workload.peers:
                task = task_of(host, self.options.threads)
                self._take_peers(lambda peer: [peer_entry(peer, host, task, validate)], host)
        return out | {"sets": max((c.sets for c in self.timed if c.kind == "clrope"), default=0)}

    def _on_device(self, bench: Bench, inputs: Inputs, validate: ResultCheck) -> None:
        workload, label, device = self.workload, bench.label, bench.device
        size, both = block_bytes(workload), sides(workload) * block_bytes(workload)
        if size > device.max_alloc:
            raise Refused(f"a block of {size} bytes is more than the device's largest allocation, {device.max_alloc}")
        if both > 0.6 * device.global_mem:
            raise Refused(f"{both} bytes do not fit the device's memory of {device.global_mem}")
        # Profiling takes little time next to moving megabytes, and much next to an empty launch.
        sets = DeviceSets(bench.plain if workload.latency else bench.profiled, device, inputs)
        before = len(self.timed)
        seed = self.options.seed
        for number, (name, other) in enumerate(self.options.others.items(), 1):
            self.doing(f"checking {name} on {workload.name}", 0.0)
            with self._attempt("kernel", name, label):
                self._take([on_device(sets, bench.profiled, validate, label, other, name, seed + number)], sets)
        needed = self.options.needed
        if needed and not any(entry.name in needed for entry in self.timed[before:]):
            return
        with self._attempt("clrope", "arrays", label):
            self._take([on_device(sets, bench.profiled, validate, label, seed=seed)], sets)
        if workload.latency:
            self._take(bench.ceilings.launches(bench.plain, OutputCheck(sets)))
        ceilings, failed = bench.ceilings.entries(sets)
        self.failures += failed
        self._take(ceilings, sets)
        for entry in self.timed[before:] if workload.latency else ():
            entry.turn_group = label
