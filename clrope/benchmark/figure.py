"""One figure from results: prefill out of place, every type and pairing, this package next to ceilings and peers."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import ConfigError, RopeError
from .peers import NAMES
from .peers import peers as all_peers
from .results import WorkloadRecord, records
from .samples import middle

GROUPS = tuple((dtype, mode) for dtype in ("f32", "f16", "bf16") for mode in ("normal", "neox"))
OWN_COLOURS = ("#0b5fa5", "#4a9ede", "#0f3d63", "#8cc4f0")


def _share(device: str, record: WorkloadRecord) -> float:
    return record.of_ceiling(device) or 0.0


def draw(results: Sequence[dict[str, Any]], where: str | Path, family: str = "prefill") -> None:
    """Write a PNG (or what the name ends in): GB/s as bars, each device's ceiling as a line over its bars.

    Raises `ConfigError` if matplotlib is missing or the results hold none of the workloads.
    """
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
        matplotlib.use("Agg")
        pyplot: Any = importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ConfigError("figure: matplotlib is needed, `pip install 'clrope[plot]'`") from error
    chosen: dict[tuple[str, str], list[WorkloadRecord]] = {}
    for record in records(results):
        if (record.family, record.place, record.direction) == (family, "out", "forward"):
            chosen.setdefault((record.dtype, record.mode), []).append(record)
    groups = [g for g in GROUPS if g in chosen]
    if not groups:
        raise ConfigError(f"figure: the results hold no workload {family}/*/out/forward")
    devices = list(dict.fromkeys(d for g in groups for r in chosen[g] for d in r.devices))
    peers = [p for p in NAMES if any(r.entries("peer", p) for g in groups for r in chosen[g])]
    colours = {peer.name: peer.colour for peer in all_peers()}
    width = 0.86 / (len(devices) + len(peers))
    figure, axes = pyplot.subplots(figsize=(11, 4.6), dpi=150)
    for place, group in enumerate(groups):
        left = place - 0.43
        for number, device in enumerate(devices):
            found = [r for r in chosen[group] if device in r.devices]
            if found:
                shown = middle(found, partial(_share, device))
                label = f"clrope on {device}" if place == 0 else None
                x = left + width * (number + 0.5)
                rate = shown.rate(device) or 0.0
                axes.bar(x, rate, width * 0.94, color=OWN_COLOURS[number % len(OWN_COLOURS)], label=label)
                axes.annotate(f"{rate:.0f}", (x, rate - 0.3), ha="center", va="top", fontsize=7, color="white")
                top = shown.ceiling(device)
                if top is not None:
                    height = top["bytes"] / shown.time(top)
                    label = "the device's best copy" if place == 0 and number == 0 else None
                    axes.hlines(height, x - width * 0.5, x + width * 0.5, color="black", linewidth=1.6, label=label)
        for number, peer in enumerate(peers, len(devices)):
            times = [(r, e) for r in chosen[group] for e in r.entries("peer", peer)]
            if times:
                rate = times[0][1]["bytes"] / times[0][0].time(times[0][1])
                x = left + width * (number + 0.5)
                axes.bar(x, rate, width * 0.94, color=colours[peer])
                axes.annotate(f"{rate:.3g}", (x, rate), ha="center", va="bottom", fontsize=6)
    for peer in peers:
        axes.bar(0, 0, color=colours[peer], label=peer.replace("_", " "))
    shape = chosen[groups[0]][0].workload["tensors"]
    axes.set_xticks(range(len(groups)), [f"{dtype} {mode}" for dtype, mode in groups])
    axes.set_ylabel("GB/s read and written")
    axes.set_title(f"{family} {shape[0]}, out of place: {results[0]['environment']['cpu']}", fontsize=9)
    axes.legend(fontsize=7, ncols=9, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.07))
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    try:
        figure.savefig(where)
    except (OSError, ValueError) as error:
        raise RopeError(f"{where}: cannot be written ({error})") from error
    finally:
        pyplot.close(figure)
