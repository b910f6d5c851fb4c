"""Damaged and hostile files and configurations: each is read correctly or refused by a `RopeError`, nothing else."""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpus
import ml_dtypes
import numpy as np
import pytest
from corpus import damaged, good, lying, mutated_configurations, npy, npz

from clrope import RopeConfig
from clrope.errors import ConfigError, RopeError
from clrope.io import files
from clrope.io.files import read_arrays, read_metadata, write_arrays

#: How many files of each format and how many configurations; raise it for a long run.
COUNT = int(os.environ.get("CLROPE_DAMAGED_FILES", "120"))


def refused_or_read(read: Callable[[], Any], what: Any) -> bool:
    try:
        read()
    except RopeError:
        return True
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}: {what!r}") from error
    return False


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_array_files(suffix: str, tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / f"x{suffix}"
    refused = 0
    for number, data in enumerate(damaged(suffix, rng, COUNT)):
        path.write_bytes(data)
        refused += refused_or_read(lambda: read_arrays(path), (number, data[:200]))
        refused_or_read(lambda: read_metadata(path), (number, data[:200]))
    assert refused >= COUNT // 4
    path.write_bytes(good(suffix, rng))
    assert all(a.shape[1:] == (3, 8) for a in read_arrays(path).values())


def test_what_lies_is_refused(tmp_path: Path) -> None:
    for suffix in (".npy", ".npz", ".gguf"):
        path = tmp_path / f"x{suffix}"
        for number, data in enumerate(lying(suffix)):
            path.write_bytes(data)
            read = RopeConfig.from_gguf if suffix == ".gguf" else read_arrays
            assert refused_or_read(lambda read=read, path=path: read(path), suffix), f"{suffix} {number} was read"  # type: ignore[misc]


def npz_of_one_body(entries: int) -> bytes:
    """An archive whose entries are one and the same compressed body."""
    one = npz([("0.npy", npy(np.zeros(10000, np.float32)))])
    begin, end = one.index(b"PK\1\2"), one.index(b"PK\5\6")
    records = b"".join(one[begin:end].replace(b"0.npy", b"%d.npy" % number) for number in range(entries))
    tail = bytearray(one[end:])
    struct.pack_into("<HHII", tail, 8, entries, entries, len(records), begin)
    return one[:begin] + records + tail


def test_npz_made_to_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(npz_of_one_body(1))
    assert read_arrays(path).keys() == {"0"}
    path.write_bytes(npz_of_one_body(9))
    with pytest.raises(RopeError, match="its entries claim more bytes together than the file has"):
        read_arrays(path)
    wrong = bytearray(npz_of_one_body(1))
    struct.pack_into("<I", wrong, wrong.index(b"PK\1\2") + 24, 1 << 31)
    path.write_bytes(wrong)
    with pytest.raises(RopeError, match=f"entry '0' claims {1 << 31} bytes, compressed"):
        read_arrays(path)


def test_headers_of_npz_are_read_up_to_a_length(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 1_000_000) + b"(" * 1_000_000)
    with pytest.raises(RopeError, match="its header claims 1000000 bytes, at most 10000 are read"):
        read_arrays(path)


def safetensors_of(header: str, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header.encode())) + header.encode() + data


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ('{"a": %(f)s, "a": %(b)s}', "the key 'a' is there twice"),
        ('{"a": %(f)s, "__metadata__": {"k": "v", "k": "w"}}', "the key 'k' is there twice"),
        ('{"a": {"dtype": "F16", "dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}', "the key 'dtype' is there"),
        ("[1]", "its header is a JSON list, an object is needed"),
    ],
)
def test_ambiguous_safetensors(tmp_path: Path, header: str, reason: str) -> None:
    path = tmp_path / "x.safetensors"
    kinds = {
        short[0].lower(): f'{{"dtype": "{short}", "shape": [2], "data_offsets": [0, 4]}}' for short in ("F16", "BF16")
    }
    path.write_bytes(safetensors_of(header % kinds if "%" in header else header, b"1234"))
    for read in (read_arrays, read_metadata):
        with pytest.raises(RopeError, match=reason):
            read(path)


