"""Drivers made visible, left out, or reported: with tiny broken drivers made by the C compiler."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clrope.cache_folder import warn_once
from clrope.device import icd
from clrope.errors import CacheWarning

Script = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drivers are looked for in this way on Linux only")

INTEL = os.path.exists(os.path.join(sys.prefix, "lib", "libintelocl.so"))

ABORT_ON_LOAD = "#include <stdlib.h>\n__attribute__((constructor)) static void die(void) { abort(); }\n"
SEGV_IN_QUERY = """
#include <string.h>
int clIcdGetPlatformIDsKHR(unsigned n, void **p, unsigned *count) { *(volatile int *)8 = 1; return 0; }
int clGetPlatformInfo(void *p, unsigned what, size_t n, void *to, size_t *size) { return -30; }
void *clGetExtensionFunctionAddress(const char *name)
{ return !strcmp(name, "clIcdGetPlatformIDsKHR") ? (void *)clIcdGetPlatformIDsKHR
       : !strcmp(name, "clGetPlatformInfo") ? (void *)clGetPlatformInfo : 0; }
"""
NEEDS_ANOTHER = "int other(void); int clGetPlatformInfo(void) { return other(); }\n"

#: Put a directory of our choice in the place of /etc/OpenCL/vendors, for planning and for the loader alike.
SYSTEM = """
from dataclasses import replace
from clrope.device import discovery, icd
real_plan = icd.make_plan
icd.system_directories = lambda loader: ({folder!r},)
discovery.make_plan = lambda: replace(real_plan(), own_directory=True)
"""


def library(cc: str, folder: Path, name: str, source: str, *more: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.c").write_text(source)
    target = str(folder / f"lib{name}.so")
    subprocess.run([cc, "-shared", "-fPIC", "-o", target, str(folder / f"{name}.c"), *more], check=True)
    return target


def vendors(folder: Path, **libraries: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in libraries.items():
        (folder / f"{name}.icd").write_text(path + "\n")
    return str(folder)


def healthy(listed: list[dict[str, Any]]) -> list[str]:
    return sorted(d["name"] for d in listed if d["health"]["status"] == "ok")


def without_memory(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The devices without what PoCL derives from the memory that is free at the moment."""
    return [{k: v for k, v in d.items() if k not in ("global_mem", "max_alloc")} for d in listed]


@pytest.mark.one_in(10)
@pytest.mark.parametrize(("source", "signal"), [(ABORT_ON_LOAD, "SIGABRT"), (SEGV_IN_QUERY, "SIGSEGV")])
def test_a_driver_that_crashes_is_left_out(
    script: Script, cc: str, tmp_path: Path, warm: Path, source: str, signal: str
) -> None:
    broken = library(cc, tmp_path / "lib", "broken", source)
    system = SYSTEM.format(folder=vendors(tmp_path / "vendors", broken=broken))
    # What the machine's own directory names is out of sight in both.
    without = SYSTEM.format(folder=vendors(tmp_path / "none"))
    usual = healthy(script(without + "show(devices=listing())", warm)["devices"])
    got = script(system + "show(devices=listing(), jobs=jobs, chosen=D.device().index)", warm)
    entry = next((d for d in got["devices"] if d["icd"] == broken), None)
    assert entry is not None, got
    assert entry["health"]["cause"] == "crash"
    assert signal in entry["health"]["reason"]
    assert entry["health"]["hint"]
    assert entry["index"] == "-"
    assert healthy(got["devices"]) == usual
    assert got["jobs"].count("enumerate") >= 3, "all, each alone, and the rest"
    again = script(system + "show(devices=listing(), jobs=jobs)", warm)
    assert again["jobs"] == [], "what was found out is remembered"
    assert without_memory(again["devices"]) == without_memory(got["devices"])


