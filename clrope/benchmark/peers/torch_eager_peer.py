"""torch, eager, on the CPU: rotation as in model code, a new tensor for every result."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...layout import DTYPES
from ..entry import Refused
from . import Prepared, Task

packages = ("torch",)


def prepare(task: Task, transform: Callable[[Any], Any] = lambda function: function) -> Prepared:
    """Return a call of the function. transform: compiles the function first."""
    if task.workload.in_place:
        raise Refused("model code makes new tensors")
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(task.threads)
    cos, sin = (torch.from_numpy(task.broadcast(t)).to(_dtype(torch, task.workload.dtype)) for t in _tables(task))
    function = transform(_rotation(torch, task))
    tensors = [[_tensor(torch, x) for x in xs] for xs in task.x]

    def call(i: int) -> Any:
        with torch.no_grad():
            return [function(x, cos, sin) for x in tensors[i]]

    return Prepared(call, lambda results: _arrays(torch, results))


def prepare_step(task: Task) -> list[Prepared]:
    """Return a step: rows of the tables by position, once for all layers, as in model code.

    A one-shot call has no tables: it makes cos and sin from the position, as a rotary embedding of transformers does.
    Of its ways one has a single thread: for little work waking threads may cost more than it saves.
    """
    torch: Any = importlib.import_module("torch")
    one_shot = task.workload.calls == "one-shot"
    rows = (_made_rows if one_shot else _table_rows)(torch, task)
    function = _rotation(torch, task)
    layers = [[_tensor(torch, x) for x in xs] for xs in task.x]

    def call(threads: int, position: int) -> Any:
        torch.set_num_threads(threads)
        with torch.no_grad():
            cos, sin = (t[None, :, None] for t in rows(position))
            return [function(x, cos, sin) for layer in layers for x in layer]

    return [
        Prepared(partial(call, threads), lambda results: _arrays(torch, results),
                 suffix="" if threads == task.threads else " 1 thread")
        for threads in sorted({task.threads, 1} if one_shot else {task.threads}, reverse=True)
    ]  # fmt: skip


def _table_rows(torch: Any, task: Task) -> Callable[[int], list[Any]]:
    """Return what takes a token's cos and sin out of tables."""
    tables = [torch.from_numpy(t).to(_dtype(torch, task.workload.dtype)) for t in _tables(task)]

    def rows(position: int) -> list[Any]:
        index = torch.tensor([position])
        return [table[index] for table in tables]

    return rows


def _made_rows(torch: Any, task: Task) -> Callable[[int], list[Any]]:
    """Return what makes cos and sin of all tokens in float32; of a plain configuration with pairs (i, i + n / 2)."""
    n, tokens, dtype = task.rotated, task.workload.tensors[0][1], _dtype(torch, task.workload.dtype)
    inverse = task.workload.config.freq_base ** -(torch.arange(0, n, 2, dtype=torch.float32) / n)

    def rows(position: int) -> list[Any]:
        half = torch.outer(torch.arange(position, position + tokens, dtype=torch.float32), inverse)
        angles = torch.cat((half, half), dim=-1)
        return [angles.cos().to(dtype), angles.sin().to(dtype)]

    return rows


def _tables(task: Task) -> list[npt.NDArray[np.float32]]:
    """Return tables with a column for each element of a pair, as in model code."""
    if task.interleaved:
        return [np.repeat(t, 2, axis=1) for t in (task.cos, task.sin)]
    return [np.concatenate([t, t], axis=1) for t in (task.cos, task.sin)]


def _rotation(torch: Any, task: Task) -> Callable[[Any, Any, Any], Any]:
    n = task.rotated

    def turned(x: Any) -> Any:
        if task.interleaved:
            return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
        return torch.cat((-x[..., n // 2 :], x[..., : n // 2]), dim=-1)

    def rotate(x: Any, cos: Any, sin: Any) -> Any:
        part = x[..., :n]
        done = part * cos + turned(part) * sin
        return done if n == x.shape[-1] else torch.cat((done, x[..., n:]), dim=-1)

    return rotate


def _dtype(torch: Any, dtype: str) -> Any:
    return {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]


def _tensor(torch: Any, x: npt.NDArray[Any]) -> Any:
    if x.dtype == DTYPES["bf16"]:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def _arrays(torch: Any, results: Sequence[Any]) -> list[npt.NDArray[Any]]:
    return [
        r.view(torch.int16).numpy().view(DTYPES["bf16"]) if r.dtype == torch.bfloat16 else r.numpy() for r in results
    ]
