"""Named arrays in .npy, .npz and .safetensors files, written whole or not at all.

- A .npy file holds one array, called 'x' here.
- bfloat16 is `ml_dtypes.bfloat16`. safetensors names the type. NumPy's formats do not know it and store two opaque
  bytes an element ('V2'); the rule here, in both directions: an unnamed two-byte void in .npy or .npz *is* bfloat16.
- float8_e4m3fn and float8_e5m2 fit in .safetensors only.
- A file is untrusted: what its header claims is compared with its length before memory is allocated.
- .npy is mapped read-only, so that a file larger than memory can be worked on in parts; .npz and .safetensors are read.
- A file is written to its folder under another name, then renamed over it.
"""

from __future__ import annotations

import math
import os
import tokenize
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..bounded_read import path_argument, require_regular
from ..errors import ConfigError, RopeError, ShapeError
from ..output_file import replace_file
from ..strict_json import parse_json

Array = npt.NDArray[Any]
Format = Literal["npy", "npz", "safetensors"]

BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
#: Name of the array of a .npy file.
SINGLE = "x"

_FORMATS: dict[str, Format] = {".npy": "npy", ".npz": "npz", ".safetensors": "safetensors"}
_BF16_IN_NUMPY = np.dtype("V2")
_WRITABLE = frozenset(
    [np.dtype(np.bool_), BFLOAT16]
    + [np.dtype(f"f{size}") for size in (2, 4, 8)]
    + [np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)]
)
#: safetensors' names of types that its NumPy interface cannot read.
_FLOAT8 = {"F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn), "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2)}
_SAFETENSORS = (
    "BOOL", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "F16", "BF16", "F32", "F64", *_FLOAT8
)  # fmt: skip
#: Bytes of an array's name in .npz, where '.npy' follows it, and of a header of .npy, as NumPy has them.
_LONGEST_NAME, _LONGEST_HEADER = 65_531, 10_000
#: Bytes of a header of .safetensors, and arrays of a file, each of which takes its reader time: several times what
#: model files have. Arrays of .npz take longer.
_LONGEST_SAFETENSORS_HEADER = 32 << 20
_MOST_ARRAYS: dict[Format, int] = {"npy": 1, "npz": 8192, "safetensors": 65_536}
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def format_of(path: str | os.PathLike[str]) -> Format:
    """Return the format that a file name's suffix stands for, or raise `ConfigError` naming the known ones."""
    suffix = path_argument("path", path).suffix.lower()
    if suffix not in _FORMATS:
        raise ConfigError(f"{path}: suffix {suffix!r} is not one of {', '.join(_FORMATS)}")
    return _FORMATS[suffix]


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the arrays of a file by name, in the file's order; those mapped from the file are read-only."""
    kind, path = format_of(path), Path(path)
    try:
        require_regular(path)
        if kind == "npy":
            return {SINGLE: _from_numpy(_load_npy(path))}
        if kind == "npz":
            return _read_npz(path)
        return _read_safetensors(path)
    except OSError as error:
        raise RopeError(f"{path}: cannot be read ({error.strerror or error})") from error
    except Exception as error:  # the parsers raise a dozen types for damaged files, tokenize.TokenError among them
        raise RopeError(f"{path}: not a readable .{kind} file ({_reason(error)})") from error


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the metadata of a .safetensors file; the other formats have none."""
    if format_of(path) != "safetensors":
        return {}
    path = Path(path)
    try:
        require_regular(path)
        return _read_safetensors_metadata(path)
    except OSError as error:
        raise RopeError(f"{path}: cannot be read ({error.strerror or error})") from error
    except Exception as error:
        raise RopeError(f"{path}: not a readable .safetensors file ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def write_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays to a file in the format of its suffix, replacing one that is there only once all is written.

    A .npy file takes exactly one array, of any name. Metadata (strings) fits in .safetensors only.
    """
    kind, path = format_of(path), Path(path)
    if metadata and kind != "safetensors":
        raise ConfigError(f"{path}: metadata fits in .safetensors only, the suffix is {path.suffix!r}")
    check_arrays(path, arrays)
    ready = {name: _native(array) for name, array in arrays.items()}
    if kind == "npy":
        (single,) = ready.values()
        replace_file(path, lambda file: _write_npy(file, single))
    elif kind == "npz":
        replace_file(path, lambda file: _write_npz(file, ready))
    else:
        _check_metadata(path, ready, metadata or {})
        replace_file(path, lambda file: _write_safetensors(file, ready, metadata or {}))


