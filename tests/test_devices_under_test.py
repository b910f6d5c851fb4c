"""The rules of `conftest.py`: broken devices are named, none healthy is a failure, expected failures are strict."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from drawing import draw
from expected_failures import EXPECTED_FAILURES, ExpectedFailure, expected_failure
from helpers import short_name

from clrope.device.info import DeviceInfo, Health, absent
from clrope.suite.registry import suite_names

HERE = Path(__file__).parent
pytest_plugins = ["pytester"]

OK = 'Health("ok")'
SICK = 'Health("unhealthy", "wrong", "the kernel half gave 3 wrong values", "use another one")'

INI = "[pytest]\nxfail_strict = true\nmarkers = one_in(n): as in pyproject.toml\n"


def made(platform: str = "Portable Computing Language", driver: str = "3.0") -> DeviceInfo:
    return absent(platform, "some CPU", Health("ok"), driver_version=driver)


def inner(pytester: pytest.Pytester, listed: str, test: str, rows: str = "()", options: tuple[str, ...] = ()) -> Any:
    """Run a test under this folder's conftest on made-up devices, in a process of its own."""
    pytester.makeconftest(f"""
import sys
sys.path.insert(0, {str(HERE)!r})
sys.path.insert(0, {str(HERE.parent)!r})
import clrope
from clrope.device.info import Health, absent
found = [{listed}]
clrope.devices = lambda: found
import expected_failures
from expected_failures import ExpectedFailure
expected_failures.expected_failure.__defaults__ = ({rows},)
exec(compile(open({str(HERE / "conftest.py")!r}).read(), "conftest.py", "exec"))
""")
    pytester.makepyfile(test_inner=test)
    pytester.makeini(INI)
    os.environ.pop("PYTEST_ADDOPTS", None)
    return pytester.runpytest_subprocess("-ra", "-p", "no:cacheprovider", *options)


def listed(platform: str, health: str) -> str:
    return f'absent("{platform}", "some CPU", {health}, driver_version="1.2")'


TEST = "def test_it(device):\n    assert device.health.ok\n"


def test_healthy_devices_are_tested_and_broken_ones_named(pytester: pytest.Pytester) -> None:
    healthy = [listed("Fine", OK), listed("Intel", OK)]
    devices = ", ".join([*healthy, listed("Rusticl", SICK), listed("Oclgrind", OK)])
    result = inner(pytester, devices, TEST)
    result.assert_outcomes(passed=2)
    text = result.stdout.str()
    assert text.count("NOT TESTED: some CPU [Rusticl, -]: unhealthy: the kernel half gave 3 wrong values") == 2
    assert "not tested: some CPU [Oclgrind, -]: a simulator" in text
    assert "OpenCL device: fine-- = some CPU [Fine, -], driver 1.2" in text
    assert "OpenCL devices that were not tested" in text


@pytest.mark.one_in(4)
def test_none_healthy_is_a_failure(pytester: pytest.Pytester) -> None:
    for devices in ("", listed("Rusticl", SICK)):
        result = inner(pytester, devices, TEST + "def test_both(devices):\n    pass\ndef test_none():\n    pass\n")
        result.assert_outcomes(errors=2, passed=1)
        text = result.stdout.str()
        assert "no healthy OpenCL device: " in text
        assert "OpenCL device: NONE is healthy" in text
        assert ("none was found" in text) == (devices == "")


@pytest.mark.one_in(4)
def test_expected_failures_are_strict(pytester: pytest.Pytester) -> None:
    devices = ", ".join([listed("Fine", OK), listed("Rusticl", OK)])
    rows = '(ExpectedFailure("rusticl", "1.", "*::test_it", "it is known"),)'
    failing = "def test_it(device):\n    assert device.platform == 'Fine'\n"
    result = inner(pytester, devices, failing, rows)
    result.assert_outcomes(passed=1, xfailed=1)
    assert "it is known" in result.stdout.str()
    result = inner(pytester, devices, TEST, rows)
    result.assert_outcomes(passed=1, failed=1)
    assert "XPASS(strict)" in result.stdout.str()


def test_rows_are_matched_by_platform_driver_and_test() -> None:
    row = ExpectedFailure("portable", "3.0", "tests/test_a.py::test_b*", "known")
    assert expected_failure(made(), "tests/test_a.py::test_b[pocl-0:0]", (row,)) is row
    assert expected_failure(made(), "tests/test_a.py::test_b", (row,)) is row
    assert expected_failure(made(), "tests/test_a.py::test_c", (row,)) is None
    assert expected_failure(made(driver="6.0"), "tests/test_a.py::test_b", (row,)) is None
    assert expected_failure(made("Intel(R) OpenCL"), "tests/test_a.py::test_b", (row,)) is None


def test_every_row_has_a_reason() -> None:
    for row in EXPECTED_FAILURES:
        assert len(row.reason) > 10
        if row.case:
            assert row.test.partition(":")[0] in suite_names()
        else:
            assert (HERE.parent / row.test.partition("::")[0]).exists()


def test_short_names() -> None:
    assert short_name(made()) == "pocl--"
    assert short_name(made("Intel(R) OpenCL")) == "intel--"
    assert short_name(made("Some Maker")) == "some--"


def test_the_devices_here_are_healthy(devices: tuple[DeviceInfo, ...]) -> None:
    assert all(d.health.ok and not d.simulator for d in devices)
    assert len({short_name(d) for d in devices}) == len(devices)


DRAWN = """
import pytest

@pytest.mark.one_in(5)
@pytest.mark.parametrize("a", range(50))
@pytest.mark.parametrize("b", "xy")
def test_many(a, b): pass

@pytest.mark.parametrize("a", range(5))
def test_few(a): pass

@pytest.mark.one_in(2)
def test_alone(): pass
"""


def test_a_run_draws_some_of_many_parameter_sets(pytester: pytest.Pytester) -> None:
    pytester.makeini(INI)
    items, _ = pytester.inline_genitems(pytester.makepyfile(test_drawn=DRAWN))
    runs = [frozenset(item.name for item in draw(items, seed)) for seed in range(20)]
    assert {len(run) for run in runs} == {20 + 5, 20 + 6}
    assert len(set(runs)) > 10
    assert runs[2] == {item.name for item in draw(items, 2)}


@pytest.mark.one_in(8)
def test_what_is_asked_for_is_run(pytester: pytest.Pytester) -> None:
    inner(pytester, listed("Fine", OK), DRAWN, options=("-k", "x-49")).assert_outcomes(passed=1, deselected=105)
    inner(pytester, listed("Fine", OK), DRAWN, options=("--all",)).assert_outcomes(passed=106)
