"""Variants of the rotation, and other kernel sources, on one workload: interleaved with each other and the device's
ceilings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np

from clrope.benchmark.buffers import DeviceSets, make_inputs
from clrope.benchmark.entry import BenchmarkEntry, WrongResultError, calibrate, rounds
from clrope.benchmark.measure import open_bench
from clrope.benchmark.subject import on_device
from clrope.benchmark.validation import ResultCheck
from clrope.benchmark.workloads import Workload
from clrope.errors import ConfigError
from clrope.kernels.problem import Pairing
from clrope.kernels.variant import KERNELS, Variant, candidates
from clrope.layout import DTYPES
from clrope.select import database
from clrope.select.defaults import default_for
from clrope.select.records import TuningKey
from clrope.tune.search import NBYTES
from clrope.tune.worker import HEAD_DIM, HEADS

from .shares import error_of_median

if TYPE_CHECKING:
    from clrope.device import DeviceInfo

#: Rounds by which the ceilings to stay are found where there are no warm-ups.
QUICK_ROUNDS = 25


@dataclass(frozen=True)
class Compared:
    """One line: what ran, GB/s by the median and at best, the share of the best ceiling and of the chosen variant.

    Both shares are medians of the shares within each round. error: of `of_chosen`, None of few rounds. chosen: whether
    it is the chosen variant.
    """

    name: str
    rate: float
    most: float
    share: float
    of_chosen: float
    error: float | None
    chosen: bool = False


def compare_variants(
    workload: Workload,
    device: DeviceInfo,
    wanted: Callable[[Variant], bool],
    seed: int,
    count: int = 9,
    calls: int = 5,
    folders: Sequence[Path] = (),
    *,
    quick: bool = False,
) -> list[Compared]:
    """Return ceilings and wanted candidates, best first; equal variants are timed once.

    folders: further folders of kernel sources, which have to understand the same options; each gives every variant
    once more, named after it. With them the chosen variant alone will do. quick: no warm-ups, and of the ceilings
    the best two alone: so many more rounds fit in that differences of a percent show.
    Candidates run in this process: not for a device whose driver is not trusted (`clrope tune` is). Raises
    `ConfigError` if nothing is wanted, or for a folder without kernels or a workload that rebinds them at every call,
    `WrongResultError` for a wrong result.
    """
    some = [variant for variant in candidates(device.kind, workload.dtype) if wanted(variant)]
    for folder in folders:
        if not all((folder / kernel.file).is_file() for kernel in KERNELS.values()):
            raise ConfigError(f"folders: got {folder}, which lacks kernels")
    if folders and workload.fresh:
        raise ConfigError(f"folders: {workload.name} makes new tables at every call, by the package's own kernels")
    if not some and not folders:
        raise ConfigError("variants: got a choice that no candidate meets")
    bench = open_bench(device, "device")
    inputs = make_inputs(workload, seed)
    validate = ResultCheck(inputs, seed)
    sets = DeviceSets(bench.profiled, device, inputs)
    ours: dict[str, BenchmarkEntry] = {}  # the chosen one first
    for variant, text in itertools.product((None, *some), (None, *folders)):
        if text is not None:
            # The chosen variant is the first in `ours`.
            own = variant or Variant.from_dict(next(iter(ours.values())).details["variants"][0])
            variant = own.changed(folder=text)
        made = on_device(sets, bench.profiled, validate, "device", variant)
        name = " + ".join(str(Variant.from_dict(d)) for d in made.details["variants"])
        name += f" from {text}" if text else ""
        if name not in ours:
            made.nmse = made.check()
            ours[name] = made
    ceilings, _ = bench.ceilings.entries(sets)
    entries = [*ours.values(), *ceilings]
    for made in entries:
        made.cursor = sets.cursor
        calibrate(made, calls)
    if not ceilings:
        raise WrongResultError("no ceiling could be measured")
    if quick:
        rounds(ceilings, QUICK_ROUNDS, seed, warm_up=False)
        ceilings = sorted(ceilings, key=lambda c: -_rate(c, 50))[:2]
        for made in ceilings:
            made.forget()
    rounds([*ours.values(), *ceilings], count, seed, warm_up=not quick)
    top = max(ceilings, key=lambda c: _rate(c, 50))
    first = next(iter(ours.values()))

    def line(name: str, c: BenchmarkEntry) -> Compared:
        of_chosen = _of(c, first)
        return Compared(
            name, _rate(c, 50), _rate(c, 0), float(np.median(_of(c, top))), float(np.median(of_chosen)),
            error_of_median(of_chosen), chosen=c is first,
        )  # fmt: skip

    lines = [line(name, c) for name, c in ours.items()] + [line(f"= {c.variant or c.name}", c) for c in ceilings]
    return sorted(lines, key=lambda line: -line.rate)


@dataclass(frozen=True)
class Winner:
    """A winner of `clrope tune`, and how many times as fast as the default it is now; error: of that, likewise."""

    key: TuningKey
    variant: Variant
    claimed: float | None
    ratio: float
    error: float


def compare_winners(
    device: DeviceInfo, types: Sequence[str], seed: int, most_error: float = 0.01, most_rounds: int = 3200
) -> Iterator[Winner]:
    """Measure the saved winners that are not the default next to it, by calls as users make them.

    The rounds are doubled, from 200 on, until the standard error of the ratio is small enough.
    """
    for dtype, pairing in itertools.product(types, get_args(Pairing)):
        for record in database.known(device, dtype, pairing).records:
            key, default, winner = record.key, default_for(device, record.key), record.winner
            if winner is None or winner == default:
                continue
            row = HEADS * HEAD_DIM * DTYPES[dtype].itemsize
            shape = (1, max(1, NBYTES[key.size] // row), HEADS, HEAD_DIM)
            workload = Workload("tuned", (shape,), dtype, pairing, key.in_place, cached=key.size != "large")
            count = 200
            while True:
                lines = compare_variants(workload, device, partial(eq, default), seed, count, quick=True)
                line = next(line for line in lines if not line.chosen and not line.name.startswith("="))
                if line.error is None or line.error <= most_error or count >= most_rounds:
                    break
                count *= 2
            yield Winner(key, winner, record.gain, 1 / line.of_chosen, (line.error or 0.0) / line.of_chosen**2)


def _rate(entry: BenchmarkEntry, percentile: int) -> float:
    return entry.bytes / float(np.percentile(entry.wall, percentile))


def _of(entry: BenchmarkEntry, top: BenchmarkEntry) -> list[float]:
    """Return the rate as a share of another entry's rate, in each round."""
    turns = [found.turns if (found := c.stats("wall")) else () for c in (top, entry)]
    return [entry.bytes * above / (top.bytes * own) for above, own in zip(*turns, strict=True)]


def words_filter(words: Sequence[str]) -> Callable[[Variant], bool]:
    """Return whether a variant's name has all the words of any of the given phrases; everything if there are none."""
    phrases = [phrase.split() for phrase in words]

    def wanted(variant: Variant) -> bool:
        have = str(variant).split()
        return not phrases or any(all(word in have for word in phrase) for phrase in phrases)

    return wanted