def test_a_driver_that_crashes_and_was_named_by_the_user(script: Script, cc: str, tmp_path: Path, warm: Path) -> None:
    broken = library(cc, tmp_path / "lib", "broken", ABORT_ON_LOAD)
    folder = vendors(tmp_path / "vendors", broken=broken)
    text = """
try:
    D.device()
except Exception as error:
    show(devices=listing(), error=str(error), variable=os.environ["OCL_ICD_VENDORS"])
"""
    got = script(text, warm, OCL_ICD_VENDORS=folder)
    assert got["variable"] == folder
    assert healthy(got["devices"]) == []
    assert broken in got["error"]
    assert "OCL_ICD_VENDORS" in got["error"]


def test_a_driver_that_does_not_load_is_reported(script: Script, cc: str, tmp_path: Path, warm: Path) -> None:
    other = library(cc, tmp_path / "lib", "other", "int other(void) { return 0; }\n")
    lost = library(cc, tmp_path / "lib", "lost", NEEDS_ANOTHER, f"-L{tmp_path / 'lib'}", "-lother")
    os.unlink(other)
    system = SYSTEM.format(folder=vendors(tmp_path / "vendors", lost=lost))
    got = script(system + "show(devices=listing())", warm)
    entry = next(d for d in got["devices"] if d["icd"] == lost)
    assert "libother.so" in entry["health"]["reason"]
    assert healthy(got["devices"])


def test_a_users_variable_is_kept(script: Script, tmp_path: Path, warm: Path) -> None:
    folder = vendors(tmp_path / "none")
    got = script("show(devices=listing(), variable=os.environ['OCL_ICD_VENDORS'])", warm, OCL_ICD_VENDORS=folder)
    assert got["variable"] == folder
    if INTEL:
        entry = next(d for d in got["devices"] if "intel" in d["platform"].lower())
        assert "OCL_ICD_VENDORS" in entry["health"]["reason"]


@pytest.mark.skipif(not INTEL, reason="Intel's runtime is not installed by pip in this environment")
def test_intels_runtime_from_pip_is_visible_with_the_others(script: Script, warm: Path) -> None:
    got = script("show(devices=listing(), chosen=D.device('intel').platform)", warm)
    assert "Intel" in got["chosen"]
    assert len(healthy(got["devices"])) >= 2
    late = script("import pyopencl as cl; cl.get_platforms(); show(devices=listing())", warm)
    entry = next(d for d in late["devices"] if "Intel" in d["platform"])
    assert entry["index"] == "-"
    assert entry["health"]["cause"] == "hidden"
    assert "before clrope" in entry["health"]["reason"]
    assert healthy(late["devices"])


@pytest.mark.one_in(12)
def test_the_cache_may_be_deleted_meanwhile(script: Script, warm: Path) -> None:
    text = """
import shutil
def after_a_deletion(job, env=None):
    shutil.rmtree(os.environ["CLROPE_CACHE_DIR"], ignore_errors=True)
    return counted(job, env)
enumeration.run_child = health.run_child = pocl.run_child = after_a_deletion
show(devices=listing(), jobs=jobs)
"""
    done = script(text)
    assert done["jobs"]
    assert healthy(done["devices"]) == healthy(script("show(devices=listing())", warm)["devices"])


def test_icd_files_that_are_passed_over(tmp_path: Path) -> None:
    real = tmp_path / "libreal.so"
    real.write_text("")
    vendors(
        tmp_path, real=str(real), placeholder="/opt/no/such/libintelocl.so", bare="libnvidia-opencl.so.1", empty="",
        emulator=str(tmp_path / "libintelocl_emu.so"),
    )  # fmt: skip
    (tmp_path / "libintelocl_emu.so").write_text("")
    found = {os.path.basename(i.path): i.library for i in icd._icd_files(str(tmp_path), "system")[0]}
    assert found == {"real.icd": str(real), "bare.icd": "libnvidia-opencl.so.1"}


