"""The child's side: list the devices, or build and run small kernels on one and check every value they wrote.

Run by `child.run` in a process of its own, because drivers crash. Writes one JSON object a line to the result file:
`{"stage": ...}` before each step, so that a crash can be told by where it happened, and `{"answer": ...}` at the end.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .child import IMPORTING
from .info import kind_of
from .pocl import may_need_repair, repair_cpu, simulate_unknown_cpu
from .procmem import loaded_libraries

if TYPE_CHECKING:
    import pyopencl

_N = 1024
_GUARD = 64  # elements behind the output which must stay as they were

#: What every device must do: scalars, a small vector, 64-bit integers, half as a storage type, local memory.
BASIC_SOURCE = r"""
__kernel void p_scalar(__global const float *x, __global float *y)
{ size_t i = get_global_id(0); y[i] = x[i] * 2.0f + (float)i; }
__kernel void p_float4(__global const float *x, __global float *y)
{ size_t i = get_global_id(0); float4 v = vload4(i, x); vstore4(v.s3210 * 3.0f, i, y); }
__kernel void p_ulong(__global const uint *x, __global uint *y)
{ size_t i = get_global_id(0); y[i] = (uint)((((ulong)x[i]) * 0x9E3779B97F4A7C15UL) >> 32); }
__kernel void p_half(__global const half *x, __global half *y)
{ size_t i = get_global_id(0); vstore_half_rte(vload_half(i, x) * 1.5f, i, y); }
__kernel void p_local(__global const float *x, __global float *y)
{ __local float t[16]; size_t l = get_local_id(0); t[l] = x[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE); y[get_global_id(0)] = t[15 - l]; }
"""

#: Vectors as wide as OpenCL has them: a compiler set to the wrong CPU fails here first, or silently does nothing.
WIDE_SOURCE = r"""
__kernel void w_float4(__global const float *x, __global float *y)
{ size_t i = get_global_id(0); vstore4(vload4(i, x) * 3.0f, i, y); }
__kernel void w_float8(__global const float *x, __global float *y)
{ size_t i = get_global_id(0); vstore8(vload8(i, x) * 3.0f, i, y); }
__kernel void w_float16(__global const float *x, __global float *y)
{ size_t i = get_global_id(0); vstore16(vload16(i, x) * 3.0f, i, y); }
__kernel void w_ushort16(__global const ushort *x, __global ushort *y)
{ size_t i = get_global_id(0);
  uint16 u = convert_uint16(vload16(i, x)); float16 f = as_float16((u & (uint16)0x7fffu) << (uint16)13);
  u = as_uint16(f * 1.0f) >> (uint16)13;
  vstore16(select(convert_ushort16(u), (ushort16)7, (ushort16)0) + (ushort16)1, i, y); }
__kernel void w_half16(__global const half *x, __global half *y)
{ size_t i = get_global_id(0); vstore_half16_rte(vload_half16(i, x) * 1.5f, i, y); }
"""

COPY_SOURCE = r"""
__kernel void p_copy(__global const float4 *x, __global float4 *y) { size_t i = get_global_id(0); y[i] = x[i]; }
"""


class ProbeError(Exception):
    """A device gave no right answer; `cause` as in `Health`."""

    def __init__(self, cause: str, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause


def main(job_path: str, result_path: str) -> None:
    """Do one job and leave by `os._exit`: a driver's tear-down may crash after the answer is known."""
    with open(job_path, encoding="utf-8") as file:
        job: dict[str, Any] = json.load(file)
    with open(result_path, "w", encoding="utf-8") as out:

        def write(**entry: Any) -> None:
            out.write(json.dumps(entry) + "\n")
            out.flush()

        def stage(text: str) -> None:
            write(stage=text)

        _no_core_file()
        stage(IMPORTING)
        import pyopencl as cl

        if job.get("pyopencl_home"):
            os.environ["PYOPENCL_HOME"] = job["pyopencl_home"]
        stage("loading the drivers")
        platforms = list_platforms(cl)
        if job["job"] == "enumerate":
            entries = [_platform_entry(cl, p, stage) for p in platforms]
            stage("looking for drivers that did not load")
            write(answer={"platforms": entries, "unloaded": _unloaded(job["libraries"])})
        else:
            try:
                write(answer=_probe(cl, platforms, job, stage))
            except ProbeError as error:
                write(answer={"cause": error.cause, "reason": str(error)})
            except cl.Error as error:
                write(answer={"cause": "error", "reason": _first_line(error)})
    os._exit(0)


