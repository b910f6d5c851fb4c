"""The table of the device matrix: what is expected, what is wrong, what is absent, and bits that differ."""

from __future__ import annotations

import importlib.metadata
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import device_matrix
import drivers
import pytest
from device_matrix import Row, compare_bits, logged, print_table, read, verify
from drivers import Driver
from expected_failures import EXPECTED_FAILURES, KNOWN, ExpectedFailure, expected_case
from rich.console import Console

DEVICE = {"index": "0:0", "name": "some CPU", "platform": "Rusticl", "driver_version": "22.3.6", "kind": "cpu"}
DRIVER = Driver("rusticl", "rusticl", ("seed",))


def report(*results: dict[str, Any], trouble: str = "", asked: bool = True) -> dict[str, Any]:
    cases = [{"suite": "seed", "device": "a", "detail": "", "nmse": 0.0, "digest": "1", **r} for r in results]
    return {"devices": [{"name": "a", "asked": asked, "trouble": trouble, "device": DEVICE}], "results": cases}


def test_cases_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    known = ExpectedFailure("rusticl", "22.3", "seed: B*", "known")
    stale = ExpectedFailure("rusticl", "22.3", "seed: C*", "known")
    of_a_test = ExpectedFailure("rusticl", "22.3", "tests/test_a.py::test_b", "known")
    monkeypatch.setattr(device_matrix, "rows_of", lambda platform, version: (known, stale, of_a_test))
    states = [("A1", "ok"), ("A2", "skip"), ("A3", "fail"), ("B1", "fail"), ("C1", "ok")]
    (row,) = read(DRIVER, report(*({"case": name, "status": state} for name, state in states)))
    assert (row.device, row.suites) == ("0:0 some CPU, 22.3.6, cpu", "seed")
    assert (row.passed, row.skipped, row.expected) == (2, 1, 1)
    assert row.wrong == ["seed: A3: 0.0", "passes, remove its row: seed: C*"]
    assert expected_case((of_a_test, known), "seed: B2") is known
    assert expected_case((known,), "modes: B2") is None


def test_a_device_in_trouble_is_wrong_if_it_was_asked_for() -> None:
    assert [row.wrong for row in read(DRIVER, report(trouble="it crashed"))] == [["it crashed"]]
    assert read(DRIVER, report(trouble="it is hidden", asked=False)) == []


def test_bits_are_compared_between_drivers() -> None:
    rows = [Row("a", digests={"x": "1", "y": "2"}), Row("b", digests={"x": "1", "y": "3", "z": "4"}), Row("c")]
    assert compare_bits(rows) == (2, ["y: {'2': ['a'], '3': ['b']}"])


QUERY = (
    "Oclgrind - OpenCL runtime error detected\n\tFunction: {}\n\tError:    CL_INVALID_VALUE\n\tFor argument '{}'\n\n"
)


def test_what_the_simulator_finds_is_wrong() -> None:
    query = QUERY.format("clGetDeviceInfo", "param_name")
    assert logged(" \n", "2 warnings generated.\n" + 3 * query) == []
    assert logged("Read-write data race", query) == ["its log: Read-write data race"]
    (found,) = logged("", query + QUERY.format("clSetKernelArg", "arg_size"))
    assert "clSetKernelArg" in found


def test_a_run_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def never(command: Any, **options: Any) -> Any:
        runs.append(options["timeout"])
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", never)
    assert verify(Driver("a", "a", (), patience=7.0, tries=2), [], {}) is None
    assert runs == [7.0, 7.0]
    (row,) = device_matrix.run(DRIVER, 1, Path("/tmp"))
    assert row.wrong == ["1 runs that did not end within 600 s"]


def test_output_that_is_no_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: subprocess.CompletedProcess([], 2, "", "no device\n"))
    (row,) = device_matrix.run(DRIVER, 1, tmp_path)
    assert row.wrong == ["exit code 2: no device"]


def test_absent_drivers_have_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: subprocess.CompletedProcess([], 1, "", "no such package\n"))

    def none(package: str) -> Any:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "files", none)
    rows = [device_matrix.run(driver, 1, tmp_path)[0] for driver in drivers.drivers(tmp_path, tmp_path, None)]
    assert len(rows) == 9
    assert all(row.absent for row in rows)
    text = io.StringIO()
    print_table(rows, Console(file=text, width=400))
    assert "absent: pip install intel-opencl-rt" in text.getvalue()
    assert "apt-get install mesa-opencl-icd" in text.getvalue()
    assert "pip install intel-opencl-fpga-emu-rt: no such package" in text.getvalue()


def test_the_files_of_known_failures() -> None:
    files = sorted(KNOWN.glob("*.json"))
    assert sum(len(json.loads(path.read_text("utf-8"))["failures"]) for path in files) == len(EXPECTED_FAILURES)
