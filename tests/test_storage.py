"""The conversions to bfloat16 in the kernels' own text, on bits that no rotation makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl
import pytest

import clrope
from clrope.call.runtime import queue_for
from clrope.kernels.build import build
from clrope.kernels.source import kernel_source
from clrope.select.defaults import default_for
from clrope.select.records import TuningKey

TEXT = """
#include "arithmetic.clh"
#include "storage.clh"
__kernel void both(__global const VEC(float, W) *low, __global const VEC(float, W) *high, __global VEC(uint, W) *out) {
  const size_t k = get_global_id(0);
  out[k] = join(low[k], high[k]);
}
"""


def narrowed(bits: np.ndarray[Any, np.dtype[np.uint32]], keep_nan: bool) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Round to nearest even by whole numbers; NaNs keep their upper bits and become quiet."""
    wide = bits.astype(np.uint64)
    rounded = (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan & keep_nan, (bits >> 16) | 0x40, rounded & 0xFFFF).astype(np.uint32)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("keep_nan", [True, False])
@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("clang", [False, True])
def test_two_bfloat16_of_any_bits(
    device: clrope.DeviceInfo, clang: bool, width: int, keep_nan: bool, rng: np.random.Generator
) -> None:
    if clang and default_for(device, TuningKey("bf16", "neox", False, "large")).access != "clang":
        pytest.skip("this device's compiler does not take clang's vectors")
    source = "\n".join(
        kernel_source(line.split('"')[1]) if line.startswith("#include") else line for line in TEXT.splitlines()
    )
    options = ["-DSTORAGE_BF16", f"-DW={width}", *(["-DCLANG_VECTORS"] if clang else [])]
    queue = queue_for(device)
    program = build(queue.context, device.cl_device, source, [*options, *([] if keep_nan else ["-DPLAIN_NAN"])])
    # Any bits, and of those on both sides of a tie more than there would be.
    low, high = rng.integers(0, 1 << 32, (2, 1 << 16), dtype=np.uint32)
    for part in (low, high):
        some = rng.random(part.size) < 0.5
        part[some] = (part[some] & 0xFFFF0000) | rng.choice(
            np.uint32([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]), some.sum()
        )
        if not keep_nan:  # then only NaNs come that rounding leaves as they are
            nan = (part & 0x7FFFFFFF) > 0x7F800000
            part[nan] &= 0xFFFF0000
    flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
    got = np.full(low.size, 0xA5A5A5A5, np.uint32)
    buffers = [cl.Buffer(queue.context, flags, hostbuf=part) for part in (low, high)]
    out = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=got)
    program.both(queue, (low.size // width,), (1,), *buffers, out)
    cl.enqueue_copy(queue, got, out)
    want = narrowed(low, keep_nan) | (narrowed(high, keep_nan) << 16)
    wrong = np.flatnonzero(got != want)
    assert not wrong.size, [hex(int(v[wrong[0]])) for v in (low, high, got, want)]
