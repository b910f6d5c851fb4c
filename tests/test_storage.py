"""The conversions to bfloat16 in the kernels' own text, on bits that no rotation makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl
import pytest

import clrope
from clrope.call.runtime import queue_for
from clrope.kernels import rows
from clrope.kernels.build import build
from clrope.kernels.problem import PairLayout, Problem
from clrope.kernels.source import kernel_source
from clrope.kernels.variant import Variant
from clrope.layout import TensorView
from clrope.select.defaults import default_for
from clrope.select.records import TuningKey

TEXT = """
__kernel void narrowed(__global const reals *wide, __global elements *out) {
  const size_t k = get_global_id(0);
  out[k] = narrow(wide[k]);
}
"""


def narrowed(bits: np.ndarray[Any, np.dtype[np.uint32]], keep_nan: bool) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Round to nearest even by whole numbers; NaNs keep their upper bits and become quiet."""
    wide = bits.astype(np.uint64)
    rounded = (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan & keep_nan, (bits >> 16) | 0x40, rounded & 0xFFFF).astype(np.uint16)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("keep_nan", [True, False])
@pytest.mark.parametrize("width", [2, 4, 8, 16])
@pytest.mark.parametrize("clang", [False, True])
def test_bfloat16_of_any_bits(
    device: clrope.DeviceInfo, clang: bool, width: int, keep_nan: bool, rng: np.random.Generator
) -> None:
    if clang and default_for(device, TuningKey("bf16", "neox", False, "large")).parameters.get("access") != "clang":
        pytest.skip("this device's compiler does not take clang's vectors")
    variant = Variant(width=width, access="clang" if clang else "builtin", nan="any" if keep_nan else "plain")
    view = TensorView.dense((1, 4, 2, 128), "bf16")
    pairs = PairLayout.of_config(clrope.RopeConfig("neox", 128), 128)
    options = rows.options(Problem(view.shape, "bf16", view.strides, view.strides, pairs), variant.parameters)
    queue = queue_for(device)
    program = build(queue.context, device.cl_device, kernel_source(rows.KERNEL.file) + TEXT, list(options))
    # Any bits, and of those on both sides of a tie more than there would be.
    wide = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    some = rng.random(wide.size) < 0.5
    wide[some] = (wide[some] & 0xFFFF0000) | rng.choice(np.uint32([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]), some.sum())
    if not keep_nan:  # then only NaNs come that rounding leaves as they are
        wide[(wide & 0x7FFFFFFF) > 0x7F800000] &= 0xFFFF0000
    got = np.full(wide.size, 0xA5A5, np.uint16)
    buffer = cl.Buffer(queue.context, cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR, hostbuf=wide)
    out = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=got)
    program.narrowed(queue, (wide.size // width,), (1,), buffer, out)
    cl.enqueue_copy(queue, got, out)
    want = narrowed(wide, keep_nan)
    wrong = np.flatnonzero(got != want)
    assert not wrong.size, [hex(int(v[wrong[0]])) for v in (wide, got, want)]
