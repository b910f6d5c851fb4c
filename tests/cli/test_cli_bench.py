"""`clrope bench` as a person uses it: Ctrl-C, --resume, the last lines, files in other formats, own kernels."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from cli_process import HANGING, start

from clrope import DeviceInfo
from clrope.lab.new_kernel import write_new

SHORT = ["bench", "--tiny", "--no-peers", "--rounds", "1"]


@pytest.mark.one_in(8)
def test_an_interrupted_run_is_resumed(device: DeviceInfo, tmp_path: Path, process: Any) -> None:
    kept = tmp_path / "kept.json"
    words = [*SHORT, "--device", device.index, "--workload", "decode-1/f32", "--json", kept]
    with start(*words) as running:
        try:
            begun = time.monotonic()
            while not kept.exists() and running.poll() is None and time.monotonic() - begun < HANGING:
                time.sleep(0.005)
            running.send_signal(signal.SIGINT)
            stdout, stderr = running.communicate(timeout=HANGING)
        finally:
            running.kill()
    assert running.returncode == 130, stderr
    first = json.loads(kept.read_text())
    assert first["workloads"]
    assert first["missing"]
    assert f"MISSING, the run was interrupted: {first['missing'][0]}" in " ".join(stdout.split())
    *_, left, last = stderr.splitlines()
    assert left.startswith(f"clrope: not measured: {first['missing'][0]}")
    assert left.endswith(f"; clrope bench --resume {kept} goes on")
    assert last == "clrope: interrupted"
    assert [p.name for p in tmp_path.iterdir()] == ["kept.json"]

    done = process("bench", "--resume", kept, "--device", device.index)
    assert done.returncode == 0, done.stderr
    whole = json.loads(kept.read_text())
    assert "missing" not in whole
    assert whole["options"] == first["options"]
    assert [w["name"] for w in whole["workloads"]] == [w["name"] for w in first["workloads"]] + first["missing"]
    assert whole["workloads"][: len(first["workloads"])] == first["workloads"]
    assert f"{kept}; page: {kept.with_suffix('.html')}" in " ".join(done.stdout.split())
    again = process("bench", "--resume", kept)
    assert again.returncode == 2
    assert again.stderr == f"clrope: --resume: {kept} is complete, nothing is missing\n"


@pytest.mark.one_in(8)
def test_files_in_other_formats(device: DeviceInfo, tmp_path: Path, process: Any) -> None:
    mine = write_new(str(tmp_path / "mine"), "simple")
    t4, artifact = tmp_path / "t4", tmp_path / "artifact"
    words = ["--device", device.index, "--workload", "decode-1/f32/neox/out/forward", "--kernel", mine, "--quiet"]
    done = process(*SHORT, *words, "--t4", t4, "--artifact", artifact, "--json", "-")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result = json.loads(done.stdout)
    (source,) = (name for name in result["environment"]["kernels"] if name.startswith("lab:"))
    assert source == f"lab:{mine.name}"
    results, metadata = sorted(t4.iterdir(), reverse=True), t4 / "metadata.json"
    assert metadata in results
    (told,) = (json.loads(p.read_text()) for p in results if p != metadata)
    assert mine.name in [r["configuration"].get("kernel") for r in told["results"]]
    assert (artifact / "kernels" / mine.name).read_text() == mine.read_text()
    assert f"--kernel kernels/{mine.name} --json" in (artifact / "README.md").read_text()
    assert str(tmp_path) not in (artifact / "README.md").read_text()


def test_places_are_checked_before_anything_is_measured(call: Any, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    for words, said in (
        (["--artifact", tmp_path / "full"], f"--artifact: {tmp_path / 'full'} exists and is not empty"),
        (["--json", tmp_path], f"{tmp_path}: cannot be written (it is a folder)"),
        (["--json", tmp_path / "none" / "r.json"], "cannot be written (its folder is missing)"),
        (["--resume", tmp_path / "none.json"], "cannot be read"),
    ):
        done = call(*SHORT, "--device", "no such device", *words)
        assert done.exit_code == 2
        assert said in done.stderr


def test_a_program_that_is_not_there_is_told_once(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from clrope.benchmark import clpeak
    from clrope.cli.bench import _tell_of_clpeak

    monkeypatch.setattr(clpeak.shutil, "which", lambda name: None)
    _tell_of_clpeak()
    assert capsys.readouterr().err.startswith("clrope: clpeak is not installed: no independent ceiling")
