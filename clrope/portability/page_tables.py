"""The tables of a page. Each row says where its numbers come from: file, run, workload and entries."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..benchmark.report import SHARES, number
from ..machine_load import BUSY, load_text
from .platforms import Platforms, short_cpu
from .portability_metric import OWN, Basis, Measurement, efficiencies, in_common, platforms_of, portability_of
from .report_figures import applications, solved_by
from .report_files import ReportInput
from .report_records import PlatformWorkload, entry_name, every_record, rate_of
from .tried_variants import LISTED, TriedKey, listed

TYPES = ("f32", "f16", "bf16", "f64")


@dataclass(frozen=True)
class PageRow:
    """Cells of text, what they are made of, and 'wrong' or 'warn' for a row that has to be seen."""

    cells: tuple[str, ...]
    origin: str = ""
    tone: str = ""

    @property
    def source(self) -> str:
        """The origin without what has a cell of its own."""
        file, *rest = self.origin.split(" › ")
        for cell in self.cells:
            rest = [part[len(cell) + 1 :] if part == cell or part.startswith(f"{cell} (") else part for part in rest]
        return " › ".join(part for part in (file, *rest) if part)


@dataclass(frozen=True)
class PageTable:
    """A table. columns: '#' before a column of numbers. The page adds the column of sources."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[PageRow, ...]
    note: str = ""

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of the columns, as in the CSV file."""
        return tuple(c.lstrip("#") for c in self.columns)

    def csv(self) -> str:
        """Return the table as CSV, all rows."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*self.heads, "source"])
        writer.writerows(map(_no_formula, (*row.cells, row.origin)) for row in self.rows)
        return text.getvalue()


def _no_formula(cell: str) -> str:
    """Return the text with a ' before what a spreadsheet takes for a formula; numbers and '-' stay as they are."""
    if cell == "-" or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _table(name: str, title: str, columns: Sequence[str], rows: Iterable[PageRow], note: str = "") -> list[PageTable]:
    made = tuple(rows)
    return [PageTable(name, title, tuple(columns), made, note)] if made else []


def speed_tables(work: Sequence[PlatformWorkload]) -> list[PageTable]:
    """Return bandwidth, kernels of users, and calls on NumPy arrays."""
    speed = [w for w in work if not w.record.workload["latency"]]
    columns = ("workload", "platform", "#GB/s", "#p20-p80 ms", "#ceiling GB/s", "#of it", "fastest peer", "#its GB/s",
               "#N", "#repeats")  # fmt: skip
    kernels = ("workload", "platform", "kernel", "#GB/s", "#µs a call", "#of the ceiling", "#of clrope", "#N")
    hosts = ("workload", "platform", "#device ms", "#plan.run on NumPy", "#out= given", "#new result", "#memcpy ms")
    return [
        *_table("bandwidth", "Bytes read and written a second", columns, map(_speed_row, speed), SHARES),
        *_table(
            "kernel-files", "Kernel files", kernels,
            (_kernel_row(w, e) for w in work for e in w.record.entries("kernel", device=w.label)), SHARES,
        ),
        *_table(
            "numpy-arrays", "NumPy arrays, times of the call on device-resident arrays", hosts,
            (_host_row(w) for w in speed if w.record.own(w.label, "numpy out=")),
        ),
    ]  # fmt: skip


def _speed_row(w: PlatformWorkload) -> PageRow:
    own, top = w.own or {}, w.ceiling
    peer = max(w.record.entries("peer"), key=lambda e: rate_of(e, w.record), default=None)
    low, high = (w.record.time(own, s) / 1e6 for s in ("p20", "p80"))
    return PageRow(
        (w.record.name, w.platform.name, number(w.record.rate(w.label)), _between(low, high),
         number(rate_of(top, w.record) if top else None), _share(w.record.of_ceiling(w.label)),
         peer["name"] if peer else "-", number(rate_of(peer, w.record) if peer else None), str(own["wall"]["n"]),
         str(w.repeats)),
        w.origin.of(own, top, peer),
    )  # fmt: skip


