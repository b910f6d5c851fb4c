"""`clrope tune`: what it prints, and how it ends."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import clrope
from clrope.cli.main import app
from clrope.kernels.variant import STRIDED, Variant
from clrope.select import database
from clrope.select.defaults import default_for
from clrope.select.records import TuningKey, TuningRecord, VariantResult
from clrope.tune import search
from clrope.tune.winners import TuningReport

KEY = TuningKey("f32", "neox", False, "large")
RECORD = TuningRecord(
    KEY,
    (
        VariantResult(Variant(width=8), "slower", seconds=2e-3, gbs=16.0),
        VariantResult(Variant(width=4), "ok", seconds=1e-3, gbs=32.0),
        VariantResult(STRIDED, "crash", "the driver crashed with SIGSEGV", "last words"),
    ),
    16 << 20,
    ceiling_gbs=40.0,
)


def run(*arguments: str) -> tuple[int, str]:
    # pytest-xdist sets COLUMNS; without it no cell is folded.
    done = CliRunner().invoke(app, ["tune", *arguments], env={"COLUMNS": None})
    return done.exit_code, done.stdout


def test_show(cpu: clrope.DeviceInfo, cache: Path) -> None:
    code, text = run("--device", cpu.index, "--show")
    assert code == 1
    assert "not tuned: f32 neox out of place large" in text
    database.save(cpu, [RECORD])
    code, text = run("--device", cpu.index, "--show", "--type", "f32")
    assert code == 0
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "f32 neox out of place large 16 MiB 32 0.80 - rows4 builtin 3" in lines
    assert "crash strided the driver crashed with SIGSEGV" in lines
    assert "rows8" not in text
    default = VariantResult(default_for(cpu, KEY), "slower", gbs=8.0)
    database.save(cpu, [replace(RECORD, results=(*RECORD.results, default))])
    assert " 0.25  rows4 builtin" in run("--device", cpu.index, "--show")[1], "the default's share of what is fastest"
    database.save(cpu, [replace(RECORD, results=RECORD.results[-1:])])
    assert "none works" in run("--device", cpu.index, "--show")[1]


def test_details(cpu: clrope.DeviceInfo, cache: Path) -> None:
    database.save(cpu, [RECORD])
    code, text = run("--device", cpu.index, "--show", "--type", "f32", "--details")
    assert code == 0
    lines = [line.split() for line in text.splitlines()]
    assert "f32 neox out of place large, 16 MiB, copy 40 GB/s" in text
    assert [line[:4] for line in lines if line and line[0] in ("ok", "slower", "crash")] == [
        ["ok", "32", "0.80", "rows4"], ["slower", "16", "0.40", "rows8"], ["crash", "-", "-", "strided"],
    ]  # fmt: skip
    assert "the driver crashed with SIGSEGV" in text


def test_show_as_json(cpu: clrope.DeviceInfo, cache: Path) -> None:
    database.save(cpu, [RECORD])
    code, text = run("--device", cpu.index, "--show", "--json")
    assert code == 0
    (entry,) = json.loads(text)["devices"]
    assert entry["device"] == cpu.key
    (record,) = entry["records"]
    assert record == json.loads(json.dumps(RECORD.to_dict())) | {"written": record["written"]}
    assert record["winner"] == Variant(width=4).to_dict()


@pytest.mark.one_in(8)
def test_tune(cpu: clrope.DeviceInfo, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "candidates", lambda *_: [STRIDED, Variant(width=4)])
    monkeypatch.setattr(search, "NBYTES", {"small": 32 << 10, "medium": 1 << 20, "large": 2 << 20})
    code, text = run("--device", cpu.index, "--type", "f16", "--budget", "12")
    assert code == 0, text
    assert text.count("f16 neox") == 6
    assert text.count("f16 normal") == 6
    assert len(database.known(cpu, "f16", "neox").records) == 6
    again, shown = run("--device", cpu.index, "--type", "f16", "--show")
    assert again == 0
    assert text.startswith(shown)
    summary = text[len(shown) :]
    assert " of 12 use another variant than the default" in summary
    assert f"written: {cache / 'tuning.json'}; to undo it: clrope tune --forget --device {cpu.index}" in summary
    assert run("--device", cpu.index, "--forget") == (
        0, f"{cpu}: 12 records forgotten; the defaults are used again\nfile: {cache / 'tuning.json'}\n"
    )  # fmt: skip
    assert not database.known(cpu, "f16", "neox").records


def test_an_unhealthy_device_says_why(cpu: clrope.DeviceInfo, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sick = replace(cpu, health=replace(cpu.health, status="unhealthy", reason="it is ill", hint="rest"))
    monkeypatch.setattr(importlib.import_module("clrope.device.select"), "devices", lambda *_, **__: [sick])
    code, text = run("--device", cpu.index, "--budget", "5")
    assert code == 2
    assert "not tuned: " in text
    assert "it is ill" in text
    assert "what to do: rest" in text
    done = CliRunner().invoke(app, ["tune", "--device", cpu.index, "--json"])
    assert done.exit_code == 2
    assert "it is ill" in json.loads(done.stdout)["not_tuned"][0]
    assert done.stderr.startswith("clrope: not tuned: ")
    assert "it is ill" in done.stderr


def test_forget_all(cpu: clrope.DeviceInfo, cache: Path) -> None:
    database.save(cpu, [RECORD])
    database.save(replace(cpu, driver_version="another"), [RECORD])
    assert json.loads(run("--forget", "--device", cpu.index, "--json")[1])["forgotten"] == {str(cpu): 1}
    assert run("--forget")[1].startswith("all devices: 1 record forgotten; ")
    assert run("--forget")[1].startswith("all devices: 0 records forgotten; ")


def test_a_summary_says_that_the_machine_was_busy(
    cpu: clrope.DeviceInfo, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = TuningReport(cpu.key, [replace(RECORD, gain=1.25)], changed=[KEY], doubtful=[KEY], busy=0.5)
    monkeypatch.setattr(search, "tune", lambda *_, **__: report)
    lines = run("--device", cpu.index)[1].splitlines()[-4:]
    assert lines[0] == (
        "1 of 1 use another variant than the default, at 1.25 times its speed (median); 1 changed in this run"
    )
    assert lines[1].endswith("not faster beyond doubt: tune again when the machine is idle")
    assert lines[2].startswith("other programs used 50% of the CPUs during the run: a BUSY machine")
    (device,) = json.loads(run("--device", cpu.index, "--json")[1])["devices"]
    assert (device["changed"], device["in_doubt"], device["busy"]) == ([str(KEY)], [str(KEY)], 0.5)


def test_what_makes_no_sense() -> None:
    assert run("--type", "f7")[0] == 2
    for budget in ("0", "1x", "m", "nan", "1e9h"):
        done = CliRunner().invoke(app, ["tune", "--budget", budget])
        assert done.exit_code == 2
        assert f"got '{budget}', allowed is a number from 1 to 10000000 seconds" in " ".join(done.stderr.split())
    assert run("--parameters", "--budget", "1m")[0] == 0
    assert run("--forget", "--type", "f32")[0] == 2
