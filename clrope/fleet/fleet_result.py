"""The result of a fleet: the form of its file, and what of it is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..bounded_read import read_bounded
from ..errors import ConfigError
from ..strict_json import parse_json
from ..suite.conformance import NUMPY
from .fleet_task import FleetAnswer, What

#: A change that breaks readers gets a new number.
SCHEMA = "clrope.fleet/1"
#: Bytes of a file; one of a hundred workers with samples has some tens of millions.
LARGEST_FLEET = 256 << 20
Status = Literal["ok", "wrong", "missing", "error"]


@dataclass(frozen=True)
class WorkerResult:
    """One device of one worker, or a worker without a device.

    worker: its address. device, platform: names; '' if they are unknown.
    status: 'ok'; 'wrong': a check failed; 'missing': the worker ended, and no other one has such a device; 'error': the
            task could not be run. reason: of another status than 'ok'; for 'ok' in place of which worker it was run.
    """

    worker: str
    host: str
    device: str
    platform: str
    status: Status
    reason: str = ""


@dataclass(frozen=True)
class FleetBits:
    """Bits of the results of all devices: how many cases were compared, and a line for each that differs."""

    compared: int
    different: list[str]

    @property
    def identical(self) -> bool:
        """Whether no case differs."""
        return not self.different

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"compared": self.compared, "identical": self.identical, "different": self.different}


@dataclass
class FleetResult:
    """What a fleet gave. bits: None if no case has results of two devices. results: with a key `worker` each."""

    what: What
    started: str
    seconds: float = 0.0
    workers: list[WorkerResult] = field(default_factory=list)
    bits: FleetBits | None = None
    results: list[dict[str, Any]] = field(default_factory=list)

    @property
    def failures(self) -> list[str]:
        """The reasons for a failed run; empty if all is well."""
        out = [
            f"worker {w.worker} on {w.host or 'an unknown host'}, {w.device or 'no device'}: {w.status}: {w.reason}"
            for w in self.workers if w.status != "ok"
        ]  # fmt: skip
        if self.bits is not None and not self.bits.identical:
            out.append(f"{len(self.bits.different)} cases differ in their bits")
        return out

    @property
    def ok(self) -> bool:
        """Whether every device gave right results with the same bits."""
        return bool(self.workers) and not self.failures

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "schema": SCHEMA,
            "what": self.what,
            "started": self.started,
            "seconds": self.seconds,
            "workers": [asdict(w) for w in self.workers],
            "bits": self.bits.to_dict() if self.bits else None,
            "results": self.results,
        }


def compare_bits(answers: Sequence[tuple[str, FleetAnswer]]) -> FleetBits | None:
    """Compare the digests of devices, given by names; None if no case has two. The bits of NumPy are named, too."""
    cases: dict[str, dict[str, str]] = {}
    for name, answer in answers:
        for case, digest in answer.digests.items():
            cases.setdefault(case, {})[name] = digest
    shared = {case: found for case, found in cases.items() if len(found) > 1}
    numpy = {case: digest for _, answer in answers for case, digest in answer.numpy.items()}
    different = []
    for case, found in shared.items():
        every = found | ({NUMPY: numpy[case]} if case in numpy else {})
        if len(set(every.values())) > 1:
            different.append(f"{case}: " + ", ".join(f"{name} {digest}" for name, digest in every.items()))
    return FleetBits(len(shared), different) if shared else None


def read_fleet(path: str | Path) -> dict[str, Any]:
    """Return the object of a fleet's result file; `ConfigError` naming the file if it holds something else."""
    try:
        data = parse_json(read_bounded(path, LARGEST_FLEET))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: holds no JSON: {error}") from error
    found = data.get("schema") if isinstance(data, dict) else type(data).__name__
    if found != SCHEMA:
        raise ConfigError(f"{path}: got schema {found!r}, allowed is {SCHEMA!r}")
    if not isinstance(data.get("results"), list):
        raise ConfigError(f"{path}: lacks results")
    return dict(data)
