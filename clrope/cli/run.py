"""`clrope run INPUT -o OUTPUT`: rotate the tensors of a file."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError, ShapeError
from .config_options import named_array, takes_config
from .exit_code import exit_with_code

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..config import RopeConfig

_RANGE = re.compile(r"(-?\d+):(-?\d+)")
_LIST = re.compile(r"-?\d+(,-?\d+)*")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(exit_with_code(takes_config(_run)))


def _run(
    config: RopeConfig,
    source: Annotated[Path, typer.Argument(metavar="INPUT", help=".npy, .npz or .safetensors")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUTPUT", help=".npy, .npz or .safetensors")],
    tensor: Annotated[
        list[str] | None, typer.Option(help="A tensor (repeatable). Default: all floating ones of rank 3 and 4.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Write the other tensors as well, as they are.")] = False,
    positions: Annotated[
        str | None,
        typer.Option(help="An offset, a list 0,1,2, a range a:b, or FILE[:NAME]. Default: 0, counting from there."),
    ] = None,
    positions_tensor: Annotated[
        str | None, typer.Option(metavar="NAME", help="The tensor of INPUT that holds the positions.")
    ] = None,
    layout: Annotated[str, typer.Option(help="Order of the axes: any order of b, s, n, d.")] = "bsnd",
    backward: Annotated[bool, typer.Option("--backward", help="Rotate back (the sign of sin flipped).")] = False,
    device: Annotated[str | None, typer.Option(help="Name or index. Default: the fastest healthy.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Compare with the float64 reference.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> bool:
    """Rotate tensors of a file and write them under the same names to another. The pairing (--mode) has no default."""
    from ..device import device as find_device
    from ..io.files import format_of, read_arrays, read_metadata, write_arrays

    format_of(output)
    arrays = read_arrays(source)
    names = _chosen(arrays, tensor, positions_tensor, source)
    others = {name: array for name, array in arrays.items() if name not in names} if keep else {}
    where = _positions(positions, positions_tensor, arrays, source)
    chosen = find_device(device)
    rotated: dict[str, Any] = {}
    reports = []
    for name in names:
        try:
            rotated[name], report = _rotate(arrays[name], where, config, not backward, layout, chosen, check)
        except (ShapeError, ConfigError) as error:
            raise type(error)(f"tensor {name!r} of {source}: {error}") from error
        reports.append({"tensor": name, **report})
    metadata = read_metadata(source) if format_of(output) == "safetensors" else None
    # In the file's own order.
    results = rotated | others
    write_arrays(output, {name: results[name] for name in arrays if name in results}, metadata)
    well = all(r["ok"] is not False for r in reports)
    _show(
        {
            "schema": "clrope.run/1",
            "input": str(source),
            "output": str(output),
            "device": {"index": chosen.index, "name": chosen.name, "platform": chosen.platform, "key": chosen.key},
            "config": config.to_dict(),
            "forward": not backward,
            "tensors": reports,
            "ok": well,
        },
        as_json,
    )
    return well


def _chosen(arrays: dict[str, Any], wanted: list[str] | None, positions: str | None, source: Path) -> list[str]:
    from ..layout import DTYPES

    if wanted:
        missing = [name for name in wanted if name not in arrays]
        if missing:
            raise ConfigError(f"--tensor: {source} has no {missing[0]!r}; there are {', '.join(arrays) or 'none'}")
        return list(dict.fromkeys(wanted))
    floating = set(DTYPES.values())
    names = [n for n, a in arrays.items() if a.dtype in floating and a.ndim in (3, 4) and n != positions]
    if not names:
        raise ShapeError(f"{source}: holds no floating tensor of rank 3 or 4; there are {', '.join(arrays) or 'none'}")
    return names


def _positions(text: str | None, name: str | None, arrays: dict[str, Any], source: Path) -> Any:
    """Return what `clrope.rope` takes as positions."""
    import numpy as np

    if text is not None and name is not None:
        raise ConfigError("--positions: given together with --positions-tensor, one of them is needed")
    if name is not None:
        if name not in arrays:
            raise ConfigError(f"--positions-tensor: {source} has no {name!r}; there are {', '.join(arrays) or 'none'}")
        return arrays[name]
    if text is None:
        return 0
    ends = _RANGE.fullmatch(text)
    if ends is not None:
        begin, end = int(ends[1]), int(ends[2])
        if end <= begin:
            raise ShapeError(f"--positions: got {text!r}, the range a:b is a, a+1, ... b-1 and must not be empty")
        return np.arange(begin, end, dtype=np.int64)
    if _LIST.fullmatch(text) is not None:
        numbers = [int(part) for part in text.split(",")]
        return numbers[0] if len(numbers) == 1 else np.array(numbers, dtype=np.int64)
    return named_array(text, "--positions")


def _rotate(
    x: npt.NDArray[Any], positions: Any, config: RopeConfig, forward: bool, layout: str, device: Any, check: bool
) -> tuple[Any, dict[str, Any]]:
    from .. import reference
    from ..compare import compare
    from ..operation import Rope
    from ..testing import limit_for

    begin = time.perf_counter()
    plan = Rope(config, device).plan(x, positions, forward=forward, layout=layout)
    plan.run()
    # The first run builds and compiles what is not in any cache; the second shows what rotating takes.
    prepared = time.perf_counter()
    result = plan.run()
    seconds = time.perf_counter() - prepared
    report: dict[str, Any] = {
        "dtype": str(x.dtype),
        "shape": list(x.shape),
        "launches": plan.launches,
        "prepare_seconds": round(prepared - begin, 6),
        "seconds": round(seconds, 6),
        "nmse": None,
        "limit": None,
        "ok": None,
    }
    if check and x.size:
        found = compare(result, reference.rope(x, positions, config, forward, layout=layout))
        from ..layout import dtype_name

        limit = limit_for(dtype_name(x.dtype), x.size)
        finite = found.nmse < float("inf")
        report |= {"nmse": found.nmse if finite else "inf", "limit": limit, "ok": found.nmse <= limit}
        report["comparison"] = str(found)
    return result, report


def _show(report: dict[str, Any], as_json: bool) -> None:
    from .output import print_json, print_table

    if as_json:
        print_json(report)
        return
    verdict = {None: "not checked", True: "OK", False: "FAIL"}
    device = report["device"]
    rows = [
        [t["tensor"], t["dtype"], str(t["shape"]), f"{device['name']} [{device['platform']}, {device['index']}]",
         f"{t['seconds'] * 1e3:.3f} ms", "-" if t["nmse"] is None else f"{float(t['nmse']):.3g}", verdict[t["ok"]]]
        for t in report["tensors"]
    ]  # fmt: skip
    print_table("", ["tensor", "dtype", "shape", "device", "#time", "#NMSE", "check"], rows)
    for t in report["tensors"]:
        if t["ok"] is False:
            print(f"FAIL: {t['tensor']}: {t['comparison']}; limit {t['limit']:.0e}")
    print(f"written: {report['output']}")
