"""What tuning makes of its measurements: the winner of a tuning key, and the report of a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..kernels.variant import Variant
from ..select.records import SizeClass, TuningKey, TuningRecord, VariantResult

#: How much slower a variant may be than the fastest and still be chosen because it comes earlier in the list.
TOLERANCE: Mapping[SizeClass, float] = {
    "large": 1.02,
    # Shared caches are noisy.
    "medium": 1.05,
    # A simpler variant builds less (not again for every number of pairs), which a few calls never win back.
    "small": 1.1,
}


def decided(results: list[VariantResult], size: SizeClass) -> tuple[VariantResult, ...]:
    """Return the results with one `ok`: the first whose time is within the tolerance of the best; others `slower`.

    A time with a reason is not to be believed; of nothing but such times the first is `ok`.
    """
    right = [o for o in results if not o.broken and o.seconds is not None]
    believed = [o for o in right if not o.reason] or right[:1]
    best = min((o.seconds for o in believed if o.seconds is not None), default=None)
    made: list[VariantResult] = []
    found = False
    for o in results:
        if not o.broken:
            within = best is not None and o.seconds is not None and o.seconds <= best * TOLERANCE[size]
            wins = within and o in believed and not found
            found = found or wins
            o = replace(o, outcome="ok" if wins else "slower")
        made.append(o)
    return tuple(made)


def with_winner(results: Sequence[VariantResult], variant: Variant, reason: str = "") -> tuple[VariantResult, ...]:
    """Return the results with another winner. reason: why the one before is none."""

    def changed(o: VariantResult) -> VariantResult:
        if o.variant == variant:
            return replace(o, outcome="ok", reason="")
        return replace(o, outcome="slower", reason=reason) if o.outcome == "ok" else o

    missing = () if any(o.variant == variant for o in results) else (VariantResult(variant, "ok"),)
    return (*missing, *map(changed, results))


@dataclass
class TuningReport:
    """The result of tuning a device: records, the keys for which there was no time, and errors.

    changed: keys that another variant is used for from now on. doubtful: keys that keep the variant they had, because a
    faster one was not found to be so for certain. busy: the share of the CPUs' time that other programs used.
    """

    device: str
    records: list[TuningRecord] = field(default_factory=list)
    left: list[TuningKey] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    changed: list[TuningKey] = field(default_factory=list)
    doubtful: list[TuningKey] = field(default_factory=list)
    busy: float | None = None
