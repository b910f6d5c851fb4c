"""Kept results: a summary a device, the results compressed next to it, and documents made from them."""

import json
import lzma
import re
from pathlib import Path

import pytest
from made_up_results import made_up
from tools import acceptance, documents, store

from clrope import ConfigError
from clrope.benchmark import results
from clrope.benchmark.workloads import select

ROOT = Path(__file__).parents[2]
KEPT = sorted((ROOT / "bench" / "results").glob("*.json"))


def kept_results():
    return [result for path in KEPT for result in results.read_all(path)]


def test_documents_are_those_of_the_kept_results():
    assert KEPT
    for path, text in documents.documents(kept_results()).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `python bench/docs.py`"


def test_documents_follow_the_results(tmp_path):
    for name in ("README.md", "docs/performance.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    made = documents.documents([made_up()], tmp_path)
    assert "| f16 neox | 48 (96%) | 49 (98%) | 30 numba |" in made[tmp_path / "README.md"]
    # Both tables of the document.
    assert "### A CPU" in made[tmp_path / "docs/performance.md"]
    assert "| `strided` | any strides and pairings | 0." in made[tmp_path / "docs/performance.md"]
    (tmp_path / "README.md").write_text("no marks\n")
    with pytest.raises(ValueError, match=r"README.md: no place for the table"):
        documents.documents([made_up()], tmp_path)


def test_kept_results_are_small():
    files = [p for p in (ROOT / "bench" / "results").rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) < 1 << 20


@pytest.mark.parametrize("path", KEPT, ids=lambda p: p.stem)
def test_summary_is_that_of_the_samples(path):
    told = json.loads(path.read_text(encoding="utf-8"))
    found = results.read_all(path)
    assert told == json.loads(json.dumps(store.summary(told["label"], found))) | {"samples": told["samples"]}
    assert re.fullmatch(r"[a-z0-9-]+", path.stem)


def test_results_are_kept_and_read_back(tmp_path):
    whole = made_up()
    for w in whole["workloads"]:
        for e in w["entries"]:
            if "wall" in e:
                e["wall"]["turns"] = [e["wall"]["median"]] * 9
                e["cpu"]["turns"] = [e["cpu"]["median"]] * 9
    paths = store.keep(tmp_path, whole)
    assert [p.name for p in paths] == ["pocl-a-cpu.json", "intel-a-cpu.json"]
    for path, label in zip(paths, whole["devices"], strict=True):
        (read,) = results.read_all(path)
        want = json.loads(json.dumps(store.of_device(whole, label)))
        for w in want["workloads"]:
            for e in w["entries"]:
                e.get("cpu", {}).pop("turns", None)
        assert read == want
        told = json.loads(path.read_text())
        (line,) = (w for w in told["workloads"] if w["name"] == "prefill/f16/neox/out/forward")
        assert line["gb_per_s"] == pytest.approx({"pocl": 48, "intel": 49}[label], rel=1e-3)
        assert line["times_faster_than"]["ggml"] == pytest.approx(line["gb_per_s"] / 3, rel=1e-3)


def test_what_is_measured_again_takes_the_place_of_the_old(tmp_path):
    store.keep(tmp_path, made_up())
    again = made_up(workloads=select(["gqa/f32"]), processes=[], started="2026-02-01T00:00:00+00:00")
    path = store.keep(tmp_path, again)[0]
    old, new = results.read_all(path)
    assert new["started"] == again["started"]
    assert {w["name"] for w in new["workloads"]} == {w.name for w in select(["gqa/f32"])}
    names = [w["name"] for r in (old, new) for w in r["workloads"]]
    assert len(set(names)) == len(names)
    assert set(names) >= {w.name for w in select()}
    assert old["processes"]
    replaced = store.without([old], made_up())
    assert replaced == []


def test_broken_samples_are_told(tmp_path):
    path = store.keep(tmp_path, made_up(workloads=select(["gqa/f32"])))[0]
    samples = tmp_path / json.loads(path.read_text())["samples"]
    samples.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="no compressed results"):
        results.read_all(path)
    samples.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        results.read_all(path)


@pytest.mark.parametrize("name", [None, 1, "../x.xz", "/x.xz", ""])
def test_samples_lie_in_the_same_folder(tmp_path, name):
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"schema": results.DEVICE_SCHEMA, "samples": name}))
    with pytest.raises(ConfigError, match=r"samples: got .*, the name of a file in the same folder is needed"):
        results.read_all(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [({"workloads": 1}, "workloads: a list of objects"), ({"workloads": [1]}, "workloads: a list of objects"),
     ({"workloads": [{"entries": {}}]}, "entries: a list of objects"), ({"workloads": [{}]}, "entries: a list")],
)  # fmt: skip
def test_results_of_another_form(tmp_path, change, says):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(made_up() | change))
    with pytest.raises(ConfigError, match=says):
        results.read_all(path)
    (tmp_path / "x.xz").write_bytes(lzma.compress(b"{}"))
    path.write_text(json.dumps({"schema": results.DEVICE_SCHEMA, "samples": "x.xz"}))
    with pytest.raises(ConfigError, match="got dict, a list of results is needed"):
        results.read_all(path)


def test_a_single_result_is_read_as_well(tmp_path):
    results.write(made_up(), tmp_path / "r.json")
    assert results.read_all(tmp_path / "r.json") == [made_up()]


@pytest.mark.one_in(8)
@pytest.mark.parametrize("path", KEPT, ids=lambda p: p.stem)
def test_kept_results_are_what_the_schema_says(path):
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(results.schema())
    for result in results.read_all(path):
        validator.validate(result)


def test_the_file_of_an_interrupted_run_is_read_as_any_other(tmp_path):
    chosen = select(["prefill/f32/neox/out/forward"])
    whole, part = made_up(workloads=chosen), made_up(workloads=chosen, missing=["prefill/f16/neox/out/forward"])
    results.write(part, tmp_path / "r.json")
    (read,) = results.read_all(tmp_path / "r.json")
    assert read == json.loads(json.dumps(part))
    assert acceptance.check([read]) == acceptance.check([whole])
    paths = store.keep(tmp_path, part)
    assert [results.read_all(path)[0]["workloads"] for path in paths] == [
        json.loads(json.dumps(store.of_device(whole, label)["workloads"])) for label in whole["devices"]
    ]
