"""Instructions and bytes that one call of a kernel moves, counted by Oclgrind, without hardware.

Oclgrind prints how often each instruction was executed, with the bytes of loads and stores by address space. Built-in
functions (`vload4`, `atomic_add`) appear as calls; their bytes follow from their mangled names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from ..device import child
from ..errors import ConfigError
from ..suite.case import parse_case
from . import oclgrind
from .counts_worker import CountsJob, CountsRecord
from .lab_kernel import LabFile
from .lab_worker import LabJob

#: Name and version of a report's JSON form.
SCHEMA = "clrope.lab.counts/1"
#: The calls that are counted if none is given: those of them that the kernel can express, at most two.
USUAL_CALLS = tuple(
    f"ROPE(type={dtype},ne_a=[64,8,16,2],n_dims=64,mode={mode},n_ctx=512,fs=1,ef=0,af=1,ff=0,v=0)"
    for mode in (2, 0)
    for dtype in ("f32", "f16")
)
_MOST_CALLS = 2
#: More than this much beyond the least is remarked on.
_TOLERANCE = 1.05

_LINE = re.compile(r"(\d{1,18}) - (.+?)(?: \((\d{1,18}) bytes\))?")
_CALL = re.compile(r"call _Z(\d{1,18})([^\W\d]\w*)\(\)$")
_POINTER = re.compile(r"P(?:U3AS(\d))?[VKr]*(?:U7_Atomic)?(?:Dv(\d+)_)?(Dh|[a-z])")
_LANES = re.compile(r"(?:vloada?|vstorea?)(?:_half)?(\d*)(?:_rt[eznp])?$")
_ONLY_LOAD, _ONLY_STORE = ("vload", "atomic_load"), ("vstore", "atomic_store", "sincos", "fract", "modf", "frexp")
_BUILTINS = (*_ONLY_LOAD, *_ONLY_STORE, "atomic_", "atom_")
_SPACES = {"1": "global", "2": "constant", "3": "local", None: "private"}
_SIZES = {"c": 1, "a": 1, "h": 1, "s": 2, "t": 2, "Dh": 2, "i": 4, "j": 4, "f": 4, "l": 8, "m": 8, "d": 8}


@dataclass(frozen=True)
class Counts:
    """What one launch did. read, written: bytes by address space. not_counted: calls that move unknown bytes."""

    instructions: int = 0
    read: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    not_counted: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CallCounts:
    """The counts of one call. problem: why there are none. y_bytes: useful bytes. least_read: x and tables once."""

    call: str
    problem: str = ""
    counts: Counts = field(default_factory=Counts)
    y_bytes: int = 1
    least_read: int = 1
    elements: int = 1
    error: float = 0.0
    limit: float = 0.0

    @property
    def right(self) -> bool:
        """Whether the result is within its limit."""
        return not self.problem and self.error <= self.limit

    @property
    def remarks(self) -> list[str]:
        """What the counts say, in words: traffic that a kernel could do without."""
        if self.problem:
            return []
        c, made = self.counts, []
        if self.error > self.limit:
            made.append(f"the result is wrong: NMSE {self.error:.3g}, limit {self.limit:.0e}")
        read, written = c.read.get("global", 0) + c.read.get("constant", 0), c.written.get("global", 0)
        if written > _TOLERANCE * self.y_bytes:
            made.append(f"writes y {written / self.y_bytes:.2f} times")
        if read > _TOLERANCE * self.least_read:
            made.append(f"reads {read / self.least_read:.2f} times the least: x and each table, position or array once")
        for name, number in c.not_counted.items():
            made.append(f"the bytes of {number} calls of {name} are not counted")
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "right": self.right, "remarks": self.remarks}


@dataclass(frozen=True)
class CountsReport:
    """The calls that were counted, and those that the kernel cannot express with the reason."""

    calls: list[CallCounts]
    not_expressible: dict[str, str]

    @property
    def ok(self) -> bool:
        """Whether calls were counted, each with a right result."""
        return bool(self.calls) and all(call.right for call in self.calls)


def count(
    file: LabFile,
    contract: str | None = None,
    call: str = "",
    *,
    seed: int = 0,
    limit: float = 300.0,
    done: Callable[[int, int], None] = lambda number, calls: None,
) -> CountsReport:
    """Count one call, a case's line; without it up to two usual calls, those that the kernel can express.

    contract: as given to `load_file`, for the child. limit: seconds for a call. done: called with the number of a call
    that has ended and of all. Raises `DeviceError` without Oclgrind, `ConfigError` for a call that is no case.
    """
    if call:
        parse_case(call)
    library = oclgrind.find_library()
    file.check_before_run()
    job = LabJob(str(file.path), contract, file.kernel, list(file.options), "", 0, True, seed, [])
    env = {**oclgrind.environment(library), "OCLGRIND_INST_COUNTS": "1"}
    lines: Sequence[str] = (call,) if call else USUAL_CALLS
    report = CountsReport([], {})
    for number, line in enumerate(lines, 1):
        result = child.run(
            msgspec.to_builtins(CountsJob(job, line)), env, module="clrope.lab.counts_worker", limit=limit
        )
        if result.outcome != "ok":
            told = "" if result.outcome == "crash" else result.output[-500:]
            report.calls.append(CallCounts(line, f"{result.reason}{': ' if told else ''}{told}"))
        else:
            record = msgspec.convert(result.answer, CountsRecord)
            if record.not_expressible:
                report.not_expressible[line] = record.not_expressible
            else:
                report.calls.append(_counted(line, record))
        done(number, len(lines))
        if len(report.calls) >= _MOST_CALLS:
            break
    if call and report.not_expressible:
        raise ConfigError(f"call: {report.not_expressible[call]}")
    return report


def _counted(line: str, record: CountsRecord) -> CallCounts:
    if record.problem:
        return CallCounts(line, record.problem)
    counts = read_counts(record.printed, record.function)
    if counts is None:
        return CallCounts(line, "Oclgrind printed no counts for the kernel")
    for source, target, size in (("global", "local", record.copied_in), ("local", "global", record.copied_out)):
        if size:
            _add(counts.read, source, size)
            _add(counts.written, target, size)
    return CallCounts(line, "", counts, record.y_bytes, record.least_read, record.elements, record.error, record.limit)


def read_counts(text: str, function: str) -> Counts | None:
    """Return the counts of a kernel function from what Oclgrind printed, None if there are none.

    Asynchronous copies are left out: each work-item counts as a caller, and how much is copied is not printed.
    """
    blocks = re.split(r"^Instructions executed for kernel '(\w+)':$", text, flags=re.MULTILINE)
    found = [body for name, body in zip(blocks[1::2], blocks[2::2], strict=True) if name == function]
    if not found:
        return None
    made = Counts()
    instructions = 0
    for row in found[-1].splitlines():
        match = _LINE.fullmatch(row.strip())
        if not match:
            continue
        number, what, size = int(match[1]), match[2], int(match[3] or 0)
        instructions += number
        verb, _, space = what.partition(" ")
        if verb in ("load", "store") and match[3]:
            _add(made.read if verb == "load" else made.written, space, size)
        elif what.startswith("call "):
            _count_call(made, what, number)
    return Counts(instructions, made.read, made.written, made.not_counted)


def _add(to: dict[str, int], space: str, size: int) -> None:
    to[space] = to.get(space, 0) + size


def _count_call(made: Counts, what: str, number: int) -> None:
    """Add the bytes of `number` calls of a built-in function, by its mangled name."""
    if what.startswith(("call llvm.memcpy", "call llvm.memset", "call llvm.memmove")):
        _add(made.not_counted, what.split()[1].removesuffix("()"), number)
    call = _CALL.match(what)
    if not call:
        return
    name, parameters = call[2][: int(call[1])], call[2][int(call[1]) :]
    pointer = _POINTER.search(parameters)
    if not pointer or not name.startswith(_BUILTINS):
        return  # of the file's own functions the instructions are counted themselves
    space, size = _SPACES.get(pointer[1]), _SIZES.get(pointer[3])
    lanes = _LANES.match(name)
    if space is None or size is None:
        _add(made.not_counted, name, number)
        return
    size *= number * int((lanes[1] if lanes else pointer[2]) or 1)
    if not name.startswith(_ONLY_STORE):
        _add(made.read, space, size)
    if not name.startswith(_ONLY_LOAD):
        _add(made.written, space, size)
