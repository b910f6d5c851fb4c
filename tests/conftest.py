"""Tests that take `device` run on every healthy device that is no simulator; what is left out is said, by name.

No healthy device at all is a failure of those tests, never a skip.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import hypothesis
import numpy as np
import pytest
from drawing import draw
from expected_failures import expected_failure
from helpers import EXAMPLES, NIGHTLY, POISON, short_name

import clrope
from clrope import DeviceInfo
from clrope.call import prepare

#: Set by the first process and inherited by xdist's workers: programs that one of them has compiled the others find.
SEED = int(os.environ.setdefault("PYTEST_RUN_SEED", str(time.time_ns() % (1 << 32))))

#: Runs of fewer tests run all of them.
MANY = 100

for profile, times in (("clrope", 1), ("nightly", NIGHTLY)):
    hypothesis.settings.register_profile(
        profile,
        deadline=None,
        derandomize=False,
        print_blob=True,
        max_examples=times * EXAMPLES,
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
    )
hypothesis.settings.load_profile("clrope")


@lru_cache(maxsize=1)
def tested_devices() -> tuple[DeviceInfo, ...]:
    """Every device of `clrope.devices()` on which the tests run."""
    return tuple(d for d in clrope.devices() if d.health.ok and not d.simulator)


@lru_cache(maxsize=1)
def left_out() -> list[str]:
    """A line for each device on which they do not run."""
    lines = []
    for d in clrope.devices():
        if not d.health.ok:
            lines.append(f"NOT TESTED: {d}: {d.health.status}: {d.health.reason or 'no reason known'}")
        elif d.simulator:
            lines.append(f"not tested: {d}: a simulator")
    return lines


def pytest_report_header(config: pytest.Config) -> list[str]:
    lines = [f"OpenCL device: {short_name(d)} = {d}, driver {d.driver_version}" for d in tested_devices()]
    lines = lines or ["OpenCL device: NONE is healthy, every test that needs one fails"]
    return [f"PYTEST_RUN_SEED={SEED}", *lines, *left_out()]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if any(line.startswith("NOT") for line in left_out()):
        terminalreporter.section("OpenCL devices that were not tested", sep="=")
        for line in left_out():
            terminalreporter.line(line)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="draw nothing: run every test marked `one_in`")
    parser.addoption(
        "--rarer", type=int, default=1, metavar="N", help="draw N times fewer of the tests marked `one_in`"
    )


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--all") and len(items) > MANY:
        drawn = draw(items, SEED, config.getoption("--rarer"))
        config.hook.pytest_deselected(items=[item for item in items if item not in drawn])
        items[:] = [item for item in items if item in drawn]
    for item in items:
        spec = getattr(item, "callspec", None)
        tested = spec.params.get("device") if spec is not None else None
        if isinstance(tested, DeviceInfo):
            row = expected_failure(tested, item.nodeid)
            if row is not None:
                item.add_marker(pytest.mark.xfail(reason=row.reason, strict=True))


@pytest.fixture(scope="session", params=tested_devices() or (None,), ids=lambda d: short_name(d) if d else "none")
def device(request: pytest.FixtureRequest) -> DeviceInfo:
    """One healthy device."""
    if request.param is None:
        pytest.fail("no healthy OpenCL device: " + ("; ".join(left_out()) or "none was found"), pytrace=False)
    return request.param


@pytest.fixture(scope="session")
def devices() -> tuple[DeviceInfo, ...]:
    """All devices under test together, for comparisons between them."""
    if not tested_devices():
        pytest.fail("no healthy OpenCL device: " + ("; ".join(left_out()) or "none was found"), pytrace=False)
    return tested_devices()


@pytest.fixture(scope="session")
def seed() -> int:
    """A fresh seed for each run; every failure message of `assert_rotated` carries it."""
    return SEED


@pytest.fixture
def rng(seed: int, request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers of this test's own; the seed is printed, and shown if the test fails."""
    key = [seed, zlib.crc32(request.node.nodeid.encode())]
    print(f"np.random.default_rng({key})")
    return np.random.default_rng(key)


@pytest.fixture(autouse=True, scope="session")
def _poisoned_results() -> Iterator[None]:
    """Every output that the package allocates begins as poison, so that what no kernel wrote is seen."""
    real = prepare.result_maker

    def poisoned(x: Any) -> Any:
        make, view, alignment = real(x)

        def made_of_poison(array: Any, queue: Any) -> Any:
            made, memory = make(array, queue)
            fill_with_poison(made)
            return made, memory

        return made_of_poison, view, alignment

    prepare.result_maker = poisoned
    yield
    prepare.result_maker = real


def fill_with_poison(made: Any) -> None:
    """Fill a new array of any kind."""
    if 0 in made.shape:
        return
    if isinstance(made, np.ndarray):
        made.reshape(-1).view(np.uint8).fill(POISON)
    elif hasattr(made, "base_data"):
        import pyopencl as cl

        queue = cl.CommandQueue(made.context)
        # A blocking copy: tests that forbid waiting patch `wait` and `finish`.
        cl.enqueue_copy(queue, made.base_data, np.full(made.nbytes, POISON, np.uint8))
    else:
        made.flatten().view(sys.modules["torch"].uint8).fill_(POISON)
