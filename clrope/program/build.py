"""Building a program once per context and options, and saying all there is to say when that fails."""

from __future__ import annotations

import hashlib
import os
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BuildError
from .source import kernel_source

if TYPE_CHECKING:
    import pyopencl

_lock = threading.Lock()
_programs: weakref.WeakKeyDictionary[Any, dict[tuple[int, Path | None, str, tuple[str, ...]], pyopencl.Program]] = (
    weakref.WeakKeyDictionary()
)
_folder: Path | None = None


def program(
    context: pyopencl.Context, device: pyopencl.Device, name: str, options: Sequence[str] = ()
) -> pyopencl.Program:
    """Return `kernels/<name>` built for the device with the options, from memory if it was built before.

    No option is ever added: above all no fast-math, which would change the bits. Raises `BuildError`.
    """
    with _lock:
        key = (device.int_ptr, _folder, name, tuple(options))
        known = _programs.setdefault(context, {})
        if key not in known:
            known[key] = build(context, device, kernel_source(name, _folder), options)
        return known[key]


def substitute(
    context: pyopencl.Context, device: pyopencl.Device, name: str, options: Sequence[str], source: str
) -> None:
    """Have `program` return another text's build for this name and these options: for trying broken kernels."""
    with _lock:
        _programs.setdefault(context, {})[device.int_ptr, None, name, tuple(options)] = build(
            context, device, source, options
        )


@contextmanager
def kernels_from(folder: Path | None) -> Iterator[None]:
    """Have `program` take its texts from another folder for the length of a block: for comparing texts.

    Plans keep the kernels they were bound to. Holds for all threads; None: the package's own.
    """
    global _folder
    before, _folder = _folder, folder
    try:
        yield
    finally:
        _folder = before


def build(
    context: pyopencl.Context, device: pyopencl.Device, source: str, options: Sequence[str] = ()
) -> pyopencl.Program:
    """Build a source text; raises `BuildError` with the device, the options, the log and a file with the source."""
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
    from ..store import cache_dir

    folder = Path(cache_dir()) / "failed-sources"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(source.encode()).hexdigest()[:16]}.cl"
    path.write_text(source, encoding="utf-8")
    return os.fspath(path)
