"""Times RMS norm and rotation of q and k in one launch, interleaved with two launches, a copy, torch and ggml.

Each round times every entry once; a ratio is the median of those within each round. All results are checked first.

Example: python bench/fusion.py --device intel --device pocl --tokens 512 4096
"""

import argparse
import ctypes
import os
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pyopencl as cl
import pyopencl.array as cla

import clrope
from clrope import benchmark, reference
from clrope.benchmark.ceilings import variants
from clrope.call.runtime import queue_for
from clrope.kernels.build import build
from clrope.testing import nmse

EPS, CONFIG = 1e-6, clrope.RopeConfig("neox", 128)
DTYPES = {"f32": np.float32, "f16": np.float16}
#: Least time of a sample in seconds: calls of entries that are quicker are repeated.
LEAST = 2e-4
#: Seconds after which threads of torch and ggml that wait for work have gone to sleep.
SETTLES = 0.02


os.environ["OMP_WAIT_POLICY"] = "passive"


def opencl_entries(device, arrays, norms, want):
    """Return (name, call) of a device: the copy of the same bytes in its best variants, one launch, and two."""
    queue = queue_for(device)
    nbytes = sum(a.nbytes for a in arrays)
    source, target, middle = (cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, nbytes) for _ in range(3))
    x, y, between = (parts_of(queue, buffer, arrays) for buffer in (source, target, middle))
    for a, b in zip(x, arrays, strict=True):
        a.set(b)
    op = clrope.Rope(CONFIG, queue)
    fused, rotated = op.plan(x, 0, out=y, norm=norms), op.plan(between, 0, out=y)

    def one():
        fused.run()
        queue.finish()

    def two():
        clrope.rms_norm(x, norms, out=between)
        rotated.run()
        queue.finish()

    for call in (one, two):
        for a in y:
            a.set(np.full(a.shape, np.nan, a.dtype))
        call()
        for a, b in zip(y, want, strict=True):
            assert nmse(a.get(), b) < 1e-6, call
    copies = [(0.0, partial(driver_copy, queue, target, source))]
    text = (Path(benchmark.__file__).parent / "ceilings.cl").read_text()
    for variant in (v for name in ("copy", "stream") for v in variants(name, "cpu")):
        kernel = cl.Kernel(build(queue.context, queue.device, text, variant.options), variant.name)
        units = nbytes // (4 * variant.width)
        each = max(1, variant.chunk // (4 * variant.width))
        kernel.set_args(source, target, np.uint64(units), np.uint64(each))
        copies.append((0.0, partial(launch, queue, kernel, -(-units // each), (source, target))))
    best = sorted((min(timed(call, 1) for _ in range(5)), k, call) for k, (_, call) in enumerate(copies))[:3]
    label = "PoCL" if device.platform.startswith("Portable") else "Intel" if "Intel" in device.platform else device.name
    found = [(f"{label} copy {k}", call) for k, (_, _, call) in enumerate(best)]
    return [*found, (f"{label} one launch", one), (f"{label} two launches", two)]


def parts_of(queue, buffer, arrays):
    """Return OpenCL arrays like the given ones, one behind the other: a copy of the buffer has the same memory."""
    starts = np.cumsum([0, *(a.nbytes for a in arrays)])
    return tuple(
        cla.Array(queue, a.shape, a.dtype, data=buffer, offset=int(start))
        for a, start in zip(arrays, starts, strict=False)
    )


def driver_copy(queue, target, source):
    cl.enqueue_copy(queue, target, source)
    queue.finish()


def launch(queue, kernel, items, kept):
    cl.enqueue_nd_range_kernel(queue, kernel, (items,), (1,))
    queue.finish()


def torch_entries(arrays, weights, want):
    """Return model code's norm and rotation, eager and compiled; cos and sin are there already."""
    import torch

    torch.set_num_threads(2)
    xs = [torch.from_numpy(a).transpose(1, 2) for a in arrays]
    scales = [torch.from_numpy(w).to(xs[0].dtype) for w in weights]
    inverse = 1e4 ** -(torch.arange(0, 128, 2, dtype=torch.float32) / 128)
    half = torch.outer(torch.arange(arrays[0].shape[1], dtype=torch.float32), inverse)
    cos, sin = (f(torch.cat((half, half), -1))[None, None].to(xs[0].dtype) for f in (torch.cos, torch.sin))

    def one(x, weight):
        v = x.float()
        v = weight * (v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)
        return v * cos + torch.cat((-v[..., 64:], v[..., :64]), -1) * sin

    def both(*tensors):
        return [one(x, w) for x, w in zip(tensors, scales, strict=True)]

    compiled = torch.compile(both, dynamic=False)
    entries = []
    for name, function in (("torch eager", both), ("torch compiled", compiled)):

        def call(function=function):
            with torch.no_grad():
                return function(*xs)

        for a, b in zip(call(), want, strict=True):
            assert nmse(a.transpose(1, 2).numpy(), b) < 1e-5, name
        entries.append((name, call))
    return entries


def ggml_entry(arrays, weights, want):
    """Return a graph rms_norm, mul, rope of float32 tensors by two threads."""
    import ggml as g

    context = g.ggml_init(g.ggml_init_params(mem_size=1 << 20, mem_buffer=None, no_alloc=True))
    graph, kept = g.ggml_new_graph_custom(context, 32, False), []

    def tensor(array, kind, *ne):
        made = g.ggml_new_tensor_4d(context, kind, *ne, *[1] * (4 - len(ne)))
        made.contents.data = array.ctypes.data
        kept.append(array)
        return made

    rows, results = np.arange(arrays[0].shape[1], dtype=np.int32), []
    positions = tensor(rows, g.GGML_TYPE_I32, rows.size)
    for a, w in zip(arrays, weights, strict=True):
        x = tensor(a, g.GGML_TYPE_F32, *a.shape[::-1])
        steps = [g.ggml_rms_norm(context, x, EPS)]
        steps.append(g.ggml_mul(context, steps[-1], tensor(w, g.GGML_TYPE_F32, w.size)))
        steps.append(g.ggml_rope_ext(context, steps[-1], positions, None, 128, 2, 0, 1e4, 1, 0, 1, 32, 1))
        buffers = [np.empty_like(a) for _ in steps]
        for step, buffer in zip(steps, buffers, strict=True):
            step.contents.data = buffer.ctypes.data
        kept.extend(buffers)
        results.append(buffers[-1])
        g.ggml_build_forward_expand(graph, steps[-1])
    pool = g.ggml_threadpool_new(ctypes.byref(g.ggml_threadpool_params_default(2)))
    plan = g.ggml_graph_plan(graph, 2, pool)
    work = np.zeros(max(1, plan.work_size), np.uint8)
    plan.work_data = work.ctypes.data_as(type(plan.work_data))

    def call(kept=(kept, work, plan)):
        assert g.ggml_graph_compute(graph, ctypes.byref(plan)) == 0

    call()
    for a, b in zip(results, want, strict=True):
        assert nmse(a, b) < 1e-6
    return ("ggml graph", call)


def timed(call, count):
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", action="append")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 64, 512, 4096])
    parser.add_argument("--type", choices=DTYPES, nargs="+", default=list(DTYPES))
    parser.add_argument("--rounds", type=int, default=31)
    given = parser.parse_args()
    devices = [clrope.device(name) for name in given.device or ["intel", "pocl"]]
    for kind in given.type:
        for tokens in given.tokens:
            rng = np.random.default_rng(tokens)
            arrays = tuple(rng.standard_normal((1, tokens, n, 128)).astype(DTYPES[kind]) for n in (32, 8))
            weights = [rng.uniform(0.5, 1.5, 128).astype(np.float32) for _ in arrays]
            norms = tuple(clrope.Norm(w.astype(DTYPES[kind]), EPS) for w in weights)
            want = [reference.norm_rope(a, 0, CONFIG, n) for a, n in zip(arrays, norms, strict=True)]
            entries = [entry for device in devices for entry in opencl_entries(device, arrays, norms, want)]
            entries += torch_entries(arrays, weights, want)
            if kind == "f32":
                entries.append(ggml_entry(arrays, weights, want))
            report(kind, tokens, entries, given.rounds)
    return 0


def report(kind, tokens, entries, rounds) -> None:
    counts = {name: max(1, round(LEAST / min(timed(call, 1) for _ in range(3)))) for name, call in entries}
    times = {name: [] for name, _ in entries}
    for _ in range(rounds):
        for name, call in entries:
            time.sleep(SETTLES)
            timed(call, 3)  # its data and threads
            times[name].append(timed(call, counts[name]))
    print(f"\n{kind}, {tokens} tokens; microseconds (median), and times of one launch of each device: median of ratios")
    ones = [name for name, _ in entries if name.endswith("one launch")]
    for name, found in times.items():
        ratios = "".join(f"{np.median(np.divide(found, times[one])):9.2f} x {one.split()[0]}" for one in ones)
        print(f"{name:22}{np.median(found) * 1e6:12.1f}{ratios}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
