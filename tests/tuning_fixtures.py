"""Fixtures for tests of tuning: a cache directory of the test's own, and one CPU device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import clrope
from clrope import store
from clrope.select import database


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache directory of the test's own, with what is known of the devices, and nothing of tuning."""
    known = store.cache_dir()
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    for file in known.glob("*.json"):
        if file.name != "tuning.json":
            (path / file.name).write_bytes(file.read_bytes())
    if (known / "pocl").is_dir():
        (path / "pocl").symlink_to(known / "pocl")
    monkeypatch.setenv("CLROPE_CACHE_DIR", str(path))
    database.reread()
    yield path
    database.reread()


@pytest.fixture(scope="session")
def cpu(devices: tuple[clrope.DeviceInfo, ...]) -> clrope.DeviceInfo:
    """One CPU device."""
    found = [d for d in devices if d.kind == "cpu"]
    if not found:
        pytest.skip("no OpenCL device here is a CPU")
    return found[0]
