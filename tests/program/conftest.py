"""Tuning is tried with a cache of the test's own, few spellings and small tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import clrope
from clrope import store
from clrope.program import tuning


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
    tuning.forget_read()
    yield path
    tuning.forget_read()


@pytest.fixture(scope="session")
def cpu(devices: tuple[clrope.DeviceInfo, ...]) -> clrope.DeviceInfo:
    """One CPU device."""
    found = [d for d in devices if d.kind == "cpu"]
    if not found:
        pytest.skip("no OpenCL device here is a CPU")
    return found[0]
