"""Ascend's rotary_mul against its formulas in float64, with tables that hold no number twice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from helpers import POISON, bits

import clrope
from clrope import ConfigError, ShapeError
from clrope.interop import ascend
from clrope.layout import DTYPES
from clrope.suite.grids.interop.ascend_cases import MODES, AscendCall, draw

LIMITS = {"f16": 6e-8, "bf16": 4e-6, "f32": 1e-13, "f64": 1e-30}


def calls(rng: np.random.Generator, kinds: Sequence[str], modes: Sequence[str] = tuple(MODES)) -> Iterator[AscendCall]:
    """Yield a random call for each choice of axes on which r1 and r2 have length 1; the modes take turns."""
    turns = itertools.cycle(rng.permutation(modes))
    for ones, mode in zip(itertools.product((True, False), repeat=3), turns, strict=False):
        yield draw(rng, str(mode), str(rng.choice(kinds)), ones)


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ascend.empty_like

    def poisoned(x: Any) -> Any:
        made = real(x)
        if made.host is not None:
            made.host.view(np.uint8).fill(POISON)
        return made

    monkeypatch.setattr(ascend, "empty_like", poisoned)


def right(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether a result is near enough; the limits are means, of few elements all may be rounded badly."""
    name = next(n for n, kind in DTYPES.items() if got.dtype == kind)
    return clrope.compare(got, want).nmse <= LIMITS[name] * (1 if got.size >= 4096 else 5)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_limits(device: clrope.DeviceInfo, rng: np.random.Generator, dtype: str, mode: str) -> None:
    shapes = ((2, 16, 8, 64), (1, 16, 1, 64), (1, 16, 1, 64))
    call = AscendCall(*(rng.uniform(-1, 1, shape).astype(DTYPES[dtype]) for shape in shapes), mode)
    assert right(call.run(device=device.index), call.want())