def _kernel_row(w: PlatformWorkload, e: dict[str, Any]) -> PageRow:
    r = w.record
    return PageRow(
        (r.name, w.platform.name, e["name"], number(rate_of(e, r)), number(r.time(e) / 1e3),
         _share(r.speed(e, w.ceiling)), _share(r.speed(e, w.own)), str(e["wall"]["n"])),
        w.origin.of(e, w.ceiling, w.own),
    )  # fmt: skip


def _host_row(w: PlatformWorkload) -> PageRow:
    r, base, copy = w.record, w.record.own(w.label) or 1.0, w.record.first("host", "memcpy")
    ways = [r.first("clrope", name, w.label) for name in ("numpy plan.run", "numpy out=", "numpy new")]
    return PageRow(
        (r.name, w.platform.name, number(base / 1e6), *(_share(r.time(e) / base if e else None) for e in ways),
         number(r.time(copy) / 1e6 if copy else None)),
        w.origin.of(w.own, *ways, copy),
    )  # fmt: skip


def latency_tables(found: ReportInput, platforms: Platforms, work: Sequence[PlatformWorkload]) -> list[PageTable]:
    """Return decode calls, and what calls cost."""
    columns = ("workload", "platform", "#µs a call", "#p20-p80 µs", "#empty launch µs", "#of it", "#fastest copy µs",
               "fastest peer", "#its µs", "#N", "#repeats")  # fmt: skip
    steps = ("workload", "platform", "entry", "#µs a step", "#p20-p80 µs", "#µs a call", "#N")
    return [
        *_table("latency", "Time of a call", columns, (_latency_row(w) for w in work if w.record.workload["latency"])),
        *_table("calls", "What calls cost", steps, _call_rows(found, platforms)),
    ]


def _latency_row(w: PlatformWorkload) -> PageRow:
    r, own, top = w.record, w.own or {}, w.ceiling
    launch, peer = r.first("launch", "raw launch", w.label), min(r.entries("peer"), key=r.time, default=None)
    low, high = (r.time(own, s) / 1e3 for s in ("p20", "p80"))

    def micro(entry: dict[str, Any] | None) -> str:
        return number(r.time(entry) / 1e3 if entry else None)

    return PageRow(
        (r.name, w.platform.name, micro(own), _between(low, high), micro(launch), _share(r.launches(w.label)),
         micro(top), peer["name"] if peer else "-", micro(peer), str(own["wall"]["n"]), str(w.repeats)),
        w.origin.of(own, launch, top, peer),
    )  # fmt: skip


def _call_rows(found: ReportInput, platforms: Platforms) -> Iterable[PageRow]:
    for w in every_record(found, platforms):
        if w.record.calls and w.platform.right:
            for e in w.record.workload["entries"]:
                if e["status"] == "ok" and e.get("device", w.label) == w.label:
                    taken, low, high = (w.record.time(e, s) / 1e3 for s in ("median", "p20", "p80"))
                    layers = w.record.workload.get("layers", 1)
                    yield PageRow(
                        (w.record.name, w.platform.name, entry_name(e), number(taken), _between(low, high),
                         number(taken / layers), str(e["wall"]["n"])),
                        w.origin.of(e),
                    )  # fmt: skip


