"""Acceptance of result files: one row a claim and device, met or not, with the figure.

Ratios are medians of the ratios within each round. The ratio of minima is given too: it shows what load hides.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from clrope.benchmark.report import Table, number
from clrope.benchmark.results import CALL_COMPARISONS, WorkloadRecord, records
from clrope.benchmark.samples import middle

from .shares import bound_against, bound_of_launches, copy_time, error_of_ceiling, of_arrays, windows_of_ceiling

#: Sizes from which the cost must be proportional to the bytes.
LINEAR_FROM = 4 << 20
MIB = 1 << 20
#: Peer, type, pairings (the worse one counts), how many times faster; prefill out of place, on the better device.
PEER_TARGETS: tuple[tuple[str, str, tuple[str, ...], float], ...] = (
    ("ggml", "f32", ("normal",), 1.3),
    ("ggml", "f32", ("neox",), 1.6),
    ("ggml", "f16", ("normal",), 5.0),
    ("ggml", "f16", ("neox",), 15.0),
    ("onnxruntime", "f32", ("normal", "neox"), 2.5),
    ("onnxruntime", "f16", ("normal", "neox"), 4.0),
    ("numba", "f32", ("normal", "neox"), 1.3),
    ("torch_compile", "f32", ("normal", "neox"), 15.0),
    ("torch_compile", "f16", ("normal", "neox"), 15.0),
    ("torch_compile", "bf16", ("normal", "neox"), 15.0),
)
#: Limits of the cost of calls: comparison, limit, limit on PoCL, unit.
CALL_LIMITS: tuple[tuple[str, float, float, str], ...] = (
    ("one-shot on NumPy / torch eager", 0.5, 1.5, "×"),
    ("one-shot on torch tensors / torch eager", 0.5, 1.5, "×"),
    ("one-shot on OpenCL arrays / ggml graph", 2, 6, "×"),
    ("plan.run(positions) / plan.run()", 1.3, 1.3, "×"),
    ("plan.run() / raw launch", 1.2, 1.2, "×"),
    ("one-shot on NumPy - plan.run(), a call", 15, 15, "µs"),
    ("new OpenCL array / out=", 1.1, 1.1, "×"),
)


@dataclass(frozen=True)
class Row:
    """A claim. figure: the worst measured figure; met: None without a measurement.

    bound: the figure of a kernel that only moves the bytes, or of bare launches, where the limit is not that figure.
    error: standard error of the figure, where turns were kept. machine: the CPU or GPU of the measurement.
    """

    claim: str
    device: str
    limit: str
    figure: float | None
    met: bool | None
    unit: str = "×"
    at: str = ""
    of_minima: float | None = None
    cases: int = 0
    bound: float | None = None
    error: float | None = None
    machine: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return asdict(self)

    @property
    def status(self) -> str:
        """Return 'met', 'NOT MET' or 'not measured'."""
        return "not measured" if self.met is None else "met" if self.met else "NOT MET"


@dataclass(frozen=True)
class _Found:
    value: float
    minimum: float
    at: str
    bound: float | None = None
    error: float | None = None


def by_machine(results: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return results by their CPU or, of GPUs alone, by these; the last measured first."""
    out: dict[str, list[int]] = {}
    for k in sorted(range(len(results)), key=lambda k: str(results[k]["started"]), reverse=True):
        devices = results[k]["devices"].values()
        gpus = bool(devices) and all(device["kind"] == "gpu" for device in devices)
        name = ", ".join(device["name"] for device in devices) if gpus else str(results[k]["environment"]["cpu"])
        out.setdefault(name, []).append(k)
    return {name: [results[k] for k in sorted(found)] for name, found in out.items()}


def check(results: Sequence[dict[str, Any]]) -> list[Row]:
    """Return all rows of each machine, in the order of the table of targets. Tiny runs are omitted."""
    known = by_machine([r for r in results if not r["options"]["tiny"]])
    return [replace(row, machine=cpu) for cpu, found in (known or {"": []}).items() for row in _check(found)]


