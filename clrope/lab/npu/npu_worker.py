"""The child's side of a check against a machine: runs one call of a kernel with its copies recorded."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from ...device.child import Write
from ...device.child import serve as serve_child
from ...errors import BuildError, DeviceError, RopeError, UnsupportedError
from ...kernels.launch import LocalBytes
from ..lab_call import LabCall, local_bytes
from ..lab_kernel import load_file
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


def _recorded(job: NpuJob, device: Any) -> NpuRecord:
    """Return what is recorded in the program's memory; where that is not possible, what the kernel prints."""
    try:
        made = _record(job, device, printing=False)
    except BuildError:
        return _record(job, device, printing=True)
    return made if made.records or made.problem else _record(job, device, printing=True)


def _record(job: NpuJob, device: Any, printing: bool) -> NpuRecord:
    k = job.kernel
    given = (*k.options, *load_file(k.path, k.contract).contract.options)
    versioned = any("-cl-std=" in option for option in given)
    options = [PRINTING] if printing else [] if versioned else ["-cl-std=CL2.0"]
    call = LabCall(k, job.call, device, before=SHIM, options=options)
    text = call.run()
    records, lost = (printed_records(text), 0) if printing else _logged(call.queue, call.program)
    spec, (error, limit) = call.spec, call.result()
    sizes = spec.local_size
    groups = int(np.prod([a // b for a, b in zip(spec.global_size, sizes, strict=True)])) if sizes else 0
    return NpuRecord(
        "", local_bytes(call), sum(v.size for _, v in spec.arguments if isinstance(v, LocalBytes)), groups, records,
        lost, call.y_bytes, call.itemsize, error, limit,
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
