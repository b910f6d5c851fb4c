"""The child's side of a check against a machine: runs one call of a kernel with its copies recorded."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from ...device.child import Write
from ...device.child import serve as serve_child
from ...errors import BuildError, DeviceError, RopeError, UnsupportedError
from ...kernels.launch import LocalBytes
from ...operation import Rope
from ...runtime import queue_for, runtime_for
from ...suite.case import parse_case
from ...suite.case_memory import Memory
from ...suite.rope_trial import RopeTrial, flat
from ...testing import NAN_POISON, POISON, nmse
from ..guarded_arrays import GuardedArrays
from ..lab_kernel import load_file
from ..lab_trial import OWN_ANGLES_LIMIT
from ..lab_worker import LabJob, find_device
from .recorder import MOST_RECORDS, PRINTING, READER, SHIM, WORDS, printed_records


class NpuJob(msgspec.Struct, frozen=True):
    """What a child has to do: one call of a kernel, given as a case's line."""

    kernel: LabJob
    call: str


class NpuRecord(msgspec.Struct, frozen=True):
    """What a child has seen.

    problem: why there is nothing else. static_local, local: bytes of local memory in the kernel, and of its arguments.
    groups: work-groups by the launch's sizes, 0 if the driver chose. records: calls of copies and waits, each `WORDS`
    numbers; lost: those without a place. y_bytes, itemsize: of the output. error, limit: NMSE of the result.
    """

    problem: str = ""
    static_local: int = 0
    local: int = 0
    groups: int = 0
    records: list[list[int]] = []
    lost: int = 0
    y_bytes: int = 0
    itemsize: int = 4
    error: float = 0.0
    limit: float = 0.0


def main() -> None:
    """Do one job in this process, which the kernel may end."""
    serve_child(_work)


def _work(data: dict[str, Any], write: Write) -> dict[str, Any]:
    job = msgspec.convert(data, NpuJob)
    write(stage="looking for the device")
    device = find_device(job.kernel)
    write(stage="running the kernel")
    try:
        made = _recorded(job, device)
    except BuildError as error:
        made = NpuRecord("does not build with the recorder before it:\n" + error.log.strip()[:4000])
    except UnsupportedError as error:
        made = NpuRecord(str(error))
    except DeviceError as error:
        made = NpuRecord(f"driver error: {error}")
    except RopeError as error:
        made = NpuRecord(str(error))
    found: dict[str, Any] = msgspec.to_builtins(made)
    return found


@contextmanager
def _printed() -> Iterator[list[str]]:
    """Give what the process prints meanwhile, in C too, as the only entry of a list."""
    out: list[str] = []
    with tempfile.TemporaryFile() as file:
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


def _recorded(job: NpuJob, device: Any) -> NpuRecord:
    """Return what is recorded in the program's memory; where that is not possible, what the kernel prints."""
    try:
        made = _record(job, device, printing=False)
    except BuildError:
        return _record(job, device, printing=True)
    return made if made.records or made.problem else _record(job, device, printing=True)


def _record(job: NpuJob, device: Any, printing: bool) -> NpuRecord:
    import pyopencl as cl

    k = job.kernel
    file = load_file(k.path, k.contract, options=k.options, kernel=k.kernel)
    case = parse_case(job.call)
    trial = RopeTrial(case, k.seed)
    function = file.signature(case.type, trial.config.mode).name
    options = file.options
    if printing:
        options = (*options, PRINTING)
    elif not any("-cl-std=" in option for option in (*options, *file.contract.options)):
        options = (*options, "-cl-std=CL2.0")
    recorded = replace(
        file, source=f'{SHIM}#line 1 "{file.path.name}"\n{file.source}', options=options, kernel=function
    )
    queue, kernel = queue_for(device), recorded.kernel_object()
    offsets = not recorded.for_config(trial.config).needs_copies
    source = GuardedArrays(queue, trial.x.parent, trial.x.views, offsets=offsets, byte=POISON)
    source.upload()
    out, target = trial.x, source
    if not case.inplace:
        out = Memory(case, case.v if case.o else 0)
        out.poison(NAN_POISON)
        target = GuardedArrays(queue, out.parent, out.views, offsets=offsets, byte=NAN_POISON)
        target.upload()
    op = Rope(trial.config, device=queue, kernel=kernel)
    plan = op.plan(source.arrays[0], trial.positions, case.forward, target.arrays[0], case.lo)
    (spec,) = plan.specs
    program = runtime_for(device).program(spec)
    # Of a kernel object without arguments: some drivers count those in local memory, others do not.
    fresh = cl.Kernel(program, spec.function)
    static = int(fresh.get_work_group_info(cl.kernel_work_group_info.LOCAL_MEM_SIZE, device.cl_device))
    with _printed() as text:
        plan.run()
        queue.finish()
    target.download()
    if printing:
        records, lost = printed_records(text[0]), 0
    else:
        records, lost = _logged(queue, program)
    sizes = spec.local_size
    groups = int(np.prod([a // b for a, b in zip(spec.global_size, sizes, strict=True)])) if sizes else 0
    error = nmse(flat([np.array(view) for view in out.views]), trial.want)
    own = recorded.for_config(trial.config).angles == "positions"
    return NpuRecord(
        "", static, sum(v.size for _, v in spec.arguments if isinstance(v, LocalBytes)), groups, records,
        lost, sum(view.nbytes for view in out.views), out.views[0].itemsize,
        error if np.isfinite(error) else 1e300, max(trial.limit, OWN_ANGLES_LIMIT) if own else trial.limit,
    )  # fmt: skip


def _logged(queue: Any, program: Any) -> tuple[list[list[int]], int]:
    """Return the records in the program's memory, and the number of those without a place."""
    import pyopencl as cl

    number = np.zeros(1, np.uint32)
    log = np.zeros((MOST_RECORDS, WORDS), np.uint64)
    words, count = (cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, a.nbytes) for a in (log, number))
    cl.Kernel(program, READER)(queue, (log.size,), None, words, count, np.uint32(log.size))
    cl.enqueue_copy(queue, number, count)
    cl.enqueue_copy(queue, log, words)
    kept = min(int(number[0]), MOST_RECORDS)
    return log[:kept].tolist(), int(number[0]) - kept
