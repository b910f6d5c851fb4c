"""What the tests of fleets share: clusters of processes, and the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import clrope
from clrope.cli.main import app


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Any]:
    """A scheduler without workers, and all that is started with it."""
    reason = "distributed is not installed: pip install 'clrope[dask]'"
    pytest.importorskip("distributed", reason=reason)
    from fleet_processes import Processes

    made = Processes(tmp_path)
    yield made
    made.end()


@pytest.fixture
def one(devices: tuple[clrope.DeviceInfo, ...]) -> clrope.DeviceInfo:
    """One healthy device: what happens to workers does not depend on which."""
    return devices[0]


@pytest.fixture
def two(devices: tuple[clrope.DeviceInfo, ...]) -> list[clrope.DeviceInfo]:
    """Two devices with different keys."""
    found = list({d.key: d for d in devices}.values())
    if len(found) < 2:
        pytest.skip(f"there is one device, {found[0]}; two of different drivers are needed")
    return found[:2]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a command line in this process; returns exit_code, stdout, stderr."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*words: object) -> Any:
        return CliRunner().invoke(app, [str(w) for w in words], catch_exceptions=False)

    return run
