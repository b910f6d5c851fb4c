"""Tables, the figure and the commands, from results made up so that every figure is known."""

import json
import statistics

import pytest
from made_up_results import CEILING, OWN, PEERS, made_up, record
from markdown_it import MarkdownIt
from tools.shares import error_of_ceiling
from typer.testing import CliRunner

from clrope.benchmark import report, results, samples
from clrope.benchmark.results import WorkloadRecord
from clrope.benchmark.workloads import WORKLOADS, select
from clrope.printable import printable
from clrope.strict_json import parse_json


def test_the_made_up_result_is_one():
    pytest.importorskip("jsonschema").validate(made_up(), results.schema())


def test_a_result_is_kept_as_it_is():
    """Whatever stands in it: nothing is taken for a mark of where an entry is written."""
    result = made_up()
    result["environment"]["variables"] = {"OMP_NUM_THREADS": "@0@", "@1@": "@@1@@", "": '"@0@"', "a": "\\udcff 🦙 @"}
    result["workloads"][0]["entries"][0]["reason"] = "@0@"
    assert json.loads(results.text_of(result)) == result
    assert max(map(len, results.text_of(result).splitlines())) < 2000


def test_bytes_that_are_no_text_are_kept_as_text():
    result = made_up()
    result["environment"]["variables"] = {"a": "k\udcff.cl", "b": "\ud800 \\ud800 🦙"}
    kept = parse_json(results.text_of(result))["environment"]["variables"]
    assert kept == {"a": r"k\xff.cl", "b": r"\ud800 \ud800 🦙"}


def test_ratios_are_taken_within_a_round():
    """On a machine that is half as fast in some rounds, also against who is in a few of them only."""
    result = made_up()
    result["options"]["rounds"] = 9
    chosen = next(w for w in result["workloads"] if w["name"] == "prefill/f32/neox/out/forward")
    pace = [1, 1, 1, 1, 2, 2, 2, 2, 2]
    few = [k for k in range(9) if samples.in_round(k, 3, 9)]
    for e in chosen["entries"]:
        if e["kind"] in ("clrope", "ceiling", "peer") and e["status"] == "ok":
            at = few if e["kind"] == "peer" else range(9)
            e["wall"]["turns"] = [e["wall"]["median"] * pace[k] for k in at]
            if e["kind"] == "ceiling":
                # What was in between when the pace changed.
                e["wall"]["turns"][4] /= 2
            e["wall"] |= {"median": statistics.median(e["wall"]["turns"]), "min": e["wall"]["median"]}
    assert len(few) == 3
    one = WorkloadRecord(result, chosen)
    for device in one.devices:
        assert one.of_ceiling(device) == pytest.approx(OWN[device] / CEILING, rel=1e-3)
        assert one.against("ggml", device) == pytest.approx(OWN[device] / PEERS["ggml"], rel=1e-3)
        assert error_of_ceiling(one, device) < 0.2


def test_record():
    one = WorkloadRecord(made_up(), record(next(w for w in WORKLOADS if w.name == "prefill/f32/neox/out/forward")))
    assert one.devices == ["pocl", "intel"]
    assert one.rate("pocl") == pytest.approx(48, rel=1e-3)
    assert one.ceiling("pocl")["name"] == "copy"
    assert one.against("ggml", "pocl") == pytest.approx(16, rel=1e-3)
    assert one.against("torch_eager", "pocl") is None
    assert one.of_ceiling("pocl", "min") == pytest.approx(0.96, rel=1e-3)


