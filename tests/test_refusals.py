"""Bad calls: the message names the argument, nothing is launched, nothing changed. Empty tensors give empty results."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyopencl as cl
import pytest
from pyopencl.tools import ImmediateAllocator, MemoryPool

import clrope
from clrope import ConfigError, DeviceError, Rope, RopeConfig, ShapeError
from clrope.call.runtime import queue_for
from clrope.kernels.launch import Launch

NEOX = RopeConfig("neox")
X = np.arange(2 * 3 * 2 * 8, dtype=np.float32).reshape(2, 3, 2, 8)
LONG = np.arange(200, dtype=np.float32)


@pytest.fixture
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was launched")

    monkeypatch.setattr(Launch, "enqueue", refuse)


def ones(*shape: int) -> np.ndarray:
    """Return an array of any size that has one element in memory."""
    return np.broadcast_to(np.float32(1), shape)


def read_only() -> np.ndarray:
    out = np.zeros_like(X)
    out.setflags(write=False)
    return out


def window(start: int) -> np.ndarray:
    return LONG[start : start + 96].reshape(2, 3, 2, 8)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"x": X[0, 0]}, ShapeError, r"x: got rank 2, allowed are 3 \[S, N, D\] and 4 \[B, S, N, D\]"),
    ({"x": X[None]}, ShapeError, "x: got rank 5"),
    ({"x": X.astype(np.int32)}, ShapeError, "x: got dtype int32, allowed are float16, bfloat16, float32, float64"),
    ({"x": X.astype(complex)}, ShapeError, "x: got dtype complex128"),
    ({"x": X.astype(">f4")}, ShapeError, "x: got dtype >f4, allowed are .* native byte order"),
    ({"x": X.tolist()}, ShapeError, "x: got list, allowed are NumPy and PyOpenCL arrays|x: got float"),
    ({"x": None}, ShapeError, "x: got NoneType, allowed are NumPy and PyOpenCL arrays, torch CPU tensors"),
    ({"x": object()}, ShapeError, "x: got object, allowed are"),
    ({"x": ()}, ShapeError, "x: got no arrays"),
    ({"x": np.frombuffer(bytes(2 * 8 * 4 + 1), np.uint8)[1:].view(np.float32).reshape(1, 2, 8)}, ShapeError,
     "x: its memory is not aligned"),
    ({"x": X[..., :7]}, ConfigError, r"n_dims: not given, and head_dim - n_offs = 7 is not a positive even number"),
    ({"config": RopeConfig("neox", 10)}, ConfigError, "n_dims: got 10, at most head_dim = 8 is allowed"),
    ({"config": RopeConfig("neox", 8, n_offs=2)}, ConfigError, r"n_offs \+ n_dims: got 2 \+ 8, at most head_dim = 8"),
    ({"config": RopeConfig("vision", 8, sections=(1, 1, 1))}, ConfigError, "n_dims: got 8, mode 'vision' needs"),
    ({"config": RopeConfig("neox", freq_factors=(1, 1, 1))}, ConfigError, "freq_factors: got 3, one per pair is"),
    ({"config": {"mode": "neox"}}, ConfigError, "config: got dict, a RopeConfig is needed"),
    ({"config": NEOX, "n_dims": 4}, ConfigError, "config: given together with n_dims; use dataclasses.replace"),
    ({"config": None}, ConfigError, r"mode: not given, allowed are 'normal' \(ggml 0\), "),
    ({"config": None, "mode": "neox", "theta": 1}, ConfigError, "theta: no such field, known are mode, n_dims"),
    ({"positions": [0] * 4}, ShapeError, r"positions: got shape \[4\], allowed here are an int, \[3\], \[2, 3\]"),
    ({"positions": [[0, 1, 2], [0, 1]]}, ShapeError, "positions: got list that is no array"),
    ({"positions": 2**63}, ShapeError, r"positions: got 9223372036854775808, allowed are -2\*\*63"),
    ({"positions": -(2**63) - 1}, ShapeError, "positions: got -9223372036854775809, allowed are -2"),
    ({"positions": 2**63 - 2}, ShapeError, "positions: offset 9223372036854775806 with 3 tokens goes beyond 64-bit"),
    ({"positions": [2**63, -1, 0]}, ShapeError, "positions: got 9223372036854775808, allowed are -2"),
    ({"positions": np.ma.masked_array([0, 1, 2], [0, 1, 0])}, ShapeError, "positions: got a masked array"),
    ({"x": np.ma.masked_array(X, X > 1)}, ShapeError, "x: got a masked array, whose mask would be ignored"),
    ({"x": (ones(1, 2**30 + 1, 1, 8),)}, ShapeError, r"x: got shape \[1, 1073741825, 1, 8\], an axis has at most"),
    ({"x": (ones(1, 1, 2**29, 8), ones(1, 1, 2**29 + 1, 8)), "positions": 0}, ShapeError, "x: got 1073741825 heads"),
    ({"forward": "no"}, ConfigError, "forward: got 'no' of type str, True or False is needed"),
    ({"forward": np.array([True, False])}, ConfigError, "forward: got array"),
    ({"wait_for": 5}, ShapeError, "wait_for: got 5, a sequence of pyopencl.Event is needed"),
    ({"wait_for": [None]}, ShapeError, r"wait_for: got \[None\], a sequence of"),
    ({"positions": [0.0, 1.0, 2.0]}, ShapeError, "positions: got dtype float64, allowed are the integer dtypes"),
    ({"layout": "bcsd"}, ShapeError, "layout: got 'bcsd', allowed is any order of the letters b, s, n, d"),
    ({"layout": "snd"}, ShapeError, "layout: got 'snd' for a rank 4 x, the letter b is missing"),
    ({"out": read_only()}, ShapeError, "out: the array is read-only"),
    ({"out": np.zeros((2, 3, 2, 6), np.float32)}, ShapeError, r"out: got shape \[2, 3, 2, 6\], x has \[2, 3, 2, 8\]"),
    ({"out": np.zeros((6, 2, 8), np.float32)}, ShapeError, r"out: got shape \[6, 2, 8\], x has \[2, 3, 2, 8\]"),
    ({"out": np.zeros_like(X, np.float16)}, ShapeError, "out: got dtype float16, x has float32"),
    ({"out": np.zeros(96, np.float32)}, ShapeError, "out: got rank 1"),
    ({"out": [0.0]}, ShapeError, "out: got list, allowed are"),
    ({"x": window(0), "out": window(8)}, ShapeError, "out: overlaps x; allowed are x itself, the same view"),
    ({"x": window(0), "out": window(95)}, ShapeError, "out: overlaps x"),
    ({"x": window(0), "out": window(0)[::-1]}, ShapeError, "out: overlaps x"),
    ({"x": window(0), "out": window(0)[..., ::-1]}, ShapeError, "out: overlaps x"),
    ({"x": window(0), "out": LONG[:96].reshape(3, 2, 2, 8).transpose(1, 0, 2, 3)}, ShapeError, "out: overlaps x"),
    ({"out": np.lib.stride_tricks.as_strided(LONG.copy(), (2, 3, 2, 8), (64, 64, 32, 4))}, ShapeError,
     r"out: elements share memory \(strides \[16, 16, 8, 1\]\), each needs a place of its own"),
    ({"x": (X, X), "out": X}, ShapeError, r"out: got 2 arrays for 2 inputs|out: got (rank 3|shape)"),
    ({"x": (X, X), "out": (None,)}, ShapeError, "out: got 1 arrays for 2 inputs"),
    ({"x": (X, X[:, :2])}, ShapeError, r"x: arrays that share positions need the same .* got \[2, 3\]"),
    ({"x": (X, X[..., :6])}, ShapeError, "x: arrays of different head_dim share positions only if .* sets n_dims"),
    ({"x": (window(0), window(100).copy()), "out": (None, window(20))}, ShapeError,
     "out: an output overlaps another tensor of the same call"),
    ({"x": (X, X.copy()), "out": (window(50), window(60))}, ShapeError, "out: an output overlaps another tensor"),
    ({"device": "no such device"}, DeviceError, "device 'no such device': no OpenCL device matches; found: "),
    ({"device": 3.5}, DeviceError, "device: got float, allowed are a name such as 'auto'"),
]  # fmt: skip


@pytest.mark.usefixtures("no_launch", "devices")
@pytest.mark.parametrize(("given", "kind", "message"), REFUSED, ids=[m[:48] for *_, m in REFUSED])
def test_refusals(given: dict[str, Any], kind: type[Exception], message: str) -> None:
    arguments: dict[str, Any] = {"x": X, "positions": [0, 1, 2], "config": NEOX, **given}
    arrays = [a for a in (arguments["x"], arguments.get("out"), X, LONG) if isinstance(a, np.ndarray)]
    before = [a.copy() for a in arrays]
    with pytest.raises(kind, match=message):
        clrope.rope(**arguments)
    for now, then in zip(arrays, before, strict=True):
        assert now.tobytes() == then.tobytes()


def test_the_message_ends_with_the_call() -> None:
    with pytest.raises(ShapeError) as caught:
        clrope.rope(X, np.zeros(7, np.int32), RopeConfig("neox", 4, freq_base=5e5))
    assert re.search(
        r"\n  in rope\(x=float32\[2, 3, 2, 8\], positions=int32\[7\], layout='bsnd', mode='neox', n_dims=4, "
        r"freq_base=500000.0", str(caught.value),
    )  # fmt: skip


def test_buffers_without_a_shape(device: clrope.DeviceInfo) -> None:
    queue = queue_for(device.index)
    pooled = MemoryPool(ImmediateAllocator(queue)).allocate(X.nbytes)
    line = re.escape("pyopencl.array.Array(queue, shape, dtype, data=buffer)")
    for buffer in (cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, X.nbytes), pooled):
        for name, call in {
            "x": lambda b: clrope.rope(b, 0, NEOX),
            "x, of two": lambda b: clrope.rope((X, b), 0, NEOX),
            "out": lambda b: clrope.rope(X, 0, NEOX, out=b),
            "cos": lambda b: clrope.rotate(X, b, X[0, 0]),
            "sin": lambda b: clrope.rotate(X, X[0, 0], b),
        }.items():
            with pytest.raises(
                ShapeError, match=f"^{name.partition(',')[0]}: got .*Buffer, which has no shape .*{line}"
            ):
                call(buffer)


def test_transfer_and_op() -> None:
    with pytest.raises(ConfigError, match="config: got str, a RopeConfig is needed"):
        Rope("neox")  # type: ignore[arg-type]


def test_unknown_transfer(device: clrope.DeviceInfo) -> None:
    with pytest.raises(ShapeError, match="transfer: got 'dma', allowed are 'auto', 'map', 'copy'"):
        Rope(NEOX, device.index).plan(X, 0, transfer="dma")  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_axes_of_length_0(device: clrope.DeviceInfo, axis: int, dtype: Any) -> None:
    shape = [2, 3, 2, 8]
    shape[axis] = 0
    x = np.zeros(shape, dtype)
    positions = np.zeros(shape[1], np.int64)
    for config in (NEOX, RopeConfig("normal", 4), RopeConfig("mrope", sections=(1, 1, 1))):
        got = clrope.rope(x, positions, config, device=device.index)
        assert (got.shape, got.dtype) == (tuple(shape), np.dtype(dtype))
        assert got is not x
        assert clrope.rope(x, positions, config, out=x, device=device.index) is x
    if axis != 1:
        with pytest.raises(ShapeError, match=r"positions: got shape \[9\]"):
            clrope.rope(x, np.zeros(9, int), NEOX, device=device.index)


@pytest.mark.usefixtures("no_launch")
def test_empty_needs_no_device() -> None:
    x = np.zeros((0, 2, 8), np.float32)
    assert clrope.rope(x, [], NEOX).shape == (0, 2, 8)
    assert clrope.rope(x, np.zeros(0, np.int32), NEOX, device="no such device").shape == (0, 2, 8)
    q, k = clrope.rope((x, x[:, :1]), 5, NEOX, device="no such device")
    assert (q.shape, k.shape) == ((0, 2, 8), (0, 1, 8))
