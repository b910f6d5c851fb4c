"""What a suite's case is to the runner: something that is prepared once and checked on each device."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ..device import DeviceInfo

#: Largest NMSE against the float64 reference. Rounding to the type alone spends 4.6e-8 (f16) and 2.9e-6 (bf16).
LIMITS = {"f32": 1e-12, "f16": 6e-8, "bf16": 4e-6, "f64": 1e-20}
#: Below this many elements the roundings to f16 and bf16 do not average out; the limits of ggml's own tests hold.
FEW = 4096
LIMITS_FEW = LIMITS | {"f16": 1e-7, "bf16": 6.4e-6}


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


def nmse_of(got: npt.NDArray[Any], want: npt.NDArray[np.float64]) -> float:
    """Return sum (got - want)² / sum want² for finite want; inf if a value of got is not finite.

    `clrope.compare` without what only a person wants to know, which takes most of its time.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        difference = got.astype(np.float64) - want
        error, power = float(np.dot(difference, difference)), float(np.dot(want, want))
    if not math.isfinite(error):
        return math.inf
    return error / power if power else (0.0 if error == 0 else math.inf)


def digest_of(arrays: Sequence[npt.NDArray[Any]]) -> str:
    """Return 16 hexadecimal digits of the arrays' bytes in C order, with every NaN made the same first."""
    total = hashlib.sha256()
    for array in arrays:
        dense = np.array(array, order="C")
        with np.errstate(invalid="ignore"):  # a signalling NaN among bfloat16s
            dense[np.isnan(dense)] = np.nan
        total.update(dense.view(np.uint8).data)
    return total.hexdigest()[:16]


def limit_for(dtype: str, elements: int) -> float:
    """Return the largest NMSE allowed for a result of so many elements."""
    return (LIMITS if elements >= FEW else LIMITS_FEW)[dtype]


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
