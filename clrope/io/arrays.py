"""Named arrays in .npy, .npz and .safetensors files: mapped into memory where possible, written whole or not at all.

- A .npy file holds one array, called 'x' here.
- bfloat16 is `ml_dtypes.bfloat16`. safetensors names the type. NumPy's formats do not know it and store two opaque
  bytes an element ('V2'); the rule here, in both directions: an unnamed two-byte void in .npy or .npz *is* bfloat16.
- .npy and .safetensors are mapped read-only, so that a file larger than memory can be worked on in parts; .npz cannot.
- A file is written beside its place under another name, then renamed over it.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..errors import ConfigError, RopeError, ShapeError

Array = npt.NDArray[Any]
Format = Literal["npy", "npz", "safetensors"]

BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
#: Name of the array of a .npy file.
SINGLE = "x"

_FORMATS: dict[str, Format] = {".npy": "npy", ".npz": "npz", ".safetensors": "safetensors"}
_BF16_IN_NUMPY = np.dtype("V2")
_SAFETENSORS: dict[str, np.dtype[Any]] = {
    **{f"F{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    **{f"I{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    "BOOL": np.dtype(np.bool_),
    "BF16": BFLOAT16,
}
_SAFETENSORS_NAMES = {dtype: name for name, dtype in _SAFETENSORS.items()}
#: What parsing a damaged file raises.
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError)
#: The format's own limit on its header.
_MAX_HEADER = 100_000_000


def format_of(path: str | os.PathLike[str]) -> Format:
    """Return the format that a file name's suffix stands for, or raise `ConfigError` naming the known ones."""
    suffix = Path(path).suffix.lower()
    if suffix not in _FORMATS:
        raise ConfigError(f"{path}: suffix {suffix!r} is not one of {', '.join(_FORMATS)}")
    return _FORMATS[suffix]


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the arrays of a file by name, in the file's order; those mapped from the file are read-only."""
    path, kind = Path(path), format_of(path)
    try:
        if kind == "npy":
            return {SINGLE: _from_numpy(_load_npy(path))}
        if kind == "npz":
            return _read_npz(path)
        return _read_safetensors(path)[0]
    except OSError as error:
        raise RopeError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (*_DAMAGED, zipfile.BadZipFile, EOFError) as error:
        raise RopeError(f"{path}: not a readable .{kind} file ({error})") from error


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the metadata of a .safetensors file; the other formats have none."""
    path = Path(path)
    if format_of(path) != "safetensors":
        return {}
    try:
        return _read_safetensors(path)[1]
    except OSError as error:
        raise RopeError(f"{path}: cannot be read ({error.strerror or error})") from error
    except _DAMAGED as error:
        raise RopeError(f"{path}: not a readable .safetensors file ({error})") from error


def write_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays to a file in the format of its suffix, replacing one that is there only once all is written.

    A .npy file takes exactly one array, of any name. Metadata (strings) fits in .safetensors only.
    """
    path, kind = Path(path), format_of(path)
    if metadata and kind != "safetensors":
        raise ConfigError(f"{path}: metadata fits in .safetensors only")
    ready = {name: _storable(name, array) for name, array in arrays.items()}
    if kind == "npy":
        if len(ready) != 1:
            raise ShapeError(f"{path}: a .npy file holds one array, got {len(ready)}; use .npz or .safetensors")
        (single,) = ready.values()
        _replace(path, lambda file: _write_npy(file, single))
    elif kind == "npz":
        _replace(path, lambda file: _write_npz(file, ready))
    else:
        header, order = _safetensors_header(path, ready, metadata or {})
        _replace(path, lambda file: _write_safetensors(file, header, ready, order))


def _storable(name: str, array: Array) -> Array:
    array = np.asarray(array)
    native = array.dtype.newbyteorder("=")
    if native not in _SAFETENSORS_NAMES:
        raise ShapeError(
            f"{name}: dtype {array.dtype} cannot be written; allowed are bool, the integers, float16, float32, float64 "
            "and bfloat16"
        )
    return array if array.dtype == native else array.astype(native)


