"""The page: what it says first, what it shows, and where each number comes from."""

import html
import re
from html.parser import HTMLParser

import pytest
from made_up_files import fleet, small, spoil, tuning, verification
from made_up_results import CEILING, OWN, made_up

from clrope import ConfigError, RopeError
from clrope.portability import page
from clrope.portability.page import LARGEST_PAGE, page_text, write_page
from clrope.portability.portability_report import make_report
from clrope.portability.report_files import ReportInput, read_files


class PageReader(HTMLParser):
    """The marks and rows of a page, and every address in it."""

    def __init__(self, text):
        super().__init__()
        self.marks, self.rows, self.addresses, self.texts = [], [], [], []
        self._cell = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.addresses += [found[name] for name in ("href", "src", "action", "data", "srcset") if found.get(name)]
        if "data-origin" in found:
            self.marks.append([found["data-origin"], ""])
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "title"):
            self._cell = ""

    def handle_data(self, data):
        self.texts.append(data)
        if self._cell is not None:
            self._cell += data

    def handle_endtag(self, tag):
        if tag == "td":
            self.rows[-1].append(self._cell)
        if tag == "title" and self.marks:
            self.marks[-1][1] = self._cell
        if tag in ("td", "title"):
            self._cell = None


def page_of(put, *files):
    found = read_files([put(f"{k}.json", data) for k, data in enumerate(files)])
    assert found.unread == []
    report = make_report(found)
    return report, page_text(report)


def test_all_sections_are_there(put):
    report, text = page_of(put, small(), verification(), tuning())
    assert {chart.name for chart in report.charts} == {
        "summary", "bandwidth", "roofline", "sizes", "latency", "one-shot-f32",
        "cascade-architectural", "cascade-application", "variants",
    }  # fmt: skip
    empty = [section.name for section in report.sections if section.empty]
    assert empty == []
    for chart in report.charts:
        assert f'id="figure-{chart.name}"' in text
    first, second, third = report.sentences
    assert str(first).startswith("Right results: 2 platforms on A: pocl and intel; ")
    assert str(second) == "Bit-identical: all 3 compared cases on pocl and intel, and as NumPy computes them."
    assert "0.96 (pocl) to 0.98 (intel)" in str(third)
    assert "performance portability 0.97 over 2 platforms" in str(third)
    for sentence in report.sentences:
        assert html.escape(sentence.text) in text.replace("&#39;", "&#x27;")


def test_the_page_is_one_small_file_without_addresses(put):
    _, text = page_of(put, small(), verification(), tuning(), fleet())
    assert len(text.encode()) < 2_000_000
    addresses = PageReader(text).addresses
    assert addresses
    assert all(address.startswith(("#", "data:,")) for address in addresses)
    assert not re.search(r"https?:|//[a-z]|url\(|@import|fetch\(|XMLHttpRequest", text)


def test_a_page_of_many_platforms_is_cut_to_size(put, monkeypatch):
    results = [small() | {"worker": f"worker-{k}"} for k in range(20)]
    report = make_report(read_files([put("fleet.json", fleet(results=results))]))
    whole = page_text(report)
    assert len(whole.encode()) < LARGEST_PAGE < 2_000_000
    limit = int(len(whole.encode()) * 0.7)
    monkeypatch.setattr(page, "LARGEST_PAGE", limit)
    text = page_text(report)
    assert len(text.encode()) < limit
    assert re.search(r"The first \d+ of \d+ rows", text)
    assert not re.search(r"The first \d+ of \d+ rows", whole)
    # The figure at the top has all of them.
    assert all(f"pocl on worker-{k}: median" in text for k in range(20))


def test_each_number_has_its_source(put):
    """Each mark and each row names a file, a run, a workload, and entries that the file has."""
    result = small()
    _, text = page_of(put, result, verification(), tuning())
    read = PageReader(text)
    entries = {
        workload["name"]: {
            " ".join(filter(None, (e["kind"], e["name"], f"({e['variant']})" if e.get("variant") else "")))
            for e in workload["entries"] if e["status"] == "ok"
        }
        for workload in result["workloads"]
    }  # fmt: skip
    assert len(read.marks) > 100
    traced = 0
    for origin, said in read.marks:
        assert said
        parts = origin.split(" › ")
        if len(parts) == 4 and parts[1].startswith("run "):
            assert parts[0] == "0.json"
            assert parts[1] == f"run {result['started']}"
            assert set(parts[3].split(", ")) <= entries[parts[2]], origin
            assert parts[2] in said or parts[2].split("/")[0] in said or "at most" in said
            traced += 1
    assert traced > 80
    rows = [row for row in read.rows if row]
    assert len(rows) > 40
    assert all(re.match(r"[012]\.json", row[-1]) for row in rows), [row for row in rows if ".json" not in row[-1]]
    speeds = [row for row in rows if row[0] in entries and row[1] in OWN and row[-1].count(" › ") == 2]
    assert len(speeds) > 20
    for row in speeds:
        assert set(row[-1].split(" › ")[2].split(", ")) <= entries[row[0]]


