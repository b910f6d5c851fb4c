"""ONNX Runtime: its RotaryEmbedding operator on the CPU, inputs and outputs bound to the task's memory."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

from ..entry import Refused
from . import Prepared, Task

packages = ("onnxruntime", "onnx")
_ELEMENT = {"f32": "float", "f16": "float16"}


def prepare(task: Task) -> Prepared:
    """Return a run of one session a tensor shape, with tensors as [B, S, N * D], their order in memory."""
    if task.workload.in_place:
        raise Refused("the operator has no in-place form")
    if task.workload.dtype not in _ELEMENT:
        raise Refused("the operator has no bfloat16 on CPUs")
    rows = np.arange(task.cos.shape[0], dtype=np.int64).reshape(-1, task.workload.tensors[0][1])
    batch = task.workload.tensors[0][0]
    ids = np.ascontiguousarray(np.broadcast_to(rows, (batch, rows.shape[1])))
    dtype = task.x[0][0].dtype
    cos, sin = task.cos.astype(dtype), task.sin.astype(dtype)
    sessions = [_session(task, shape) for shape in task.workload.tensors]
    bindings: list[list[tuple[Any, Any]]] = []
    for xs, ys in zip(task.x, task.y, strict=True):
        bound = []
        for session, x, y in zip(sessions, xs, ys, strict=True):
            binding = session.io_binding()
            for key, array in (("x", _flat(x)), ("ids", ids), ("cos", cos), ("sin", sin)):
                binding.bind_input(key, "cpu", 0, array.dtype, array.shape, array.__array_interface__["data"][0])
            out = _flat(y)
            binding.bind_output("y", "cpu", 0, out.dtype, out.shape, out.__array_interface__["data"][0])
            bound.append((session, binding))
        bindings.append(bound)

    # A binding keeps addresses only.
    def call(i: int, kept: Any = (ids, cos, sin)) -> None:
        for session, binding in bindings[i]:
            session.run_with_iobinding(binding)

    return Prepared(call)


def _flat(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return x.reshape(x.shape[0], x.shape[1], -1)


def _session(task: Task, shape: tuple[int, int, int, int]) -> Any:
    onnx: Any = importlib.import_module("onnx")
    ort: Any = importlib.import_module("onnxruntime")
    batch, seq, heads, head_dim = shape
    element, flat = _ELEMENT[task.workload.dtype], f"[{batch},{seq},{heads * head_dim}]"
    table = f"{element}[{','.join(map(str, task.cos.shape))}]"
    rotated = task.rotated if task.rotated < head_dim else 0
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 23]>
        rope ({element}{flat} x, {table} cos, {table} sin, int64[{batch},{seq}] ids) => ({element}{flat} y) {{
            y = RotaryEmbedding <interleaved={int(task.interleaved)}, num_heads={heads},
                                 rotary_embedding_dim={rotated}> (x, cos, sin, ids)
        }}"""
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = task.threads
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
