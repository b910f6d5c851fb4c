"""What a worker is asked to do: plain values that are sent to it, and the run on one of its devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ..api import rope
from ..benchmark.buffers import make_inputs
from ..benchmark.measure import Options
from ..benchmark.measure import run as run_bench
from ..benchmark.workloads import WORKLOADS, Workload
from ..device import DeviceInfo
from ..errors import RopeError
from ..suite.conformance import NUMPY, Report, Result, verify
from ..suite.fuzz import fuzz_suite
from ..suite.registry import Suite
from ..testing import digest_of

What = Literal["bench", "verify"]
#: Called with the number of steps done and the number of all steps.
Step = Callable[[int, int], None]


@dataclass(frozen=True)
class FleetAnswer:
    """What a task gave on one device.

    result:  an object of the schema clrope.bench/1 or clrope.verify/1.
    digests: of the bits of each result, by the line of its case. Equal inputs give equal digests on every right device.
    numpy:   the digests by the kernels' arithmetic in NumPy, of the cases where the device has other bits.
    wrong:   what is wrong. unusable: why nothing could be checked.
    """

    result: dict[str, Any]
    digests: dict[str, str]
    numpy: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)


class FleetTask(Protocol):
    """A task, the same for every device of the fleet."""

    @property
    def what(self) -> What:
        """The command."""

    @property
    def measures(self) -> bool:
        """Whether devices of one machine have to take turns, because they would slow one another."""

    def run(self, device: DeviceInfo, step: Step) -> FleetAnswer:
        """Run on a device of this process."""


@dataclass(frozen=True)
class VerifyTask:
    """Suites by name, or so many random cases; the same seed draws the same inputs everywhere."""

    suites: tuple[str, ...]
    seed: int
    text: str = ""
    fuzz: int | None = None
    what: Literal["verify"] = "verify"
    measures: bool = False

    def chosen(self) -> list[str | Suite]:
        """Return the suites."""
        return [*self.suites] if self.fuzz is None else [fuzz_suite(self.fuzz, self.seed)]

    def run(self, device: DeviceInfo, step: Step) -> FleetAnswer:
        """Run the suites on a device."""
        steps = [0, 0]

        def started(_: Report, results: int) -> None:
            steps[1] = results
            step(*steps)

        def done(_: Result) -> None:
            steps[0] += 1
            step(*steps)

        report = verify(self.chosen(), [device.index], seed=self.seed, text=self.text, started=started, done=done)
        digests = {f"{r.suite}: {r.case}": r.outcome.digest for r in report.results if r.outcome.digest}
        wrong = [f"{r.suite}: {r.line}" for r in report.results if r.outcome.status == "fail"]
        wrong += [f"bits differ: {line}" for line in report.differing]
        numpy = dict(_numpy_digests(report.differing))
        return FleetAnswer(report.to_dict(), digests, numpy, wrong, [] if wrong else report.failures)


def _numpy_digests(differing: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Yield the cases of lines of `Report.differing` with NumPy's digests."""
    for line in differing:
        case, _, found = line.rpartition(": ")
        for name, _, digest in (part.rpartition(" ") for part in found.split(", ")):
            if name == NUMPY:
                yield case, digest


@dataclass(frozen=True)
class BenchTask:
    """Workloads by name."""

    workloads: tuple[str, ...]
    options: Options
    what: Literal["bench"] = "bench"
    measures: bool = True

    def run(self, device: DeviceInfo, step: Step) -> FleetAnswer:
        """Measure on a device; compute the bits of each workload's results after that."""
        known = {w.name: w for w in WORKLOADS}
        workloads = [known[name] for name in self.workloads]
        result = run_bench(workloads, [device], self.options, lambda done, total, _: step(done, total))
        digests = {}
        for workload in workloads:
            # A tensor that the device has no memory for is refused by the benchmark, too.
            with suppress(RopeError):
                shape = workload.tiny() if self.options.tiny else workload
                digests[workload.name] = _digest(shape, device, self.options.seed)
        wrong = [
            f"{w['name']}: {e['kind']} {e['name']}: {e['reason']}"
            for w in result["workloads"] for e in w["entries"]
            if e["status"] == "wrong" or (e["kind"] == "clrope" and e["status"] == "error")
        ]  # fmt: skip
        return FleetAnswer(result, digests, wrong=wrong)


def _digest(workload: Workload, device: DeviceInfo, seed: int) -> str:
    x = tuple(make_inputs(workload, seed).tensors)
    return digest_of(rope(x, workload.position_array(), workload.config, workload.forward, device=device))
