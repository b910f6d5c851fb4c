"""`clrope report` on the command line."""

import csv
import html
import importlib
import io
import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_up_files import fleet, renamed, small, spoil, tuning, verification
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from clrope.benchmark import report as benchmark_report
from clrope.cli.main import app


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Run a command line in a new folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def run(*words):
        return CliRunner().invoke(app, [str(w) for w in words], catch_exceptions=False, env={"COLUMNS": "200"})

    return run


def test_the_page_is_written_by_default(call, put):
    done = call("report", put("b.json", small()), put("v.json", verification()), put("t.json", tuning()))
    assert done.exit_code == 0, done.output
    assert "Right results:" in done.stdout
    assert "Bit-identical:" in done.stdout
    assert "Bytes read and written a second" in done.stdout
    assert done.stdout.splitlines()[-1] == "written: clrope-report.html"
    assert "<h1>Portability report</h1>" in Path("clrope-report.html").read_text(encoding="utf-8")


def test_the_page_by_name_and_no_page(call, put, tmp_path):
    name = put("b.json", small())
    page = tmp_path / "p.html"
    assert call("report", name, "-o", page, "--quiet").stdout.splitlines()[-1] == f"written: {page}"
    assert page.exists()
    assert call("report", name, "--html", page, "--markdown", "m.md").exit_code == 0
    assert sorted(os.listdir()) == ["m.md"]
    assert call("report", name, "--json").exit_code == 0
    assert sorted(os.listdir()) == ["m.md"]
    refused = call("report", name, "-o", tmp_path / "no" / "p.html")
    assert refused.exit_code == 2
    assert "cannot be written" in refused.stderr


def test_json_is_as_before(call, put):
    done = call("report", put("b.json", small()), "--json")
    tables = json.loads(done.stdout)
    assert [t["title"] for t in tables] == [t.title for t in benchmark_report.tables([small()])]


def test_without_jinja2(call, put, monkeypatch):
    real = importlib.import_module

    def missing(name, *more):
        if name == "jinja2":
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(importlib, "import_module", missing)
    name = put("b.json", small())
    done = call("report", name)
    assert done.exit_code == 0
    assert "Bytes read and written a second" in done.stdout
    assert done.stderr == "clrope: no page: --html: Jinja2 is needed, `pip install 'clrope[report]'`\n"
    refused = call("report", name, "-o", "p.html")
    assert refused.exit_code == 2
    assert "Jinja2 is needed" in refused.stderr
    assert os.listdir() == []


def test_markdown(call, put):
    wrong = spoil(small(), where=lambda w: w["name"].startswith("prefill"))
    done = call("report", put("b.json", wrong), put("v.json", verification()), "--markdown", "m.md")
    assert done.exit_code == 0
    text = Path("m.md").read_text(encoding="utf-8")
    assert "**Wrong results:** intel" in text
    assert "| prefill/f16/neox/out/forward | pocl | 48 |" in text
    assert "### Performance portability" in text
    assert "### Verified cases" in text
    assert "### Wrong results" in text
    lines = text.splitlines()
    heads = [n for n, line in enumerate(lines) if line.startswith(("|:", "|--"))]
    assert len(heads) > 5
    assert all(lines[n].count("|") == lines[n - 1].count("|") for n in heads)


def test_markdown_of_hostile_files(call, put):
    text = "<script>x</script>\n\n| a | b |\n**c**"
    result = spoil(renamed(small(), {"pocl": text}), text)
    result["environment"]["cpu"] = result["workloads"][0]["entries"][-1]["reason"] = text
    done = call("report", put("b.json", result), put("v.json", verification()), "--markdown", "m.md")
    assert done.exit_code == 0, done.output
    shown = MarkdownIt("commonmark").enable("table").render(Path("m.md").read_text(encoding="utf-8"))
    assert "<script" not in shown
    assert "<strong>c" not in shown
    # Every row is in its table.
    assert "<p>|" not in shown
    assert shown.count("&lt;script&gt;x&lt;/script&gt; | a | b | **c**") > 10


