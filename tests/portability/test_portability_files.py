"""Reading of files: every kind, damaged and foreign ones."""

import copy
import json
import lzma
import re
from pathlib import Path

import pytest
from changed_fields import ABSENT, changed_fields
from made_up_files import every_field, fleet, small, spoil, tuning, verification

from clrope.benchmark.kernel_tuner_files import of_bench
from clrope.benchmark.report import tables
from clrope.benchmark.results import LARGEST_RESULT
from clrope.portability.page import page_text
from clrope.portability.portability_report import make_report, markdown_text, write_csv
from clrope.portability.report_files import read_files
from clrope.portability.run_changes import compare_runs
from clrope.portability.tried_variants import tried_keys

ROOT = Path(__file__).parents[2]


def test_every_kind_is_read(put):
    names = [put("b.json", small()), put("v.json", verification()), put("t.json", tuning()), put("f.json", fleet())]
    found = read_files(names)
    assert found.unread == []
    assert len(found.benches) == 3
    assert found.origins == ["b.json", "f.json", "f.json"]
    assert [r.get("worker") for r in found.benches] == [None, "w1", "w2"]
    assert (len(found.verifications), len(found.tunings), len(found.fleets)) == (1, 1, 1)
    assert found.files == ["b.json", "f.json", "v.json", "t.json"]


def test_the_kept_results_are_read():
    names = sorted(map(str, (ROOT / "bench" / "results").glob("*.json")))
    found = read_files([*names, *map(str, (ROOT / "bench" / "results").glob("tuning*.xz"))])
    assert found.unread == []
    assert len(found.benches) > len(names)
    assert len(tried_keys(found)) > 80


def test_files_of_one_name_are_told_apart(put, tmp_path):
    (tmp_path / "other").mkdir()
    names = [put("b.json", small()), put("other/b.json", small()), put("c.json", small())]
    assert read_files([*names, names[0]]).origins == [names[0], names[1], "c.json"]


def test_what_tuning_remembers_is_read(put):
    record = tuning()["devices"][0]["records"][0] | {"device": "Portable Computing Language | A | 1", "cpu": "C"}
    record["key"] = {field: record.pop(field) for field in ("dtype", "pairing", "in_place", "size")}
    found = read_files([put("tuning.json", {"schema": "clrope.tuning/6", "entries": {"key": {"record": record}}})])
    assert found.unread == []
    (key,) = tried_keys(found)
    assert key.name == "pocl · f32 neox out of place large"


def broken(change):
    """A result with a change."""
    result = copy.deepcopy(small())
    change(result)
    return result


