"""Each test of discovery runs in a process of its own (the OpenCL loader looks for drivers once) with its own cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clrope

ROOT = Path(clrope.__file__).parent.parent

#: `jobs` counts the children; `show` prints one line of JSON, the script's answer.
PRELUDE = """
import importlib, json, os, sys
from clrope.device import child, enumeration, health, pocl
jobs, real_run = [], child.run
def counted(job, env=None):
    jobs.append(job["job"])
    return real_run(job, env)
enumeration.run_child = health.run_child = pocl.run_child = counted
D = importlib.import_module("clrope.device")  # `clrope.device` itself is the function
R = importlib.import_module("clrope.call.runtime")
def show(**answer):
    print("ANSWER " + json.dumps(answer))
def listing():
    return [d.to_dict() for d in D.devices()]
"""

Script = Callable[..., dict[str, Any]]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of the test's own, for this process and those it starts."""
    path = tmp_path / "cache"
    monkeypatch.setenv("CLROPE_CACHE_DIR", str(path))
    return path


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no driver that hangs."""
    monkeypatch.setenv("CLROPE_PROBE_TIMEOUT", "600")


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # PoCL's kernels for CPU names that are tried
    for name in (
        "CLROPE_DEVICE", "PYOPENCL_CTX", "CLROPE_POCL_CPU", "CLROPE_TEST_POCL_GENERIC", "POCL_CACHE_DIR",
        "OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def script(cache: Path, clean: None, tmp_path: Path) -> Script:
    """Run Python text in a new process, in another folder; returns what it gave to `show`."""

    def run(text: str, cache_dir: Path = cache, **env: str) -> dict[str, Any]:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ, "CLROPE_CACHE_DIR": str(cache_dir), "XDG_CACHE_HOME": str(cache_dir),
            "PYTHONPATH": os.pathsep.join(paths), **env,
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + text],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=3600, check=False,
        )  # fmt: skip
        answers = [line[7:] for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stderr}"
        assert len(answers) == 1, f"{done.stdout}\n{done.stderr}"
        return json.loads(answers[0])

    return run


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory shared by the tests that only need some discovered devices; the first one fills it."""
    return tmp_path_factory.mktemp("warm")


@pytest.fixture(scope="session")
def cc() -> str:
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not found:
        pytest.skip("no C compiler here to make a broken driver with")
    return found
