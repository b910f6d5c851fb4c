"""Result files: reading, checking, writing, and the figures for tables."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from ..bounded_read import read_bounded
from ..errors import ConfigError
from ..output_file import write_file
from ..strict_json import parse_json
from .samples import by_round, paired

#: Described by `results.schema.json`. A change that breaks readers gets a new number.
SCHEMA = "clrope.bench/1"
#: A summary of all results of one device. It names the compressed file of the results.
DEVICE_SCHEMA = "clrope.bench.device/1"
#: Bytes of a file, and of what is compressed in it; the results of a device have two millions.
LARGEST_RESULT = 32 << 20
#: In JSON: a backslash, a character beyond 16 bits, and half of such a one, as which Python has a byte that is no text.
_ESCAPES = re.compile(r"\\\\|\\ud[89ab]..\\ud[c-f]..|\\u(?P<half>d[89a-f]..)")


def schema() -> dict[str, Any]:
    """Return the JSON schema of result files."""
    loaded: dict[str, Any] = json.loads((Path(__file__).parent / "results.schema.json").read_text(encoding="utf-8"))
    return loaded


def write(result: dict[str, Any], where: str | Path) -> None:
    """Write a result file, one entry a line; raise `RopeError` if that fails."""
    write_file(where, text_of(result))


def text_of(result: dict[str, Any]) -> str:
    r"""Return a result as JSON with one entry of a workload a line.

    Bytes of file names and of the environment that are no text become `\xff`: no reader takes half a character.
    """
    marks: list[str] = []
    # Longer than what stands in the result.
    edge = "@" + max(re.findall("@+", json.dumps(result, allow_nan=False)), key=len, default="")

    def mark(value: Any) -> str:
        marks.append(json.dumps(value, allow_nan=False))
        return f"{edge}{len(marks) - 1}{edge}"

    records = [
        w | {"entries": [mark(e) for e in w["entries"]], "tensors": mark(w["tensors"])} for w in result["workloads"]
    ]
    body = json.dumps(
        result | {"workloads": records, "processes": [mark(p) for p in result["processes"]]}, indent=1, allow_nan=False
    )
    text = re.sub(rf'"{edge}(\d+){edge}"', lambda found: marks[int(found[1])], body) + "\n"
    return _ESCAPES.sub(_whole_characters, text)


def _whole_characters(escape: re.Match[str]) -> str:
    half = escape["half"]
    if half is None:
        return escape[0]
    return rf"\\x{half[2:]}" if "dc80" <= half <= "dcff" else rf"\\u{half}"


def read_all(where: str | Path) -> list[dict[str, Any]]:
    """Return the results of a file of `clrope bench`, or of a device's summary with its compressed results.

    Raises `ConfigError` if it holds neither, or results of another version.
    """
    path = Path(where)
    data = _loaded(path)
    if not isinstance(data, dict) or data.get("schema") != DEVICE_SCHEMA:
        return [_checked(data, path)]
    samples = samples_of(data, path)
    found = _loaded(samples, unpacked)
    if not isinstance(found, list):
        raise ConfigError(f"{samples}: got {type(found).__name__}, a list of results is needed")
    return [_checked(result, samples) for result in found]


def samples_of(summary: dict[str, Any], path: Path) -> Path:
    """Return the file that a device's summary names; `ConfigError` if it is none of the same folder."""
    name = summary.get("samples")
    if not isinstance(name, str) or not name.isprintable() or not name or Path(name).name != name:
        text = repr(name)[:200]
        raise ConfigError(f"{path}: samples: got {text}, the name of a file in the same folder is needed")
    return path.parent / name


