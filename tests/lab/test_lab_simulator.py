"""Races, accesses out of bounds and uninitialised values that Oclgrind sees, with the file's line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from lab_kernels import TABLES, changed

from clrope import ConfigError, DeviceError
from clrope.lab.counters import count
from clrope.lab.lab_kernel import LabFile, load_file
from clrope.lab.oclgrind import find_library
from clrope.lab.simulator import Finding, SimulatorReport, is_waived, read_log, simulate

try:
    find_library()
    MISSING = ""
except DeviceError as error:
    MISSING = str(error).splitlines()[0]

needs_oclgrind = pytest.mark.skipif(bool(MISSING), reason=MISSING)
ROTATION = "  y[i] = p * c - q * s;\n  y[j] = p * s + q * c;"
#: What is changed in a right kernel, the kind of what is found, and a part of the line.
FAULTS = {
    "race": ([(ROTATION, ROTATION + "\n  y[0] = p;")], "race", "y[0] = p"),
    "read beyond the end": (
        [("  const float p = x[i],", "  const float p = x[i + (slot == 0) * 1000000],")], "out of bounds", "x[i + "),
    "write beyond the end": ([(ROTATION, ROTATION + "\n  y[i + 1000000] = p;")], "out of bounds", "y[i + 1000000]"),
    "uninitialised": (
        [("  const float p = x[i],", "  float spare[4];\n  spare[slot & 1] = 0.0f;\n"
          "  if (spare[2 + (slot & 1)] > 3.0f) return;\n  const float p = x[i],")],
        "uninitialised", "spare[2 + "),
}  # fmt: skip


def write(folder: Path, edits: list[tuple[str, str]]) -> LabFile:
    path = folder / "mine.cl"
    path.write_text(changed(TABLES, edits))
    return load_file(path)


def checked(file: LabFile, **more: object) -> SimulatorReport:
    report = simulate(file, **more)  # type: ignore[arg-type]
    assert report.problem == ""
    assert report.ran >= 4
    return report


@needs_oclgrind
@pytest.mark.one_in(4)
def test_a_right_kernel_is_clean(tmp_path: Path) -> None:
    report = checked(write(tmp_path, []))
    assert report.ok
    assert report.findings == []
    assert {o.status for _, o in report.outcomes} == {"right", "not expressible"}


@needs_oclgrind
@pytest.mark.one_in(6)
def test_a_kernel_that_was_counted_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs for counting are optimized; those for races are not."""
    monkeypatch.setenv("CLROPE_CACHE_DIR", str(tmp_path / "cache"))
    file = write(tmp_path, [])
    assert {call.problem for call in count(file).calls} == {""}
    assert checked(file).ok


@needs_oclgrind
@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found_with_their_line(tmp_path: Path, name: str) -> None:
    edits, kind, text = FAULTS[name]
    file = write(tmp_path, edits)
    report = checked(file)
    assert not report.ok
    found = [f for f in report.open_findings if f.kind == kind and text in f.text]
    assert found, [str(f) for f in report.findings]
    assert file.source.splitlines()[found[0].line - 1].strip() == found[0].text
    # Which of two racing lines is reported differs from run to run, so kinds are waived.
    waived = checked(file, waivers=sorted({f.kind for f in report.findings}))
    assert waived.open_findings == []
    assert all("waived" not in str(f) and f.waived for f in waived.findings)


@needs_oclgrind
@pytest.mark.one_in(4)
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from clrope.cli.lab_command import check_kernel

    file = write(tmp_path, FAULTS["race"][0])
    with pytest.raises(SystemExit) as ended:
        check_kernel(str(file.path), races=True, quiet=True)
    assert ended.value.code == 1
    out = capsys.readouterr().out
    assert "race: " in out
    assert "y[0] = p;" in out
    assert out.splitlines()[-1] == "NOT CLEAN"
    check_kernel(str(write(tmp_path, []).path), races=True, quiet=True, json_file="-")
    report = json.loads(capsys.readouterr().out)
    assert report["ok"]
    assert report["cases"] >= 4


LOG = """
Read-write data race at global memory address 0x9000000000000010
    Kernel: rope

    First entity:  Global(3,0,0) Local(3,0,0) Group(0,0,0)
      store float 0x1, float addrspace(1)* %y at line 3 (column 8) of input.cl:
      y[0] = p;

Invalid read of size 4 at global memory address 0x1000000000000
    Kernel: rope
    Entity: Global(0,0,0) Local(0,0,0) Group(0,0,0)
    At line 2 (column 18) of input.cl:
      float p = x[9];

Read-write data race at global memory address 0x9000000000000020
    At line 3 (column 8) of input.cl:
      y[0] = p;
"""


def test_a_line_is_waived(tmp_path: Path) -> None:
    found = [Finding("race", "data race", line) for line in (3, 4)]
    assert [is_waived(f, ["race:3", "alignment"]) for f in found] == [True, False]
    assert [is_waived(f, ["race"]) for f in found] == [True, True]


def test_logs_are_read() -> None:
    found = read_log(LOG, "kernel\n  float p = x[9];\n  y[0] = p;\n")
    assert [(f.kind, f.line, f.text) for f in found] == [
        ("race", 3, "y[0] = p;"),
        ("out of bounds", 2, "float p = x[9];"),
    ]
    assert all("0x" not in f.message for f in found)


@pytest.mark.parametrize("waiver", ["speed", "race:x", ""])
def test_wrong_waivers(tmp_path: Path, waiver: str) -> None:
    with pytest.raises(ConfigError, match="waive: got"):
        simulate(write(tmp_path, []), waivers=[waiver])


@pytest.mark.parametrize("name", ["none", "x" * 5000])
def test_without_oclgrind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(os.environ, "CLROPE_OCLGRIND", str(tmp_path / f"{name}.so"))
    with pytest.raises(DeviceError, match=rf"CLROPE_OCLGRIND: got '.*{name}\.so'"):
        simulate(write(tmp_path, []))
