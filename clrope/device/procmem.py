"""Loaded libraries and memory of this process (Linux), read without the risk of a crash."""

from __future__ import annotations

import contextlib
import os
import struct

_POINTER = struct.Struct("P")


def loaded_libraries() -> list[tuple[int, int, str]]:
    """Return (start, end, path) of each mapped file; empty where the system does not tell."""
    out = []
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            parts = line.rstrip("\n").split(None, 5)
            if len(parts) == 6 and parts[5].startswith("/"):
                start, end = (int(x, 16) for x in parts[0].split("-"))
                out.append((start, end, parts[5]))
    return out


def library_at(address: int) -> str:
    """Return the path of the file mapped at `address`, or ''."""
    return next((path for start, end, path in loaded_libraries() if start <= address < end), "")


def read(address: int, size: int) -> bytes:
    """Return up to `size` bytes at `address`: fewer, or none, where memory ends, instead of a crash."""
    with contextlib.suppress(OSError, OverflowError), open("/proc/self/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), size, address)
    return b""


def read_pointers(address: int, count: int) -> list[int]:
    """Return up to `count` pointer-sized numbers from `address` on."""
    data = read(address, count * _POINTER.size)
    return [number for (number,) in _POINTER.iter_unpack(data[: len(data) // _POINTER.size * _POINTER.size])]


def read_text(address: int, limit: int = 128) -> str:
    """Return the NUL-terminated printable ASCII string at `address`, or '' if there is none within `limit` bytes."""
    if not 0x1000 <= address < 1 << 47:
        return ""
    text, end, _ = read(address, limit).partition(b"\0")
    if end and text.isascii() and text.decode("ascii").isprintable():
        return text.decode("ascii")
    return ""


def icd_library(platform_pointer: int) -> str:
    """Return the driver library an OpenCL platform comes from, or ''.

    By the ICD extension a platform begins with a pointer to its dispatch table, and that table's first entry is the
    driver's own `clGetPlatformIDs`.
    """
    table = read_pointers(platform_pointer, 1)
    first = read_pointers(table[0], 1) if table else []
    return library_at(first[0]) if first else ""
