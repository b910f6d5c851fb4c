"""What came of trying a spelling, and of all spellings for one purpose: JSON-ready records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from .variants import Pairing, Variant

#: `ok` right, and the fastest; `slower` right; the others do not come into question:
#: `build_error` it does not compile, `crash` it ended the process, `timeout` it did not end, `wrong` other values than
#: the right ones, `not_run` the output was left as it was, or the driver refused the launch.
OutcomeKind = Literal["ok", "build_error", "crash", "timeout", "wrong", "not_run", "slower"]
OUTCOMES: tuple[OutcomeKind, ...] = get_args(OutcomeKind)
BROKEN: frozenset[OutcomeKind] = frozenset({"build_error", "crash", "timeout", "wrong", "not_run"})
#: By what the tensors of a call lie in: a core's own cache, one that cores share, memory.
SizeClass = Literal["small", "medium", "large"]
SIZES: tuple[SizeClass, ...] = get_args(SizeClass)


@dataclass(frozen=True)
class Purpose:
    """What a spelling is chosen for."""

    dtype: str
    pairing: Pairing
    in_place: bool
    size: SizeClass

    def __str__(self) -> str:
        place = "in place" if self.in_place else "out of place"
        return f"{self.dtype} {self.pairing} {place} {self.size}"


@dataclass(frozen=True)
class Outcome:
    """One spelling: what came of it, why in a line, the log of its compiler or process, and its time if it is right.

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
        """Whether the spelling must not be used."""
        return self.outcome in BROKEN

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {
            "variant": self.variant.to_dict(), "outcome": self.outcome, "reason": self.reason, "log": self.log,
            "seconds": self.seconds, "gbs": self.gbs,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Outcome:
        """Return the outcome of `to_dict`; `ValueError`, `KeyError` or `TypeError` for anything else."""
        if data["outcome"] not in OUTCOMES:
            raise ValueError(f"outcome: got {data['outcome']!r}")
        return cls(
            Variant.from_dict(data["variant"]), data["outcome"], str(data["reason"]), str(data["log"]),
            _number(data["seconds"]), _number(data["gbs"]),
        )  # fmt: skip


@dataclass(frozen=True)
class Record:
    """All spellings for one purpose on one device, with what they were measured on.

    nbytes: of the tensor that was rotated. ceiling_gbs: the best copy (in place: scaling) of the same bytes in the same
    run. judged_by: 'emulation' (bit for bit the values that NumPy makes), or 'strided' (bit for bit what the strided
    kernel makes, which is close to those values: for devices with rounding of their own).
    """

    purpose: Purpose
    outcomes: tuple[Outcome, ...]
    nbytes: int
    ceiling_gbs: float | None = None
    judged_by: str = "emulation"
    seed: int = 0
    written: float = 0.0

    @property
    def winner(self) -> Variant | None:
        """The spelling to use; None if none was right and timed."""
        return next((o.variant for o in self.outcomes if o.outcome == "ok"), None)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        winner = self.winner
        return {
            "dtype": self.purpose.dtype, "pairing": self.purpose.pairing, "in_place": self.purpose.in_place,
            "size": self.purpose.size, "nbytes": self.nbytes, "ceiling_gbs": self.ceiling_gbs,
            "judged_by": self.judged_by, "seed": self.seed, "written": self.written,
            "winner": winner.to_dict() if winner else None, "outcomes": [o.to_dict() for o in self.outcomes],
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """Return the record of `to_dict`; `ValueError`, `KeyError` or `TypeError` for anything else."""
        purpose = Purpose(str(data["dtype"]), data["pairing"], bool(data["in_place"]), data["size"])
        if purpose.pairing not in get_args(Pairing) or purpose.size not in SIZES:
            raise ValueError(f"purpose: got {purpose}")
        return cls(
            purpose, tuple(Outcome.from_dict(o) for o in data["outcomes"]), int(data["nbytes"]),
            _number(data["ceiling_gbs"]), str(data["judged_by"]), int(data["seed"]), float(data["written"]),
        )  # fmt: skip


#: How much slower a spelling may be than the fastest and still be taken, because it comes earlier in the list.
TOLERANCE: Mapping[SizeClass, float] = {
    "large": 1.02,
    # Shared caches are noisy.
    "medium": 1.05,
    # Less is built for a simpler spelling (none anew for every number of pairs), which a few calls never win back.
    "small": 1.1,
}


def decided(outcomes: list[Outcome], size: SizeClass) -> tuple[Outcome, ...]:
    """Return the outcomes with one `ok`: the first whose time is within the tolerance of the best; others `slower`."""
    best = min((o.seconds for o in outcomes if not o.broken and o.seconds is not None), default=None)
    made: list[Outcome] = []
    found = False
    for o in outcomes:
        if not o.broken:
            wins = best is not None and o.seconds is not None and o.seconds <= best * TOLERANCE[size] and not found
            found = found or wins
            o = replace(o, outcome="ok" if wins else "slower")
        made.append(o)
    return tuple(made)


@dataclass(frozen=True)
class Tuning:
    """What tuning a device came to: a record per purpose, purposes there was no time for, and what went wrong."""

    device: str
    records: list[Record] = field(default_factory=list)
    left: list[Purpose] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"got {value!r} for a number")
    return float(value)
