"""Prints how much more all work-items' threads of a CPU device do at once than one: multiplying, and copying.

Two processors of a virtual machine may be two threads of one core, at one time and not at another. Then twice as many
threads multiply no more numbers a second, and copy hardly more bytes: everything has two speeds.

Example: python bench/processors.py --device pocl --seconds 20
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyopencl as cl

import clrope
from clrope.device import queue_for
from clrope.program.build import build

#: Twenty products that do not wait for each other fill the multipliers of a thread that has a core for itself.
SOURCE = """
__kernel void multiply(__global float *y, const int times) {
  float16 a[20];
  __attribute__((opencl_unroll_hint(20))) for (int i = 0; i < 20; ++i) a[i] = y[i];
  const float16 by = y[20];
  for (int k = 0; k < times; ++k) {
    __attribute__((opencl_unroll_hint(20))) for (int i = 0; i < 20; ++i) a[i] *= by;
  }
  float16 sum = 0;
  __attribute__((opencl_unroll_hint(20))) for (int i = 0; i < 20; ++i) sum += a[i];
  y[32 + 16 * get_global_id(0)] = sum.s0 + sum.sf;
}
__kernel void copy(__global const uint16 *x, __global uint16 *y, const ulong each) {
  const ulong first = get_global_id(0) * each;
  for (ulong k = first; k < first + each; ++k)
    y[k] = x[k];
}
"""
TIMES = 300_000
BYTES = 64 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    device = clrope.device(given.device)
    queue, units = queue_for(device), device.compute_units
    if device.kind != "cpu" or units < 2:
        print(f"{device.name}: needs a CPU of two compute units or more", file=sys.stderr)
        return 1
    program = build(queue.context, device.cl_device, SOURCE)
    numbers = np.ones(32 + 16 * units, np.float32)
    y = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=numbers)
    x, z = (cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, BYTES) for _ in range(2))
    cl.enqueue_fill_buffer(queue, x, np.float32(1), 0, BYTES)
    multiply, copy = program.multiply, program.copy
    vectors = np.uint64(BYTES // 64 // units)

    def rate(threads: int, call: Callable[[int], Any]) -> float:
        start = time.perf_counter()
        call(threads)
        queue.finish()
        return threads / (time.perf_counter() - start)

    def multiplying(threads: int) -> None:
        multiply(queue, (threads,), (1,), y, np.int32(TIMES))

    def copying(threads: int) -> None:
        copy(queue, (threads,), (1,), x, z, vectors)

    for call in (multiplying, copying):
        call(units)
    queue.finish()
    found: dict[str, list[float]] = {"multiplying": [], "copying": []}
    end = time.monotonic() + given.seconds
    while time.monotonic() < end:
        for name, call in (("multiplying", multiplying), ("copying", copying)):
            one, everyone = rate(1, call), rate(units, call)
            found[name].append(everyone / one)
    print(f"{device.name}: {units} threads do so many times what one does, {len(found['copying'])} times measured")
    for name, ratios in found.items():
        low, middle, high = np.percentile(ratios, (10, 50, 90))
        alone = statistics.fmean(ratio > (1 + units) / 2 for ratio in ratios)
        print(f"  {name:12} median {middle:.2f}, from {low:.2f} to {high:.2f}; more than half way in {alone:.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
