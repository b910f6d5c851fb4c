"""Damaged files and mutated configurations, for tests and as a command.

To read many: `python tests/io/corpus.py --files 400 --configurations 5000`.
Prints how many were read and refused, every other error with its traceback, the slowest read, and, on Linux, the read
that took the most memory, the file's own pages counted.
Exit code 1 if there was another error than a `RopeError`.
"""

from __future__ import annotations

import argparse
import io
import json
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from clrope import RopeConfig, RopeError
from clrope.io.files import read_arrays, read_metadata

SUFFIXES = (".npy", ".npz", ".safetensors", ".gguf")
Read = tuple[str, Callable[[], Any]]
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the name that comes twice
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
    sections = "llama.rope.dimension_sections"
    nested = b"".join([array] * 2000)
    return [
        gguf_file([ARCHITECTURE, ("a", array + struct.pack("<IQ", kind, 1 << 60))]) for kind in (0, 4, 8, 9, 12, 99)
    ] + [
        gguf_file([ARCHITECTURE, ("a", struct.pack("<I", 4) + b"1234")] * 2),
        gguf_file([("a", struct.pack("<II", 4, 1))]),
        gguf_file([("general.architecture", struct.pack("<II", 4, 1))]),
        *(gguf_file([ARCHITECTURE, ("general.alignment", struct.pack("<II", 4, n))]) for n in (0, 3)),
        gguf_file([ARCHITECTURE, ("general.alignment", struct.pack("<If", 6, 32.0))]),
        gguf_file([ARCHITECTURE, (sections, array + struct.pack("<IQ3f", 6, 3, np.nan, 1, 1))]),
        gguf_file([ARCHITECTURE, (sections, array + struct.pack("<IQ", 8, 3) + b"\0" * 24)]),
        gguf_file([ARCHITECTURE, (sections, array + struct.pack("<IQ", 0, 70000) + b"\1" * 70000)]),
        gguf_file([ARCHITECTURE, ("a", array + struct.pack("<IQ", 8, (1 << 22) + 1) + b"\0" * 8 * ((1 << 22) + 1))]),
        gguf_file([ARCHITECTURE, ("a", array + struct.pack("<IQ", 8, 2) + struct.pack("<QQ", 0, 1 << 63))]),
        *(
            gguf_file([ARCHITECTURE], gguf_string("rope_freqs.weight") + struct.pack("<IQIQ", 1, n, kind, at), 1)
            for n, kind, at in ((64, 0, 0), (64, 1, 1 << 63), (1 << 17, 0, 0), (64, 30, 0), (64, 99, 0))
        ),
        gguf_file([ARCHITECTURE], 2 * (gguf_string("t") + struct.pack("<IIQ", 0, 0, 0)), 2),
        gguf_file([("k" * 70000, struct.pack("<II", 4, 1))]),
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


def damaged(suffix: str, rng: np.random.Generator, count: int) -> Iterator[bytes]:
    yield from lying(suffix)
    for _ in range(count):
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


def mutated_configurations(count: int, rng: np.random.Generator) -> Iterator[tuple[Callable[[Any], RopeConfig], Any]]:
    """Yield readers with configurations, of which one or two keys have hostile values."""
    for number in range(count):
        own = number % 2
        scaling = YARN if number % 4 else HF["rope_scaling"]
        data = dict(OWN) if own else json.loads(json.dumps({**HF, "rope_scaling": scaling}))
        for _ in range(int(rng.integers(1, 3))):
            scaling = data.get("rope_scaling")
            inner = scaling if scaling and isinstance(scaling, dict) and rng.random() < 0.5 else data
            key = list(inner)[int(rng.integers(len(inner)))]
            inner[key] = VALUES[int(rng.integers(len(VALUES)))]
        yield (RopeConfig.from_dict if own else RopeConfig.from_hf), data


def read_file(path: Path) -> None:
    """Read a file, and touch every byte of its arrays."""
    if path.suffix == ".gguf":
        RopeConfig.from_gguf(path).for_head_dim(128)
        return
    for array in read_arrays(path).values():
        array.tobytes()
    read_metadata(path)


def files(folder: Path, count: int, rng: np.random.Generator) -> Iterator[Read]:
    """Yield damaged files of each format; those whose headers claim too much come on top of the count."""
    for suffix in SUFFIXES:
        for number, data in enumerate(damaged(suffix, rng, -(-count // len(SUFFIXES)))):
            path = folder / f"{number}{suffix}"
            path.write_bytes(data)
            yield path.name, lambda path=path: read_file(path)  # type: ignore[misc]


def configurations(count: int, rng: np.random.Generator) -> Iterator[Read]:
    for number, (read, data) in enumerate(mutated_configurations(count, rng)):
        yield f"configuration {number} {data}", lambda read=read, data=data: read(data).for_head_dim(128)  # type: ignore[misc]


def memory(name: str) -> int:
    """Return a number of /proc/self/status in bytes; 0 where there is none."""
    if sys.platform != "linux":
        return 0
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def forget_peak() -> int:
    """Start VmHWM again, because what made the files may have taken more; return the memory that is there."""
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def run(what: str, reads: Iterator[Read]) -> int:
    """Read everything, print a line, and return the number of errors that are no `RopeError`."""
    outcomes: Counter[str] = Counter()
    slowest, name_of_slowest = 0.0, ""
    most, name_of_most = 0, ""
    for name, read in reads:
        before = forget_peak()
        begin = time.perf_counter()
        try:
            read()
            outcome = "read"
        except RopeError:
            outcome = "refused"
        except Exception:
            outcome = "errors"
            print(f"{name}:\n{traceback.format_exc()}")
        seconds = time.perf_counter() - begin
        outcomes[outcome] += 1
        if seconds > slowest:
            slowest, name_of_slowest = seconds, name
        grown = memory("VmHWM") - before
        if grown > most:
            most, name_of_most = grown, name
    counts = ", ".join(f"{outcomes[key]} {key}" for key in ("read", "refused", "errors"))
    print(
        f"{outcomes.total()} {what}: {counts}; slowest {slowest * 1e3:.1f} ms ({name_of_slowest[:60]}); "
        f"most memory {most / 1e6:.1f} MB ({name_of_most[:60]})"
    )
    return outcomes["errors"]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=400)
    parser.add_argument("--configurations", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(words)
    rng = np.random.default_rng(given.seed)
    with tempfile.TemporaryDirectory() as name:
        for suffix in SUFFIXES:
            path = Path(name) / f"good{suffix}"
            path.write_bytes(good(suffix, rng))
            read_file(path)
        errors = run("damaged files", files(Path(name), given.files, rng))
        errors += run("mutated configurations", configurations(given.configurations, rng))
    return int(errors > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
