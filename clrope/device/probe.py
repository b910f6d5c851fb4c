"""The child's side: list the devices, or build and run small kernels on one and check every value they wrote.

Run by `child.run` in a process of its own, because drivers crash. It writes a stage before each step, so that a crash
can be reported with the place where it happened.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..kernels.division import MOST_ROUNDS
from .child import IMPORTING, Write, serve
from .info import kind_of, text
from .pocl import may_need_repair, repair_cpu, simulate_unknown_cpu
from .procmem import loaded_libraries

if TYPE_CHECKING:
    import pyopencl

Array = npt.NDArray[Any]
Stage = Callable[[str], None]

_N = 1024
_GUARD = 64  # elements after the output, which must stay unchanged
_INDEX = np.arange(_N)
#: Inputs of the kernels by OpenCL type.
_INPUTS: dict[str, Array] = {
    "float": (_INDEX % 97 - 48).astype(np.float32),
    "half": ((_INDEX % 61 - 30) / 4).astype(np.float16),
    "uint": (_INDEX * 2654435761 % 2**32).astype(np.uint32),
    "ushort": (_INDEX * 31 + 1024).astype(np.uint16),
}


class _Case(NamedTuple):
    """A kernel from x to y; type: of their elements; width: elements of a work-item i; want: y for x."""

    name: str
    type: str
    width: int
    body: str
    want: Callable[[Array], Array]


def _times(factor: float) -> Callable[[Array], Array]:
    return lambda x: (x.astype(np.float32) * np.float32(factor)).astype(x.dtype)


def _first_looped(x: Array, rounds: int) -> Array:
    y, k, one = x.copy(), 0, int(x[0])
    for _ in range(rounds):
        k = (k + k * 2654435761 + one) % 2**32
    y[0] = k
    return y


#: What every device must support: scalars, a small vector, 64-bit integers, half as a storage type, local memory,
#: long loops.
BASIC = (
    _Case("scalar", "float", 1, "y[i] = x[i] * 2.0f + (float)i;", lambda x: x * np.float32(2) + _INDEX.astype(x.dtype)),
    _Case("float4", "float", 4, "float4 v = vload4(i, x); vstore4(v.s3210 * 3.0f, i, y);",
          lambda x: x.reshape(-1, 4)[:, ::-1].ravel() * np.float32(3)),
    _Case("ulong", "uint", 1, "y[i] = (uint)((((ulong)x[i]) * 0x9E3779B97F4A7C15UL) >> 32);",
          lambda x: (x.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)).astype(np.uint32)),
    _Case("half", "half", 1, "vstore_half_rte(vload_half(i, x) * 1.5f, i, y);", _times(1.5)),
    _Case("local", "float", 1, "__local float t[16]; size_t l = get_local_id(0); t[l] = x[i]; "
          "barrier(CLK_LOCAL_MEM_FENCE); y[i] = t[15 - l];", lambda x: x.reshape(-1, 16)[:, ::-1].ravel()),
    # The first work-item makes as many rounds of a loop as any of the package's kernels.
    _Case("loop", "uint", 1, f"uint k = 0; for (uint j = i ? 1u : {MOST_ROUNDS}u; j > 0; --j) "
          "k += k * 2654435761u + x[i]; y[i] = k;", lambda x: _first_looped(x, MOST_ROUNDS)),
)  # fmt: skip

#: Processor seconds of a trial with wide vectors; it takes 1 to 2.
WIDE_SECONDS = 6
#: Vectors as wide as OpenCL has them: a compiler set to the wrong CPU fails here first, or silently does nothing.
WIDE = (
    *(_Case(f"float{n}", "float", n, f"vstore{n}(vload{n}(i, x) * 3.0f, i, y);", _times(3)) for n in (4, 8, 16)),
    _Case("ushort16", "ushort", 16, "uint16 u = convert_uint16(vload16(i, x)); "
          "float16 f = as_float16((u & (uint16)0x7fffu) << (uint16)13); u = as_uint16(f * 1.0f) >> (uint16)13; "
          "vstore16(select(convert_ushort16(u), (ushort16)7, (ushort16)0) + (ushort16)1, i, y);",
          lambda x: (x & np.uint16(0x7FFF)) + np.uint16(1)),
    _Case("half16", "half", 16, "vstore_half16_rte(vload_half16(i, x) * 1.5f, i, y);", _times(1.5)),
)  # fmt: skip


def source(cases: Sequence[_Case]) -> str:
    """Return the program of some kernels, named `probe_<name>`."""
    return "".join(
        f"__kernel void probe_{case.name}(__global const {case.type} *x, __global {case.type} *y)\n"
        f"{{ size_t i = get_global_id(0); {case.body} }}\n"
        for case in cases
    )


COPY_SOURCE = r"""
__kernel void p_copy(__global const float4 *x, __global float4 *y) { size_t i = get_global_id(0); y[i] = x[i]; }
"""


class ProbeError(Exception):
    """A device gave no right answer; `cause` as in `Health`."""

    def __init__(self, cause: str, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause


def main() -> None:
    """Do one job in this process, which a driver may end."""
    serve(_work)


def _work(job: dict[str, Any], write: Write) -> dict[str, Any]:
    def stage(doing: str) -> None:
        write(stage=doing)

    stage(IMPORTING)
    home = os.environ.get("PYOPENCL_HOME")  # PyOpenCL's import sets it to its own folder
    import pyopencl as cl

    if home:
        os.environ["PYOPENCL_HOME"] = home
    stage("loading the drivers")
    platforms = list_platforms(cl)
    if job["job"] == "enumerate":
        found = [entry for platform in platforms for entry in _device_entries(cl, platform, stage)]
        stage("looking for drivers that did not load")
        return {"devices": found, "unloaded": _unloaded(job["libraries"])}
    try:
        return _probe(cl, platforms, job, stage)
    except ProbeError as error:
        return {"cause": error.cause, "reason": str(error)}
    except cl.Error as error:
        return {"cause": "error", "reason": _first_line(error)}


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
    return [text(t) for t in (device.platform.name, device.name, device.driver_version)]


def _device_entries(cl: Any, platform: pyopencl.Platform, stage: Stage) -> list[dict[str, Any]]:
    stage(f"listing the devices of {text(platform.name)}")
    try:
        found = list_devices(cl, platform)
    except cl.Error:
        return []
    simulate_unknown_cpu(found)
    return [
        {
            "id": identity(d), "vendor": d.vendor, "version": d.version, "kind": kind_of(d.type),
            "platform_version": platform.version, "pocl_broken": may_need_repair(d),
        }
        for d in found
    ]  # fmt: skip


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


def _probe(cl: Any, platforms: list[pyopencl.Platform], job: dict[str, Any], stage: Stage) -> dict[str, Any]:
    stage("listing the devices")
    named = [platform for platform in platforms if text(platform.name) == job["id"][0]]
    found = [device for platform in named for device in list_devices(cl, platform)]
    simulate_unknown_cpu(found)
    same = [device for device in found if identity(device) == job["id"]]
    if len(same) <= job.get("ordinal", 0):
        raise ProbeError("hidden", "the device is not there in a fresh process")
    device = same[job.get("ordinal", 0)]
    problem = repair_cpu(device, job["pocl_cpu"]) if job.get("pocl_cpu") else ""
    if problem:
        raise ProbeError(
            "error", f"PoCL's record of the device does not look as expected ({problem}); it was left alone"
        )
    stage("making a context")
    context = cl.Context([device])  # kept here: a queue of Intel's runtime does not keep its context
    queue = cl.CommandQueue(context)
    if job.get("wide"):
        _limit_compiling()
    for cases in (BASIC, WIDE) if job.get("wide") else (BASIC,):
        _check_kernels(cl, queue, cases, stage)
    if not job.get("rate"):
        return {"cause": ""}
    stage("measuring the copy rate")
    return {"cause": "", "copy_gbs": _copy_rate(cl, queue)}


def _limit_compiling() -> None:
    """End this process where LLVM 14, told of the wrong CPU, compiles forever: by processor time, whatever the load."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (WIDE_SECONDS, WIDE_SECONDS + 5))


