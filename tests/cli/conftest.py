"""What the tests of the commands share: calling them, and a real file to work on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clrope.cli.main import app
from clrope.io.files import read_metadata

DATA = Path(__file__).parent.parent / "data"
ROOT = Path(__file__).parent.parent.parent

Call = Callable[..., Any]


@pytest.fixture
def call() -> Call:
    """Run a command line in this process; returns exit_code, stdout, stderr."""

    def run(*words: object) -> Any:
        return CliRunner().invoke(app, [str(w) for w in words], catch_exceptions=False)

    return run


def in_process(*words: str, code: str = "from clrope.cli.main import main; main()", **env: str) -> Any:
    """Run a command line in a process of its own."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False,
        env={**os.environ, "PYTHONPATH": path, **env},
    )  # fmt: skip


@pytest.fixture
def llama(tmp_path: Path) -> tuple[Path, Path]:
    """A file of q and k with what a model made of them, and the model's config.json."""
    source = DATA / "transformers_llama.safetensors"
    config = tmp_path / "config.json"
    config.write_text(read_metadata(source)["config"], encoding="utf-8")
    return source, config


@pytest.fixture
def process() -> Call:
    """Run a command line in a process of its own; returns returncode, stdout, stderr."""
    return in_process
