"""Which OpenCL drivers (ICDs) the loader will see, and making pip-installed ones visible without hiding others.

The loader reads, once, at the first platform query: a directory of `.icd` files (`OCL_ICD_VENDORS` or
`OPENCL_VENDOR_PATH` if set, else a path compiled in) and, if it is the one inside PyOpenCL's wheel, also
`$PYOPENCL_HOME/.libs/*.icd`. Intel's pip package brings an `.icd` file whose path is a placeholder, so nothing reads
it. Where that runtime is found, a directory of our own, holding every `.icd` of the system's directory and one for
Intel's library, takes the place of the system's for the first query of a process; nothing on the system changes, and a
user's own variable is left alone. The same mechanism leaves out a driver that crashes. That directory is new for each
query and goes after it, so nobody can have changed it.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..bounded_read import read_bounded
from ..cache_folder import temporary_files, warn_once
from .procmem import loaded_libraries

Origin = Literal["system", "wheel", "pip", "user"]

#: Variables by which a user names the drivers; if one is set, this module changes nothing.
USER_VARIABLES = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")
#: Variables that change what a driver shows; part of the key under which an enumeration is remembered.
_RELEVANT = re.compile(
    r"(POCL|OCL|OPENCL|RUSTICL|MESA|LIBGL|NVIDIA|CUDA|ROCR|HIP|HSA|GPU|ZE|ONEAPI|SYCL|CL)_|LD_LIBRARY_PATH$|LD_PRELOAD$|"
    r"CLROPE_TEST_"
)
#: A path in a loader, from the first slash of its text: from every slash would take the square of a long text.
_VENDORS = re.compile(rb"(?<![\x21-\x7e])[\x21-\x2e\x30-\x7e]*(/[\x21-\x7e]+/OpenCL/vendors)/?\0")
#: Bytes of an `.icd` file, which has one line, and of a loader.
_LARGEST_ICD = 64 << 10
_LARGEST_LOADER = 64 << 20


@dataclass(frozen=True)
class Icd:
    """One driver as the loader loads it: the `.icd` file, the library, and where it was found."""

    path: str
    library: str
    origin: Origin

    def stamp(self) -> list[Any]:
        """Return what identifies the state of the files, and of the folder, where a needed library may be added."""
        return [self.path, self.library, *map(stamp, (self.path, self.library, os.path.dirname(self.library)))]


@dataclass(frozen=True)
class LoaderPlan:
    """The drivers to be loaded, and the environment that makes the loader load just these."""

    loader: str
    icds: tuple[Icd, ...]
    #: False where the user's own variable decides.
    controlled: bool = True
    #: Whether our own directory is needed (a pip-installed driver, or one to leave out).
    own_directory: bool = False
    #: Whether the wheel's own `.libs` must not be read (one of its drivers is left out).
    without_wheel: bool = False
    #: Drivers that are installed and will not be loaded, because the user's variable decides.
    passed_over: tuple[Icd, ...] = ()

    def without(self, paths: set[str]) -> LoaderPlan:
        """Return the plan that leaves out the drivers named by these `.icd` files."""
        gone = [icd for icd in self.icds if icd.path in paths]
        if not gone:
            return self
        return replace(
            self,
            icds=tuple(icd for icd in self.icds if icd.path not in paths),
            own_directory=True,
            without_wheel=self.without_wheel or any(icd.origin == "wheel" for icd in gone),
        )

    def only(self, *icds: Icd) -> LoaderPlan:
        """Return the plan that loads just these drivers."""
        return replace(self, icds=icds, own_directory=True, without_wheel=True)

    @contextlib.contextmanager
    def environment(self) -> Iterator[dict[str, str | None]]:
        """Yield the changes to the environment (None: remove) under which the loader follows this plan.

        They name a directory that is there inside the `with`. `PYOPENCL_HOME` has to be set after PyOpenCL's import.
        """
        if not self.own_directory:
            yield {}
            return
        listed = [icd for icd in self.icds if icd.origin != "wheel" or self.without_wheel]
        files = {f"{i:02d}.icd": icd.library + "\n" for i, icd in enumerate(listed)}
        with temporary_files(files) as folder:
            changes: dict[str, str | None] = {"OCL_ICD_VENDORS": str(folder), "OPENCL_VENDOR_PATH": None}
            yield changes | ({"PYOPENCL_HOME": str(folder)} if self.without_wheel else {})

    def fingerprint(self) -> str:
        """Return a key that changes whenever another set of devices may show up."""
        import pyopencl

        parts: list[Any] = [self.controlled, self.own_directory, self.without_wheel, pyopencl.VERSION_TEXT, self.loader]
        parts += [icd.stamp() for icd in self.icds]
        parts += sorted((k, v) for k, v in os.environ.items() if _RELEVANT.match(k))
        parts += sorted(glob.glob("/dev/dri/*") + glob.glob("/dev/nvidia[0-9]*") + glob.glob("/dev/kfd"))
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def user_variable() -> str:
    """Return the variable by which the user named the drivers, '' if none is set."""
    return next((name for name in USER_VARIABLES if os.environ.get(name)), "")


def make_plan() -> LoaderPlan:
    """Find the drivers and plan how the loader sees all of them. Imports PyOpenCL."""
    loader = loader_path()
    wheel, wheel_readable = _icd_files(os.path.dirname(loader), "wheel") if _bundled(loader) else ([], True)
    intel = _pip_intel()
    variable = user_variable()
    if variable:
        icds = _user_icds(os.environ[variable])
        # ocl-icd reads its wheel's drivers only in addition to a directory, not to a single driver.
        if os.path.isdir(os.environ[variable]):
            icds += wheel
        named = {os.path.realpath(icd.library) for icd in icds}
        passed_over = (intel,) if intel and os.path.realpath(intel.library) not in named else ()
        return LoaderPlan(loader, tuple(icds), controlled=False, passed_over=passed_over)
    folders = [_icd_files(folder, "system") for folder in system_directories(loader)]
    system = [icd for icds, _ in folders for icd in icds]
    # Two copies of Intel's runtime in one process share helper libraries by name: the system's own goes first.
    if intel and any(os.path.basename(i.library).startswith("libintelocl.so") for i in system):
        intel = None
    icds = [*system, *([intel] if intel else []), *wheel]
    # The loader would wait for a pipe in the place of an `.icd` file, and read one of any length.
    readable = wheel_readable and all(readable for _, readable in folders)
    return LoaderPlan(
        loader, tuple(icds), own_directory=intel is not None or not readable, without_wheel=not wheel_readable
    )


@contextlib.contextmanager
def applied(changes: dict[str, str | None]) -> Iterator[None]:
    """Change the process environment for the first platform query, and put it back."""
    before = {name: os.environ.get(name) for name in changes}
    try:
        _set(changes)
        yield
    finally:
        _set(before)


def _set(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def already_started(plan: LoaderPlan) -> bool:
    """Whether platforms were queried in this process before: then a driver's library is loaded already."""
    loaded = {os.path.basename(path) for _, _, path in loaded_libraries()}
    return any(os.path.basename(os.path.realpath(i.library)) in loaded for i in plan.icds if i.library)


