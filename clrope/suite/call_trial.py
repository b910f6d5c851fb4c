"""A call on several tensors with its inputs and both right answers: run between guards, compared with both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..layout import dtype_name
from ..testing import NAN_POISON, bits, changed_outside, digest_of, guarded, limit_for, nmse
from .case_outcome import CaseOutcome

if TYPE_CHECKING:
    from ..device import DeviceInfo

Array = npt.NDArray[Any]
#: Runs the call: inputs, outputs, device.
Run = Callable[[Sequence[Array], Sequence[Array], "DeviceInfo"], object]


class Place(NamedTuple):
    """Where heads are in their memory: elements from `first` on, every `step`-th, of `width` (0: all that they need).

    more_heads: heads in memory after those of the tensor, as of k and v after q.
    """

    width: int = 0
    first: int = 0
    step: int = 1
    more_heads: int = 0

    def put(self, x: Array) -> tuple[Array, Array]:
        """Return (memory, x in it), with NaN around."""
        batch, seq, heads, head_dim = x.shape
        width = self.width or self.first + head_dim * self.step
        memory, whole = guarded((batch, seq, heads + self.more_heads, width), x.dtype, NAN_POISON)
        view = whole[:, :, :heads, self.first : self.first + head_dim * self.step : self.step]
        view[...] = x
        return memory, view


class CallTrial:
    """A call on tensors [B, S, N, D], compared with float64 and with the kernels' arithmetic in NumPy.

    x, positions, config: what is drawn. want: the outputs in float64; right: by NumPy's emulation, in their types.
    places:  of each tensor; its output is laid out as it is. inplace: whether the outputs are the inputs.
    before:  what outputs hold that are no results for the inputs, such as caches; dense.
    rounded: how many times each value is rounded to its type, roughly.
    """

    def __init__(
        self, run: Run, x: Sequence[Array], positions: Any, config: Any, want: Sequence[Array], right: Sequence[Array],
        *, places: Sequence[Place] = (), inplace: bool = False, before: Sequence[Array] = (), rounded: int = 1,
    ) -> None:  # fmt: skip
        self._run, self.x, self.positions, self.config = run, list(x), positions, config
        self._want, self._inplace = want, inplace
        self._places = places or [Place()] * len(x)
        self._before = before
        # What is put into a cache is rounded to the tensors' type, then to the cache's.
        kinds = [{dtype_name(a.dtype), dtype_name(x[0].dtype)} for a in right]
        self._limits = [
            max(limit_for(kind, a.size, rounding=True) for kind in both) * rounded
            for both, a in zip(kinds, right, strict=True)
        ]
        self.digest = digest_of(right)

    def results(self, device: DeviceInfo) -> tuple[list[Array], list[str]]:
        """Return the outputs of a device, and what is wrong with the memory around."""
        given = [place.put(x) for place, x in zip(self._places, self.x, strict=True)]
        made = given
        if not self._inplace:
            number = len(self._limits) - len(self._before)
            made = [p.put(np.full_like(x, np.nan)) for p, x in zip(self._places[:number], self.x, strict=False)]
            made += [Place().put(array) for array in self._before]
        sources, targets = [view for _, view in given], [view for _, view in made]
        before = [[memory.copy() for memory, _ in part] for part in (given, made)]
        self._run(sources, targets, device)
        errors = []
        for (memory, view), was in zip(made, before[1], strict=True):
            if changed_outside(memory, was, [view]).any():
                errors.append("elements outside the output changed")
        for (memory, _), was in zip(given, before[0], strict=True):
            if not self._inplace and (bits(memory) != bits(was)).any():
                errors.append("elements of the input changed")
        return [np.array(view) for view in targets], errors

    def run(self, device: DeviceInfo) -> CaseOutcome:
        """Run on the device and check the results and the memory around them."""
        if self.x[0].dtype == np.float64 and not device.fp64:
            return CaseOutcome("skip", limit=self._limits[0], detail="the device has no fp64")
        got, errors = self.results(device)
        found = [(nmse(a, want), limit) for a, want, limit in zip(got, self._want, self._limits, strict=True)]
        error, limit = max(found, key=lambda pair: pair[0] / pair[1])
        if not error <= limit:
            errors.insert(0, f"limit {limit:.0e}")
        return CaseOutcome("fail" if errors else "ok", error, limit, digest_of(got), "; ".join(errors))
