"""`clrope identify BEFORE AFTER`: which RoPE convention made one file's tensors from another's."""

from __future__ import annotations

import os
from typing import Annotated, Any

import numpy.typing as npt
import typer

from ..config import RopeConfig
from ..errors import ConfigError, ShapeError
from ..identify import Identification, identify
from ..io.files import read_arrays
from ..layout import DTYPES
from .config_options import named_array, takes_config
from .exit_code import WRONG
from .options import AsJson, Layout, Quiet, value
from .output import arrays_text, names_text, print_json, print_line, print_table
from .positions_option import POSITIONS_HELP, read_positions

Array = npt.NDArray[Any]


@takes_config
def identify_files(
    config: RopeConfig | None,
    before: Annotated[
        str, typer.Argument(metavar="BEFORE", help="q or k before RoPE: .npy, .npz or .safetensors, as FILE[:NAME].")
    ],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="The same after RoPE, as FILE[:NAME].")],
    positions: Annotated[str | None, value("POSITIONS", f"{POSITIONS_HELP} Default: 0.")] = None,
    layout: Layout = "bsnd",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find the RoPE convention that rotated a tensor.

    Prints the conventions that were checked, the best first, and a sentence. Files without NAME: the tensors that have
    the same name in both, or the only one of each. With --config, --gguf, --hf, --preset or --mode the convention is
    compared with that configuration. Exit code 1 if no convention fits, or another one than configured.
    """
    where = 0 if positions is None else read_positions(positions)
    found = []
    for name, x, y in _pairs(before, after):
        try:
            found.append((name, x, identify(x, y, where, layout=layout, config=config)))
        except (ShapeError, ConfigError) as error:
            raise type(error)(f"tensor {name!r}: {error}") from error
    ok = all(report.best is not None and report.agrees is not False for _, _, report in found)
    if as_json:
        tensors = [
            {"tensor": name, "dtype": str(x.dtype), "shape": list(x.shape), **report.to_dict()}
            for name, x, report in found
        ]
        given = None if config is None else config.to_dict()
        files = {"before": before, "after": after}
        print_json({"schema": "clrope.identify/1", **files, "config": given, "tensors": tensors, "ok": ok})
    else:
        for name, x, report in found:
            _print(name, x, report, quiet)
    if not ok:
        raise SystemExit(WRONG)


def _print(name: str, x: Array, report: Identification, quiet: bool) -> None:
    if not quiet:
        rows = [
            [str(h), " or ".join(h.angles) or "-", f"{h.nmse:.3g}", f"{h.limit:.1e}", "yes" if h.fits else "no"]
            for h in report.hypotheses
        ]
        title = f"{name}: {x.dtype} {list(x.shape)}"
        if rows:
            print_table(title, ["convention", "angles", "#NMSE", "#limit", "fits"], rows)
        else:
            print()
            print_line(title)
        print()
    print_line(f"{name}: {report.sentence}" if quiet else report.sentence)


def _pairs(before: str, after: str) -> list[tuple[str, Array, Array]]:
    """Return (name, before, after) of the tensors to compare."""
    first, second = _tensors(before, "BEFORE"), _tensors(after, "AFTER")
    if len(first) == len(second) == 1:
        (name, x), (other, y) = next(iter(first.items())), next(iter(second.items()))
        return [(name if name == other else f"{name} to {other}", x, y)]
    names = [name for name in first if name in second]
    if not names:
        raise ConfigError(
            f"BEFORE, AFTER: no tensor has the same name in both, name one of each as FILE:NAME; there are "
            f"{names_text(first)} and {names_text(second)}"
        )
    return [(name, first[name], second[name]) for name in names]


def _tensors(text: str, argument: str) -> dict[str, Array]:
    if not os.path.exists(text) and ":" in text:
        return {text.rpartition(":")[2]: named_array(text, argument)}
    arrays = read_arrays(text)
    floating = set(DTYPES.values())
    chosen = {name: x for name, x in arrays.items() if x.dtype in floating and x.ndim in (3, 4)}
    if not chosen:
        raise ShapeError(f"{text}: holds no floating tensor of rank 3 or 4; there are {arrays_text(arrays)}")
    return chosen
