"""Reading and writing named arrays, against NumPy's and safetensors' own readers and writers."""

from __future__ import annotations

import json
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from clrope.errors import ConfigError, RopeError, ShapeError
from clrope.io import files as module
from clrope.io import format_of, read_arrays, read_metadata, write_arrays

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(name) for name in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")] + [BF16]


def sample(dtype: np.dtype[Any]) -> dict[str, np.ndarray]:
    bits = np.arange(24, dtype=np.int64)
    return {
        "q": (bits % 2 if dtype.kind == "b" else bits).astype(dtype).reshape(2, 3, 4),
        "file": bits[:5].astype(dtype),
        "empty": np.zeros((0, 4), dtype),
        "scalar": np.ones((), dtype),
        "view": bits.astype(dtype).reshape(4, 6)[::2, 1::2],
        "transposed": bits.astype(dtype).reshape(4, 6).T,
    }


def assert_equal(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    assert set(got) == set(want)
    for name, array in want.items():
        assert type(got[name]) is np.ndarray
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
        assert got[name].tobytes() == array.tobytes(), name
        assert got[name].flags.aligned


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_round_trip(tmp_path: Path, suffix: str, dtype: np.dtype[Any]) -> None:
    path = tmp_path / f"a{suffix}"
    write_arrays(path, sample(dtype))
    assert_equal(read_arrays(path), sample(dtype))
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["q", "empty", "scalar", "view", "transposed"])
def test_round_trip_npy(tmp_path: Path, name: str, dtype: np.dtype[Any]) -> None:
    path, array = tmp_path / "a.NPY", sample(dtype)[name]
    write_arrays(path, {name: array})
    assert_equal(read_arrays(path), {"x": array})


def test_mixed_types_in_one_file(tmp_path: Path) -> None:
    content = {str(dtype): np.ones(3, dtype) for dtype in DTYPES}
    for suffix in (".npz", ".safetensors"):
        write_arrays(tmp_path / f"a{suffix}", content)
        assert_equal(read_arrays(tmp_path / f"a{suffix}"), content)


def test_numpy_reads_what_we_write_and_the_reverse(tmp_path: Path) -> None:
    content = {"q": np.arange(6.0).reshape(2, 3), "k": np.arange(4, dtype=np.float16)}
    write_arrays(tmp_path / "a.npz", content)
    with np.load(tmp_path / "a.npz") as file:
        assert_equal({name: file[name] for name in file.files}, content)
    np.savez_compressed(tmp_path / "b.npz", **content)
    assert_equal(read_arrays(tmp_path / "b.npz"), content)
    np.save(tmp_path / "c.npy", np.asfortranarray(content["q"]))
    assert_equal(read_arrays(tmp_path / "c.npy"), {"x": content["q"]})
    np.save(tmp_path / "d.npy", content["q"].astype(">f8"))
    assert_equal(read_arrays(tmp_path / "d.npy"), {"x": content["q"]})


def test_bfloat16_in_numpy_files_is_an_opaque_pair_of_bytes(tmp_path: Path) -> None:
    x = np.arange(5).astype(BF16)
    write_arrays(tmp_path / "a.npy", {"x": x})
    raw = np.load(tmp_path / "a.npy")
    assert raw.dtype == np.dtype("V2")
    assert raw.tobytes() == x.tobytes()


def test_safetensors_package_reads_what_we_write_and_the_reverse(tmp_path: Path) -> None:
    numpy_api = pytest.importorskip("safetensors.numpy")
    safetensors = pytest.importorskip("safetensors")
    content = sample(np.dtype("f4")) | {"h": np.arange(3, dtype=np.float16), "b": np.arange(3).astype(BF16)}
    content["flag"] = np.array([True])
    write_arrays(tmp_path / "a.safetensors", content, {"made": "here"})
    assert_equal({name: np.asarray(a) for name, a in numpy_api.load_file(tmp_path / "a.safetensors").items()}, content)
    with safetensors.safe_open(tmp_path / "a.safetensors", "np") as file:
        assert file.metadata() == {"made": "here"}
    whole = {name: np.ascontiguousarray(array) for name, array in content.items() if array.ndim}
    numpy_api.save_file(whole, tmp_path / "b.safetensors", {"made": "there"})
    assert_equal(read_arrays(tmp_path / "b.safetensors"), whole)
    assert read_metadata(tmp_path / "b.safetensors") == {"made": "there"}


