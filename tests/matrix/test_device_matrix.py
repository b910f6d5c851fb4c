"""The table of the device matrix: what is expected, what is not, what is absent, and bits that differ."""

from __future__ import annotations

import importlib.metadata
import io
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import device_matrix
import drivers
import pytest
from device_matrix import Row, compare_bits, found_by_simulator, missed_by_simulator, print_table, read, read_tests
from drivers import LONG, TYPES, Draw, Driver, Run
from expected_failures import EXPECTED_FAILURES, KNOWN, ExpectedFailure, expected_case
from rich.console import Console

from clrope.suite.registry import suites

DEVICE = {
    "index": "0:0", "name": "some CPU", "platform": "Rusticl", "driver_version": "22.3.6", "kind": "cpu",
    "host_unified": True,
}  # fmt: skip
SEED, PART = Run(("seed",)), Run(("seed",), "type=f16")
DRIVER = Driver("rusticl", "rusticl", runs=(SEED,))


def report(*results: dict[str, Any], problem: str = "", asked: bool = True, differing: Any = ()) -> dict[str, Any]:
    cases = [{"suite": "seed", "device": "a", "detail": "", "nmse": 0.5, "digest": "1", **r} for r in results]
    tested = [{"name": "a", "asked": asked, "problem": problem, "device": DEVICE}]
    return {"devices": tested, "results": cases, "bits": {"differing": list(differing)}}


def results(**states: str) -> list[dict[str, Any]]:
    return [{"case": name, "status": status} for name, status in states.items()]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Any:
    def give(*patterns: str) -> None:
        rows = tuple(ExpectedFailure("rusticl", "22.3", pattern, "it is known") for pattern in patterns)
        monkeypatch.setattr(device_matrix, "rows_of", lambda platform, version: rows)

    return give


def test_cases_are_counted(known: Any) -> None:
    known("seed: B*", "tests/test_a.py::test_b")
    first, second = report(*results(A1="ok", A2="skip", A3="fail")), report(*results(B1="fail", B2="ok"))
    (row,) = read(DRIVER, [first, second])
    assert (row.version, row.device, row.suites) == ("22.3.6", "0:0 some CPU, cpu", "seed")
    assert (row.passed, row.skipped, row.expected) == (2, 1, 1)
    assert row.unexpected == ["seed: A3: 0.5"]
    assert list(row.digests) == ["seed: A1", "seed: B2"]


@pytest.mark.parametrize(
    ("state", "part", "want"),
    [
        ({"B1": "ok", "B2": "ok"}, SEED, ["passes, remove its row: seed: B*"]),
        ({"B1": "ok", "B2": "ok"}, PART, ["passes, remove its row: seed: B*"]),
        ({"A1": "ok"}, SEED, ["is no case, remove its row: seed: B*"]),
        ({"A1": "ok"}, PART, []),  # the part may leave it out
        ({"A1": "ok"}, Run(("modes",)), []),
        ({"B1": "ok", "B2": "fail"}, SEED, []),
    ],
)
def test_an_expected_failure_that_passes(known: Any, state: dict[str, str], part: Run, want: list[str]) -> None:
    known("seed: B*")
    (row,) = read(Driver("a", "a", runs=(part,)), [report(*results(**state))])
    assert row.unexpected == want


def test_expected_failures_of_cases_and_of_tests_do_not_meet() -> None:
    of_a_test = ExpectedFailure("rusticl", "22.3", "tests/*::test_b", "it is known")
    of_a_case = ExpectedFailure("rusticl", "22.3", "seed: *f16*", "it is known")
    assert expected_case((of_a_test, of_a_case), "seed: ROPE(type=f16,v=0)") is of_a_case
    assert expected_case((of_a_case,), "modes: ROPE(type=f16,v=0)") is None
    assert expected_case((of_a_test,), "tests/test_a.py::test_b") is None


def test_a_device_that_cannot_be_used_is_unexpected_if_it_was_asked_for() -> None:
    assert [row.unexpected for row in read(DRIVER, [report(problem="it crashed")])] == [["it crashed"]]
    assert read(DRIVER, [report(problem="it is hidden", asked=False)]) == []


def test_a_run_of_nothing_is_unexpected() -> None:
    (row,) = read(DRIVER, [report(*results(A="skip"))])
    assert row.unexpected == ["no case was run"]


def test_bits_that_differ_from_numpy_are_unexpected() -> None:
    (row,) = read(DRIVER, [report(*results(A="ok"), differing=["seed: A: a 1, NumPy 2"])])
    assert row.unexpected == ["bits differ: seed: A: a 1, NumPy 2"]


