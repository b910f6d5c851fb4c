"""What a suite's case is to the runner: something that is prepared once and checked on each device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from ..device import DeviceInfo


@dataclass(frozen=True)
class CaseOutcome:
    """Verdict on one case on one device.

    status: 'ok', 'fail', or 'skip' (the device lacks what the case needs).
    nmse:   against the reference; None if there is none. limit: the largest allowed.
    digest: of the bytes of the result, the same for the same bits (any NaN counts as the same NaN).
    detail: why it failed or was skipped.
    """

    status: Literal["ok", "fail", "skip"]
    nmse: float | None = None
    limit: float | None = None
    digest: str = ""
    detail: str = ""

    @property
    def text(self) -> str:
        """'OK', 'SKIP, why', 'FAIL, NMSE 0.463321724', with what else is wrong."""
        if self.status == "ok":
            return "OK"
        parts = [self.status.upper()]
        if self.status == "fail" and self.nmse is not None:
            parts.append(f"NMSE {nmse_text(self.nmse)}")
        return ", ".join([*parts, self.detail] if self.detail else parts)


def nmse_text(nmse: float) -> str:
    """Return the figure as the grid has it (nine decimals), with an exponent where that would show no digit."""
    return f"{nmse:.9f}" if nmse >= 1e-7 and math.isfinite(nmse) else f"{nmse:.3g}"


class CaseTrial(Protocol):
    """A case with its inputs and its reference, ready for devices."""

    @property
    def digest(self) -> str:
        """Digest of the bits that are right, from the kernels' arithmetic repeated in NumPy; '' if there are none."""

    def run(self, device: DeviceInfo) -> CaseOutcome:
        """Run on a device and check the result."""


class SuiteCase(Protocol):
    """One line of a suite."""

    @property
    def label(self) -> str:
        """The line, unique in its suite."""

    def prepare(self, seed: int) -> CaseTrial:
        """Draw inputs from the seed (the same for the same seed and label) and compute the reference."""