def _check(results: Sequence[dict[str, Any]]) -> list[Row]:
    known = list(records(results))
    devices = list(dict.fromkeys(label for r in results for label in r["devices"]))
    rows: list[Row] = []
    forward = [r for r in known if r.direction == "forward" and not r.calls]
    prefill = [r for r in forward if r.family == "prefill"]
    plain = [r for r in prefill if r.mode in ("normal", "neox")]
    for device in devices:
        for place, top in (("out of", "best out-of-place ceiling"), ("in", "in-place ceiling")):
            for dtype, mode in itertools.product(("f32", "f16", "bf16"), ("normal", "neox")):
                chosen = [r for r in plain if (r.place, r.dtype, r.mode) == (place.split()[0], dtype, mode)]
                claim = f"prefill {dtype} {mode}, {place} place, of the {top}"
                rows.append(_row(claim, device, 0.95, _ceilings(chosen, device)))
    rows += _against_peers(plain, devices)
    for device in devices:
        for label, family in (("partial 64 of 128", "partial-64of128"), ("partial 20 of 80", "partial-20of80")):
            for place, text in (("out", "out of place"), ("in", "in place")):
                chosen = [r for r in forward if (r.family, r.place) == (family, place)]
                rows.append(_row(f"{label}, {text}, of the ceiling", device, 0.9, _ceilings(chosen, device)))
            # The ceiling for parts of rows stands next to the ceiling for contiguous bytes.
            rows.append(
                _row(f"{label}, in place, of scaling the same parts", device, 0.9, _ceilings(chosen, device, "windows"))
            )
        for label, chosen in (
            ("q and k together (GQA)", [r for r in forward if r.family == "gqa"]),
            ("mrope", [r for r in prefill if r.mode == "mrope"]),
            ("imrope", [r for r in prefill if r.mode == "imrope"]),
        ):
            rows.append(_row(f"{label}, of the ceiling", device, 0.9, _ceilings(chosen, device)))
    outside = [r for r in plain if r.place == "out"]
    for family, text in (("decode-1", "one sequence"), ("decode-64", "64 sequences")):
        decode = [r for r in forward if r.family == family]
        claim = f"decode of {text}, plan.run(), times a raw empty launch"
        rows += [_row(claim, device, 1.5, _launches(decode, device), most=True) for device in devices]
    for device in devices:
        if _any(results, device, lambda d: d["host_unified"]):
            for name, text in (("numpy out=", "result array given"), ("numpy new", "new result array")):
                claim = f"NumPy in and out, {text}, times device-resident"
                rows.append(_row(claim, device, 1.1, _hosts(outside, device, name), most=True))
    rows += [_calls(known, device, *limit) for limit in CALL_LIMITS for device in devices]
    rows += _processes(results)
    rows += [_linear([r for r in known if r.family.startswith("size-")], device) for device in devices]
    for device in devices:
        if _any(results, device, lambda d: d["kind"] == "gpu"):
            rows.append(_row("GPU, prefill, of its copy kernel", device, 0.9, _copies(outside, device)))
    return rows


def _any(results: Iterable[dict[str, Any]], device: str, holds: Callable[[dict[str, Any]], bool]) -> bool:
    return any(device in r["devices"] and holds(r["devices"][device]) for r in results)


def _row(claim: str, device: str, limit: float, found: Iterable[_Found], *, most: bool = False, unit: str = "×") -> Row:
    """Return the row of the worst of what was found: the smallest against a least value, or the largest (most)."""
    seen = sorted(found, key=lambda f: f.value, reverse=most)
    text = f"{'≤' if most else '≥'} {limit:g}"
    if not seen:
        return Row(claim, device, text, None, None, unit)
    worst = seen[0]
    met = worst.value <= limit if most else worst.value >= limit
    return Row(
        claim, device, text, worst.value, met, unit, worst.at, worst.minimum, len(seen), worst.bound, worst.error
    )


