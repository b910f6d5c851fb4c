"""Any words after `clrope`, most of them wrong: each command ends by a promised exit code and an error of its own."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import examples
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

import clrope
from clrope.cli.main import app

VALUES = [
    "", "0", "-1", "1", "8", "16", "1e308", "nan", "-inf", "5e-324", "9" * 30, "9" * 5000, "x" * 5000, "x", "q:x",
    "1:2",
    "0:3", "3:0", "0,1,2", "0,1", "1,2,3,4", "2,1,1", "0,0,0,0", "f16", "f64", "neox", "mrope", "vision", "40", "ggml",
    "bsnd", "dnsb", "snd", "x.npy", "p.npz", "p.npz:x", "p.npz:words", "p.npz:", "own.json", "hf.json", "model.gguf",
    "empty.json", "kernel.cl", "results.json", "summary.json", "none", "none.npy", "none.json", ".", "/dev/null",
    "/dev/zero",
    "y.npy", "y.npz", "y.safetensors", "llama-3.1-8b", "sliding_attention", "é", "\udcff", "²", " ", "\n", "%s", "{}",
    "auto",
    "9:9", "-", "--", "1,4,2,8", "4,2,8", "1,0,2,8", "1,99999999999,1,8", "1000000,1000,100,8",
]  # fmt: skip
CONFIGURATION = [
    "--config", "--gguf", "--hf", "--preset", "--layer-type", "--seq-len", "--mode", "--n-dims", "--n-offs",
    "--freq-base",
    "--freq-scale", "--ext-factor", "--attn-factor", "--beta-fast", "--n-ctx-orig", "--freq-factors", "--sections",
    "--angles",
]  # fmt: skip
FLAGS = ["--keep", "--backward", "--check", "--json", "--quiet", "--inplace"]
#: Of each command: words that it takes, or nearly; its options.
COMMANDS: dict[str, tuple[list[list[str]], list[str]]] = {
    "run": (
        [["x.npy", "-o", "y.npy", "--mode", "neox"], ["p.npz", "-o", "y.safetensors", "--mode", "normal"], ["x.npy"]],
        ["--tensor", "--positions", "--positions-tensor", "--layout", "--device", *CONFIGURATION],
    ),
    "explain": (
        [["--shape", "1,4,2,8", "--mode", "neox"], ["--mode", "neox", "--shape"]],
        ["--type", "--layout", "--device", *CONFIGURATION],
    ),
    "config": ([["hf.json"], ["own.json"], ["model.gguf"], []], ["--layer-type", "--seq-len", "--mode"]),
    "identify": ([["x.npy", "x.npy"], ["x.npy", "p.npz:x"], []], ["--positions", "--layout", *CONFIGURATION]),
    "report": ([["results.json"], ["summary.json"], []], ["--markdown"]),
    "lab": ([["kernel.cl", "--device", "9:9"]], ["--contract", "--kernel", "--suite"]),
}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working directory, with files to name."""
    folder = tmp_path_factory.mktemp("words")
    np.save(folder / "x.npy", np.ones((2, 3, 2, 8), np.float32))
    np.savez(folder / "p.npz", x=np.ones((2, 3, 2, 8), np.float16), words=np.array(["a"]))
    (folder / "own.json").write_text(json.dumps({"mode": "neox", "n_dims": 8}))
    (folder / "hf.json").write_text(json.dumps({"model_type": "llama", "head_dim": 8}))
    (folder / "empty.json").write_text("")
    (folder / "kernel.cl").write_text(
        f"#define N {'9' * 5000}\n__kernel void k(__global float *x, int n) {{ x[n] = N; }}"
    )
    (folder / "results.json").write_text(json.dumps({"schema": "clrope.bench/1", "workloads": []}))
    (folder / "summary.json").write_text(json.dumps({"schema": "clrope.bench.device/1"}))
    (folder / "model.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


words = st.sampled_from(list(COMMANDS)).flatmap(
    lambda command: st.tuples(
        st.just([command]),
        st.sampled_from(COMMANDS[command][0]),
        st.lists(
            st.tuples(st.sampled_from(COMMANDS[command][1]), st.sampled_from(VALUES))
            | st.tuples(st.sampled_from(FLAGS)) | st.tuples(st.sampled_from(VALUES)),
            max_size=3,
        ).map(lambda parts: [word for part in parts for word in part]),
    ).map(lambda parts: [*parts[0], *parts[1], *parts[2]])
)  # fmt: skip


@examples(200)
@given(words=words)
@example(words=["run", "x.npy", "-o", "y.npy", "--mode", "9" * 5000])
@example(words=["run", "x.npy", "-o", "y.npy", "--hf", "x" * 5000])
@example(words=["config", "x" * 5000])
@example(words=["explain", "--mode", "neox", "--shape", "1,99999999999,1,8"])
@example(words=["lab", "kernel.cl", "--device", "9:9"])
@example(words=["report", "summary.json"])
@pytest.mark.one_in(24)
def test_any_words(words: list[str]) -> None:
    done: Any = CliRunner().invoke(app, words)
    assert done.exit_code in (0, 1, 2), (words, done.exception)
    assert "CLROPE_TRACEBACK" not in done.stderr, (words, done.stderr)  # an error that is not the package's
    assert done.exit_code != 2 or done.stderr.strip(), words


def test_no_memory_for_a_result() -> None:
    x = np.broadcast_to(np.float32(1), (1 << 30, 1 << 20, 1, 64))
    with pytest.raises(clrope.DeviceError, match=f"{4 << 56} bytes of memory could not be allocated on the host"):
        clrope.rope(x, 0, mode="neox")
