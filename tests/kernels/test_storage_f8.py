"""The conversions of the 8-bit types in the kernels' own text: every value, and floats around every rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl
import pytest

import clrope
from clrope.call.runtime import queue_for
from clrope.kernels.build import build
from clrope.kernels.source import kernel_source, storage_options
from clrope.layout import DTYPES

TEXT = """
__kernel void widened(__global const element *x, __global float *y) {
  const size_t k = get_global_id(0) * W;
  VSTORE(reals, widen(VLOAD(elements, x + k)), y + k);
}
__kernel void narrowed(__global const float *x, __global element *y) {
  const size_t k = get_global_id(0) * W;
  VSTORE(elements, narrow(VLOAD(reals, x + k)), y + k);
}
"""


def floats(rng: np.random.Generator, kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Every value of the type, the middles between neighbours, what is next to both, any bits, and the limits."""
    values = np.arange(256, dtype=np.uint8).view(kind).astype(np.float32)
    values = np.sort(values[np.isfinite(values)])
    middles = (values[1:] + values[:-1]) / 2
    last = 2 * values[-1] - values[-2]
    edges = np.concatenate([values, middles, [last, -last, (last + values[-1]) / 2, -(last + values[-1]) / 2]])
    edges = edges.astype(np.float32)
    near = [np.nextafter(edges, np.float32(to)) for to in (-np.inf, np.inf)]
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, 3e38], np.float32)
    drawn = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)
    # Most of any bits are far outside of the range: as many inside.
    inside = rng.standard_normal(1 << 16).astype(np.float32) * np.float32(2.0) ** rng.integers(-18, 17, 1 << 16)
    out = np.concatenate([edges, *near, special, drawn, inside.astype(np.float32)])
    return np.resize(out, -(-out.size // 16) * 16)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("clang", [False, True])
@pytest.mark.parametrize("width", [1, 8, 16])
@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2"])
def test_conversions(device: clrope.DeviceInfo, dtype: str, width: int, clang: bool, rng: np.random.Generator) -> None:
    if clang and device.kind != "cpu":
        pytest.skip("only CPU drivers are known to take clang's vectors")
    source = kernel_source("types.clh") + kernel_source("storage.clh") + TEXT
    options = [*storage_options(dtype, width), *(["-DCLANG_VECTORS"] if clang else [])]
    queue = queue_for(device)
    program = build(queue.context, device.cl_device, source, options)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR

    def run(name: str, x: np.ndarray[Any, Any], like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        buffers = [cl.Buffer(queue.context, flags, hostbuf=a.view(f"u{a.itemsize}")) for a in (x, like)]
        cl.Kernel(program, name)(queue, (x.size // width,), (1,), *buffers)
        got = np.empty_like(like).view(f"u{like.itemsize}")
        cl.enqueue_copy(queue, got, buffers[1])
        return got.view(like.dtype)

    kind = DTYPES[dtype]
    every = np.arange(256, dtype=np.uint8).view(kind)
    want = every.astype(np.float32)
    got = run("widened", every, np.zeros(256, np.float32))
    same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    assert same.all(), every[~same]
    x = floats(rng, kind)
    with np.errstate(all="ignore"):
        want = x.astype(kind)
    got = run("narrowed", x, np.zeros(x.size, kind))
    same = got.view(np.uint8) == want.view(np.uint8)
    # Which NaN is left open.
    same |= np.isnan(got.astype(np.float32)) & np.isnan(want.astype(np.float32))
    assert same.all(), [hex(int(v)) for v in (x.view(np.uint32)[~same][0], got.view(np.uint8)[~same][0])]
