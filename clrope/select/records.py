"""Tuning records: what happened when each variant was tried, for one tuning key. JSON-ready."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, get_args

import msgspec

from ..kernels.problem import Pairing
from ..kernels.variant import Variant

#: `ok`: right, and the one to use; `slower`: right. The others are never used: `build_error`: it does not compile;
#: `crash`: it ended the process; `timeout`: it did not end; `wrong`: wrong values; `not_run`: the output was left as it
#: was, or the driver refused the launch.
OutcomeKind = Literal["ok", "build_error", "crash", "timeout", "wrong", "not_run", "slower"]
OUTCOMES: tuple[OutcomeKind, ...] = get_args(OutcomeKind)
BROKEN: frozenset[OutcomeKind] = frozenset({"build_error", "crash", "timeout", "wrong", "not_run"})
#: By where the tensors of a call are: in a core's own cache, in one that cores share, in memory.
SizeClass = Literal["small", "medium", "large"]
SIZES: tuple[SizeClass, ...] = get_args(SizeClass)


class _ResultShape(msgspec.Struct):
    """The types of what `VariantResult.to_dict` writes. Nothing is converted, and nothing deeper is looked into."""

    variant: dict[str, str | int | bool]
    outcome: OutcomeKind
    reason: str
    log: str
    seconds: Annotated[float, msgspec.Meta(gt=0)] | None
    gbs: Annotated[float, msgspec.Meta(ge=0)] | None


class _RecordShape(msgspec.Struct):
    """The types of what `TuningRecord.to_dict` writes."""

    dtype: str
    pairing: Pairing
    in_place: bool
    size: SizeClass
    nbytes: Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
    ceiling_gbs: float | None
    checked_against: Literal["emulation", "strided"]
    seed: Annotated[int, msgspec.Meta(ge=0)]
    written: float
    results: list[_ResultShape]
    gain: float | None = None
    busy: float | None = None


@dataclass(frozen=True)
class TuningKey:
    """The class of problems that a variant is chosen for."""

    dtype: str
    pairing: Pairing
    in_place: bool
    size: SizeClass

    def __str__(self) -> str:
        place = "in place" if self.in_place else "out of place"
        return f"{self.dtype} {self.pairing} {place} {self.size}"


@dataclass(frozen=True)
class VariantResult:
    """What happened when a variant was tried: why in a line, the log of its compiler or process, its time if right.

    seconds: of one run. gbs: bytes read and written per second, in 1e9.
    """

    variant: Variant
    outcome: OutcomeKind
    reason: str = ""
    log: str = ""
    seconds: float | None = None
    gbs: float | None = None

    @property
    def broken(self) -> bool:
        """Whether the variant must not be used."""
        return self.outcome in BROKEN

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {
            "variant": self.variant.to_dict(), "outcome": self.outcome, "reason": self.reason, "log": self.log,
            "seconds": self.seconds, "gbs": self.gbs,
        }  # fmt: skip


@dataclass(frozen=True)
class TuningRecord:
    """The results of all variants for one tuning key on one device, with what they were measured on.

    nbytes: of the tensor that was rotated. ceiling_gbs: the best copy (in place: scaling) of the same bytes in the same
    run. checked_against: 'emulation' (the same bits as in NumPy), or 'strided' (the same bits as the strided kernel's,
    which are close to those: for devices that round in their own way). gain: how many times as fast as the default the
    winner was in paired rounds, None if it is the default. busy: the share of the CPUs' time that other programs used.
    """

    key: TuningKey
    results: tuple[VariantResult, ...]
    nbytes: int
    ceiling_gbs: float | None = None
    checked_against: str = "emulation"
    seed: int = 0
    written: float = 0.0
    gain: float | None = None
    busy: float | None = None

    @property
    def winner(self) -> Variant | None:
        """The variant to use; None if none was right and timed."""
        return next((o.variant for o in self.results if o.outcome == "ok"), None)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        winner = self.winner
        return {
            "dtype": self.key.dtype, "pairing": self.key.pairing, "in_place": self.key.in_place,
            "size": self.key.size, "nbytes": self.nbytes, "ceiling_gbs": self.ceiling_gbs,
            "checked_against": self.checked_against, "seed": self.seed, "written": self.written,
            "winner": winner.to_dict() if winner else None, "results": [o.to_dict() for o in self.results],
            "gain": self.gain, "busy": self.busy,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TuningRecord:
        """Return the record of `to_dict`; `ValueError` for anything else."""
        try:
            found = msgspec.convert(data, _RecordShape)
        # msgspec up to 0.20: its errors are no ValueErrors, and an integer beyond float64 is a SystemError.
        except (msgspec.MsgspecError, OverflowError, SystemError) as error:
            raise ValueError(str(error)) from error
        return cls(
            TuningKey(found.dtype, found.pairing, found.in_place, found.size),
            tuple(
                VariantResult(Variant.from_dict(o.variant), o.outcome, o.reason, o.log, o.seconds, o.gbs)
                for o in found.results
            ),
            found.nbytes, found.ceiling_gbs, found.checked_against, found.seed, found.written, found.gain, found.busy,
        )  # fmt: skip


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
