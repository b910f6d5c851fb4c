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

#: Seconds after which a process counts as hanging. No verdict depends on how long a command takes.
HANGING = 1800

Call = Callable[..., Any]


@pytest.fixture(autouse=True)
def _no_settings_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "CLROPE_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def call() -> Call:
    """Run a command line in this process; returns exit_code, stdout, stderr."""

    def run(*words: object) -> Any:
        return CliRunner().invoke(app, [str(w) for w in words], catch_exceptions=False)

    return run


def start(*words: object, code: str = "from clrope.cli.main import main; main()", **options: Any) -> Any:
    """Start a command line in a process of its own. options: of `Popen`; those in capitals are variables."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {name: options.pop(name) for name in list(options) if name.isupper()}
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)], cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **variables}, **given,
    )  # fmt: skip


def in_process(*words: object, **options: Any) -> Any:
    """Run a command line in a process of its own."""
    with start(*words, **options) as process:
        try:
            stdout, stderr = process.communicate(timeout=HANGING)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


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
