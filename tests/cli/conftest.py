"""What the tests of the commands share: calling them, and a real file to work on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_process import in_process
from typer.testing import CliRunner

from clrope.cli.main import app
from clrope.io.files import read_metadata

DATA = Path(__file__).parent.parent / "data"

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
