"""How many processors' work the threads of a CPU device do: all at once against one alone, multiplying and copying."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from clrope.call.runtime import queue_for
from clrope.errors import DeviceError
from clrope.kernels.build import build

if TYPE_CHECKING:
    from clrope.device import DeviceInfo

#: Twenty products that do not wait for each other fill the multipliers of a thread that has a core for itself.
SOURCE = """
#define TWENTY __attribute__((opencl_unroll_hint(20))) for (int i = 0; i < 20; ++i)
__kernel void multiply(__global float *y, const int times, const float by) {
  float16 a[20];
  TWENTY a[i] = i + 1;
  for (int k = 0; k < times; ++k) {
    TWENTY a[i] *= by;
  }
  float16 sum = 0;
  TWENTY sum += a[i];
  y[get_global_id(0)] = sum.s0 + sum.sf;
}
__kernel void copy(__global const uint16 *x, __global uint16 *y, const ulong each) {
  const ulong first = get_global_id(0) * each;
  for (ulong k = first; k < first + each; ++k)
    y[k] = x[k];
}
"""
TIMES = 300_000
BYTES = 64 << 20
#: Twice the sum of 1 to 20.
PRODUCTS = 420.0


def compare_threads(
    device: DeviceInfo, seconds: float, times: int = TIMES, nbytes: int = BYTES
) -> dict[str, list[float]]:
    """Return, for 'multiplying' and 'copying', how many times what one thread does all of them do, one figure a turn.

    times: products of each number. nbytes: what is copied, a part of it by each thread. Raises `DeviceError` for what
    is no CPU of at least two compute units, or if a kernel did not do its work.
    """
    import pyopencl as cl

    units = device.compute_units
    if device.kind != "cpu" or units < 2:
        raise DeviceError(
            f"device {device.name!r}: got a {device.kind} of {units} compute units, needed is a CPU of two"
        )
    queue = queue_for(device)
    program = build(queue.context, device.cl_device, SOURCE)
    vectors = nbytes // 64 // units
    x = np.random.default_rng(0).integers(0, 1 << 32, 16 * vectors * units, dtype=np.uint32)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    products = np.full(units, np.nan, np.float32)
    product_buffer = cl.Buffer(queue.context, flags, hostbuf=products)
    source, result = (cl.Buffer(queue.context, flags, hostbuf=values) for values in (x, ~x))
    multiply, copy = program.multiply, program.copy
    multiply.set_args(product_buffer, np.int32(times), np.float32(1))
    copy.set_args(source, result, np.uint64(vectors))

    def rate(kernel: Any, threads: int) -> float:
        start = time.perf_counter()
        cl.enqueue_nd_range_kernel(queue, kernel, (threads,), (1,))
        queue.finish()
        return threads / (time.perf_counter() - start)

    for kernel in (multiply, copy):
        rate(kernel, units)
    cl.enqueue_copy(queue, products, product_buffer)
    got = np.empty_like(x)
    cl.enqueue_copy(queue, got, result)
    if not (products == PRODUCTS).all() or not np.array_equal(got, x):
        raise DeviceError(f"device {device.name!r}: a kernel did not do its work, its products are {products}")
    found: dict[str, list[float]] = {"multiplying": [], "copying": []}
    work: dict[str, Callable[[int], float]] = {
        "multiplying": lambda threads: rate(multiply, threads),
        "copying": lambda threads: rate(copy, threads),
    }
    end = time.monotonic() + seconds
    while not found["copying"] or time.monotonic() < end:
        for name, rate_of in work.items():
            alone = rate_of(1)
            found[name].append(rate_of(units) / alone)
    return found
