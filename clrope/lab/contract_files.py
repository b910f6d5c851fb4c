"""Contracts in files: a user's own in TOML, or a Kernel Tuner T1 description (JSON) of a foreign kernel."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ..bounded_read import read_bounded
from ..errors import ConfigError, naming_file
from ..strict_json import parse_json
from .contract import Contract, ParameterValue, require_placeholders
from .contracts import cos_sin_tables

_LARGEST_FILE = 1 << 18
#: Dots of a line of TOML: tomllib takes memory and time by the square of the parts of a key.
_MOST_DOTS = 100
#: Digits, hexadecimal ones as well, without which no integer is beyond float64.
_LONG_INTEGER = re.compile(r"(?<![0-9a-fA-F_])[0-9a-fA-F_]{250}")

#: What messages quote.
Text = Annotated[str, msgspec.Meta(max_length=1000)]
#: A macro's name: a blank in it would make an option of its own.
Identifier = Annotated[str, msgspec.Meta(max_length=200, pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z")]
Value = int | float | Text


class _Toml(msgspec.Struct, forbid_unknown_fields=True):
    """A contract in TOML."""

    name: Text = "toml"
    kernel: Text = ""
    global_size: tuple[Text, ...] = Contract.global_size
    local_size: tuple[Text, ...] = ()
    options: list[Text] = []
    requires: list[Text] = []
    arguments: dict[Text, Text] = {}
    local: dict[Text, Text] = {}
    parameters: dict[Identifier, list[Value]] = {}
    shared_rows: bool = False


class _Sizes(msgspec.Struct):
    """Kernel Tuner's sizes of a launch."""

    X: Text | int
    Y: Text | int = 1
    Z: Text | int = 1


class _TunedArgument(msgspec.Struct):
    """Kernel Tuner's description of an argument."""

    Name: Text = ""
    Type: Text = ""
    MemoryType: Text = ""
    FillValue: float | int | str | None = None
    Meaning: Text = ""


class _KernelSpecification(msgspec.Struct):
    """Kernel Tuner's description of a kernel."""

    KernelName: Text
    GlobalSize: _Sizes
    KernelFile: Text = ""
    Language: Text = "OpenCL"
    LocalSize: _Sizes | None = None
    GlobalSizeType: Text = "OpenCL"
    CompilerOptions: list[Text] = []
    Arguments: list[_TunedArgument] = []


class _TuningParameter(msgspec.Struct):
    """A tunable parameter; the first of its values is used if it has no default."""

    Name: Identifier
    Values: list[Value] | str = []
    Default: Value | None = None

    @property
    def values(self) -> tuple[ParameterValue, ...]:
        """The values, the default first."""
        given = parse_json(self.Values) if isinstance(self.Values, str) else self.Values
        values = msgspec.convert(given, list[Value])
        if self.Default is None and not values:
            raise ConfigError(f"TuningParameters: {self.Name} has neither Default nor Values")
        first = [] if self.Default is None else [self.Default]
        return tuple(dict.fromkeys([*first, *values]))


class _Condition(msgspec.Struct):
    """Kernel Tuner's condition on parameters."""

    Expression: str


class _ConfigurationSpace(msgspec.Struct):
    """Kernel Tuner's parameters."""

    TuningParameters: list[_TuningParameter] = []
    Conditions: list[_Condition] = []


class _KernelTuner(msgspec.Struct):
    """Kernel Tuner's T1 file, as far as it is used."""

    KernelSpecification: _KernelSpecification
    ConfigurationSpace: _ConfigurationSpace = msgspec.field(default_factory=_ConfigurationSpace)


def contract_of_file(path: Path) -> tuple[Contract, Path | None]:
    """Return a file's contract, and the kernel file that it names, if any. Raises `ConfigError` naming file and key."""
    try:
        data = read_bounded(path, _LARGEST_FILE)
        with naming_file(path):
            if path.suffix == ".toml":
                return _of_toml(msgspec.convert(parsed_toml(data), _Toml)), None
            return _of_kernel_tuner(msgspec.convert(parse_json(data), _KernelTuner), path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read as a contract ({error.strerror or error})") from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path}: is no contract ({error})") from error


def parsed_toml(data: bytes) -> dict[str, Any]:
    """Return the tables of a TOML text. Raises `ValueError`."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    text = data.decode()
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > _MOST_DOTS and not line.lstrip().startswith("#"):
            raise ValueError(f"line {number} has more than {_MOST_DOTS} dots")
    found = tomllib.loads(text)
    if _LONG_INTEGER.search(text):
        _refuse_large(found)
    return found


def _refuse_large(value: Any) -> None:
    """Raise `ValueError` for an integer beyond float64, where msgspec before 0.22 ends in a `SystemError`."""
    if isinstance(value, int) and value.bit_length() > 1023:
        raise ValueError("a number in it is beyond float64")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _refuse_large(part)


def _of_toml(given: _Toml) -> Contract:
    require_placeholders("kernel", given.kernel)
    return Contract(
        given.name, "described by a TOML file", given.arguments, given.kernel, given.global_size,
        given.local_size, tuple((test, f"calls without {test}") for test in given.requires), given.local,
        parameters={name: tuple(values) for name, values in given.parameters.items()}, options=tuple(given.options),
        shared_rows=given.shared_rows,
    )  # fmt: skip


def _of_kernel_tuner(given: _KernelTuner, path: Path) -> tuple[Contract, Path | None]:
    spec = given.KernelSpecification
    require_placeholders("KernelName", spec.KernelName)
    if spec.Language.lower() != "opencl":
        raise ConfigError(f"Language: got {spec.Language!r}, 'OpenCL' is needed")
    if spec.GlobalSizeType.upper() not in ("OPENCL", "CUDA"):
        raise ConfigError(f"GlobalSizeType: got {spec.GlobalSizeType!r}, allowed are 'OpenCL', 'CUDA'")
    space = given.ConfigurationSpace
    for kind, named in (("Arguments", spec.Arguments), ("TuningParameters", space.TuningParameters)):
        names = [item.Name for item in named if item.Name]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"{kind}: {twice!r} is there twice")
    arguments = dict(cos_sin_tables.CONTRACT.arguments)
    for argument in spec.Arguments:
        if argument.Meaning:
            arguments[argument.Name] = argument.Meaning
        elif argument.MemoryType.lower() == "scalar" and isinstance(argument.FillValue, (int, float)):
            arguments.setdefault(argument.Name, repr(argument.FillValue))
    whole, local = _sizes(spec.GlobalSize), _sizes(spec.LocalSize) if spec.LocalSize else ()
    if spec.GlobalSizeType.upper() == "CUDA":  # in work-groups
        whole = tuple(f"({a}) * ({b})" for a, b in zip(whole, local or ("1",) * 3, strict=True))
    contract = Contract(
        "kernel-tuner", "described by a Kernel Tuner T1 file", arguments, spec.KernelName, whole, local,
        requires=tuple((c.Expression, f"parameters without {c.Expression}") for c in space.Conditions),
        parameters={p.Name: p.values for p in space.TuningParameters}, options=tuple(spec.CompilerOptions),
    )  # fmt: skip
    return contract, path.parent / spec.KernelFile if spec.KernelFile else None


def _sizes(sizes: _Sizes) -> tuple[str, ...]:
    return str(sizes.X), str(sizes.Y), str(sizes.Z)
