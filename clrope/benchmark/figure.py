"""The figure of results: prefill out of place, every type and pairing, next to ceilings and peers."""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError, RopeError
from ..output_file import write_file
from ..printable import printable
from .peers import peers as all_peers
from .results import WorkloadRecord, records
from .samples import middle

GROUPS = tuple((dtype, mode) for dtype in ("f32", "f16", "bf16") for mode in ("normal", "neox"))
#: Text of files is drawn as it is: in matplotlib's own setting, what stands between two $ is TeX.
AS_TEXT = {"text.parse_math": False}
OWN_COLOURS = ("#0b5fa5", "#4a9ede", "#0f3d63", "#8cc4f0")


def prefill_records(results: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[WorkloadRecord]]:
    """Return the records of prefill out of place, forward, with a timed rotation, by type and pairing."""
    chosen: dict[tuple[str, str], list[WorkloadRecord]] = {group: [] for group in GROUPS}
    for r in records(results):
        if (
            (r.family, r.place, r.direction) == ("prefill", "out", "forward")
            and (r.dtype, r.mode) in chosen
            and r.devices
        ):
            chosen[r.dtype, r.mode].append(r)
    return {group: found for group, found in chosen.items() if found}


def middle_record(found: Sequence[WorkloadRecord], device: str) -> WorkloadRecord:
    """Return the record with the median share of the device's ceiling."""
    return middle(found, lambda record: record.of_ceiling(device) or 0.0)


def draw(results: Sequence[dict[str, Any]], where: str | Path) -> None:
    """Write an image of the type in the name: GB/s as bars, each device's ceiling as a line over its bars.

    Raises `ConfigError` without matplotlib or without a timed workload of prefill, `RopeError` if the file cannot be
    written.
    """
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
        matplotlib.use("Agg")
        pyplot: Any = importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ConfigError("figure: matplotlib is needed, `pip install 'clrope[plot]'`") from error
    chosen = prefill_records(results)
    if not chosen:
        raise ConfigError("figure: the results hold no timed workload prefill/*/out/forward")
    drawn = io.BytesIO()
    with matplotlib.rc_context(AS_TEXT):
        figure = _figure(pyplot, chosen, results[0]["environment"]["cpu"])
        try:
            figure.savefig(drawn, format=Path(where).suffix[1:] or None)
        except ValueError as error:
            raise RopeError(f"{where}: cannot be written ({error})") from error
        finally:
            pyplot.close(figure)
    write_file(where, drawn.getvalue())


def add_legend(axes: Any, handles: Mapping[str, Any], **more: Any) -> None:
    """Add a legend of these names; matplotlib itself leaves out those that begin with '_'."""
    legend = axes.legend(list(handles.values()), ["-"] * len(handles), **more)
    for text, name in zip(legend.get_texts(), handles, strict=True):
        text.set_text(printable(name))


def _figure(pyplot: Any, chosen: Mapping[tuple[str, str], Sequence[WorkloadRecord]], cpu: str) -> Any:
    devices = list(dict.fromkeys(d for found in chosen.values() for r in found for d in r.devices))
    peers = [p for p in all_peers() if any(r.entries("peer", p.name) for found in chosen.values() for r in found)]
    width = 0.86 / (len(devices) + len(peers))
    # White behind it, so that it is readable on light and dark pages.
    figure, axes = pyplot.subplots(figsize=(11, 5), dpi=150, facecolor="white")
    axes.set_axisbelow(True)
    axes.grid(axis="y", color="#e0e0e0", linewidth=0.7)
    tops: dict[str, Any] = {}
    bars: dict[str, Any] = {}
    for place, records_here in enumerate(chosen.values()):
        left = place - 0.43
        for number, device in enumerate(devices):
            found = [r for r in records_here if device in r.devices]
            if found:
                shown, x = middle_record(found, device), left + width * (number + 0.5)
                rate, top = shown.rate(device) or 0.0, shown.ceiling(device)
                colour = OWN_COLOURS[number % len(OWN_COLOURS)]
                bars[f"clrope on {device}"] = axes.bar(x, rate, width * 0.94, color=colour)
                axes.annotate(f"{rate:.0f}", (x, rate - 0.5), ha="center", va="top", fontsize=8, color="white")
                if top is not None:
                    height = top["bytes"] / shown.time(top)
                    line = axes.hlines(height, x - width * 0.5, x + width * 0.5, color="black", linewidth=2.2)
                    tops["the device's best copy"] = line
        for number, peer in enumerate(peers, len(devices)):
            rates = [e["bytes"] / r.time(e) for r in records_here for e in r.entries("peer", peer.name)]
            if rates:
                x = left + width * (number + 0.5)
                axes.bar(x, rates[0], width * 0.94, color=peer.colour)
                text = f"{rates[0]:.0f}" if rates[0] >= 9.5 else f"{rates[0]:.1f}"
                axes.annotate(text, (x, rates[0]), ha="center", va="bottom", fontsize=7.5)
    for peer in peers:
        bars[peer.name.replace("_", " ")] = axes.bar(0, 0, color=peer.colour)
    shape = next(iter(chosen.values()))[0].workload["tensors"]
    axes.set_xticks(range(len(chosen)), [f"{dtype} {mode}" for dtype, mode in chosen], fontsize=11)
    axes.tick_params(axis="x", length=0)
    axes.margins(x=0.01)
    axes.set_ylabel("GB/s read and written (more is better)")
    axes.set_title(f"prefill {shape[0]}, out of place: {printable(cpu)}", fontsize=11, loc="left")
    handles = tops | bars
    add_legend(axes, handles, fontsize=9, ncols=-(-len(handles) // 2), frameon=False, loc="upper center",
               bbox_to_anchor=(0.5, -0.07))  # fmt: skip
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.tight_layout()
    return figure
