"""The child's side of a lab run: builds the kernel on one device and runs cases, because a kernel may end the process.

Entries: `cases` with all of them where some were drawn; `begin` with the number of a case before it is run, `case` with
its outcome; `coverage` of those that were right.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import msgspec

from ..device import DeviceInfo, devices
from ..device.child import Write
from ..device.child import serve as serve_child
from ..errors import BuildError, DeviceError, RopeError
from ..kernels.kernel import Kernel
from ..suite.case import Case, parse_case
from .lab_draw import DRAWN, coverage, draw
from .lab_kernel import LabFile, load_file
from .lab_trial import LabOutcome, LabTrial

#: Wrong cases that are diagnosed: the first ones tell, and each takes as long as ten right ones.
_EXPLAINED = 8


class LabJob(msgspec.Struct, frozen=True):
    """What a child has to do: cases (suite, line, number) of one kernel on one device.

    draw: words of cases that are drawn and run, too, small ones before the others and large ones after; None: no such.
    """

    path: str
    contract: str | None
    kernel: str
    options: list[str]
    device: str  # its key; with `simulator` any simulator
    ordinal: int
    simulator: bool
    seed: int
    cases: list[tuple[str, str, int]]
    stop_at_first: bool = False
    draw: str | None = None


def main() -> None:
    """Do one job in this process, which the kernel may end."""
    serve_child(_work)


def _work(data: dict[str, Any], write: Write) -> dict[str, Any]:
    job = msgspec.convert(data, LabJob)
    write(stage="looking for the device")
    device = find_device(job)
    file = load_file(job.path, job.contract, options=job.options, kernel=job.kernel, device=device)
    cases = job.cases
    if job.draw is not None:
        cases = _with_drawn(job, file, lambda: write(stage="drawing cases"))
        write(cases=cases)
    kernel = file.kernel_object()
    failed: dict[tuple[str, int], LabOutcome] = {}
    right: list[Case] = []
    wrong = 0
    for suite, line, number in cases:
        stage = f"running {suite}: {line}"
        write(begin=number, stage=stage)
        begin = time.perf_counter()
        case = parse_case(line)
        try:
            alive = partial(write, stage=stage)
            outcome = failed.get((case.type, case.mode)) or _run(case, job, kernel, device, alive, wrong < _EXPLAINED)
        except BuildError as error:
            outcome = _build_failed(error, case.type, device)
            failed[case.type, case.mode] = replace(outcome, detail=outcome.detail.splitlines()[0])
        except RopeError as error:
            outcome = LabOutcome("driver error" if isinstance(error, DeviceError) else "bad kernel", detail=str(error))
        write(case=number, outcome=asdict(outcome), seconds=time.perf_counter() - begin)
        wrong += outcome.status == "wrong"
        if outcome.status == "right":
            right.append(case)
        elif job.stop_at_first and outcome.status != "not expressible":
            break
    if right and not job.simulator:
        write(coverage=asdict(coverage(file, right)))
    return {}


def _run(
    case: Case, job: LabJob, kernel: Kernel, device: DeviceInfo, alive: Callable[[], None], explain: bool
) -> LabOutcome:
    trial = LabTrial(case, job.seed, kernel, exact=job.simulator, explain=explain)
    alive()  # the inputs and the reference of large tensors take seconds
    return trial.run_kernel(device)


def _with_drawn(job: LabJob, file: LabFile, alive: Callable[[], None]) -> list[tuple[str, str, int]]:
    try:
        drawn = draw(file, job.seed, alive)
    except RopeError:
        return job.cases  # whose outcomes say what is wrong
    words = (job.draw or "").split()
    small, large = ([(DRAWN, str(c)) for c in cases if all(word in str(c) for word in words)] for cases in drawn)
    # The first failure is to be seen soon: small cases of everything come first, and the slow ones last.
    lines = [*small, *((suite, line) for suite, line, _ in job.cases), *large]
    return [(suite, line, number) for number, (suite, line) in enumerate(lines)]


def _build_failed(error: BuildError, dtype: str, device: DeviceInfo) -> LabOutcome:
    if "cl_khr_fp16" in error.log and "cl_khr_fp16" not in device.cl_device.extensions.split():
        what = f"{dtype} on this device: it has no cl_khr_fp16 (vload_half and vstore_half work everywhere)"
        return LabOutcome("not expressible", detail=what)
    lines = [line for line in error.log.splitlines() if not line.startswith("clBuildProgram failed")]
    options = " ".join(error.options) or "none"
    return LabOutcome("build error", detail=f"does not build; options: {options}\n" + "\n".join(lines).strip())


def find_device(job: LabJob) -> DeviceInfo:
    """Return a job's device in this process."""
    same = [d for d in devices() if (d.simulator if job.simulator else d.key == job.device)]
    if len(same) <= job.ordinal or same[job.ordinal]._cl is None:
        raise DeviceError(f"device {job.device!r} is not there in a fresh process")
    return same[job.ordinal]