def test_a_device_that_is_told_to_be_a_gpu_must_say_so() -> None:
    (row,) = read(Driver("a", "a", runs=(SEED,), told_gpu=True), [report(*results(A="ok"))])
    assert row.unexpected == ["the device does not say that it is a GPU with memory of its own"]


def test_bits_are_compared_between_drivers() -> None:
    rows = [Row("a", digests={"x": "1", "y": "2"}), Row("b", digests={"x": "1", "y": "3", "z": "4"}), Row("c")]
    assert compare_bits(rows) == (2, ["y: {'2': ['a'], '3': ['b']}"])


QUERY = (
    "Oclgrind - OpenCL runtime error detected\n\tFunction: {}\n\tError:    CL_INVALID_VALUE\n\tFor argument '{}'\n\n"
)


def test_what_the_simulator_finds_is_unexpected() -> None:
    query = QUERY.format("clGetDeviceInfo", "param_name")
    source = QUERY.format("clCreateKernel", "_").replace("VALUE", "KERNEL_NAME").replace("For argument '_'", "Kernel '_source' not found")  # fmt: skip # noqa: E501
    assert found_by_simulator(" \n", "2 warnings generated.\n" + 2 * query + source) == []
    assert found_by_simulator("Read-write data race", query) == ["the log: Read-write data race"]
    for error in (QUERY.format("clSetKernelArg", "arg_size"), QUERY.format("clCreateKernel", "x")):
        (found,) = found_by_simulator("", query + error + query)
        assert error.split()[7] in found


def test_a_simulator_that_finds_nothing_is_unexpected() -> None:
    said = "Write-write data race at ... Uninitialized value ... Invalid write of size 4 ... Function: clSetKernelArg"
    assert missed_by_simulator(said) == []
    assert missed_by_simulator(said.replace("race", "")) == ["not found in a faulty program: 'data race'"]
    assert len(missed_by_simulator("")) == 4


def test_a_log_has_a_path_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The simulator's variables have the path of the log in them, and findings in it are read."""
    logs = []

    def write(command: Any, env: Any, **options: Any) -> Any:
        logs.append(Path(env["LOG"]))
        logs[-1].write_text("data race, Uninitialized, Invalid write" if "faulty" in command[1] else "a race")
        return subprocess.CompletedProcess([], 0, json.dumps(report(*results(A="ok"))), "clSetKernelArg")

    monkeypatch.setattr(subprocess, "run", write)
    (row,) = device_matrix.run(Driver("a", "a", {"LOG": "{log}"}, runs=(SEED,), log=True), 1, tmp_path)
    assert len(set(logs)) == 2
    assert row.unexpected == ["the log: a race"]


JUNIT = """<testsuites><testsuite>
<testcase classname="a" name="passes"/>
<testcase classname="a" name="skipped"><skipped type="pytest.skip" message="needs two"/></testcase>
<testcase classname="a" name="known"><skipped type="pytest.xfail" message="it is known"/></testcase>
<testcase classname="a" name="wrong"><failure message="assert 1 == 2">long</failure></testcase>
<testcase classname="a" name="broken"><error message="no device">long</error></testcase>
<testcase classname="a" name="cured"><failure message="[XPASS(strict)] it is known"/></testcase>
</testsuite></testsuites>"""


def test_tests_are_counted() -> None:
    row = read_tests(Driver("a", "a", tests=("tests/test_a.py",)), JUNIT)
    assert (row.suites, row.passed, row.skipped, row.expected) == ("pytest tests/test_a.py", 1, 1, 1)
    assert row.unexpected == [
        "a::wrong: assert 1 == 2", "a::broken: no device", "a::cured: [XPASS(strict)] it is known",
    ]  # fmt: skip
    assert read_tests(DRIVER, "<testsuites/>").unexpected == ["no test was passed"]


@pytest.mark.parametrize("hangs", [1, 2])
def test_a_run_that_does_not_end(hangs: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    left = [True] * hangs

    def never(command: Any, **options: Any) -> Any:
        if left:
            left.pop()
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return subprocess.CompletedProcess([], 0, json.dumps(report(*results(A="ok"))), "")

    monkeypatch.setattr(subprocess, "run", never)
    (row,) = device_matrix.run(Driver("a", "a", runs=(SEED,), patience=7.0, tries=2), 1, tmp_path)
    if hangs == 1:
        assert (row.expected, row.passed, row.unexpected) == (1, 1, [])
    else:
        assert row.unexpected[0].startswith("a run that did not end within 7 s: -m clrope verify --seed 1")


def test_a_run_is_not_begun_again_where_hangs_are_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def never(command: Any, **options: Any) -> Any:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", never)
    (row,) = device_matrix.run(DRIVER, 1, tmp_path)
    assert (row.expected, len(row.unexpected)) == (0, 1)


def test_output_that_is_no_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: subprocess.CompletedProcess([], 2, "", "no device\n"))
    (row,) = device_matrix.run(DRIVER, 1, tmp_path)
    assert row.unexpected == ["exit code 2: no device"]


