"""Files in the format T4 of Kernel Tuner: the configurations that a run tried, and the environment that it ran in.

A file holds the configurations of one problem on one device. What is not measured here is left out.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import RopeError
from ..output_file import write_file
from .environment import describe, environment
from .results import WorkloadRecord, records
from .workloads import WORKLOADS

#: Version of the format.
VERSION = "1.0.0"
Invalidity = Literal["timeout", "compile", "runtime", "correctness", "constraints", "correct"]
#: By the outcome of a variant in `clrope tune`.
OF_OUTCOME: dict[str, Invalidity] = {
    "ok": "correct", "slower": "correct", "wrong": "correctness", "build_error": "compile", "crash": "runtime",
    "not_run": "runtime", "timeout": "timeout",
}  # fmt: skip
#: By the status of an entry of `clrope bench`.
OF_STATUS: dict[str, Invalidity] = {
    "ok": "correct", "wrong": "correctness", "refused": "constraints", "error": "runtime",
}  # fmt: skip


@dataclass(frozen=True)
class TriedConfiguration:
    """One configuration: its parameters, how it ended, milliseconds of its runs, and other figures with their units."""

    parameters: Mapping[str, Any]
    invalidity: Invalidity
    runtimes: Sequence[float] = ()
    time: float | None = None
    measurements: Sequence[tuple[str, float | str, str]] = ()
    timestamp: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as T4 has it."""
        timed = [] if self.time is None else [("time", self.time, "ms")]
        return {
            **({"timestamp": self.timestamp} if self.timestamp else {}),
            "configuration": dict(self.parameters),
            "objectives": ["time"],
            "times": {"runtimes": list(self.runtimes)},
            "invalidity": self.invalidity,
            "correctness": 1 if self.invalidity == "correct" else 0,
            "measurements": [
                {"name": name, "value": value, "unit": unit} for name, value, unit in (*timed, *self.measurements)
            ],
        }


@dataclass
class TriedProblem:
    """The configurations of one problem on one device."""

    device: str
    problem: str
    tried: list[TriedConfiguration] = field(default_factory=list)

    @property
    def file_name(self) -> str:
        """The name of the problem's file, without a folder."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{self.device} {self.problem}").strip("-") + "-results.json"

    def to_dict(self) -> dict[str, Any]:
        """Return the contents of the problem's file."""
        return {
            "schema_version": VERSION,
            "metadata": {"timeunit": "milliseconds", "device": self.device, "problem": self.problem},
            "results": [tried.to_dict() for tried in self.tried],
        }


def of_bench(result: dict[str, Any]) -> list[TriedProblem]:
    """Return a problem for each workload and device of a result of `clrope bench`, with the kernels that ran there."""
    found: dict[tuple[str, str], TriedProblem] = {}
    for record in records([result]):
        for label, device in result["devices"].items():
            name = f"{label} {device['name']}"
            problem = found.setdefault((label, record.name), TriedProblem(name, record.name))
            problem.tried += [
                _of_entry(record, entry, str(result["started"]))
                for entry in record.workload["entries"]
                if entry.get("device") == label and entry["kind"] in ("clrope", "kernel")
            ]
    return [problem for problem in found.values() if problem.tried]


def _of_entry(record: WorkloadRecord, entry: dict[str, Any], started: str) -> TriedConfiguration:
    parameters: dict[str, Any] = {"call": entry["name"]} if entry["kind"] == "clrope" else {"kernel": entry["name"]}
    for number, variant in enumerate(entry.get("variants", ())):
        # Chunks of one call may have variants of their own.
        parameters |= {(name if number == 0 else f"{name}_{number}"): value for name, value in variant.items()}
    parameters = {"mode": record.mode, "dtype": record.dtype, **parameters}
    if entry["status"] != "ok":
        told: list[tuple[str, float | str, str]] = [("reason", str(entry.get("reason", "")), "")]
        return TriedConfiguration(parameters, OF_STATUS[entry["status"]], measurements=told, timestamp=started)
    wall = entry["wall"]
    device = entry["device"]
    told = [("median of all calls", wall["median"] / 1e6, "ms"), ("fastest call", wall["min"] / 1e6, "ms")]
    if entry["bytes"]:
        told.append(("bandwidth", entry["bytes"] / record.time(entry), "GB/s"))
    if not record.calls and not record.workload["latency"]:
        share = record.speed(entry, record.ceiling(device))
        told += [] if share is None else [("share of the fastest copy", share, "")]
    if "nmse" in entry:
        told.append(("nmse", entry["nmse"], ""))
    times = wall.get("samples") or wall.get("turns") or [wall["median"]]
    return TriedConfiguration(
        parameters, "correct", [taken / 1e6 for taken in times], record.time(entry) / 1e6, told, started
    )


