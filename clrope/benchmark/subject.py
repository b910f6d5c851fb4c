"""This package as benchmark entries: plans on OpenCL arrays, and calls on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from ..kernels.variant import Variant
from ..operation import Rope
from .audit import Audit, OutputCheck
from .buffers import DeviceSets, HostSets, check_sets, tensors_of
from .entry import BenchmarkEntry
from .validation import ResultCheck

if TYPE_CHECKING:
    import pyopencl

    from ..kernels.kernel import Kernel

#: Position arrays of a `fresh` workload: more than the tables that the package keeps.
FRESH = 12


def _pack(tensors: Sequence[Any]) -> Any:
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _plans(op: Rope, x: Sequence[Sequence[Any]], y: Sequence[Sequence[Any]], workload: Any) -> list[Any]:
    positions = workload.position_array()
    plans = [
        op.plan(_pack(inputs), positions, forward=workload.forward, out=_pack(outputs))
        for inputs, outputs in zip(x, y, strict=True)
    ]
    # The first run makes tables and binds a kernel; it is not to be timed.
    for plan in plans:
        plan.run()
        # The same memory is next used from another queue.
        plan.queue.finish()
    return plans


def _taken(outputs: Sequence[Any]) -> list[Any]:
    """Return the events of a run and forget them, as waiting for an array does."""
    events = [event for array in outputs for event in array.events]
    for array in outputs:
        del array.events[:]
    return events


def on_device(
    sets: DeviceSets,
    profiled: pyopencl.CommandQueue,
    validate: ResultCheck,
    label: str,
    other: Kernel | Variant | None = None,
    name: str = "arrays",
    seed: int = 0,
) -> BenchmarkEntry:
    """Return `plan.run()` on OpenCL arrays, one plan a set. Where latency counts, the queue does not profile.

    other: a variant, or a lab kernel, in place of the chosen variant. seed: of the audit.
    """
    workload, queue = sets.inputs.workload, sets.queue
    variant, kernel = (other, None) if isinstance(other, Variant) else (None, other)
    plans = _plans(Rope(workload.config, queue, variant=variant, kernel=kernel), sets.x, sets.y, workload)
    fresh = cycle([(7 * i, workload.position_array(7 * i)) for i in range(FRESH)] if workload.fresh else [(0, None)])
    starts = [0] * sets.count

    def call(i: int) -> None:
        starts[i], positions = next(fresh)
        plans[i].run(positions=positions)
        queue.finish()

    def result(i: int) -> list[Any]:
        plans[i].run(positions=workload.position_array())
        queue.finish()
        _taken(sets.y[i])
        return tensors_of(workload, sets.read(i))

    def with_times() -> Callable[[int], list[Any]]:
        x, y = sets.on_queue(profiled)
        plans = _plans(Rope(workload.config, profiled, variant=variant, kernel=kernel), x, y, workload)

        def call(i: int) -> list[Any]:
            plans[i].run()
            profiled.finish()
            return _taken(y[i])

        return call

    seen = {repr(variant): variant.to_dict() for variant in plans[0].variants} if kernel is None else {}

    def moved(i: int, start: int) -> None:
        plans[i].run(positions=workload.position_array(start))
        queue.finish()
        _taken(sets.y[i])

    return BenchmarkEntry(
        "clrope" if other is None else "kernel", name, call, partial(check_sets, sets, result, validate), sets.count,
        workload.bytes_moved, label, details={"variants": list(seen.values()), "launches": plans[0].launches},
        after=lambda i: _taken(sets.y[i]), profiled=None if profiled is queue else with_times(),
        outputs=OutputCheck(sets, validate, lambda number: starts[number]),
        audit=None if workload.fresh else Audit(sets, validate, seed, moved),
    )  # fmt: skip


def on_host(sets: HostSets, queue: pyopencl.CommandQueue, validate: ResultCheck, label: str) -> list[BenchmarkEntry]:
    """Return calls on NumPy arrays: a plan's run, `rope(..., out=)`, and `rope(...)` with a new result array."""
    workload = sets.inputs.workload
    op = Rope(workload.config, queue)
    plans = _plans(op, sets.x, sets.y, workload)
    positions = workload.position_array()
    tensors = [(_pack(x), _pack(y)) for x, y in zip(sets.x, sets.y, strict=True)]

    # Nothing is returned: dropping a new result belongs to the time of a call.
    def run(i: int) -> None:
        plans[i].run()

    def given(i: int) -> None:
        op(tensors[i][0], positions, workload.forward, out=tensors[i][1])

    def new(i: int) -> None:
        op(tensors[i][0], positions, workload.forward)

    def result_of(call: Callable[[int], None], i: int) -> list[Any]:
        if call is new:
            got = op(tensors[i][0], positions, workload.forward)
            return [np.asarray(y) for y in (got if isinstance(got, tuple) else (got,))]
        call(i)
        return sets.y[i]

    ways: dict[str, Callable[[int], None]] = {"numpy plan.run": run, "numpy out=": given, "numpy new": new}
    return [
        BenchmarkEntry(
            "clrope", name, call, partial(check_sets, sets, partial(result_of, call), validate), sets.count,
            workload.bytes_moved, label,
        )
        for name, call in ways.items() if call is not new or not workload.in_place
    ]  # fmt: skip
