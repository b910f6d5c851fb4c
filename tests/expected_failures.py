"""What is known to fail on some device: one file a driver in `known_failures/`, each row with its reason.

A row of a test of pytest becomes a strict xfail; a row of a case of `clrope verify` is read by the device matrix. What
passes in spite of its row fails the run: remove the row.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from clrope import DeviceInfo


class ExpectedFailure(NamedTuple):
    """platform, driver: parts of the names, in any case; test: pattern of a test's id or of 'suite: case'; reason."""

    platform: str
    driver: str
    test: str
    reason: str

    @property
    def case(self) -> bool:
        """Whether the row is about a case of `clrope verify`."""
        return "::" not in self.test


def _read(path: Path) -> list[ExpectedFailure]:
    known = json.loads(path.read_text(encoding="utf-8"))
    return [
        ExpectedFailure(known["platform"], known["driver"], row["test"], row["reason"]) for row in known["failures"]
    ]


KNOWN = Path(__file__).with_name("known_failures")
EXPECTED_FAILURES = tuple(row for path in sorted(KNOWN.glob("*.json")) for row in _read(path))


def rows_of(
    platform: str, driver: str, rows: Iterable[ExpectedFailure] = EXPECTED_FAILURES
) -> tuple[ExpectedFailure, ...]:
    """Return the rows of a device by the names of its platform and its driver's version."""
    return tuple(r for r in rows if r.platform.lower() in platform.lower() and r.driver.lower() in driver.lower())


def expected_failure(
    device: DeviceInfo, test: str, rows: tuple[ExpectedFailure, ...] = EXPECTED_FAILURES
) -> ExpectedFailure | None:
    """Return the row for a test (its id without the parameters' brackets, or with them) on a device, or None."""
    for row in rows_of(device.platform, device.driver_version, rows):
        if fnmatch.fnmatchcase(test, row.test) or fnmatch.fnmatchcase(test.partition("[")[0], row.test):
            return row
    return None


def expected_case(rows: Iterable[ExpectedFailure], case: str) -> ExpectedFailure | None:
    """Return the first of a device's rows whose pattern a case ('suite: case') has, or None."""
    return next((row for row in rows if row.case and fnmatch.fnmatchcase(case, row.test)), None)
