"""Runs the conformance suites on every OpenCL driver of `drivers.py`, each alone, and prints one table.

All drivers get the same inputs, so the bits of a case are compared between all of them. A case that is known to fail
has a row in `tests/known_failures/`. Exit code 1 for a failure that is not expected, an expected one that passes,
other bits, or a log that is not empty; with `--require` also for an absent driver (aarch64: if `--arm64`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "faults")]

from drivers import ARM64, Draw, Driver, drivers, installed  # noqa: E402
from expected_failures import ExpectedFailure, expected_case, rows_of  # noqa: E402
from fault_layer import compile_layer  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

#: Queries of clrope that OpenCL 1.2 does not know, and PyOpenCL's look for the source of a program made from a binary.
HARMLESS = re.compile(
    r"\s*Function: (clGetDeviceInfo\s+Error:\s+CL_INVALID_VALUE\s+For argument 'param_name'"
    r"|clCreateKernel\s+Error:\s+CL_INVALID_KERNEL_NAME\s+Kernel '_source' not found)\s"
)
#: What the simulator has to say of `faulty_kernel.py`, in its log or as an error of a call.
FINDINGS = ("data race", "Uninitialized", "Invalid write", "clSetKernelArg")


@dataclass
class Row:
    """What became of the suites on one device of a driver."""

    driver: str
    version: str = ""
    device: str = ""
    suites: str = ""
    passed: int = 0
    skipped: int = 0
    expected: int = 0
    unexpected: list[str] = field(default_factory=list)
    absent: str = ""
    seconds: float = 0.0
    digests: dict[str, str] = field(default_factory=dict)


class Unusable(Exception):
    """A run that gave no report."""


class Endless(Unusable):
    """A run that did not end in time."""


def run(driver: Driver, seed: int, folder: Path) -> list[Row]:
    """Run the suites and tests of a driver, again where the driver is known to hang; rows as of `run_once`."""
    place = Path(tempfile.mkdtemp(dir=folder))
    if driver.packages:
        driver = installed(driver, place / "packages")
    if driver.absent:
        return [Row(driver.name, absent=driver.absent)]
    for hung in range(driver.tries):
        begun = time.perf_counter()
        try:
            rows = run_once(driver, seed, place)
            rows[0].expected += hung
            return rows
        except Unusable as error:
            rows = [Row(driver.name, unexpected=[str(error)], seconds=time.perf_counter() - begun)]
            if not isinstance(error, Endless):
                break
    return rows


def run_once(driver: Driver, seed: int, place: Path) -> list[Row]:
    """Return one row for each device of a driver, and one for the tests; raises `Unusable`."""
    rows = []
    if driver.runs:
        begun = time.perf_counter()
        rows = verify(driver, seed, place) or [Row(driver.name, unexpected=["no device was verified"])]
        rows[0].seconds = time.perf_counter() - begun
    if driver.tests:
        begun = time.perf_counter()
        rows.append(run_tests(driver, place))
        rows[-1].seconds = time.perf_counter() - begun
    return rows


def verify(driver: Driver, seed: int, place: Path) -> list[Row]:
    """Run `clrope verify` on a driver, and check its log."""
    reports, said = [], ""
    for part in driver.runs:
        command = ["-m", "clrope", "verify", "--seed", str(seed), "--json", "-"]
        command += ["--device", driver.device] if driver.device else []
        command += [word for suite in part.suites for word in ("--suite", suite)]
        command += ["--filter", part.words] if part.words else []
        done = execute(driver, command, place / "log")
        try:
            reports.append(json.loads(done.stdout))
        except ValueError:
            raise Unusable(f"exit code {done.returncode}: {' '.join(done.stderr.split())[-300:]}") from None
        said += done.stderr
    rows = read(driver, reports)
    if driver.log and rows:
        rows[0].unexpected += found_by_simulator(logged(place / "log"), said)
        done = execute(driver, [str(HERE / "faulty_kernel.py")], place / "faulty")
        rows[0].unexpected += missed_by_simulator(logged(place / "faulty") + done.stderr)
    return rows


def run_tests(driver: Driver, place: Path) -> Row:
    """Run pytest on a driver."""
    results = place / "results.xml"
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={results}", *driver.tests]
    done = execute(driver, command, place / "log")
    if not results.exists():
        raise Unusable(f"pytest: exit code {done.returncode}: {' '.join((done.stdout + done.stderr).split())[-300:]}")
    return read_tests(driver, results.read_text("utf-8"))


def execute(driver: Driver, arguments: Sequence[str], log: Path) -> subprocess.CompletedProcess[str]:
    """Run Python in the environment of a driver; raises `Endless`."""
    variables = {name: value.format(log=log) for name, value in driver.variables.items()}
    try:
        return subprocess.run(
            [*driver.python, *arguments], env={**os.environ, **variables}, cwd=HERE.parent.parent, capture_output=True,
            text=True, timeout=driver.patience, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Endless(f"a run that did not end within {driver.patience:g} s: {' '.join(arguments)}") from None


def logged(log: Path) -> str:
    """Return what a driver wrote to its log."""
    return log.read_text("utf-8", errors="replace") if log.exists() else ""


def found_by_simulator(log: str, said: str) -> list[str]:
    """Return what Oclgrind found: its log, and errors of calls, but for queries that its OpenCL does not know."""
    found = [f"the log: {' '.join(log.split())[:300]}"] if log.strip() else []
    for block in said.split("OpenCL runtime error detected")[1:]:
        if not HARMLESS.match(block):
            found.append(f"an error of a call: {' '.join(block.split())[:200]}")
    return found


def missed_by_simulator(said: str) -> list[str]:
    """Return what Oclgrind did not find in a faulty program: then an empty log would mean nothing."""
    return [f"not found in a faulty program: {text!r}" for text in FINDINGS if text not in said]


def read(driver: Driver, reports: Sequence[dict[str, Any]]) -> list[Row]:
    """Return a row for each device of the reports of `clrope verify --json`, which have the same devices."""
    rows = []
    for tested in reports[0]["devices"]:
        device, problem = tested["device"], tested["problem"]
        if problem and not tested["asked"]:
            continue  # of another driver, which the environment hides
        if driver.crash and driver.crash in problem:
            rows.append(Row(driver.name, device=tested["name"], suites="left out: it crashes on this CPU", expected=1))
            continue
        if problem or device is None:
            rows.append(Row(driver.name, device=tested["name"], unexpected=[problem or "not found"]))
            continue
        version, label = device["driver_version"], f"{device['index']} {device['name']}, {device['kind']}"
        row = Row(driver.name, version, label, "; ".join(map(str, driver.runs)))
        results = [r for report in reports for r in report["results"] if r["device"] == tested["name"]]
        count(row, driver, results, rows_of(device["platform"], version))
        if driver.told_gpu and (device["host_unified"] or device["kind"] != "gpu"):
            row.unexpected.append("the device does not say that it is a GPU with memory of its own")
        rows.append(row)
    if rows:
        rows[0].unexpected += [f"bits differ: {case}" for report in reports for case in report["bits"]["differing"]]
    return rows


def count(row: Row, driver: Driver, results: Iterable[dict[str, Any]], known: Sequence[ExpectedFailure]) -> None:
    """Count the results of a device; known: the expected failures of its driver."""
    states: dict[ExpectedFailure, list[str]] = {entry: [] for entry in known if entry.case}
    for result in results:
        name, status = f"{result['suite']}: {result['case']}", result["status"]
        entry = expected_case(known, name)
        if entry is not None:
            states[entry].append(status)
        if status == "skip":
            row.skipped += 1
        elif status == "ok":
            row.passed += 1
            row.digests[name] = result["digest"]
        elif entry is not None:
            row.expected += 1
        else:
            row.unexpected.append(f"{name}: {result['detail'] or result['nmse']}")
    if not (row.passed or row.expected or row.unexpected):
        row.unexpected.append("no case was run")
    for entry, found in states.items():
        everything = any(entry.test.partition(":")[0] in part.suites and not part.words for part in driver.runs)
        if (found or everything) and "fail" not in found:
            row.unexpected.append(f"{'passes' if found else 'is no case'}, remove its row: {entry.test}")


def read_tests(driver: Driver, results: str) -> Row:
    """Return the row of a run of pytest from its results in JUnit's format."""
    row = Row(driver.name, suites=f"pytest {' '.join(driver.tests)}", device="all of it")
    for case in ElementTree.fromstring(results).iter("testcase"):
        outcomes = {child.tag: child for child in case if child.tag in ("failure", "error", "skipped")}
        if "failure" in outcomes or "error" in outcomes:
            failed = outcomes.get("failure", outcomes.get("error"))
            assert failed is not None
            row.unexpected.append(f"{case.get('classname')}::{case.get('name')}: {failed.get('message', '')[:200]}")
        elif "skipped" in outcomes:
            known = outcomes["skipped"].get("type") == "pytest.xfail"
            row.expected += known
            row.skipped += not known
        else:
            row.passed += 1
    if not row.passed:
        row.unexpected.append("no test was passed")
    return row


