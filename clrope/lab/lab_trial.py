"""A case of a suite with a lab kernel: three calls with changing inputs and poisons, everything around them checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import reference
from ..errors import UnsupportedError
from ..kernels.kernel import Kernel
from ..layout import canonical
from ..operation import Rope
from ..runtime import queue_for
from ..suite.case import Case
from ..suite.case_memory import Memory
from ..suite.case_outcome import CaseOutcome
from ..suite.rope_trial import RopeTrial, flat
from ..testing import NAN_POISON, POISON, bits, count_differing, nmse
from .diagnosis import diagnose
from .evidence import Evidence
from .guarded_arrays import GuardedArrays

if TYPE_CHECKING:
    from ..device import DeviceInfo

Array = npt.NDArray[Any]

#: Largest NMSE of a kernel that computes its angles from positions, in float32: the limit of ggml's own tests.
OWN_ANGLES_LIMIT = 1e-7


@dataclass(frozen=True)
class LabOutcome:
    """The outcome of a case.

    status: 'right', 'wrong', or 'not expressible' (detail says what is missing).
    place:  (b, s, n, d) of the first wrong element, with got, want and the distance in units of the last place.
    """

    status: str
    nmse: float | None = None
    limit: float | None = None
    detail: str = ""
    place: tuple[int, ...] | None = None
    got: float | None = None
    want: float | None = None
    ulp: float | None = None
    diagnosis: tuple[str, ...] = ()

    def as_case_outcome(self) -> CaseOutcome:
        """Return the outcome in the form of the conformance suites."""
        status = {"right": "ok", "wrong": "fail"}.get(self.status, "skip")
        return CaseOutcome(status, self.nmse, self.limit, "", self.detail)  # type: ignore[arg-type]


class LabTrial(RopeTrial):
    """One case, its inputs drawn from a seed.

    Call 1 rotates x into memory full of NaN; call 2 rotates other values into memory that holds plausible numbers; call
    3 rotates x again into the memory of call 1, filled with another poison, and must give the bits of call 1. Inputs,
    guards and the earlier output must not change. exact: without guards, for a simulator that checks bounds itself.
    """

    def __init__(self, case: Case, seed: int, kernel: Kernel, *, exact: bool = False) -> None:
        super().__init__(case, seed)
        self._exact = exact
        self._kernel = kernel
        self._other = np.random.default_rng([seed, 1])
        if self._kernel_for().angles == "positions":
            self.limit = max(self.limit, OWN_ANGLES_LIMIT)

    def run_kernel(self, device: DeviceInfo) -> LabOutcome:
        """Run on the device and return the outcome; driver errors are raised."""
        case = self.case
        if case.type == "f64" and not device.fp64:
            return LabOutcome("not expressible", detail="the device has no fp64")
        try:
            return self._three_calls(device)
        except UnsupportedError as error:
            what = str(error).partition(" cannot express ")[2] or str(error)
            return LabOutcome("not expressible", limit=self.limit, detail=what)
        finally:
            self.x.restore()

    def _three_calls(self, device: DeviceInfo) -> LabOutcome:
        case = self.case
        queue = queue_for(device)
        op = Rope(self.config, device=queue, kernel=self._kernel)
        takes_offsets = not self._kernel_for().needs_copies
        view = case.v if case.o or len(self.x.views) > 1 else 0
        problems: list[str] = []
        results: list[list[Array]] = []
        kept: tuple[GuardedArrays, Memory, list[Array]] | None = None
        failed: LabOutcome | None = None
        want = self.want
        for call in range(3):
            memory = Memory(case, case.v)
            bits(memory.parent)[...] = bits(self.x.parent)
            if call == 1:
                self._other_values(memory)
                want = flat([self._other_want(array) for array in self._wants()])
            else:
                want = self.want
            source = GuardedArrays(
                queue, memory.parent, memory.views, offsets=takes_offsets, byte=POISON, exact=self._exact
            )
            source.upload()
            before = bits(memory.parent).copy()
            out = memory
            target = source
            if not case.inplace:
                out = Memory(case, view)
                self._poison(out, call)
                target = GuardedArrays(
                    queue, out.parent, out.views, offsets=takes_offsets, byte=NAN_POISON, exact=self._exact
                )
                target.upload()
            start = [np.array(v) for v in out.views]
            single = len(memory.views) == 1
            op(
                source.arrays[0] if single else tuple(source.arrays), self.positions, case.forward,
                target.arrays[0] if single else tuple(target.arrays), case.lo,
            )  # fmt: skip
            queue.finish()
            around = target.download()
            if around:
                problems.append(f"{around} bytes outside of the output's memory changed (out of bounds)")
            got = [np.array(v) for v in out.views]
            if not case.inplace:
                stray = out.stray()
                around = source.download()
                touched = int(np.count_nonzero(bits(memory.parent) != before))
                if stray:
                    problems.append(f"{stray} elements between or around the output's changed (out of bounds)")
                if touched or around:
                    problems.append(f"{touched} elements of the input changed, {around} bytes around it")
            results.append(got)
            error, text = self.error(got, want)
            if text and not error <= self.limit:
                return LabOutcome("wrong", error, self.limit, problems[0] if problems else text, diagnosis=(text,))
            if failed is not None:
                return self._late(failed, got)
            if not error <= self.limit:
                failed = self._failed(call, got, start, want, error, problems, results)
                if call == 0:
                    continue  # perhaps the next call does this one's work
                return failed
            if problems:
                return LabOutcome("wrong", error, self.limit, problems[0], diagnosis=(problems[0],))
            if call == 0 and not case.inplace:
                kept = target, out, got
        if any(count_differing(a, b) for a, b in zip(results[0], results[2], strict=True)):
            text = "the third call gave other bits than the first one with the same input: results depend on call count"
            return LabOutcome("wrong", error, self.limit, text, diagnosis=(text,))
        if kept is not None:
            target, out, got = kept
            target.download()
            if any(count_differing(a, b) for a, b in zip(got, out.views, strict=True)):
                text = "the first call's result changed after its event: later calls write to earlier outputs"
                return LabOutcome("wrong", error, self.limit, text, diagnosis=(text,))
        return LabOutcome("right", error, self.limit)

    def _late(self, failed: LabOutcome, got: list[Array]) -> LabOutcome:
        """Return the first call's failure, with what the second call's result says of it."""
        config = self.config.for_head_dim(self.case.shape["d"])
        turned = np.concatenate(reference.pair_indices(config))
        parts = [[canonical(a, self.case.lo)[..., turned] for a in arrays] for arrays in (got, self._wants())]
        if nmse(*(flat(arrays) for arrays in parts)) <= self.limit:
            text = "the work is left to the next call: the second call gave the first one's result"
            return replace(failed, diagnosis=(text, *failed.diagnosis))
        return failed

    def _kernel_for(self) -> Kernel:
        return self._kernel if self._kernel.configured is None else self._kernel.configured(self.config)

    def _wants(self) -> list[Array]:
        """Return the reference of each view, in the axes of the view."""
        sizes = np.cumsum([view.size for view in self.x.views])[:-1]
        parts = np.split(self.want, sizes)
        return [part.reshape(view.shape) for part, view in zip(parts, self.x.views, strict=True)]

    def _other_values(self, memory: Memory) -> None:
        """Negate the views and turn their heads by one: what this does to the result is known without a reference."""
        for view in memory.views:
            axis = self._head_axis()
            view[...] = np.roll(-np.array(view), 1, axis)

    def _other_want(self, want: Array) -> Array:
        return np.roll(-want, 1, self._head_axis())

    def _head_axis(self) -> int:
        return self.case.lo.index("n")

    def _poison(self, out: Memory, call: int) -> None:
        if call == 1:  # plausible finite numbers, which a check for NaN would take for results
            out.fill(self._other)
        else:
            out.poison(NAN_POISON if call == 0 else POISON)

    def _failed(
        self, call: int, got: list[Array], start: list[Array], want: Array, error: float, problems: list[str],
        results: list[list[Array]],
    ) -> LabOutcome:  # fmt: skip
        sources = [np.array(view) for view in self.x.views]
        wants = self._wants()
        if call == 1:
            axis = self._head_axis()
            sources = [np.roll(-a, 1, axis) for a in sources]
            wants = [self._other_want(w) for w in wants]
        found: list[str] = list(problems)
        first: tuple[tuple[int, ...], float, float, float] | None = None
        for k, (a, b, w, x) in enumerate(zip(got, start, wants, sources, strict=True)):
            x, a, w, b = (canonical(array, self.case.lo) for array in (x, a, w, b))
            evidence = Evidence(
                x, a, w, b, self.config, self.positions, self.case.forward, self.case.type, self.limit, call,
                None if call == 0 else canonical(results[0][k], self.case.lo),
                self._dense_source(k) if call == 0 else None,
                self._kernel_for().angles == "positions",
            )  # fmt: skip
            place = evidence.first_wrong()
            if place is not None and first is None:
                first = place, *evidence.at(place)
                found += diagnose(evidence)
        detail = f"NMSE {error:.3g}, limit {self.limit:.0e}" + ("" if call == 0 else f" in call {call + 1} of 3")
        place, got_one, want_one, ulp = first or (None, None, None, None)
        return LabOutcome(
            "wrong", error, self.limit, detail, place, got_one, want_one, ulp, tuple(dict.fromkeys(found))
        )

    def _dense_source(self, k: int) -> Array | None:
        """Return what a kernel reads that takes a strided view for contiguous memory; None for contiguous ones."""
        view, parent = self.x.views[k], self.x.parent
        if view.flags.c_contiguous:
            return None
        start = (view.__array_interface__["data"][0] - parent.__array_interface__["data"][0]) // parent.itemsize
        flat_parent = np.ravel(parent)
        if start + view.size > flat_parent.size:
            return None
        return canonical(np.array(flat_parent[start : start + view.size]).reshape(view.shape), self.case.lo)
