"""Compiled programs are kept between processes, and a file that is damaged, or not there, changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

import clrope
from clrope.cache_folder import warn_once
from clrope.errors import BuildError
from clrope.kernels import build as builds
from clrope.kernels.build import binary_path, build, is_kept

SOURCE = "__kernel void f(__global int *y) { y[get_global_id(0)] = NUMBER; }"
Result = Callable[..., int]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLROPE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "programs"


@pytest.fixture
def result(device: clrope.DeviceInfo) -> Result:
    """Build the kernel and return what it writes."""
    context = cl.Context([device.cl_device])

    def run(number: int = 7, keep: bool = True) -> int:
        return written(context, build(context, device.cl_device, SOURCE, [f"-DNUMBER={number}"], keep=keep))

    return run


def written(context: cl.Context, program: cl.Program) -> int:
    """Return what the kernel writes."""
    queue, y = cl.CommandQueue(context), np.full(4, 99, np.int32)
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=y)
    cl.Kernel(program, "f")(queue, (4,), None, buffer)
    cl.enqueue_copy(queue, y, buffer)
    assert len(set(y.tolist())) == 1
    return int(y[0])


@pytest.fixture
def kept(device: clrope.DeviceInfo) -> None:
    if not is_kept(device.cl_device, SOURCE):
        pytest.skip("this driver keeps its programs itself")


def test_programs_are_not_kept_twice(device: clrope.DeviceInfo, programs: Path, result: Result) -> None:
    assert result() == 7
    assert programs.exists() == is_kept(device.cl_device, SOURCE)


def test_a_kept_program_is_loaded(programs: Path, kept: None, result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    assert result(8, keep=False) == 8
    assert not programs.exists()
    assert result() == 7
    (file,) = programs.iterdir()
    written = file.stat().st_mtime_ns
    os.utime(file, ns=(0, 0))
    assert result() == 7
    assert file.stat().st_mtime_ns > written - 10**9, "loading counts as use"
    assert result(8) == 8
    assert len(list(programs.iterdir())) == 2
    # What is run is what is in the file.
    first, second = sorted(programs.iterdir(), key=lambda p: p != file)
    first.write_bytes(second.read_bytes())
    assert result() == 8


@pytest.mark.parametrize(
    "line", ['  # include "number.h"', '#/* a\ncomment */include "number.h"', '/* */ #inc\\\nlude "number.h"']
)
def test_an_included_file_is_read_again(device: clrope.DeviceInfo, programs: Path, tmp_path: Path, line: str) -> None:
    context = cl.Context([device.cl_device])
    source = line + "\n" + SOURCE
    options = [f"-I{tmp_path}"]
    for number in (7, 8):
        (tmp_path / "number.h").write_text(f"#define NUMBER {number}\n")
        assert written(context, build(context, device.cl_device, source, options, keep=True)) == number
    assert not programs.exists()


def test_variables_of_the_compiler_tell_programs_apart(
    device: clrope.DeviceInfo, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [binary_path(device.cl_device, SOURCE, [])]
    for name in ("CL_CONFIG_CPU_VECTORIZER_MODE", "CL_CONFIG_CPU_TARGET_ARCH"):
        monkeypatch.setenv(name, "1")
        paths.append(binary_path(device.cl_device, SOURCE, []))
    assert len(set(paths)) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b"",
        lambda b: b[:-1],
        lambda b: b"\0" * len(b),
        lambda b: b[:40] + b"\xff" * 40 + b[80:],
        lambda b: None,
    ],
    ids=range(5),
)
def test_a_damaged_file_is_written_again(programs: Path, kept: None, result: Result, damage: Any) -> None:
    assert result() == 7
    (file,) = programs.iterdir()
    content = file.read_bytes()
    file.unlink()
    changed = damage(content)
    if changed is None:
        file.mkdir()
        with pytest.warns(clrope.errors.CacheWarning):
            assert result() == 7
    else:
        file.write_bytes(changed)
        assert result() == 7
        assert file.read_bytes() != changed


@pytest.mark.parametrize("kind", ["pipe", "long"])
def test_what_is_no_program_is_replaced_and_said(
    programs: Path, kept: None, result: Result, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert result() == 7
    (file,) = programs.iterdir()
    content = file.read_bytes()
    if kind == "pipe":
        file.unlink()
        os.mkfifo(file)
    else:
        with file.open("r+b") as long:
            long.truncate(1 << 42)
    warn_once.cache_clear()
    with pytest.warns(clrope.errors.CacheWarning, match=f"{file} cannot be read and counts as absent"):
        assert result() == 7
    assert file.is_file()
    assert file.stat().st_size < 2 * len(content)
    # A program beyond the bound would never be read.
    file.unlink()
    monkeypatch.setattr(builds, "_LARGEST_FILE", len(content) // 2)
    assert result() == 7
    assert not list(programs.iterdir())


def test_a_program_that_does_not_build_is_not_kept(programs: Path, device: clrope.DeviceInfo) -> None:
    context = cl.Context([device.cl_device])
    with pytest.raises(BuildError):
        build(context, device.cl_device, SOURCE, keep=True)
    assert not programs.exists() or not list(programs.iterdir())


def test_the_folder_does_not_grow_without_end(
    programs: Path, kept: None, result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "MOST", 2)
    programs.mkdir(parents=True, mode=0o700)
    (programs / "folder").mkdir()
    (programs / "link").symlink_to("nowhere")
    for path in programs.iterdir():
        os.utime(path, (0, 0), follow_symlinks=False)
    for number in (1, 2, 3, 4):
        assert result(number) == number
    # The folder is none of ours, stays, and keeps no other from going.
    assert len([path for path in programs.iterdir() if path.is_file()]) == 2
    assert not (programs / "link").is_symlink()