def _loaded(path: Path, unpack: Callable[[bytes], bytes] = bytes) -> Any:
    try:
        return parse_json(unpack(read_bounded(path, LARGEST_RESULT)))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (lzma.LZMAError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: holds no {'JSON' if unpack is bytes else 'compressed results'}: {error}") from error


def unpacked(data: bytes) -> bytes:
    """Return what `lzma.compress` was given; `LZMAError` for other data, and for more than a result."""
    unpacker = lzma.LZMADecompressor(memlimit=1 << 28)
    found = unpacker.decompress(data, LARGEST_RESULT + 1)
    if len(found) > LARGEST_RESULT:
        raise lzma.LZMAError(f"more than {LARGEST_RESULT} bytes")
    if not unpacker.eof:
        raise lzma.LZMAError("the data ends early")
    return found


def _checked(data: Any, path: Path) -> dict[str, Any]:
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise ConfigError(f"{path}: got schema {found!r}, allowed is {SCHEMA!r}")
    missing = [key for key in schema()["required"] if key not in data]
    if missing:
        raise ConfigError(f"{path}: lacks {', '.join(missing)}")
    for workload in _listed(data, "workloads", path):
        _listed(workload, "entries", path)
    return data


def _listed(data: Any, key: str, path: Path) -> list[dict[str, Any]]:
    """Return the objects in a list of an object; `ConfigError` for anything else."""
    found = data.get(key) if isinstance(data, dict) else None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ConfigError(f"{path}: {key}: a list of objects is needed")
    return found


@dataclass(frozen=True)
class CallComparison:
    """Two entries whose times are compared: as a ratio, or (per_call) as a difference in microseconds a call.

    least: the bare launches that `over` needs at least.
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

    Times are nanoseconds of a call by a statistic ('median', 'min', ...): event times on GPUs, whose calls take less
    time than a launch; wall times elsewhere, and where the time of a call counts.
    """

    def __init__(self, result: dict[str, Any], workload: dict[str, Any]) -> None:
        self.result = result
        self.workload = workload
        self.name: str = workload["name"]
        self.family, self.dtype, self.mode, self.place, self.direction = self.name.split("/")

    @property
    def calls(self) -> bool:
        """Whether the workload measures the cost of calls."""
        return bool(self.workload.get("calls"))

    @property
    def one_shot(self) -> bool:
        """Whether the workload is one-shot calls on NumPy arrays."""
        return bool(self.workload.get("calls") == "one-shot")

    @property
    def devices(self) -> list[str]:
        """Labels of the devices with a timed rotation."""
        return [label for label in self.result["devices"] if self.arrays(label)]

    def entries(self, kind: str, name: str | None = None, device: str | None = None) -> list[dict[str, Any]]:
        """Return the timed entries of a kind (and name, and device)."""
        return [
            e for e in self.workload["entries"]
            if e["kind"] == kind and e["status"] == "ok" and name in (None, e["name"])
            and (device is None or e.get("device") == device)
        ]  # fmt: skip

    def first(self, kind: str, name: str, device: str | None = None) -> dict[str, Any] | None:
        """Return the first of these entries, None if there is none."""
        return next(iter(self.entries(kind, name, device)), None)

    def arrays(self, device: str) -> dict[str, Any] | None:
        """Return the entry of this package's rotation of OpenCL arrays; of one-shot calls that with a new result."""
        return self.first("clrope", "numpy new" if self.one_shot else "arrays", device)

    def _times(self, entry: dict[str, Any]) -> dict[str, Any]:
        device = entry.get("device")
        on_gpu = device is not None and self.result["devices"][device]["kind"] == "gpu"
        times: dict[str, Any] = (entry.get("event") if on_gpu and not self.workload["latency"] else None) or entry[
            "wall"
        ]
        return times

    def time(self, entry: dict[str, Any], statistic: str = "median") -> float:
        """Return nanoseconds of a call."""
        return float(self._times(entry)[statistic])

    def undisturbed(self, entry: dict[str, Any]) -> float:
        """Return the time of the fastest turn, which other programs disturbed least; without turns the median."""
        return min(self.by_round(entry).values(), default=self.time(entry))

    def own(self, device: str, name: str = "arrays") -> float | None:
        """Return the time of this package's call on a device."""
        found = self.first("clrope", name, device)
        return self.time(found) if found else None

    def by_round(self, entry: dict[str, Any]) -> dict[int, float]:
        """Return the median time of each turn by its round; none in results of an older version."""
        rounds = self.workload.get("rounds", self.result["options"]["rounds"])
        return by_round(self._times(entry).get("turns", ()), rounds)

    def ratio(
        self, over: dict[str, Any] | None, under: dict[str, Any] | None, statistic: str = "median"
    ) -> float | None:
        """Return how many times the time of `under` is the time of `over`; None if one of them is None.

        By medians it is the median of the ratios within each round, where turns were kept.
        """
        if over is None or under is None:
            return None
        pairs = paired(self.by_round(over), self.by_round(under)) if statistic == "median" else []
        return float(median(pairs)) if pairs else self.time(over, statistic) / self.time(under, statistic)

    def speed(
        self, entry: dict[str, Any] | None, against: dict[str, Any] | None, statistic: str = "median"
    ) -> float | None:
        """Return how many times the bytes a second of `against` are the bytes a second of `entry`; None likewise."""
        ratio = self.ratio(against, entry, statistic)
        return None if not (ratio and entry and against) else float(entry["bytes"]) / float(against["bytes"]) * ratio

    def ceiling(self, device: str, statistic: str = "median", name: str | None = None) -> dict[str, Any] | None:
        """Return the device's ceiling: the entry that moves most bytes a second, of all or of one name.

        'windows' counts only by its name: moving a part of each row is slower than moving as many contiguous bytes.
        """
        found = [e for e in self.entries("ceiling", name, device) if name is not None or e["name"] != "windows"]
        own = self.arrays(device)
        # Against the same entry all of them are compared within the same rounds.
        return max(
            found, key=lambda e: self.speed(e, own, statistic) or e["bytes"] / self.time(e, statistic), default=None
        )

    def rate(self, device: str) -> float | None:
        """Return this package's GB/s on a device."""
        taken = self.own(device)
        return self.workload["bytes_moved"] / taken if taken else None

    def of_ceiling(self, device: str, statistic: str = "median", name: str | None = None) -> float | None:
        """Return this package's bytes a second as a share of the ceiling's."""
        return self.speed(self.arrays(device), self.ceiling(device, statistic, name), statistic)

    def launches(self, device: str, statistic: str = "median") -> float | None:
        """Return this package's call in raw launches of an empty kernel."""
        return self.ratio(self.arrays(device), self.first("launch", "raw launch", device), statistic)

    def against(self, peer: str, device: str, statistic: str = "median") -> float | None:
        """Return how many times faster than a peer this package is."""
        return self.ratio(self.first("peer", peer), self.arrays(device), statistic)

    def best_peer(self, device: str) -> tuple[str, float] | None:
        """Return the fastest peer, and how many times faster than it this package is; None without peers."""
        found = {str(e["name"]): self.against(str(e["name"]), device) for e in self.entries("peer")}
        return min(((name, ratio) for name, ratio in found.items() if ratio), key=lambda pair: pair[1], default=None)

    def quickest(self, name: str, device: str) -> dict[str, Any] | None:
        """Return the entry of that name, on the device or of a peer, that takes least time."""
        found = [
            e for e in self.workload["entries"]
            if e["status"] == "ok" and e["name"] == name and e.get("device", device) == device
        ]  # fmt: skip
        return min(found, key=self.time, default=None)

    def compared(self, comparison: CallComparison, device: str, statistic: str = "median") -> float | None:
        """Return the ratio of two entries' times, or their difference in microseconds a call."""
        over, under = self.quickest(comparison.over, device), self.quickest(comparison.under, device)
        if over is None or under is None or not comparison.per_call:
            return self.ratio(over, under, statistic)
        one, other = self.by_round(over), self.by_round(under)
        longer = [one[k] - other[k] for k in one if k in other] if statistic == "median" else []
        taken = median(longer) if longer else self.time(over, statistic) - self.time(under, statistic)
        return float(taken) / 1e3 / int(self.workload["layers"])

    def least_of(self, comparison: CallComparison, device: str) -> float | None:
        """Return the same comparison of the bare launches, None where it names none."""
        return self.compared(replace(comparison, over=comparison.least), device) if comparison.least else None


def records(results: Iterable[dict[str, Any]]) -> Iterator[WorkloadRecord]:
    """Yield the workloads of results, in their order."""
    for result in results:
        for workload in result["workloads"]:
            yield WorkloadRecord(result, workload)
