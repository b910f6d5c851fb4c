"""The text of the kernels: found next to the package or inside the wheel, with their `#include`s put in place.

Each program is one self-contained text, so that no include path has to reach a compiler, a hash of it is a whole key,
and a source saved on an error builds anywhere. `#include "storage_*.clh"` stands for all files of that pattern.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path

from ..bounded_read import read_bounded_text
from ..errors import ConfigError

_INCLUDE = re.compile(r'^#include "([\w.*]+)"$', re.MULTILINE)
#: Bytes of a file, as of the lab's.
_LARGEST_FILE = 4 << 20


@lru_cache(maxsize=1)
def kernel_folder() -> Path:
    """Return the folder of the kernel sources: `clrope/kernels/cl` in a wheel, else `kernels` next to the package."""
    here = Path(__file__).resolve().parent
    folders = (here / "cl", here.parent.parent / "kernels")
    for folder in folders:
        if (folder / "rotate_neox.cl").is_file():
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

    def included(pattern: str) -> list[str]:
        names = sorted(path.name for path in own.glob(pattern)) if "*" in pattern else [pattern]
        return [_whole(other, folder, (*within, name)) for other in names]

    return _INCLUDE.sub(lambda match: "\n".join(included(match.group(1))), text)


@lru_cache(maxsize=64)
def kernel_hash(name: str) -> str:
    """Return 16 hexadecimal digits that change whenever the source (includes and all) does."""
    return hashlib.sha256(kernel_source(name).encode()).hexdigest()[:16]


def storage_option(dtype: str) -> str:
    """Return the compiler option for a storage type."""
    return f"-DSTORAGE_{dtype.upper()}"
