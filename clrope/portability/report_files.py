"""Reading of what a report is made of: results of `clrope bench`, and reports of `clrope verify` and `clrope tune`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..benchmark.results import DEVICE_SCHEMA, LARGEST_RESULT, read_all
from ..benchmark.results import SCHEMA as BENCH_SCHEMA
from ..bounded_read import read_bounded
from ..errors import ConfigError

VERIFY_SCHEMA = "clrope.verify/1"
TUNE_SCHEMA = "clrope.tune/2"


@dataclass
class ReportInput:
    """The contents of some files. origins: a file for each of `benches`. unread: why other files are left out."""

    benches: list[dict[str, Any]] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    verifications: list[dict[str, Any]] = field(default_factory=list)
    tunings: list[dict[str, Any]] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def read_files(names: Sequence[str]) -> ReportInput:
    """Read files of any of these kinds; a file that is damaged, or of another kind, is named in `unread`."""
    found = ReportInput()
    for name in names:
        try:
            _read(Path(name), found)
        except ConfigError as error:
            found.unread.append(str(error))
    return found


def _read(path: Path, found: ReportInput) -> None:
    schema, data = _schema_of(path)
    if schema in (BENCH_SCHEMA, DEVICE_SCHEMA):
        results = read_all(path)
        found.benches += results
        found.origins += [path.name] * len(results)
        return
    needed = {VERIFY_SCHEMA: ("devices", "summary", "bits", "results"), TUNE_SCHEMA: ("devices",)}.get(str(schema))
    if needed is None:
        allowed = ", ".join((BENCH_SCHEMA, DEVICE_SCHEMA, VERIFY_SCHEMA, TUNE_SCHEMA))
        raise ConfigError(f"{path}: got schema {schema!r}, allowed are {allowed}")
    for name in needed:
        if not isinstance(data.get(name), (list, dict)):
            raise ConfigError(f"{path}: lacks {name}")
    (found.verifications if schema == VERIFY_SCHEMA else found.tunings).append(data)


def _schema_of(path: Path) -> tuple[Any, dict[str, Any]]:
    try:
        data = json.loads(read_bounded(path, LARGEST_RESULT))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: holds no JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: got {type(data).__name__}, an object with a schema is needed")
    return data.get("schema"), data
