"""The text of the kernels: found next to the package or inside the wheel, with their `#include`s put in place.

Each program is one self-contained text, so that no include path has to reach a compiler, a hash of it is a whole key,
and a source saved on an error builds anywhere.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path

from ..bounded_read import read_bounded_text
from ..errors import ConfigError
from ..layout import DTYPES

_INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)
#: Bytes of a file, as of the lab's.
_LARGEST_FILE = 4 << 20


@lru_cache(maxsize=1)
def kernel_folder() -> Path:
    """Return the folder of the kernel sources: `clrope/kernels/cl` in a wheel, else `kernels` next to the package."""
    here = Path(__file__).resolve().parent
    folders = (here / "cl", here.parent.parent / "kernels")
    for folder in folders:
        if (folder / "rows.cl").is_file():
            return folder
    raise FileNotFoundError(f"the kernel sources are neither in {folders[0]} nor in {folders[1]}")


@lru_cache(maxsize=64)
def kernel_source(name: str, folder: Path | None = None) -> str:
    """Return the source of `kernels/<name>`, or of that name in another folder, with its includes put in place."""
    return _whole(name, folder, ())


def _whole(name: str, folder: Path | None, within: tuple[str, ...]) -> str:
    own = folder or kernel_folder()
    if name in within:
        raise ConfigError(f"{own / name}: it includes itself, by {' -> '.join((*within, name))}")
    try:
        text = read_bounded_text(own / name, _LARGEST_FILE)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{own / name}: cannot be read as a kernel file ({getattr(error, 'strerror', None) or error})"
        ) from error

    return _INCLUDE.sub(lambda match: _whole(match.group(1), folder, (*within, name)), text)


@lru_cache(maxsize=64)
def kernel_hash(name: str) -> str:
    """Return 16 hexadecimal digits that change whenever the source (includes and all) does."""
    return hashlib.sha256(kernel_source(name).encode()).hexdigest()[:16]


def unsigned_type(itemsize: int) -> str:
    """Return OpenCL's unsigned integer of so many bytes."""
    return {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}[itemsize]


def storage_options(dtype: str, width: int = 1) -> list[str]:
    """Return the options of `types.clh` for a storage type and vectors of so many elements."""
    out = [f"-DW={width}", f"-DSTORAGE_{dtype.upper()}", f"-DBITS={unsigned_type(DTYPES[dtype].itemsize)}"]
    return [*out, "-DREAL_F64"] if dtype == "f64" else out
