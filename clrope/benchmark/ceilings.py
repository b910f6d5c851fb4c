"""Ceilings of the rotation: how fast a device moves bytes, and how fast it launches an empty kernel.

Each kind (the driver's copy, a copy kernel, a copy with non-temporal stores, scaling in place) is tried in several
variants on the buffers of the workload. The best of each are then timed interleaved with the rotation.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import BuildError
from ..kernels.build import build
from ..testing import POISON, count_differing
from .audit import OutputCheck
from .buffers import Bytes, DeviceSets
from .entry import BenchmarkEntry, WrongResultError, failure
from .workloads import Workload

if TYPE_CHECKING:
    import pyopencl

    from ..device import DeviceInfo

Name = Literal["copy", "stream", "scale", "windows"]
Access = Literal["vload", "vector"]
WIDTHS = (4, 8, 16)
#: Bytes that a work-item moves on CPUs. Elsewhere neighbouring work-items move neighbouring vectors.
CPU_CHUNKS = (1 << 10, 1 << 12, 1 << 14, 1 << 16)
#: Variants of a kind to time, and tries to find them.
KEPT = 2
TRIES = 4


@dataclass(frozen=True)
class CeilingVariant:
    """How a kernel is written: words per vector, access, bytes per work-item (0: one vector), work-group size."""

    name: Name
    width: int
    access: Access
    chunk: int
    local: int | None

    def __str__(self) -> str:
        each = f" {self.chunk >> 10} KiB" if self.chunk else ""
        group = f" group {self.local}" if self.local not in (None, 1) else ""
        return f"{self.name} {self.access}{self.width}{each}{group}"

    @property
    def options(self) -> tuple[str, ...]:
        """Compiler options."""
        named = {"-DVECTORS": self.access == "vector", "-DSTREAM": self.name == "stream"}
        return (f"-DW={self.width}", *(option for option, given in named.items() if given))


def variants(name: Name, kind: str) -> list[CeilingVariant]:
    """Return the variants to try on a device of that kind."""
    if kind == "cpu":
        both: tuple[Access, ...] = ("vload", "vector")
        return [CeilingVariant(name, *parts, 1) for parts in itertools.product(WIDTHS, both, CPU_CHUNKS)]
    return [
        CeilingVariant(name, width, "vector", 0, local) for width, local in itertools.product((2, *WIDTHS), (64, 256))
    ]


class Ceilings:
    """The ceilings of one device, with the programs and the best variants by the number of bytes."""

    def __init__(self, device: DeviceInfo, queue: pyopencl.CommandQueue, label: str) -> None:
        self._device, self._queue, self._label = device, queue, label
        self._programs: dict[tuple[str, ...], Any] = {}
        self._best: dict[tuple[Name, int, int], list[CeilingVariant]] = {}
        self.notes: dict[str, str] = {}

    def entries(self, sets: DeviceSets) -> tuple[list[BenchmarkEntry], list[dict[str, Any]]]:
        """Return the ceilings of the sets' workload on their queue (copies, or scaling in place), and failures."""
        workload = sets.inputs.workload
        copies, failures = [] if workload.in_place else [self._driver_copy(sets)], []
        names: tuple[Name, ...] = ("copy", "stream")
        if workload.in_place:
            names = ("scale",) if _window(workload) is None else ("windows", "scale")
        for name in names:
            made, failed = self._kernels(name, sets)
            copies += made
            failures += failed
        return copies, failures

    def _driver_copy(self, sets: DeviceSets) -> BenchmarkEntry:
        import pyopencl as cl

        queue, size = sets.queue, sets.inputs.block.size

        def call(i: int) -> Any:
            event = cl.enqueue_copy(queue, sets.y_blocks[i], sets.x_blocks[i], byte_count=size)
            queue.finish()
            return [event]

        return BenchmarkEntry(
            "ceiling", "enqueue_copy", call, lambda: _check_copy(sets, call), sets.count, 2 * size, self._label,
            outputs=OutputCheck(sets),
        )  # fmt: skip

    def _kernels(self, name: Name, sets: DeviceSets) -> tuple[list[BenchmarkEntry], list[dict[str, Any]]]:
        size = sets.inputs.block.size
        key = (name, sets.inputs.workload.bytes_moved if name == "windows" else size, sets.count)
        known = self._best.get(key)
        tried: list[tuple[float, BenchmarkEntry, CeilingVariant]] = []
        reasons: dict[str, str] = {}
        for variant in known if known is not None else variants(name, self._device.kind):
            try:
                entry = self._kernel(variant, sets)
                entry.check()
            except (BuildError, WrongResultError) as error:
                reasons[str(variant)] = str(error).strip().splitlines()[-1]
                continue
            tried.append((0.0 if known is not None else _quick(entry), entry, variant))
        kept = sorted(tried, key=lambda found: found[0])[:KEPT]
        self._best[key] = [variant for _, _, variant in kept]
        self.notes.update(reasons)
        if not kept:
            why = "; ".join(f"{s}: {r}" for s, r in reasons.items())
            return [], [failure("ceiling", name, "error", why or "no variant", self._label)]
        return [entry for _, entry, _ in kept], []

    def _program(self, options: tuple[str, ...]) -> Any:
        if options not in self._programs:
            source = (Path(__file__).parent / "ceilings.cl").read_text(encoding="utf-8")
            self._programs[options] = build(self._queue.context, self._queue.device, source, options)
        return self._programs[options]

    def _kernel(self, variant: CeilingVariant, sets: DeviceSets) -> BenchmarkEntry:
        import pyopencl as cl

        size = sets.inputs.block.size
        unit = 4 * variant.width
        window = _window(sets.inputs.workload) if variant.name == "windows" else None
        copies, options = variant.name in ("copy", "stream"), variant.options
        if window is not None:
            unit = window[0]
            options += (f"-DROW={window[0] // 4}", f"-DWINDOW={window[1] // 4}")
        units = size // unit
        each = max(1, variant.chunk // unit)
        items = -(-units // each)
        local = (variant.local,) if variant.local is not None and items % variant.local == 0 else None
        queue, program = sets.queue, self._program(options)
        numbers = [np.uint64(units), np.uint64(each)]
        kernels = []
        for x, y in zip(sets.x_blocks, sets.y_blocks, strict=True):
            kernel = cl.Kernel(program, variant.name)
            kernel.set_args(*([x, y] if copies else [y, np.float32(1)]), *numbers)
            kernels.append(kernel)

        def call(i: int) -> Any:
            event = cl.enqueue_nd_range_kernel(queue, kernels[i], (items,), local)
            queue.finish()
            return [event]

        def check() -> None:
            return _check_copy(sets, call) if copies else _check_scale(sets, window, kernels[0], call)

        moved = 2 * size if window is None else sets.inputs.workload.bytes_moved
        return BenchmarkEntry(
            "ceiling", variant.name, call, check, sets.count, moved, self._label, str(variant),
            outputs=OutputCheck(sets),
        )  # fmt: skip

    def launches(self, queue: pyopencl.CommandQueue, outputs: OutputCheck | None = None) -> list[BenchmarkEntry]:
        """Return launches of an empty kernel with bound arguments: by the loader's C functions, by PyOpenCL.

        outputs: what is done between the calls that they are compared with.
        """
        import pyopencl as cl

        kernel = cl.Kernel(self._program(("-DW=4",)), "nothing")
        buffer = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 64)
        kernel.set_args(buffer)

        def by_pyopencl(_: int) -> None:
            cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
            queue.finish()

        out = []
        try:
            library = ctypes.CDLL(self._device.loader)
            enqueue, finish = library.clEnqueueNDRangeKernel, library.clFinish
        except (OSError, AttributeError) as error:
            self.notes["raw launch"] = f"the loader {Path(self._device.loader).name!r} cannot be called: {error}"
        else:
            pointer, one = ctypes.c_void_p, (ctypes.c_size_t * 1)(1)
            enqueue.argtypes = [pointer] * 2 + [ctypes.c_uint] + [pointer] * 3 + [ctypes.c_uint] + [pointer] * 2
            finish.argtypes = [pointer]
            # OpenCL does not keep a kernel's arguments alive.
            handles = pointer(queue.int_ptr), pointer(kernel.int_ptr), buffer

            def raw(_: int) -> None:
                code = enqueue(handles[0], handles[1], 1, None, one, one, 0, None, None)
                if code or finish(handles[0]):
                    raise RuntimeError(f"clEnqueueNDRangeKernel: error {code}")

            out.append(BenchmarkEntry("launch", "raw launch", raw, lambda: raw(0), 1, 0, self._label, outputs=outputs))
        out.append(
            BenchmarkEntry(
                "launch", "pyopencl launch", by_pyopencl, lambda: by_pyopencl(0), 1, 0, self._label, outputs=outputs
            )
        )
        return out


def _window(workload: Workload) -> tuple[int, int] | None:
    """Return the bytes of a row, and of its rotated part; None if that is all of it, or no whole words."""
    row = workload.tensors[0][3] * workload.itemsize
    rotated = 2 * workload.config.n_pairs(None) * workload.itemsize
    if rotated >= row or row % 4 or rotated % 4 or any(t[3] != workload.tensors[0][3] for t in workload.tensors):
        return None
    return row, rotated


def _quick(entry: BenchmarkEntry) -> float:
    times = []
    for _ in range(TRIES):
        number = entry.next_set()
        start = time.perf_counter()
        entry.call(number)
        times.append(time.perf_counter() - start)
    return min(times)


def _check_copy(sets: DeviceSets, call: Callable[[int], Any]) -> None:
    number = sets.count - 1
    sets.reset(number)
    call(number)
    wrong = count_differing(sets.read(number).view(np.uint32), sets.inputs.block.view(np.uint32))
    if wrong:
        raise WrongResultError(f"{wrong} of {sets.inputs.block.size // 4} words were not copied")


def _check_scale(sets: DeviceSets, window: tuple[int, int] | None, kernel: Any, call: Callable[[int], Any]) -> None:
    before = sets.inputs.block.view(np.float32)
    row, width = (1, 1) if window is None else (window[0] // 4, window[1] // 4)
    for factor in (2.0, 1.0):
        sets.reset(0)
        kernel.set_arg(1, np.float32(factor))
        call(0)
        want = before.copy()
        rows = want[: want.size // row * row].reshape(-1, row)
        with np.errstate(all="ignore"):
            rows[:, :width] *= np.float32(factor)
            wrong = count_differing(sets.read(0).view(np.float32), want)
        sets.reset(0)
        if wrong:
            raise WrongResultError(f"{wrong} of {before.size} words are not {factor} times what they were")


def host_copy(x_blocks: list[Bytes], y_blocks: list[Bytes]) -> BenchmarkEntry:
    """Return the host's copy by one thread: `numpy.copyto`, which is memcpy."""

    def call(i: int) -> None:
        np.copyto(y_blocks[i], x_blocks[i])

    def check() -> None:
        y_blocks[0].fill(POISON)
        call(0)
        if not np.array_equal(y_blocks[0], x_blocks[0]):
            raise WrongResultError("numpy.copyto did not copy")

    return BenchmarkEntry("host", "memcpy", call, check, len(x_blocks), 2 * x_blocks[0].size)
