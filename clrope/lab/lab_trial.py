"""A case of a suite with a lab kernel: three calls with changing inputs and poisons, everything around them checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import reference
from ..call.runtime import queue_for
from ..errors import UnsupportedError
from ..kernels.kernel import Kernel
from ..layout import canonical
from ..positions import position_rows
from ..suite.case import Case
from ..suite.case_memory import Memory
from ..suite.case_outcome import CaseOutcome
from ..suite.rope_trial import RopeTrial, flat
from ..testing import NAN_POISON, POISON, bits, count_differing, nmse
from .diagnosis import diagnose
from .evidence import Evidence
from .guarded_arrays import GuardedArrays
from .lab_launch import LabLaunch, problem_of

if TYPE_CHECKING:
    import pyopencl

    from ..device import DeviceInfo

Array = npt.NDArray[Any]

#: Largest NMSE of a kernel that computes its angles from positions, in float32: the limit of ggml's own tests.
OWN_ANGLES_LIMIT = 1e-7
#: Elements from which on one call is enough: it takes seconds, and smaller tensors show the rest.
_LARGE = 1 << 22


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

    Call 1 rotates x into memory full of NaN; call 2 rotates other values into zeros; call 3 rotates x again, into the
    right result mixed with other numbers, and must give the bits of call 1. Inputs, tables, guards and the earlier
    output must not change. Large tensors are rotated once. exact: without guards, for a simulator that checks bounds.
    explain: diagnose a wrong result, which takes longer than the calls.
    """

    def __init__(self, case: Case, seed: int, kernel: Kernel, *, exact: bool = False, explain: bool = True) -> None:
        super().__init__(case, seed)
        self._exact, self._explain = exact, explain
        self._kernel = kernel
        self._other = np.random.default_rng([seed, 1])
        if self._configured.angles == "positions":
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
        case, queue = self.case, queue_for(device)
        launches = self._launches(device)
        problems: list[str] = []
        results: list[list[Array]] = []
        kept: tuple[GuardedArrays, Memory, list[Array]] | None = None
        alive: list[GuardedArrays] = []  # a kernel that writes to an earlier output is to be found out, not to crash
        failed: LabOutcome | None = None
        calls = 3 if self.want.size < _LARGE else 1
        for call in range(calls):
            memory = Memory.of_input(case)
            bits(memory.parent)[...] = bits(self.x.parent)
            want = self.want
            if call == 1:
                self._other_values(memory)
                want = flat([self._other_want(array) for array in self._wants()])
            source = self._guarded(queue, memory, launches, "xy" if case.inplace else "x")
            before = bits(memory.parent).copy()
            out, target = memory, source
            if not case.inplace:
                out = Memory.of_output(case)
                self._fill(out, call, results)
                target = self._guarded(queue, out, launches, "y")
            alive.append(target)
            start = [np.array(v) for v in out.views]
            for launch, x, y in zip(launches, source.arrays, target.arrays, strict=True):
                launch(x, y)
            around = target.download()
            if around:
                problems.append(f"{around} bytes outside of the output's memory changed (out of bounds)")
            problems += [text for launch in launches if (text := launch.changed())]
            got = [np.array(v) for v in out.views]
            if not case.inplace:
                problems += self._changed(source, memory, before, out)
            results.append(got)
            error, text = self.error(got, want)
            if text and not error <= self.limit:
                return LabOutcome("wrong", error, self.limit, problems[0] if problems else text, diagnosis=(text,))
            if failed is not None:
                return self._late(failed, got)
            if not error <= self.limit:
                failed = self._failed(call, got, start, want, error, problems, results)
                if call == 0 and calls > 1:
                    continue  # perhaps the next call does this one's work
                return failed
            if problems:
                return LabOutcome("wrong", error, self.limit, problems[0], diagnosis=(problems[0],))
            if call == 0 and not case.inplace:
                kept = target, out, got
        if any(count_differing(a, b) for a, b in zip(results[0], results[-1], strict=True)):
            text = "the third call gave other bits than the first one with the same input: results depend on call count"
            return LabOutcome("wrong", error, self.limit, text, diagnosis=(text,))
        if kept is not None:
            target, out, got = kept
            target.download()
            if any(count_differing(a, b) for a, b in zip(got, out.views, strict=True)):
                text = "the first call's result changed after its event: later calls write to earlier outputs"
                return LabOutcome("wrong", error, self.limit, text, diagnosis=(text,))
        return LabOutcome("right", error, self.limit)

    def _launches(self, device: DeviceInfo) -> list[LabLaunch]:
        """Return the launch of each tensor."""
        case, config = self.case, self.config.for_head_dim(self.case.shape["d"])
        rows = position_rows(self.positions, config, batch=case.shape["b"], seq=case.shape["s"])
        outputs = self.x.views if case.inplace else Memory.of_output(case).views
        return [
            LabLaunch(
                queue_for(device), device, self._configured, config,
                problem_of(case, config, x, y, rows.batch_stride), rows, exact=self._exact,
            )
            for x, y in zip(self.x.views, outputs, strict=True)
        ]  # fmt: skip

    def _guarded(
        self, queue: pyopencl.CommandQueue, memory: Memory, launches: list[LabLaunch], names: str
    ) -> GuardedArrays:
        """Return a memory's copy on the device. names: 'x', 'y', or 'xy' in place."""
        first = self.case.yo if names == "y" else self.case.xo
        made = GuardedArrays(
            queue, memory.parent, memory.views, byte=NAN_POISON if names == "y" else POISON,
            offsets=all(launch.takes_offset(name) for launch in launches for name in names),
            before=first * memory.views[0].itemsize, exact=self._exact,
        )  # fmt: skip
        made.upload()
        return made

    def _changed(self, source: GuardedArrays, memory: Memory, before: Array, out: Memory) -> list[str]:
        """Return what else changed than the output's elements."""
        found = []
        if stray := out.stray():
            found.append(f"{stray} elements between or around the output's changed (out of bounds)")
        around = source.download()
        touched = int(np.count_nonzero(bits(memory.parent) != before))
        if touched or around:
            found.append(f"{touched} elements of the input changed, {around} bytes around it")
        return found

    def _late(self, failed: LabOutcome, got: list[Array]) -> LabOutcome:
        """Return the first call's failure, with what the second call's result says of it."""
        config = self.config.for_head_dim(self.case.shape["d"])
        turned = np.concatenate(reference.pair_indices(config))
        parts = [[canonical(a, self.case.lo)[..., turned] for a in arrays] for arrays in (got, self._wants())]
        if nmse(*(flat(arrays) for arrays in parts)) <= self.limit:
            text = "the work is left to the next call: the second call gave the first one's result"
            return replace(failed, diagnosis=(text, *failed.diagnosis))
        return failed

    @cached_property
    def _configured(self) -> Kernel:
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

    def _fill(self, out: Memory, call: int, results: list[list[Array]]) -> None:
        """Fill the output with NaN, with zeros, or with the first call's result, which is damaged in many heads."""
        if call == 0:
            out.poison(NAN_POISON)
        elif call == 1:
            out.poison(0)
        else:
            out.fill(self._other)
            for view, result in zip(out.views, results[0], strict=True):
                _copy_in_part(canonical(result, self.case.lo), canonical(view, self.case.lo), self._other)
            out.keep()

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
                self._configured.angles == "positions",
            )  # fmt: skip
            place = evidence.first_wrong()
            if place is not None and first is None:
                first = place, *evidence.at(place)
                found += diagnose(evidence) if self._explain and w.size < _LARGE else []  # it would take minutes
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


def _copy_in_part(source: Array, target: Array, rng: np.random.Generator) -> None:
    """Copy half of all heads, of a quarter the first elements, and nothing of the rest."""
    *rows, length = source.shape
    kind = rng.integers(0, 4, rows)
    count = np.where(kind < 2, length, np.where(kind == 2, rng.integers(0, length + 1, rows), 0))
    mask = np.arange(length) < count[..., None]
    bits(target)[mask] = bits(source)[mask]
