"""The OpenCL drivers of the device matrix: how each is loaded alone, and what is run on it."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple, TypeVar

from clrope.suite.registry import suites

SYSTEM = Path("/")
CHROOT = Path(__file__).parents[2] / ".ci" / "arm64_chroot"
ARM64 = "Debian PoCL, aarch64"


class Run(NamedTuple):
    """Suites of `clrope verify`, of them the cases that contain the words."""

    suites: tuple[str, ...]
    words: str = ""

    def __str__(self) -> str:
        return " ".join([*self.suites, *self.words.split()])


SHORT = Run(("seed", "types"))
TYPES = ("f32", "f16", "bf16", "f64")
#: Suites with the most programs: one of them is run in full, on one of two devices.
LONG = ("modes", "fusion", "models")
T = TypeVar("T")
_PART = re.compile(r"^\w+\(|\btype=\w+,|\bmode=\d+[,)]|\b(?:multi_add|set_rows)=\d,|\bhead_dim=\d+")


@cache
def _parts(suite: str) -> list[str]:
    """Return the words that part a suite by operator, type, mode and what is fused."""
    return sorted({" ".join(_PART.findall(case.label)) for case in suites()[suite].cases()})


@dataclass(frozen=True)
class Draw:
    """The parts of long suites that a run takes, other ones for other seeds: of a type, or a small part."""

    seed: int
    everything: bool = False

    def of_type(self, *suites: str) -> Run:
        """Return the cases of one type."""
        return Run(suites, "" if self.everything else f"type={TYPES[self.seed % len(TYPES)]}")

    def small(self, suite: str) -> Run:
        """Return the cases of one operator, type and mode."""
        return Run((suite,), "" if self.everything else _parts(suite)[self.seed % len(_parts(suite))])

    def turn(self, *choices: T) -> T:
        """Return one of these, whichever parts are drawn."""
        return choices[(self.seed >> 16) % len(choices)]

    def long(self, device: str) -> tuple[Run, ...]:
        """Return what a device runs of the long suites."""
        whole = self.turn(*product(LONG, ("pocl", "intel")))
        parts = {name: self.small(name) for name in LONG} | {"modes": self.of_type("modes")}
        return tuple(Run((name,)) if whole == (name, device) else part for name, part in parts.items())


@dataclass(frozen=True)
class Driver:
    """One driver in a process environment of its own.

    device:    what `--device` gets; every device of the driver if empty.
    python:    the command that starts Python.
    runs:      of `clrope verify`; none if empty. tests: arguments of a run of pytest; no run if empty.
    variables: the environment. absent: why the driver cannot be run here.
    packages:  of PyPI, installed into a folder of their own before.
    log:       whether the driver writes findings to a log (`{log}` in the variables), which has to stay empty.
    told_gpu:  whether the devices have to say that they are GPUs with memory of their own.
    crash:     how clrope reports the driver on CPUs that it does not know, where it crashes: an expected failure.
    patience:  seconds for a run. tries: of a driver that is known to hang; a run that hung is an expected failure.
    """

    name: str
    device: str
    variables: Mapping[str, str] = field(default_factory=dict)
    absent: str = ""
    python: tuple[str, ...] = (sys.executable,)
    packages: tuple[str, ...] = ()
    runs: tuple[Run, ...] = (SHORT,)
    tests: tuple[str, ...] = ()
    log: bool = False
    told_gpu: bool = False
    patience: float = 600.0
    tries: int = 1
    crash: str = ""


def of_pip(package: str, library: str, name: str, device: str) -> Driver:
    """Return a driver of a package in this environment."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return Driver(name, device, absent=f"pip install {package}")
    found = next((file.locate() for file in files if file.match(library)), None)
    if found is None:
        return Driver(name, device, absent=f"no {library} in {package}")
    return Driver(name, device, {"OCL_ICD_VENDORS": str(found)})


def of_debian(root: Path, package: str, library: str, name: str, device: str) -> Driver:
    """Return a driver of a Debian package that is unpacked into a folder, or installed."""
    for folder in (root, SYSTEM):
        found = next(iter(sorted((folder / "usr/lib").glob(library))), None)
        if found is not None:
            return Driver(name, device, {"OCL_ICD_VENDORS": str(found)})
    return Driver(name, device, absent=f"no {library} below {root}; apt-get install {package}")


def with_variables(driver: Driver, **more: str) -> Driver:
    """Return the driver with more environment variables."""
    return replace(driver, variables={**driver.variables, **more})


def two_devices(driver: Driver) -> Driver:
    """Return PoCL with two devices of one name in one platform."""
    files = ("tests/test_shared_context.py", "tests/test_opencl_arrays.py", "tests/test_rope.py")
    tests = (*files, "-k", "shared_context or another_device or devices_agree")
    made = replace(
        driver, name=f"{driver.name}, two devices", device="", runs=(Run(("seed",)),), tests=tests,
        patience=120.0, tries=2,
    )  # fmt: skip
    return with_variables(made, POCL_DEVICES="pthread pthread")


