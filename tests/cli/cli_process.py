"""The command line in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent

#: Seconds after which a process counts as hanging. No verdict depends on how long a command takes.
HANGING = 1800


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