FOREIGN = {
    "text": ("hello", "holds no JSON"),
    "empty": ("", "holds no JSON"),
    "cut": (json.dumps(small())[:-100], "holds no JSON"),
    "list": ([1, 2], "got list, an object with a schema is needed"),
    "foreign": ({"schema": "other/1"}, "got schema 'other/1', allowed are clrope.bench/1"),
    "no schema": ({"a": 1}, "got schema None"),
    "no workloads": ({"schema": "clrope.bench/1"}, "is no such result: Object missing required field"),
    "type": (broken(lambda r: r["workloads"][0].update(bytes_moved="9")), "workloads"),
    "no time": (broken(lambda r: r["workloads"][0]["entries"][0].pop("wall")), "a timed entry lacks wall"),
    "zero time": (broken(lambda r: r["workloads"][0]["entries"][0]["wall"].update(median=0)), "wall.median"),
    "no bytes": (
        broken(lambda r: r["workloads"][0]["entries"][0].update(bytes=0, name="rope numpy")),
        "moves no bytes",
    ),
    "no tensors": (broken(lambda r: r["workloads"][0].update(tensors=[])), "tensors"),
    "stranger": (broken(lambda r: r["devices"].pop("intel")), "is of intel, no device"),
    "name": (broken(lambda r: r["workloads"][0].update(name="prefill")), "workloads"),
    "infinite": (broken(lambda r: r.update(seconds=float("inf"))), "got Infinity, numbers are finite"),
    "missing": (broken(lambda r: r.update(missing=5)), r"missing"),
    "missing null": (broken(lambda r: r.update(missing=[None])), r"missing\[0\]"),
    "clpeak": (broken(lambda r: r["devices"]["pocl"].update(clpeak_gbs="fast")), "clpeak_gbs"),
    "event": (broken(lambda r: r["workloads"][0]["entries"][0].update(event=None)), "event"),
    "device": (broken(lambda r: r["workloads"][0]["entries"][-1].update(device=None)), "device"),
    "no device": (broken(lambda r: r["workloads"][0]["entries"][0].pop("device")), "arrays names no device"),
    "worker": (broken(lambda r: r.update(worker=None)), "worker"),
    "deep": ("[" * 200_000, "holds no JSON"),
    "verify": (verification() | {"bits": None}, "is no such result: .*bits"),
    "tune": (tuning() | {"devices": [{"device": "d"}]}, "is no such result: .*records"),
    "memory": ({"schema": "clrope.tuning/6", "entries": {"k": 1}}, "holds an entry without a record"),
    "fleet": (fleet(results=[small()]), "with a worker"),
    "fleet in a fleet": (fleet(results=[fleet() | {"worker": "w"}]), "with a worker"),
    "summary": (
        {"schema": "clrope.bench.device/1"},
        "samples: got None, the name of a file in the same folder is needed",
    ),
    "summary of nothing": ({"schema": "clrope.bench.device/1", "samples": "none.json.xz"}, "cannot be read"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_damaged_or_foreign_file_is_refused_by_name(name, put):
    data, message = FOREIGN[name]
    bad, good = put("bad.json", data), put("good.json", small())
    found = read_files([bad, good])
    (line,) = found.unread
    assert line.startswith((bad, str(Path(bad).parent)))
    assert re.search(message, line), line
    # Nothing of it is left, and the others are there.
    assert found.files == ["good.json"]


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r["devices"]["pocl"].update(clpeak_gbs=5.0),
        lambda r: r["devices"]["pocl"].update(clpeak_gbs=None),
        lambda r: r["processes"].append({"kind": "first call", "device": "pocl", "status": "error"}),
        lambda r: r["workloads"][0]["entries"].append({"kind": "peer", "name": "ggml", "status": "error"}),
    ],
)
def test_what_may_be_absent_is_reported_without(change, put, tmp_path):
    found = read_files([put("b.json", broken(change))])
    assert found.unread == []
    use_all(found, found.benches, tmp_path)


def test_a_file_that_is_too_large_is_not_unpacked(tmp_path):
    path = tmp_path / "large.json.xz"
    path.write_bytes(lzma.compress(b" " * (LARGEST_RESULT + 1), preset=0))
    (line,) = read_files([str(path)]).unread
    assert line == f"{path}: holds no compressed results: more than {LARGEST_RESULT} bytes"
    path.write_bytes(b"no lzma")
    (line,) = read_files([str(path)]).unread
    assert "holds no compressed results" in line


CHANGED = [
    ABSENT, None, -1, 0, 2**62, 2**70, 10**400, "", "x/y", [], {}, [[]], True, 1e300, 1e-320, "<script>", {"a": 1},
]  # fmt: skip
#: Parts of the fields of a kind of file, each a test.
PARTS = {
    "bench": 24, "bench of memory": 8, "bench of latency": 8, "bench of calls": 8, "verify": 8, "tune": 8, "fleet": 4,
    "fleet of verify": 8,
}  # fmt: skip
BITS = {"compared": 3, "identical": False, "different": ["ROPE(type=f32,case=1): a 1, b 2"]}
KINDS = {
    "bench": small,
    "bench of memory": lambda: every_field("prefill/f16/neox/out/forward"),
    "bench of latency": lambda: every_field("decode-1/f32/neox/out/forward"),
    "bench of calls": lambda: every_field("calls/f16/neox/out/forward"),
    "verify": verification,
    "tune": tuning,
    "fleet": lambda: fleet(results=[]),
    "fleet of verify": lambda: fleet("verify", [verification(worker=w) for w in ("w1", "w2")], bits=BITS),
}