def test_csv(call, put):
    name = put("b.json", small())
    assert call("report", name, "--csv", "all.csv").exit_code == 0
    text = Path("all.csv").read_text(encoding="utf-8")
    parts = {part.splitlines()[0][2:]: part for part in text.split("\n\n")}
    assert {"bandwidth", "latency", "portability", "environment"} <= set(parts)
    assert call("report", name, "--csv", "tables/").exit_code == 0
    rows = list(csv.DictReader(io.StringIO(Path("tables/bandwidth.csv").read_text(encoding="utf-8"))))
    assert {"workload", "platform", "GB/s", "of it", "source"} <= set(rows[0])
    assert rows[0]["source"].startswith("b.json › run 2026-01-01T00:00:00+00:00 › ")
    Path("there").mkdir()
    assert call("report", name, "--csv", "there").exit_code == 0
    assert sorted(os.listdir("there")) == sorted(os.listdir("tables"))


def test_csv_holds_no_formula(call, put):
    result = renamed(small(), {"pocl": "=1+1", "intel": "@SUM(A1)"})
    result["workloads"][0]["entries"][-1]["reason"] = "\t=cmd|x!A0"
    result["environment"]["cpu"] = "+1"
    result["processes"].append({"kind": "peak memory", "device": "-x", "status": "ok", "output_bytes": 1,
                                "extra_bytes": -(5 << 20)})  # fmt: skip
    assert call("report", put("b.json", result), "--csv", "t/").exit_code == 0
    texts = [path.read_text(encoding="utf-8") for path in Path("t").iterdir()]
    cells = [cell for text in texts for row in csv.reader(io.StringIO(text)) for cell in row]
    assert {"'=1+1", "'@SUM(A1)", "'\t=cmd|x!A0", "+1", "'-x", "-"} <= set(cells)
    assert {cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))} == {"-", "+1"}


def test_p3(call, put):
    done = call("report", put("b.json", small()), "--p3", "p3")
    assert done.exit_code == 0
    assert "written: p3/prefill-f16-neox-out-forward.csv" in done.stdout
    assert Path("p3/prefill-f16-neox-out-forward.csv").read_text().startswith("problem,platform,application,fom,")


@pytest.mark.one_in(6)
def test_figures(call, put):
    pytest.importorskip("matplotlib")
    done = call("report", put("b.json", small()), put("t.json", tuning()), "--figures", "f")
    assert done.exit_code == 0, done.output
    names = ("summary", "bandwidth", "roofline", "sizes", "latency", "one-shot-f32",
             "cascade-architectural", "cascade-application", "variants")  # fmt: skip
    assert sorted(os.listdir("f")) == sorted(f"{n}.{kind}" for n in names for kind in ("svg", "png"))
    for name in names:
        assert Path(f"f/{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert Path(f"f/{name}.svg").read_text(encoding="utf-8").count("<svg") == 1
    assert ">pocl<" in Path("f/summary.svg").read_text(encoding="utf-8")
    first = Path("f/sizes.svg").read_bytes()
    assert call("report", put("b.json", small()), "--figures", "f").exit_code == 0
    assert Path("f/sizes.svg").read_bytes() == first
    empty = call("report", put("v.json", verification()), "--figures", "f")
    assert empty.exit_code == 2
    assert "--figures: the files hold nothing to draw" in empty.stderr


@pytest.mark.one_in(4)
def test_figures_show_any_text_as_it_is(call, put):
    pytest.importorskip("matplotlib")
    labels = {"pocl": r"Foo $\frac$ bar", "intel": "_<&> $x^2$ \x1b[31m\0\x9f"}
    result = renamed(small(), labels)
    result["environment"]["cpu"] = labels["pocl"]
    done = call("report", put("b.json", result), put("t.json", tuning()), "--figures", "f", "--figure", "p.svg")
    assert done.exit_code == 0, done.output
    shown = {labels["pocl"], r"_<&> $x^2$ \x1b[31m\x00\x9f"}
    texts = {}
    for path in (*Path("f").glob("*.svg"), Path("p.svg")):
        # Of the letters of the last figure only their outlines are there, and a comment.
        parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
        texts[path.name] = {str(e.text).strip() for e in ElementTree.parse(path, parser).iter()}
    assert shown <= texts["summary.svg"]
    assert shown <= texts["sizes.svg"]
    assert {f"clrope new, {html.escape(label)}" for label in shown} <= texts["p.svg"]


def test_files_that_cannot_be_read(call, put):
    good, bad = put("good.json", small()), put("bad.json", "{")
    done = call("report", bad, good, "none.json")
    assert done.exit_code == 2
    lines = done.stderr.splitlines()
    assert lines[0].startswith(f"clrope: not read: {bad}: holds no JSON")
    assert lines[1].startswith("clrope: not read: none.json: cannot be read")
    assert "Bytes read and written a second" in done.stdout
    assert "holds no JSON" in Path("clrope-report.html").read_text(encoding="utf-8")
    Path("clrope-report.html").unlink()
    assert call("report", bad).exit_code == 2
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report"], "FILE: none given"),
        (["report", "x.json", "--fail-below", "0.9"], "--fail-below: given without --compare"),
        (["report", "x.json", "--compare", "a", "b"], "--compare: given together with FILE, got 'x.json'"),
        (["report", "--compare", "a.json", "b.json"], "OLD: a.json: cannot be read"),
    ],
)
def test_what_does_not_go_together(words, message, call):
    done = call(*words)
    assert done.exit_code == 2
    assert message in done.stderr