def check_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Array]) -> None:
    """Raise `ShapeError` for arrays that the format of a file's suffix cannot hold; nothing is written."""
    kind = format_of(path)
    for name, array in arrays.items():
        dtype = np.asarray(array).dtype
        native = dtype.newbyteorder("=")
        if native not in _WRITABLE and not (kind == "safetensors" and native in _FLOAT8.values()):
            raise ShapeError(
                f"{path}: array {name!r} has dtype {dtype}; allowed are bool, the integers, float16, float32, "
                "float64, bfloat16, and in .safetensors float8_e4m3fn and float8_e5m2"
            )
    if kind == "npy" and len(arrays) != 1:
        raise ShapeError(f"{path}: a .npy file holds one array, got {len(arrays)}; use .npz or .safetensors")
    if len(arrays) > _MOST_ARRAYS[kind]:
        raise ShapeError(f"{path}: got {len(arrays)} arrays, at most {_MOST_ARRAYS[kind]} fit in a .{kind} file")
    if kind == "npz" and (long := max(map(_bytes_of_name, arrays), default=0)) > _LONGEST_NAME:
        raise ShapeError(f"{path}: the name of an array has {long} bytes, at most {_LONGEST_NAME} fit in .npz")


def _bytes_of_name(name: str) -> int:
    return len(name.encode("utf-8", "surrogatepass"))


def _native(array: Array) -> Array:
    array = np.asarray(array)
    native = array.dtype.newbyteorder("=")
    return array if array.dtype == native else array.astype(native)


def _from_numpy(array: Array) -> Array:
    if array.dtype == _BF16_IN_NUMPY:
        return array.view(BFLOAT16)
    native = array.dtype.newbyteorder("=")
    return array if array.dtype == native else array.astype(native)


def _load_npy(path: Path) -> Array:
    with open(path, "rb") as file:
        nbytes = _claimed_bytes(file)
        _check_size(nbytes, os.fstat(file.fileno()).st_size - file.tell())
    try:
        mapped = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        if mapped.flags.aligned:  # not every writer fills the header up to a multiple of 64 bytes
            return mapped
    except ValueError:
        pass  # an empty array cannot be mapped; what is wrong in another way fails here again
    return np.asarray(np.load(path, allow_pickle=False))