def portability_tables(measured: Sequence[Measurement]) -> list[PageTable]:
    """Return the metric of each application over all platforms, and of this package for each problem."""
    common = in_common(measured)
    count = len({m.platform for m in common})
    every = platforms_of(common)
    rows = []
    for application in applications(common):
        solved = solved_by(common, application)
        inner = [m for m in common if m.problem in solved]
        arch, app = (list(portability_of(inner, application, basis).values()) for basis in _BASES)
        mine = [m for m in inner if m.application == application]
        rows.append(
            PageRow(
                (
                    application,
                    f"{len(solved)}",
                    f"{len(every)}",
                    str(count),
                    _middle(arch),
                    _range(arch),
                    _middle(app),
                    _range(app),
                    str(sum(v == 0 for v in app)),
                ),
                f"{_files(mine)} › {len(mine)} measurements",
                "wrong" if any(m.seconds is None for m in mine) else "",
            )
        )
    shares = efficiencies(measured, "architectural")
    metric = [portability_of(measured, OWN, basis) for basis in _BASES]
    problems = []
    for problem, platforms in platforms_of(measured).items():
        own = [m for m in measured if m.problem == problem and m.application == OWN]
        worst = min(platforms, key=lambda p: shares.get((problem, p, OWN), 0.0))
        reasons = "; ".join(dict.fromkeys(f"{m.platform}: {m.reason}" for m in own if m.reason))
        problems.append(
            PageRow(
                (
                    problem,
                    str(len(platforms)),
                    *(_share(m.get(problem)) for m in metric),
                    worst,
                    _share(shares.get((problem, worst, OWN), 0.0)),
                    reasons or "-",
                ),
                f"{_files(own)} › {problem} › clrope arrays",
                "wrong" if reasons else "",
            )
        )
    columns = ("problem", "#platforms", "#architectural", "#application efficiency", "lowest on", "#with", "why 0")
    heads = ("application", "#problems solved", "#of", "#platforms", "#architectural", "#lowest-highest",
             "#application efficiency", "#lowest-highest ", "#problems with 0")  # fmt: skip
    note = (
        "The harmonic mean of the efficiencies on all platforms, 0 where one of them gave no right result; of each "
        "application the median over the problems that it solves at all, of the problems that every platform has."
    )
    return [
        *_table("portability", "Performance portability", heads, rows, note),
        *_table(
            "portability-problems", "Performance portability of clrope, problem by problem", columns, problems,
        ),
    ]  # fmt: skip


def _files(some: Sequence[Measurement]) -> str:
    return ", ".join(dict.fromkeys(m.origin.split(" › ")[0] for m in some))


_BASES: tuple[Basis, Basis] = ("architectural", "application")


def variant_tables(tried: Sequence[TriedKey]) -> list[PageTable]:
    """Return the variants that tuning tried and why each lost."""
    rows = []
    for key in tried:
        shown, others = listed(key)
        for v in shown:
            of = None if not (v.gbs and key.ceiling) else v.gbs / key.ceiling
            rows.append(
                PageRow(
                    (
                        key.device,
                        key.problems,
                        v.name,
                        "chosen" if v.chosen else v.outcome.replace("_", " "),
                        number(v.gbs),
                        _share(of),
                        v.why or "-",
                    ),
                    f"{key.origin} › {v.name}",
                    "wrong" if v.outcome == "wrong" else "",
                )
            )
        rates = [v.gbs for v in others if v.gbs]
        if rates:
            text = f"{len(others)} more"
            rows.append(
                PageRow(
                    (key.device, key.problems, text, "slower", _between(min(rates), max(rates)), "-", "slower"),
                    key.origin,
                )
            )
    columns = ("device", "class", "variant", "outcome", "#GB/s", "#of the copy", "why it lost")
    return _table(
        "variants", "Variants tried", columns, rows,
        f"Of each class the chosen variant, the next {LISTED}, and all that failed; the files have all.",
    )  # fmt: skip


