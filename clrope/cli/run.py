"""`clrope run INPUT -o OUTPUT`: rotate the tensors of a file."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from .. import reference
from ..arrays import operand
from ..call.prepare import call_text
from ..compare import Comparison, compare, compare_parts
from ..config import RopeConfig
from ..device import device as find_device
from ..emulation import emulate_rope
from ..errors import ConfigError, ShapeError
from ..io.files import Array, Part, StoredArray, format_of, open_arrays, parts_of, read_metadata, write_parts
from ..layout import DTYPES, dtype_name, parse_layout
from ..operation import Rope
from ..positions import given_positions, with_far_token
from ..printable import one_line
from .config_options import takes_config
from .exit_code import WRONG
from .options import AsJson, Backward, Layout, OneDevice, Quiet, flag, value
from .output import arrays_text, check_places, names_text, print_json, print_line, print_table, progress_bar
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
    check_places({"--output": output})
    metadata = read_metadata(source) if format_of(output) == "safetensors" else None
    with open_arrays(source) as arrays:
        names = _chosen(arrays, tensor, positions_tensor, source)
        where = _positions(positions, positions_tensor, arrays, source)
        chosen = find_device(device)
        op = Rope(config, chosen)
        rotations: dict[str, _Rotation] = {}
        for name in names:
            with _naming(name, source):
                rotations[name] = _Rotation(arrays[name], where, op, not backward, layout, check)
        # In the file's own order.
        written = {name: array for name, array in arrays.items() if keep or name in rotations}
        places = {
            name: rotations[name].places if name in rotations else parts_of(array.shape, array.order)
            for name, array in written.items()
        }
        with progress_bar(quiet, drawn_by_thread=True) as bar:
            task = bar.add_task("", total=sum(map(len, places.values())))

            def results(name: str) -> Iterator[tuple[Part, Array]]:
                bar.update(task, description=one_line(name))
                with _naming(name, source):
                    parts = rotations[name].results() if name in rotations else written[name].parts(places[name])
                    for place, part in zip(places[name], parts, strict=True):
                        yield place, part
                        bar.advance(task)

            write_parts(output, written, results, metadata)
    reports = [{"tensor": name, **rotations[name].report()} for name in names]
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


@contextmanager
def _naming(name: str, source: Path) -> Iterator[None]:
    """Let errors say which tensor cannot be rotated."""
    try:
        yield
    except (ShapeError, ConfigError) as error:
        raise type(error)(f"tensor {name!r} of {source}: {error}") from error


def _chosen(arrays: dict[str, StoredArray], wanted: list[str] | None, positions: str | None, source: Path) -> list[str]:
    if wanted:
        for name in wanted:
            _check_name("--tensor", name, arrays, source)
        return list(dict.fromkeys(wanted))
    floating = set(DTYPES.values())
    names = [n for n, a in arrays.items() if a.dtype in floating and len(a.shape) in (3, 4) and n != positions]
    if not names:
        raise ShapeError(f"{source}: holds no floating tensor of rank 3 or 4; there are {arrays_text(arrays)}")
    return names


def _check_name(option: str, name: str, arrays: dict[str, StoredArray], source: Path) -> None:
    if name not in arrays:
        raise ConfigError(f"{option}: {source} has no {name!r}; there are {names_text(arrays)}")


def _positions(text: str | None, name: str | None, arrays: dict[str, StoredArray], source: Path) -> Any:
    """Return what `clrope.rope` takes as positions."""
    if text is not None and name is not None:
        raise ConfigError("--positions: given together with --positions-tensor, one of them is needed")
    if name is not None:
        _check_name("--positions-tensor", name, arrays, source)
        return arrays[name].whole()
    return 0 if text is None else read_positions(text)


class _Rotation:
    """A tensor that is rotated in parts, and what there is to report of it.

    places: the parts. Raises `ShapeError` and `ConfigError` as `Rope.plan` does for the whole tensor.
    """

    def __init__(self, x: StoredArray, positions: Any, op: Rope, forward: bool, layout: str, check: bool) -> None:
        self._x, self._op, self._forward, self._layout, self._check = x, op, forward, layout, check
        config = op.config
        try:
            view = operand(np.broadcast_to(np.empty((), x.dtype), x.shape), layout).view  # no memory, but the shape
            if view.shape[3]:
                config.for_head_dim(view.shape[3])
            self._positions = given_positions(positions, config, batch=view.shape[0], seq=view.shape[1])
        except (ShapeError, ConfigError) as error:
            raise type(error)(f"{error}\n  in {call_text(x, positions, config, layout)}") from error
        self._axes = parse_layout(layout, len(x.shape))
        # Heads last: they share cos and sin.
        cut = [axis for axis in x.order if self._axes[axis] in "bs"] + [self._axes.index("n")]
        self.places = parts_of(x.shape, cut)
        self._launches, self._prepare_seconds, self._seconds, self._differing = 0, 0.0, 0.0, 0
        self._comparisons: list[tuple[tuple[int, ...], Comparison]] = []

    def results(self) -> Iterator[Array]:
        """Rotate one part after the other."""
        shapes = set()
        for place, part in zip(self.places, self._x.parts(self.places), strict=True):
            cuts = {"b": slice(0, 1)} | dict(zip(self._axes, place, strict=True))
            x, positions = part, self._positions.part(cuts["b"], cuts["s"])
            batch, seq = (cuts[axis].stop - cuts[axis].start for axis in "bs")
            near = given_positions(positions, self._op.config, batch=batch, seq=seq)
            if self._positions.beyond_32_bits and not near.beyond_32_bits:
                x, positions = with_far_token(part, positions, self._axes.index("s"))
            begin = time.perf_counter()
            plan = self._op.plan(x, positions, forward=self._forward, layout=self._layout)
            if x.shape not in shapes:
                # The first run builds and compiles what is not in any cache; the second shows what rotating takes.
                plan.run()
                shapes.add(x.shape)
            prepared = time.perf_counter()
            result = plan.run()
            self._seconds += time.perf_counter() - prepared
            self._prepare_seconds += prepared - begin
            self._launches += plan.launches
            own = tuple(map(slice, part.shape))
            if self._check and part.size:
                self._compare(place, x, positions, result, own)
            yield result[own]

    def _compare(self, place: Part, x: Array, positions: Any, result: Array, own: Part) -> None:
        """Compare a result; own: what of it belongs to the tensor."""
        from ..testing import count_differing

        given = x, positions, self._op.config, self._forward, self._layout
        got, want = result[own], reference.rope(*given)[own]
        # Where the exact result is infinite or NaN, only the kernels' arithmetic says what is right: 0 times infinity.
        finite = np.isfinite(want)
        compared = compare(np.where(finite, got, x.dtype.type(0)), np.where(finite, want, 0.0))
        self._comparisons.append((tuple(cut.start for cut in place), compared))
        # A few wrong elements are within the limit of a mean, but their bits are others.
        self._differing += count_differing(got, emulate_rope(*given)[own])

    def report(self) -> dict[str, Any]:
        """Return what happened, after all parts were rotated."""
        from ..testing import limit_for

        report: dict[str, Any] = {
            "dtype": str(self._x.dtype),
            "shape": list(self._x.shape),
            "launches": self._launches,
            "prepare_seconds": round(self._prepare_seconds, 6),
            "seconds": round(self._seconds, 6),
            "nmse": None,
            "limit": None,
            "differing": None,
            "ok": None,
        }
        if self._comparisons:
            size = math.prod(self._x.shape)
            found, differing = compare_parts(self._comparisons), self._differing
            limit = limit_for(dtype_name(self._x.dtype), size, rounding=True)
            report |= {
                "nmse": found.nmse if found.nmse < float("inf") else "inf",
                "limit": limit,
                "differing": differing,
                # Of subnormal values, and of many equal ones, rounding alone takes more than the limit.
                "ok": differing == 0 and (found.nmse <= limit or found.max_ulp <= 1),
                "comparison": f"{found}; {differing} of {size} values have other bits than the kernels' arithmetic",
            }
        return report


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