def _from_numpy(array: Array) -> Array:
    if array.dtype == _BF16_IN_NUMPY:
        return array.view(BFLOAT16)
    native = array.dtype.newbyteorder("=")
    return array if array.dtype == native else array.astype(native)


def _load_npy(path: Path) -> Array:
    with open(path, "rb") as file:
        np.lib.format.read_magic(file)  # its error says what is wrong with the file; np.load's is of pickles
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except ValueError:
        # An empty array cannot be mapped. What is wrong in another way fails here again.
        return np.asarray(np.load(path, allow_pickle=False))


def _read_npz(path: Path) -> dict[str, Array]:
    # Not np.load, which takes a file that is no archive for a pickle and leaves it open.
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as entry:
                array = np.lib.format.read_array(entry, allow_pickle=False)
            arrays[name.removesuffix(".npy")] = _from_numpy(array)
    return arrays


def _write_npy(file: IO[bytes], array: Array) -> None:
    stored = array.view(_BF16_IN_NUMPY) if array.dtype == BFLOAT16 else array
    np.lib.format.write_array(file, stored, allow_pickle=False)


def _write_npz(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    # Not np.savez: names such as 'file' would collide with its own parameters.
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                _write_npy(entry, array)


def _read_safetensors(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Map a .safetensors file: a 64-bit header length, a JSON header, then the tensors' bytes."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else _MAX_HEADER
        if length > min(_MAX_HEADER, size - 8):
            raise ValueError("its header is longer than the file")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    metadata = header.pop("__metadata__", None) or {}
    start, room = 8 + length, size - 8 - length
    data: Array = np.empty(0, np.uint8)
    if room:
        data = np.asarray(np.memmap(path, dtype=np.uint8, mode="r", offset=start, shape=(room,)))
    entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"][0])
    return {name: _tensor(name, entry, data) for name, entry in entries}, dict(metadata)


def _tensor(name: str, entry: Mapping[str, Any], data: Array) -> Array:
    dtype = _SAFETENSORS.get(entry["dtype"])
    if dtype is None:
        raise ValueError(f"tensor {name!r} has type {entry['dtype']}, known are {', '.join(_SAFETENSORS)}")
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if (
        min(shape, default=0) < 0
        or not 0 <= begin <= end <= data.shape[0]
        or end - begin != math.prod(shape) * dtype.itemsize
    ):
        raise ValueError(f"tensor {name!r} of shape {list(shape)} does not fill bytes {begin} to {end}")
    part = data[begin:end]
    # Other writers need not align tensors to their type.
    part = part if part.ctypes.data % dtype.itemsize == 0 else part.copy()
    return part.view(dtype).reshape(shape)


def _safetensors_header(
    path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str]
) -> tuple[bytes, list[str]]:
    # Wide types first, so that every tensor is aligned to its type.
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, Any] = {}
    if metadata:
        wrong = [key for key, value in metadata.items() if not isinstance(key, str) or not isinstance(value, str)]
        if wrong:
            raise ConfigError(f"{path}: metadata {wrong[0]!r} is not a string")
        header["__metadata__"] = dict(metadata)
    begin = 0
    for name in order:
        array = arrays[name]
        if name == "__metadata__":
            raise ShapeError("'__metadata__' cannot be the name of an array in a .safetensors file")
        end = begin + array.nbytes
        kind = _SAFETENSORS_NAMES[array.dtype]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, order


def _write_safetensors(file: IO[bytes], header: bytes, arrays: Mapping[str, Array], order: list[str]) -> None:
    file.write(header)
    for name in order:
        array = arrays[name]
        little = array.dtype if array.dtype == BFLOAT16 else array.dtype.newbyteorder("<")
        file.write(np.ascontiguousarray(array, dtype=little).reshape(-1).view(np.uint8).data)


def _replace(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Write beside `path` and rename; whatever happens, no part of a file stays behind."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(beside, "xb") as file:
            write(file)
        os.replace(beside, path)
    except OSError as error:
        _discard(beside)
        raise RopeError(f"{path}: cannot be written ({error.strerror or error})") from error
    except BaseException:
        _discard(beside)
        raise


def _discard(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return