def compare_bits(rows: Iterable[Row]) -> tuple[int, list[str]]:
    """Return how many cases at least two devices have, and those with different bits."""
    digests: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for case, digest in row.digests.items():
            if digest:
                digests[case][digest].append(row.driver)
    shared = {case: found for case, found in digests.items() if sum(map(len, found.values())) > 1}
    return len(shared), [f"{case}: {dict(found)}" for case, found in shared.items() if len(found) > 1]


def print_table(rows: Sequence[Row], console: Console) -> None:
    """Print a line for each row."""
    table = Table("driver", "version", "device", "suites", box=None)
    for name in ("passed", "skipped", "expected\nfailures", "unexpected", "s"):
        table.add_column(name, justify="right")
    for row in rows:
        if row.absent:
            table.add_row(row.driver, "absent", row.absent)
        else:
            numbers = (row.passed, row.skipped, row.expected, len(row.unexpected), round(row.seconds))
            table.add_row(row.driver, row.version, row.device, row.suites, *map(str, numbers))
    console.print(table)


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--only", default="", help="a pattern of names of drivers, such as 'aarch64|^pypi pocl$'")
    parser.add_argument("--root", type=Path, default=Path("/"), help="where Debian's packages are unpacked; default: /")
    parser.add_argument("--arm64", type=Path, help="a folder that .ci/arm64_chroot made")
    parser.add_argument("--seed", type=int, default=time.time_ns() % (1 << 32), help="of the inputs")
    parser.add_argument("--all", action="store_true", help="draw nothing: run every case of the suites")
    parser.add_argument("--require", action="store_true", help="an absent driver is a failure; aarch64 if --arm64")
    given = parser.parse_args()
    begun = time.perf_counter()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for variable in ("CLROPE_CACHE_DIR", "POCL_CACHE_DIR"):  # a driver's programs, once for all rows with it
            os.environ.setdefault(variable, tempfile.mkdtemp(dir=folder))
        chosen = [
            driver for driver in drivers(given.root, given.arm64, compile_layer(folder), Draw(given.seed, given.all))
            if re.search(given.only, driver.name, re.IGNORECASE)
        ]  # fmt: skip
        with ThreadPoolExecutor(2) as pool:  # most of the time one processor compiles
            for found in pool.map(lambda driver: run(driver, given.seed, folder), chosen):
                rows += found
                print(f"{found[0].driver}: {sum(row.seconds for row in found):.0f} s", file=sys.stderr, flush=True)
    print_table(rows, Console(width=None if sys.stdout.isatty() else 180))
    shared, differing = compare_bits(rows)
    print(f"seed {given.seed}: {shared} cases on two devices or more, {len(differing)} with other bits")
    print(f"{time.perf_counter() - begun:.0f} s")
    unexpected = [f"{row.driver}: {text}" for row in rows for text in row.unexpected] + differing
    for text in unexpected[:50]:
        print(f"UNEXPECTED {text}")
    missing = [row.driver for row in rows if row.absent and (row.driver != ARM64 or given.arm64)]
    return 1 if unexpected or (given.require and missing) else 0


if __name__ == "__main__":
    sys.exit(main())
