"""Programs kept per context: until a runtime owns them."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from ..kernels.build import build
from ..kernels.launch import LaunchSpec

if TYPE_CHECKING:
    import pyopencl

_lock = threading.Lock()
_programs: weakref.WeakKeyDictionary[Any, dict[Any, pyopencl.Program]] = weakref.WeakKeyDictionary()


def program(context: pyopencl.Context, device: pyopencl.Device, spec: LaunchSpec) -> pyopencl.Program:
    """Return a launch's program, from memory if it was built before. Raises `BuildError`."""
    with _lock:
        key = (device.int_ptr, spec.file, spec.options, spec.source)
        known = _programs.setdefault(context, {})
        if key not in known:
            known[key] = build(context, device, spec.text, spec.options)
        return known[key]
