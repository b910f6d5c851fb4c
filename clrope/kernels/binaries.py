"""Compiled programs kept between processes, as files of the cache directory, one a program.

A file is the SHA-256 of its content, then the driver's binary. One that does not fit is compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..cache_folder import subfolder, warn_once, write_atomically
from ..device.info import cpu_key
from ..errors import RopeError

if TYPE_CHECKING:
    import pyopencl

#: Beginnings of names of platforms: PoCL keeps its own programs; Oclgrind's depend on how the simulator was started
#: (OCLGRIND_BUILD_OPTIONS), and one that was built for counting ends a search for uninitialised values.
NOT_KEPT = ("Portable Computing", "Oclgrind")
#: Programs kept; the ones that were not used for longest go.
MOST = 256
_DIGEST = hashlib.sha256().digest_size


def are_kept(device: pyopencl.Device) -> bool:
    """Whether programs of a device are kept here."""
    return not device.platform.name.startswith(NOT_KEPT)


def binary_path(device: pyopencl.Device, source: str, options: Sequence[str]) -> Path:
    """Return the file of a program; its name tells apart device, driver, processor, source and options."""
    platform = device.platform
    parts = [platform.name, platform.version, device.name, device.version, device.driver_version, cpu_key()]
    return subfolder("programs") / hashlib.sha256(repr([*parts, source, list(options)]).encode()).hexdigest()


def load(
    context: pyopencl.Context, device: pyopencl.Device, path: Path, options: Sequence[str]
) -> pyopencl.Program | None:
    """Return the program of a file, built; None where there is none that the driver takes."""
    import pyopencl as cl

    try:
        content = path.read_bytes()
        os.utime(path)
    except OSError:
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
        if binary:
            write_atomically(path, hashlib.sha256(binary).digest() + binary)
            _drop_oldest(path.parent)
    except cl.Error:
        return
    except (OSError, RopeError) as error:
        warn_once(f"compiled programs are not remembered: {getattr(error, 'strerror', None) or error}")


def _drop_oldest(folder: Path) -> None:
    with contextlib.suppress(OSError):
        entries = list(os.scandir(folder))
        if len(entries) > MOST:
            for entry in sorted(entries, key=lambda e: e.stat().st_mtime)[: len(entries) - MOST]:
                os.unlink(entry)