def test_what_is_mapped_is_read_only_and_not_copied(tmp_path: Path) -> None:
    x = np.arange(12.0).reshape(3, 4)
    for suffix in (".npy",):
        path = tmp_path / f"a{suffix}"
        write_arrays(path, {"x": x})
        got = read_arrays(path)["x"]
        assert not got.flags.writeable
        base: Any = got
        while isinstance(base, np.ndarray) and base.base is not None:
            if isinstance(base, np.memmap):
                break
            base = base.base
        assert isinstance(base, np.memmap), suffix


def test_reading_and_replacing_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_arrays(path, {"x": np.arange(4.0)})
    mapped = read_arrays(path)["x"]
    write_arrays(path, {"x": mapped * 2})
    assert mapped.tolist() == [0, 1, 2, 3]
    assert read_arrays(path)["x"].tolist() == [0, 2, 4, 6]


def test_metadata_is_for_safetensors(tmp_path: Path) -> None:
    write_arrays(tmp_path / "a.npz", {"x": np.ones(2)}, {})
    assert read_metadata(tmp_path / "a.npz") == {}
    with pytest.raises(ConfigError, match=r"a.npz: metadata fits in .safetensors only"):
        write_arrays(tmp_path / "a.npz", {"x": np.ones(2)}, {"a": "b"})
    with pytest.raises(ConfigError, match="metadata 'n' is not a string"):
        write_arrays(tmp_path / "a.safetensors", {"x": np.ones(2)}, {"n": 1})  # type: ignore[dict-item]


def test_new_files_get_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_arrays(tmp_path / "a.npy", {"x": np.ones(2)})
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "a.npy")]
    assert modes[0] == modes[1]


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["disk", "Ctrl-C"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, suffix: str, error: BaseException) -> None:
    path, x = tmp_path / f"a{suffix}", np.arange(3.0)
    write_arrays(path, {"x": x})
    before = path.read_bytes()

    def parts(name: str) -> Iterator[tuple[Any, np.ndarray]]:
        yield (slice(0, 1),), x[:1]
        raise error

    says = r"cannot be written \(No space left on device\)" if isinstance(error, OSError) else None
    with pytest.raises(RopeError if says else KeyboardInterrupt, match=says):
        module.write_parts(path, {"x": x}, parts)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
