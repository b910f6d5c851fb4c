"""What tuning tried: for each class of problems the variants, their speeds, and why each lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..device.select import ALIASES
from ..errors import ConfigError
from ..kernels.variant import Variant
from ..select.records import BROKEN
from ..tune.winners import TOLERANCE
from .platforms import short_cpu
from .report_files import ReportInput

#: Slower variants of a class that are listed one by one; the others are counted.
LISTED = 4
_WORDS = {"build_error": "does not compile", "crash": "ended the process", "timeout": "did not end",
          "wrong": "gave wrong values", "not_run": "did not run"}  # fmt: skip


@dataclass(frozen=True)
class TriedVariant:
    """A variant with its outcome, its GB/s if it is right, and why it lost ('' for the chosen one)."""

    name: str
    outcome: str
    gbs: float | None
    why: str

    @property
    def broken(self) -> bool:
        """Whether it must not be used."""
        return self.outcome in BROKEN

    @property
    def chosen(self) -> bool:
        """Whether it is the one to use."""
        return self.outcome == "ok"


@dataclass(frozen=True)
class TriedKey:
    """A class of problems on a device. variants: the chosen one, then by speed, then those that failed."""

    device: str
    problems: str
    origin: str
    size: str
    ceiling: float | None
    variants: tuple[TriedVariant, ...]

    @property
    def name(self) -> str:
        """Device and class."""
        return f"{self.device} · {self.problems}"

    @property
    def best(self) -> float | None:
        """GB/s of the fastest right variant."""
        return max((v.gbs for v in self.variants if v.gbs and not v.broken), default=None)


def tried_keys(found: ReportInput) -> list[TriedKey]:
    """Return the classes of problems of all tuning files."""
    devices = dict.fromkeys(device["device"] for tuning in found.tunings for device in tuning["devices"])
    names = _device_names(list(devices))
    return [
        TriedKey(
            names[device["device"]],
            key_name(record),
            f"{file} › {device['device']} › {key_name(record)}",
            record["size"],
            record.get("ceiling_gbs"),
            _variants(record),
        )
        for tuning, file in zip(found.tunings, found.tune_origins, strict=True)
        for device in tuning["devices"]
        for record in device["records"]
    ]


def key_name(record: dict[str, Any]) -> str:
    """Return the name of a class of problems."""
    place = "in place" if record["in_place"] else "out of place"
    return f"{record['dtype']} {record['pairing']} {place} {record['size']}"


def _device_names(devices: Sequence[str]) -> dict[str, str]:
    """Return a short name for each device: the driver's, and more where that is of several devices."""
    short = {d: next((a for a, text in ALIASES.items() if text in d.lower().split(" | ")[0]), d) for d in devices}
    often = Counter(short.values())
    return {d: name if often[name] == 1 else f"{name} {short_cpu(d.split(' | ')[-1])}" for d, name in short.items()}


def _variants(record: dict[str, Any]) -> tuple[TriedVariant, ...]:
    results = record["results"]
    chosen = next((r.get("gbs") for r in results if r["outcome"] == "ok"), None)
    tolerance = TOLERANCE.get(record["size"], 1.0)
    made = [TriedVariant(_name(r["variant"]), r["outcome"], r.get("gbs"), _why(r, chosen, tolerance)) for r in results]
    return tuple(sorted(made, key=lambda v: (not v.chosen, v.broken, -(v.gbs or 0.0))))


def _why(result: dict[str, Any], chosen: float | None, tolerance: float) -> str:
    outcome, rate = result["outcome"], result.get("gbs")
    if outcome == "ok":
        return ""
    if outcome in BROKEN:
        return ": ".join(part for part in (_WORDS.get(outcome, outcome), result.get("reason")) if part)
    if not rate or not chosen:
        return str(result.get("reason") or outcome)
    if rate >= chosen:
        return f"faster by {rate / chosen - 1:.1%}, less than the {tolerance - 1:.0%} of a tie, and later in the list"
    return f"slower by {1 - rate / chosen:.0%}"


def _name(parameters: dict[str, Any]) -> str:
    try:
        return str(Variant.from_dict(parameters))
    except (ConfigError, TypeError):
        # Of another version, with other parameters.
        rest = (f"{k}={v}" for k, v in parameters.items() if k != "kernel")
        return " ".join([str(parameters.get("kernel", "")), *rest]).strip()


def listed(key: TriedKey) -> tuple[Sequence[TriedVariant], Sequence[TriedVariant]]:
    """Return the variants of a class to list one by one, and the slower ones that are only counted."""
    right = [v for v in key.variants if not v.broken]
    broken = [v for v in key.variants if v.broken]
    return [*right[: LISTED + 1], *broken], right[LISTED + 1 :]
