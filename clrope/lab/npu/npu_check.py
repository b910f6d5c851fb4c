"""`check`: a kernel file against a machine's rules, from the copies that one call of it makes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec

from ...device import child
from ...suite.case import parse_case
from ...suite.conformance import Target, targets
from ..lab_kernel import LabFile
from ..lab_worker import LabJob
from .npu_machine import NpuMachine
from .npu_prediction import ASSUMPTIONS, Prediction, predict
from .npu_worker import NpuJob, NpuRecord
from .recorder import COPY_IN, CopyRecord, CoreTrace, traces

#: Name and version of a report's JSON form.
SCHEMA = "clrope.lab.npu/1"
#: The call that is made if none is given.
USUAL_CALL = "ROPE(type=f32,ne_a=[128,8,2048,1],n_dims=128,mode=2,n_ctx=4096,fs=1,ef=0,af=1,ff=0,v=0,pos=offset)"


@dataclass(frozen=True)
class Refusal:
    """A rule of the machine that a kernel breaks: its name, what was found, and how often."""

    rule: str
    message: str
    count: int = 1


@dataclass
class NpuReport:
    """What one call of a kernel does to a machine, recorded on one device.

    problem: why nothing was recorded. not_checkable: memory accesses that no copy covers, in words.
    """

    target: Target
    machine: NpuMachine
    call: str
    problem: str = ""
    refusals: list[Refusal] = field(default_factory=list)
    not_checkable: list[str] = field(default_factory=list)
    cores: Mapping[int, CoreTrace] = field(default_factory=dict)
    groups: int = 0
    local_bytes: int = 0
    prediction: Prediction | None = None

    @property
    def verdict(self) -> str:
        """'refused', 'not checkable', 'fits', or 'not run'."""
        if self.problem:
            return "not run"
        if self.refusals:
            return "refused"
        return "not checkable" if self.not_checkable else "fits"

    @property
    def overlapped(self) -> bool:
        """Whether every core with more than one tile copies the next one while it computes."""
        several = [core for core in self.cores.values() if core.tiles > 1]
        return bool(several) and all(core.overlapped for core in several)

    @property
    def tiles(self) -> int:
        """Tiles of all cores."""
        return sum(core.tiles for core in self.cores.values())

    @property
    def most_tiles(self) -> int:
        """Tiles of the core that has most."""
        return max((core.tiles for core in self.cores.values()), default=0)

    @property
    def copies(self) -> int:
        """Copies of all cores."""
        return sum(len(core.copies) for core in self.cores.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.target.name, "verdict": self.verdict, "problem": self.problem or self.target.problem,
            "refusals": [asdict(r) for r in self.refusals], "not_checkable": self.not_checkable,
            "groups": self.groups, "tiles": self.tiles, "most_tiles": self.most_tiles,
            "scratchpad_bytes": self.local_bytes, "copies": self.copies,
            "bytes_in": sum(c.bytes_in for c in self.cores.values()),
            "bytes_out": sum(c.bytes_out for c in self.cores.values()), "overlapped": self.overlapped,
            "prediction": asdict(self.prediction) if self.prediction else None, "assumptions": list(ASSUMPTIONS),
        }  # fmt: skip


def for_machine(file: LabFile, machine: NpuMachine) -> LabFile:
    """Return a file with the machine's macros that it reads, but for those that its options give."""
    given = {option[2:].partition("=")[0] for option in (*file.contract.options, *file.options)}
    made = [
        f"-D{name}={value}" for name, value in machine.macros().items() if name in file.source and name not in given
    ]
    return replace(file, options=(*file.options, *made))


