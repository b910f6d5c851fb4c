"""GGUF files: metadata and small tensors, read where they are asked for, and only within the file's length.

Not by the package gguf: its reader makes objects of every word of a vocabulary, 2 kB each.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..bounded_read import require_regular
from ..errors import ConfigError

#: GGUF's number types as struct has them.
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_SIZES = {kind: struct.calcsize(form) for kind, form in _NUMBERS.items()}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
#: Dimensions of a tensor in ggml, and its types that are read.
_MOST_DIMENSIONS = 4
_TENSOR_TYPES: dict[int, np.dtype[Any]] = {0: np.dtype("<f4"), 1: np.dtype("<f2")}
#: Far beyond any model's, so that reading ends soon: strings of all arrays, keys, tensors, and numbers of one of them.
_MOST_STRINGS = 1 << 22
_MOST_KEYS, _MOST_TENSORS = 1 << 16, 1 << 17
_MOST_NUMBERS = 1 << 16
#: Bytes of a name (GGUF allows no more), and of a text that is asked for.
_MOST_TEXT = (1 << 16) - 1
_ARCHITECTURE, _ALIGNMENT = "general.architecture", "general.alignment"


@dataclass(frozen=True)
class GgufContents:
    """What was asked for. keys: numbers, truth values, texts, and lists of numbers; tensors: their numbers in order."""

    architecture: str
    keys: Mapping[str, Any]
    tensors: Mapping[str, tuple[float, ...]]


class _Value(NamedTuple):
    """A metadata value: its type, where it begins; of an array the type and the number of its elements."""

    kind: int
    at: int
    elements: int | None


class _Tensor(NamedTuple):
    """A tensor's description. at: in the part of the file that holds data."""

    kind: int
    elements: int
    at: int


