"""Runs the conformance suites on every OpenCL driver of `drivers.py`, each alone, and prints one table.

All drivers get the same inputs, so the bits of a case are compared between all of them. A case that is known to fail
has a row in `tests/known_failures/`. Exit code 1 for a failure that is not expected, an expected one that passes,
other bits, or a log that is not empty; with `--require` also for a driver that is absent.
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

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "faults")]

from drivers import Driver, drivers  # noqa: E402
from expected_failures import expected_case, rows_of  # noqa: E402
from fault_layer import compile_layer  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

#: Queries of clrope that OpenCL 1.2 does not know, and PyOpenCL's look for the source of a program made from a binary.
HARMLESS = re.compile(
    r"\s*Function: (clGetDeviceInfo\s+Error:\s+CL_INVALID_VALUE\s+For argument 'param_name'"
    r"|clCreateKernel\s+Error:\s+CL_INVALID_KERNEL_NAME\s+Kernel '_source' not found)\s"
)


@dataclass
class Row:
    """What became of the suites on one device of a driver."""

    driver: str
    device: str = ""
    suites: str = ""
    passed: int = 0
    skipped: int = 0
    expected: int = 0
    wrong: list[str] = field(default_factory=list)
    absent: str = ""
    seconds: float = 0.0
    digests: dict[str, str] = field(default_factory=dict)


def run(driver: Driver, seed: int, folder: Path) -> list[Row]:
    """Run the suites of a driver; one row for each of its devices."""
    if driver.absent:
        return [Row(driver.name, absent=driver.absent)]
    place = Path(tempfile.mkdtemp(dir=folder))
    log = place / "log"
    variables = {name: value.format(log=log) for name, value in driver.variables.items()}
    env = {**os.environ, "CLROPE_CACHE_DIR": str(place / "cache"), "POCL_CACHE_DIR": str(place / "pocl"), **variables}
    (place / "pocl").mkdir()
    rows: dict[str, Row] = {}
    said = ""
    for words in driver.filters:
        command = [sys.executable, "-m", "clrope", "verify", "--seed", str(seed), "--json", "-"]
        command += ["--device", driver.device] if driver.device else []
        command += [part for suite in driver.suites for part in ("--suite", suite)]
        command += ["--filter", words] if words else []
        begun = time.perf_counter()
        done = verify(driver, command, env)
        if done is None:
            return [Row(driver.name, wrong=[f"{driver.tries} runs that did not end within {driver.patience:g} s"])]
        try:
            report = json.loads(done.stdout)
        except ValueError:
            return [Row(driver.name, wrong=[f"exit code {done.returncode}: {' '.join(done.stderr.split())[-300:]}"])]
        said += done.stderr
        for row in read(driver, report):
            kept = rows.setdefault(row.device, row)
            if kept is not row:
                kept.passed, kept.skipped, kept.expected = (
                    kept.passed + row.passed, kept.skipped + row.skipped, kept.expected + row.expected
                )  # fmt: skip
                kept.wrong += row.wrong
                kept.digests |= row.digests
            kept.seconds += time.perf_counter() - begun
    first = next(iter(rows.values()), None)
    if first is None:
        return [Row(driver.name, wrong=["no device was verified"])]
    if driver.log:
        first.wrong += logged(log.read_text(errors="replace") if log.exists() else "", said)
    return list(rows.values())


def verify(driver: Driver, command: Sequence[str], env: dict[str, str]) -> subprocess.CompletedProcess[str] | None:
    """Return how the command ended; None where no run that the driver is allowed ended in time."""
    for _ in range(driver.tries):
        try:
            return subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=driver.patience, check=False
            )
        except subprocess.TimeoutExpired:
            print(f"  no end within {driver.patience:g} s", file=sys.stderr, flush=True)
    return None


def logged(log: str, said: str) -> list[str]:
    """Return what Oclgrind found: its log, and errors of calls, but for queries that its OpenCL does not know."""
    found = [f"its log: {' '.join(log.split())[:300]}"] if log.strip() else []
    for block in said.split("OpenCL runtime error detected")[1:]:
        if not HARMLESS.match(block):
            found.append(f"its errors: {' '.join(block.split())[:200]}")
    return found


def read(driver: Driver, report: dict[str, Any]) -> list[Row]:
    """Return a row for each device of a report of `clrope verify --json`."""
    rows = []
    for tested in report["devices"]:
        device = tested["device"]
        if tested["trouble"] and not tested["asked"]:
            continue  # of another driver, which the environment hides
        if tested["trouble"] or device is None:
            rows.append(Row(driver.name, tested["name"], wrong=[tested["trouble"] or "not found"]))
            continue
        version = device["driver_version"]
        row = Row(
            driver.name, f"{device['index']} {device['name']}, {version}, {device['kind']}", " ".join(driver.suites)
        )
        expected = rows_of(device["platform"], version)
        seen = set()
        for case in (c for c in report["results"] if c["device"] == tested["name"]):
            name = f"{case['suite']}: {case['case']}"
            known = expected_case(expected, name)
            if case["status"] == "skip":
                row.skipped += 1
            elif case["status"] == "ok":
                row.passed += 1
                row.digests[name] = case["digest"]
            elif known is not None:
                row.expected += 1
                seen.add(known)
            else:
                row.wrong.append(f"{name}: {case['detail'] or case['nmse']}")
        row.wrong += [f"passes, remove its row: {known.test}" for known in expected if known not in seen and known.case]
        rows.append(row)
    return rows


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
    table = Table("driver", "device", "suites", box=None)
    for name in ("passed", "skipped", "expected failures", "wrong", "s"):
        table.add_column(name, justify="right")
    for row in rows:
        if row.absent:
            table.add_row(row.driver, f"absent: {row.absent}")
        else:
            numbers = (row.passed, row.skipped, row.expected, len(row.wrong), round(row.seconds))
            table.add_row(row.driver, row.device, row.suites, *map(str, numbers))
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--only", action="append", help="a part of a driver's name (repeatable); default: all")
    parser.add_argument("--root", type=Path, default=Path("/"), help="where Debian's packages are unpacked; default: /")
    parser.add_argument("--seed", type=int, default=time.time_ns() % (1 << 32), help="of the inputs")
    parser.add_argument("--require", action="store_true", help="an absent driver is a failure")
    given = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = [
            driver for driver in drivers(given.root, folder, compile_layer(folder))
            if not given.only or any(part.lower() in driver.name.lower() for part in given.only)
        ]  # fmt: skip
        with ThreadPoolExecutor(2) as pool:  # most of the time one processor compiles
            for found in pool.map(lambda driver: run(driver, given.seed, folder), chosen):
                rows += found
                print(f"{found[0].driver}: {found[0].seconds:.0f} s", file=sys.stderr, flush=True)
    print_table(rows, console)
    shared, differing = compare_bits(rows)
    print(f"seed {given.seed}: {shared} cases on two devices or more, {len(differing)} with other bits")
    wrong = [f"{row.driver}: {text}" for row in rows for text in row.wrong] + differing
    absent = [row.driver for row in rows if row.absent]
    for text in wrong[:50]:
        print(f"WRONG {text}")
    return 1 if wrong or (given.require and absent) else 0


if __name__ == "__main__":
    sys.exit(main())
