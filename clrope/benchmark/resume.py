"""Continuing an interrupted run: what its file holds, and whether this machine and these options are still the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ..device import DeviceInfo
from ..errors import ConfigError
from .measure import TOLD, BenchRun, Options
from .results import read_all
from .workloads import WORKLOADS, Workload

#: Fields of a device and of the environment that have to be the same in all records of a file.
SAME_DEVICE = ("key", "name", "platform_version", "driver_version")
SAME_ENVIRONMENT = ("cpu", "cpus", "system", "python", "versions", "kernels", "variables")
#: Kinds of measurements in new processes, as they are named in `missing`.
PROCESS_KINDS = ("first call", "peak memory")


_Number = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]


class _ToldShape(msgspec.Struct):
    """The options of a run as its file has them."""

    rounds: _Number
    calls: _Number
    latency_calls: _Number
    threads: _Number
    seed: Annotated[int, msgspec.Meta(ge=0)]
    tiny: bool
    peer_rounds: _Number | msgspec.UnsetType = msgspec.UNSET
    repeats: _Number | msgspec.UnsetType = msgspec.UNSET
    call_rounds: _Number | msgspec.UnsetType = msgspec.UNSET
    samples: bool | None = None


class _DeviceShape(msgspec.Struct):
    """What is compared of a device."""

    key: str
    name: str
    driver_version: str


class _EnvironmentShape(msgspec.Struct):
    """What is read of an environment; the rest is compared as it is."""

    kernels: dict[str, Any]


class _NamedShape(msgspec.Struct):
    """A workload's record."""

    name: str


class _UnfinishedShape(msgspec.Struct):
    """What is read of an interrupted run's file here. missing: absent in the file of a complete run."""

    options: _ToldShape
    environment: _EnvironmentShape
    devices: dict[str, _DeviceShape]
    peers: dict[str, Any]
    workloads: list[_NamedShape]
    processes: list[dict[str, Any]]
    missing: list[str] = []


@dataclass(frozen=True)
class Unfinished:
    """An interrupted run's file. workloads: all of the run, in its order."""

    where: Path
    result: dict[str, Any]
    workloads: tuple[Workload, ...]

    @property
    def options(self) -> Options:
        """The options of the run; kernel files are not in the file."""
        told = {name: self.result["options"][name] for name in TOLD if name in self.result["options"]}
        missing = [name for name in self.result["missing"] if name.startswith(PROCESS_KINDS)]
        return Options(
            **told, peers=tuple(self.result["peers"]), with_peers=bool(self.result["peers"]),
            processes=bool(self.result["processes"] or missing),
            samples=bool(self.result["options"].get("samples")), clpeak=self.has_clpeak,
        )  # fmt: skip

    @property
    def has_clpeak(self) -> bool:
        """Whether the run asked clpeak."""
        return any("clpeak" in device for device in self.result["devices"].values())

    @property
    def kernel_files(self) -> list[str]:
        """Names of the users' kernel files that were measured."""
        return [name.removeprefix("lab:") for name in self.result["environment"]["kernels"] if name.startswith("lab:")]

    def check_options(self, given: Mapping[str, Any]) -> None:
        """Raise `ConfigError` if an option that the user gave is not that of the run. given: by its name there."""
        options = self.options
        before = {**self.result["options"], "peers": sorted(self.result["peers"]),
                  "processes": options.processes, "samples": options.samples}  # fmt: skip
        for name, value in given.items():
            if value is not None and before.get(name) != value:
                raise self._refused(f"{name}: got {value}, the file has {before.get(name)}")

    def check_workloads(self, chosen: Iterable[Workload]) -> None:
        """Raise `ConfigError` if these are not the workloads of the run."""
        names, before = {w.name for w in chosen}, {w.name for w in self.workloads}
        if names != before:
            first = sorted(names ^ before)[0]
            where = "in the file only" if first in before else "not in the file"
            raise self._refused(f"workload: got other workloads than the file has: {first!r} is {where}")

    def devices_of(self, there: Sequence[DeviceInfo], names: Sequence[str] | None = None) -> list[DeviceInfo]:
        """Return the devices of the run out of those of this machine; raise `ConfigError` if one has changed or gone.

        names: as the user selected `there`; then these have to be the same devices in the same order.
        """
        found = []
        for label, before in self.result["devices"].items():
            same = [d for d in there if d.key == before["key"] and d not in found]
            if not same:
                raise self._refused(
                    f"device: {label} ({before['name']}, {before['driver_version']}) is not among these"
                )
            found.append(same[0])
        if names and found != list(there):
            raise self._refused(f"device: got {', '.join(names)}, the file has {', '.join(self.result['devices'])}")
        return found

    def check_run(self, run: BenchRun) -> None:
        """Raise `ConfigError` if drivers, packages or kernels are not those of the run that is to be continued."""
        for label, device in run.devices.items():
            before = self.result["devices"].get(label, {})
            self._compare({n: device[n] for n in SAME_DEVICE}, {n: before.get(n) for n in SAME_DEVICE}, f"{label}: ")
        environment = self.result["environment"]
        for name in SAME_ENVIRONMENT:
            now, then = run.environment[name], environment.get(name)
            if isinstance(now, dict) and isinstance(then, dict):
                self._compare(now, then, f"{name}: ")
            else:
                self._compare({name: now}, {name: then}, "")
        self._compare(run.versions, self.result["peers"], "peers: ")

    def _compare(self, now: Mapping[str, Any], then: Mapping[str, Any], what: str) -> None:
        for name in [*now, *(name for name in then if name not in now)]:
            if now.get(name) != then.get(name):
                raise self._refused(f"{what}{name} is {now.get(name)} here, {then.get(name)} in the file")

    def _refused(self, why: str) -> ConfigError:
        return ConfigError(
            f"--resume: {self.where} was measured in another way ({why}); leave --resume out to begin again"
        )


def read_unfinished(where: str) -> Unfinished:
    """Return the file of an interrupted run; `ConfigError` for a file of another kind, or of a finished run."""
    results = read_all(where)
    if len(results) != 1:
        raise ConfigError(f"--resume: {where} holds {len(results)} results, the file of one interrupted run is needed")
    (result,) = results
    try:
        msgspec.convert(result, _UnfinishedShape)
    except msgspec.ValidationError as error:
        raise ConfigError(f"--resume: {where} is no such result: {error}") from error
    if not result.get("missing"):
        raise ConfigError(f"--resume: {where} is complete, nothing is missing")
    names = {record["name"] for record in result["workloads"]} | set(result["missing"])
    chosen = tuple(w for w in WORKLOADS if w.name in names)
    outside = {f"{kind} {label}" for kind in PROCESS_KINDS for label in result["devices"]}
    unknown = names - {w.name for w in chosen} - outside
    if unknown:
        raise ConfigError(f"--resume: {where} names {sorted(unknown)[0]!r}, which is no workload of this version")
    return Unfinished(Path(where), result, chosen)