def test_as_many_arrays_as_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MOST_ARRAYS", {"npy": 1, "npz": 3, "safetensors": 3})
    monkeypatch.setattr(files, "_LONGEST_SAFETENSORS_HEADER", 400)
    three = {name: np.ones(2, np.float32) for name in "abc"}
    for suffix in ("npz", "safetensors"):
        path = tmp_path / f"x.{suffix}"
        write_arrays(path, three)
        assert list(read_arrays(path)) == list("abc")
        with pytest.raises(RopeError, match=f"got 4 arrays, at most 3 fit in a .{suffix} file"):
            write_arrays(path, {**three, "d": np.ones(2)})
    entry = '{"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}'
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors_of("{" + ", ".join(f'"{name}": {entry}' for name in "abcd") + "}"))
    with pytest.raises(RopeError, match="it has 4 arrays, at most 3 are read"):
        read_arrays(path)
    path.write_bytes(safetensors_of("{}".ljust(401)))
    with pytest.raises(RopeError, match="its header claims 401 bytes, at most 400 are read"):
        read_arrays(path)
    path.write_bytes(struct.pack("<Q", 100) + b"{}")
    with pytest.raises(RopeError, match="its header claims 100 bytes, 2 follow"):
        read_arrays(path)
    path = tmp_path / "x.npz"
    path.write_bytes(npz([(f"{name}.npy", npy(np.ones(2))) for name in "abcd"]))
    with pytest.raises(RopeError, match="it has 4 arrays, at most 3 are read"):
        read_arrays(path)


def test_names_that_no_zip_archive_holds(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with pytest.raises(RopeError, match=r"the name of an array has 65532 bytes, at most 65531 fit in [.]npz"):
        write_arrays(path, {"n" * 65532: np.ones(3)})
    assert not path.exists()
    write_arrays(path, {"n" * 65531: np.ones(3)})
    assert list(read_arrays(path)) == ["n" * 65531]


def test_gguf_files(tmp_path: Path, rng: np.random.Generator) -> None:
    pytest.importorskip("gguf")
    path = tmp_path / "x.gguf"
    refused = 0
    for number, data in enumerate(damaged(".gguf", rng, COUNT)):
        path.write_bytes(data)
        refused += refused_or_read(lambda: RopeConfig.from_gguf(path), (number, data[:200]))
    assert refused >= COUNT // 4
    path.write_bytes(good(".gguf", rng))
    assert RopeConfig.from_gguf(path).n_dims == 64


def test_configurations(rng: np.random.Generator) -> None:
    """Each key takes each hostile value, alone and in pairs."""
    refused = 0
    for read, data in mutated_configurations(20 * COUNT, rng):
        refused += refused_or_read(lambda read=read, data=data: read(data).for_head_dim(128), data)  # type: ignore[misc]
    assert refused >= COUNT


def test_the_corpus_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    few = ["--files", "20", "--configurations", "40"]
    assert corpus.main(few) == 0
    out = capsys.readouterr().out
    assert out.count(" 0 errors; slowest ") == 2
    assert "40 mutated configurations: " in out
    assert out.count("; most memory ") == 2
    monkeypatch.setattr(corpus, "mutated_configurations", lambda *_: [(int, {})])
    assert corpus.main(few) == 1
    out = capsys.readouterr().out
    assert "1 mutated configurations: 0 read, 0 refused, 1 errors" in out
    assert "Traceback" in out


def test_json_of_many_brackets(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("[" * 200_000)
    with pytest.raises(ConfigError, match="not a JSON file"):
        RopeConfig.from_hf(path)


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_float8_travels_by_safetensors(dtype: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 8)).astype(dtype)
    write_arrays(tmp_path / "x.safetensors", {"q": x, "k": x.astype(np.float32)})
    got = read_arrays(tmp_path / "x.safetensors")
    assert got["q"].dtype == x.dtype
    assert np.array_equal(got["q"].view(np.uint8), x.view(np.uint8))
    assert np.array_equal(got["k"], x.astype(np.float32))
    with pytest.raises(RopeError, match="float8"):
        write_arrays(tmp_path / "x.npy", {"q": x})
