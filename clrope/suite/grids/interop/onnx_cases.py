"""ONNX's RotaryEmbedding: opset 23 and com.microsoft, as functions and through the `Backend`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ....interop import onnx as adapter
from .formula import Array, FormulaCall, turned, uniform
from .line import Line

if TYPE_CHECKING:
    from ....device import DeviceInfo

#: The `Backend` alone needs it.
NEEDS = "onnx"
Domain = Literal["ai.onnx", "com.microsoft"]
TYPES = ("f32", "f16", "bf16")


@dataclass(eq=False)
class OnnxCall(FormulaCall):
    """One node: its inputs in the schema's order (None for an omitted input) and its attributes.

    x: [batch, num_heads, sequence, head_size] or [batch, sequence, hidden_size]; heads: num_heads in either case.
    """

    domain: Domain
    kind: str
    x: Array
    cos_cache: Array
    sin_cache: Array
    position_ids: npt.NDArray[np.int64] | None
    attributes: dict[str, Any]
    heads: int
    backend: bool = False

    @property
    def inputs(self) -> list[Array | None]:
        """The inputs in the order of the domain's schema."""
        if self.domain == "com.microsoft":
            return [self.x, self.position_ids, self.cos_cache, self.sin_cache]
        return [self.x, self.cos_cache, self.sin_cache, self.position_ids]

    def formula(self, real: Any) -> Array:
        """Return the schema's function."""
        batch, seq = self.x.shape[0], self.x.shape[-2]
        x = self.x.reshape(batch, seq, self.heads, -1) if self.x.ndim == 3 else self.x.transpose(0, 2, 1, 3)
        cos, sin = self.cos_cache, self.sin_cache  # [batch, sequence, R / 2]
        if self.position_ids is not None:
            ids = self.position_ids
            if ids.size == 1 and self.domain == "com.microsoft":
                ids = ids.reshape(1, 1) + np.arange(seq)
            rows = np.broadcast_to(ids, (batch, seq))
            cos, sin = cos[rows], sin[rows]
        y = turned(x, cos[:, :, None], sin[:, :, None], bool(self.attributes["interleaved"]), real)
        return y.reshape(self.x.shape) if self.x.ndim == 3 else np.ascontiguousarray(y.transpose(0, 2, 1, 3))

    def apply(self, device: DeviceInfo) -> tuple[Array, list[str]]:
        """Call the function, or run a model of this one node."""
        if self.backend:
            (got,) = adapter.Backend.prepare(self.model(), f"OPENCL:{device.index}").run(
                [i for i in self.inputs if i is not None]
            )
        elif self.domain == "com.microsoft":
            got = adapter.rotary_embedding_ms(*self.inputs, **self.attributes, device=device)
        else:
            got = adapter.rotary_embedding(*self.inputs, **self.attributes, device=device)
        return np.array(got), []

    def model(self) -> Any:
        """Return the node as a model of the onnx package."""
        from onnx import TensorProto, helper

        types = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
        given = {f"input{n}": array for n, array in enumerate(self.inputs) if array is not None}
        infos = [
            helper.make_tensor_value_info(
                name, TensorProto.INT64 if array is self.position_ids else types[self.kind], array.shape
            )
            for name, array in given.items()
        ]
        names = [f"input{n}" if f"input{n}" in given else "" for n in range(len(self.inputs))]
        domain = self.domain.removeprefix("ai.onnx")
        node = helper.make_node("RotaryEmbedding", names, ["Y"], domain=domain, **self.attributes)
        result = helper.make_tensor_value_info("Y", types[self.kind], self.x.shape)
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        graph = helper.make_graph([node], "rope", infos, [result])
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def __str__(self) -> str:
        ids = None if self.position_ids is None else self.position_ids.tolist()
        return f"X {list(self.x.shape)} caches {list(self.cos_cache.shape)} {self.attributes} position_ids {ids}"


def draw(
    rng: np.random.Generator, domain: Domain, kind: str, rank: int, interleaved: bool, ids: bool, backend: bool = False
) -> OnnxCall:
    """Draw lengths and values; caches hold arbitrary values, not cosines and sines.

    ids: position_ids [batch, sequence]; False: none and a row of the caches for each token (opset 23), or [1] as the
    first token's position (com.microsoft).
    """
    batch, seq, heads = (int(n) for n in rng.integers(1, 6, 3))
    head_size = 2 * int(rng.integers(1, 33))
    partly = bool(rng.random() < 0.5)
    rotated = 2 * int(rng.integers(1, head_size // 2 + 1)) if partly else head_size
    microsoft = domain == "com.microsoft"
    attributes = {"interleaved": int(interleaved), "rotary_embedding_dim": rotated if partly else 0}
    # Required where no shape gives the number of heads; optional elsewhere.
    needed = rank == 3 and (partly or not microsoft)
    attributes["num_heads"] = heads if needed or rng.random() < 0.5 else 0
    packed = microsoft and bool(rng.random() < 0.3)
    if microsoft:
        attributes["is_packed_batching"] = int(packed)
    rows = int(rng.integers(1 if packed and ids else seq, 100))
    positions: npt.NDArray[np.int64] | None = None
    shape: tuple[int, ...] = (rows, rotated // 2)
    if ids:
        positions = rng.integers(0, rows, (batch, seq))
    elif microsoft:
        positions = rng.integers(0, rows - seq + 1, 1)
    else:
        shape = (batch, seq, rotated // 2)
    x = uniform(rng, (batch, seq, heads * head_size) if rank == 3 else (batch, heads, seq, head_size), kind)
    cos, sin = (uniform(rng, shape, kind) for _ in range(2))
    return OnnxCall(domain, kind, x, cos, sin, positions, attributes, heads, backend)


def lines() -> Iterator[Line]:
    """Yield both operators in every type, rank, pairing and form of positions; some also for the `Backend`."""
    domains: tuple[Domain, ...] = ("ai.onnx", "com.microsoft")
    for domain, kind, rank, interleaved, ids, n in product(
        domains, TYPES, (3, 4), (False, True), (True, False), range(2)
    ):
        without = "[1]" if domain == "com.microsoft" else "none"
        label = (
            f"ONNX(op={domain}.RotaryEmbedding,type={kind},rank={rank},interleaved={int(interleaved)},"
            f"position_ids={'[batch,sequence]' if ids else without},n={n})"
        )
        drawn = partial(draw, domain=domain, kind=kind, rank=rank, interleaved=interleaved, ids=ids)
        yield Line(label, kind, drawn)
        if n == 0 and interleaved == ids:
            through = partial(drawn, backend=True)
            yield Line(label.replace("ONNX(", "ONNX_BACKEND("), kind, through, NEEDS)