def changed(factor, device="intel", family="prefill"):
    """A result in which a device's rotations of a family take `factor` times the time."""
    result = small()
    for workload in result["workloads"]:
        for entry in workload["entries"]:
            if (entry["kind"], entry.get("device")) == ("clrope", device) and workload["name"].startswith(family):
                entry["wall"] = {k: v if k == "n" else round(v * factor) for k, v in entry["wall"].items()}
    return result


def test_compare(call, put):
    old, slow = put("old.json", small()), put("slow.json", changed(2.0))
    done = call("report", "--compare", old, slow)
    assert done.exit_code == 0, done.output
    assert "slower" in done.stdout
    assert "faster" not in done.stdout
    assert call("report", "--compare", slow, old).stdout.count("faster") == done.stdout.count("slower") > 0
    failed = call("report", "--compare", old, slow, "--fail-below", "0.97")
    assert failed.exit_code == 1
    assert (
        "SLOWER: prefill/f16/normal/out/forward intel arrays: 0.500 of the old speed, least allowed 0.97"
        in failed.stdout
    )
    assert call("report", "--compare", old, slow, "--fail-below", "0.4").exit_code == 0
    assert call("report", "--compare", old, old, "--fail-below", "1").exit_code == 0
    data = json.loads(call("report", "--compare", old, slow, "--fail-below", "0.97", "--json").stdout)
    assert {c["verdict"] for c in data["changes"]} == {"slower", "same"}
    assert {c["workload"].split("/")[0] for c in data["failed"]} == {"prefill"}
    assert {c["device"] for c in data["failed"]} == {"intel"}


def test_compare_what_became_wrong_or_is_gone(call, put):
    old = put("old.json", small())
    wrong = put("wrong.json", spoil(small(), where=lambda w: w["name"] == "prefill/f16/neox/out/forward"))
    done = call("report", "--compare", old, wrong)
    assert done.exit_code == 1
    assert "LOST: prefill/f16/neox/out/forward intel arrays: wrong: NMSE 0.5" in done.stdout
    fewer = small()
    del fewer["workloads"][:-1]
    done = call("report", "--compare", old, put("fewer.json", fewer))
    assert done.exit_code == 0
    assert "not compared: prefill/f16/neox/out/forward intel arrays" in done.stdout
    refused = call("report", "--compare", old, put("v.json", verification()))
    assert refused.exit_code == 2
    assert "holds no result of `clrope bench`" in refused.stderr


def test_a_fleet_is_reported(call, put):
    done = call("report", put("f.json", fleet()))
    assert done.exit_code == 0
    assert "pocl on w1" in done.stdout
