"""The OpenCL drivers of the device matrix: how each is loaded alone, and what is run on it."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

#: Suites of `clrope verify`, without ggml's 868 cases.
QUICK = ("seed", "modes", "layouts", "types", "interop")
ALL = (*QUICK, "ggml")
SOME = ("seed", "modes", "types")


@dataclass(frozen=True)
class Driver:
    """One driver in a process environment of its own.

    device:    what `--device` gets; none if empty.
    suites:    of `clrope verify`. filters: one run each, of the cases that contain the words.
    variables: the environment. absent: why the driver cannot be run here.
    patience:  seconds for a run. tries: runs that may be begun, where a driver is known to hang.
    log:       whether the driver writes a log (`{log}` in the variables), which has to stay empty.
    """

    name: str
    device: str
    suites: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    absent: str = ""
    filters: tuple[str, ...] = ("",)
    patience: float = 600.0
    tries: int = 1
    log: bool = False


def found(root: Path, pattern: str) -> Path | None:
    """Return a library below the folder that Debian's packages are in."""
    return next(iter(sorted((root / "usr/lib").glob(pattern))), None)


def of_debian(
    root: Path, package: str, pattern: str, name: str, device: str, suites: tuple[str, ...], **more: str
) -> Driver:
    """Return a driver of a Debian package, or say that its library is absent."""
    library = found(root, pattern)
    if library is None:
        return Driver(name, device, suites, absent=f"no {pattern} below {root}; apt-get install {package}")
    variables = {"OCL_ICD_VENDORS": str(library), **more}
    if root != Path("/"):
        variables["LD_LIBRARY_PATH"] = f"{root}/usr/lib/x86_64-linux-gnu"
        variables["POCL_ROOT"] = str(root)
    return Driver(name, device, suites, variables)


def of_pip(package: str, name: str, device: str, suites: tuple[str, ...], **more: str) -> Driver:
    """Return a driver of a package in this environment."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return Driver(name, device, suites, absent=f"pip install {package}")
    library = next((f.locate() for f in files if f.match("libpocl*.so") or f.match("libintelocl.so")), None)
    if library is None:
        return Driver(name, device, suites, absent=f"no driver in {package}")
    return Driver(name, device, suites, {"OCL_ICD_VENDORS": str(library), **more})


def fpga_emulator(folder: Path) -> Driver:
    """Return Intel's FPGA emulator, an accelerator; its libraries are older than those of Intel's CPU runtime.

    So the packages are installed into a folder of their own.
    """
    name, device, package = "Intel FPGA emulator", "accelerator", "intel-opencl-fpga-emu-rt"
    # Two libraries that the package needs but does not declare, of the same version.
    packages = [f"{name}==2025.0.5" for name in (package, "intel-opencl-rt", "intel-cmplr-lib-rt")]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--ignore-installed"]
    command += ["--prefix", str(folder / "fpga"), *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    library = folder / "fpga/lib/libintelocl_emu.so"
    if done.returncode or not library.exists():
        last = (done.stderr.strip().splitlines() or ["no library"])[-1]
        return Driver(name, device, QUICK, absent=f"pip install {package}: {last}")
    return Driver(name, device, QUICK, {"OCL_ICD_VENDORS": str(library), "LD_LIBRARY_PATH": str(library.parent)})


def oclgrind(root: Path) -> Driver:
    """Return the simulator with all its checks; the optimiser makes instructions that they do not know."""
    checks = {
        "OCLGRIND_CHECK_API": "1", "OCLGRIND_DATA_RACES": "1", "OCLGRIND_UNINITIALIZED": "1", "OCLGRIND_LOG": "{log}",
        "OCLGRIND_BUILD_OPTIONS": "-cl-opt-disable",
    }  # fmt: skip
    made = of_debian(root, "oclgrind", "**/liboclgrind-rt-icd.so", "Oclgrind", "oclgrind", ("seed",), **checks)
    small = tuple(f"type={t} ne_a=[128,32,2,1] fs=1.0 ef=0.0 v=0" for t in ("f32", "f16"))
    return Driver(made.name, made.device, made.suites, made.variables, made.absent, small, log=True)


def not_unified(driver: Driver, suites: tuple[str, ...], layer: Path | None) -> Driver:
    """Return the driver whose device says that it has memory of its own: arrays of the host are then copied."""
    made = replace(driver, name=f"{driver.name}, memory of its own", suites=suites)
    if layer is None:
        return replace(made, absent="no C compiler for the OpenCL layer")
    more = {"OPENCL_LAYERS": str(layer), "CLROPE_TEST_NOT_UNIFIED": "1"}
    return replace(made, variables={**driver.variables, **more})


def drivers(root: Path, folder: Path, layer: Path | None) -> Iterator[Driver]:
    """Yield all drivers of the matrix; root: where Debian's packages are, folder: for files that are made."""
    two = of_pip("pocl-binary-distribution", "PoCL of PyPI, two", "", ("seed",), POCL_DEVICES="pthread pthread")
    of_pypi = [
        of_pip("pocl-binary-distribution", "PoCL of PyPI", "pocl", QUICK),
        of_pip("intel-opencl-rt", "Intel's CPU runtime", "intel", QUICK),
    ]
    yield from of_pypi
    yield replace(two, patience=120.0, tries=2)
    yield of_debian(root, "pocl-opencl-icd", "**/libpocl.so.2*", "PoCL of Debian", "pocl", SOME)
    mesa = ("**/libRusticlOpenCL.so.1", "rusticl on llvmpipe", "rusticl", QUICK)
    yield of_debian(root, "mesa-opencl-icd", *mesa, RUSTICL_ENABLE="llvmpipe")
    yield oclgrind(root)
    yield fpga_emulator(folder)
    # PoCL takes most of its time for compiling.
    yield from (not_unified(driver, suites, layer) for driver, suites in zip(of_pypi, (SOME, ALL), strict=True))