@functools.cache
def loader_path() -> str:
    """Return the path of the libOpenCL that PyOpenCL uses ('' where the system does not tell)."""
    import pyopencl  # noqa: F401 - its import loads the loader, without a platform query

    return next((p for _, _, p in loaded_libraries() if os.path.basename(p).startswith("libOpenCL")), "")


@functools.cache
def system_directories(loader: str) -> tuple[str, ...]:
    """Return the `.icd` directories compiled into the loader; conda's, for instance, has one of its own."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        content = read_bounded(loader, _LARGEST_LOADER, pipes=False)
        for match in _VENDORS.finditer(content):
            found.append(match.group(1).decode())
    return tuple(dict.fromkeys(found)) or ("/etc/OpenCL/vendors",)


def _bundled(loader: str) -> bool:
    import pyopencl

    home = os.path.dirname(os.path.realpath(pyopencl.__file__))
    return os.path.dirname(os.path.realpath(loader)) == os.path.join(home, ".libs")


def _icd_files(folder: str, origin: Origin) -> tuple[list[Icd], bool]:
    """Return the drivers of a folder, and whether every `.icd` file in it can be read."""
    out, readable = [], True
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*.icd"))):
        library = _first_line(path)
        readable = readable and library is not None
        if not library or "libintelocl_emu" in library:  # Intel's FPGA emulator: another product in the same package
            continue
        sibling = os.path.join(folder, library)
        if origin == "wheel" and os.sep not in library and os.path.exists(sibling):
            library = sibling  # resolved by the loader's own rpath
        if os.path.isabs(library) and not os.path.exists(library):
            continue  # a placeholder, or a driver that is gone
        out.append(Icd(path, library, origin))
    return out, readable


def _user_icds(value: str) -> list[Icd]:
    if os.path.isdir(value):
        return _icd_files(value, "user")[0]
    if value.endswith(".icd"):
        return [Icd(value, _first_line(value) or "", "user")]
    return [Icd(value, value, "user")]


def _pip_intel() -> Icd | None:
    if sys.platform != "linux":
        return None
    import site

    prefixes = [sys.prefix, site.getuserbase() if site.ENABLE_USER_SITE else None, sys.exec_prefix, sys.base_prefix]
    for prefix in prefixes:
        library = os.path.join(prefix, "lib", "libintelocl.so") if prefix else ""
        if os.path.exists(library):
            return Icd(library, library, "pip")
    return None


def _first_line(path: str) -> str | None:
    """Return the first line of an `.icd` file; None, with a warning, for one that cannot be read."""
    try:
        text = read_bounded(path, _LARGEST_ICD, pipes=False).decode("utf-8", "replace")
    except FileNotFoundError:  # a link to a driver that is gone
        return ""
    except OSError as error:
        warn_once(f"{path} cannot be read and counts as absent: {error.strerror or error}")
        return None
    return text.replace("\r", "\n").partition("\n")[0].strip()


def stamp(path: str) -> list[int]:
    """Return what changes with a file: its time and size; [] if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return []
    return [status.st_mtime_ns, status.st_size]