@pytest.mark.parametrize("most", [1, 7, 24, 1000])
def test_arrays_are_read_and_written_in_parts(
    tmp_path: Path, suffix: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any order of parts, and cut along any axes."""
    monkeypatch.setattr(module, "PART", most)
    rng = np.random.default_rng()
    content = {name: rng.standard_normal(shape).astype(dtype) for name, shape, dtype in (
        ("q", (3, 5, 2, 4), np.float32), ("k", (6, 5), BF16), ("scalar", (), np.float64), ("empty", (2, 0), np.int8)
    )}  # fmt: skip
    content["q"] = np.asfortranarray(content["q"])
    for name in ("q", "k", "scalar", "empty") if suffix == ".npy" else ("",):
        arrays = {name: content[name]} if name else content
        path, other = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
        write_arrays(path, arrays)
        if name == "q":
            np.save(path, arrays["q"])  # which keeps Fortran order
        with module.open_arrays(path) as stored:

            def parts(name: str, stored: Any = stored) -> Iterator[tuple[Any, np.ndarray]]:
                places = module.parts_of(stored[name].shape, rng.permutation(len(stored[name].shape)).tolist())
                places = [places[k] for k in rng.permutation(len(places))]
                for place, part in zip(places, stored[name].parts(places), strict=True):
                    assert part.size <= most
                    yield place, part

            module.write_parts(other, stored, parts)
        assert_equal(read_arrays(other), {"x": arrays[name]} if name else arrays)


def test_safetensors_are_the_bytes_that_the_package_writes(tmp_path: Path) -> None:
    numpy_api = pytest.importorskip("safetensors.numpy")
    content = {f'{n} "é\n\x1f\x7f{dtype}': np.ones((2, 3), dtype) for n, dtype in enumerate(reversed(DTYPES))}
    content |= {"b": np.ones(()), "a": np.ones((0, 2)), "f8": np.ones(5, ml_dtypes.float8_e4m3fn)}
    content["f8_"] = content["f8"].astype(ml_dtypes.float8_e5m2)
    for metadata in ({}, {"key\t": "välue"}):
        write_arrays(tmp_path / "a.safetensors", content, metadata)
        assert (tmp_path / "a.safetensors").read_bytes() == numpy_api.save(content, metadata or None)


def test_a_file_that_becomes_shorter(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_arrays(path, {"x": np.arange(9000.0)})
    with module.open_arrays(path) as arrays:
        os.truncate(path, 5000)
        with pytest.raises(RopeError, match=r"not a readable .safetensors file \(it became shorter while it was read"):
            arrays["x"].whole()


def test_refusals(tmp_path: Path) -> None:
    x = np.ones(2)
    with pytest.raises(ConfigError, match=r"a.txt: suffix '.txt' is not one of .npy, .npz, .safetensors"):
        write_arrays(tmp_path / "a.txt", {"x": x})
    with pytest.raises(ConfigError, match="suffix '' is not one of"):
        format_of(tmp_path / "a")
    with pytest.raises(ShapeError, match=r"a .npy file holds one array, got 2; use .npz or .safetensors"):
        write_arrays(tmp_path / "a.npy", {"x": x, "y": x})
    with pytest.raises(ShapeError, match=r"a.npy: array 'x' has dtype complex128"):
        write_arrays(tmp_path / "a.npy", {"x": x.astype(complex)})
    with pytest.raises(ShapeError, match="'__metadata__' cannot be the name"):
        write_arrays(tmp_path / "a.safetensors", {"__metadata__": x})
    with pytest.raises(RopeError, match=r"cannot be written \(No such file or directory\)"):
        write_arrays(tmp_path / "no" / "a.npy", {"x": x})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_unreadable_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    with pytest.raises(RopeError, match=r"cannot be read \(No such file"):
        read_arrays(path)
    for content in (b"", b"x", b"nonsense" * 9):
        path.write_bytes(content)
        with pytest.raises(RopeError, match=f"not a readable {suffix} file"):
            read_arrays(path)
    write_arrays(path, {"x": np.arange(100.0)})
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(RopeError, match=f"not a readable {suffix} file"):
        read_arrays(path)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]},
        {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]},
        {"dtype": "F32", "shape": [2]},
        [],
    ],
)
def test_damaged_safetensors_header(tmp_path: Path, entry: object) -> None:
    header = json.dumps({"x": entry}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(RopeError, match=r"a.safetensors: not a readable .safetensors file \(.+\)"):
        read_arrays(tmp_path / "a.safetensors")


def test_unaligned_tensor_is_copied(tmp_path: Path) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    header += b" " * (-(len(header) + 3) % 4)
    body = np.array([1, 2], "<f4").tobytes()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + body)
    assert_equal(read_arrays(tmp_path / "a.safetensors"), {"x": np.array([1, 2], np.float32)})


@pytest.mark.parametrize("filled", range(4))
def test_unaligned_npy_is_copied(tmp_path: Path, filled: int) -> None:
    values = np.random.default_rng().standard_normal(6).astype(np.float32)
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}" + b" " * filled + b"\n"
    start = b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header))
    (tmp_path / "a.npy").write_bytes(start + header + values.tobytes())
    (read,) = read_arrays(tmp_path / "a.npy").values()
    assert read.flags.aligned
    assert_equal({"x": read}, {"x": values.reshape(2, 3)})


@pytest.mark.parametrize("header", ["{'descr': '<f4'", "  {\n 'descr'", "(" * 500, "{'descr': '<f4\n"])
def test_a_header_that_is_no_dictionary(tmp_path: Path, header: str) -> None:
    start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header))
    (tmp_path / "a.npy").write_bytes(start + header.encode() + bytes(64))
    with pytest.raises(RopeError, match=r"\((its header is no dictionary of|Cannot parse header)"):
        read_arrays(tmp_path / "a.npy")


def test_a_type_that_numpy_lacks(tmp_path: Path) -> None:
    header = json.dumps({"x": {"dtype": "F8_E8M0", "shape": [8], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(RopeError, match="array 'x' has type F8_E8M0, allowed are BOOL"):
        read_arrays(tmp_path / "a.safetensors")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "x.npy"


def test_an_existing_files_mode_is_kept(target: Path) -> None:
    for mode in (0o600, 0o640, 0o755):
        write_arrays(target, {"x": np.ones(3)})
        target.chmod(mode)
        write_arrays(target, {"x": np.zeros(3)})
        assert stat.S_IMODE(target.stat().st_mode) == mode
        assert not read_arrays(target)["x"].any()


def test_a_symbolic_link_is_followed(target: Path) -> None:
    elsewhere = target.parent / "folder" / "y.npy"
    elsewhere.parent.mkdir()
    target.symlink_to(Path("folder") / "y.npy")
    for value in (0.0, 1.0):  # first a link to nothing
        write_arrays(target, {"x": np.full(3, value)})
        assert target.is_symlink()
        assert (read_arrays(elsewhere)["x"] == value).all()
    assert [p.name for p in elsewhere.parent.iterdir()] == ["y.npy"]
    target.unlink()
    target.symlink_to(target)
    with pytest.raises(RopeError, match=r"x\.npy: cannot be written"):
        write_arrays(target, {"x": np.ones(3)})


@pytest.mark.parametrize("length", [249, 255])
def test_a_long_name(tmp_path: Path, length: int) -> None:
    path = tmp_path / ("n" * (length - 4) + ".npy")
    write_arrays(path, {"x": np.ones(3)})
    assert read_arrays(path)["x"].all()
    with pytest.raises(RopeError, match="File name too long"):
        write_arrays(tmp_path / ("n" * 252 + ".npy"), {"x": np.ones(3)})


def test_what_is_no_regular_file_is_not_replaced(target: Path) -> None:
    os.mkfifo(target)
    with pytest.raises(RopeError, match="no regular file"):
        write_arrays(target, {"x": np.ones(3)})
    assert stat.S_ISFIFO(target.stat().st_mode)


WRITE = """
import signal, sys, numpy as np
from clrope.io import files
def write(file, *_):
    file.write(b"a part of it"); file.flush()
    print("writing", flush=True)
    signal.pause()
files._write_npy = write
files.write_arrays(sys.argv[1], {"x": np.ones(3)})
"""


def test_what_a_killed_process_left_is_removed(target: Path) -> None:
    def start() -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": str(Path(module.__file__).parents[2])}
        process = subprocess.Popen(
            [sys.executable, "-c", WRITE, str(target)], stdout=subprocess.PIPE, text=True, env=env
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        return process

    write_arrays(target, {"x": np.zeros(3)})
    with start() as killed, start() as alive:
        killed.kill()
        killed.wait()
        assert len(list(target.parent.iterdir())) == 3
        write_arrays(target.parent / "other.npy", {"x": np.ones(3)})
        assert len(list(target.parent.iterdir())) == 4, "of another file"
        write_arrays(target, {"x": np.ones(3)})
        assert len(list(target.parent.iterdir())) == 3, "the other process still writes"
        alive.kill()
    write_arrays(target, {"x": np.ones(3)})
    assert sorted(p.name for p in target.parent.iterdir()) == ["other.npy", "x.npy"]