def list_platforms(cl: Any) -> list[pyopencl.Platform]:
    """Return all platforms; none is an empty list instead of the loader's error."""
    try:
        return list(cl.get_platforms())
    except cl.LogicError as error:
        if "PLATFORM_NOT_FOUND" in str(error):
            return []
        raise


def list_devices(cl: Any, platform: pyopencl.Platform) -> list[pyopencl.Device]:
    """Return all devices of a platform; none is an empty list instead of the loader's error."""
    try:
        return list(platform.get_devices())
    except cl.Error as error:
        if "DEVICE_NOT_FOUND" in str(error) or "INVALID_DEVICE_TYPE" in str(error):
            return []
        raise


def identity(device: pyopencl.Device) -> list[str]:
    """Return what names a device across processes; several may share it and are counted in order."""
    return [t.strip(" \0") for t in (device.platform.name, device.name, device.driver_version)]


def _platform_entry(cl: Any, platform: pyopencl.Platform, stage: Callable[[str], None]) -> dict[str, Any]:
    name = platform.name.strip(" \0")
    stage(f"listing the devices of {name}")
    try:
        found = list_devices(cl, platform)
    except cl.Error as error:
        return {"name": name, "version": platform.version, "devices": [], "error": _first_line(error)}
    simulate_unknown_cpu(found)
    devices = [
        {
            "id": identity(d), "vendor": d.vendor, "version": d.version, "kind": kind_of(d.type),
            "pocl_broken": may_need_repair(d),
        }
        for d in found
    ]  # fmt: skip
    return {"name": name, "version": platform.version, "devices": devices}


def _unloaded(libraries: list[str]) -> dict[str, str]:
    """Return the dynamic linker's message for each library that the loader could not load."""
    loaded = {os.path.basename(path) for _, _, path in loaded_libraries()}
    out = {}
    for library in libraries if loaded else []:
        if os.path.basename(os.path.realpath(library)) not in loaded:
            try:
                ctypes.CDLL(library)
            except OSError as error:
                out[library] = _first_line(error)
    return out


def _probe(
    cl: Any, platforms: list[pyopencl.Platform], job: dict[str, Any], stage: Callable[[str], None]
) -> dict[str, Any]:
    stage("listing the devices")
    same: list[pyopencl.Device] = []
    for platform in platforms:
        if platform.name.strip(" \0") == job["id"][0]:
            found = list_devices(cl, platform)
            simulate_unknown_cpu(found)
            same += [d for d in found if identity(d) == job["id"]]
    if len(same) <= job.get("ordinal", 0):
        raise ProbeError("hidden", "the device is not there in a fresh process")
    device = same[job.get("ordinal", 0)]
    if job.get("pocl_cpu") and not repair_cpu(device, job["pocl_cpu"]):
        raise ProbeError("error", "PoCL's record of the device does not look as expected; left alone")
    stage("making a context")
    context = cl.Context([device])
    queue = cl.CommandQueue(context)
    _check_kernels(cl, context, queue, BASIC_SOURCE, _basic_cases(), stage)
    if job.get("wide"):
        _check_kernels(cl, context, queue, WIDE_SOURCE, _wide_cases(), stage)
    rate = None
    if job.get("rate"):
        stage("measuring the copy rate")
        rate = _copy_rate(cl, context, queue, device, stage)
    return {"cause": "", "copy_gbs": rate}


def _basic_cases() -> list[tuple[str, int, Any, Any]]:
    import numpy as np

    i = np.arange(_N)
    x = (i % 97 - 48).astype(np.float32)
    u = (i * 2654435761 % 2**32).astype(np.uint32)
    h = ((i % 61 - 30) / 4).astype(np.float16)
    product = u.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return [
        ("p_scalar", 1, x, x * np.float32(2) + i.astype(np.float32)),
        ("p_float4", 4, x, x.reshape(-1, 4)[:, ::-1].ravel() * np.float32(3)),
        ("p_ulong", 1, u, (product >> np.uint64(32)).astype(np.uint32)),
        ("p_half", 1, h, (h.astype(np.float32) * np.float32(1.5)).astype(np.float16)),
        ("p_local", 1, x, x.reshape(-1, 16)[:, ::-1].ravel()),
    ]


