"""Named arrays in .npy, .npz and .safetensors files, written whole or not at all.

- A .npy file holds one array, called 'x' here.
- bfloat16 is `ml_dtypes.bfloat16`. safetensors names the type. NumPy's formats do not know it and store two opaque
  bytes an element ('V2'); the rule here, in both directions: an unnamed two-byte void in .npy or .npz *is* bfloat16.
- float8_e4m3fn and float8_e5m2 fit in .safetensors only.
- A file is untrusted: what its header claims is compared with its length before memory is allocated.
- A file may be larger than memory: arrays of .npy and .safetensors are read in parts, those of .npz one by one, and all
  are written in parts. `read_arrays` maps .npy read-only and reads the others whole.
- A file is written to its folder under another name, then renamed over it.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import mul
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..bounded_read import path_argument, require_regular
from ..errors import ConfigError, RopeError, ShapeError
from ..output_file import replace_file
from ..strict_json import parse_json

if TYPE_CHECKING:
    from zipfile import ZipFile, ZipInfo

Array = npt.NDArray[Any]
#: A part of an array: for each axis a slice with start and stop.
Part = tuple[slice, ...]
Format = Literal["npy", "npz", "safetensors"]

BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
#: Name of the array of a .npy file.
SINGLE = "x"

#: Elements of a part, at most. Reading, rotating and writing it takes milliseconds; checking takes 130 bytes for each.
PART = 1 << 22

_FORMATS: dict[str, Format] = {".npy": "npy", ".npz": "npz", ".safetensors": "safetensors"}
_BF16_IN_NUMPY = np.dtype("V2")
#: The types of safetensors, in the order by which its package sorts arrays.
_SAFETENSORS: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_), "U8": np.dtype("u1"), "I8": np.dtype("i1"),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2), "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "I16": np.dtype("i2"), "U16": np.dtype("u2"), "F16": np.dtype("f2"), "BF16": BFLOAT16,
    "I32": np.dtype("i4"), "U32": np.dtype("u4"), "F32": np.dtype("f4"),
    "F64": np.dtype("f8"), "I64": np.dtype("i8"), "U64": np.dtype("u8"),
}  # fmt: skip
_IN_NUMPY = frozenset(dtype for name, dtype in _SAFETENSORS.items() if not name.startswith("F8"))
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


@dataclass(frozen=True)
class StoredArray:
    """An array of an open file, whose parts can be read.

    dtype, shape: as `read_arrays` returns them. order: the axes, the outermost in the file first.
    """

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Sequence[int]
    read: Callable[[Iterable[Part]], Iterator[Array]]

    def parts(self, parts: Iterable[Part]) -> Iterator[Array]:
        """Read parts, one after the other; of .npz the whole array stays in memory until the last one."""
        with _reading(self.path):
            for array in self.read(parts):
                yield _from_numpy(array)

    def whole(self) -> Array:
        """Read all of it."""
        return next(self.parts([tuple(slice(0, length) for length in self.shape)]))


def parts_of(shape: Sequence[int], axes: Iterable[int]) -> list[Part]:
    """Cut an array into parts of at most `PART` elements, along the first of these axes as far as that suffices."""
    steps = list(shape)
    for axis in axes:
        rest = math.prod(steps[:axis] + steps[axis + 1 :])
        steps[axis] = min(steps[axis], max(PART // max(rest, 1), 1))
    cuts = [
        [slice(i, min(i + step, length)) for i in range(0, length, step)] if length else [slice(0, 0)]
        for step, length in zip(steps, shape, strict=True)
    ]
    return list(itertools.product(*cuts))


@contextmanager
def open_arrays(path: str | os.PathLike[str]) -> Iterator[dict[str, StoredArray]]:
    """Open a file and return its arrays by name, in the file's order; only headers are read."""
    kind, path = format_of(path), Path(path)
    with _reading(path):
        require_regular(path)
        file = open(path, "rb")  # noqa: SIM115
    with file:
        with _reading(path):
            arrays = _OPEN[kind](path, file)
        yield arrays


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the arrays of a file by name, in the file's order; those mapped from the file are read-only."""
    with open_arrays(path) as arrays:
        if format_of(path) == "npy":
            with _reading(Path(path)):
                return {SINGLE: _from_numpy(_load_npy(Path(path)))}
        return {name: array.whole() for name, array in arrays.items()}


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the metadata of a .safetensors file; the other formats have none."""
    if format_of(path) != "safetensors":
        return {}
    path = Path(path)
    with _reading(path):
        require_regular(path)
        return _read_safetensors_metadata(path)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise `RopeError` for a file that cannot be read or is damaged."""
    try:
        yield
    except OSError as error:
        raise RopeError(f"{path}: cannot be read ({error.strerror or error})") from error
    except Exception as error:  # the parsers raise a dozen types for damaged files, tokenize.TokenError among them
        raise RopeError(f"{path}: not a readable .{format_of(path)} file ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def write_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays to a file in the format of its suffix, replacing one that is there only once all is written.

    A .npy file takes exactly one array, of any name. Metadata (strings) fits in .safetensors only.
    """
    ready = {name: np.asarray(array) for name, array in arrays.items()}

    def parts(name: str) -> Iterator[tuple[Part, Array]]:
        array = ready[name]
        return ((part, np.asarray(array[part])) for part in parts_of(array.shape, range(array.ndim)))

    write_parts(path, ready, parts, metadata)


def write_parts(
    path: str | os.PathLike[str],
    arrays: Mapping[str, Array | StoredArray],
    parts: Callable[[str], Iterable[tuple[Part, Array]]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a file as `write_arrays` does, each array in parts.

    arrays: their dtypes and shapes. parts: called with each name in turn, returns parts that make up the array, in any
    order, each with its place. What the format cannot hold is refused before the first call.
    """
    kind, path = format_of(path), Path(path)
    if metadata and kind != "safetensors":
        raise ConfigError(f"{path}: metadata fits in .safetensors only, the suffix is {path.suffix!r}")
    _check_arrays(path, kind, arrays)
    if kind == "npy":
        (name,) = arrays
        replace_file(path, lambda file: _write_npy(file, arrays[name], parts(name)))
    elif kind == "npz":
        replace_file(path, lambda file: _write_npz(file, arrays, parts))
    else:
        _check_metadata(path, arrays, metadata or {})
        replace_file(path, lambda file: _write_safetensors(file, arrays, parts, metadata or {}))


def _check_arrays(path: Path, kind: Format, arrays: Mapping[str, Array | StoredArray]) -> None:
    """Raise `ShapeError` for arrays that the format cannot hold."""
    for name, array in arrays.items():
        if _native(array.dtype) not in (_SAFETENSORS.values() if kind == "safetensors" else _IN_NUMPY):
            raise ShapeError(
                f"{path}: array {name!r} has dtype {array.dtype}; allowed are bool, the integers, float16, float32, "
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


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of an array that is stored in one."""
    return BFLOAT16 if dtype == _BF16_IN_NUMPY else dtype.newbyteorder("=")


def _from_numpy(array: Array) -> Array:
    if array.dtype == _BF16_IN_NUMPY:
        return array.view(BFLOAT16)
    return array.astype(_native(array.dtype), copy=False)


def _open_npy(path: Path, file: IO[bytes]) -> dict[str, StoredArray]:
    shape, fortran, dtype = _npy_header(file, os.fstat(file.fileno()).st_size)
    order = range(len(shape))[:: -1 if fortran else 1]
    read = partial(_read_parts, file, file.tell(), dtype, shape, order)
    return {SINGLE: StoredArray(path, _native(dtype), shape, order, read)}


def _npy_header(file: IO[bytes], length: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of a .npy stream of so many bytes: shape, Fortran order, dtype; `ValueError` if it is wrong."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"format version {version[0]}.{version[1]}, allowed are 1.0 and 2.0")
    if version == (2, 0):  # NumPy reads a header of any length before it refuses it
        start = file.tell()
        claimed = int.from_bytes(file.read(4), "little")
        if claimed > _LONGEST_HEADER:
            raise ValueError(f"its header claims {claimed} bytes, at most {_LONGEST_HEADER} are read")
        file.seek(start)
    try:
        shape, fortran, dtype = _HEADERS[version](file)
    except (SyntaxError, tokenize.TokenError) as error:
        raise ValueError("its header is no dictionary of descr, fortran_order and shape") from error
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"its header claims shape {shape}, lengths of at least 0 are needed")
    claimed, there = math.prod(shape) * dtype.itemsize, length - file.tell()
    if claimed > there:
        raise ValueError(f"its header claims {claimed} bytes of data, {there} follow")
    return shape, fortran, dtype


def _load_npy(path: Path) -> Array:
    """Return the array of a file whose header was checked."""
    try:
        mapped = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        if mapped.flags.aligned:  # not every writer fills the header up to a multiple of 64 bytes
            return mapped
    except ValueError:
        pass  # an empty array cannot be mapped; what is wrong in another way fails here again
    return np.asarray(np.load(path, allow_pickle=False))


def _read_parts(
    file: IO[bytes], start: int, dtype: np.dtype[Any], shape: Sequence[int], order: Sequence[int], parts: Iterable[Part]
) -> Iterator[Array]:
    """Read parts of an array whose data begin at a byte of the file; order: as in `StoredArray`."""
    stored = [shape[axis] for axis in order]
    for part in parts:
        place = [part[axis] for axis in order]
        array = np.empty([cut.stop - cut.start for cut in place], dtype)
        for offset, run in _runs(stored, place, array):
            file.seek(start + offset)
            if file.readinto(run) != run.size:  # type: ignore[attr-defined]
                raise ValueError("it became shorter while it was read")
        yield array.transpose(np.argsort(order))


def _runs(shape: Sequence[int], part: Sequence[slice], array: Array) -> Iterator[tuple[int, Array]]:
    """Yield what a part has that is contiguous in its whole: the distance in bytes, and the bytes.

    shape: of the whole, in C order, as the part is in array.
    """
    cut = [axis for axis, length in enumerate(shape) if array.shape[axis] != length]
    outer = max(cut, default=0)
    steps = [array.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    start = sum(places.start * step for places, step in zip(part, steps, strict=True))
    for index in np.ndindex(*array.shape[:outer]):
        yield start + sum(map(mul, index, steps)), array[(*index, ...)].reshape(-1).view(np.uint8)


def _check_number(kind: Format, number: int) -> None:
    if number > _MOST_ARRAYS[kind]:
        raise ValueError(f"it has {number} arrays, at most {_MOST_ARRAYS[kind]} are read")


def _open_npz(path: Path, file: IO[bytes]) -> dict[str, StoredArray]:
    import zipfile  # here and below, because importing this package must stay quick

    # Not np.load, which takes a file that is no archive for a pickle and leaves it open.
    arrays: dict[str, StoredArray] = {}
    archive = zipfile.ZipFile(file)
    _check_number("npz", len(archive.infolist()))
    if sum(info.compress_size for info in archive.infolist()) > os.path.getsize(path):
        raise ValueError("its entries claim more bytes together than the file has")
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name in arrays:
            raise ValueError(f"two entries have the name {name!r}")
        # Deflate makes 1/1032 at best; what is compressed further is an archive made to fill the memory.
        if info.file_size > 1100 * info.compress_size + 1024:
            raise ValueError(f"entry {name!r} claims {info.file_size} bytes, compressed {info.compress_size}")
        with archive.open(info) as entry:
            shape, _, dtype = _npy_header(entry, info.file_size)
        read = partial(_read_entry, archive, info)
        arrays[name] = StoredArray(path, _native(dtype), shape, range(len(shape)), read)
    return arrays


def _read_entry(archive: ZipFile, info: ZipInfo, parts: Iterable[Part]) -> Iterator[Array]:
    with archive.open(info) as entry:
        array = np.lib.format.read_array(entry, allow_pickle=False)
    for part in parts:
        yield np.asarray(array[part])


def _write_npy(file: IO[bytes], array: Array | StoredArray, parts: Iterable[tuple[Part, Array]]) -> None:
    dtype = _native(array.dtype)
    descr = np.lib.format.dtype_to_descr(_BF16_IN_NUMPY if dtype == BFLOAT16 else dtype)
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": array.shape})
    _write_data(file, array.shape, parts)


def _write_data(file: IO[bytes], shape: Sequence[int], parts: Iterable[tuple[Part, Array]]) -> None:
    """Write the parts of an array, which begins here, to their places in C order."""
    start = file.tell()
    for part, array in parts:
        dense = np.ascontiguousarray(_from_numpy(array)).reshape(array.shape)
        for offset, run in _runs(shape, part, dense):
            file.seek(start + offset)
            file.write(run.data)


def _write_npz(
    file: IO[bytes], arrays: Mapping[str, Array | StoredArray], parts: Callable[[str], Iterable[tuple[Part, Array]]]
) -> None:
    import shutil
    import tempfile
    import zipfile

    # Not np.savez: names such as 'file' would collide with its own parameters.
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            # An entry has a checksum, and so is written from its beginning to its end.
            with tempfile.SpooledTemporaryFile(PART, dir=os.path.dirname(file.name)) as whole:
                _write_npy(whole, array, parts(name))
                whole.seek(0)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    shutil.copyfileobj(whole, entry, 1 << 20)


def _open_safetensors(path: Path, file: IO[bytes]) -> dict[str, StoredArray]:
    import safetensors

    header = _safetensors_header(path)
    try:
        with safetensors.safe_open(path, framework="np") as checked:
            names = list(checked.offset_keys())
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from error
    start = 8 + int.from_bytes(file.read(8), "little")
    arrays = {}
    for name in names:
        kind, shape, (begin, _) = header[name]["dtype"], tuple(header[name]["shape"]), header[name]["data_offsets"]
        if kind not in _SAFETENSORS:
            raise ValueError(f"array {name!r} has type {kind}, allowed are {', '.join(_SAFETENSORS)}")
        order = range(len(shape))
        read = partial(_read_parts, file, start + begin, _SAFETENSORS[kind], shape, order)
        arrays[name] = StoredArray(path, _SAFETENSORS[kind], shape, order, read)
    return arrays


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


def _read_safetensors_metadata(path: Path) -> dict[str, str]:
    import safetensors

    _safetensors_header(path)
    try:
        with safetensors.safe_open(path, framework="np") as file:
            return dict(file.metadata() or {})
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from error


def _check_metadata(path: Path, arrays: Mapping[str, object], metadata: Mapping[str, str]) -> None:
    wrong = [key for key, value in metadata.items() if not isinstance(key, str) or not isinstance(value, str)]
    if wrong:
        raise ConfigError(f"{path}: metadata {wrong[0]!r} is not a string")
    if "__metadata__" in arrays:
        raise ShapeError(f"{path}: '__metadata__' cannot be the name of an array in a .safetensors file")


def _write_safetensors(
    file: IO[bytes],
    arrays: Mapping[str, Array | StoredArray],
    parts: Callable[[str], Iterable[tuple[Part, Array]]],
    metadata: Mapping[str, str],
) -> None:
    """Write the bytes that the package writes, which takes arrays that are in memory."""
    types = list(_SAFETENSORS)
    kinds = {name: types[list(_SAFETENSORS.values()).index(_native(array.dtype))] for name, array in arrays.items()}
    # Larger elements come first, so that all are aligned.
    names = sorted(arrays, key=lambda name: (-types.index(kinds[name]), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        begin, end = end, end + math.prod(arrays[name].shape) * _SAFETENSORS[kinds[name]].itemsize
        header[name] = {"dtype": kinds[name], "shape": arrays[name].shape, "data_offsets": (begin, end)}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in names:
        file.seek(8 + len(text) + header[name]["data_offsets"][0])
        _write_data(file, arrays[name].shape, parts(name))


_OPEN: dict[Format, Callable[[Path, IO[bytes]], dict[str, StoredArray]]] = {
    "npy": _open_npy, "npz": _open_npz, "safetensors": _open_safetensors
}  # fmt: skip
