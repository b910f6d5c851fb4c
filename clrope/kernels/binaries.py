"""Compiled programs kept between processes, as files of the cache directory, one a program.

A file is the SHA-256 of its content, then the driver's binary. One that does not fit is compiled again. PoCL keeps its
own; a simulator's programs, and those of sources that include files, are compiled in each process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..bounded_read import read_bounded
from ..cache_folder import subfolder, warn_not_remembered, warn_once, write_atomically
from ..device.info import cpu_key
from ..errors import RopeError

if TYPE_CHECKING:
    import pyopencl

#: Programs kept; the ones that were not used for longest go.
MOST = 256
#: Bytes of a file; those of our kernels have up to some hundred thousand.
_LARGEST_FILE = 64 << 20
_DIGEST = hashlib.sha256().digest_size
#: How C goes on in the next line.
_SPLICE = re.compile(r"\\\r?\n")
#: Variables by which compilers of drivers are set: Intel's for CPUs, Intel's for GPUs, AMD's, Mesa's.
_COMPILER_VARIABLES = ("CL_CONFIG_", "IGC_", "AMD_OCL_", "RUSTICL_")


def kept_by_driver(device: pyopencl.Device) -> bool:
    """Whether the driver itself keeps what it compiled."""
    return bool(device.platform.name.startswith("Portable Computing"))


def includes_files(source: str) -> bool:
    """Whether a text may include files, which may change while the text does not.

    One with the word counts: a directive may hold comments, begin with `%:`, and go over lines.
    """
    return "include" in _SPLICE.sub("", source)


def is_kept(device: pyopencl.Device, source: str) -> bool:
    """Whether a file can stand for a program.

    It cannot if the source includes files, which may change, or for Oclgrind, which compiles as its variables say.
    """
    return not (kept_by_driver(device) or "Oclgrind" in device.platform.name or includes_files(source))


def binary_path(device: pyopencl.Device, source: str, options: Sequence[str]) -> Path:
    """Return the file of a program.

    Its name tells apart the device, the driver and its variables, the processor, the source and the options.
    """
    platform = device.platform
    variables = sorted((name, value) for name, value in os.environ.items() if name.startswith(_COMPILER_VARIABLES))
    parts = [platform.name, platform.version, device.name, device.version, device.driver_version, cpu_key()]
    return subfolder("programs") / hashlib.sha256(repr([*parts, variables, source, list(options)]).encode()).hexdigest()


def load(
    context: pyopencl.Context, device: pyopencl.Device, path: Path, options: Sequence[str]
) -> pyopencl.Program | None:
    """Return the program of a file, built; None where there is none that the driver takes."""
    import pyopencl as cl

    try:
        content = read_bounded(path, _LARGEST_FILE, pipes=False)
        os.utime(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        warn_once(f"{path} cannot be read and counts as absent: {error.strerror or error}")
        return None
    digest, binary = content[:_DIGEST], content[_DIGEST:]
    if hashlib.sha256(binary).digest() != digest:
        return None
    with contextlib.suppress(cl.Error):
        program: pyopencl.Program = cl.Program(context, [device], [binary]).build(options=list(options))
        return program
    return None


def save(program: pyopencl.Program, path: Path) -> None:
    """Write the binary of a program; where that fails, it is compiled again the next time."""
    import pyopencl as cl

    try:
        binaries: list[bytes] = program.get_info(cl.program_info.BINARIES)  # type: ignore[assignment]
        binary = binaries[0]
        if 0 < len(binary) <= _LARGEST_FILE - _DIGEST:
            write_atomically(path, hashlib.sha256(binary).digest() + binary)
            _drop_oldest(path.parent)
    except cl.Error:
        return
    except (OSError, RopeError) as error:
        warn_not_remembered("a compiled program", error)


def _drop_oldest(folder: Path) -> None:
    with contextlib.suppress(OSError):
        entries = list(os.scandir(folder))
        used = {entry.path: entry.stat(follow_symlinks=False).st_mtime for entry in entries}
        for path in sorted(used, key=used.__getitem__)[: max(0, len(used) - MOST)]:
            with contextlib.suppress(OSError):  # no file, or one that another process removed
                os.unlink(path)
