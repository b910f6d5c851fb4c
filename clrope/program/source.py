"""The text of the kernels: found beside the package or inside the wheel, with their `#include`s put in place.

Each program is one self-contained text, so that no include path has to reach a compiler, a hash of it is a whole key,
and a source saved on an error builds anywhere.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path

_INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)


@lru_cache(maxsize=1)
def kernel_folder() -> Path:
    """Return the folder of the kernel sources: `clrope/kernels` in a wheel, `kernels` beside the package otherwise."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "kernels", package.parent / "kernels"):
        if (folder / "rotate_neox.cl").is_file():
            return folder
    raise FileNotFoundError(
        f"the kernel sources are neither in {package / 'kernels'} nor in {package.parent / 'kernels'}"
    )


@lru_cache(maxsize=64)
def kernel_source(name: str, folder: Path | None = None) -> str:
    """Return the source of `kernels/<name>`, or of that name in another folder, with its includes put in place."""
    text = ((folder or kernel_folder()) / name).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda match: kernel_source(match.group(1), folder), text)


@lru_cache(maxsize=64)
def kernel_hash(name: str) -> str:
    """Return 16 hexadecimal digits that change whenever the source (includes and all) does."""
    return hashlib.sha256(kernel_source(name).encode()).hexdigest()[:16]
