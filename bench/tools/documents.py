"""The tables in the documents that come from kept results, each between two marks."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clrope.benchmark.peers import NAMES
from clrope.benchmark.report import Table, number, one_shot_table
from clrope.benchmark.results import WorkloadRecord, records
from clrope.benchmark.samples import middle

from .acceptance import by_machine, check, machine_section

ROOT = Path(__file__).resolve().parents[2]
END = "<!-- end -->\n"
GROUPS = tuple((dtype, mode) for dtype in ("f32", "f16", "bf16") for mode in ("normal", "neox"))
TUNING = ROOT / "bench" / "results" / "tuning-amd-epyc.json.xz"
#: Columns of the table of variants: (platform, dtype, in_place); of large neox tensors.
VARIANT_COLUMNS = (("Portable Computing Language", "f32", False), ("Portable Computing Language", "f16", False),
                   ("Intel(R) OpenCL", "f32", False), ("Intel(R) OpenCL", "bf16", True))  # fmt: skip
#: Kinds of variants: (name, use, whether a variant with these parameters is one).
VARIANT_KINDS: tuple[tuple[str, str, Callable[[dict[str, Any]], bool]], ...] = (
    ("`strided`", "any strides and pairings", lambda v: v["kernel"] == "strided"),
    ("`rows builtin`", "any driver", lambda v: _rows(v, access="builtin", store="plain", prefetch=0)),
    ("`rows clang`", "drivers that compile `vload` to calls (PoCL)",
     lambda v: _rows(v, access="clang", store="plain", prefetch=0)),
    ("… `prefetch`", "in place from memory", lambda v: _rows(v, store="plain") and v.get("prefetch", 0) > 0),
    ("… `nontemporal`", "out of place from memory, aligned outputs", lambda v: _rows(v, store="nontemporal")),
    ("… `fused`", "small calls, which then need no table; large ones where it was faster",
     lambda v: v["kernel"] == "rows" and v.get("angles") == "fused"),
)  # fmt: skip


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
        ("docs/performance.md", "one-shot calls"): one_shot_table(list(records(results))).markdown(),
        ("docs/performance.md", "variants"): variant_table(json.loads(lzma.decompress(TUNING.read_bytes()))).markdown(),
        ("README.md", "speed"): speed_table(of_prefill(results, "cpu")).markdown() if machines else "",
        ("README.md", "speed on a GPU"): speed_table(of_prefill(results, "gpu")).markdown() if machines else "",
    }
    texts: dict[Path, str] = {}
    for (file, name), table in tables.items():
        path = root / file
        texts[path] = _replaced(path, texts.get(path) or path.read_text(encoding="utf-8"), name, table)
    return texts


def prefill_records(results: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[WorkloadRecord]]:
    """Return the records of prefill out of place, forward, with a timed rotation, by type and pairing."""
    chosen: dict[tuple[str, str], list[WorkloadRecord]] = {group: [] for group in GROUPS}
    for r in records(results):
        if (
            (r.family, r.place, r.direction) == ("prefill", "out", "forward")
            and (r.dtype, r.mode) in chosen
            and r.devices
        ):
            chosen[r.dtype, r.mode].append(r)
    return {group: found for group, found in chosen.items() if found}


def of_prefill(results: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the results of the last machine whose prefill was measured on a device kind."""
    some = [r for r in results if kind in {device["kind"] for device in r["devices"].values()}]
    machines = by_machine(some).values()
    return next((found for found in machines if prefill_records(found)), [])


def _replaced(file: Path, text: str, name: str, table: str) -> str:
    before, mark, rest = text.partition(begin(name))
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
            # Of repeats, the one with the median share of the ceiling.
            shown = middle(found, lambda r: r.of_ceiling(device) or 0.0) if found else None  # noqa: B023
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
    if not any(result["peers"] for result in results):
        return Table("", columns[:-1], tuple(row[:-1] for row in rows))
    return Table("", columns, tuple(rows))


def variant_table(tuning: dict[str, Any]) -> Table:
    """Return what the best variant of each kind reached of the fastest copy, from what `clrope tune` remembers."""
    records = [entry["record"] for entry in tuning["entries"].values()]
    shares: list[list[str]] = []
    for platform, dtype, in_place in VARIANT_COLUMNS:
        (record,) = (
            r for r in records
            if r["facts"]["platform"] == platform
            and r["key"] == {"dtype": dtype, "pairing": "neox", "in_place": in_place, "size": "large"}
        )  # fmt: skip
        best = [
            max((r["gbs"] for r in record["results"] if r.get("gbs") and is_one(r["variant"])), default=None)
            for _, _, is_one in VARIANT_KINDS
        ]
        shares.append(["-" if gbs is None else f"{gbs / record['ceiling_gbs']:.2f}" for gbs in best])
    heads = (
        f"#{dtype} {'in' if in_place else 'out of'} place, {'PoCL' if platform.startswith('Portable') else 'Intel'}"
        for platform, dtype, in_place in VARIANT_COLUMNS
    )
    rows = ((name, use, *cells) for (name, use, _), *cells in zip(VARIANT_KINDS, *shares, strict=True))
    return Table("", ("variant", "use", *heads), tuple(rows), marked=True)


def _rows(variant: dict[str, Any], **wanted: Any) -> bool:
    """Whether a variant is one of `rows` with these parameters, and with tables."""
    usual = {"access": "builtin", "store": "plain", "prefetch": 0, "angles": "cached"}
    got = {**usual, **variant}
    return got["kernel"] == "rows" and got["angles"] == "cached" and all(got[k] == v for k, v in wanted.items())