def test_a_number_of_the_page_is_that_of_the_file(put):
    result = small()
    read = PageReader(page_of(put, result)[1])
    name = "prefill/f16/neox/out/forward"
    (row,) = [row for row in read.rows if row[:2] == [name, "pocl"] and "ceiling" in row[-1]]
    assert row[2] == f"{OWN['pocl']:.0f}"
    assert row[4] == f"{CEILING:.0f}"
    assert row[5] == "0.96"
    assert row[6:8] == ["numba", "30"]
    (said,) = [said for _, said in read.marks if said.startswith(f"pocl: {name}: 48.0 GB/s")]
    assert said == f"pocl: {name}: 48.0 GB/s, 0.96 of the ceiling"


def test_a_wrong_device_is_said_first_and_not_plotted(put):
    report, text = page_of(put, spoil(small(), where=lambda w: w["name"] == "prefill/f16/neox/out/forward"))
    first = report.sentences[0]
    assert report.wrong
    assert (
        str(first)
        == "Wrong results: intel (3 results). Its speeds are left out, its portability is 0. pocl gave right results."
    )
    assert text.index(first.head) < min(text.index(s.head) for s in report.sentences[1:])
    assert '<p class="sentence wrong" role="alert">' in text
    assert "<title>Wrong results – Portability report" in text
    assert report.sections[0].name == "correctness"
    read = PageReader(text)
    assert [said for _, said in read.marks if said.startswith("pocl: ")]
    assert [said for _, said in read.marks if said.startswith("intel: ")] == []
    assert "intel: wrong results" in read.texts
    # No row with a speed, no share but 0.
    tables = {table.name: table for table in report.tables}
    assert {row.cells[1] for row in tables["bandwidth"].rows} == {"pocl"}
    assert {row.cells[1] for row in tables["latency"].rows} == {"pocl"}
    own = next(row for row in tables["portability"].rows if row.cells[0] == "clrope")
    assert own.cells[4] == own.cells[6] == "0.00"
    assert {row.cells[2] for row in tables["portability-problems"].rows} == {"0.00"}
    assert "performance portability 0.00 over 2 platforms" in str(report.sentences[2])
    row, *_ = tables["wrong"].rows
    assert len(tables["wrong"].rows) == 3
    assert row.cells == ("intel", "prefill/f16/neox/out/forward: arrays: NMSE 0.5")
    assert row.source == "0.json"


def test_a_device_that_fails_its_verification_is_wrong(put):
    case = "ROPE(type=f32,case=1)"
    report, _ = page_of(put, small(), verification(failing=[("intel", case)], differing=["seed: c: pocl 1, intel 2"]))
    assert str(report.sentences[0]).startswith("Wrong results: intel (1 result)")
    assert str(report.sentences[1]).startswith(
        "Bits differ: 1 of 3 compared cases, first 1.json: seed: c: pocl 1, intel 2"
    )
    assert {row.cells[1] for t in report.tables if t.name == "bandwidth" for row in t.rows} == {"pocl"}


def test_all_devices_wrong(put):
    report, text = page_of(put, spoil(spoil(small()), "pocl"))
    assert str(report.sentences[0]).startswith("Wrong results: pocl and intel (")
    assert {row.cells[0] for t in report.tables if t.name == "bandwidth" for row in t.rows} == set()
    assert "GB/s" not in " ".join(said for _, said in PageReader(text).marks if said.startswith(("pocl", "intel")))


def test_bits_of_two_verifications_of_one_seed_are_compared(put):
    other = verification()
    other["results"][2]["digest"] = "f" * 16
    other["results"][3]["digest"] = "f" * 16
    report, _ = page_of(put, verification(), other)
    assert str(report.sentences[1]).startswith("Bits differ: 1 of 9 compared cases, first seed: ROPE(type=f32,case=1)")
    other["seed"] = 8
    assert str(page_of(put, verification(), other)[0].sentences[1]).startswith("Bit-identical: all 6 compared cases")


