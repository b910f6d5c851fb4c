"""Speed of lab kernels next to this package's kernels and the device's copies, each device in a child process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from ..benchmark.measure import Options, measure, open_bench
from ..benchmark.workloads import select
from ..device import child
from ..device.child import Write
from ..device.child import serve as serve_child
from ..kernels.kernel import Kernel
from ..kernels.variant import STRIDED, Variant
from ..machine_load import OthersLoad
from ..printable import of_name
from ..suite.conformance import Target, targets
from .lab_kernel import LabFile, load_file
from .lab_worker import LabJob, find_device

#: Workloads that are measured if none is named.
USUAL_WORKLOADS = ("prefill/f32/neox/out/forward", "prefill/f32/normal/out/forward", "prefill/f16/neox/out/forward",
                   "decode-64/f32/neox/out/forward")  # fmt: skip
#: This package's plain kernel, which is measured, too.
OUR_PLAIN = "clrope, strided"
#: Name and version of a report's JSON form.
SCHEMA = "clrope.lab.bench/1"


class _BenchJob(msgspec.Struct, frozen=True):
    """What a child has to do: workloads by name, kernels as jobs without cases."""

    kernels: dict[str, LabJob]
    workloads: list[str]
    rounds: int
    seed: int
    label: str
    tiny: bool
    plain: bool


@dataclass
class SpeedReport:
    """The records of one device: of each workload its entries, in the form of `clrope bench --json`.

    problem: why the device cannot be used. ended: kernels that ended their process, and how. busy: the share of the
    CPUs' time that other programs used.
    """

    target: Target
    workloads: list[dict[str, Any]] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    busy: float | None = None

    @property
    def ok(self) -> bool:
        """Whether at least one workload has a figure of each kernel, and no kernel was wrong or ended its process."""
        entries = [e for w in self.workloads for e in w["entries"]]
        kernels = [e for e in entries if e["kind"] == "kernel" and e["name"] != OUR_PLAIN]
        measured = {e["name"] for e in kernels if e["status"] == "ok"}
        wrong = [e for e in kernels if e["status"] not in ("ok", "refused")]
        return not (self.problem or self.ended or wrong) and measured == {e["name"] for e in kernels} and bool(measured)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"name": self.target.name, "ok": self.ok, "problem": self.problem, "ended": self.ended,
                "workloads": self.workloads, "busy": self.busy}  # fmt: skip


def main() -> None:
    """Do one job in this process, which a kernel may end."""
    serve_child(_work)


def _work(data: dict[str, Any], write: Write) -> dict[str, Any]:
    job = msgspec.convert(data, _BenchJob)
    write(stage="looking for the device")
    device = find_device(next(iter(job.kernels.values())))
    others: dict[str, Kernel | Variant] = {
        name: load_file(k.path, k.contract, options=k.options, kernel=k.kernel, device=device).kernel_object()
        for name, k in job.kernels.items()
    }
    if job.plain:
        others[OUR_PLAIN] = STRIDED
    bench = open_bench(device, job.label)
    options = Options(
        rounds=job.rounds, with_peers=False, threads=1, seed=job.seed, tiny=job.tiny, others=others,
        needed=tuple(job.kernels),
    )  # fmt: skip
    for workload in select(job.workloads):
        write(stage=f"preparing {workload.name}")
        given = replace(workload.tiny() if job.tiny else workload, host=False)
        record = measure(given, [bench], [], options, doing=lambda what, share: write(stage=what))
        write(workload=workload.name, record=record)
    return {}


def bench_kernels(
    files: Sequence[LabFile],
    contracts: Sequence[str | None],
    selectors: Sequence[str] = (),
    *,
    workloads: Sequence[str] = USUAL_WORKLOADS,
    rounds: int = 7,
    seed: int = 0,
    silence: float = 60.0,
    tiny: bool = False,
    doing: Callable[[Target, str], None] = lambda target, what: None,
    names: Sequence[str] = (),
    plain: bool = True,
) -> list[SpeedReport]:
    """Measure kernel files on devices, chosen as `clrope verify` does.

    silence: seconds without a sign of life after which a kernel counts as endless. doing: told what is done next.
    names: of the files in the report; default: their own. plain: also measure this package's plain kernel. A workload
    that no file can express has only entries that say so. A kernel that ends its process is left out, and the others
    are measured in a new one.
    """
    names = names or names_of(files)
    select(workloads)  # refuses unknown names before a device is used
    reports = []
    for target in targets(selectors):
        report = SpeedReport(target, problem=target.problem or "")
        reports.append(report)
        left = dict(zip(names, zip(files, contracts, strict=True), strict=True))
        again, others = True, OthersLoad()
        while left and not report.problem and target.device is not None:
            jobs = {
                name: LabJob(
                    str(file.path), contract, file.kernel, list(file.options), target.device.key, 0, False, seed, []
                )
                for name, (file, contract) in left.items()
            }
            job = _BenchJob(jobs, list(workloads), rounds, seed, target.name.split()[0], tiny, plain)
            records: list[dict[str, Any]] = []

            def heard(entry: dict[str, Any], records: list[dict[str, Any]] = records, target: Target = target) -> None:
                if "record" in entry:
                    records.append(entry["record"])
                elif "stage" in entry:
                    doing(target, entry["stage"])

            result = child.run(
                msgspec.to_builtins(job), module="clrope.lab.lab_bench", limit=3600.0, silence=silence, heard=heard
            )
            if result.outcome == "ok":
                report.workloads = records
                break
            guilty = next((name for name in left if result.stage.startswith(f"checking {name} on ")), None)
            silent = result.outcome == "timeout"
            if guilty is not None:
                report.ended[guilty] = f"the kernel did not end: {result.reason}" if silent else result.reason
                del left[guilty]
            elif silent and again:  # of no kernel's making: the machine may have been busy
                again = False
            else:
                report.workloads, report.problem = records, result.reason
                break
        report.busy = others.share()
    return reports


def names_of(files: Sequence[LabFile]) -> list[str]:
    r"""Return a name for each file: its own, with a number where several have the same.

    Bytes of a name that are no text become `\xff`: no reader of a result takes half a character.
    """
    names: list[str] = []
    for file in files:
        own = of_name(file.path.name)
        taken = sum(1 for name in names if name.partition(" (")[0] == own)
        names.append(f"{own} ({taken + 1})" if taken else own)
    return names
