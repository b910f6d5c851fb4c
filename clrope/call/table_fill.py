"""Tables of cos and sin for the host, filled by the device's kernels."""

from __future__ import annotations

from typing import Any

from ..kernels.launch import Launch
from .runtime import QueueState
from .sources import ConfigAngles, PositionForm, upload
from .table_sets import TableSet


def filled(state: QueueState, source: ConfigAngles, form: PositionForm, rows: Any, results: list[Any]) -> None:
    """Write cos and sin of some rows of positions, int64[axes, R], into two arrays float32[R, pairs]."""
    import pyopencl as cl

    runtime, queue, count = state.runtime, state.queue, rows.shape[1]
    spec = source.table_spec(count, slice(0, count), form, "f32", runtime.info)
    launch, made = Launch(runtime.program(spec), spec), TableSet(runtime.context, results[0].nbytes)
    positions = upload(runtime.context, rows)
    constants = source.table_arguments(runtime, slice(0, count), "f32")
    launch.bind({**constants, "positions": positions, "cosine": made.cosine, "sine": made.sine})
    with runtime.using(queue, results):
        launch.enqueue(queue).wait()
        for result, buffer in zip(results, (made.cosine, made.sine), strict=True):
            cl.enqueue_copy(queue, result, buffer)
