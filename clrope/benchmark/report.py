"""Tables from results: one line a workload and device, as rows of text that a terminal or Markdown can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .peers import NAMES
from .results import CALL_COMPARISONS, WorkloadRecord, records


@dataclass(frozen=True)
class Table:
    """A heading, column names ('#' before those with numbers), rows of text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it JSON-ready."""
        return {"title": self.title, "columns": [c.lstrip("#") for c in self.columns], "rows": list(self.rows)}

    def markdown(self) -> str:
        """Return it as a Markdown table."""
        lines = [f"### {self.title}", ""] if self.title else []
        lines.append("| " + " | ".join(c.lstrip("#") for c in self.columns) + " |")
        lines.append("|" + "|".join("--:" if c.startswith("#") else ":--" for c in self.columns) + "|")
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in self.rows]
        return "\n".join(lines) + "\n"


def tables(results: Sequence[dict[str, Any]]) -> list[Table]:
    """Return the tables of results: speed, latency, and what was not timed and why."""
    known = list(records(results))
    out = []
    calls = [r for r in known if r.calls]
    if calls:
        out += call_tables(calls)
    speed = [r for r in known if not r.workload["latency"] and not r.calls]
    peers = [p for p in NAMES if any(r.entries("peer", p) for r in known)]
    if speed:
        rows = tuple(row for r in speed for row in _speed_rows(r, peers))
        columns = ("workload", "device", "#GB/s", "#p20-p80 ms", "#ceiling GB/s", "ceiling", "#of it",
                   *(f"#× {p}" for p in peers), "#N")  # fmt: skip
        out.append(Table("Bytes read and written a second", columns, rows))
    latency = [r for r in known if r.workload["latency"] and not r.calls]
    if latency:
        rows = tuple(row for r in latency for row in _latency_rows(r, peers))
        columns = ("workload", "device", "#plan.run µs", "#event µs", "#raw launch µs", "#of it", "#copy µs",
                   "#NumPy µs", *(f"#{p} µs" for p in peers), "#N")  # fmt: skip
        out.append(Table("Time of a call", columns, rows))
    hosts = [r for r in speed if any(e["name"].startswith("numpy") for e in r.entries("clrope"))]
    if hosts:
        columns = ("workload", "device", "#device ms", "#plan.run on NumPy", "#out= given", "#new result", "#memcpy ms")
        out.append(
            Table("NumPy arrays, times of device-resident", columns, tuple(row for r in hosts for row in _host_rows(r)))
        )
    outside = [p for result in results for p in result["processes"]]
    if outside:
        columns = ("measured from outside", "device", "#value", "detail")
        out.append(Table("Processes", columns, tuple(_process_row(p) for p in outside)))
    missing: dict[tuple[str, str, str], list[str]] = {}
    for record in known:
        for entry in record.workload["entries"]:
            if entry["status"] != "ok":
                key = (f"{entry.get('device', '')} {entry['name']}".strip(), entry["status"], entry["reason"])
                missing.setdefault(key, []).append(record.name)
    if missing:
        left = tuple(
            (who, status, reason, f"{len(names)}, such as {names[0]}")
            for (who, status, reason), names in missing.items()
        )
        out.append(Table("Not timed", ("what", "why", "reason", "workloads"), left))
    return out


def call_tables(known: Sequence[WorkloadRecord]) -> list[Table]:
    """Return what calls cost: microseconds of a step by each entry, and how the entries compare."""
    times, compared = [], []
    for record in known:
        layers = record.workload["layers"]
        entries = [e for e in record.workload["entries"] if e["status"] == "ok"]
        for entry in sorted(entries, key=lambda e: e.get("device", "")):
            name = " ".join(filter(None, (entry["name"], entry.get("variant") and f"({entry['variant']})")))
            taken = record.time(entry) / 1e3
            spread = f"{record.time(entry, 'p20') / 1e3:.0f}-{record.time(entry, 'p80') / 1e3:.0f}"
            times.append(
                (record.name, entry.get("device", ""), name, f"{taken:.0f}", spread, number(taken / layers),
                 str(entry["wall"]["n"]))
            )  # fmt: skip
        for device in record.result["devices"]:
            for comparison in CALL_COMPARISONS:
                figure = record.compared(comparison, device)
                if figure is not None:
                    unit = "µs" if comparison.per_call else "×"
                    least = record.least_of(comparison, device)
                    bare = number(least, unit) if least is not None else ""
                    compared.append((record.name, device, comparison.name, number(figure, unit), bare))
    columns = ("workload", "device", "entry", "#µs a step", "#p20-p80 µs", "#µs a call", "#N")
    return [
        Table("What calls cost", columns, tuple(times)),
        Table("Calls compared", ("workload", "device", "comparison", "#figure", "#bare launches"), tuple(compared)),
    ]


def heading(results: Sequence[dict[str, Any]]) -> str:
    """Return lines that say where results come from."""
    lines = []
    for result in results:
        environment = result["environment"]
        load = f", load {environment['load_before']} before, {environment['load_after']} after"
        line = f"{result['started']}: {environment['cpu']}, {environment['cpus']} CPUs{load}; "
        line += "; ".join(f"{k} = {d['name']}, {d['driver_version']}" for k, d in result["devices"].items())
        if result["options"]["tiny"]:
            line += "; TINY: no figure means anything"
        if line not in lines:
            lines.append(line)
    return "\n".join(lines)


def _speed_rows(record: WorkloadRecord, peers: Sequence[str]) -> list[tuple[str, ...]]:
    rows = []
    for device in record.devices:
        own = record.entries("clrope", "arrays", device)[0]
        top = record.ceiling(device)
        spread = f"{record.time(own, 'p20') / 1e6:.2f}-{record.time(own, 'p80') / 1e6:.2f}"
        rows.append(
            (record.name, device, number(record.rate(device)), spread,
             number(top["bytes"] / record.time(top) if top else None),
             (top.get("variant") or top["name"]) if top else "-", number(record.of_ceiling(device)),
             *(number(record.against(p, device)) for p in peers), str(own["wall"]["n"]))
        )  # fmt: skip
    return rows


def _latency_rows(record: WorkloadRecord, peers: Sequence[str]) -> list[tuple[str, ...]]:
    def micro(entries: list[dict[str, Any]], basis: str = "wall") -> float | None:
        return entries[0][basis]["median"] / 1e3 if entries and basis in entries[0] else None

    rows = []
    for device in record.devices:
        own = record.entries("clrope", "arrays", device)
        run, raw = micro(own), micro(record.entries("launch", "raw launch", device))
        top = record.ceiling(device)
        rows.append(
            (record.name, device, number(run), number(micro(own, "event")), number(raw),
             number(record.launches(device)),
             number(micro([top] if top else [])), number(micro(record.entries("clrope", "numpy plan.run", device))),
             *(number(micro(record.entries("peer", p))) for p in peers), str(own[0]["wall"]["n"]))
        )  # fmt: skip
    return rows


def _host_rows(record: WorkloadRecord) -> list[tuple[str, ...]]:
    rows = []
    copy = record.entries("host", "memcpy")
    for device in record.devices:
        base = record.own(device)
        if base is None:
            continue
        times = [record.own(device, name) for name in ("numpy plan.run", "numpy out=", "numpy new")]
        rows.append(
            (record.name, device, number(base / 1e6), *(number(t / base if t else None) for t in times),
             number(record.time(copy[0]) / 1e6 if copy else None))
        )  # fmt: skip
    return rows


def _process_row(entry: dict[str, Any]) -> tuple[str, ...]:
    if entry["status"] != "ok":
        return entry["kind"], entry["device"], "-", f"{entry['status']}: {entry['reason']}"
    if entry["kind"] == "first call":
        inside, imports, whole = (entry[k]["median"] / 1e9 for k in ("inside", "imports", "whole"))
        detail = f"of which imports {imports:.2f} s; with the interpreter's start and end {whole:.2f} s"
        return entry["kind"], entry["device"], f"{inside:.2f} s", detail
    mib = entry["extra_bytes"] / (1 << 20)
    return entry["kind"], entry["device"], f"{mib:.1f} MiB", f"output {entry['output_bytes'] / (1 << 20):.1f} MiB"


def number(value: float | None, unit: str = "×") -> str:
    """Return a figure with three digits and its unit, '-' for none."""
    if value is None:
        return "-"
    text = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 10 else f"{value:.2f}"
    return f"{text} {unit}" if unit not in ("×", "") else text
