"""Kernels are built without fast-math, travel as one text each, and importing the package starts nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

import clrope
from clrope import BuildError, ConfigError, RopeConfig
from clrope.call.runtime import context_for
from clrope.kernels.build import build
from clrope.kernels.source import kernel_folder, kernel_hash, kernel_source

PROGRAMS = sorted(path.name for path in kernel_folder().glob("*.cl"))


def test_there_are_kernels() -> None:
    assert {"cache_init.cl", "cache_init_ggml.cl", "gather_tables.cl", "rows.cl", "strided.cl"} <= set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_text_without_contraction(name: str) -> None:
    text = kernel_source(name)
    code = "\n".join(line.partition("//")[0] for line in text.splitlines())
    assert "#include" not in code
    assert "#pragma OPENCL FP_CONTRACT OFF" in code
    for word in (
        "native_",
        "half_sin",
        "half_cos",
        "fma(",
        "mad(",
        "fast_",
        "sincos(",
        " sin(",
        " cos(",
        "pow(",
        "exp(",
    ):
        assert word not in code, word
    assert len({kernel_hash(other) for other in PROGRAMS}) == len(PROGRAMS)


def test_a_file_that_includes_itself(tmp_path: Path) -> None:
    (tmp_path / "a.cl").write_text('#include "b.clh"\n#include "c.clh"\n')
    (tmp_path / "b.clh").write_text('#include "c.clh"\n')
    (tmp_path / "c.clh").write_text("int c;\n")
    assert kernel_source("a.cl", tmp_path).count("int c;") == 2
    (tmp_path / "c.clh").write_text('#include "b.clh"\n')
    kernel_source.cache_clear()
    with pytest.raises(ConfigError, match=r"b.clh: it includes itself, by a.cl -> b.clh -> c.clh -> b.clh"):
        kernel_source("a.cl", tmp_path)


@pytest.mark.one_in(4)
def test_no_option_relaxes_the_arithmetic(
    device: clrope.DeviceInfo, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Every program of a context of its own is built with -D options only."""
    seen: list[str] = []
    real = cl.Program.build

    def watched(self: Any, options: Any = (), *arguments: Any, **named: Any) -> Any:
        assert isinstance(options, (list, tuple))
        seen.extend(options)
        return real(self, list(options), *arguments, **named)

    monkeypatch.setattr(cl.Program, "build", watched)
    monkeypatch.delenv("PYOPENCL_BUILD_OPTIONS", raising=False)
    context = cl.Context([device.cl_device])
    queue = cl.CommandQueue(context)
    for dtype in clrope.layout.DTYPES.values():
        for config in (RopeConfig("normal", 4), RopeConfig("neox", angles="ggml")):
            x = rng.uniform(-1, 1, (2, 1, 8)).astype(dtype)
            clrope.rope(x, 0, config, device=queue)
            clrope.rope(x[..., ::-1], 0, config, device=queue)
    assert seen
    assert all(option.startswith("-D") for option in seen), seen


def test_a_kernel_that_does_not_build(
    device: clrope.DeviceInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLROPE_CACHE_DIR", str(tmp_path))
    text = "__kernel void broken(__global int *x) { x[0] = no_such_name; }\n"
    with pytest.raises(BuildError) as caught:
        build(context_for(device), device.cl_device, text, ["-DA=1"])
    error = caught.value
    assert error.options == ("-DA=1",)
    assert device.name in error.device
    assert "no_such_name" in error.log
    assert Path(error.source_path).read_text() == text
    assert str(error.source_path) in str(error)
    assert isinstance(error, clrope.RopeError)


def test_importing_starts_no_device() -> None:
    text = """
import subprocess, sys
def refuse(*_, **__):
    raise SystemExit("a child process was started")
subprocess.Popen.__init__ = refuse
import os
os.fork = os.posix_spawn = refuse
import clrope
config = clrope.RopeConfig("neox", 8)
clrope.reference.cos_sin([1, 2], config)
clrope.Rope(config)
heavy = {"pyopencl", "torch", "typer", "rich", "gguf", "safetensors", "platformdirs", "filelock"}
print(sorted({m.partition(".")[0] for m in sys.modules} & heavy))
maps = open("/proc/self/maps").read() if os.path.exists("/proc/self/maps") else ""
print("libOpenCL" in maps)
"""
    root = str(Path(clrope.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, cwd=root, timeout=3600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["[]", "False", ""], done.stdout


def test_everything_public_is_there() -> None:
    for name in clrope.__all__:
        assert getattr(clrope, name) is not None
    assert clrope.device.__doc__
