"""A line of the suite: what is called, drawn from the seed, run on a poisoned output, compared with formulas and bits.

`PeerCall` is what a peer's file provides; `Line` and `PeerTrial` make of it what the runner of suites takes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from .... import arrays
from ....compare import compare
from ....layout import DTYPES
from ....testing import NAN_POISON, digest_of, limit_for
from ...case_outcome import CaseOutcome
from ...rope_trial import generator

if TYPE_CHECKING:
    from ....device import DeviceInfo

Array = npt.NDArray[Any]


class PeerCall(Protocol):
    """One call of an adapter with its inputs; `str` of it says all that the line leaves open."""

    @property
    def kind(self) -> str:
        """The result's type: 'f32', 'f16', 'bf16', 'f64'."""

    def want(self) -> npt.NDArray[np.float64]:
        """Return what the peer's published formulas give in float64."""

    def right_bits(self) -> Array | None:
        """Return the result that the kernels' arithmetic gives, operation by operation in NumPy; None: not known."""

    def apply(self, device: DeviceInfo) -> tuple[Array, list[str]]:
        """Call the adapter and return a copy of its result, and what is wrong besides; the inputs stay as they are."""


def missing(package: str) -> str:
    """Say that a package is needed and not installed; '' if it is there or none is needed."""
    if not package or importlib.util.find_spec(package) is not None:
        return ""
    return f"the package {package} is not installed (pip install {package})"


@dataclass(frozen=True)
class Line:
    """What is called. `draw` makes the rest from random numbers.

    kind:  the type that decides how near the result must be: the coarsest on its way.
    needs: the package without which it cannot run, '' if there is none.
    """

    label: str
    kind: str
    draw: Callable[[np.random.Generator], PeerCall]
    needs: str = ""

    def prepare(self, seed: int) -> PeerTrial:
        """Draw the inputs and compute what is right."""
        return PeerTrial(self, self.draw(generator(seed, self.label)))


class PeerTrial:
    """A call ready for devices."""

    def __init__(self, line: Line, call: PeerCall) -> None:
        self.line, self.call = line, call
        self.want = call.want()
        bits = call.right_bits()
        self.digest = "" if bits is None else digest_of([bits])
        self.limit = limit_for(line.kind, self.want.size, rounding=True)

    def run(self, device: DeviceInfo) -> CaseOutcome:
        """Run on the device and check the result."""
        if missing(self.line.needs):
            return CaseOutcome("skip", detail=missing(self.line.needs))
        if self.line.kind == "f64" and not device.fp64:
            return CaseOutcome("skip", limit=self.limit, detail="the device has no fp64")
        with poisoned_results():
            got, errors = self.call.apply(device)
        if got.dtype != DTYPES[self.call.kind] or got.shape != self.want.shape:
            errors = [f"the result is {got.dtype}{list(got.shape)}, not {self.call.kind}{list(self.want.shape)}"]
            return CaseOutcome("fail", limit=self.limit, detail="; ".join([*errors, str(self.call)]))
        nmse = compare(got, self.want).nmse
        if not nmse <= self.limit:
            errors = [f"limit {self.limit:.0e}", *errors]
        detail = "; ".join([*errors, str(self.call)]) if errors else ""
        return CaseOutcome("fail" if errors else "ok", nmse, self.limit, digest_of([got]), detail)


@contextmanager
def poisoned_results() -> Iterator[None]:
    """While open, every result that the package allocates begins as NaN.

    Without it a result could take the memory of an earlier one, and a kernel that does nothing would seem to be right.
    """
    names: dict[str, Any] = vars(arrays)
    real = names["empty"]

    def filled(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        made: Array = real(shape, dtype)
        made.view(np.uint8)[...] = NAN_POISON
        return made

    names["empty"] = filled
    try:
        yield
    finally:
        names["empty"] = real
