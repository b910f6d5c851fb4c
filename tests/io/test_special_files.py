"""Pipes, devices and folders in the place of files: no reader waits for them, or reads without an end."""

from __future__ import annotations

import json
import lzma
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from clrope import RopeConfig
from clrope.benchmark import results
from clrope.bounded_read import LARGEST_CONFIG, read_bounded
from clrope.errors import ConfigError

READERS = """
import sys, warnings
from pathlib import Path
import clrope
from clrope import RopeConfig, RopeError, lab
from clrope.benchmark.results import read_all
from clrope.cli.positions_option import read_positions
from clrope.io.json_object import read_json_object
from clrope.io.files import read_arrays, read_metadata, write_arrays
from clrope.lab.npu.npu_machine import machine
from clrope.portability.report_files import read_files
from clrope.store import Store

folder = Path(sys.argv[1])
reads = {
    "npy": [read_arrays, read_positions], "npz": [read_arrays], "safetensors": [read_arrays, read_metadata],
    "gguf": [RopeConfig.from_gguf], "cl": [lab.load], "toml": [machine],
    "json": [RopeConfig.from_hf, read_json_object, read_all, lab.load],
}
for suffix, readers in reads.items():
    for read in readers:
        try:
            print(suffix, read.__name__, "read", read(str(folder / f"x.{suffix}")))
        except RopeError as error:
            print(suffix, read.__name__, type(error).__name__, str(error).replace(str(folder), "FOLDER"))
print("json", "read_files", "ConfigError", *read_files([str(folder / "x.json")]).unread)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert Store("x", dict).read(folder / "x.json") == {}
print("json", "Store", "ConfigError", *(w.message for w in caught))
"""


def made(kind: str, path: Path) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(os.path.relpath(path))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "socket"])
def test_every_reader_ends(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "device" and not os.path.exists("/dev/zero"):
        pytest.skip("no /dev/zero")
    monkeypatch.chdir(tmp_path)  # a socket's name is short
    for suffix in ("npy", "npz", "safetensors", "gguf", "json", "cl", "toml"):
        made(kind, tmp_path / f"x.{suffix}")
    command = [sys.executable, "-c", READERS, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert len(lines) == 14, lines
    for line in lines:
        suffix, _, error, _ = line.split(" ", 3)
        assert error in ("RopeError", "ConfigError"), line
        if kind != "folder":
            assert f"x.{suffix}" in line
        if kind == "device" or (kind == "pipe" and suffix in ("npy", "npz", "safetensors", "gguf")):
            assert "no regular file" in line


CACHED = """
import os, sys, warnings
from pathlib import Path
from clrope import RopeError
from clrope.device import icd
from clrope.fleet import projection, read_fleet
from clrope.kernels.build import load_program
from clrope.kernels.source import kernel_source
from clrope.portability.page import is_page
from clrope.store import Store

folder = Path(sys.argv[1])
warnings.simplefilter("ignore")
store = Store("x", dict)
assert store.get("a") is None
store.put("a", {"b": 1})
assert load_program(None, None, folder / "program", []) is None
(folder / "libreal.so").write_text("")
(folder / "a.icd").write_text(f"{folder}/libreal.so\\r\\nmore\\n")
found, readable = icd._icd_files(str(folder), "system")
assert not readable
assert [(i.path, i.library) for i in found] == [(f"{folder}/a.icd", f"{folder}/libreal.so")]
assert icd._user_icds(f"{folder}/x.icd") in ([], [icd.Icd(f"{folder}/x.icd", "", "user")])
assert icd.system_directories(f"{folder}/x.icd") == ("/etc/OpenCL/vendors",)
assert not is_page(folder / "x.html")
for read in (read_fleet, lambda path: projection(path, [2]), lambda path: kernel_source(path.name, folder)):
    try:
        read(folder / "x.other")
    except RopeError as error:
        print(error)
print(store.get("a"), flush=True)
os._exit(0)
"""


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "long"])
def test_no_file_of_the_cache_is_waited_for(kind: str, tmp_path: Path) -> None:
    """Nor `.icd` files. Somebody holds each pipe open, and says nothing; the long file is beyond the memory."""
    pipes = []
    for name in ("x.json", "program", "x.icd", "x.html", "x.other"):
        if kind == "long":
            with (tmp_path / name).open("wb") as file:
                file.truncate(1 << 42)
        else:
            made(kind, tmp_path / name)
        if kind == "pipe" and name != "x.other":
            pipes.append(os.open(tmp_path / name, os.O_RDWR))
    tmp_path.chmod(0o700)
    command = [sys.executable, "-c", CACHED, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CLROPE_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, check=False)
    for pipe in pipes:
        os.close(pipe)
    assert done.returncode == 0, done.stderr
    *refused, kept = done.stdout.splitlines()
    assert all("x.other" in line for line in refused), refused
    assert len(refused) == (2 if kind == "pipe" else 3), "an empty pipe is an empty kernel"
    assert kept == ("None" if kind == "folder" else "{'b': 1}"), "what is no folder is replaced"


def test_what_is_written_to_a_pipe_is_read(tmp_path: Path) -> None:
    """As a shell gives it: `--hf <(command)`."""
    read, write = os.pipe()
    try:
        os.write(write, json.dumps({"model_type": "llama", "head_dim": 64}).encode())
        os.close(write)
        assert RopeConfig.from_hf(f"/dev/fd/{read}").n_dims == 64
    finally:
        os.close(read)


def test_long_files_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}".ljust(LARGEST_CONFIG))
    with pytest.raises(ConfigError, match="model_type"):
        RopeConfig.from_hf(path)
    path.write_text("{}".ljust(LARGEST_CONFIG + 1))
    with pytest.raises(ConfigError, match=rf"config\.json: cannot be read \(it has more than {LARGEST_CONFIG} bytes\)"):
        RopeConfig.from_hf(path)
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="more than 7 bytes"):
        read_bounded(path, 7)


def test_results_compressed_to_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "LARGEST_RESULT", 4096)
    path = tmp_path / "device.json"
    path.write_text(json.dumps({"schema": results.DEVICE_SCHEMA, "samples": "samples.xz"}))
    for data, says in (
        (lzma.compress(b" " * 4097), "more than 4096 bytes"),
        (lzma.compress(b" " * 4096), "holds no compressed results"),
        (lzma.compress(os.urandom(99))[:-20], "ends early"),
    ):
        (tmp_path / "samples.xz").write_bytes(data)
        with pytest.raises(ConfigError, match=says):
            results.read_all(path)