@pytest.mark.one_in(12)
def test_random_calls(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    for call in calls(rng, ("f16", "bf16", "f32", "f64") if device.fp64 else ("f16", "bf16", "f32")):
        before, want = call.x.copy(), call.want()
        got = call.run(device=device.index)
        assert (got.shape, got.dtype) == (call.x.shape, call.x.dtype), call
        assert right(got, want), call
        assert np.array_equal(bits(np.ascontiguousarray(call.x)), bits(before)), f"x was changed: {call}"


def test_one_rounding_for_each_operation(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """In float32 the result is NumPy's, product by product and sum by sum."""
    for call in calls(rng, ("f32",), ("half",)):
        x1, x2 = np.split(call.x, 2, -1)
        want = call.x * call.r1 + np.concatenate([-x2, x1], -1) * call.r2
        assert np.array_equal(call.run(device=device.index), want), call


@pytest.mark.one_in(8)
@pytest.mark.parametrize("mode", ["half", "interleave", "quarter"])
def test_in_place_and_out(device: clrope.DeviceInfo, rng: np.random.Generator, mode: str) -> None:
    for call in calls(rng, ("f16", "f32"), (mode,)):
        want = call.run(device=device.index)
        parent = np.full((*call.x.shape[:3], call.x.shape[3] + 6), 9, call.x.dtype)
        out = parent[..., 3:-3]
        assert call.run(out=out, device=device.index) is out
        assert np.array_equal(bits(np.ascontiguousarray(out)), bits(want)), call
        assert (parent[..., :3] == 9).all(), call
        assert (parent[..., -3:] == 9).all(), call
        out[...] = call.x
        call.x = out
        assert call.run(out=out, device=device.index) is out
        assert np.array_equal(bits(np.ascontiguousarray(out)), bits(want)), f"in place: {call}"
        assert (parent[..., :3] == 9).all(), call


def test_devices_agree(devices: tuple[clrope.DeviceInfo, ...], rng: np.random.Generator) -> None:
    if len(devices) < 2:
        pytest.skip("one device has none to agree with")
    for call in calls(rng, ("f16", "bf16", "f32")):
        first, *others = [call.run(device=d.index) for d in devices]
        for other in others:
            assert np.array_equal(bits(first), bits(other)), call


@pytest.mark.one_in(6)
def test_opencl_arrays(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    import pyopencl as cl
    import pyopencl.array as cla

    context = cl.Context([device.cl_device])  # kept: a queue of Intel's runtime does not hold its context
    queue = cl.CommandQueue(context)
    for call in calls(rng, ("f16", "f32")):
        tensors = [cla.to_device(queue, np.ascontiguousarray(a)) for a in (call.x, call.r1, call.r2)]
        out = cla.to_device(queue, np.full(call.x.shape, 7, call.x.dtype))
        assert ascend.rotary_mul(*tensors, call.rotary_mode, out=out) is out
        assert np.array_equal(bits(out.get()), bits(call.run(device=device.index))), call


def test_torch_tensors(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    for call in calls(rng, ("f16", "f32")):
        tensors = [torch.from_numpy(np.ascontiguousarray(a)) for a in (call.x, call.r1, call.r2)]
        got = ascend.rotary_mul(*tensors, call.rotary_mode, device=device.index)
        assert np.array_equal(bits(got.numpy()), bits(call.run(device=device.index))), call


def test_numbers_of_the_modes(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    x, r1, r2 = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((2, 3, 4, 8), (1, 3, 1, 8), (1, 3, 1, 8)))
    for number, mode in enumerate(MODES):
        by_number = ascend.rotary_mul(x, r1, r2, number, device=device.index)
        assert np.array_equal(by_number, ascend.rotary_mul(x, r1, r2, mode, device=device.index))

    assert np.array_equal(
        ascend.rotary_mul(x, r1, r2, np.int64(1), device=device.index),
        ascend.rotary_mul(x, r1, r2, 1, device=device.index),
    )


def test_buffers(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """A `memoryview` cannot be cut along several axes."""
    x, r1, r2 = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((2, 3, 4, 8), (1, 3, 1, 8), (1, 3, 1, 8)))
    for mode in MODES:
        want = ascend.rotary_mul(x, r1, r2, mode, device=device.index)
        out = memoryview(np.empty_like(x))
        assert (
            ascend.rotary_mul(memoryview(x), memoryview(r1), memoryview(r2), mode, out=out, device=device.index) is out
        )
        assert np.array_equal(np.asarray(out), want), mode


def test_nothing_to_rotate() -> None:
    x = np.empty((2, 0, 3, 8), np.float16)
    r = np.empty((1, 0, 1, 8), np.float16)
    assert ascend.rotary_mul(x, r, r).shape == (2, 0, 3, 8)


X, R = np.ones((2, 5, 3, 8), np.float32), np.ones((1, 5, 1, 8), np.float32)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"rotary_mode": "neox"}, ConfigError, r"^rotary_mode: got 'neox', allowed are 'half' \(0\), .*-half' \(3\)"),
        ({"rotary_mode": 4}, ConfigError, r"^rotary_mode: got 4"),
        ({"rotary_mode": True}, ConfigError, r"^rotary_mode: got True, allowed are"),
        ({"rotary_mode": False}, ConfigError, r"^rotary_mode: got False, allowed are"),
        ({"rotary_mode": ["half"]}, ConfigError, r"^rotary_mode: got \['half'\], allowed are"),
        ({"rotary_mode": {"half"}}, ConfigError, r"^rotary_mode: got {'half'}, allowed are"),
        ({"rotary_mode": np.array([0])}, ConfigError, r"^rotary_mode: got array"),
        ({"rotary_mode": 0.0}, ConfigError, r"^rotary_mode: got 0.0, allowed are"),
        ({"rotary_mode": b"half"}, ConfigError, r"^rotary_mode: got b'half', allowed are"),
        ({"rotary_mode": 10**5000}, ConfigError, r"^rotary_mode: got an integer of 16610 bits"),
        ({"r1": type("Odd", (), {"shape": 3})()}, ShapeError, r"^r1: Odd cannot be read"),
        ({"r1": None}, ShapeError, r"^r1: got NoneType"),
        ({"x": X[0]}, ShapeError, r"^x: got rank 3, 4 is needed"),
        ({"r1": R[0]}, ShapeError, r"^r1: got rank 3, 4 is needed"),
        ({"x": X[..., :7]}, ShapeError, r"^x: the last axis has 7 elements, mode 'half' needs a multiple of 2"),
        ({"x": X[..., :6], "rotary_mode": "quarter"}, ShapeError, r"^x: the last axis has 6 .* multiple of 4"),
        ({"r1": R[..., :4]}, ShapeError, r"^r1: got shape \[1, 5, 1, 4\], x has \[2, 5, 3, 8\]: the last axis must"),
        ({"r2": np.ones((1, 4, 1, 8), np.float32)}, ShapeError, r"^r2: got shape \[1, 4, 1, 8\]"),
        (
            {"r2": np.ones((1, 5, 3, 8), np.float32)},
            ShapeError,
            r"^r2: got shape \[1, 5, 3, 8\], r1 has \[1, 5, 1, 8\]",
        ),
        ({"r2": R.astype(np.float16)}, ShapeError, r"^r2: got dtype float16, x has float32"),
        ({"x": X.astype(np.int32)}, ShapeError, r"^x: got dtype int32"),
        ({"x": [1.0]}, ShapeError, r"^x: got list"),
        ({"out": X[:, ::-1]}, ShapeError, r"^out: overlaps x"),
        ({"out": np.ones((2, 5, 3, 4), np.float32)}, ShapeError, r"^out: got shape \[2, 5, 3, 4\], x has"),
        ({"out": np.ones((2, 5, 3, 8), np.float16)}, ShapeError, r"^out: got dtype float16, x has float32"),
        ({"out": X, "rotary_mode": "interleave-half"}, ShapeError, r"^out: x itself, but pairs that move"),
    ],
)
def test_refusals(given: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        ascend.rotary_mul(**({"x": X, "r1": R, "r2": R} | given))
    assert (X == 1).all(), "x was changed"
