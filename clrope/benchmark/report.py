"""Tables from results: rows of text, one a workload and device, for a terminal or Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from ..machine_load import load_text
from ..printable import printable
from .peers import NAMES
from .results import CALL_COMPARISONS, WorkloadRecord, records

#: What Markdown, with the tables and formulas of GitHub, does not show as it is; _ within a word is text.
_MARKS = re.compile(r"[\\`*<&\[|~$]|(?<![^\W_])_|_(?![^\W_])")
#: What makes a heading, a list or a quotation of a line that begins with it.
_START = re.compile(r"^(?:(\d+)(?=[.)])|(?=[#+=>-]))")


#: What tables say on the columns of shares.
SHARES = (
    "Shares and × are medians of the ratios within each round, where both meet the same speed of the machine; GB/s are "
    "medians over all rounds. So a share need not be the quotient of two speeds."
)


#: What the table of one-shot calls says.
ONE_SHOT = (
    "q has 32 heads and k 8, of 128 elements, neox. Every call has a new position. memcpy copies both by numpy.copyto. "
    "A time is the median of an entry's fastest turn, which other programs disturbed least; of peers the faster of "
    "all threads and one counts."
)


@dataclass(frozen=True)
class Table:
    """A heading, column names ('#' before a column of numbers), rows of text, a note on them.

    marked: the rows are of Markdown.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: bool = False
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {"title": self.title, "columns": [c.lstrip("#") for c in self.columns], "rows": list(self.rows)}

    def markdown(self) -> str:
        """Return a Markdown table."""
        lines = [f"### {self.title}", ""] if self.title else []
        lines.append("| " + " | ".join(c.lstrip("#") for c in self.columns) + " |")
        lines.append("|" + "|".join("--:" if c.startswith("#") else ":--" for c in self.columns) + "|")
        rows = self.rows if self.marked else [map(as_markdown, row) for row in self.rows]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        lines += ["", as_markdown(self.note)] if self.note else []
        return "\n".join(lines) + "\n"


def as_markdown(text: str) -> str:
    """Return Markdown of one line that shows a text as it is, within a line or a cell."""
    return _MARKS.sub(r"\\\g<0>", " ".join(printable(text).split()))


def tables(results: Sequence[dict[str, Any]]) -> list[Table]:
    """Return the tables of results: speed, latency, and what was not timed with the reason."""
    known = list(records(results))
    calls = [r for r in known if r.calls and not r.one_shot]
    one_shot = one_shot_table(known)
    speed = [r for r in known if not r.workload["latency"] and not r.calls]
    latency = [r for r in known if r.workload["latency"] and not r.calls]
    hosts = [r for r in speed if any(e["name"].startswith("numpy") for e in r.entries("clrope"))]
    peers = [p for p in NAMES if any(r.entries("peer", p) for r in known)]
    missing: dict[tuple[str, str, str], list[str]] = {}
    for record in known:
        for entry in record.workload["entries"]:
            if entry["status"] != "ok":
                key = (f"{entry.get('device', '')} {entry['name']}".strip(), entry["status"], entry.get("reason", ""))
                missing.setdefault(key, []).append(record.name)
    found = [
        *(call_tables(calls) if calls else ()),
        *([one_shot] if one_shot.rows else ()),
        Table(
            "Bytes read and written a second",
            ("workload", "device", "#GB/s", "#p20-p80 ms", "#ceiling GB/s", "ceiling", "#of it",
             *(f"#× {p}" for p in peers), "#N"),
            tuple(_speed_row(r, device, peers) for r in speed for device in r.devices), note=SHARES,
        ),
        Table(
            "Time of a call",
            ("workload", "device", "#plan.run µs", "#event µs", "#raw launch µs", "#of it", "#copy µs", "#NumPy µs",
             *(f"#{p} µs" for p in peers), "#N"),
            tuple(_latency_row(r, device, peers) for r in latency for device in r.devices),
        ),
        Table(
            "Kernel files",
            ("workload", "device", "kernel", "#GB/s", "#µs a call", "#of the ceiling", "#of clrope", "#N"),
            tuple(_kernel_row(r, e) for r in known for e in r.entries("kernel")), note=SHARES,
        ),
        Table(
            "NumPy arrays, times of device-resident",
            ("workload", "device", "#device ms", "#plan.run on NumPy", "#out= given", "#new result", "#memcpy ms"),
            tuple(_host_row(r, device) for r in hosts for device in r.devices),
        ),
        Table(
            "Independent ceilings",
            ("device", "#clpeak reads, GB/s", "clpeak", "#best copy here, GB/s"),
            tuple(_independent_row(result, label) for result in results for label in _asked(result)),
        ),
        Table(
            "Processes",
            ("measured from outside", "device", "#value", "detail"),
            tuple(_process_row(p) for result in results for p in result["processes"]),
        ),
        Table(
            "Not timed",
            ("what", "why", "reason", "workloads"),
            tuple((*key, f"{len(names)}, such as {names[0]}") for key, names in missing.items()),
        ),
    ]  # fmt: skip
    return [table for table in found if table.rows]