def correctness_tables(found: ReportInput, platforms: Platforms) -> list[PageTable]:
    """Return what was wrong, verified cases, checked entries, differing bits, and the workers of fleets."""
    every = platforms.records.values()
    wrong = [PageRow((p.name, what), file, "wrong") for p in every for file, what in p.wrong]
    failed = [PageRow((p.name, what), file, "warn") for p in every for file, what in p.failed]
    differing = [
        PageRow((origin, line), origin, "warn")
        for report, origin in zip(found.verifications, found.verify_origins, strict=True)
        for line in report["bits"]["differing"]
    ]
    suites = ("device", "suite", "#cases", "#passed", "#failed", "#skipped", *(f"#worst NMSE {t}" for t in TYPES))
    workers = ("worker", "host", "device", "platform", "status", "reason")
    return [
        *_table("wrong", "Wrong results", ("platform", "what"), wrong),
        *_table("failed", "Failed", ("platform", "what"), failed),
        *_table("bits", "Cases with different bits", ("file", "case and digests"), differing),
        *_table("verification", "Verified cases", suites, _suite_rows(found)),
        *_table(
            "checked", "Timed entries, each compared with the float64 reference before it was timed",
            ("platform", "#right", "#wrong", "#failed", "#verified cases", "#of them right"),
            (PageRow((p.name, str(p.timed), str(len(p.wrong)), str(len(p.failed)), str(p.run), str(p.passed)),
                     ", ".join(p.files), "" if p.right else "wrong") for p in every),
        ),
        *_table(
            "workers", "Workers of the fleet", workers,
            (PageRow(tuple(str(w.get(key) or "-") for key in workers), f"{origin} › worker {w['worker']}",
                     {"ok": "", "wrong": "wrong"}.get(w["status"], "warn"))
             for fleet, origin in zip(found.fleets, found.fleet_origins, strict=True) for w in fleet["workers"]),
        ),
    ]  # fmt: skip


def _suite_rows(found: ReportInput) -> Iterable[PageRow]:
    for report, origin in zip(found.verifications, found.verify_origins, strict=True):
        worst: dict[tuple[str, str, str], float] = {}
        failed: dict[tuple[str, str], int] = {}
        for case in report["results"]:
            key = case["device"], case["suite"]
            failed[key] = failed.get(key, 0) + (case["status"] == "fail")
            kind = next((t for t in TYPES if f"type={t}," in case["case"]), None)
            if kind and case.get("nmse") is not None:
                worst[(*key, kind)] = max(worst.get((*key, kind), 0.0), float(case["nmse"]))
        for row in report["summary"]:
            key = row["device"], row["suite"]
            errors = (worst.get((*key, t)) for t in TYPES)
            device = f"{key[0]} on {report['worker']}" if report.get("worker") else key[0]
            yield PageRow(
                (device, key[1], str(row["cases"]), str(row["passed"]), str(failed.get(key, 0)), str(row["skipped"]),
                 *("-" if e is None else f"{e:.2e}" for e in errors)),
                f"{origin} › suite {key[1]} › {key[0]}", "wrong" if failed.get(key) else "",
            )  # fmt: skip


def environment_tables(found: ReportInput) -> list[PageTable]:
    """Return machines, runs with a warning where a machine was loaded, and processes seen from outside."""
    machines = ("machine", "#CPUs", "system", "Python", "devices and drivers", "packages", "#runs")
    runs = ("file", "run", "machine", "#workloads", "#minutes", "#load before", "#after", "#highest", "remark")
    pairs = list(zip(found.benches, found.origins, strict=True))
    outside = ("measured from outside", "device", "#value", "detail")
    return [
        *_table("machines", "Machines and software", machines, _machine_rows(pairs)),
        *_table("environment", "Runs", runs, (_run_row(result, origin) for result, origin in pairs)),
        *_table(
            "processes", "Processes", outside,
            (_process_row(e, f"{at} › run {r['started']} › {e['kind']}") for r, at in pairs for e in r["processes"]),
        ),
    ]  # fmt: skip


def loads(result: dict[str, Any]) -> list[float]:
    """Return the loads that were noted in a run: before, after, and at the beginning of each workload."""
    environment = result["environment"]
    noted = [
        environment.get("load_before"),
        environment.get("load_after"),
        *(w.get("load") for w in result["workloads"]),
    ]
    return [load for load in noted if load is not None]


def most_load(result: dict[str, Any]) -> float:
    """Return the load that a run itself may make: the threads of the peers."""
    return float(result["options"].get("threads") or result["environment"]["cpus"])


