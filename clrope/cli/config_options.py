"""A configuration on the command line: from a file or a preset, and an option for every field of `RopeConfig`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, get_args

from ..config import RopeConfig
from ..errors import ConfigError, RopeError, naming_file
from ..io.config_values import MOST_DIMS
from ..io.files import format_of, read_arrays
from ..io.json_object import read_json_object
from ..layout import DTYPES
from .options import LayerType, Mode, SeqLen, value
from .output import names_text


def _option(kind: Any, metavar: str, text: str) -> Any:
    return Annotated[kind | None, value(metavar, text)]


#: The options that describe a configuration, with their annotations for typer.
_OPTIONS: Mapping[str, Any] = {
    "config": _option(Path, "FILE", "JSON file with fields of RopeConfig, the options below."),
    "gguf": _option(Path, "FILE", "GGUF model file."),
    "hf": _option(Path, "PATH", "Hugging Face config.json, or its folder."),
    "preset": _option(str, "NAME", "Well-known model."),
    "layer_type": LayerType,
    "seq_len": SeqLen,
    "mode": Mode,
    "n_dims": _option(int, "N", "Rotated elements of a head. Default: all."),
    "freq_base": _option(float, "X", "Base of the frequencies. Default: 10000."),
    "freq_scale": _option(float, "X", "Factor of the angles. Default: 1."),
    "ext_factor": _option(float, "X", "Weight of YaRN's ramp. Default: 0, no YaRN."),
    "attn_factor": _option(float, "X", "Factor of cos and sin. Default: 1."),
    "beta_fast": _option(float, "X", "Turns at which YaRN's ramp begins. Default: 32."),
    "beta_slow": _option(float, "X", "Turns at which YaRN's ramp ends. Default: 1."),
    "n_ctx_orig": _option(int, "N", "Context length of the training, for YaRN. Default: 0."),
    "freq_factors": _option(str, "LIST", "Divisors of the angles: 1.0,1.1,... or FILE[:NAME]."),
    "sections": _option(str, "LIST", "Pairs of each position axis: t,h,w or t,h,w,e."),
    "n_offs": _option(int, "N", "First rotated element of a head. Default: 0."),
    "angles": _option(
        str, "KIND", "Arithmetic of the angles: exact, or ggml for its float32 recurrence. Default: exact."
    ),
}
_SOURCES = ("config", "gguf", "hf", "preset")
#: Arguments as messages of the package name them: one with a value, or one at the start.
_ARGUMENT = re.compile(r"\b(mode|layer_type|seq_len)='(\w+)'|(?<![\w.])(layer_type|seq_len): (?=not given|got)")


@contextmanager
def naming_options() -> Iterator[None]:
    """Let the messages of `ConfigError` raised inside name options, not arguments in Python."""

    def option(found: re.Match[str]) -> str:
        name = (found[1] or found[3]).replace("_", "-")
        return f"--{name} {found[2]}" if found[1] else f"--{name}: "

    try:
        yield
    except ConfigError as error:
        raise ConfigError(_ARGUMENT.sub(option, str(error))) from error


def takes_config(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, whose first parameter is the configuration, the options that describe one.

    A parameter that may be None is None if no such option is given.
    """
    # Typer reads a signature whose annotations are objects, not texts. Not `get_type_hints`, which in Python 3.10 hides
    # an `Annotated` with the default None in an `Optional`.
    first, *own = inspect.signature(command, eval_str=True).parameters.values()
    optional = type(None) in get_args(first.annotation)

    @functools.wraps(command)
    def wrapped(**values: Any) -> None:
        options = {name: values.pop(name) for name in _OPTIONS}
        given = {name: value for name, value in options.items() if value is not None}
        command(_read_config(given) if given or not optional else None, **values)

    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in _OPTIONS.items()
    ]
    wrapped.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in (*own, *shared)}
    return wrapped


def _read_config(given: dict[str, Any]) -> RopeConfig:
    """Return the configuration that options describe; `ConfigError` if they are too many or too few."""
    sources = [name for name in _SOURCES if name in given]
    if len(sources) > 1:
        raise ConfigError(f"--{sources[1]}: given together with --{sources[0]}, one source is needed")
    for name in ("layer_type", "seq_len"):
        if name in given and sources not in (["gguf"], ["hf"]):
            raise ConfigError(f"--{name.replace('_', '-')}: has a meaning with --gguf and --hf only")
    fields = {name: given[name] for name in given if name in RopeConfig.__dataclass_fields__}
    for name, parsed in (("mode", parse_mode_flag), ("freq_factors", _factors), ("sections", _sections)):
        if name in fields:
            fields[name] = parsed(fields[name])
    if "config" in given:
        read_fields = read_json_object(given["config"])
        with nullcontext() if fields else naming_file(given["config"]):  # with options, either may be what is wrong
            return RopeConfig.from_dict({**read_fields, **fields})
    if "gguf" in given or "hf" in given:
        read = RopeConfig.from_gguf if "gguf" in given else RopeConfig.from_hf
        reading = {name: given.get(name) for name in ("seq_len", "layer_type")}
        with naming_options():
            return dataclasses.replace(read(given[sources[0]], mode=fields.get("mode"), **reading), **fields)
    if "preset" in given:
        return dataclasses.replace(RopeConfig.preset(given["preset"]), **fields)
    if "mode" not in fields:
        raise ConfigError(
            "--mode: not given, and no --config, --gguf, --hf or --preset; it has no default because a wrong pairing "
            "gives wrong results without an error"
        )
    return RopeConfig(**fields)


def named_array(text: str, what: str, others: str = "") -> Any:
    """Return the array that FILE or FILE:NAME stands for; without a name the file must hold one array only.

    what: the option, for errors; others: what else it takes.
    """
    name, given = "", text
    if not os.path.exists(text) and ":" in text:  # unlike Path's, False for a name that is too long
        text, _, name = text.rpartition(":")
    try:
        format_of(text)
    except ConfigError as error:
        forms = f"{others} or a file" if others else "a file"
        raise ConfigError(f"{what}: got {given!r}, allowed is {forms}, as FILE or FILE:NAME ({error})") from None
    try:
        arrays = read_arrays(text)
    except RopeError as error:
        raise type(error)(f"{what}: {error}") from error
    if not name and len(arrays) == 1:
        name = next(iter(arrays))
    if name not in arrays:
        got = f"{text} has no array {name!r}" if name else f"{text} holds {len(arrays)} arrays, name one as FILE:NAME"
        raise ConfigError(f"{what}: {got}; there are {names_text(arrays)}")
    return arrays[name]


def parse_mode_flag(text: str | None) -> Any:
    """Return a mode's name as it is, ggml's number as an integer, None as None."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 20 else text


def _sections(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"sections: got {text!r}, integers with commas between are needed") from error


def _factors(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        array = named_array(text, "freq_factors", "numbers with commas between")
        if array.dtype.kind not in "fiu" and array.dtype not in DTYPES.values():
            raise ConfigError(f"freq_factors: {text} holds {array.dtype}, real numbers are needed") from None
        if array.size > MOST_DIMS:
            raise ConfigError(
                f"freq_factors: {text} holds {array.size} numbers, at most {MOST_DIMS} are read"
            ) from None
        return tuple(float(f) for f in array.ravel())
