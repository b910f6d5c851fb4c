"""Every example runs by itself, on a device that the seed draws, and what it prints is near the reference."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import clrope

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
#: Packages that an example needs and the package itself does not.
NEEDS = {"torch_zero_copy": "torch", "gguf_qk": "gguf", "local_fleet": "distributed"}
#: What takes minutes, and a model from elsewhere: `nox -s models` runs it.
LARGE = {"smollm2"}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("path", [p for p in EXAMPLES if p.stem not in LARGE], ids=lambda path: path.stem)
def test_runs_and_is_right(devices: tuple[clrope.DeviceInfo, ...], seed: int, path: Path) -> None:
    device = devices[(seed + EXAMPLES.index(path)) % len(devices)]
    needed = NEEDS.get(path.stem)
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{path.name} needs {needed}, which is not installed")
    search = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    child = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": search, "CLROPE_DEVICE": device.index},
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    errors = [float(number) for number in re.findall(r"NMSE (\S+)", child.stdout)]
    assert errors, child.stdout
    assert max(errors) < 1e-5, child.stdout


def test_one_line_each_and_short() -> None:
    listed = re.findall(r"^\| \[([\w/]+\.py)\]\(\1\)", (ROOT / "examples/README.md").read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == sorted(path.relative_to(ROOT / "examples").as_posix() for path in EXAMPLES)
    for path in EXAMPLES:
        assert len(path.read_text(encoding="utf-8").splitlines()) < 60, path.name
