"""`NpuMachine`: cores with scratchpads, as numbers. Read from TOML files, those of the package or a user's."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ...bounded_read import read_bounded
from ...errors import ConfigError
from ..contract_files import parsed_toml

_LARGEST_FILE = 1 << 16
_FOLDER = "machines"
_BASE = "generic"
_BYTES = re.compile(r"([0-9]{1,15})\s*(?:([KM])(?:i?B)?|B?)")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_REAL = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?(e[+-]?[0-9]{1,3})?", re.IGNORECASE)
_SIZES = ("ub", "align", "global_align", "burst", "vector_bytes")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}

Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
Rate = Annotated[float, msgspec.Meta(ge=1e-9, le=1e9)]


class NpuMachine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A machine.

    cores: work-groups that run at once. ub: bytes of a core's scratchpad. align: bytes that addresses in it, and sizes
    of copies, are multiples of. global_align: likewise for addresses in global memory. burst: least bytes of a copy.
    vector_bytes: bytes of one vector instruction, which takes a cycle. core_gb_s, total_gb_s: bandwidth between global
    memory and one scratchpad, and all of them. latency_ns: what a copy takes besides its bytes.
    """

    name: Annotated[str, msgspec.Meta(max_length=1000)]
    cores: Count
    ub: Size
    align: Count
    burst: Count
    clock_ghz: Rate
    core_gb_s: Rate
    total_gb_s: Rate
    vector_bytes: Count
    latency_ns: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    global_align: Count = 1

    def macros(self) -> dict[str, int]:
        """Return the macros that a kernel file may read: NPU_CORES, NPU_UB, NPU_ALIGN, NPU_BURST."""
        return {f"NPU_{name.upper()}": getattr(self, name) for name in ("cores", "ub", "align", "burst")}


def machine_names() -> tuple[str, ...]:
    """Return the names of the package's machines."""
    return tuple(sorted(f.name.removesuffix(".toml") for f in (files(__package__) / _FOLDER).iterdir()))


def machine(text: str) -> NpuMachine:
    """Return a machine: a name of `machine_names`, a TOML file's path, KEY=VALUE, or one of these with `,KEY=VALUE`.

    Without a name or file the numbers that are not given are those of 'generic'. Raises `ConfigError`.
    """
    first, *rest = (part.strip() for part in text.split(","))
    if "=" in first:
        first, rest = _BASE, [first, *rest]
    values = _values_of(first)
    given: dict[str, Any] = {}
    for part in rest:
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or key not in NpuMachine.__struct_fields__ or key == "name":
            allowed = ", ".join(name for name in NpuMachine.__struct_fields__ if name != "name")
            raise ConfigError(f"npu: got {part!r}, allowed is KEY=VALUE with one of {allowed}")
        if key in given:
            raise ConfigError(f"npu: got {part!r}, {key} is there twice")
        given[key] = value if key in _SIZES else _number(value)
    if rest:
        values["name"] = f"{values.get('name', first)} with {', '.join(rest)}"
    return _machine_of(values | given, f"npu: {text}")


def _values_of(name: str) -> dict[str, Any]:
    try:
        if name in machine_names():
            return parsed_toml((files(__package__) / _FOLDER / f"{name}.toml").read_bytes())
        path = Path(name)
        if path.suffix != ".toml":
            raise ConfigError(
                f"npu: got {name!r}, allowed are {', '.join(machine_names())}, the path of a .toml file, or KEY=VALUE"
            )
        return parsed_toml(read_bounded(path, _LARGEST_FILE))
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read as a machine ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{name}: is no machine ({error})") from error


def _machine_of(values: dict[str, Any], where: str) -> NpuMachine:
    given = dict(values)
    for key in _SIZES:
        if isinstance(given.get(key), str):
            match = _BYTES.fullmatch(given[key])
            if match is None:
                raise ConfigError(
                    f"{where}: {key}: got {given[key][:80]!r}, a number of bytes such as 196608 or 192K is needed"
                )
            given[key] = int(match[1]) * _UNITS[match[2] or ""]
    try:
        return msgspec.convert(given, NpuMachine)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: is no machine ({error})") from error


def _number(text: str) -> Any:
    """Return the number that stands behind KEY=; the text if it is none."""
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _REAL.fullmatch(text) else text
