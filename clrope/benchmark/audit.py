"""Rules that a timed kernel cannot get round: what the timed calls wrote is checked, and speeds beyond the memory's.

Before some calls of a turn, the input of their sets is replaced by another one and the output by poison; after each of
these calls, which are timed like the others, the output, the input and the guards behind the buffers are compared.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import cycle

import numpy as np

from ..testing import NAN_POISON, POISON, count_differing
from .buffers import Change, DeviceSets, tensors_of
from .entry import BenchmarkEntry, WrongResultError
from .validation import ResultCheck

#: A speed of more times the best ceiling's, in the same run, is no record but a mistake. Copies that are written in
#: another way differ by less (`docs/performance.md`).
BEYOND = 1.5
#: The least share of an empty launch's time that a call can take.
LAUNCH_SHARE = 0.5


class Audit:
    """Audited calls of one entry on sets of device memory."""

    def __init__(self, sets: DeviceSets, validate: ResultCheck, seed: int) -> None:
        self._sets, self._validate = sets, validate
        self._draw = random.Random(seed)
        # All of them within three calls: a kernel may compute only where it sees one.
        self._poisons = cycle(self._draw.sample((NAN_POISON, POISON, None), 3))

    def prepare(self, number: int) -> None:
        """Give a set another input, and an output of poison or of plausible numbers."""
        sets = self._sets
        change = Change.drawn(self._draw, sets.inputs.workload)
        poison = next(self._poisons)
        if poison is None:
            block = sets.inputs.changed(Change.drawn(self._draw, sets.inputs.workload))
        else:
            block = np.full(sets.inputs.block.size, poison, np.uint8)
        sets.change(number, change, block)

    def verify(self, number: int) -> None:
        """Compare what the call wrote, and what it must not write. Raises `WrongResultError`."""
        sets = self._sets
        workload, change = sets.inputs.workload, sets.changes[number]
        try:
            self._validate(tensors_of(workload, sets.read(number)), change)
        except WrongResultError as error:
            raise WrongResultError(f"a timed call, with an input of its own: {error}") from None
        if not workload.in_place:
            touched = count_differing(sets.read_input(number), sets.inputs.changed(change))
            if touched:
                raise WrongResultError(f"a timed call changed {touched} bytes of its input")
        around = sets.guards_changed(number)
        if around:
            raise WrongResultError(f"a timed call changed {around} bytes behind its buffers")


def too_fast(entry: BenchmarkEntry, entries: Sequence[BenchmarkEntry]) -> str:
    """Return why an entry's time is impossible beside the ceilings of its device and run; '' if it is possible."""
    wall = entry.stats("wall")
    if wall is None:
        return ""
    same = [(c, s) for c in entries if c.device == entry.device for s in [c.stats("wall")] if s is not None]
    rates = [c.bytes / s.min for c, s in same if c.kind == "ceiling" and c.bytes]  # the fastest call of a copy
    rate = entry.bytes / wall.median
    if rates and rate > BEYOND * max(rates):
        return (
            f"faster than the memory: {rate:.3g} GB/s, where the best copy of this run has {max(rates):.3g} GB/s; "
            "it cannot have moved its bytes"
        )
    launches = [s.median for c, s in same if c.kind == "launch"]
    if launches and wall.median < LAUNCH_SHARE * min(launches):
        return f"faster than an empty launch: {wall.median / 1e3:.3g} us, where that takes {min(launches) / 1e3:.3g} us"
    return ""
