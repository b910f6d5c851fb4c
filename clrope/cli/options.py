"""Options that several commands have, each with one name and one help text."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import typer

from ..device import DeviceInfo, device, devices
from ..device.select import ALIASES, KINDS
from ..errors import ConfigError, DeviceError
from ..layout import DTYPES
from ..mode import GGML_MODES

#: Seconds of a unit.
_UNITS = {"s": 1, "m": 60, "h": 3600}


def flag(name: str, text: str) -> Any:
    """Return an option without a value."""
    return typer.Option(name, help=text)


def value(metavar: str, text: str, **more: Any) -> Any:
    """Return an option with a value; min, max: limits of a number, floats where it need not be whole.

    more: what else `typer.Option` takes.
    """
    if "min" in more:
        more["parser"] = partial(_number, least=more.pop("min"), most=more.pop("max", None), unit=metavar == "SECONDS")
    return typer.Option(metavar=metavar, help=text, **more)


def _number(given: Any, least: float, most: float | None, unit: bool) -> Any:
    """Return a number within limits, as seconds if it may have a unit; `BadParameter` for anything else."""
    text, times = str(given).strip(), 1
    if unit and text[-1:] in _UNITS:
        text, times = text[:-1], _UNITS[text[-1]]
    whole = not (isinstance(least, float) or isinstance(most, float))
    with suppress(ValueError, OverflowError):
        number = (int if whole else float)(text) * times
        if least <= number and (most is None or number <= most):
            return number
    limits = f"of {least:.15g} or more" if most is None else f"from {least:.15g} to {most:.15g}"
    more = " seconds, with or without a unit: 90, 90s, 5m, 1h" if unit else ""
    raise typer.BadParameter(
        f"got {str(given)!r}, allowed is {'a whole number' if whole else 'a number'} {limits}{more}"
    )


def _device(more: str) -> Any:
    text = f"Device: index, kind, or part of the name or platform; 'clrope devices' lists them{more}"
    return typer.Option("--device", metavar="DEVICE", help=text, autocompletion=lambda: ["auto", *KINDS, *ALIASES])


#: For commands that run once on each device; for commands that show what a call does; for a result from one device.
Devices = Annotated[list[str] | None, _device(" (repeatable). Default: all healthy devices but simulators.")]
CallDevices = Annotated[list[str] | None, _device(" (repeatable). Default: the fastest healthy device.")]
OneDevice = Annotated[str | None, _device(". Default: the fastest healthy device.")]
_TYPE_HELP = f"Storage type: {', '.join(DTYPES)} (repeatable)."
Types = Annotated[
    list[str] | None, typer.Option("--type", metavar="TYPE", help=_TYPE_HELP, autocompletion=lambda: list(DTYPES))
]
_MODE_HELP = f"Which elements form a pair: {', '.join(GGML_MODES)}, or ggml's number."
Mode = Annotated[str | None, value("MODE", _MODE_HELP, autocompletion=lambda: list(GGML_MODES))]
LayerType = Annotated[str | None, value("NAME", "Layer type, for a file with one configuration for each.")]
SeqLen = Annotated[int | None, value("N", "Sequence length, for a file whose scaling depends on it.")]
Layout = Annotated[str, value("AXES", "Order of the axes: any order of b, s, n, d.")]
Backward = Annotated[bool, flag("--backward", "Rotate backward: the sign of sin is flipped.")]
Seed = Annotated[int | None, value("N", "Seed of the inputs. Default: a new one.", min=0)]
AsJson = Annotated[bool, flag("--json", "Print the result as JSON.")]
JsonFile = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON; '-': print it in place of text.")
]
_SCHEDULER_HELP = "Run on every worker of a Dask cluster: its scheduler's address, as tcp://HOST:PORT."
Scheduler = Annotated[str | None, typer.Option("--scheduler", metavar="ADDRESS", help=_SCHEDULER_HELP)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only: no progress, no remarks.")]


def healthy_devices(names: Sequence[str] | None) -> list[DeviceInfo]:
    """Return the devices of these names, each once, or all healthy ones but simulators; `DeviceError` if none is."""
    if names:
        return list(dict.fromkeys(device(name) for name in names))
    found = [d for d in devices() if d.health.ok and not d.simulator]
    if not found:
        raise DeviceError("device: no healthy OpenCL device; `clrope devices` says what was found and what to do")
    return found


def checked_types(names: Sequence[str] | None) -> list[str]:
    """Return the storage types, each once; `ConfigError` for an unknown one."""
    for name in names or ():
        if name not in DTYPES:
            raise ConfigError(f"--type: got {name!r}, allowed are {', '.join(DTYPES)}")
    return list(dict.fromkeys(names or ()))
