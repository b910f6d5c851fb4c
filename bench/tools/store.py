"""Kept results: for each device a readable summary, and its results, compressed."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clrope.benchmark.peers import NAMES
from clrope.benchmark.results import DEVICE_SCHEMA, WorkloadRecord, read_all, records
from clrope.benchmark.samples import middle

from .shares import error_of_ceiling


def file_of(folder: Path, label: str, result: dict[str, Any]) -> Path:
    """Return the summary's file: named after the driver and the CPU or GPU."""
    words = f"{label} {result['devices'][label]['name']}".lower().replace("(r)", "").replace("(tm)", "")
    return folder / (re.sub(r"[^a-z0-9]+", "-", words).strip("-") + ".json")


def of_device(result: dict[str, Any], label: str) -> dict[str, Any]:
    """Return the part of a result that concerns one device, with peers and the host's own figures."""

    def kept(entry: dict[str, Any]) -> bool:
        return bool(entry.get("device", label) == label)

    return result | {
        "devices": {label: result["devices"][label]},
        "workloads": [w | {"entries": [e for e in w["entries"] if kept(e)]} for w in result["workloads"]],
        "processes": [p for p in result["processes"] if kept(p)],
    }


def keep(folder: Path, result: dict[str, Any]) -> list[Path]:
    """Keep a result in place of older results of the same workloads. Return the files."""
    out = []
    for label in result["devices"]:
        where = file_of(folder, label, result)
        before = read_all(where) if where.exists() else []
        write_device(where, label, [*without(before, result), of_device(result, label)])
        out.append(where)
    return out


def without(results: Sequence[dict[str, Any]], newer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the results without the workloads of a newer result."""
    names = {w["name"] for w in newer["workloads"]}
    left = [
        r
        | {
            "workloads": [w for w in r["workloads"] if w["name"] not in names],
            "processes": [] if newer["processes"] else r["processes"],
        }
        for r in results
    ]
    return [r for r in left if r["workloads"] or r["processes"]]


def write_device(where: Path, label: str, results: Sequence[dict[str, Any]]) -> None:
    """Write the summary of one device's results and, next to it, the results."""
    samples = where.with_suffix(".samples.json.xz")
    text = json.dumps([_without_cpu_turns(r) for r in results], separators=(",", ":"), allow_nan=False)
    where.parent.mkdir(parents=True, exist_ok=True)
    samples.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    where.write_text(_lines(summary(label, results) | {"samples": samples.name}), encoding="utf-8")


def summary(label: str, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of one device, a line a workload (of repeats the middle one): µs, shares of its ceiling."""
    last = max(results, key=lambda r: str(r["started"]))
    repeats: dict[str, list[WorkloadRecord]] = {}
    for record in records(results):
        repeats.setdefault(record.name, []).append(record)
    return {
        "schema": DEVICE_SCHEMA,
        "label": label,
        "device": last["devices"][label],
        "environment": last["environment"],
        "peers": last["peers"],
        "workloads": [_figures(_middle(same, label), label) for same in repeats.values()],
        "processes": [p for r in results for p in r["processes"]],
    }


def _middle(repeats: Sequence[WorkloadRecord], label: str) -> WorkloadRecord:
    """Return of several measurements of a workload the one whose share of the ceiling is the median."""
    return middle(repeats, lambda record: record.of_ceiling(label) or 0.0)


def _figures(record: WorkloadRecord, label: str) -> dict[str, Any]:
    out: dict[str, Any] = {"name": record.name, "started": record.result["started"], "load": record.workload["load"]}
    if record.calls:
        timed = [e for e in record.workload["entries"] if e["status"] == "ok"]
        times = {f"{e['name']} {e.get('variant', '')}".strip(): _short(record.time(e) / 1e3) for e in timed}
        return out | {"us": times}
    own = record.entries("clrope", device=label)
    top = record.ceiling(label)
    against = {peer: _short(ratio) for peer in NAMES if (ratio := record.against(peer, label)) is not None}
    figures: dict[str, Any] = {
        "us": {e["name"]: _short(record.time(e) / 1e3) for e in own},
        "gb_per_s": _short(record.rate(label)),
        "of_ceiling": _short(record.of_ceiling(label)),
        "error": _short(error_of_ceiling(record, label)),
        "ceiling": None if top is None else top.get("variant") or top["name"],
        "raw_launches": _short(record.launches(label)),
        "times_faster_than": against or None,
    }
    return out | {name: value for name, value in figures.items() if value is not None}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _without_cpu_turns(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result without the CPU time of each turn, from which no figure is made; its percentiles stay."""

    def shortened(entry: dict[str, Any]) -> dict[str, Any]:
        return entry | {"cpu": {k: v for k, v in entry["cpu"].items() if k != "turns"}} if "cpu" in entry else entry

    workloads = [w | {"entries": [shortened(e) for e in w["entries"]]} for w in result["workloads"]]
    return result | {"workloads": workloads}


def _lines(summary: dict[str, Any]) -> str:
    """Return JSON with one line a field, and one a workload."""
    fields = []
    for name, value in summary.items():
        if isinstance(value, list) and value:
            text = "[\n  " + ",\n  ".join(json.dumps(v, allow_nan=False) for v in value) + "\n ]"
        else:
            text = json.dumps(value, allow_nan=False)
        fields.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(fields) + "\n}\n"
