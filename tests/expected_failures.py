"""The list of tests that fail on some device, each with the reason; each row becomes a strict xfail.

A test that passes in spite of its row fails the run: remove the row.
"""

from __future__ import annotations

import fnmatch
from typing import NamedTuple

from clrope import DeviceInfo


class ExpectedFailure(NamedTuple):
    """platform, driver: parts of the names, in any case; test: pattern of the test's id; reason."""

    platform: str
    driver: str
    test: str
    reason: str


EXPECTED_FAILURES: tuple[ExpectedFailure, ...] = (
    # ExpectedFailure("rusticl", "22.3", "tests/test_types.py::test_every_pattern*", "NaN * 0 gives 0 there"),
)


def expected_failure(
    device: DeviceInfo, test: str, rows: tuple[ExpectedFailure, ...] = EXPECTED_FAILURES
) -> ExpectedFailure | None:
    """Return the row for a test (its id without the parameters' brackets, or with them) on a device, or None."""
    for row in rows:
        names = row.platform.lower() in device.platform.lower() and row.driver.lower() in device.driver_version.lower()
        if names and (fnmatch.fnmatchcase(test, row.test) or fnmatch.fnmatchcase(test.partition("[")[0], row.test)):
            return row
    return None
