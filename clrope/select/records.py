"""Tuning records: what happened when each variant was tried, for one tuning key. JSON-ready."""

from __future__ import annotations

from dataclasses import dataclass, fields
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
CheckedAgainst = Literal["emulation", "strided"]
#: A float that is not negative. msgspec before 0.22 reads a number beyond float64 as -1.
NotNegative = Annotated[float, msgspec.Meta(ge=0)]


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
    seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    gbs: NotNegative | None = None

    @property
    def broken(self) -> bool:
        """Whether the variant must not be used."""
        return self.outcome in BROKEN

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {**vars(self), "variant": self.variant.to_dict()}


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
    nbytes: Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
    ceiling_gbs: NotNegative | None = None
    checked_against: CheckedAgainst = "emulation"
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    written: NotNegative = 0.0
    gain: NotNegative | None = None
    busy: NotNegative | None = None

    @property
    def winner(self) -> Variant | None:
        """The variant to use; None if none was right and timed."""
        return next((o.variant for o in self.results if o.outcome == "ok"), None)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        out = vars(self.key) | {field.name: getattr(self, field.name) for field in fields(TuningRecord)}
        del out["key"]
        winner = self.winner.to_dict() if self.winner else None
        return {**out, "winner": winner, "results": [o.to_dict() for o in self.results]}