def check(
    file: LabFile,
    machine: NpuMachine,
    contract: str | None = None,
    selectors: Sequence[str] = (),
    *,
    call: str = USUAL_CALL,
    seed: int | None = None,
    silence: float = 60.0,
    doing: Callable[[Target], None] = lambda target: None,
) -> list[NpuReport]:
    """Run one call on devices with its copies recorded, and return what the machine says of them.

    contract: as given to `load_file`, for the child. call: a case's line. silence: seconds after which a kernel counts
    as endless. doing: told which device comes next. Raises `ConfigError` for a call or file that cannot be used.
    """
    parse_case(call)
    file = for_machine(file, machine)
    file.check_before_run()
    seed = secrets.randbits(32) if seed is None else seed
    reports = []
    for target in targets(selectors):
        report = NpuReport(target, machine, call, target.problem or "")
        reports.append(report)
        if report.problem or target.device is None:
            continue
        doing(target)
        job = LabJob(str(file.path), contract, file.kernel, list(file.options), target.device.key, 0, False, seed, [])
        result = child.run(msgspec.to_builtins(NpuJob(job, call)), module="clrope.lab.npu.npu_worker", limit=silence)
        if result.outcome != "ok":
            report.problem = result.reason
            continue
        fill(report, msgspec.convert(result.answer, NpuRecord))
    return reports


def fill(report: NpuReport, record: NpuRecord) -> None:
    """Fill a report from what was recorded."""
    if record.problem or record.lost:
        report.problem = record.problem or f"{record.lost} copies more than can be recorded; give a smaller call"
        return
    machine = report.machine
    report.cores, seen = traces(record.records)
    report.groups, report.local_bytes = seen or record.groups, record.static_local + record.local
    refuse = report.refusals.append
    if not record.error <= record.limit:
        refuse(Refusal("result", f"the result is wrong: NMSE {record.error:.3g}, limit {record.limit:.0e}"))
    if report.local_bytes > machine.ub:
        refuse(Refusal("scratchpad", f"{report.local_bytes} bytes of local memory, a core has {machine.ub}"))
    if report.groups > machine.cores:
        refuse(Refusal("cores", f"{report.groups} work-groups, the machine has {machine.cores} cores"))
    copies = [copy for core in report.cores.values() for copy in core.copies]
    for rule, is_broken, text in _RULES:
        broken = [copy for copy in copies if is_broken(copy, machine)]
        if broken:
            refuse(Refusal(rule, text(broken[0], machine), len(broken)))
    if not copies:
        report.not_checkable.append(
            "the kernel makes no asynchronous copies: all of its accesses bypass the scratchpad"
        )
        return
    out = sum(core.bytes_out for core in report.cores.values())
    if out < record.y_bytes:
        report.not_checkable.append(f"{record.y_bytes - out} of {record.y_bytes} bytes of y bypass the scratchpad")
    into = sum(core.bytes_in for core in report.cores.values())
    if into < record.y_bytes:
        report.not_checkable.append(f"only {into} bytes are copied in, x has {record.y_bytes}: the rest bypasses it")
    report.prediction = predict(machine, report.cores.values(), record.itemsize)


def _way(copy: CopyRecord) -> str:
    return f"a copy {'in' if copy.kind == COPY_IN else 'out'} of {copy.run_bytes} bytes"


_Rule = tuple[str, Callable[[CopyRecord, NpuMachine], bool], Callable[[CopyRecord, NpuMachine], str]]
_RULES: tuple[_Rule, ...] = (
    (
        "alignment",
        lambda c, m: c.local_address % m.align != 0,
        lambda c, m: f"{_way(c)}: its scratchpad address is {c.local_address % m.align} beyond a multiple of {m.align}",
    ),
    (
        "global alignment",
        lambda c, m: c.global_address % m.global_align != 0,
        lambda c, m: (
            f"{_way(c)}: its global address is {c.global_address % m.global_align} beyond a multiple of "
            f"{m.global_align}"
        ),
    ),
    (
        "block",
        lambda c, m: c.run_bytes % m.align != 0,
        lambda c, m: f"{_way(c)}: not a multiple of blocks of {m.align}",
    ),
    (
        "burst",
        lambda c, m: c.run_bytes < m.burst,
        lambda c, m: f"{_way(c)}: at least {m.burst} are needed in one piece",
    ),
)
