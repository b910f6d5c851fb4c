"""Records of tuning files whose origin is damaged are left out of new defaults."""

from __future__ import annotations

import copy
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from clrope.select import database

KEPT = sorted((Path(__file__).parents[2] / "bench" / "results").glob("tuning-*.json.xz"))[0]


@pytest.fixture(scope="module")
def entry() -> Any:
    """A sound entry."""
    return next(iter(json.loads(lzma.decompress(KEPT.read_bytes()))["entries"].values()))


def read(tmp_path: Path, entries: dict[str, Any]) -> list[Any]:
    path = tmp_path / "tuning.json"
    path.write_text(json.dumps({"schema": "clrope.tuning/6", "entries": entries}))
    try:
        return list(database.entries(str(path)).values())
    except ValueError:
        return []


def test_sound_entries_are_read(entry: Any, tmp_path: Path) -> None:
    (found,) = read(tmp_path, {"a": entry})
    assert vars(found.facts) == entry["record"]["facts"]
    assert (found.cpu, found.device) == (entry["record"]["cpu"], entry["record"]["device"])
    assert vars(found.key) == entry["record"]["key"]


@pytest.mark.parametrize("value", [None, 5, "x", [], {}, {"kind": "cpu"}])
def test_damaged_facts(value: Any, entry: Any, tmp_path: Path) -> None:
    bad = {**entry, "record": {**entry["record"], "facts": value}}
    assert len(read(tmp_path, {"bad": bad, "good": entry})) == 1


@pytest.mark.parametrize("name", ["kind", "platform", "name", "driver", "float_width", "arch"])
def test_a_fact_that_is_missing_or_of_another_type(name: str, entry: Any, tmp_path: Path) -> None:
    facts = entry["record"]["facts"]
    for damaged in ({k: v for k, v in facts.items() if k != name}, {**facts, name: [1]}):
        assert read(tmp_path, {"bad": {**entry, "record": {**entry["record"], "facts": damaged}}}) == []


@pytest.mark.parametrize("name", ["cpu", "device"])
def test_where_it_was_made(name: str, entry: Any, tmp_path: Path) -> None:
    assert read(tmp_path, {"bad": {**entry, "record": {**entry["record"], name: 7}}}) == []


@pytest.mark.parametrize("place", [["ceiling_gbs"], ["written"], ["results", 0, "seconds"], ["results", 0, "gbs"]])
def test_a_number_beyond_float64(place: list[Any], entry: Any, tmp_path: Path) -> None:
    damaged = copy.deepcopy(entry)
    *outer, last = ["record", *place]
    inner = damaged
    for key in outer:
        inner = inner[key]
    inner[last] = 10**400
    assert len(read(tmp_path, {"bad": damaged, "good": entry})) == 1
