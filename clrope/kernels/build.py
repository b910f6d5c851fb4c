"""Building a program from its text, and a complete error message when that fails."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..cache_folder import subfolder, warn_once, write_atomically
from ..errors import BuildError, RopeError
from .binaries import binary_path, is_kept, load, save

if TYPE_CHECKING:
    import pyopencl


def build(
    context: pyopencl.Context, device: pyopencl.Device, source: str, options: Sequence[str] = (), *, keep: bool = False
) -> pyopencl.Program:
    """Build a source text; raises `BuildError` with the device, the options, the log and a file with the source.

    No option is ever added: above all no fast-math, which would change the bits.
    keep: for later processes, too.
    """
    import pyopencl as cl

    path = binary_path(device, source, options) if keep and is_kept(device, source) else None
    try:
        with warnings.catch_warnings():
            # PoCL prints a line for every function of an include that a kernel does not call.
            warnings.simplefilter("ignore", cl.CompilerWarning)
            built = load(context, device, path, options) if path else None
            if built is None:
                # Without PyOpenCL's own cache, which holds pickles and fails on a full disk.
                built = cl.Program(context, source).build(
                    options=list(options),
                    devices=[device],
                    cache_dir=False,  # type: ignore[arg-type]  # False is documented, the annotation forgets it
                )
                if path:
                    save(built, path)
            return built
    except cl.Error as error:
        raise BuildError(
            f"{device.name.strip()} ({device.platform.name.strip()}, driver {device.driver_version.strip()})",
            options,
            str(error),
            save_source(source),
        ) from error


def save_source(source: str) -> str:
    """Write a source that failed to a file under the cache directory; return its path, '' where none can be."""
    try:
        path = subfolder("failed-sources") / f"{hashlib.sha256(source.encode()).hexdigest()[:16]}.cl"
        write_atomically(path, source)
    except (OSError, RopeError) as error:
        warn_once(f"the source of a failed kernel is not saved: {error}")
        return ""
    return os.fspath(path)