def _found(
    chosen: Iterable[WorkloadRecord],
    value: Callable[[WorkloadRecord, str], float | None],
    bound: Callable[[WorkloadRecord], float | None] = lambda record: None,
    error: Callable[[WorkloadRecord], float | None] = lambda record: None,
) -> list[_Found]:
    """Return the value of each workload by medians and by minima, where there is one.

    Of a workload that was measured several times it is the middle one (of two the lower).
    """
    out: dict[str, list[_Found]] = {}
    for record in chosen:
        median, minimum = value(record, "median"), value(record, "min")
        if median is not None and minimum is not None:
            found = _Found(median, minimum, record.name, bound(record), error(record))
            out.setdefault(record.name, []).append(found)
    return [middle(same, lambda found: found.value) for same in out.values()]


def _ceilings(chosen: Iterable[WorkloadRecord], device: str, name: str | None = None) -> list[_Found]:
    def bound(record: WorkloadRecord) -> float | None:
        return windows_of_ceiling(record, device) if name is None else None

    return _found(
        chosen,
        lambda record, statistic: record.of_ceiling(device, statistic, name),
        bound,
        lambda record: error_of_ceiling(record, device, name),
    )


def _against_peers(plain: Sequence[WorkloadRecord], devices: Sequence[str]) -> list[Row]:
    rows = []
    for peer, dtype, modes, limit in PEER_TARGETS:
        worst: tuple[_Found, str] | None = None
        for mode in modes:
            chosen = [r for r in plain if (r.place, r.dtype, r.mode) == ("out", dtype, mode)]
            both = [(found, device) for device in devices for found in _against(chosen, peer, device)]
            # The better of the devices counts, and the worse of the pairings.
            best = max(both, key=lambda entry: entry[0].value, default=None)
            if best is not None and (worst is None or best[0].value < worst[0].value):
                worst = best
        claim = f"prefill {dtype} {' and '.join(modes)}, faster than {peer}"
        rows.append(_row(claim, worst[1] if worst else "best", limit, [worst[0]] if worst else []))
    return rows


def _against(chosen: Iterable[WorkloadRecord], peer: str, device: str) -> list[_Found]:
    return _found(
        chosen,
        lambda record, statistic: record.against(peer, device, statistic),
        lambda record: bound_against(record, peer, device),
    )


def _launches(decode: Iterable[WorkloadRecord], device: str) -> list[_Found]:
    return _found(
        decode,
        lambda record, statistic: record.launches(device, statistic),
        lambda record: bound_of_launches(record, device),
    )


def _hosts(chosen: Iterable[WorkloadRecord], device: str, name: str) -> list[_Found]:
    return _found(chosen, lambda record, statistic: of_arrays(record, device, name, statistic))


def _copies(chosen: Iterable[WorkloadRecord], device: str) -> list[_Found]:
    return _found(chosen, lambda record, statistic: record.of_ceiling(device, statistic, "copy"))


def _calls(known: Sequence[WorkloadRecord], device: str, name: str, limit: float, on_pocl: float, unit: str) -> Row:
    (comparison,) = (c for c in CALL_COMPARISONS if c.name == name)
    found = _found(
        [r for r in known if r.calls and not r.workload.get("cold")],
        lambda record, statistic: record.compared(comparison, device, statistic),
        lambda record: record.least_of(comparison, device),
    )
    claim = f"{'prefill' if comparison.over == 'new array' else 'decode step'}: {name}"
    return _row(claim, device, on_pocl if device.startswith("pocl") else limit, found, most=True, unit=unit)


def _processes(results: Iterable[dict[str, Any]]) -> list[Row]:
    rows = []
    for result in results:
        for entry in result["processes"]:
            device, found = entry["device"], []
            if entry["kind"] == "first call":
                # Intel's runtime is a quarter of a gigabyte of libraries to load.
                limit = 1.0 if "intel" in result["devices"][device]["platform"].lower() else 0.5
                if entry["status"] == "ok":
                    inside = entry["inside"]
                    found = [_Found(inside["median"] / 1e9, inside["min"] / 1e9, "imports included")]
                rows.append(_row("first call in a new process", device, limit, found, most=True, unit="s"))
            else:
                if entry["status"] == "ok":
                    beyond = (entry["extra_bytes"] - entry["output_bytes"]) / MIB
                    found = [_Found(beyond, beyond, "[1, 4096, 32, 128] f32, new result array")]
                rows.append(_row("peak host memory beyond the output", device, 8, found, most=True, unit="MiB"))
    return rows


