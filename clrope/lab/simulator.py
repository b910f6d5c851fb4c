"""Small cases of a lab kernel in Oclgrind, which sees data races, accesses out of bounds and values that nothing wrote.

Oclgrind is another OpenCL driver. It runs in a child process that sees no other one; its findings come from its log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..cache_folder import temporary_files
from ..device import child
from ..errors import ConfigError
from . import oclgrind
from .lab_kernel import LabFile
from .lab_trial import LabOutcome
from .lab_worker import LabJob

#: The optimiser makes an instruction that the check of uninitialised values does not know (`docs/drivers.md`).
_SETTINGS = {
    "OCLGRIND_CHECK_API": "1", "OCLGRIND_DATA_RACES": "1", "OCLGRIND_UNINITIALIZED": "1",
    "OCLGRIND_BUILD_OPTIONS": "-cl-opt-disable", "OCLGRIND_MAX_ERRORS": "1000",
}  # fmt: skip
#: The cases: storage types, modes, rotated elements, in place or not. Those that the kernel can express are run.
_CASES = tuple(
    f"ROPE(type={dtype},ne_a=[24,3,5,2],n_dims={n_dims},mode={mode},n_ctx=500,fs=1,ef=0,af=1,ff=0,v=0,inplace={inplace})"
    for dtype in ("f32", "f16")
    for mode in (2, 0)
    for n_dims in (24, 16)
    for inplace in (0, 1)
)
_KINDS = (
    ("race", "data race"), ("uninitialised", "ninitialized"), ("out of bounds", "Invalid"),
    ("alignment", "aligned"), ("barrier", "divergence"), ("API", "CL_"),
)  # fmt: skip
_PLACE = re.compile(r"[Ll]ine (\d+)(?: \(column (\d+)\))?(?: of (\S+?))?:?\s*$")


@dataclass(frozen=True)
class Finding:
    """Something that Oclgrind reports: a kind, its first line, the file's line, and the line's text."""

    kind: str
    message: str
    line: int = 0
    text: str = ""
    waived: bool = False

    def __str__(self) -> str:
        where = f"line {self.line}: {self.text}" if self.line else "(no line)"
        return f"{self.kind}: {self.message}\n    {where}"


@dataclass
class SimulatorReport:
    """What Oclgrind says of a kernel: findings, and the cases that ran."""

    findings: list[Finding] = field(default_factory=list)
    outcomes: list[tuple[str, LabOutcome]] = field(default_factory=list)
    problem: str = ""

    @property
    def ran(self) -> int:
        """How many cases the kernel could express."""
        return sum(o.status != "not expressible" for _, o in self.outcomes)

    @property
    def open_findings(self) -> list[Finding]:
        """Findings that are not waived."""
        return [f for f in self.findings if not f.waived]

    @property
    def ok(self) -> bool:
        """Whether cases ran, all of them right, and nothing was found that is not waived."""
        wrong = [o for _, o in self.outcomes if o.status not in ("right", "not expressible")]
        return not self.problem and self.ran > 0 and not wrong and not self.open_findings


def simulate(
    file: LabFile,
    contract: str | None = None,
    *,
    waivers: Sequence[str] = (),
    seed: int = 0,
    limit: float = 300.0,
    done: Callable[[int, int], None] = lambda number, cases: None,
) -> SimulatorReport:
    """Run small cases in Oclgrind.

    waivers: 'KIND' or 'KIND:LINE' of findings that are intended. limit: seconds for all cases. done: called with the
    number of a case that has ended and of all. Raises `DeviceError` without Oclgrind, `ConfigError` for a wrong waiver.
    """
    kinds = [kind for kind, _ in _KINDS]
    for waiver in waivers:
        kind, _, line = waiver.partition(":")
        if kind not in kinds or (line and not line.isdigit()):
            raise ConfigError(f"waive: got {waiver!r}, allowed are {', '.join(kinds)}, or one of them with ':LINE'")
    library = oclgrind.find_library()
    report = SimulatorReport()

    def heard(entry: dict[str, Any]) -> None:
        if "case" in entry:
            report.outcomes.append((_CASES[entry["case"]], msgspec.convert(entry["outcome"], LabOutcome)))
            done(len(report.outcomes), len(_CASES))

    with temporary_files({}) as folder:
        log = folder / "log"
        job = LabJob(
            str(file.path), contract, file.kernel, list(file.options), "", 0, True, seed,
            [("races", line, number) for number, line in enumerate(_CASES)],
        )  # fmt: skip
        result = child.run(
            msgspec.to_builtins(job),
            {**oclgrind.environment(library), **_SETTINGS, "OCLGRIND_LOG": str(log)},
            module="clrope.lab.lab_worker",
            limit=limit,
            silence=limit,
            heard=heard,
        )
        text = log.read_text(errors="replace") if log.exists() else ""
    if result.outcome != "ok":
        # Of a crash the output says nothing: it ends in remarks on what PyOpenCL asks of devices.
        told = "" if result.outcome == "crash" else result.output[-500:]
        report.problem = f"{result.reason}{': ' if told else ''}{told}"
    report.findings = [
        Finding(f.kind, f.message, f.line, f.text, is_waived(f, waivers)) for f in read_log(text, file.source)
    ]
    return report


def is_waived(finding: Finding, waivers: Sequence[str]) -> bool:
    """Whether a waiver, 'KIND' or 'KIND:LINE', is for a finding."""
    return finding.kind in waivers or f"{finding.kind}:{finding.line}" in waivers


def read_log(text: str, source: str) -> list[Finding]:
    """Return the findings of a log, each kind and line once, with the text of the source's line."""
    lines = source.splitlines()
    found: dict[tuple[str, int], Finding] = {}
    for block in re.split(r"\n(?=\S)", text):
        rows = block.strip().splitlines()
        if not rows or not rows[0].strip():
            continue
        kind = next((name for name, word in _KINDS if word in rows[0]), "")
        if not kind:
            continue
        place = next((match for row in rows for match in [_PLACE.search(row)] if match), None)
        line = int(place[1]) if place else 0
        shown = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        message = re.sub(r" 0x[0-9a-f]+", "", rows[0].strip())
        found.setdefault((kind, line), Finding(kind, message, line, shown))
    return list(found.values())
