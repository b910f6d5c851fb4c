"""`clrope config SOURCE`: what was understood of a model's configuration, and the wavelength of every pair."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError, RopeError
from .config_options import parse_mode_flag, read_json
from .exit_code import exit_with_code

if TYPE_CHECKING:
    from ..config import RopeConfig
    from ..io.summary import PairRow


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("config")(exit_with_code(_config))


def _config(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A GGUF file, a Hugging Face config.json or its folder, a JSON file of RopeConfig's fields, or the "
            "name of a preset.",
        ),
    ],
    mode: Annotated[str | None, typer.Option(help="The pairing, where the file does not say it.")] = None,
    layer_type: Annotated[str | None, typer.Option(help="Of a file with one RoPE per layer type.")] = None,
    seq_len: Annotated[int | None, typer.Option(help="Length that will be run, if the scaling depends on it.")] = None,
    head_dim: Annotated[int | None, typer.Option(help="Elements of a head, if SOURCE does not say it.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the wavelengths to this file (needs matplotlib).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> bool:
    """Print what was understood of a configuration and the resulting wavelengths."""
    from ..angles import magnitude_of
    from ..io.summary import summarise
    from .output import print_json, print_table

    kind, config = read_source(source, mode, layer_type, seq_len)
    if config.n_dims is None and head_dim is None:
        raise ConfigError(f"--head-dim: needed, {source} does not say how many elements a head has")
    rows = summarise(config, head_dim)
    if plot is not None:
        _draw(plot, rows, source)
    magnitude = magnitude_of(config)
    if as_json:
        pairs = [dataclasses.asdict(row) for row in rows]
        for pair in pairs:
            # JSON has no infinity: a pair that does not turn has no wavelength.
            pair["wavelength"] = pair["wavelength"] if math.isfinite(pair["wavelength"]) else None
        print_json(
            {
                "schema": "clrope.config/1",
                "source": source,
                "kind": kind,
                "config": config.to_dict(),
                "magnitude": magnitude,
                "pairs": pairs,
                "plot": None if plot is None else str(plot),
            }
        )
        return True
    shown = {name: value for name, value in config.to_dict().items() if value is not None}
    if "freq_factors" in shown:
        factors = shown["freq_factors"]
        shown["freq_factors"] = f"{len(factors)} numbers from {min(factors):.6g} to {max(factors):.6g}"
    shown["magnitude of cos and sin"] = f"{magnitude:.9g}"
    print_table(f"{source} ({kind})", ["field", "value"], shown.items())
    print_table(
        "",
        ["#pair", "#elements", "axis", "#radians per position", "#wavelength in positions"],
        [[r.index, f"{r.first}, {r.second}", r.axis, f"{r.omega:.9g}", f"{r.wavelength:.6g}"] for r in rows],
    )
    if plot is not None:
        print(f"drawn: {plot}")
    return True


def read_source(source: str, mode: str | None, layer_type: str | None, seq_len: int | None) -> tuple[str, RopeConfig]:
    """Return what a source is, in words, and its configuration."""
    from ..config import RopeConfig

    path = Path(source)
    pairing = parse_mode_flag(mode)
    if path.suffix.lower() == ".gguf":
        return "GGUF", RopeConfig.from_gguf(path, mode=pairing, seq_len=seq_len, layer_type=layer_type)
    if path.is_dir():
        return "Hugging Face", RopeConfig.from_hf(path, seq_len, layer_type=layer_type, mode=pairing)
    if path.suffix.lower() == ".json" or path.is_file():
        data = read_json(path)
        # A model's config.json has dozens of keys; ours has fields of RopeConfig and nothing else.
        if data and set(data) <= {field.name for field in dataclasses.fields(RopeConfig)}:
            given = {} if pairing is None else {"mode": pairing}
            return "fields of RopeConfig", RopeConfig.from_dict({**data, **given})
        return "Hugging Face", RopeConfig.from_hf(path, seq_len, layer_type=layer_type, mode=pairing)
    config = RopeConfig.preset(source)
    return "preset", config if pairing is None else dataclasses.replace(config, mode=pairing)


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
    axes.set(yscale="log", xlabel="pair", ylabel="wavelength in positions", title=title)
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        raise RopeError(f"{file}: cannot be drawn ({error})") from error
