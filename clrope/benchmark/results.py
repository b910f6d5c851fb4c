"""Result files: reading, checking, writing, and the figures that everything else is made from."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from ..errors import ConfigError, RopeError
from .samples import by_round, error_of_median, paired

#: Raise the number when a reader of the old form would misread the new one; `results.schema.json` describes it.
SCHEMA = "clrope.bench/1"
#: A summary of all results of one device; the results themselves are in the compressed file that it names.
DEVICE_SCHEMA = "clrope.bench.device/1"


def schema() -> dict[str, Any]:
    """Return the JSON schema of result files."""
    loaded: dict[str, Any] = json.loads((Path(__file__).parent / "results.schema.json").read_text(encoding="utf-8"))
    return loaded


def write(result: dict[str, Any], where: str | Path) -> None:
    """Write a result file, one entry a line; raise `RopeError` if that fails."""
    try:
        Path(where).write_text(text_of(result), encoding="utf-8")
    except OSError as error:
        raise RopeError(f"{where}: cannot be written ({error.strerror or error})") from error


def text_of(result: dict[str, Any]) -> str:
    """Return a result as JSON that people can read too: each entry of a workload on a line of its own."""
    marks: list[str] = []

    def mark(value: Any) -> str:
        marks.append(json.dumps(value, allow_nan=False))
        return f"@{len(marks) - 1}@"

    records = [
        w | {"entries": [mark(e) for e in w["entries"]], "tensors": mark(w["tensors"])} for w in result["workloads"]
    ]
    body = json.dumps(
        result | {"workloads": records, "processes": [mark(p) for p in result["processes"]]}, indent=1, allow_nan=False
    )
    for number, value in enumerate(marks):
        body = body.replace(f'"@{number}@"', value, 1)
    return body + "\n"


def read(where: str | Path) -> dict[str, Any]:
    """Return a result file's content; raise `ConfigError` if it is none, or one of another version."""
    return _checked(_loaded(where), where)


