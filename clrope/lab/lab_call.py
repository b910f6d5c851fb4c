"""One call of a kernel file for a case, in this process: built, run, what it printed, and how wrong its output is."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..call.runtime import queue_for, runtime_for
from ..operation import Rope
from ..suite.case import parse_case
from ..suite.case_memory import Memory
from ..suite.rope_trial import RopeTrial
from ..testing import NAN_POISON, POISON
from .guarded_arrays import GuardedArrays
from .lab_kernel import load_file
from .lab_trial import OWN_ANGLES_LIMIT
from .lab_worker import LabJob

if TYPE_CHECKING:
    import pyopencl

    from ..device import DeviceInfo


class LabCall:
    """A call of a job's kernel for a case's line, with inputs of the job's seed and an output full of NaN.

    before: OpenCL C that is put before the source. options: besides the file's. exact: without guards around tensors.
    Raises `BuildError`, `UnsupportedError` for a case that the kernel cannot express, `DeviceError`.
    """

    def __init__(
        self, job: LabJob, line: str, device: DeviceInfo, *, before: str = "", options: Sequence[str] = (),
        exact: bool = False,
    ) -> None:  # fmt: skip
        file = load_file(job.path, job.contract, options=job.options, kernel=job.kernel, device=device)
        case = self.case = parse_case(line)
        self.trial = RopeTrial(case, job.seed)
        function = file.signature(case.type, self.trial.config.mode).name
        if before:
            source = before + file.numbered_source
            file = replace(file, source=source, options=(*file.options, *options), kernel=function)
        self._kernel = file.for_config(self.trial.config)
        self._device, self.queue = device, queue_for(device)
        offsets = exact or not self._kernel.needs_copies
        x = self.trial.x
        source_arrays = GuardedArrays(self.queue, x.parent, x.views, offsets=offsets, byte=POISON, exact=exact)
        source_arrays.upload()
        self._out, self._target = x, source_arrays
        if not case.inplace:
            self._out = out = Memory(case, case.v if case.o else 0)
            out.poison(NAN_POISON)
            self._target = GuardedArrays(
                self.queue, out.parent, out.views, offsets=offsets, byte=NAN_POISON, exact=exact
            )
            self._target.upload()
        op = Rope(self.trial.config, device=self.queue, kernel=file.kernel_object())
        self._plan = op.plan(
            source_arrays.arrays[0], self.trial.positions, case.forward, self._target.arrays[0], case.lo
        )
        (self.spec,) = self._plan.specs

    @cached_property
    def program(self) -> pyopencl.Program:
        """The program that was built."""
        return runtime_for(self._device).program(self.spec)

    @property
    def y_bytes(self) -> int:
        """Bytes of the output's elements."""
        return sum(view.nbytes for view in self._out.views)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self._out.views[0].itemsize)

    def run(self) -> str:
        """Make the call, wait for it, and return what the process printed meanwhile."""
        with _printed() as text:
            self._plan.run()
            self.queue.finish()
        self._target.download()
        return text[0]

    def result(self) -> tuple[float, float]:
        """Return the output's NMSE, 1e300 if it is not finite, and its limit."""
        error, _ = self.trial.error([np.array(view) for view in self._out.views], self.trial.want)
        own = self._kernel.angles == "positions"
        limit = max(self.trial.limit, OWN_ANGLES_LIMIT) if own else self.trial.limit
        return (error if np.isfinite(error) else 1e300), limit

    def least_read(self) -> int:
        """Return the bytes that the kernel has to read: x, and each table, row of positions or array once."""
        tokens, real = self.case.shape["s"], np.dtype("f8" if self.case.type == "f64" else "f4").itemsize
        axes = self.trial.config.position_axes
        rows = max(tokens, np.size(self.trial.positions) // axes)
        found = self.y_bytes
        for name, value in self.spec.arguments:
            if name in ("cosine", "sine"):
                found += rows * self.trial.config.n_pairs(self.case.shape["d"]) * real
            elif name == "positions":
                found += rows * axes * np.dtype(value.dtype).itemsize
            elif getattr(value, "buffer", False):
                found += len(value.data)
        return found


@contextmanager
def _printed() -> Iterator[list[str]]:
    """Give what the process prints meanwhile, in C too, as the only entry of a list."""
    out: list[str] = []
    with tempfile.TemporaryFile() as file:
        ctypes.CDLL(None).fflush(None)
        before = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            yield out
        finally:
            ctypes.CDLL(None).fflush(None)
            os.dup2(before, 1)
            os.close(before)
        file.seek(0)
        out.append(file.read().decode(errors="replace"))


def local_bytes(call: LabCall) -> int:
    """Return the bytes of local memory in the kernel itself, without its arguments."""
    import pyopencl as cl

    # Of a kernel object without arguments: some drivers count those in local memory, others do not.
    fresh: Any = cl.Kernel(call.program, call.spec.function)
    return int(fresh.get_work_group_info(cl.kernel_work_group_info.LOCAL_MEM_SIZE, call.queue.device))