def _linear(sizes: Sequence[WorkloadRecord], device: str) -> Row:
    sizes = [r for r in sizes if r.workload["tensor_bytes"] >= LINEAR_FROM]

    def off(taken: Callable[[WorkloadRecord], float | None]) -> tuple[float, str] | None:
        times = [(float(record.workload["tensor_bytes"]), taken(record), record.name) for record in sizes]
        return off_line([(size, time, name) for size, time, name in times if time is not None])

    def in_copies(record: WorkloadRecord, statistic: str) -> float | None:
        share = record.of_ceiling(device, statistic)
        return record.workload["bytes_moved"] / share if share else None

    # A shared machine changes its memory speed between sizes: the unit is the time of copying a byte in each round.
    # The bound is the time of copying, which includes the change of speed.
    median, minimum = off(lambda r: in_copies(r, "median")), off(lambda r: in_copies(r, "min"))
    copying = off(lambda r: copy_time(r, device))
    found = [_Found(median[0], minimum[0], median[1], copying[0] if copying else None)] if median and minimum else []
    return _row(
        "cost against bytes above 4 MiB, in copies of a byte, off a straight line", device, 0.15, found, most=True
    )


def off_line(points: Sequence[tuple[float, float, str]]) -> tuple[float, str] | None:
    """Return the largest relative distance of (size, time, name) from a line, and the name; None of less than 3.

    The line is the one with the least squares of relative distances, so that small sizes count as much as large ones.
    """
    if len(points) < 3:
        return None
    size, taken = np.array([p[0] for p in points]), np.array([p[1] for p in points])
    matrix = np.stack([1 / taken, size / taken], axis=1)
    start, slope = np.linalg.lstsq(matrix, np.ones(len(points)), rcond=None)[0]
    distance = np.abs((start + slope * size) / taken - 1)
    worst = int(np.argmax(distance))
    return float(distance[worst]), points[worst][2]


def target_table(rows: Sequence[Row]) -> Table:
    """Return the checked rows."""
    several = len({row.machine for row in rows}) > 1
    return Table(
        "Targets",
        ("claim", "device", "#limit", "#figure", "#±", "#by minima", "#of mere moving or launching", "", "worst at"),
        tuple(
            (
                row.claim,
                f"{row.device}, {row.machine}" if several else row.device,
                row.limit,
                number(row.figure, row.unit),
                "" if row.error is None else f"{row.error:.2f}",
                number(row.of_minima, row.unit),
                number(row.bound, row.unit) if row.bound else "",
                row.status,
                row.at,
            )
            for row in rows
        ),
    )


def figures_table(rows: Sequence[Row]) -> Table:
    """Return the figures of the rows with a column a device; in brackets those of mere moving or launching."""
    devices = list(dict.fromkeys(row.device for row in rows))
    claims: dict[str, dict[str, str]] = {}
    for row in rows:
        bound = f" ({number(row.bound, row.unit)})" if row.bound else ""
        claims.setdefault(row.claim, {})[row.device] = number(row.figure, row.unit) + bound
    return Table(
        "",
        ("measurement", *(f"#{device}" for device in devices)),
        tuple((claim, *(found.get(d, "") for d in devices)) for claim, found in claims.items()),
        marked=True,
    )


def machine_section(cpu: str, rows: Sequence[Row]) -> str:
    """Return the Markdown of one machine's figures, without claims that no device there was measured for."""
    claims = {row.claim for row in rows if row.met is not None}
    return f"\n### {cpu}\n\n{figures_table([row for row in rows if row.claim in claims]).markdown()}"