def of_tuning(report: dict[str, Any], names: Sequence[str]) -> list[TriedProblem]:
    """Return a problem for each tuning key and device of a report of `clrope tune --json`. names: of the devices."""
    found = []
    for name, device in zip(names, report["devices"], strict=True):
        for record in device["records"]:
            place = "in place" if record["in_place"] else "out of place"
            problem = TriedProblem(name, f"{record['dtype']} {record['pairing']} {place} {record['size']}")
            for tried in record["results"]:
                seconds, rate = tried["seconds"], tried["gbs"]
                told: list[tuple[str, float | str, str]] = []
                if rate is not None:
                    told.append(("bandwidth", rate, "GB/s"))
                    if record["ceiling_gbs"]:
                        told.append(("share of the fastest copy", rate / record["ceiling_gbs"], ""))
                if tried["reason"]:
                    told.append(("reason", tried["reason"], ""))
                times = [] if seconds is None else [seconds * 1e3]
                problem.tried.append(
                    TriedConfiguration(
                        tried["variant"], OF_OUTCOME[tried["outcome"]], times, times[0] if times else None, told
                    )
                )
            found.append(problem)
    return found


def of_lab_tuning(report: dict[str, Any]) -> list[TriedProblem]:
    """Return a problem for each workload and device of a report of `clrope tune --kernel FILE --json`."""
    found: dict[tuple[str, str], TriedProblem] = {}
    for device in report["devices"]:
        names = dict.fromkeys(n for t in device["tried"] for n in (*t["gbs"], *t["not_expressible"]))
        # A kernel that is never right has no workload with a figure.
        for name in names or ["no workload"]:
            problem = found.setdefault((device["name"], name), TriedProblem(str(device["name"]), str(name)))
            for tried in device["tried"]:
                problem.tried.append(_of_setting(tried, name))
    return list(found.values())


def _of_setting(tried: dict[str, Any], workload: str) -> TriedConfiguration:
    rate, failed = tried["gbs"].get(workload), str(tried["failed"])
    if rate is None:
        reason = failed or f"cannot express {workload}"
        return TriedConfiguration(tried["setting"], invalidity_of(reason), measurements=[("reason", reason, "")])
    told: list[tuple[str, float | str, str]] = [
        ("bandwidth", rate, "GB/s"), ("share of the fastest copy", tried["of_copy"][workload], ""),
    ]  # fmt: skip
    time = next(w.bytes_moved for w in WORKLOADS if w.name == workload) / rate / 1e6
    if failed:
        told.append(("reason", failed, ""))
    return TriedConfiguration(tried["setting"], invalidity_of(failed) if failed else "correct", [time], time, told)


def invalidity_of(reason: str) -> Invalidity:
    """Return T4's word for the reason why a kernel file has no figure, as `clrope tune --kernel` tells it."""
    if reason.startswith("cannot express"):
        return "constraints"
    if reason.startswith("wrong:"):
        return "correctness"
    if "did not end" in reason:
        return "timeout"
    return "compile" if "BuildError" in reason else "runtime"


def t4_metadata(of_run: dict[str, Any], devices: Mapping[str, Any], packages: Mapping[str, str]) -> dict[str, Any]:
    """Return the contents of the metadata file. of_run: the environment block of a result; devices: its devices."""
    state = {name: value for name, value in of_run.items() if name not in ("versions", "system", "cpu", "cpus")}
    hardware = {"cpu": of_run["cpu"], "cpus": of_run["cpus"], "memory_bytes": of_run.get("memory_bytes"),
                "cache_bytes": of_run.get("cache_bytes")}  # fmt: skip
    system = platform.system() if not of_run.get("system") else str(of_run["system"]).split()[0]
    return {
        "schema_version": VERSION,
        "metadata": {
            "hardware": {"hardware_description": [hardware], "operating_system": system},
            "operating_system": system,
            "environment": {
                "device_query": {"opencl": dict(devices), "state": state},
                "requirements": [f"{name}=={version}" for name, version in packages.items()],
            },
        },
    }


def metadata_here(devices: Sequence[Any], packages: Mapping[str, str]) -> dict[str, Any]:
    """Return the contents of the metadata file of this machine. devices: `DeviceInfo`s."""
    return t4_metadata(environment(), {str(d): describe(d) for d in devices}, packages)


def write_t4(problems: Sequence[TriedProblem], metadata: dict[str, Any], folder: str) -> list[Path]:
    """Write a file for each problem, and `metadata.json`, into a folder, which is made; raise `RopeError`."""
    files = {problem.file_name: problem.to_dict() for problem in problems} | {"metadata.json": metadata}
    made = []
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            path = Path(folder) / name
            write_file(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
            made.append(path)
    except OSError as error:
        raise RopeError(f"{error.filename or folder}: cannot be written ({error.strerror or error})") from error
    return made
