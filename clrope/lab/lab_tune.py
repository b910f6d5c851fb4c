"""The fastest values of a kernel file's tunable parameters: every combination is checked and timed by `lab_bench`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..machine_load import OthersLoad
from ..suite.conformance import Target, targets
from .contract import ParameterValue
from .lab_bench import USUAL_WORKLOADS, SpeedReport, bench_kernels
from .lab_kernel import LabFile

#: Name and version of a report's JSON form.
SCHEMA = "clrope.lab.tune/1"
#: Combinations that are measured in one child process (the first, and the most), and the rounds over them.
FIRST, BATCH, BATCH_ROUNDS = 2, 8, 3
#: Combinations that are measured again, side by side, and the rounds over them.
FINALISTS, FINAL_ROUNDS = 6, 9
#: Combinations that are slower than the fastest by this factor are not measured again.
CUT = 1.3

Setting = Mapping[str, ParameterValue]


@dataclass
class TriedSetting:
    """A combination. shares: by workload, the speed in shares of the best copy.

    refused: workloads that it cannot express. failed: why it is not used. final: measured side by side with the best.
    """

    name: str
    setting: Setting
    shares: dict[str, float] = field(default_factory=dict)
    gbs: dict[str, float] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    failed: str = ""
    final: bool = False

    @property
    def speed(self) -> float:
        """The mean share over the workloads; 0 without a figure."""
        return sum(self.shares.values()) / len(self.shares) if self.shares and not self.failed else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"setting": dict(self.setting), "speed": self.speed, "of_copy": self.shares, "gbs": self.gbs,
                "not_expressible": self.refused, "failed": self.failed, "measured_again": self.final}  # fmt: skip


@dataclass
class LabTuneReport:
    """What was tried on one device; the chosen combination first. left: combinations without time.

    busy: the share of the CPUs' time that other programs used.
    """

    target: Target
    tried: list[TriedSetting] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    problem: str = ""
    busy: float | None = None

    @property
    def best(self) -> TriedSetting | None:
        """The fastest of those that were measured side by side."""
        right = [t for t in self.tried if t.speed]
        return max(right, key=lambda t: (t.final, t.speed), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, the fastest first."""
        tried = sorted(self.tried, key=lambda t: (not t.final, -t.speed))
        return {"name": self.target.name, "problem": self.problem, "left": self.left, "busy": self.busy,
                "tried": [t.to_dict() for t in tried]}  # fmt: skip


def setting_name(setting: Setting) -> str:
    """Return e.g. 'BLOCK=4 WIDTH=8'; 'no parameters' for none."""
    return " ".join(f"{name}={value}" for name, value in setting.items()) or "no parameters"


def tune_file(
    file: LabFile,
    contract: str | None,
    selectors: Sequence[str] = (),
    *,
    workloads: Sequence[str] = USUAL_WORKLOADS,
    budget: float = 300.0,
    seed: int = 0,
    silence: float = 60.0,
    tiny: bool = False,
    doing: Callable[[Target, str], None] = lambda target, what: None,
) -> list[LabTuneReport]:
    """Measure every combination of a kernel file's parameters on devices, chosen as `clrope verify` does.

    budget: seconds for each device, about; the combinations are tried in an order drawn from the seed, after the chosen
    one, and those without time are reported. Speeds of one child process are compared by their shares of its best copy;
    the fastest combinations and the chosen one are then measured again, side by side.
    """
    first, *others = file.settings()
    random.Random(seed).shuffle(others)
    reports = []
    for target in targets(selectors):
        report = LabTuneReport(target, problem=target.problem or "")
        reports.append(report)
        deadline = time.monotonic() + budget
        entry_s, copies, load = 0.0, 0, OthersLoad()
        todo = [TriedSetting(setting_name(s), s) for s in (first, *others)]

        def measure(some: list[TriedSetting], rounds: int, target: Target = target) -> SpeedReport:
            assert target.device is not None
            (found,) = bench_kernels(
                [file.with_setting(t.setting) for t in some], [contract] * len(some), [target.device.index],
                workloads=workloads, rounds=rounds, seed=seed, silence=silence, tiny=tiny, doing=doing,
                names=[t.name for t in some], plain=False,
            )  # fmt: skip
            _take(found, some)
            return found

        while todo and not report.problem:
            began = time.monotonic()
            size = _batch_size(deadline - began, entry_s, copies, len(report.tried)) if report.tried else FIRST
            if not size:
                report.left = [t.name for t in todo]
                break
            some, todo = todo[:size], todo[size:]
            report.tried += some
            found = measure(some, BATCH_ROUNDS)
            report.problem = found.problem
            copies = max((_copies(record) for record in found.workloads), default=0)
            entry_s = (time.monotonic() - began) / (len(some) + copies)
        finalists = _finalists(report.tried)
        if len(finalists) > 1 and not report.problem:
            report.problem = measure(finalists, FINAL_ROUNDS).problem
        for tried in finalists:
            tried.final = bool(tried.speed)
        report.busy = load.share()
    return reports


def _copies(record: Mapping[str, Any]) -> int:
    """Return how many entries of a workload were timed next to the combinations: copies, mostly."""
    return sum(entry["kind"] != "kernel" and entry["status"] == "ok" for entry in record["entries"])


def _batch_size(left_s: float, entry_s: float, copies: int, tried: int) -> int:
    """Return how many more combinations can be tried if the best are to be measured again after them.

    entry_s: seconds of a combination, and of each of the `copies` that are measured with every batch.
    """
    for size in range(BATCH, 0, -1):
        again = min(tried + size, FINALISTS + 1)
        if entry_s * (size + copies + (again + copies) * FINAL_ROUNDS / BATCH_ROUNDS) <= left_s:
            return size
    return 0


def _finalists(tried: Sequence[TriedSetting]) -> list[TriedSetting]:
    """Return the fastest combinations, and the chosen one."""
    # Means over other workloads cannot be compared.
    most = max((len(t.shares) for t in tried if t.speed), default=0)
    for t in tried:
        if t.speed and len(t.shares) < most:
            t.failed = f"cannot express {', '.join(t.refused)}"
    ranked = sorted((t for t in tried if t.speed), key=lambda t: -t.speed)
    close = [t for t in ranked if t.speed * CUT >= ranked[0].speed][:FINALISTS]
    return [*(t for t in tried[:1] if t.speed and t not in close), *close]


def _take(found: SpeedReport, some: Sequence[TriedSetting]) -> None:
    """Take in what was measured of some combinations, in the place of earlier figures if there are new ones."""
    if found.problem and not found.workloads:
        return
    for tried in some:
        tried.shares, tried.gbs, tried.refused = {}, {}, []
        tried.failed = found.ended.get(tried.name, "")
        for record in found.workloads:
            entries = record["entries"]
            own = next((e for e in entries if (e["kind"], e["name"]) == ("kernel", tried.name)), None)
            if own is None:
                continue
            if own["status"] == "refused":
                tried.refused.append(record["name"])
                continue
            if own["status"] != "ok":
                tried.failed = tried.failed or f"{own['status']}: {own['reason']}"
                continue
            copies = [e for e in entries if e["kind"] == "ceiling" and e["status"] == "ok"]
            rates = [e["bytes"] / e["wall"]["median"] for e in copies]
            rate = own["bytes"] / own["wall"]["median"]
            tried.gbs[record["name"]] = rate
            tried.shares[record["name"]] = rate / max(rates, default=rate)