@pytest.mark.one_in(208)
@pytest.mark.parametrize(("kind", "part"), [(kind, part) for kind, parts in PARTS.items() for part in range(parts)])
def test_a_changed_field_is_refused_or_reported(kind, part, put, tmp_path):
    """Whatever stands in a field: never another exception than an error that names the file."""
    whole = KINDS[kind]()
    before = read_files([put("whole.json", whole)]).benches
    refused = 0
    for way, value, data in changed_fields(whole, CHANGED, part, PARTS[kind]):
        name = put("changed.json", data)
        found = read_files([name])
        assert all(line.startswith(name) for line in found.unread), (way, value)
        refused += bool(found.unread)
        if not found.empty:
            try:
                use_all(found, before, tmp_path)
            except Exception as error:
                raise AssertionError(f"{kind}: {way} = {value!r}") from error
    assert refused


def use_all(found, before, folder):
    """Make everything of a report that needs no optional package."""
    report = make_report(found)
    page_text(report)
    markdown_text(found, report)
    tables(found.benches)
    write_csv(report, str(folder / "report.csv"))
    if found.benches:
        compare_runs(before, found.benches).to_dict()
        compare_runs(found.benches, before).to_dict()


def test_a_file_that_claims_many_rounds_is_reported_at_once(put):
    result = small()
    result["options"]["rounds"] = 2**62
    found = read_files([put("result.json", result)])
    assert not found.unread
    assert result["workloads"][0]["entries"][0]["name"] in page_text(make_report(found))


def test_an_entry_that_does_not_say_why_it_was_not_timed(put):
    result = small()
    entries = [e for w in result["workloads"] for e in w["entries"] if e["status"] != "ok"]
    assert entries
    for entry in entries:
        del entry["reason"]
    found = read_files([put("result.json", result)])
    assert not found.unread
    report = make_report(found)
    assert entries[0]["name"] in page_text(report)
    assert f"| {entries[0]['status']} |" in markdown_text(found, report)
    assert of_bench(result)


def test_text_of_a_file_is_text_on_the_page(put):
    evil = "<script>alert(1)</script>"
    result = spoil(small(), where=lambda w: "f16" in w["name"])
    result["devices"]["pocl"]["key"] = evil
    result["environment"]["cpu"] = evil
    for workload in result["workloads"]:
        for entry in workload["entries"]:
            if entry["status"] != "ok":
                entry["reason"] = f'{evil}" onload="x'
            elif entry["kind"] == "ceiling":
                entry["variant"] = f'"><img src=x>{evil}'
    text = page_text(make_report(read_files([put("<b>.json", result)])))
    assert "alert(1)" in text
    assert evil not in text
    assert "<img" not in text
    assert "<b>.json" not in text
    assert 'onload="x' not in text


def test_a_name_that_is_no_text_stands_on_the_page(put, tmp_path):
    path = tmp_path / "r\udcff.json"
    try:
        path.write_bytes(Path(put("good.json", small())).read_bytes())
    except OSError:
        pytest.skip("this file system takes text only")
    found = read_files([str(path)])
    assert found.files == ["r\\xff.json"]
    page_text(make_report(found)).encode()


def test_half_a_character_is_refused(put):
    data = small()
    next(iter(data["devices"].values()))["name"] = "\ud800"
    (line,) = read_files([put("bad.json", data)]).unread
    assert line.endswith("holds no JSON: a text in it has half of a pair of surrogates, which is no character")