def _claimed_bytes(file: IO[bytes]) -> int:
    """Read the header of a .npy stream and return the bytes of data that it claims; `ValueError` for another format."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"format version {version[0]}.{version[1]}, allowed are 1.0 and 2.0")
    if version == (2, 0):  # NumPy reads a header of any length before it refuses it
        start = file.tell()
        length = int.from_bytes(file.read(4), "little")
        if length > _LONGEST_HEADER:
            raise ValueError(f"its header claims {length} bytes, at most {_LONGEST_HEADER} are read")
        file.seek(start)
    try:
        shape, _, dtype = _HEADERS[version](file)
    except (SyntaxError, tokenize.TokenError) as error:
        raise ValueError("its header is no dictionary of descr, fortran_order and shape") from error
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if any(type(length) is not int or length < 0 for length in shape):
        raise ValueError(f"its header claims shape {shape}, lengths of at least 0 are needed")
    return math.prod(shape) * dtype.itemsize


def _check_number(kind: Format, number: int) -> None:
    if number > _MOST_ARRAYS[kind]:
        raise ValueError(f"it has {number} arrays, at most {_MOST_ARRAYS[kind]} are read")


def _check_size(claimed: int, there: int) -> None:
    if claimed > there:
        raise ValueError(f"its header claims {claimed} bytes of data, {there} follow")


def _read_npz(path: Path) -> dict[str, Array]:
    import zipfile  # here and below, because importing this package must stay quick

    # Not np.load, which takes a file that is no archive for a pickle and leaves it open.
    arrays: dict[str, Array] = {}
    with zipfile.ZipFile(path) as archive:
        _check_number("npz", len(archive.infolist()))
        if sum(info.compress_size for info in archive.infolist()) > os.path.getsize(path):
            raise ValueError("its entries claim more bytes together than the file has")
        names: set[str] = set()
        # All headers before any data.
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name in names:
                raise ValueError(f"two entries have the name {name!r}")
            names.add(name)
            # Deflate makes 1/1032 at best; what is compressed further is an archive made to fill the memory.
            if info.file_size > 1100 * info.compress_size + 1024:
                raise ValueError(f"entry {name!r} claims {info.file_size} bytes, compressed {info.compress_size}")
            with archive.open(info) as entry:
                _check_size(_claimed_bytes(entry), info.file_size)
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            with archive.open(info) as entry:
                arrays[name] = _from_numpy(np.lib.format.read_array(entry, allow_pickle=False))
    return arrays


def _write_npy(file: IO[bytes], array: Array) -> None:
    stored = array.view(_BF16_IN_NUMPY) if array.dtype == BFLOAT16 else array
    np.lib.format.write_array(file, stored, allow_pickle=False)


def _write_npz(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    import zipfile

    # Not np.savez: names such as 'file' would collide with its own parameters.
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                _write_npy(entry, array)


def _read_safetensors(path: Path) -> dict[str, Array]:
    import safetensors

    header = _safetensors_header(path)
    try:
        with safetensors.safe_open(path, framework="np") as file:
            names = list(file.offset_keys())
            types = {name: header[name]["dtype"] for name in names}
            for name, dtype in types.items():
                if dtype not in _SAFETENSORS:
                    raise ValueError(f"array {name!r} has type {dtype}, allowed are {', '.join(_SAFETENSORS)}")
            if not _FLOAT8.keys() & types.values():
                return {name: np.asarray(file.get_tensor(name)) for name in names}
            entries = dict(safetensors.deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
            return {
                name: _float8(entries[name]) if types[name] in _FLOAT8 else np.asarray(file.get_tensor(name))
                for name in names
            }
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from error


def _safetensors_header(path: Path) -> dict[str, Any]:
    """Return the header, in which no key is twice: of two arrays with one name safetensors takes the last."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        left = os.fstat(file.fileno()).st_size - file.tell()
        if length > left:
            raise ValueError(f"its header claims {length} bytes, {left} follow")
        if length > _LONGEST_SAFETENSORS_HEADER:
            raise ValueError(f"its header claims {length} bytes, at most {_LONGEST_SAFETENSORS_HEADER} are read")
        header = parse_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError(f"its header is a JSON {type(header).__name__}, an object is needed")
    _check_number("safetensors", len(header.keys() - {"__metadata__"}))
    return header


def _float8(entry: Mapping[str, Any]) -> Array:
    values: Array = np.frombuffer(entry["data"], np.uint8).view(_FLOAT8[entry["dtype"]])
    return values.reshape(entry["shape"])


def _read_safetensors_metadata(path: Path) -> dict[str, str]:
    import safetensors

    _safetensors_header(path)
    try:
        with safetensors.safe_open(path, framework="np") as file:
            return dict(file.metadata() or {})
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from error


def _check_metadata(path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    wrong = [key for key, value in metadata.items() if not isinstance(key, str) or not isinstance(value, str)]
    if wrong:
        raise ConfigError(f"{path}: metadata {wrong[0]!r} is not a string")
    if "__metadata__" in arrays:
        raise ShapeError(f"{path}: '__metadata__' cannot be the name of an array in a .safetensors file")


def _write_safetensors(file: IO[bytes], arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    from safetensors.numpy import save

    dense = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    file.write(save(dense, metadata=dict(metadata) or None))
