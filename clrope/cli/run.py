"""`clrope run INPUT -o OUTPUT`: rotate the tensors of a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from .. import reference
from ..compare import compare
from ..config import RopeConfig
from ..device import DeviceInfo
from ..device import device as find_device
from ..emulation import emulate_rope
from ..errors import ConfigError, ShapeError
from ..io.files import check_arrays, format_of, read_arrays, read_metadata, write_arrays
from ..layout import DTYPES, dtype_name
from ..operation import Rope
from .config_options import takes_config
from .exit_code import WRONG
from .options import AsJson, Backward, Layout, OneDevice, Quiet, flag, value
from .output import check_places, names_text, print_json, print_line, print_table
from .positions_option import POSITIONS_HELP, read_positions


@takes_config
def rotate_file(
    config: RopeConfig,
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="File to read: .npy, .npz or .safetensors.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUTPUT", help="File to write: .npy, .npz or .safetensors.")
    ],
    tensor: Annotated[
        list[str] | None,
        value("NAME", "Tensor to rotate (repeatable). Default: all floating-point of rank 3 or 4."),
    ] = None,
    keep: Annotated[bool, flag("--keep", "Also write the tensors that are not rotated.")] = False,
    positions: Annotated[str | None, value("POSITIONS", f"{POSITIONS_HELP} Default: 0.")] = None,
    positions_tensor: Annotated[str | None, value("NAME", "Tensor of INPUT that holds the positions.")] = None,
    layout: Layout = "bsnd",
    backward: Backward = False,
    device: OneDevice = None,
    check: Annotated[bool, flag("--check", "Compare the results with the float64 reference.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Rotate the tensors of a file.

    The results have the same names in OUTPUT. Give the configuration by --config, --gguf, --hf or --preset, or give at
    least --mode, which has no default. Exit code 1 if --check finds a wrong result.
    """
    format_of(output)
    check_places({"--output": output})
    arrays = read_arrays(source)
    names = _chosen(arrays, tensor, positions_tensor, source)
    others = {name: array for name, array in arrays.items() if name not in names} if keep else {}
    # Before hours of rotating: the results have the types of their tensors.
    check_arrays(output, {name: arrays[name] for name in arrays if name in (*names, *others)})
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
    report = {
        "schema": "clrope.run/1",
        "input": str(source),
        "output": str(output),
        "device": {name: getattr(chosen, name) for name in ("index", "name", "platform", "key")},
        "config": config.to_dict(),
        "forward": not backward,
        "tensors": reports,
        "ok": all(r["ok"] is not False for r in reports),
    }
    if as_json:
        print_json(report)
    else:
        _print(report, quiet)
    if not report["ok"]:
        raise SystemExit(WRONG)


def _chosen(arrays: dict[str, Any], wanted: list[str] | None, positions: str | None, source: Path) -> list[str]:
    if wanted:
        for name in wanted:
            _check_name("--tensor", name, arrays, source)
        return list(dict.fromkeys(wanted))
    floating = set(DTYPES.values())
    names = [n for n, a in arrays.items() if a.dtype in floating and a.ndim in (3, 4) and n != positions]
    if not names:
        raise ShapeError(f"{source}: holds no floating tensor of rank 3 or 4; there are {names_text(arrays)}")
    return names


def _check_name(option: str, name: str, arrays: dict[str, Any], source: Path) -> None:
    if name not in arrays:
        raise ConfigError(f"{option}: {source} has no {name!r}; there are {names_text(arrays)}")


def _positions(text: str | None, name: str | None, arrays: dict[str, Any], source: Path) -> Any:
    """Return what `clrope.rope` takes as positions."""
    if text is not None and name is not None:
        raise ConfigError("--positions: given together with --positions-tensor, one of them is needed")
    if name is not None:
        _check_name("--positions-tensor", name, arrays, source)
        return arrays[name]
    return 0 if text is None else read_positions(text)


def _rotate(
    x: npt.NDArray[Any], positions: Any, config: RopeConfig, forward: bool, layout: str, device: DeviceInfo, check: bool
) -> tuple[Any, dict[str, Any]]:
    from ..testing import count_differing, limit_for

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
        "differing": None,
        "ok": None,
    }
    if check and x.size:
        want = reference.rope(x, positions, config, forward, layout=layout)
        # Where the exact result is infinite or NaN, only the kernels' arithmetic says what is right: 0 times infinity.
        finite = np.isfinite(want)
        zero = x.dtype.type(0)
        found = compare(np.where(finite, result, zero), np.where(finite, want, 0.0))
        # A few wrong elements are within the limit of a mean, but their bits are others.
        differing = count_differing(result, emulate_rope(x, positions, config, forward, layout))
        limit = limit_for(dtype_name(x.dtype), x.size, rounding=True)
        report |= {
            "nmse": found.nmse if found.nmse < float("inf") else "inf",
            "limit": limit,
            "differing": differing,
            # Of subnormal values, and of many equal ones, rounding alone takes more than the limit.
            "ok": differing == 0 and (found.nmse <= limit or found.max_ulp <= 1),
            "comparison": f"{found}; {differing} of {x.size} values have other bits than the kernels' arithmetic",
        }
    return result, report


def _print(report: dict[str, Any], quiet: bool) -> None:
    if not quiet:
        outcome = {None: "not checked", True: "OK", False: "FAIL"}
        rows = [
            [t["tensor"], t["dtype"], str(t["shape"]), f"{t['seconds'] * 1e3:.3f} ms",
             "-" if t["nmse"] is None else f"{float(t['nmse']):.3g}", outcome[t["ok"]]]
            for t in report["tensors"]
        ]  # fmt: skip
        print_table("", ["tensor", "dtype", "shape", "#time", "#NMSE", "check"], rows)
        device = report["device"]
        print_line(f"device: {device['name']} [{device['platform']}, {device['index']}]")
    for t in report["tensors"]:
        if t["ok"] is False:
            print_line(f"FAIL: {t['tensor']}: {t['comparison']}; limit {t['limit']:.0e}")
    if not quiet:
        print_line(f"written: {report['output']}")