def arm64(folder: Path | None, draw: Draw) -> Driver:
    """Return PoCL in a Debian for aarch64 (`CHROOT`), by emulation: all takes five to ten times as long there."""
    if folder is None or not (folder / "clrope").is_dir():
        return Driver(ARM64, "pocl", absent=f".ci/arm64_chroot {folder or 'FOLDER'}; --arm64 {folder or 'FOLDER'}")
    # What a device computes the suites compare; the tests are of NumPy's arithmetic there.
    tests = ("tests/test_angles.py", "tests/golden/test_golden.py")
    return Driver(
        ARM64, "pocl", {"CLROPE_PROBE_TIMEOUT": "600"},
        python=(str(CHROOT), str(folder.resolve()), "python3"),
        runs=(Run(("seed",)), draw.small(draw.turn("modes", "types"))), tests=tests, patience=1800,
    )  # fmt: skip


def fpga_emulator() -> Driver:
    """Return Intel's FPGA emulator, an accelerator.

    It needs two undeclared packages of its own version, older than Intel's CPU runtime: so a folder of their own.
    """
    packages = ("intel-opencl-fpga-emu-rt", "intel-opencl-rt", "intel-cmplr-lib-rt")
    versions = tuple(f"{name}==2025.0.5" for name in packages)
    crash = "the driver crashed with SIGABRT while building the probe kernels"  # after "Unknown host CPU."
    return Driver("PyPI Intel FPGA emulator", "accelerator", packages=versions, crash=crash)


def installed(driver: Driver, folder: Path) -> Driver:
    """Return the driver with its packages installed into a folder."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--ignore-installed", "--prefix", str(folder)]
    done = subprocess.run([*command, *driver.packages], capture_output=True, text=True, check=False)
    library = next(iter((folder / "lib").glob("libintelocl_emu.so")), None)
    if done.returncode or library is None:
        last = (done.stderr.strip().splitlines() or ["no library"])[-1]
        return replace(driver, absent=f"pip install {driver.packages[0]}: {last}")
    return with_variables(driver, OCL_ICD_VENDORS=str(library), LD_LIBRARY_PATH=str(library.parent))


def oclgrind(root: Path) -> Driver:
    """Return the simulator with all its checks; the optimiser makes instructions that they do not know."""
    found = of_debian(root, "oclgrind", "**/liboclgrind-rt-icd.so", "Oclgrind", "oclgrind")
    small = tuple(Run(("seed",), f"type={t} ne_a=[128,32,2,1] fs=1.0 ef=0.0 v=0") for t in ("f32", "f16"))
    return with_variables(
        replace(found, runs=small, log=True), OCLGRIND_CHECK_API="1", OCLGRIND_DATA_RACES="1",
        OCLGRIND_UNINITIALIZED="1", OCLGRIND_LOG="{log}", OCLGRIND_BUILD_OPTIONS="-cl-opt-disable",
    )  # fmt: skip


def gpu(driver: Driver, layer: Path | None) -> Driver:
    """Return the driver whose devices say that they are GPUs with memory of their own.

    The kernel for GPUs is their default, and arrays of the host are copied.
    """
    made = replace(driver, name=f"{driver.name}, told to be a GPU", device="gpu", told_gpu=True)
    if layer is None:
        return replace(made, absent=driver.absent or "no C compiler for the OpenCL layer")
    return with_variables(made, OPENCL_LAYERS=str(layer), CLROPE_TEST_GPU="1")


def drivers(root: Path, chroot: Path | None, layer: Path | None, draw: Draw) -> Iterator[Driver]:
    """Yield all drivers of the matrix, those that take long first.

    root: where Debian's packages are unpacked. chroot: made by `CHROOT`. layer: the library of `fault_layer.c`.
    """
    quick = Run((*SHORT.suites, "layouts"))
    layouts, fused = draw.of_type("layouts"), (draw.small("fusion"), draw.small("models"))
    interop, ggml = draw.small("interop"), draw.small("ggml")
    few = SHORT, layouts, draw.small("modes"), *fused, interop
    intel = of_pip("intel-opencl-rt", "libintelocl.so", "PyPI Intel CPU runtime", "intel")
    pocl = of_pip("pocl-binary-distribution", "libpocl*.so", "PyPI PoCL", "pocl")
    rusticl = of_debian(root, "mesa-opencl-icd", "**/libRusticlOpenCL.so.1", "rusticl, llvmpipe", "rusticl")
    # It takes seconds to compile one of the models. Whatever was drawn: it ends loops after 65535 rounds.
    part = draw.small(draw.turn("types", "modes", "layouts", "fusion"))
    small = part, Run(("modes",), "70000")
    yield with_variables(replace(rusticl, runs=(Run(("seed",)), *small)), RUSTICL_ENABLE="llvmpipe")
    emulated = arm64(chroot, draw)
    yield replace(emulated, tests=())
    if not emulated.absent:
        yield replace(emulated, runs=())  # at the same time
    yield replace(pocl, runs=(quick, interop, ggml, *draw.long("pocl")))
    yield replace(intel, runs=(quick, interop, ggml, *draw.long("intel")))
    debian = of_debian(root, "pocl-opencl-icd", "**/libpocl.so.2", "Debian PoCL", "pocl")
    yield replace(debian, runs=(*few, ggml))
    yield replace(fpga_emulator(), runs=(SHORT, draw.of_type("layouts", "modes"), *fused))
    yield oclgrind(root)
    # These find the programs of the same driver that were compiled above.
    yield two_devices(pocl)
    yield gpu(replace(intel, runs=(*few, ggml)), layer)
    yield gpu(replace(pocl, runs=few), layer)