def _wide_cases() -> list[tuple[str, int, Any, Any]]:
    import numpy as np

    i = np.arange(_N)
    x = (i % 97 - 48).astype(np.float32)
    h = ((i % 61 - 30) / 4).astype(np.float16)
    u = (i * 31 + 1024).astype(np.uint16)
    return [
        ("w_float4", 4, x, x * np.float32(3)),
        ("w_float8", 8, x, x * np.float32(3)),
        ("w_float16", 16, x, x * np.float32(3)),
        ("w_ushort16", 16, u, (u & 0x7FFF) + np.uint16(1)),
        ("w_half16", 16, h, (h.astype(np.float32) * np.float32(1.5)).astype(np.float16)),
    ]


def _check_kernels(
    cl: Any, context: Any, queue: Any, source: str, cases: list[tuple[str, int, Any, Any]], stage: Callable[[str], None]
) -> None:
    import numpy as np

    stage("building the probe kernels")
    try:
        program = cl.Program(context, source).build(cache_dir=False)
    except cl.RuntimeError as error:
        raise ProbeError("build", f"a small kernel does not build: {_error_line(str(error))}") from None
    flags = cl.mem_flags
    for name, width, x, want in cases:
        stage(f"running the kernel {name[2:]}")
        poison = np.frombuffer(b"\xa5" * ((_N + _GUARD) * want.itemsize), dtype=want.dtype)
        got = poison.copy()
        source_buffer = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=x)
        result_buffer = cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=got)
        kernel = cl.Kernel(program, name)
        kernel.set_args(source_buffer, result_buffer)
        local = (16,) if name == "p_local" else None
        cl.enqueue_nd_range_kernel(queue, kernel, (_N // width,), local)
        cl.enqueue_copy(queue, got, result_buffer)
        queue.finish()
        check(name[2:], got.view(np.uint8), want.view(np.uint8), poison.view(np.uint8), want.itemsize)


def check(kernel: str, got: Any, want: Any, poison: Any, itemsize: int) -> None:
    """Compare the bytes a kernel left: all of `want`, then the poison behind it; raise `ProbeError` otherwise."""
    import numpy as np

    if np.array_equal(got[: want.size], poison[: want.size]):
        raise ProbeError("wrong", f"the kernel {kernel} silently did not run (its output was left as it was)")
    bad = np.flatnonzero(got[: want.size] != want)
    if bad.size:
        wrong = len({int(b) // itemsize for b in bad})
        raise ProbeError("wrong", f"the kernel {kernel} gave {wrong} wrong values of {want.size // itemsize}")
    if not np.array_equal(got[want.size :], poison[want.size :]):
        raise ProbeError("wrong", f"the kernel {kernel} wrote behind its output")


def _copy_rate(cl: Any, context: Any, queue: Any, device: Any, stage: Callable[[str], None]) -> float | None:
    """Return GB/s (read + written) of a float4 copy: best of a few over 32 MiB, less on small devices."""
    try:
        kernel = cl.Kernel(cl.Program(context, COPY_SOURCE).build(cache_dir=False), "p_copy")
        best = 0.0
        for size in (1 << 20, 32 << 20):
            if size > device.max_mem_alloc_size or 4 * size > device.global_mem_size:
                break
            buffers = [cl.Buffer(context, cl.mem_flags.READ_WRITE, size) for _ in range(2)]
            for buffer in buffers:
                cl.enqueue_fill_buffer(queue, buffer, b"\0\0\0\0", 0, size)
            kernel.set_args(*buffers)
            best, begin = 0.0, time.perf_counter()
            for run in range(12):
                start = time.perf_counter()
                cl.enqueue_nd_range_kernel(queue, kernel, (size // 16,), None)
                queue.finish()
                end = time.perf_counter()
                if run or end - start > 0.2:  # the first one compiles, on some drivers
                    best = max(best, 2 * size / (end - start) / 1e9)
                if run and end - begin > 0.5:
                    break
            if best < 0.5:  # a simulator: 32 MiB would take minutes
                break
    except cl.Error:
        return None  # right but short of memory: still healthy
    return round(best, 3) if best else None


def _error_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = next((line for line in lines if "error:" in line.lower()), None)
    return (found or (lines[0] if lines else "no message"))[:300]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _no_core_file() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        pass
