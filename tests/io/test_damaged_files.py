"""Damaged and hostile files and configurations: each is read correctly or refused by a `RopeError`, nothing else."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from clrope import RopeConfig
from clrope.errors import ConfigError, RopeError
from clrope.io.files import read_arrays, read_metadata, write_arrays

#: How many files of each format and how many configurations; raise it for a long run.
COUNT = int(os.environ.get("CLROPE_DAMAGED_FILES", "120"))
#: What headers claim.
NUMBERS = (0, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1)


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array)
    return out.getvalue()


def lying_npy(header: str, version: int = 1) -> bytes:
    text = header.encode().ljust(117) + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + b"\0" * 64


def npz(entries: list[tuple[str, bytes]], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return out.getvalue()


def lying_safetensors(header: Any, data: bytes = b"\0" * 64) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def gguf_string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_file(keys: list[tuple[str, bytes]], tensors: bytes = b"", count: int = 0) -> bytes:
    body = b"".join(gguf_string(name) + value for name, value in keys)
    return b"GGUF" + struct.pack("<IQQ", 3, count, len(keys)) + body + tensors


ARCHITECTURE = ("general.architecture", struct.pack("<I", 8) + gguf_string("llama"))


def good(suffix: str, rng: np.random.Generator) -> bytes:
    x = rng.standard_normal((2, 3, 8)).astype(np.float32)
    if suffix == ".npy":
        return npy(x)
    if suffix == ".npz":
        return npz([("q.npy", npy(x)), ("k.npy", npy(x[:1]))])
    if suffix == ".safetensors":
        return safetensors.numpy.save({"q": x, "k": x[:1].astype(np.float16)}, {"made": "here"})
    numbers = [
        ("llama.rope.dimension_count", struct.pack("<II", 4, 64)),
        ("llama.block_count", struct.pack("<II", 4, 2)),
    ]
    words = struct.pack("<IIQ", 9, 8, 3) + gguf_string("a") + gguf_string("bc") + gguf_string("")
    return gguf_file([ARCHITECTURE, *numbers, ("tokenizer.ggml.tokens", words)])


def lying(suffix: str) -> list[bytes]:
    huge = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }"
    if suffix == ".npy":
        shapes = ("1000000000000, 3", "-1, 8", "4294967296, 4294967296, 4294967296", "2.5,", "'a',", "True,")
        texts = [huge % shape for shape in shapes]
        texts += ["{'descr': '|O', 'fortran_order': False, 'shape': (2,), }", "{" * 50, "(((((", "{'descr': 1}", "\t x"]
        return [lying_npy(text, version) for text in texts for version in (1, 2, 3)]
    if suffix == ".npz":
        small = npy(np.ones(3, np.float32))
        encrypted = bytearray(npz([("x.npy", small)]))
        encrypted[6] |= 1
        encrypted[encrypted.index(b"PK\x01\x02") + 8] |= 1
        unknown = bytearray(npz([("x.npy", small)]))
        unknown[8] = 97
        unknown[unknown.index(b"PK\x01\x02") + 10] = 97
        with pytest.warns(UserWarning, match="Duplicate name"):
            twice = npz([("x.npy", small), ("x.npy", small)])
        return [
            twice, npz([("x", small), ("x.npy", small)]), bytes(encrypted), bytes(unknown), npz([("x.npy", b"")]),
            npz([("x.npy", lying_npy(huge % "1000000000000, 3"))]), npz([("x.npy", b"\0" * 100)]),
        ]  # fmt: skip
    if suffix == ".safetensors":
        entry = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
        wrong = [
            {"dtype": "F99"},
            {"shape": [1 << 62]},
            {"shape": [-4]},
            {"data_offsets": [0, 1 << 60]},
            {"shape": "x"},
        ]
        return [
            *(lying_safetensors({"x": {**entry, **change}}) for change in wrong), lying_safetensors(b"[" * 10000),
            lying_safetensors([]), struct.pack("<Q", 1 << 60), lying_safetensors({"x": {**entry, "dtype": "F8_E4M3"}}),
        ]  # fmt: skip
    array = struct.pack("<I", 9)
    nested = b"".join([array] * 2000)
    return [
        gguf_file([ARCHITECTURE, ("a", array + struct.pack("<IQ", kind, 1 << 60))]) for kind in (0, 4, 8, 9, 12, 99)
    ] + [
        gguf_file([ARCHITECTURE, ("a", nested)]), gguf_file([ARCHITECTURE, ("a", struct.pack("<I", 77))]),
        gguf_file([ARCHITECTURE], count=1 << 60), b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60) + b"\0" * 64,
        b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + b"\0" * 64, gguf_file([("a" * 40, b"")]),
        gguf_file([ARCHITECTURE], gguf_string("t") + struct.pack("<I", 1 << 31), 1),
        gguf_file([ARCHITECTURE], gguf_string("t") + struct.pack("<IQQIQ", 2, 1 << 40, 1 << 40, 0, 0), 1),
        *(
            gguf_file([ARCHITECTURE, ("llama.rope.dimension_count", struct.pack("<IQ", 10, n))])
            for n in (0, 1, 2**32 - 1, 2**32, 2**64 - 1)
        ),
    ]  # fmt: skip


def damaged(suffix: str, rng: np.random.Generator) -> Iterator[bytes]:
    yield from lying(suffix)
    for _ in range(COUNT):
        data = bytearray(good(suffix, rng))
        kind = rng.integers(3)
        if kind == 0:
            del data[int(rng.integers(0, len(data))) :]
        elif kind == 1:
            for place in rng.integers(0, min(len(data), 400), int(rng.integers(1, 6))):
                data[place] = rng.integers(256)
        else:
            place = int(rng.integers(0, max(1, len(data) - 8)))
            data[place : place + 8] = struct.pack("<Q", NUMBERS[int(rng.integers(len(NUMBERS)))])
        yield bytes(data)


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
    for number, data in enumerate(damaged(suffix, rng)):
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


def test_gguf_files(tmp_path: Path, rng: np.random.Generator) -> None:
    pytest.importorskip("gguf")
    path = tmp_path / "x.gguf"
    refused = 0
    for number, data in enumerate(damaged(".gguf", rng)):
        path.write_bytes(data)
        refused += refused_or_read(lambda: RopeConfig.from_gguf(path), (number, data[:200]))
    assert refused >= COUNT // 4
    path.write_bytes(good(".gguf", rng))
    assert RopeConfig.from_gguf(path).n_dims == 64


VALUES: list[Any] = [
    0, -1, 1, 3, 2**31, 2**63, 10**400, 0.0, -0.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), "", "x", "128",
    True, None, [], {}, [1, 2], {"a": 1}, [[[]]], 1e-40, 2**53 + 1,
]  # fmt: skip
HF = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "head_dim": 128, "rope_theta": 500000.0,
    "max_position_embeddings": 131072, "partial_rotary_factor": 1.0,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "beta_fast": 32, "beta_slow": 1}
OWN = {
    "mode": "neox", "n_dims": 64, "freq_base": 1e4, "freq_scale": 0.5, "ext_factor": 1.0, "attn_factor": 1.1,
    "beta_fast": 32.0, "beta_slow": 1.0, "n_ctx_orig": 4096, "freq_factors": None, "sections": None,
    "n_offs": 0, "angles": "exact",
}  # fmt: skip


def test_configurations(rng: np.random.Generator) -> None:
    """Each key takes each hostile value, alone and in pairs."""
    refused = 0
    for number in range(10 * COUNT):
        hf = json.loads(json.dumps({**HF, "rope_scaling": YARN} if number % 2 else HF))
        own: dict[str, Any] = dict(OWN)
        for data in (hf, own):
            for _ in range(int(rng.integers(1, 3))):
                scaling = data.get("rope_scaling")
                inner = scaling if scaling and isinstance(scaling, dict) and rng.random() < 0.5 else data
                key = list(inner)[int(rng.integers(len(inner)))]
                inner[key] = VALUES[int(rng.integers(len(VALUES)))]
        for read, data in ((RopeConfig.from_hf, hf), (RopeConfig.from_dict, own)):
            refused += refused_or_read(lambda read=read, data=data: read(data).for_head_dim(128), data)  # type: ignore[misc]
    assert refused >= COUNT


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