def _machine_rows(pairs: Sequence[tuple[dict[str, Any], str]]) -> list[PageRow]:
    """Return a row for each different environment."""
    same: dict[tuple[str, ...], list[str]] = {}
    for result, origin in pairs:
        environment = result["environment"]
        versions = "; ".join(f"{name} {version}" for name, version in environment["versions"].items())
        drivers = "; ".join(f"{label}: {d['name']}, {d['driver_version']}" for label, d in result["devices"].items())
        key = (
            _machine(result),
            str(environment["cpus"]),
            environment["system"],
            environment["python"],
            drivers,
            versions,
        )
        same.setdefault(key, []).append(origin)
    return [
        PageRow((*key, str(len(origins))), f"{', '.join(dict.fromkeys(origins))} › environment")
        for key, origins in same.items()
    ]


def _machine(result: dict[str, Any]) -> str:
    name = short_cpu(result["environment"]["cpu"])
    return f"{name}, {result['worker']}" if result.get("worker") else name


def _run_row(result: dict[str, Any], origin: str) -> PageRow:
    environment = result["environment"]
    high, allowed = max(loads(result), default=0.0), most_load(result)
    busy = sum((w.get("load") or 0.0) > allowed for w in result["workloads"])
    remarks = []
    if high > allowed:
        remarks.append(f"loaded: up to {high:.1f} with {allowed:.0f} threads, at {busy} workloads")
    if (environment.get("busy") or 0.0) > BUSY:
        remarks.append(load_text(environment["busy"]))
    if result["options"].get("tiny"):
        remarks.append("short axes: no speed means anything")

    def load(name: str) -> str:
        value = environment.get(name)
        return "-" if value is None else f"{value:.2f}"

    return PageRow(
        (origin, result["started"], _machine(result), str(len(result["workloads"])), f"{result['seconds'] / 60:.1f}",
         load("load_before"), load("load_after"), f"{high:.2f}", "; ".join(remarks) or "-"),
        f"{origin} › run {result['started']} › environment", "warn" if remarks else "",
    )  # fmt: skip


def _process_row(e: dict[str, Any], origin: str) -> PageRow:
    if e["status"] != "ok":
        return PageRow((e["kind"], e["device"], "-", f"{e['status']}: {e.get('reason', '')}"), origin, "warn")
    if e["kind"] == "first call":
        inside, imports, whole = (e[k]["median"] / 1e9 for k in ("inside", "imports", "whole"))
        detail = f"of which imports {imports:.2f} s; with the interpreter's start and end {whole:.2f} s"
        return PageRow((e["kind"], e["device"], f"{inside:.2f} s", detail), origin)
    mib = 1 << 20
    detail = f"output {e['output_bytes'] / mib:.1f} MiB"
    return PageRow((e["kind"], e["device"], f"{e['extra_bytes'] / mib:.1f} MiB", detail), origin)


def not_timed_tables(found: ReportInput, platforms: Platforms) -> list[PageTable]:
    """Return what was not timed and why, once for each reason."""
    missing: dict[tuple[str, ...], list[str]] = {}
    for w in every_record(found, platforms):
        for e in w.record.workload["entries"]:
            if e["status"] != "ok" and e.get("device", w.label) == w.label:
                where = w.platform.name if e.get("device") else "host"
                key = (f"{e['kind']} {e['name']}", where, e["status"], e.get("reason", ""), w.origin.file)
                missing.setdefault(key, []).append(w.record.name)
    rows = []
    for (what, where, status, reason, file), names in missing.items():
        different = list(dict.fromkeys(names))
        tone = "wrong" if status == "wrong" else ""
        rows.append(
            PageRow(
                (what, where, status, reason, str(len(different)), different[0]),
                f"{file} › {different[0]} › {what}",
                tone,
            )
        )
    return _table("not-timed", "Not timed", ("entry", "platform", "status", "reason", "#workloads", "such as"), rows)


def _between(low: float, high: float) -> str:
    return f"{number(low)}-{number(high)}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _middle(values: Sequence[float]) -> str:
    return _share(median(values) if values else None)


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f}-{max(values):.2f}" if values else "-"