def call_tables(known: Sequence[WorkloadRecord]) -> list[Table]:
    """Return the cost of calls: microseconds of a step by each entry, and comparisons of entries."""
    times, compared = [], []
    for record in known:
        entries = [e for e in record.workload["entries"] if e["status"] == "ok"]
        for entry in sorted(entries, key=lambda e: e.get("device", "")):
            name = entry["name"] + (f" ({entry['variant']})" if entry.get("variant") else "")
            taken, low, high = (record.time(entry, statistic) / 1e3 for statistic in ("median", "p20", "p80"))
            times.append(
                (record.name, entry.get("device", ""), name, f"{taken:.0f}", f"{low:.0f}-{high:.0f}",
                 number(taken / record.workload["layers"]), str(entry["wall"]["n"]))
            )  # fmt: skip
        for device, comparison in product(record.result["devices"], CALL_COMPARISONS):
            figure, least = record.compared(comparison, device), record.least_of(comparison, device)
            if figure is not None:
                unit = "µs" if comparison.per_call else "×"
                bare = "" if least is None else number(least, unit)
                compared.append((record.name, device, comparison.name, number(figure, unit), bare))
    columns = ("workload", "device", "entry", "#µs a step", "#p20-p80 µs", "#µs a call", "#N")
    return [
        Table("What calls cost", columns, tuple(times)),
        Table("Calls compared", ("workload", "device", "comparison", "#figure", "#bare launches"), tuple(compared)),
    ]


def one_shot_table(known: Sequence[WorkloadRecord]) -> Table:
    """Return microseconds of one-shot calls: a row for each type and number of tokens of a run, a column an entry.

    Of peers, the fastest of their ways counts.
    """
    rows: dict[tuple[str, str, int], dict[str, float]] = {}
    for record in known:
        for entry in record.workload["entries"] if record.one_shot else ():
            if entry["status"] == "ok":
                key = (record.result["started"], record.dtype, record.workload["tensors"][0][1])
                name = one_shot_name(entry, entry.get("device", ""))
                row, taken = rows.setdefault(key, {}), record.undisturbed(entry) / 1e3
                row[name] = min(row.get(name, taken), taken)
    names = sorted({name: None for row in rows.values() for name in row}, key=lambda name: ", " not in name)
    cells = (
        (dtype, str(tokens), *(number(row.get(name)) for name in names)) for (_, dtype, tokens), row in rows.items()
    )
    columns = ("type", "#tokens", *(f"#{name}" for name in names))
    return Table("One-shot calls on NumPy arrays, µs", columns, tuple(cells), note=ONE_SHOT if rows else "")


def one_shot_name(entry: dict[str, Any], where: str) -> str:
    """Return the name of an entry of one-shot calls; where: of its device. All ways of a peer have the same."""
    own = f"{entry['name'].removeprefix('numpy ')}, {where}" if "device" in entry else entry["name"]
    return str(own).removesuffix(" 1 thread")


def heading(results: Sequence[dict[str, Any]]) -> str:
    """Return a line on the origin of each result."""
    lines = []
    for result in results:
        environment = result["environment"]
        load = f", load {environment['load_before']} before, {environment['load_after']} after"
        load += f", {load_text(busy)}" if (busy := environment.get("busy")) is not None else ""
        line = f"{result['started']}: {environment['cpu']}, {environment['cpus']} CPUs{load}; "
        line += "; ".join(f"{k} = {d['name']}, {d['driver_version']}" for k, d in result["devices"].items())
        if result["options"]["tiny"]:
            line += "; TINY: no figure means anything"
        if result.get("missing"):
            line += f"; INTERRUPTED, {len(result['missing'])} missing: {', '.join(result['missing'])}"
        # Of one line, whatever the file holds.
        line = " ".join(line.split())
        if line not in lines:
            lines.append(line)
    return "\n".join(lines)


