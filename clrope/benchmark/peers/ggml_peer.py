"""ggml on the CPU through `ggml-python`: one graph a buffer set, tensors over the task's memory, one thread pool."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

from ..entry import Refused
from . import Prepared, Task, installed

name = "ggml"
colour = "#d1710f"


def version() -> str | None:
    """Return the version of ggml-python."""
    return installed("ggml-python")


def prepare(task: Task) -> Prepared | Refused:
    """Return a graph computation; f32 and f16. Positions are shared by a batch, so tokens of several are one row."""
    workload = task.workload
    if workload.dtype == "bf16":
        return Refused("ggml's CPU rope has no bf16")
    if workload.in_place and not workload.forward:
        return Refused("ggml has no in-place backward rope")
    g: Any = importlib.import_module("ggml")
    graphs_bytes = 1 << 20
    overhead = (int(g.ggml_graph_overhead()) + 64 * int(g.ggml_tensor_overhead())) * len(task.x) + graphs_bytes
    context = g.ggml_init(g.ggml_init_params(mem_size=overhead, mem_buffer=None, no_alloc=True))
    if not context:
        return Refused("ggml_init failed")
    rows = np.ascontiguousarray(task.positions, dtype=np.int32).ravel()
    graphs = [_graph(g, context, task, rows, xs, ys) for xs, ys in zip(task.x, task.y, strict=True)]
    parameters = g.ggml_threadpool_params_default(task.threads)
    pool = g.ggml_threadpool_new(ctypes.byref(parameters))
    plans, work = [], np.zeros(0, np.uint8)
    for graph in graphs:
        plan = g.ggml_graph_plan(graph, task.threads, pool)
        if plan.work_size > work.size:
            work = np.zeros(plan.work_size, np.uint8)
        plans.append(plan)
    for plan in plans:
        plan.work_data = work.ctypes.data_as(type(plan.work_data))
    pointers = [ctypes.byref(plan) for plan in plans]
    # ggml has addresses only.
    kept = (rows, work, plans)

    def call(i: int, kept: Any = kept) -> None:
        if g.ggml_graph_compute(graphs[i], pointers[i]):
            raise RuntimeError("ggml reported a failure")

    def close() -> None:
        if pool:
            g.ggml_threadpool_free(pool)
        g.ggml_free(context)

    return Prepared(call, close=close, variant=f"{task.threads} threads")


def prepare_step(task: Task) -> list[Prepared] | Refused:
    """Return a decode step as one graph of all layers' rotations; f32 and f16."""
    g: Any = importlib.import_module("ggml")
    tensors = [(x, y) for xs, ys in zip(task.x, task.y, strict=True) for x, y in zip(xs, ys, strict=True)]
    overhead = int(g.ggml_graph_overhead()) + (4 * len(tensors) + 16) * int(g.ggml_tensor_overhead()) + (1 << 20)
    context = g.ggml_init(g.ggml_init_params(mem_size=overhead, mem_buffer=None, no_alloc=True))
    if not context:
        return Refused("ggml_init failed")
    rows = np.ascontiguousarray(task.positions, dtype=np.int32).ravel()
    graph = _graph(g, context, task, rows, [x for x, _ in tensors], [y for _, y in tensors])

    # For so little work, waking threads may cost more than they do: one thread is timed as well.
    counts = sorted({task.threads, 1}, reverse=True)

    def with_threads(threads: int) -> Prepared:
        pool = g.ggml_threadpool_new(ctypes.byref(g.ggml_threadpool_params_default(threads)))
        plan = g.ggml_graph_plan(graph, threads, pool)
        work = np.zeros(max(1, plan.work_size), np.uint8)
        plan.work_data = work.ctypes.data_as(type(plan.work_data))
        pointer = ctypes.byref(plan)

        def call(position: int, kept: Any = (work, plan)) -> Any:
            rows[0] = position
            if g.ggml_graph_compute(graph, pointer):
                raise RuntimeError("ggml reported a failure")
            return task.y

        def close() -> None:
            g.ggml_threadpool_free(pool)
            if threads == counts[-1]:
                g.ggml_free(context)

        words = f"{threads} thread{'s' * (threads > 1)}"
        return Prepared(call, close=close, variant=words, suffix="" if threads == task.threads else " 1 thread")

    return [with_threads(threads) for threads in counts]


def _graph(
    g: Any, context: Any, task: Task, rows: npt.NDArray[np.int32], xs: Any, ys: Any
) -> Any:  # fmt: skip
    graph = g.ggml_new_graph_custom(context, max(16, 4 * len(xs)), False)
    positions = g.ggml_new_tensor_1d(context, g.GGML_TYPE_I32, rows.size)
    positions.contents.data = rows.ctypes.data
    for x, y in zip(xs, ys, strict=True):
        source = _tensor(g, context, task, x)
        result = _rope(g, context, task, source, positions)
        if y is not x:
            result.contents.data = y.__array_interface__["data"][0]
        g.ggml_build_forward_expand(graph, result)
    return graph


def _tensor(g: Any, context: Any, task: Task, x: npt.NDArray[Any]) -> Any:
    batch, seq, heads, head_dim = x.shape
    if task.rows_per_batch:
        batch, seq = 1, batch * seq
    kind = g.GGML_TYPE_F16 if task.workload.dtype == "f16" else g.GGML_TYPE_F32
    tensor = g.ggml_new_tensor_4d(context, kind, head_dim, heads, seq, batch)
    tensor.contents.data = x.__array_interface__["data"][0]
    return tensor


def _rope(g: Any, context: Any, task: Task, source: Any, positions: Any) -> Any:
    c, workload = task.config, task.workload
    ending = "_inplace" if workload.in_place else "" if workload.forward else "_back"
    floats = (c.freq_base, c.freq_scale, c.ext_factor, c.attn_factor, c.beta_fast, c.beta_slow)
    if c.sections is None:
        call = getattr(g, f"ggml_rope_ext{ending}")
        return call(context, source, positions, None, c.n_dims, c.ggml_mode, c.n_ctx_orig, *floats)
    call = getattr(g, f"ggml_rope_multi{ending}")
    sections = (ctypes.c_int * 4)(*c.sections)
    return call(context, source, positions, None, c.n_dims, sections, c.ggml_mode, c.n_ctx_orig, *floats)
