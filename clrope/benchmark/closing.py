"""The end of a run in five lines: devices, right or not, share of the ceiling, the best peer, where the results are."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from ..machine_load import BUSY, load_text
from .results import WorkloadRecord, records


def closing_lines(result: dict[str, Any], kept: str | None = None, page: str | None = None) -> list[tuple[str, str]]:
    """Return five lines, each a name and a text, and one on a machine that was busy.

    kept, page: paths of the result file and of the page, if written.
    """
    known = list(records([result]))
    names = [f"{label} = {device['name']}" for label, device in result["devices"].items()]
    lines = [
        ("devices", "; ".join(names)),
        ("results", correctness(result)),
        ("of the ceiling", _shares(known, result)),
        ("against peers", _peers(known, result)),
        ("kept in", _places(kept, page)),
    ]
    busy = result["environment"].get("busy")
    if busy is not None and busy > BUSY:
        lines.append(("machine", load_text(busy)))
    if result["options"]["tiny"]:
        lines[2:4] = [(name, f"--tiny, so no figure means anything: {text}") for name, text in lines[2:4]]
    return lines


def correctness(result: dict[str, Any]) -> str:
    """Return whether all entries of this package and of kernel files were right, and what was not; what is missing."""
    wrong, failed, right = [], [], 0
    for record in records([result]):
        for entry in record.workload["entries"]:
            name = f"{entry['name']} on {entry['device']}" if "device" in entry else entry["name"]
            if entry["status"] == "wrong":
                wrong.append(f"{name} in {record.name}")
            elif entry["status"] == "error" and entry["kind"] in ("clrope", "kernel"):
                failed.append(f"{name} in {record.name}")
            elif entry["kind"] in ("clrope", "kernel") and entry["status"] == "ok":
                right += 1
    missing = result.get("missing", ())
    left = f"; MISSING, the run was interrupted: {_some(missing)}" if missing else ""
    if wrong or failed:
        parts = [f"{what}: {_some(found)}" for what, found in (("WRONG", wrong), ("FAILED", failed)) if found]
        return "; ".join(parts) + left
    return (f"right, each of {right} checked against the float64 reference" if right else "nothing was timed") + left


def _shares(known: Sequence[WorkloadRecord], result: dict[str, Any]) -> str:
    found = {
        label: [(share, r.name) for r in _bandwidth(known) if (share := r.of_ceiling(label)) is not None]
        for label in result["devices"]
    }
    return _medians(found, "{0}", "{device} in {what}") or "no workload of bytes a second was timed next to a copy"


def _peers(known: Sequence[WorkloadRecord], result: dict[str, Any]) -> str:
    compared = [*_bandwidth(known), *(r for r in known if r.one_shot)]
    found = {
        label: [(best[1], best[0]) for r in compared if (best := r.best_peer(label)) is not None]
        for label in result["devices"]
    }
    none = "no peer was timed" + (" in a workload of bytes a second" if any(result["peers"].values()) else "")
    names = dict.fromkeys(str(e["name"]) for r in compared for e in r.entries("peer"))
    among = "the fastest of " * (len(names) > 1) + ", ".join(names)
    return _medians(found, f"{{0}} times as fast as {among}", "{device} next to {what}") or none


def _medians(found: dict[str, list[tuple[float, str]]], typical: str, worst: str) -> str:
    """Return the median of each device, and the worst figure of all with what it belongs to."""
    known = {label: figures for label, figures in found.items() if figures}
    if not known:
        return ""
    medians = ", ".join(f"{label} {median(figure for figure, _ in some):.2f}" for label, some in known.items())
    least, what, device = min((*min(some), label) for label, some in known.items())
    return f"{typical.format(medians)} (median); worst {least:.2f}, {worst.format(device=device, what=what)}"


def _places(kept: str | None, page: str | None) -> str:
    """Return where the results are, and how to get the page if it was not written."""
    if kept is None:
        return "no file: --json FILE keeps them"
    return f"{kept}; page: {page}" if page is not None else f"{kept}; to look at them: clrope report {kept}"


def _bandwidth(known: Sequence[WorkloadRecord]) -> list[WorkloadRecord]:
    return [r for r in known if not r.calls and not r.workload["latency"]]


def _some(names: Sequence[str]) -> str:
    """Return the first three names, and how many there are more."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
