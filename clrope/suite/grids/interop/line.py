"""A line of the suite: a call drawn from the seed, run on a poisoned output, compared with formulas and bits.

A peer's file provides `PeerCall`s. `Line` and `PeerTrial` adapt them to the runner of suites.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
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
    """One call of an adapter with its inputs; its `str` names everything that the seed draws."""

    @property
    def kind(self) -> str:
        """The result's type: 'f32', 'f16', 'bf16', 'f64'."""

    @property
    def inputs(self) -> Sequence[Array | None]:
        """The inputs, which must not change."""

    def want(self) -> npt.NDArray[np.float64]:
        """Return the result of the peer's published formulas in float64."""

    def right_bits(self) -> Array | None:
        """Return the result of the kernels' arithmetic in NumPy, None where it is unknown."""

    def apply(self, device: DeviceInfo) -> tuple[Array, list[str]]:
        """Call the adapter; return a copy of its result, and errors."""


def missing(package: str) -> str:
    """Return that a package is needed and not installed; '' if it is installed or none is needed."""
    if not package or importlib.util.find_spec(package) is not None:
        return ""
    return f"the package {package} is not installed (pip install {package})"


@dataclass(frozen=True)
class Line:
    """A call by its label; `draw` makes the inputs from random numbers.

    kind:  the type whose error limit holds: the coarsest of the call.
    needs: the package that the call needs, '' for none.
    """

    label: str
    kind: str
    draw: Callable[[np.random.Generator], PeerCall]
    needs: str = ""

    def prepare(self, seed: int) -> PeerTrial:
        """Draw the inputs and compute the right result."""
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
        before = [np.array(x).tobytes() for x in self.call.inputs if x is not None]
        with poisoned_results():
            got, errors = self.call.apply(device)
        if before != [np.array(x).tobytes() for x in self.call.inputs if x is not None]:
            errors = [*errors, "an input changed"]
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

    Otherwise a result could get the memory of an earlier right result, and a kernel that does nothing would pass.
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
