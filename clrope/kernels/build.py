"""Building a program from its text, with a complete error message, and compiled programs kept between processes.

Kept programs are files of the cache directory, one a program: the SHA-256 of the rest, then the driver's binary. One
that does not fit is compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..bounded_read import read_bounded
from ..cache_folder import subfolder, warn_not_remembered, warn_once, write_atomically
from ..device.info import cpu_key
from ..errors import BuildError, RopeError

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
#: In names of platforms whose programs are not kept: PoCL does so itself, Oclgrind compiles as its variables say.
_NOT_KEPT = ("Portable Computing", "Oclgrind")


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
            built = load_program(context, device, path, options) if path else None
            if built is None:
                # Without PyOpenCL's own cache, which holds pickles and fails on a full disk.
                built = cl.Program(context, source).build(
                    options=list(options),
                    devices=[device],
                    cache_dir=False,  # type: ignore[arg-type]  # False is documented, the annotation forgets it
                )
                if path:
                    _save_program(built, path)
            return built
    except cl.Error as error:
        raise BuildError(
            f"{device.name.strip()} ({device.platform.name.strip()}, driver {device.driver_version.strip()})",
            options,
            str(error),
            _save_source(source),
        ) from error


def _save_source(source: str) -> str:
    """Write a source that failed to a file under the cache directory; return its path, '' where none can be."""
    try:
        path = subfolder("failed-sources") / f"{hashlib.sha256(source.encode()).hexdigest()[:16]}.cl"
        write_atomically(path, source)
    except (OSError, RopeError) as error:
        warn_once(f"the source of a failed kernel is not saved: {error}")
        return ""
    return os.fspath(path)


def includes_files(source: str) -> bool:
    """Whether a text may include files, which may change while the text does not.

    One with the word counts: a directive may hold comments, begin with `%:`, and go over lines.
    """
    return "include" in _SPLICE.sub("", source)


def is_kept(device: pyopencl.Device, source: str) -> bool:
    """Whether a file can stand for a program: the driver is none of `_NOT_KEPT`, and no file is included."""
    return not (any(name in device.platform.name for name in _NOT_KEPT) or includes_files(source))


def binary_path(device: pyopencl.Device, source: str, options: Sequence[str]) -> Path:
    """Return the file of a program.

    Its name tells apart the device, the driver and its variables, the processor, the source and the options.
    """
    platform = device.platform
    variables = sorted((name, value) for name, value in os.environ.items() if name.startswith(_COMPILER_VARIABLES))
    parts = [platform.name, platform.version, device.name, device.version, device.driver_version, cpu_key()]
    return subfolder("programs") / hashlib.sha256(repr([*parts, variables, source, list(options)]).encode()).hexdigest()


def load_program(
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
    with contextlib.suppress(cl.Error):
        if hashlib.sha256(binary).digest() == digest:
            program: pyopencl.Program = cl.Program(context, [device], [binary]).build(options=list(options))
            return program
    return None


def _save_program(program: pyopencl.Program, path: Path) -> None:
    """Write the binary of a program; where that fails, it is compiled again the next time."""
    import pyopencl as cl

    try:
        binaries: list[bytes] = program.get_info(cl.program_info.BINARIES)  # type: ignore[assignment]
        if 0 < len(binaries[0]) <= _LARGEST_FILE - _DIGEST:
            write_atomically(path, hashlib.sha256(binaries[0]).digest() + binaries[0])
            with contextlib.suppress(OSError):
                entries = [*os.scandir(path.parent)]
                used = {entry.path: entry.stat(follow_symlinks=False).st_mtime for entry in entries}
                for old in sorted(used, key=used.__getitem__)[: max(0, len(used) - MOST)]:
                    with contextlib.suppress(OSError):  # no file, or one that another process removed
                        os.unlink(old)
    except cl.Error:
        return
    except (OSError, RopeError) as error:
        warn_not_remembered("a compiled program", error)
