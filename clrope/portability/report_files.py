"""Reading of what a report is made of: files of `clrope bench`, `verify` and `tune`, and of fleets."""

from __future__ import annotations

import lzma
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ..benchmark.results import DEVICE_SCHEMA, samples_of, unpacked
from ..benchmark.results import SCHEMA as BENCH_SCHEMA
from ..bounded_read import read_bounded
from ..errors import ConfigError
from ..printable import of_name
from ..strict_json import parse_json
from .file_shapes import BenchShape, FleetShape, TuneShape, VerifyShape

VERIFY_SCHEMA = "clrope.verify/1"
TUNE_SCHEMA = "clrope.tune/2"
#: What `clrope tune` remembers: `tuning.json`.
TUNING_SCHEMA = "clrope.tuning/6"
FLEET_SCHEMA = "clrope.fleet/1"
SCHEMAS = (BENCH_SCHEMA, DEVICE_SCHEMA, VERIFY_SCHEMA, TUNE_SCHEMA, TUNING_SCHEMA, FLEET_SCHEMA)
#: No file of the package is larger.
LARGEST_FILE = 256 << 20


@dataclass
class ReportInput:
    """The contents of some files. A result of a fleet has a `worker`.

    origins: and the other lists of origins: the file of each result.
    unread:  why other files are left out, each message with the file's name in front.
    """

    benches: list[dict[str, Any]] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    verifications: list[dict[str, Any]] = field(default_factory=list)
    verify_origins: list[str] = field(default_factory=list)
    tunings: list[dict[str, Any]] = field(default_factory=list)
    tune_origins: list[str] = field(default_factory=list)
    fleets: list[dict[str, Any]] = field(default_factory=list)
    fleet_origins: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether nothing was read."""
        return not (self.benches or self.verifications or self.tunings or self.fleets)

    @property
    def files(self) -> list[str]:
        """The names of the files that were read."""
        return list(dict.fromkeys([*self.origins, *self.verify_origins, *self.tune_origins, *self.fleet_origins]))


def read_files(names: Sequence[str]) -> ReportInput:
    """Read files of any of these kinds; a file that is damaged, or of another kind, is named in `unread`."""
    found = ReportInput()
    unique = list(dict.fromkeys(names))
    alike = Counter(Path(name).name for name in unique)
    for name in unique:
        try:
            origin = Path(name).name if alike[Path(name).name] == 1 else name
            # Bytes of a name that are no text would be refused by the encoding of the page.
            origin = of_name(origin)
            _take(_loaded(Path(name)), Path(name), origin, found)
        except ConfigError as error:
            found.unread.append(str(error))
    return found


def _take(data: Any, path: Path, origin: str, found: ReportInput) -> None:
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: got {type(data).__name__}, an object with a schema is needed")
    schema = data.get("schema")
    if schema == BENCH_SCHEMA:
        _take_benches([data], path, origin, found)
    elif schema == DEVICE_SCHEMA:
        samples = samples_of(data, path)
        results = _loaded(samples)
        if not isinstance(results, list):
            raise ConfigError(f"{samples}: got {type(results).__name__}, a list of results is needed")
        _take_benches(results, samples, origin, found)
    elif schema == VERIFY_SCHEMA:
        _check(data, VerifyShape, path)
        found.verifications.append(data)
        found.verify_origins.append(origin)
    elif schema in (TUNE_SCHEMA, TUNING_SCHEMA):
        tuning = _of_memory(data, path) if schema == TUNING_SCHEMA else data
        _check(tuning, TuneShape, path)
        found.tunings.append(tuning)
        found.tune_origins.append(origin)
    elif schema == FLEET_SCHEMA:
        _take_fleet(data, path, origin, found)
    else:
        raise ConfigError(f"{path}: got schema {schema!r}, allowed are {', '.join(SCHEMAS)}")


def _take_benches(results: Sequence[Any], path: Path, origin: str, found: ReportInput) -> None:
    for result in results:
        if not isinstance(result, dict) or result.get("schema") != BENCH_SCHEMA:
            raise ConfigError(f"{path}: holds a result that is none of {BENCH_SCHEMA}")
        _check(result, BenchShape, path)
    # All of a file, or nothing.
    found.benches += [{"processes": [], "peers": {}, **result} for result in results]
    found.origins += [origin] * len(results)


def _take_fleet(data: dict[str, Any], path: Path, origin: str, found: ReportInput) -> None:
    _check(data, FleetShape, path)
    inner = ReportInput()
    for result in data["results"]:
        if result.get("schema") not in (BENCH_SCHEMA, VERIFY_SCHEMA) or not isinstance(result.get("worker"), str):
            raise ConfigError(f"{path}: holds a result that is none of {BENCH_SCHEMA} or {VERIFY_SCHEMA} with a worker")
        _take(result, path, origin, inner)
    for name in ("benches", "origins", "verifications", "verify_origins"):
        getattr(found, name).extend(getattr(inner, name))
    found.fleets.append(data)
    found.fleet_origins.append(origin)


def _check(data: dict[str, Any], shape: type[msgspec.Struct], path: Path) -> None:
    try:
        msgspec.convert(data, shape)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: is no such result: {error}") from error


def _loaded(path: Path) -> Any:
    try:
        data = read_bounded(path, LARGEST_FILE)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    kind, unpack = ("compressed results", unpacked) if path.suffix == ".xz" else ("JSON", bytes)
    try:
        return parse_json(unpack(data), constants=False)
    except (lzma.LZMAError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: holds no {kind}: {error}") from error


def _of_memory(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return what `tuning.json` remembers in the form of `clrope tune --json`."""
    entries = data.get("entries")
    if not isinstance(entries, dict):
        raise ConfigError(f"{path}: lacks entries")
    devices: dict[str, list[Any]] = {}
    for entry in entries.values():
        record = entry.get("record") if isinstance(entry, dict) else None
        key = record.get("key") if isinstance(record, dict) else None
        if not isinstance(record, dict) or not isinstance(key, dict):
            raise ConfigError(f"{path}: holds an entry without a record")
        name = " | ".join(str(record[field]) for field in ("device", "cpu") if record.get(field))
        devices.setdefault(name, []).append({**record, **key})
    return {"schema": TUNE_SCHEMA, "devices": [{"device": d, "records": r} for d, r in devices.items()]}