def test_absent_drivers_have_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: subprocess.CompletedProcess([], 1, "", "no such package\n"))

    def none(package: str) -> Any:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "files", none)
    monkeypatch.setattr(drivers, "SYSTEM", tmp_path)
    listed = list(drivers.drivers(tmp_path, None, None, Draw(1)))
    rows = [device_matrix.run(driver, 1, tmp_path)[0] for driver in listed]
    assert len(rows) == 10
    assert all(row.absent for row in rows)
    text = io.StringIO()
    print_table(rows, Console(file=text, width=1000))
    assert text.getvalue().count(" absent  ") == 10
    packages = ("pip install intel-opencl-rt", "apt-get install mesa-opencl-icd", "apt-get install oclgrind")
    for reason in (*packages, ".ci/arm64_chroot FOLDER"):
        assert reason in text.getvalue()
    assert "pip install intel-opencl-fpga-emu-rt==2025.0.5: no such package" in text.getvalue()


def test_python_of_another_architecture(tmp_path: Path) -> None:
    assert drivers.arm64(tmp_path, Draw(1)).absent
    (tmp_path / "clrope").mkdir()
    driver = drivers.arm64(tmp_path, Draw(1))
    assert not driver.absent
    assert Path(driver.python[0]).is_file()
    done = device_matrix.execute(
        replace(driver, python=("echo", *driver.python[1:])), ["-m", "clrope"], tmp_path / "log"
    )
    assert done.stdout == f"{tmp_path} python3 -m clrope\n"


def test_unpacked_packages_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "SYSTEM", tmp_path / "system")
    for place in ("system", "unpacked"):
        made = drivers.of_debian(tmp_path / "unpacked", "some-icd", "**/libsome.so.1", "a", "a")
        assert bool(made.absent) == (place == "system")
        (tmp_path / place / "usr/lib/any").mkdir(parents=True)
        (tmp_path / place / "usr/lib/any/libsome.so.1").touch()
    found = [
        drivers.of_debian(tmp_path / root, "some-icd", "**/libsome.so.1", "a", "a").variables["OCL_ICD_VENDORS"]
        for root in ("unpacked", "none")
    ]
    assert found == [str(tmp_path / place / "usr/lib/any/libsome.so.1") for place in ("unpacked", "system")]


def test_seeds_draw_every_case(tmp_path: Path) -> None:
    """The words of the draws part a suite: each case is in one of them."""
    draws = [Draw(seed) for seed in range(60)]
    typed = {draw.of_type("modes", "layouts") for draw in draws}
    assert len(typed) == len(TYPES)
    names = ("modes", "interop", "ggml", "fusion", "models", "types", "layouts")
    small = [{draw.small(name) for draw in draws} for name in names]
    for parts in (typed, *small):
        for name in next(iter(parts)).suites:
            labels = [case.label for case in suites()[name].cases()]
            counts = [sum(all(word in label for word in part.words.split()) for label in labels) for part in parts]
            assert all(counts)
            assert sum(counts) == len(labels)
            assert parts not in small[:2] or max(counts) < 60
    turns = [Draw(seed << 16) for seed in range(12)]
    for device in ("pocl", "intel"):
        assert {run for draw in turns for run in draw.long(device) if not run.words} == {Run((name,)) for name in LONG}
    # Which suite is drawn on aarch64 says nothing about the part of it.
    (tmp_path / "clrope").mkdir()
    drawn = {drivers.arm64(tmp_path, Draw(seed + (k << 16))).runs[1] for seed in range(60) for k in range(2)}
    assert drawn == {draw.small(name) for draw in draws for name in ("modes", "types")}
    everything = Draw(1, everything=True)
    assert not any(part.words for part in (everything.of_type("modes"), everything.small("ggml")))


def test_the_files_of_known_failures() -> None:
    files = sorted(KNOWN.glob("*.json"))
    assert sum(len(json.loads(path.read_text("utf-8"))["failures"]) for path in files) == len(EXPECTED_FAILURES)
