"""This package as an entry: plans on OpenCL arrays, and calls on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..operation import Rope
from .buffers import DeviceSets, HostSets, tensors_of
from .entry import BenchmarkEntry
from .validation import ResultCheck

if TYPE_CHECKING:
    import pyopencl

    from ..kernels.variant import Variant

#: Position arrays that a `fresh` workload goes through: more than the tables that are kept.
FRESH = 12


def _pack(tensors: Sequence[Any]) -> Any:
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _plans(op: Rope, x: Sequence[Sequence[Any]], y: Sequence[Sequence[Any]], workload: Any) -> list[Any]:
    positions = workload.position_array()
    plans = [
        op.plan(_pack(inputs), positions, forward=workload.forward, out=_pack(outputs))
        for inputs, outputs in zip(x, y, strict=True)
    ]
    # The first run makes tables and binds a kernel. With many sets it would otherwise be what is timed.
    for plan in plans:
        plan.run()
        # Nothing may still be under way when the same memory is then used from another queue.
        plan.queue.finish()
    return plans


def _taken(outputs: Sequence[Any]) -> list[Any]:
    """Return the events of a run and forget them, as waiting for an array would."""
    events = [event for array in outputs for event in array.events]
    for array in outputs:
        del array.events[:]
    return events


def on_device(
    sets: DeviceSets, profiled: pyopencl.CommandQueue, validate: ResultCheck, label: str, variant: Variant | None = None
) -> BenchmarkEntry:
    """Return `plan.run()` on OpenCL arrays, one plan a set. Where latency counts, on a queue that takes no times.

    variant: the variant to use; the chosen one, if None.
    """
    workload, queue = sets.inputs.workload, sets.queue
    plans = _plans(Rope(workload.config, queue, variant=variant), sets.x, sets.y, workload)
    fresh = [workload.position_array(7 * i) for i in range(FRESH)] if workload.fresh else []
    turn = 0

    def call(i: int) -> None:
        plans[i].run()
        queue.finish()

    def call_fresh(i: int) -> None:
        nonlocal turn
        turn = (turn + 1) % FRESH
        plans[i].run(positions=fresh[turn])
        queue.finish()

    def check() -> float:
        worst = 0.0
        for number in {0, sets.count - 1}:
            sets.reset(number)
            plans[number].run(positions=workload.position_array() if fresh else None)
            queue.finish()
            _taken(sets.y[number])
            worst = max(worst, validate(tensors_of(workload, sets.read(number))))
            sets.reset(number)
        return worst

    timed: Callable[[int], list[Any]] | None = None
    if profiled is not queue:
        x, y = sets.on_queue(profiled)
        timed_plans = _plans(Rope(workload.config, profiled, variant=variant), x, y, workload)

        def with_times(i: int) -> list[Any]:
            timed_plans[i].run()
            profiled.finish()
            return _taken(y[i])

        timed = with_times

    seen = {repr(variant): variant.to_dict() for variant in plans[0].variants}
    return BenchmarkEntry(
        "clrope", "arrays", call_fresh if fresh else call, check, sets.count, workload.bytes_moved, label,
        details={"variants": list(seen.values()), "launches": plans[0].launches},
        after=lambda i: _taken(sets.y[i]), profiled=timed,
    )  # fmt: skip


def on_host(sets: HostSets, queue: pyopencl.CommandQueue, validate: ResultCheck, label: str) -> list[BenchmarkEntry]:
    """Return calls on NumPy arrays: a plan's run, `rope(..., out=)`, and `rope(...)` with a new result array."""
    workload = sets.inputs.workload
    op = Rope(workload.config, queue)
    plans = _plans(op, sets.x, sets.y, workload)
    positions = workload.position_array()
    tensors = [(_pack(x), _pack(y)) for x, y in zip(sets.x, sets.y, strict=True)]

    def run(i: int) -> None:
        plans[i].run()

    def given(i: int) -> None:
        op(tensors[i][0], positions, workload.forward, out=tensors[i][1])

    def new(i: int) -> Any:
        op(tensors[i][0], positions, workload.forward)

    def check(call: Callable[[int], Any]) -> Callable[[], float]:
        def checked() -> float:
            worst = 0.0
            for number in {0, sets.count - 1}:
                sets.reset(number)
                call(number)
                worst = max(worst, validate(sets.y[number]))
                sets.reset(number)
            return worst

        return checked

    def check_new() -> float:
        got = op(tensors[0][0], positions, workload.forward)
        results: list[npt.NDArray[Any]] = [np.asarray(y) for y in (got if isinstance(got, tuple) else (got,))]
        return validate(results)

    moved = workload.bytes_moved
    out = [
        BenchmarkEntry("clrope", "numpy plan.run", run, check(run), sets.count, moved, label),
        BenchmarkEntry("clrope", "numpy out=", given, check(given), sets.count, moved, label),
    ]
    if not workload.in_place:
        out.append(BenchmarkEntry("clrope", "numpy new", new, check_new, sets.count, moved, label))
    return out