def markdown_heading(results: Sequence[dict[str, Any]]) -> str:
    """Return the same lines as Markdown."""
    return "\n".join(_START.sub(r"\1\\", as_markdown(line)) for line in heading(results).splitlines())


def _speed_row(record: WorkloadRecord, device: str, peers: Sequence[str]) -> tuple[str, ...]:
    own, top = record.entries("clrope", "arrays", device)[0], record.ceiling(device)
    return (
        record.name, device, number(record.rate(device)),
        f"{record.time(own, 'p20') / 1e6:.2f}-{record.time(own, 'p80') / 1e6:.2f}",
        number(top["bytes"] / record.time(top) if top else None),
        (top.get("variant") or top["name"]) if top else "-", number(record.of_ceiling(device)),
        *(number(record.against(p, device)) for p in peers), str(own["wall"]["n"]),
    )  # fmt: skip


def _latency_row(record: WorkloadRecord, device: str, peers: Sequence[str]) -> tuple[str, ...]:
    def micro(entry: dict[str, Any] | None, basis: str = "wall") -> str:
        return number(entry[basis]["median"] / 1e3 if entry and basis in entry else None)

    own = record.entries("clrope", "arrays", device)[0]
    return (
        record.name, device, micro(own), micro(own, "event"), micro(record.first("launch", "raw launch", device)),
        number(record.launches(device)), micro(record.ceiling(device)),
        micro(record.first("clrope", "numpy plan.run", device)),
        *(micro(record.first("peer", p)) for p in peers), str(own["wall"]["n"]),
    )  # fmt: skip


def _kernel_row(record: WorkloadRecord, entry: dict[str, Any]) -> tuple[str, ...]:
    device = entry["device"]
    return (
        record.name, device, entry["name"], number(entry["bytes"] / record.time(entry)),
        number(record.time(entry) / 1e3), number(record.speed(entry, record.ceiling(device))),
        number(record.speed(entry, record.arrays(device))), str(entry["wall"]["n"]),
    )  # fmt: skip


def _host_row(record: WorkloadRecord, device: str) -> tuple[str, ...]:
    base, copy = record.own(device), record.first("host", "memcpy")
    ways = ("numpy plan.run", "numpy out=", "numpy new")
    return (
        record.name, device, number(base / 1e6 if base else None),
        *(number(t / base if t and base else None) for t in (record.own(device, name) for name in ways)),
        number(record.time(copy) / 1e6 if copy else None),
    )  # fmt: skip


def _asked(result: dict[str, Any]) -> list[str]:
    """Return the devices on which clpeak ran."""
    return [label for label, device in result["devices"].items() if device.get("clpeak_gbs") is not None]


def _independent_row(result: dict[str, Any], label: str) -> tuple[str, ...]:
    """Return what clpeak read a second, and what the best copy of data in memory read and wrote."""
    device = result["devices"][label]
    tops = [
        (record, top)
        for record in records([result])
        if not (record.calls or record.workload["cached"]) and (top := record.ceiling(label)) is not None
    ]
    best = max((top["bytes"] / record.time(top) for record, top in tops), default=None)
    return label, number(device["clpeak_gbs"]), device.get("clpeak", ""), number(best)


def _process_row(entry: dict[str, Any]) -> tuple[str, ...]:
    if entry["status"] != "ok":
        return entry["kind"], entry["device"], "-", f"{entry['status']}: {entry.get('reason', '')}"
    if entry["kind"] == "first call":
        inside, imports, whole = (entry[k]["median"] / 1e9 for k in ("inside", "imports", "whole"))
        detail = f"of which imports {imports:.2f} s; with the interpreter's start and end {whole:.2f} s"
        return entry["kind"], entry["device"], f"{inside:.2f} s", detail
    mib = entry["extra_bytes"] / (1 << 20)
    return entry["kind"], entry["device"], f"{mib:.1f} MiB", f"output {entry['output_bytes'] / (1 << 20):.1f} MiB"


def number(value: float | None, unit: str = "×") -> str:
    """Return a figure with three digits and its unit, '-' for None."""
    if value is None:
        return "-"
    text = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 10 else f"{value:.2f}"
    return f"{text} {unit}" if unit not in ("×", "") else text
