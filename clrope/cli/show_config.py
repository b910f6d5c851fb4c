"""`clrope config SOURCE`: what was understood of a model's configuration, and the wavelength of every pair."""

from __future__ import annotations

import dataclasses
import io
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..angles import magnitude_of
from ..config import RopeConfig
from ..errors import ConfigError, RopeError, naming_file
from ..io.json_object import read_json_object
from ..output_file import write_file
from ..printable import printable
from .config_options import naming_options, parse_mode_flag
from .options import AsJson, LayerType, Mode, Quiet, SeqLen, value
from .output import check_places, print_fields, print_json, print_line, print_table

if TYPE_CHECKING:
    from ..io.summary import PairRow


def show_config(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="GGUF file, Hugging Face config.json or its folder, JSON file with fields of RopeConfig, or preset.",
        ),
    ],
    mode: Mode = None,
    layer_type: LayerType = None,
    seq_len: SeqLen = None,
    head_dim: Annotated[int | None, value("N", "Elements of a head, where SOURCE does not state them.")] = None,
    plot: Annotated[Path | None, value("FILE", "Draw the wavelengths to a file (needs matplotlib).")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show the RoPE configuration of a model.

    Prints what was understood of SOURCE, and the wavelength of every pair of elements.
    """
    from ..io.hf import notes_from_hf
    from ..io.summary import summarise

    if plot is not None and not plot.suffix:
        raise ConfigError(f"--plot: got {str(plot)!r}, a suffix such as .png or .svg is needed")
    check_places({"--plot": plot}, [source])
    with naming_options():
        kind, config = read_source(source, mode, layer_type, seq_len)
    notes = notes_from_hf(source) if kind == "Hugging Face" else []
    if config.n_dims is None and head_dim is None:
        raise ConfigError(f"--head-dim: needed, {source} does not state how many elements a head has")
    rows = summarise(config, head_dim)
    if plot is not None:
        _draw(plot, rows, source)
    magnitude = magnitude_of(config)
    if as_json:
        # JSON has no infinity: a pair that does not turn has no wavelength.
        pairs = [
            dataclasses.asdict(row) | {"wavelength": row.wavelength if math.isfinite(row.wavelength) else None}
            for row in rows
        ]
        print_json(
            {
                "schema": "clrope.config/1",
                "source": source,
                "kind": kind,
                "notes": notes,
                "config": config.to_dict(),
                "magnitude": magnitude,
                "pairs": pairs,
                "plot": None if plot is None else str(plot),
            }
        )
        return
    shown = {name: got for name, got in config.to_dict().items() if got is not None}
    if "freq_factors" in shown:
        factors = shown["freq_factors"]
        shown["freq_factors"] = f"{len(factors)} numbers from {min(factors):.6g} to {max(factors):.6g}"
    if config.pair_axes is not None:
        shown["pair_axes"] = ", ".join(
            f"axis {axis}: {config.pair_axes.count(axis)} pairs" for axis in range(config.position_axes)
        )
    shown["magnitude of cos and sin"] = f"{magnitude:.9g}"
    print_line(f"{source} ({kind})")
    print_fields(shown.items())
    for note in notes:
        print_line(f"not in this: {note}")
    print_table(
        "Pairs",
        ["#pair", "#elements", "axis", "#radians per position", "#wavelength in positions"],
        [[r.index, f"{r.first}, {r.second}", r.axis, f"{r.omega:.9g}", f"{r.wavelength:.6g}"] for r in rows],
    )
    if plot is not None and not quiet:
        print_line(f"drawn: {plot}")


def read_source(source: str, mode: str | None, layer_type: str | None, seq_len: int | None) -> tuple[str, RopeConfig]:
    """Return what a source is, in words, and its configuration."""
    path = Path(source)
    pairing = parse_mode_flag(mode)
    if path.suffix.lower() == ".gguf":
        return "GGUF", RopeConfig.from_gguf(path, mode=pairing, seq_len=seq_len, layer_type=layer_type)
    # A name with a slash is no preset; `os.path.isdir` is, unlike Path's, False for a name that is too long.
    if os.path.isdir(path) or (len(path.parts) > 1 and not os.path.lexists(path) and path.suffix.lower() != ".json"):
        return "Hugging Face", RopeConfig.from_hf(path, seq_len, layer_type=layer_type, mode=pairing)
    if path.suffix.lower() == ".json" or os.path.isfile(path):
        data = read_json_object(path)
        # A model's config.json has dozens of keys; ours has fields of RopeConfig and nothing else.
        if data and set(data) <= {field.name for field in dataclasses.fields(RopeConfig)}:
            given = {} if pairing is None else {"mode": pairing}
            _refuse(layer_type, seq_len, "fields of RopeConfig")
            with naming_file(path):
                return "fields of RopeConfig", RopeConfig.from_dict({**data, **given})
        return "Hugging Face", RopeConfig.from_hf(path, seq_len, layer_type=layer_type, mode=pairing)
    config = RopeConfig.preset(source)
    _refuse(layer_type, seq_len, "presets")
    return "preset", config if pairing is None else dataclasses.replace(config, mode=pairing)


def _refuse(layer_type: str | None, seq_len: int | None, what: str) -> None:
    for option, given in (("--layer-type", layer_type), ("--seq-len", seq_len)):
        if given is not None:
            raise ConfigError(f"{option}: got {given!r}, it has no meaning for {what}")


def _draw(file: Path, rows: list[PairRow], title: str) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RopeError("--plot: matplotlib is not installed; `pip install matplotlib`") from error
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for name in dict.fromkeys(row.axis for row in rows):
        here = [row for row in rows if row.axis == name]
        axes.plot([r.index for r in here], [r.wavelength for r in here], ".", label=f"driven by {name}")
    axes.set(yscale="log", xlabel="pair", ylabel="wavelength in positions")
    axes.set_title(printable(title), parse_math=False)
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    drawn = io.BytesIO()
    try:
        figure.savefig(drawn, format=file.suffix[1:] or None)
    except ValueError as error:
        raise RopeError(f"{file}: cannot be drawn ({error})") from error
    write_file(file, drawn.getvalue())
