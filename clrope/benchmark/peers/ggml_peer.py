"""ggml on the CPU through `ggml-python`: one graph a buffer set, tensors over the task's memory, one thread pool."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..entry import Refused
from . import Prepared, Task

packages = ("ggml-python",)

Tensors = Sequence[npt.NDArray[Any]]
Rows = npt.NDArray[np.int32]


def prepare(task: Task) -> Prepared:
    """Return a graph computation; f32 and f16. Positions that differ by batch make one row of all tokens."""
    if task.workload.dtype == "bf16":
        raise Refused("ggml's CPU rope has no bf16")
    if task.workload.in_place and not task.workload.forward:
        raise Refused("ggml has no in-place backward rope")
    (made,) = _computations(task, _rows(task), list(zip(task.x, task.y, strict=True)), [task.threads])
    return Prepared(*made, variant=f"{task.threads} threads")


def prepare_step(task: Task) -> list[Prepared]:
    """Return a decode step as one graph of all layers' rotations; f32 and f16."""
    xs, ys = ([tensor for layer in layers for tensor in layer] for layers in (task.x, task.y))
    rows = _rows(task)
    offsets = rows - rows[0]
    # For so little work, waking threads may cost more than it saves: one thread is timed as well.
    counts = sorted({task.threads, 1}, reverse=True)
    made = _computations(task, rows, [(xs, ys)], counts)

    def at_position(compute: Callable[[int], None]) -> Callable[[int], Any]:
        def call(position: int) -> Any:
            np.add(offsets, position, out=rows)
            compute(0)
            return task.y

        return call

    return [
        Prepared(at_position(compute), None, close, f"{threads} thread{'s' * (threads > 1)}",
                 "" if threads == task.threads else " 1 thread")
        for threads, (compute, _, close) in zip(counts, made, strict=True)
    ]  # fmt: skip


def _rows(task: Task) -> Rows:
    return np.ascontiguousarray(task.positions, dtype=np.int32).ravel()


def _computations(
    task: Task, rows: Rows, groups: Sequence[tuple[Tensors, Tensors]], counts: Sequence[int]
) -> list[tuple[Callable[[int], None], None, Callable[[], None]]]:
    """Return, by the number of threads, a call that computes the graph of group i, and what frees its memory."""
    g: Any = importlib.import_module("ggml")
    nodes = sum(4 * len(xs) + 16 for xs, _ in groups)
    size = len(groups) * int(g.ggml_graph_overhead()) + nodes * int(g.ggml_tensor_overhead()) + (1 << 20)
    context = g.ggml_init(g.ggml_init_params(mem_size=size, mem_buffer=None, no_alloc=True))
    if not context:
        raise Refused("ggml_init failed")
    graphs = [_graph(g, context, task, rows, xs, ys) for xs, ys in groups]

    def with_threads(threads: int) -> tuple[Callable[[int], None], None, Callable[[], None]]:
        pool = g.ggml_threadpool_new(ctypes.byref(g.ggml_threadpool_params_default(threads)))
        plans = [g.ggml_graph_plan(graph, threads, pool) for graph in graphs]
        work = np.zeros(max(1, *(plan.work_size for plan in plans)), np.uint8)
        for plan in plans:
            plan.work_data = work.ctypes.data_as(type(plan.work_data))
        pointers = [ctypes.byref(plan) for plan in plans]

        # ggml keeps addresses only.
        def compute(i: int, kept: Any = (rows, work, plans)) -> None:
            if g.ggml_graph_compute(graphs[i], pointers[i]):
                raise RuntimeError("ggml reported a failure")

        def close() -> None:
            g.ggml_threadpool_free(pool)
            if threads == counts[-1]:
                g.ggml_free(context)

        return compute, None, close

    return [with_threads(threads) for threads in counts]


def _graph(g: Any, context: Any, task: Task, rows: Rows, xs: Tensors, ys: Tensors) -> Any:
    graph = g.ggml_new_graph_custom(context, max(16, 4 * len(xs)), False)
    positions = g.ggml_new_tensor_1d(context, g.GGML_TYPE_I32, rows.size)
    positions.contents.data = rows.ctypes.data
    kind = g.GGML_TYPE_F16 if task.workload.dtype == "f16" else g.GGML_TYPE_F32
    for x, y in zip(xs, ys, strict=True):
        batch, seq, heads, head_dim = x.shape
        if task.rows_per_batch:
            batch, seq = 1, batch * seq
        source = g.ggml_new_tensor_4d(context, kind, head_dim, heads, seq, batch)
        source.contents.data = x.__array_interface__["data"][0]
        result = _rope(g, context, task, source, positions)
        if y is not x:
            result.contents.data = y.__array_interface__["data"][0]
        g.ggml_build_forward_expand(graph, result)
    return graph


def _rope(g: Any, context: Any, task: Task, source: Any, positions: Any) -> Any:
    workload = task.workload
    c = workload.config
    ending = "_inplace" if workload.in_place else "" if workload.forward else "_back"
    operator = getattr(g, f"ggml_rope_{'ext' if c.sections is None else 'multi'}{ending}")
    sections = () if c.sections is None else ((ctypes.c_int * 4)(*c.sections),)
    return operator(
        context, source, positions, None, c.n_dims, *sections, c.ggml_mode, c.n_ctx_orig, c.freq_base, c.freq_scale,
        c.ext_factor, c.attn_factor, c.beta_fast, c.beta_slow,
    )  # fmt: skip