def _loaded(where: str | Path) -> Any:
    try:
        return json.loads(Path(where).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise ConfigError(f"{where}: is no JSON: {error}") from error


def _checked(data: Any, where: str | Path) -> dict[str, Any]:
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise ConfigError(f"{where}: got schema {found!r}, allowed is {SCHEMA!r}")
    missing = [key for key in schema()["required"] if key not in data]
    if missing:
        raise ConfigError(f"{where}: lacks {', '.join(missing)}")
    for workload in data["workloads"]:
        for entry in workload["entries"]:
            # As older results call it.
            if "spelling" in entry:
                entry["variant"] = entry.pop("spelling")
    return data


def read_all(where: str | Path) -> list[dict[str, Any]]:
    """Return the results of a file that `clrope bench` wrote, or of a device whose results are kept."""
    data = _loaded(where)
    if not isinstance(data, dict) or data.get("schema") != DEVICE_SCHEMA:
        return [_checked(data, where)]
    samples = Path(where).parent / str(data["samples"])
    try:
        kept = json.loads(lzma.decompress(samples.read_bytes()))
    except OSError as error:
        raise ConfigError(f"{samples}: cannot be read ({error.strerror or error})") from error
    except (lzma.LZMAError, ValueError) as error:
        raise ConfigError(f"{samples}: are no compressed results: {error}") from error
    return [_checked(result, samples) for result in kept]


def of_device(result: dict[str, Any], label: str) -> dict[str, Any]:
    """Return the part of a result that concerns one device, peers and the host's own figures included."""

    def kept(entry: dict[str, Any]) -> bool:
        return bool(entry.get("device", label) == label)

    records = [w | {"entries": [e for e in w["entries"] if kept(e)]} for w in result["workloads"]]
    return result | {
        "devices": {label: result["devices"][label]},
        "workloads": records,
        "processes": [p for p in result["processes"] if kept(p)],
    }


@dataclass(frozen=True)
class CallComparison:
    """Two entries whose times are compared: as a ratio, or by how many microseconds a call one takes longer.

    least: the launches without which `over` cannot do.
    """

    name: str
    over: str
    under: str
    per_call: bool = False
    least: str = ""


CALL_COMPARISONS = (
    CallComparison("one-shot on NumPy / torch eager", "rope numpy", "torch_eager", least="raw launch"),
    CallComparison("one-shot on torch tensors / torch eager", "rope torch", "torch_eager", least="raw launch"),
    CallComparison("one-shot on OpenCL arrays / ggml graph", "rope arrays", "ggml", least="raw launches, one finish"),
    CallComparison("plan.run(positions) / plan.run()", "plan.run(positions)", "plan.run()"),
    CallComparison("plan.run() / raw launch", "plan.run()", "raw launch"),
    CallComparison("one-shot on NumPy - plan.run(), a call", "rope numpy", "numpy plan.run()", per_call=True),
    CallComparison("new OpenCL array / out=", "new array", "out="),
)


class WorkloadRecord:
    """One workload of one result file, with the questions that reports ask.

    Times are nanoseconds of a call by the statistic asked for ('median', 'min', ...): event times on GPUs, whose calls
    take less than a launch, wall times elsewhere and where it is the time of a call that counts.
    """

    def __init__(self, result: dict[str, Any], workload: dict[str, Any]) -> None:
        self.result = result
        self.workload = workload
        self.name: str = workload["name"]
        self.family, self.dtype, self.mode, self.place, self.direction = self.name.split("/")

    @property
    def devices(self) -> list[str]:
        """Labels of the devices that were measured here."""
        return [label for label in self.result["devices"] if self.entries("clrope", "arrays", label)]

    def entries(self, kind: str, name: str | None = None, device: str | None = None) -> list[dict[str, Any]]:
        """Return the timed entries of a kind (and name, and device)."""
        return [
            e for e in self.workload["entries"]
            if e["kind"] == kind and e["status"] == "ok" and name in (None, e["name"])
            and (device is None or e.get("device") == device)
        ]  # fmt: skip

    def _basis(self, device: str | None) -> str:
        if device is None or self.workload["latency"]:
            return "wall"
        return "event" if self.result["devices"][device]["kind"] == "gpu" else "wall"

    def time(self, entry: dict[str, Any], statistic: str = "median") -> float:
        """Return nanoseconds of a call."""
        basis = self._basis(entry.get("device"))
        times = entry.get(basis) or entry["wall"]
        return float(times[statistic])

    def own(self, device: str, name: str = "arrays", statistic: str = "median") -> float | None:
        """Return the time of this package's call on a device."""
        found = self.entries("clrope", name, device)
        return self.time(found[0], statistic) if found else None

    def by_round(self, entry: dict[str, Any]) -> dict[int, float]:
        """Return the median time of each turn by its round; none in results of an older version."""
        turns = (entry.get(self._basis(entry.get("device"))) or entry["wall"]).get("turns", ())
        return by_round(turns, self.workload.get("rounds", self.result["options"]["rounds"]))

    def ratio(self, over: dict[str, Any], under: dict[str, Any], statistic: str = "median") -> float:
        """Return how many times as long one takes as the other.

        By medians it is the median of the ratios within each round, where turns were kept.
        """
        pairs = paired(self.by_round(over), self.by_round(under)) if statistic == "median" else []
        return float(median(pairs)) if pairs else self.time(over, statistic) / self.time(under, statistic)

    def ceiling(self, device: str, statistic: str = "median", name: str | None = None) -> dict[str, Any] | None:
        """Return the device's ceiling: the entry that moves most bytes a second, of all or of one name.

        'windows' counts only where it is asked for: a part of each row is harder to move than as many bytes in a row.
        """
        found = [e for e in self.entries("ceiling", name, device) if name is not None or e["name"] != "windows"]
        own = self.entries("clrope", "arrays", device)
        # Against the same call all of them are measured in the same rounds.
        return max(
            found,
            key=lambda e: e["bytes"] * (self.ratio(own[0], e, statistic) if own else 1 / self.time(e, statistic)),
            default=None,
        )

    def rate(self, device: str, statistic: str = "median") -> float | None:
        """Return this package's GB/s on a device."""
        taken = self.own(device, statistic=statistic)
        return self.workload["bytes_moved"] / taken if taken else None

    def error_of_ceiling(self, device: str, name: str | None = None) -> float | None:
        """Return the standard error of `of_ceiling`, by medians; None if that cannot be told."""
        top, own = self.ceiling(device, name=name), self.entries("clrope", "arrays", device)
        if top is None or not own:
            return None
        error = error_of_median(paired(self.by_round(top), self.by_round(own[0])))
        return None if error is None else error * float(self.workload["bytes_moved"]) / float(top["bytes"])

    def of_ceiling(self, device: str, statistic: str = "median", name: str | None = None) -> float | None:
        """Return the part of the ceiling that is reached: bytes a second against bytes a second."""
        return self._share(self.entries("clrope", "arrays", device), self.ceiling(device, statistic, name), statistic)

    def copying(self, device: str) -> float | None:
        """Return the time that the ceiling takes."""
        top = self.ceiling(device)
        return None if top is None else self.time(top)

    def of_copies(self, device: str, statistic: str = "median") -> float | None:
        """Return the same of the copy kernel, however else the device may copy faster."""
        return self._share(self.entries("clrope", "arrays", device), self.ceiling(device, statistic, "copy"), statistic)

    def _share(self, own: list[dict[str, Any]], top: dict[str, Any] | None, statistic: str) -> float | None:
        if top is None or not own:
            return None
        return float(self.workload["bytes_moved"]) / float(top["bytes"]) * self.ratio(top, own[0], statistic)

    def bound_against(self, peer: str, device: str, statistic: str = "median") -> float | None:
        """Return how many times faster than a peer a mere copy of as many bytes is."""
        found, top = self.entries("peer", peer), self.ceiling(device, statistic)
        if not found or top is None:
            return None
        return self.ratio(found[0], top, statistic) * float(top["bytes"]) / float(self.workload["bytes_moved"])

    def launches(self, device: str, statistic: str = "median") -> float | None:
        """Return how many raw launches of an empty kernel this package's call takes."""
        raw, own = self.entries("launch", "raw launch", device), self.entries("clrope", "arrays", device)
        return self.ratio(own[0], raw[0], statistic) if raw and own else None

    def bound_of_launches(self, device: str, statistic: str = "median") -> float | None:
        """Return how many raw launches the quickest copy of as many bytes takes."""
        raw, top = self.entries("launch", "raw launch", device), self.ceiling(device, statistic)
        return self.ratio(top, raw[0], statistic) if raw and top else None

    def windows_of_ceiling(self, device: str, statistic: str = "median") -> float | None:
        """Return what scaling the rotated part of each row reaches of what scaling as many bytes in a row does."""
        part, top = self.ceiling(device, statistic, "windows"), self.ceiling(device, statistic)
        if part is None or top is None:
            return None
        return float(part["bytes"]) / float(top["bytes"]) * self.ratio(top, part, statistic)

    def against(self, peer: str, device: str, statistic: str = "median") -> float | None:
        """Return how many times faster than a peer."""
        found, own = self.entries("peer", peer), self.entries("clrope", "arrays", device)
        return self.ratio(found[0], own[0], statistic) if found and own else None

    @property
    def calls(self) -> bool:
        """Whether it says what calls cost."""
        return bool(self.workload.get("calls"))

    def quickest(self, name: str, device: str) -> dict[str, Any] | None:
        """Return the entry of that name, on the device or of a peer, that takes least time."""
        found = [
            e for e in self.workload["entries"]
            if e["status"] == "ok" and e["name"] == name and e.get("device", device) == device
        ]  # fmt: skip
        return min(found, key=self.time, default=None)

    def least_of(self, comparison: CallComparison, device: str) -> float | None:
        """Return the same of the bare launches, where there is such a bound."""
        return self.compared(replace(comparison, over=comparison.least), device) if comparison.least else None

    def compared(self, comparison: CallComparison, device: str, statistic: str = "median") -> float | None:
        """Return how many times as long one entry takes as the other, or by how many microseconds a call longer."""
        over, under = self.quickest(comparison.over, device), self.quickest(comparison.under, device)
        if over is None or under is None:
            return None
        if not comparison.per_call:
            return self.ratio(over, under, statistic)
        one, other = self.by_round(over), self.by_round(under)
        longer = [one[k] - other[k] for k in one if k in other] if statistic == "median" else []
        taken = median(longer) if longer else self.time(over, statistic) - self.time(under, statistic)
        return float(taken) / 1e3 / int(self.workload["layers"])

    def of_arrays(self, device: str, name: str, statistic: str = "median") -> float | None:
        """Return how many times as long as on OpenCL arrays the call on NumPy arrays of that name takes."""
        host, own = self.entries("clrope", name, device), self.entries("clrope", "arrays", device)
        return self.ratio(host[0], own[0], statistic) if host and own else None


def records(results: Iterable[dict[str, Any]]) -> Iterator[WorkloadRecord]:
    """Yield the workloads of results, in their order."""
    for result in results:
        for workload in result["workloads"]:
            yield WorkloadRecord(result, workload)