def test_sections_without_data_say_what_would_fill_them(put):
    _, text = page_of(put, made_up(workloads=[], processes=[]))
    for line in ("clrope bench --workload &#39;size-*&#39; --json FILE", "clrope tune --json &gt; FILE",
                 "clrope verify --json FILE"):  # fmt: skip
        assert f"<code>{line}</code>" in text, line
    report, text = page_of(put, tuning())
    assert str(report.sentences[0]) == "No device: the files hold no results of devices."
    assert {section.name for section in report.sections if not section.empty} == {"variants"}
    assert "Bits not compared:" in text


def test_load_and_trials_are_warned_of(put):
    result = small()
    result["environment"] = result["environment"] | {"load_before": 3.5}
    result["workloads"][0]["load"] = 9.0
    result["options"]["tiny"] = True
    report, text = page_of(put, result)
    assert [r.head for r in report.remarks] == ["A trial:", "Loaded:"]
    (row,) = [row for table in report.tables if table.name == "environment" for row in table.rows]
    assert row.tone == "warn"
    assert row.cells[-1] == "loaded: up to 9.0 with 2 threads, at 1 workloads; short axes: no speed means anything"
    assert "1 of 1 runs had other work on the machine" in text
    assert page_of(put, small())[0].remarks == ()


def test_why_each_variant_lost(put):
    report, _ = page_of(put, tuning())
    (table,) = report.tables
    why = {row.cells[2]: row.cells[-1] for row in table.rows}
    assert why["rows4 clang"] == "-"
    assert why["rows16 clang"] == "faster by 1.0%, less than the 2% of a tie, and later in the list"
    assert why["rows8 clang"] == "slower by 50%"
    assert why["rows8 clang nontemporal"] == "gave wrong values: 3 values differ"
    assert why["rows8 builtin"] == "ended the process: SIGSEGV"
    (others,) = [row for row in table.rows if row.cells[2].endswith("more")]
    assert others.cells[2:5] == ("2 more", "slower", "10-11")


def test_a_fleet(put):
    workers = [{"worker": "w3", "host": "h", "device": "", "platform": "", "status": "missing", "reason": "killed"}]
    bits = {"compared": 5, "identical": True, "different": []}
    report, text = page_of(put, fleet(workers=workers, bits=bits))
    assert {row.cells[1] for t in report.tables if t.name == "bandwidth" for row in t.rows} == {
        "pocl on w1", "intel on w1", "pocl on w2", "intel on w2",
    }  # fmt: skip
    assert str(report.sentences[1]) == "Bit-identical: all 5 compared cases on w1 and w2."
    assert [str(r) for r in report.remarks] == ["Missing workers: w3 (killed)."]
    (table,) = [t for t in report.tables if t.name == "workers"]
    assert [row.tone for row in table.rows] == ["", "", "warn"]
    assert "killed" in text
    different = bits | {"identical": False, "different": [{"case": "c"}]}
    report, _ = page_of(put, fleet("verify", [verification(worker="w1")], bits=different))
    assert report.sentences[1].head == "Bits differ:"
    wrong = fleet()
    wrong["workers"][1] |= {"status": "wrong", "reason": "NMSE"}
    report, _ = page_of(put, wrong)
    assert "pocl on w2 and intel on w2" in str(report.sentences[0])


def test_repeats_say_which_record_is_shown(put):
    result = small()
    again = [dict(w) for w in result["workloads"]]
    result["workloads"] = [w for pair in zip(result["workloads"], again, strict=True) for w in pair]
    for workload in result["workloads"][::2]:
        workload["entries"] = [
            e | {"wall": {k: v * 2 if k != "n" else v for k, v in e["wall"].items()}}
            if e["kind"] == "clrope" and e["status"] == "ok" else e for e in workload["entries"]
        ]  # fmt: skip
    report, _ = page_of(put, result)
    (table,) = [t for t in report.tables if t.name == "bandwidth"]
    # Of two the slower one, which is the first.
    assert all(row.cells[-1] == "2" and "(record" not in row.source for row in table.rows)
    result["workloads"].reverse()
    report, _ = page_of(put, result)
    (table,) = [t for t in report.tables if t.name == "bandwidth"]
    assert all("(record 2)" in row.source for row in table.rows)


def test_write_page(tmp_path):
    found = ReportInput(benches=[small()], origins=["result.json"])
    path = write_page(found, tmp_path / "page.html")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert write_page(found, tmp_path / "again.html").read_text() == path.read_text()
    with pytest.raises(RopeError, match="cannot be written"):
        write_page(found, tmp_path / "none" / "page.html")
    with pytest.raises(ConfigError, match="--html: no file was read"):
        write_page(ReportInput(), tmp_path / "empty.html")
