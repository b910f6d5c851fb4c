"""`defaults.json` from tuning files of several machines: their winners, in the place of shipped rows."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import product
from typing import Any

from ..errors import ConfigError
from ..kernels.variant import Variant
from ..select import database
from ..select.defaults import KEY_FIELDS, family_of, table
from ..select.records import TuningKey, TuningRecord


def merged_defaults(paths: Sequence[str]) -> dict[str, Any]:
    """Return the shipped defaults with the winners of tuning files in their place.

    A device of no family gets one of its own. Of several machines of one family the winner is the variant that loses
    least where it loses most. Raises `ConfigError` for a file that is no tuning file.
    """
    data: dict[str, Any] = json.loads(json.dumps(table()))
    found: dict[tuple[str, TuningKey], list[tuple[str, TuningRecord]]] = {}
    for path in paths:
        try:
            entries = database.entries(path).values()
        except ValueError as error:
            raise ConfigError(str(error)) from None
        for entry in entries:
            facts = vars(entry.facts)
            family = family_of(facts, data["families"])
            if family is None:
                family = f"{facts['platform']} {facts['name']}"
                data["families"][family] = _exactly(facts)
            if entry.winner is not None:
                found.setdefault((family, entry.key), []).append((f"{entry.cpu}; {entry.device}", entry))
    rows = []
    for (family, key), records in found.items():
        variant = _least_loss([record for _, record in records])
        origin = "tuned on " + " and on ".join(dict.fromkeys(machine for machine, _ in records))
        rows.append({"family": family, **_classes(key), "variant": _shortest(variant), "origin": origin})
    data["rows"] = [*compact(rows), *_uncovered(data["rows"], set(found))]
    return data


def _uncovered(rows: Sequence[dict[str, Any]], covered: set[tuple[str, TuningKey]]) -> list[dict[str, Any]]:
    """Return the rows without what rows in front of them decide."""
    out = []
    for row in rows:
        keys = [TuningKey(*values) for values in product(*(row[name] for name in KEY_FIELDS))]
        left = [key for key in keys if (row["family"], key) not in covered]
        out += [row] if len(left) == len(keys) else compact([{**row, **_classes(key)} for key in left])
    return out


def compact(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return fewer rows that say the same: those alike but in one of the tuning key's fields become one."""
    out = list(rows)
    for name in KEY_FIELDS:
        groups: dict[str, dict[str, Any]] = {}
        for row in out:
            alike = json.dumps({k: v for k, v in row.items() if k != name}, sort_keys=True)
            known = groups.setdefault(alike, {**row, name: []})
            known[name] = [*known[name], *(v for v in row[name] if v not in known[name])]
        out = list(groups.values())
    return out


def dumps(data: dict[str, Any]) -> str:
    """Return the file's text: a line for each family and row."""
    parts = []
    for name, value in data.items():
        if name == "families":
            lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            parts.append(f'"families": {{\n{lines}\n}}')
        elif name == "rows":
            lines = ",\n".join(f"  {json.dumps(row)}" for row in value)
            parts.append(f'"rows": [\n{lines}\n]')
        else:
            parts.append(f"{json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _classes(key: TuningKey) -> dict[str, list[Any]]:
    return {name: [getattr(key, name)] for name in KEY_FIELDS}


def _exactly(facts: dict[str, Any]) -> dict[str, Any]:
    width = facts["float_width"]
    texts = {k: f"^{re.escape(str(facts[k]))}$" for k in ("kind", "platform", "name", "arch")}
    return {**texts, "float_width": [width, width]}


def _shortest(variant: Variant) -> dict[str, Any]:
    """Return what `Variant(**...)` needs: the kernel, and the values that are not the default."""
    plain = Variant(variant.implementation).parameters
    return {"kernel": variant.kernel, **{k: v for k, v in variant.parameters.items() if v != plain[k]}}


def _least_loss(records: Sequence[TuningRecord]) -> Variant:
    """Return the variant whose worst share of the fastest, over all records, is the best; the first of equals."""
    shares: dict[Variant, list[float]] = {}
    for record in records:
        times = {r.variant: r.seconds for r in record.results if not r.broken and r.seconds}
        best = min(times.values())
        winner = record.winner
        for variant, seconds in times.items():
            # The winner may be a simpler variant within the tolerance: as good as the fastest.
            shares.setdefault(variant, []).append(1.0 if variant == winner else min(best / seconds, 0.999))
    everywhere = {v: min(s) for v, s in shares.items() if len(s) == len(records)}
    if not everywhere:
        everywhere = {record.winner: 0.0 for record in records if record.winner is not None}
    return max(everywhere, key=lambda v: everywhere[v])
