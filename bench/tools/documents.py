"""The tables in the documents that come from kept results, each between two marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clrope.benchmark.figure import middle_record, prefill_records
from clrope.benchmark.peers import NAMES
from clrope.benchmark.report import Table, number

from .acceptance import by_machine, check, machine_section

ROOT = Path(__file__).resolve().parents[2]
END = "<!-- end -->\n"


def begin(name: str) -> str:
    """Return the mark before a table."""
    return f"<!-- {name}: from bench/results, by `python bench/docs.py` -->\n"


def documents(results: Sequence[dict[str, Any]], root: Path = ROOT) -> dict[Path, str]:
    """Return the text that each document should have. Raises `ValueError` if one has no place for its table."""
    machines = by_machine(results)
    tables = {
        ("docs/performance.md", "acceptance"): "".join(
            machine_section(cpu, check(found)) for cpu, found in machines.items()
        ),
        ("README.md", "speed"): speed_table(of_prefill(results)).markdown() if machines else "",
    }
    return {root / file: _replaced(root / file, name, table) for (file, name), table in tables.items()}


def of_prefill(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the results of the last machine whose prefill was measured."""
    machines = by_machine(results).values()
    return next((found for found in machines if prefill_records(found)), [])


def _replaced(file: Path, name: str, table: str) -> str:
    before, mark, rest = file.read_text(encoding="utf-8").partition(begin(name))
    _, end, after = rest.partition(END)
    if not (mark and end):
        raise ValueError(f"{file}: no place for the table between {begin(name).strip()} and {END.strip()}")
    return f"{before}{mark}{table}{end}{after}"


def speed_table(results: Sequence[dict[str, Any]]) -> Table:
    """Return GB/s of prefill out of place by type and pairing, the share of the best copy, and the best peer."""
    chosen = prefill_records(results)
    devices = list(dict.fromkeys(d for found in chosen.values() for r in found for d in r.devices))
    rows = []
    for group, all_found in chosen.items():
        cells = []
        for device in devices:
            found = [r for r in all_found if r.of_ceiling(device) is not None]
            shown = middle_record(found, device) if found else None
            cells.append(f"{number(shown.rate(device))} ({shown.of_ceiling(device) or 0.0:.0%})" if shown else "-")
        rates = [
            (entry["bytes"] / record.time(entry), peer)
            for record in all_found
            for peer in NAMES
            for entry in record.entries("peer", peer)
        ]
        rate, peer = max(rates, default=(None, ""))
        rows.append((" ".join(group), *cells, f"{number(rate)} {peer}".strip()))
    columns = ("GB/s", *(f"#clrope on {device} (of its best copy)" for device in devices), "#best other")
    return Table("", columns, tuple(rows))
