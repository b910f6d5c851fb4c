"""Building a program from its text, and a complete error message when that fails."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BuildError
from ..store import cache_dir

if TYPE_CHECKING:
    import pyopencl


def build(
    context: pyopencl.Context, device: pyopencl.Device, source: str, options: Sequence[str] = ()
) -> pyopencl.Program:
    """Build a source text; raises `BuildError` with the device, the options, the log and a file with the source.

    No option is ever added: above all no fast-math, which would change the bits.
    """
    import pyopencl as cl

    try:
        with warnings.catch_warnings():
            # PoCL prints a line for every function of an include that a kernel does not call.
            warnings.simplefilter("ignore", cl.CompilerWarning)
            # PoCL keeps its own cache; PyOpenCL's does not know of the CPU name that PoCL compiles for.
            cache_dir = False if device.platform.name.startswith("Portable Computing") else None
            built: pyopencl.Program = cl.Program(context, source).build(
                options=list(options),
                devices=[device],
                cache_dir=cache_dir,  # type: ignore[arg-type]  # False is documented, the annotation forgets it
            )
            return built
    except cl.Error as error:
        raise BuildError(
            f"{device.name.strip()} ({device.platform.name.strip()}, driver {device.driver_version.strip()})",
            options,
            str(error),
            save_source(source),
        ) from error


def save_source(source: str) -> str:
    """Write a source that failed to a file under the cache directory and return its path."""
    folder = Path(cache_dir()) / "failed-sources"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(source.encode()).hexdigest()[:16]}.cl"
    path.write_text(source, encoding="utf-8")
    return os.fspath(path)
