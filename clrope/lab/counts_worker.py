"""The child's side of counting: makes one call of a kernel in Oclgrind, and returns what it printed."""

from __future__ import annotations

from typing import Any

import msgspec

from ..device.child import Write
from ..device.child import serve as serve_child
from ..errors import BuildError, RopeError, UnsupportedError
from .lab_call import LabCall
from .lab_kernel import load_file
from .lab_worker import LabJob, find_device
from .npu.recorder import COPY_IN, COPY_OUT, PRINTED, PRINTING, SHIM, printed_records


class CountsJob(msgspec.Struct, frozen=True):
    """What a child has to do: one call of a kernel, given as a case's line."""

    kernel: LabJob
    call: str


class CountsRecord(msgspec.Struct, frozen=True):
    """What a child has seen.

    problem, not_expressible: why there is nothing else. printed: text of Oclgrind. copied_in, copied_out: bytes of
    asynchronous copies to and from local memory.
    """

    problem: str = ""
    not_expressible: str = ""
    function: str = ""
    printed: str = ""
    copied_in: int = 0
    copied_out: int = 0
    y_bytes: int = 1
    least_read: int = 1
    elements: int = 1
    error: float = 0.0
    limit: float = 0.0


def main() -> None:
    """Do one job in this process, which the kernel may end."""
    serve_child(_work)


def _work(data: dict[str, Any], write: Write) -> dict[str, Any]:
    job = msgspec.convert(data, CountsJob)
    write(stage="looking for the device")
    device = find_device(job.kernel)
    write(stage="running the kernel")
    try:
        made = _count(job, device)
    except BuildError as error:
        made = CountsRecord("does not build in Oclgrind:\n" + error.log.strip()[:4000])
    except UnsupportedError as error:
        made = CountsRecord(not_expressible=str(error))
    except RopeError as error:
        made = CountsRecord(str(error))
    found: dict[str, Any] = msgspec.to_builtins(made)
    return found


def _count(job: CountsJob, device: Any) -> CountsRecord:
    given = job.kernel
    file = load_file(given.path, given.contract, options=given.options, kernel=given.kernel)
    copies = "async_work_group" in file.source
    # The recorder's own instructions would be counted, so it is there only for kernels that need it.
    call = LabCall(
        job.kernel, job.call, device, before=SHIM if copies else "", options=[PRINTING] if copies else [], exact=True
    )
    text = call.run()
    copied = {COPY_IN: 0, COPY_OUT: 0}
    for kind, _, _, runs, size, _, _ in printed_records(text):
        if kind in copied:
            copied[kind] += runs * size
    kept = "\n".join(line for line in text.splitlines() if not line.startswith(PRINTED))
    error, limit = call.result()
    return CountsRecord(
        "", "", call.spec.function, kept, copied[COPY_IN], copied[COPY_OUT], call.y_bytes, call.least_read(),
        call.y_bytes // call.itemsize, error, limit,
    )  # fmt: skip
