"""PyOpenCL's own cache of the user: a damaged one, or none that can be made, costs no result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import clrope

HANGING = 1800
CALL = """
import sys
import clrope
import numpy as np
from clrope.emulation import emulate_rope
x = np.ones((1, 2, 2, 16), np.float32)
for position in (1, 2):
    got = clrope.rope(x, position, mode="neox", n_dims=16, device=sys.argv[1])
    assert got.tobytes() == emulate_rope(x, position, clrope.RopeConfig("neox", 16)).tobytes()
"""


def damage(kind: str, home: Path) -> None:
    """Put something in the place of the folder that PyOpenCL's cache is in, or of its files."""
    if kind == "no folder":
        home.write_text("")
        return
    done = call(home, "import pyopencl.invoker")
    assert done.returncode == 0, done.stderr
    files = list(home.rglob("*.sqlite*"))
    if not files:
        pytest.skip("this PyOpenCL keeps no database")
    for path in files:
        path.write_bytes(b"no database" * 1000)


def call(home: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(clrope.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    # PoCL has a cache of its own there.
    env = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(home), "POCL_CACHE_DIR": str(home.parent / "pocl")}
    env.pop("PYOPENCL_NO_CACHE", None)
    return subprocess.run(
        [sys.executable, "-c", code, *words], env=env, capture_output=True, text=True, timeout=HANGING, check=False
    )


@pytest.mark.parametrize("kind", ["no folder", "no database"])
@pytest.mark.one_in(2)
def test_a_cache_that_cannot_be_used_costs_one_warning(kind: str, device: clrope.DeviceInfo, tmp_path: Path) -> None:
    home = tmp_path / "home"
    damage(kind, home)
    done = call(home, CALL, device.index)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("PyOpenCL's cache of the user cannot be used and counts as empty") == 1, done.stderr


def test_commands_warn_of_it(device: clrope.DeviceInfo, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("")
    words = ["verify", "--filter", "f32", "--quiet", "--device", device.index]
    done = call(home, "from clrope.cli.main import main; main()", *words)
    assert done.returncode == 0, done.stdout
    assert done.stderr.count("clrope: warning: PyOpenCL's cache of the user cannot be used") == 1, done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="homes are found otherwise")
def test_an_unknown_home_is_no_error(device: clrope.DeviceInfo, tmp_path: Path) -> None:
    """PyOpenCL's database is not made in the current directory, where older platformdirs look."""
    code = f"""
import os, pwd, sys, platformdirs
os.chdir({str(tmp_path)!r})
for name in ("HOME", "XDG_CACHE_HOME"):
    del os.environ[name]
def unknown(uid):
    raise KeyError(uid)
pwd.getpwuid = unknown
if sys.argv[2] == "older":
    platformdirs.user_cache_dir = lambda *words, **named: "~/.cache/clrope"
{CALL}"""
    for platformdirs in ("installed", "older"):
        done = call(tmp_path / "home", code, device.index, platformdirs)
        assert done.returncode == 0, done.stderr
        assert "counts as empty: the home directory is unknown" in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "~").exists()
