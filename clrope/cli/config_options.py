"""A configuration on the command line: from a file or a preset, and a flag for every field of `RopeConfig`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from ..errors import ConfigError, RopeError

if TYPE_CHECKING:
    from ..config import RopeConfig


def _field(text: str) -> Any:
    return typer.Option(help=text)


def read_config(
    config_file: Annotated[Path | None, typer.Option("--config", help="JSON file of the fields below.")] = None,
    gguf: Annotated[Path | None, _field("GGUF model file.")] = None,
    hf: Annotated[Path | None, _field("Hugging Face config.json, or its folder.")] = None,
    preset: Annotated[str | None, _field("A well-known model by name.")] = None,
    layer_type: Annotated[str | None, _field("Of a file with one RoPE per layer type.")] = None,
    seq_len: Annotated[int | None, _field("Length that will be run, where a file's scaling depends on it.")] = None,
    mode: Annotated[str | None, _field("normal, neox, mrope, imrope, vision, or ggml's integer.")] = None,
    n_dims: Annotated[int | None, _field("Rotated elements of a head. Default: all.")] = None,
    freq_base: Annotated[float | None, _field("Base of the frequencies. Default: 10000.")] = None,
    freq_scale: Annotated[float | None, _field("Factor on the angles. Default: 1.")] = None,
    ext_factor: Annotated[float | None, _field("Weight of YaRN's ramp. Default: 0, no YaRN.")] = None,
    attn_factor: Annotated[float | None, _field("Factor on cos and sin. Default: 1.")] = None,
    beta_fast: Annotated[float | None, _field("Turns at which YaRN's ramp begins. Default: 32.")] = None,
    beta_slow: Annotated[float | None, _field("Turns at which YaRN's ramp ends. Default: 1.")] = None,
    n_ctx_orig: Annotated[int | None, _field("Context length trained with, for YaRN. Default: 0.")] = None,
    freq_factors: Annotated[str | None, _field("Divisors of the angles: 1.0,1.1,... or FILE[:NAME].")] = None,
    sections: Annotated[str | None, _field("Pairs of each axis: t,h,w or t,h,w,e.")] = None,
    n_offs: Annotated[int | None, _field("First rotated element of a head. Default: 0.")] = None,
    angles: Annotated[str | None, _field("exact (default), or ggml: its float32 recurrence.")] = None,
) -> RopeConfig:
    """Return the configuration that the flags describe; `ConfigError` if they are too many or too few."""
    from ..config import RopeConfig

    sources = {"--config": config_file, "--gguf": gguf, "--hf": hf, "--preset": preset}
    given = [flag for flag, value in sources.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(f"{given[1]}: given together with {given[0]}, one source is needed")
    read_by_mode = {k: v for k, v in (("--layer-type", layer_type), ("--seq-len", seq_len)) if v is not None}
    if read_by_mode and not (gguf or hf):
        raise ConfigError(f"{next(iter(read_by_mode))}: has a meaning with --gguf and --hf only")
    fields: dict[str, Any] = {
        "mode": parse_mode_flag(mode), "n_dims": n_dims, "freq_base": freq_base, "freq_scale": freq_scale,
        "ext_factor": ext_factor, "attn_factor": attn_factor, "beta_fast": beta_fast, "beta_slow": beta_slow,
        "n_ctx_orig": n_ctx_orig, "freq_factors": _factors(freq_factors), "sections": _integers("sections", sections),
        "n_offs": n_offs, "angles": angles,
    }  # fmt: skip
    fields = {name: value for name, value in fields.items() if value is not None}
    if config_file is not None:
        return RopeConfig.from_dict({**read_json(config_file), **fields})
    if gguf is not None or hf is not None:
        read = RopeConfig.from_gguf if gguf is not None else RopeConfig.from_hf
        found = read(gguf or hf, mode=fields.get("mode"), seq_len=seq_len, layer_type=layer_type)  # type: ignore[arg-type]
        return dataclasses.replace(found, **fields)
    if preset is not None:
        return dataclasses.replace(RopeConfig.preset(preset), **fields)
    if "mode" not in fields:
        raise ConfigError(
            "--mode: not given, and no --config, --gguf, --hf or --preset; it has no default because a wrong pairing "
            "gives fluent garbage"
        )
    return RopeConfig(**fields)


def takes_config(command: Callable[..., bool]) -> Callable[..., bool]:
    """Give a command (whose first parameter is the configuration) the flags of `read_config`."""
    shared = inspect.signature(read_config).parameters
    own = list(inspect.signature(command).parameters.values())[1:]

    @functools.wraps(command)
    def wrapped(**values: Any) -> bool:
        config = read_config(**{name: values.pop(name) for name in shared})
        return command(config, **values)

    # Typer reads a signature with annotations that are objects, not texts.
    hints = get_type_hints(read_config, globals() | {"RopeConfig": object}, include_extras=True)
    hints |= get_type_hints(command, command.__globals__ | {"RopeConfig": object}, include_extras=True)
    parameters = [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[p.name]) for p in [*own, *shared.values()]
    ]
    wrapped.__signature__ = inspect.Signature(parameters, return_annotation=bool)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": bool}
    return wrapped


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; `ConfigError` if there is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RopeError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON ({error})") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds {type(data).__name__}, an object of field names is needed")
    return data


def named_array(text: str, what: str) -> Any:
    """Return the array that FILE or FILE:NAME stands for; without a name the file must hold one array only."""
    from ..io.files import read_arrays

    name = ""
    if not Path(text).exists() and ":" in text:
        text, _, name = text.rpartition(":")
    arrays = read_arrays(text)
    if not name and len(arrays) == 1:
        name = next(iter(arrays))
    if name not in arrays:
        got = f"{text} has no array {name!r}" if name else f"{text} holds {len(arrays)} arrays, name one as FILE:NAME"
        raise ConfigError(f"{what}: {got}; there are {', '.join(arrays) or 'none'}")
    return arrays[name]


def parse_mode_flag(text: str | None) -> Any:
    """Return a mode's name as it is, ggml's number as an integer, None as None."""
    return int(text) if text is not None and text.isdecimal() else text


def _integers(name: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"{name}: got {text!r}, integers with commas between are needed") from error


def _factors(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        return tuple(float(f) for f in named_array(text, "freq_factors").ravel())
