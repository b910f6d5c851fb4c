"""Whether what a GGUF file's header claims fits in the file, before anything reads it by those claims."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from ..errors import ConfigError

#: Bytes of a value of GGUF's number types, by their numbers.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
#: Dimensions of a tensor in ggml.
_MOST_DIMENSIONS = 4


class _Header:
    """A cursor in the file; raises `ConfigError` instead of leaving it."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 0

    def skip(self, count: int, size: int, what: str) -> None:
        """Move past `count` values of `size` bytes; `count` may be any 64-bit number."""
        left = len(self.data) - self.at
        if count * size > left:
            raise ConfigError(f"{self.path}: {what} claims {count} values of {size} bytes, {left} bytes are left")
        self.at += count * size

    def number(self, form: str, what: str) -> int:
        """Return the next number."""
        start = self.at
        self.skip(1, struct.calcsize(form), what)
        return int(struct.unpack_from(form, self.data, start)[0])

    def text(self, what: str) -> str:
        """Return the next string."""
        length = self.number("<Q", what)
        start = self.at
        self.skip(length, 1, what)
        return bytes(self.data[start : self.at]).decode("utf-8", errors="replace")

    def value(self, what: str) -> None:
        """Move past a metadata value."""
        kind = self.number("<I", what)
        if kind == _STRING:
            self.text(what)
        elif kind == _ARRAY:
            inner, count = self.number("<I", what), self.number("<Q", what)
            if inner == _STRING:
                # Each takes at least its length's eight bytes, so that the file bounds the loop.
                if count * 8 > len(self.data) - self.at:
                    self.skip(count, 8, what)
                for _ in range(count):
                    self.skip(self.number("<Q", what), 1, what)
            elif inner in _SIZES:
                self.skip(count, _SIZES[inner], what)
            else:
                raise ConfigError(
                    f"{self.path}: {what} is an array of type {inner}, arrays of numbers or strings are read"
                )
        elif kind in _SIZES:
            self.skip(1, _SIZES[kind], what)
        else:
            raise ConfigError(f"{self.path}: {what} has type {kind}, which GGUF does not have")


def check_gguf(path: Path) -> None:
    """Raise `ConfigError` unless the metadata and the tensors' descriptions of a little-endian GGUF file fit in it.

    Raises `OSError` for a file that cannot be read.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < 24:
            raise ConfigError(f"{path}: not a GGUF file (shorter than a header)")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _check(_Header(path, data))


def _check(header: _Header) -> None:
    path = header.path
    if bytes(header.data[:4]) != b"GGUF":
        raise ConfigError(f"{path}: not a GGUF file (it begins with {bytes(header.data[:4])!r})")
    header.at = 4
    version = header.number("<I", "the header")
    if version not in _VERSIONS:
        raise ConfigError(f"{path}: GGUF version {version}, little-endian files of versions 2 and 3 are read")
    tensors, keys = header.number("<Q", "the header"), header.number("<Q", "the header")
    left = len(header.data) - header.at
    if tensors * 24 + keys * 13 > left:  # the least that each takes
        raise ConfigError(f"{path}: the header claims {tensors} tensors and {keys} keys, {left} bytes are left")
    for number in range(keys):
        header.value(f"key {header.text(f'key {number}')[:80]!r}")
    for number in range(tensors):
        name = f"tensor {header.text(f'tensor {number}')[:80]!r}"
        dimensions = header.number("<I", name)
        if dimensions > _MOST_DIMENSIONS:
            raise ConfigError(f"{path}: {name} has {dimensions} dimensions, at most {_MOST_DIMENSIONS} are allowed")
        header.skip(dimensions, 8, name)
        header.skip(1, 12, name)
