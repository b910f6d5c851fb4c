"""What files must hold so that a report can be made of them: the fields that it reads, with their types and bounds.

Further fields are allowed, so that files of later versions with the same schema are read, too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

_MOST = (1 << 63) - 1
Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
Duration = Annotated[float, msgspec.Meta(ge=1e-18, le=1e18)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Error = Annotated[float, msgspec.Meta(ge=0)] | None
Text = Annotated[str, msgspec.Meta(max_length=10_000)]
Load = Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None


class TimesShape(msgspec.Struct):
    """Statistics of the calls of an entry; nanoseconds of a call."""

    min: Annotated[float, msgspec.Meta(ge=0, le=1e18)]
    p20: Duration
    median: Duration
    p80: Duration
    n: Positive
    turns: list[Duration] = []


class EntryShape(msgspec.Struct):
    """One entry of a workload, timed or with the reason why not."""

    kind: Literal["clrope", "kernel", "ceiling", "launch", "host", "peer"]
    name: Text
    status: Literal["ok", "refused", "wrong", "error"]
    device: Text | msgspec.UnsetType = msgspec.UNSET
    reason: Text = ""
    variant: Text = ""
    bytes: Count | None = None
    nmse: Error = None
    wall: TimesShape | None = None
    event: TimesShape | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.status != "ok":
            return
        if self.wall is None or self.bytes is None:
            raise ValueError(f"a timed entry lacks {'wall' if self.wall is None else 'bytes'}")
        # Of two entries the bytes are divided; a launch of an empty kernel has none.
        if not self.bytes and self.kind != "launch":
            raise ValueError(f"the timed entry {self.name} moves no bytes")


class ConfigShape(msgspec.Struct):
    """What a report reads of a configuration."""

    mode: Text
    n_dims: Annotated[int, msgspec.Meta(ge=2, le=1 << 30)] | None = None


class WorkloadShape(msgspec.Struct):
    """One workload with its entries."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[^/]+(/[^/]+){4}$", max_length=200)]
    tensors: Annotated[
        list[Annotated[list[Positive], msgspec.Meta(min_length=4, max_length=4)]], msgspec.Meta(min_length=1)
    ]
    dtype: Text
    in_place: bool
    cached: bool
    latency: bool
    tensor_bytes: Positive
    bytes_moved: Positive
    config: ConfigShape
    entries: list[EntryShape]
    load: Load = None
    calls: Text = ""
    layers: Positive | None = None
    rounds: Positive | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.calls and self.layers is None:
            raise ValueError(f"the workload {self.name} measures calls and lacks layers")


class BenchDeviceShape(msgspec.Struct):
    """A device of a benchmark."""

    platform: Text
    name: Text
    kind: Text
    driver_version: Text
    key: Text
    clpeak_gbs: Rate | None = None
    clpeak: Text = ""


class EnvironmentShape(msgspec.Struct):
    """The machine of a benchmark, and its load."""

    cpu: Text
    cpus: Positive
    system: Text
    python: Text
    versions: dict[str, Text]
    load_before: Load
    load_after: Load
    busy: Load = None


class BenchOptionsShape(msgspec.Struct):
    """How much was measured."""

    rounds: Positive
    threads: Positive
    tiny: bool


class ProcessShape(msgspec.Struct):
    """What was measured from outside of a process."""

    kind: Literal["first call", "peak memory"]
    device: Text
    status: Literal["ok", "refused", "wrong", "error"]
    reason: Text = ""
    whole: TimesShape | None = None
    inside: TimesShape | None = None
    imports: TimesShape | None = None
    output_bytes: Count | None = None
    extra_bytes: Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)] | None = None

    def __post_init__(self) -> None:
        if self.status == "ok" and self.kind == "first call" and None in (self.whole, self.inside, self.imports):
            raise ValueError("a first call lacks its times")
        if self.status == "ok" and self.kind == "peak memory" and None in (self.output_bytes, self.extra_bytes):
            raise ValueError("a peak memory lacks its bytes")


class BenchShape(msgspec.Struct):
    """A result of `clrope bench`."""

    started: Text
    seconds: Annotated[float, msgspec.Meta(ge=0)]
    options: BenchOptionsShape
    environment: EnvironmentShape
    devices: dict[str, BenchDeviceShape]
    workloads: list[WorkloadShape]
    processes: list[ProcessShape] = []
    missing: list[Text] = []
    worker: Text = ""

    def __post_init__(self) -> None:
        for workload in self.workloads:
            for entry in workload.entries:
                if entry.device is msgspec.UNSET:
                    if entry.kind in ("clrope", "kernel", "ceiling", "launch"):
                        raise ValueError(f"workload {workload.name}: entry {entry.name} names no device")
                elif entry.device not in self.devices:
                    raise ValueError(f"workload {workload.name}: entry {entry.name} is of {entry.device}, no device")


class CountsShape(msgspec.Struct):
    """How the cases of a suite ended on a device."""

    device: Text
    suite: Text
    cases: Count
    passed: Count
    skipped: Count


class BitsShape(msgspec.Struct):
    """Cases whose bits were compared, and a line for each that differed."""

    compared: Count
    differing: list[Text]


class CaseShape(msgspec.Struct):
    """One case on one device."""

    suite: Text
    case: Text
    device: Text
    status: Literal["ok", "fail", "skip"]
    nmse: float | Literal["inf"] | None = None
    digest: Text = ""
    detail: Text = ""


class TargetShape(msgspec.Struct):
    """A device that was, or was not, verified."""

    name: Text
    problem: Text = ""
    device: dict[str, Any] | None = None


class VerifyShape(msgspec.Struct):
    """A report of `clrope verify`."""

    seed: int
    suites: list[Text]
    devices: list[TargetShape]
    summary: list[CountsShape]
    bits: BitsShape
    results: list[CaseShape]
    failures: list[Text] = []
    worker: Text = ""


class VariantShape(msgspec.Struct):
    """What happened when a variant was tried."""

    variant: dict[str, Any]
    outcome: Text
    reason: Text = ""
    seconds: Duration | None = None
    gbs: Rate | None = None


class TuningShape(msgspec.Struct):
    """The results of all variants for one tuning key."""

    dtype: Text
    pairing: Text
    in_place: bool
    size: Text
    nbytes: Count
    results: list[VariantShape]
    ceiling_gbs: Rate | None = None
    checked_against: Text = ""


class TunedDeviceShape(msgspec.Struct):
    """The tuning of one device."""

    device: Text
    records: list[TuningShape]


class TuneShape(msgspec.Struct):
    """A report of `clrope tune`."""

    devices: list[TunedDeviceShape]


class WorkerShape(msgspec.Struct):
    """A worker of a fleet."""

    worker: Text
    status: Literal["ok", "wrong", "missing", "error"]
    host: Text = ""
    device: Text = ""
    platform: Text = ""
    reason: Text = ""


class FleetBitsShape(msgspec.Struct):
    """The comparison of bits over a fleet."""

    compared: Count
    identical: bool
    different: list[Any] = []


class FleetShape(msgspec.Struct):
    """A result of a fleet: its workers, and a result of `clrope bench` or `clrope verify` for each of them."""

    what: Literal["bench", "verify"]
    started: Text
    workers: list[WorkerShape]
    results: list[dict[str, Any]]
    bits: FleetBitsShape | None = None