class _Header:
    """A cursor in the file; raises `ConfigError` instead of leaving it."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at, self.strings = path, data, 0, 0

    def skip(self, count: int, size: int, what: str) -> None:
        """Move past `count` values of `size` bytes; `count` may be any 64-bit number."""
        left = len(self.data) - self.at
        if count * size > left:
            raise ConfigError(f"{self.path}: {what} claims {count} values of {size} bytes, {left} bytes are left")
        self.at += count * size

    def number(self, form: str, what: str) -> Any:
        """Return the next number."""
        start = self.at
        self.skip(1, struct.calcsize(form), what)
        return struct.unpack_from(form, self.data, start)[0]

    def text(self, what: str) -> str:
        """Return the next string."""
        length = self.number("<Q", what)
        if length > _MOST_TEXT:
            raise ConfigError(f"{self.path}: {what} claims {length} bytes of text, at most {_MOST_TEXT} are read")
        start = self.at
        self.skip(length, 1, what)
        return bytes(self.data[start : self.at]).decode("utf-8", errors="replace")

    def value(self, what: str) -> _Value:
        """Move past a metadata value and return where it is."""
        kind, count = self.number("<I", what), None
        if kind == _ARRAY:
            kind, count = self.number("<I", what), self.number("<Q", what)
        found = _Value(kind, self.at, count)
        if kind == _STRING:
            self._skip_strings(1 if count is None else count, what)
        elif kind in _SIZES:
            self.skip(1 if count is None else count, _SIZES[kind], what)
        elif count is None:
            raise ConfigError(f"{self.path}: {what} has type {kind}, which GGUF does not have")
        else:
            raise ConfigError(f"{self.path}: {what} is an array of type {kind}, arrays of numbers or strings are read")
        return found

    def _skip_strings(self, count: int, what: str) -> None:
        self.strings += count
        if self.strings > _MOST_STRINGS:
            raise ConfigError(f"{self.path}: {what} claims {count} strings, at most {_MOST_STRINGS} of a file are read")
        at, end, unpack = self.at, len(self.data) - 8, struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at > end:
                break
            at += 8 + unpack(self.data, at)[0]
        else:
            if at <= end + 8:
                self.at = at
                return
        raise ConfigError(f"{self.path}: {what} claims {count} strings, the file ends within them")

    def content(self, found: _Value, what: str, most: int = 1) -> Any:
        """Return a value as Python has it; an array only where more than one element, `most`, may be read."""
        if found.elements is not None and (most == 1 or found.kind == _STRING):
            needed = "one value is" if most == 1 else "numbers are"
            kind = "strings" if found.kind == _STRING else "numbers"
            raise ConfigError(f"{self.path}: {what}: got an array of {found.elements} {kind}, {needed} needed")
        count = 1 if found.elements is None else found.elements
        if count > most:
            raise ConfigError(f"{self.path}: {what} has {count} elements, at most {most} are read")
        self.at = found.at
        if found.kind == _STRING:
            return self.text(what)
        items = list(struct.unpack_from(f"<{count}{_NUMBERS[found.kind][1]}", self.data, found.at))
        return items[0] if found.elements is None else items


def read_gguf(path: Path, wanted: Callable[[str, str], int], tensors: Collection[str]) -> GgufContents:
    """Return the keys that are wanted, and those of the named tensors that are there.

    wanted: called with the architecture and each key before any of their values is read. It returns how many elements
    are read: 0 leaves a key out, 1 is a single value, more is also an array. It may refuse a key by a `ConfigError`.

    For little-endian files of versions 2 and 3. Raises `ConfigError` naming the key or tensor for anything else, and
    for numbers that do not fit in the file; `OSError` for a file that cannot be read.
    """
    require_regular(path)
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < 24:
            raise ConfigError(f"{path}: not a GGUF file (shorter than a header)")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(_Header(path, data), wanted, tensors)


def _read(header: _Header, wanted: Callable[[str, str], int], tensors: Collection[str]) -> GgufContents:
    path = header.path
    values, described = _described(header)
    end = header.at
    keys = {}
    for name in (_ARCHITECTURE, _ALIGNMENT):
        if name in values:
            keys[name] = header.content(values[name], name)
    architecture, alignment = keys.get(_ARCHITECTURE), keys.get(_ALIGNMENT, 32)
    if architecture is None:
        raise ConfigError(f"{path}: {_ARCHITECTURE} is missing")
    if not isinstance(architecture, str):
        raise ConfigError(f"{path}: {_ARCHITECTURE}: got {architecture!r}, a text is needed")
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise ConfigError(f"{path}: {_ALIGNMENT}: got {alignment!r}, a power of two is needed")
    start = -(-end // alignment) * alignment
    most = {name: wanted(architecture, name) for name in values}
    return GgufContents(
        architecture,
        {name: header.content(value, name, most[name]) for name, value in values.items() if most[name]},
        {name: _numbers(header, name, described[name], start) for name in tensors if name in described},
    )


def _described(header: _Header) -> tuple[dict[str, _Value], dict[str, _Tensor]]:
    """Return where all keys and tensors of a file are, and leave the cursor behind them."""
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
    if tensors > _MOST_TENSORS or keys > _MOST_KEYS:
        raise ConfigError(
            f"{path}: the header claims {tensors} tensors and {keys} keys, at most {_MOST_TENSORS} and {_MOST_KEYS} "
            "are read"
        )
    values: dict[str, _Value] = {}
    for number in range(keys):
        name = header.text(f"key {number}")
        if name in values:
            raise ConfigError(f"{path}: two keys have the name {name[:80]!r}")
        values[name] = header.value(f"key {name[:80]!r}")
    described: dict[str, _Tensor] = {}
    for number in range(tensors):
        name = header.text(f"tensor {number}")
        what = f"tensor {name[:80]!r}"
        if name in described:
            raise ConfigError(f"{path}: two tensors have the name {name[:80]!r}")
        dimensions = header.number("<I", what)
        if dimensions > _MOST_DIMENSIONS:
            raise ConfigError(f"{path}: {what} has {dimensions} dimensions, at most {_MOST_DIMENSIONS} are allowed")
        count = math.prod(header.number("<Q", what) for _ in range(dimensions))
        described[name] = _Tensor(header.number("<I", what), count, header.number("<Q", what))
    return values, described


def _numbers(header: _Header, name: str, tensor: _Tensor, start: int) -> tuple[float, ...]:
    dtype = _TENSOR_TYPES.get(tensor.kind)
    if dtype is None:
        raise ConfigError(f"{name}: stored as ggml's type {tensor.kind}, float32 or float16 is needed")
    if tensor.elements > _MOST_NUMBERS:
        raise ConfigError(f"{name}: has {tensor.elements} numbers, at most {_MOST_NUMBERS} are read")
    begin, size = start + tensor.at, tensor.elements * dtype.itemsize
    if begin + size > len(header.data):
        raise ConfigError(f"{name}: its {size} bytes from {begin} on are beyond the file of {len(header.data)} bytes")
    return tuple(np.frombuffer(header.data[begin : begin + size], dtype).astype(np.float64).tolist())