def _check_kernels(cl: Any, queue: Any, cases: Sequence[_Case], stage: Stage) -> None:
    stage("building the probe kernels")
    try:
        program = cl.Program(queue.context, source(cases)).build(cache_dir=False)
    except cl.RuntimeError as error:
        raise ProbeError("build", f"a small kernel does not build: {error_line(str(error))}") from None
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    for case in cases:
        stage(f"running the kernel {case.name}")
        x = _INPUTS[case.type]
        poison = np.frombuffer(b"\xa5" * ((_N + _GUARD) * x.itemsize), dtype=x.dtype)
        got = poison.copy()
        buffers = [cl.Buffer(queue.context, flags, hostbuf=contents) for contents in (x, got)]
        kernel = cl.Kernel(program, f"probe_{case.name}")
        kernel.set_args(*buffers)
        local = (16,) if case.name == "local" else None
        cl.enqueue_nd_range_kernel(queue, kernel, (_N // case.width,), local)
        cl.enqueue_copy(queue, got, buffers[1])
        queue.finish()
        check(case.name, got.view(np.uint8), case.want(x).view(np.uint8), poison.view(np.uint8), x.itemsize)


def check(kernel: str, got: Any, want: Any, poison: Any, itemsize: int) -> None:
    """Raise `ProbeError` unless a kernel wrote the bytes `want` and left the poison after them unchanged."""
    if np.array_equal(got[: want.size], poison[: want.size]):
        raise ProbeError("wrong", f"the kernel {kernel} silently did not run (its output is unchanged)")
    bad = np.flatnonzero(got[: want.size] != want)
    if bad.size:
        wrong = len({int(b) // itemsize for b in bad})
        raise ProbeError("wrong", f"the kernel {kernel} gave {wrong} wrong values of {want.size // itemsize}")
    if not np.array_equal(got[want.size :], poison[want.size :]):
        raise ProbeError("wrong", f"the kernel {kernel} wrote past the end of its output")


def _copy_rate(cl: Any, queue: Any) -> float | None:
    """Return GB/s (read + written) of a float4 copy: best of a few over 32 MiB, less on devices with less memory."""
    context, device = queue.context, queue.device
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


def error_line(message: str) -> str:
    """Return the first line with 'error:' of a compiler's or driver's message, else its first line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["no message"]
    return next((line for line in lines if "error:" in line.lower()), lines[0])[:300]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
