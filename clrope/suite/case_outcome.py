"""The runner's view of a case: prepared once, checked on each device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from ..device import DeviceInfo


@dataclass(frozen=True)
class CaseOutcome:
    """The outcome of one case on one device.

    status: 'ok', 'fail', or 'skip' (the device lacks what the case needs).
    nmse:   against the reference; None if there is none. limit: the largest allowed.
    digest: of the bits of the result, with every NaN counted as the same NaN.
    detail: the reason of a failure or skip, or the message of a call that was refused as it must be.
    """

    status: Literal["ok", "fail", "skip"]
    nmse: float | None = None
    limit: float | None = None
    digest: str = ""
    detail: str = ""

    @property
    def refused(self) -> bool:
        """Whether the case is a wrong call, which was refused."""
        return self.status == "ok" and bool(self.detail)

    @property
    def text(self) -> str:
        """'OK', 'SKIP, reason', or 'FAIL, NMSE 0.463321724, reason'."""
        if self.status == "ok":
            return "OK"
        parts = [self.status.upper()]
        if self.status == "fail" and self.nmse is not None:
            parts.append(f"NMSE {nmse_text(self.nmse)}")
        return ", ".join([*parts, self.detail] if self.detail else parts)


def nmse_text(nmse: float) -> str:
    """Return nine decimals, as in the grid, or an exponent where these would all be 0."""
    return f"{nmse:.9f}" if nmse >= 1e-7 and math.isfinite(nmse) else f"{nmse:.3g}"


class CaseTrial(Protocol):
    """A case with its inputs and its reference, ready for devices."""

    @property
    def digest(self) -> str:
        """Digest of the right bits, by the kernels' arithmetic in NumPy; '' if they are unknown."""

    def run(self, device: DeviceInfo) -> CaseOutcome:
        """Run on a device and check the result."""


class SuiteCase(Protocol):
    """One line of a suite."""

    @property
    def label(self) -> str:
        """The line, unique in its suite."""

    def prepare(self, seed: int) -> CaseTrial:
        """Draw inputs from the seed (the same for the same seed and label) and compute the reference."""