def test_tables():
    made = {table.title: table for table in report.tables([made_up()])}
    assert set(made) == {"Bytes read and written a second", "Time of a call", "NumPy arrays, times of device-resident",
                         "Processes", "Not timed"}  # fmt: skip
    speed = made["Bytes read and written a second"]
    row = next(r for r in speed.rows if r[:2] == ("prefill/f16/neox/out/forward", "intel"))
    cells = dict(zip(speed.columns, row, strict=True))
    assert cells["#GB/s"] == "49"
    assert cells["#of it"] == "0.98"
    assert cells["ceiling"] == "copy vector8 4 KiB"
    assert cells["#× ggml"] == "16.3"
    assert all(len(r) == len(t.columns) for t in made.values() for r in t.rows)
    (left_out,) = made["Not timed"].rows
    assert left_out[:3] == ("torch_eager", "refused", "not today")
    text = speed.markdown()
    assert text.splitlines()[2].startswith("| workload | device | GB/s |")
    assert all(line.count("|") == text.splitlines()[2].count("|") for line in text.splitlines()[3:-2])


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>", "[a](b) ![c](d) <http://e>", "**a** *b* _c_ __d__ ___e___ (_f_)", "`a` ~~b~~ $c$",
        r"a | b \| c \\| d\\", "&lt; &amp;", "a\n\n# b\n| c | d |\n|---|---|\n", "a\r\nb\tc\x85d\u2028e", "\x1b[31m\0",
        "torch_compile prefill/f16/neox/out 1.5-2 µs", "", "-",
    ],
)  # fmt: skip
def test_markdown_shows_text_as_it_is(text):
    reader = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    table = report.Table("", ("a", "#b"), ((text, "x"), ("y", text)))
    inside = [token for token in reader.parse(table.markdown()) if token.type == "inline"]
    shown = " ".join(printable(text).split())
    assert [token.content.count("\n") for token in inside] == [0] * 6
    assert ["".join(c.content for c in token.children) for token in inside] == ["a", "b", shown, "x", "y", shown]
    assert {child.type for token in inside for child in token.children} == {"text"}
    result = made_up(workloads=[])
    for started in ("2026-01-01", "# 1", "1. a", "2) a", "- a", "+ a", "> a", "===", "    a"):
        result["started"], result["environment"]["cpu"] = started, text
        (_, line, _) = found = reader.parse(report.markdown_heading([result]))
        assert [token.type for token in found] == ["paragraph_open", "inline", "paragraph_close"]
        assert {child.type for child in line.children} == {"text"}
        assert "".join(c.content for c in line.children) == printable(report.heading([result]))


def test_heading_warns_of_tiny_runs():
    result = made_up()
    assert "TINY" not in report.heading([result])
    result["options"]["tiny"] = True
    assert "TINY: no figure means anything" in report.heading([result])


def test_figure(tmp_path):
    pytest.importorskip("matplotlib")
    path, file = tmp_path / "f.png", tmp_path / "r.json"
    results.write(made_up(workloads=select(["sizes"])), file)
    done = invoke("report", str(file), "--figure", str(path), "--quiet")
    assert done.exit_code == 0, done.output
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert path.stat().st_size > 10_000
    results.write(made_up(workloads=select(["decode-1"])), file)
    done = invoke("report", str(file), "--figure", str(path), "--quiet")
    assert done.exit_code == 2
    assert "figure: the results hold no timed one-shot calls, `clrope bench --workload sizes`" in done.stderr


def invoke(*arguments):
    from clrope.cli.main import app

    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": None})


def test_command_report(tmp_path):
    path, markdown = tmp_path / "r.json", tmp_path / "r.md"
    results.write(made_up(), path)
    done = invoke("report", str(path), "--markdown", str(markdown))
    assert done.exit_code == 0, done.output
    assert "prefill/f16/neox/out/forward" in done.stdout
    assert "| prefill/f16/neox/out/forward | pocl | 48 |" in markdown.read_text()
    tables = json.loads(invoke("report", str(path), "--json").stdout)
    assert [table["title"] for table in tables] == [table.title for table in report.tables([made_up()])]
    assert all(len(row) == len(table["columns"]) for table in tables for row in table["rows"])
    missing = invoke("report", str(tmp_path / "none.json"))
    assert missing.exit_code == 2
    assert "cannot be read" in missing.output


@pytest.mark.one_in(8)
def test_command_bench(device, tmp_path):
    listed = invoke("bench", "--list", "--workload", "vision")
    assert listed.exit_code == 0
    assert sum(line.startswith("vision/") for line in listed.stdout.splitlines()) == 12
    path = tmp_path / "r.json"
    done = invoke("bench", "--tiny", "--rounds", "1", "--device", device.index, "--workload",
                  "decode-1/f32/neox/out/forward", "--peer", "numpy", "--json", str(path))  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "decode-1/f32/neox/out/forward" in done.stdout
    (read,) = results.read_all(path)
    assert [w["name"] for w in read["workloads"]] == ["decode-1/f32/neox/out/forward"]
    assert read["options"]["tiny"]
    refused = invoke("bench", "--workload", "nonsense")
    assert refused.exit_code == 2
    assert "workload: got 'nonsense'" in refused.output