@pytest.mark.parametrize("origin", ["system", "wheel"])
def test_the_loader_is_kept_from_a_file_that_it_would_wait_for(
    clean: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    folders = {name: tmp_path / name for name in ("system", "wheel")}
    for folder in folders.values():
        vendors(folder, good="libgood.so")
    monkeypatch.setattr(icd, "system_directories", lambda loader: (str(folders["system"]),))
    monkeypatch.setattr(icd, "loader_path", lambda: str(folders["wheel"] / "libOpenCL.so"))
    monkeypatch.setattr(icd, "_bundled", lambda loader: True)
    monkeypatch.setattr(icd, "_pip_intel", lambda: None)
    plan = icd.make_plan()
    assert (plan.own_directory, plan.without_wheel) == (False, False)
    os.mkfifo(folders[origin] / "pipe.icd")
    warn_once.cache_clear()
    with pytest.warns(CacheWarning, match=r"pipe\.icd cannot be read and counts as absent: it is no regular file"):
        plan = icd.make_plan()
    assert (plan.own_directory, plan.without_wheel) == (True, origin == "wheel")
    assert [(i.library, i.origin) for i in plan.icds] == [("libgood.so", "system"), ("libgood.so", "wheel")]


def test_the_directory_of_a_plan(cache: Path, clean: None, tmp_path: Path) -> None:
    system = icd.Icd("/etc/OpenCL/vendors/a.icd", "liba.so", "system")
    wheel = icd.Icd("/site/.libs/pocl.icd", "/site/.libs/libpocl.so", "wheel")
    pip = icd.Icd("/env/lib/libintelocl.so", "/env/lib/libintelocl.so", "pip")
    folders = set()

    def read(plan: icd.LoaderPlan) -> tuple[list[str], bool]:
        """The libraries that the loader is given, and whether it still reads those of PyOpenCL's wheel."""
        with plan.environment() as changes:
            folder = Path(changes["OCL_ICD_VENDORS"] or "")
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert changes["OPENCL_VENDOR_PATH"] is None
            assert changes.get("PYOPENCL_HOME", str(folder)) == str(folder)
            libraries = [p.read_text().strip() for p in sorted(folder.iterdir())]
        assert not folder.exists()
        assert folder not in folders, "each query has its own"
        folders.add(folder)
        return libraries, "PYOPENCL_HOME" not in changes

    with icd.LoaderPlan("", (system, wheel)).environment() as changes:
        assert changes == {}, "nothing to add, nothing to change"
    plan = icd.LoaderPlan("", (system, pip, wheel), own_directory=True)
    assert read(plan) == ([system.library, pip.library], True)
    less = plan.without({wheel.path})
    assert less.icds == (system, pip)
    assert read(less) == ([system.library, pip.library], False)
    assert read(plan.without({system.path})) == ([pip.library], True)
    assert read(plan.only(wheel)) == ([wheel.library], False)
    assert plan.without({"/no/such.icd"}) == plan
    assert read(plan)[1]
    assert not list(cache.rglob("*.icd")), "nothing is kept"


def test_the_loaders_own_directory_is_read_from_it(tmp_path: Path) -> None:
    loader = tmp_path / "libOpenCL.so"
    loader.write_bytes(b"\x7fELF\0\1abc\0/conda/env/etc/OpenCL/vendors\0\0\0x\0/etc/OpenCL/vendors/\0end")
    assert icd.system_directories(str(loader)) == ("/conda/env/etc/OpenCL/vendors", "/etc/OpenCL/vendors")
    assert icd.system_directories(str(tmp_path / "absent.so")) == ("/etc/OpenCL/vendors",)


def test_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCL_VENDOR_PATH", "theirs")
    monkeypatch.delenv("OCL_ICD_VENDORS", raising=False)
    with icd.applied({"OCL_ICD_VENDORS": "ours", "OPENCL_VENDOR_PATH": None}):
        assert os.environ["OCL_ICD_VENDORS"] == "ours"
        assert "OPENCL_VENDOR_PATH" not in os.environ
    assert os.environ["OPENCL_VENDOR_PATH"] == "theirs"
    assert "OCL_ICD_VENDORS" not in os.environ
