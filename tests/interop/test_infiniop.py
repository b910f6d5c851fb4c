"""InfiniOp's RoPE against a float64 implementation of its own, and each check of its descriptor with its status."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import POISON, bits, touched

import clrope
from clrope.interop.infiniop import Algo, InfiniOpError, RoPEDescriptor, Status, TensorDescriptor

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
#: Against float64 arithmetic on the same stored tables.
LIMITS = {"f16": 6e-8, "bf16": 4e-6, "f32": 1e-13, "f64": 1e-30}


@dataclass(eq=False)
class Call:
    """One call: x and y are views (or y is x) into parents of poison."""

    y: np.ndarray
    x: np.ndarray
    pos_ids: np.ndarray
    sin_table: np.ndarray
    cos_table: np.ndarray
    algo: Algo
    dtype: str
    y_parent: np.ndarray

    @property
    def tensors(self) -> tuple[np.ndarray, ...]:
        return self.y, self.x, self.pos_ids, self.sin_table, self.cos_table

    def want(self) -> np.ndarray:
        """The formula, token by token, in float64."""
        out = np.empty(self.x.shape)
        x = self.x.astype(np.float64)
        half = x.shape[-1] // 2
        rows = self.pos_ids.reshape(-1, x.shape[-3])
        for at in np.ndindex(*x.shape[:-2]):
            p = int(rows[at[0] if len(rows) > 1 else 0, at[-1]])
            cos, sin = self.cos_table[p].astype(np.float64), self.sin_table[p].astype(np.float64)
            if self.algo == Algo.GPT_J:
                first, second = slice(0, None, 2), slice(1, None, 2)
            else:
                first, second = slice(0, half), slice(half, None)
            a, b = x[at][..., first], x[at][..., second]
            out[at][..., first] = a * cos - b * sin
            out[at][..., second] = a * sin + b * cos
        return out

    def __str__(self) -> str:
        return (
            f"{self.dtype} {self.algo!r} x {list(self.x.shape)} strides {self.x.strides} y strides {self.y.strides} "
            f"in place {self.y is self.x} pos_ids {self.pos_ids.dtype} {self.pos_ids.tolist()} "
            f"tables {self.cos_table.shape}"
        )


def strided(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return (one-dimensional parent full of poison, a view of `shape` into it), the last axis dense, any order."""
    pads = [int(n) for n in rng.integers(0, 3, len(shape))]
    pads[-1] *= 4
    order = [*rng.permutation(len(shape) - 1), len(shape) - 1]
    lengths = [shape[axis] + pads[axis] for axis in order]
    item = np.dtype(dtype).itemsize
    parent = np.full(int(np.prod(lengths)) * item, POISON, np.uint8).view(dtype)
    block = parent.reshape(lengths).transpose(np.argsort(order))
    view = block[tuple(slice(pad, pad + n) if pad else slice(0, n) for n, pad in zip(shape, pads, strict=True))]
    return parent, view


def calls(rng: np.random.Generator, count: int, dtypes: tuple[str, ...] = tuple(DTYPES)) -> Iterator[Call]:
    """Yield random calls of every kind, for this file and for any suite."""
    for _ in range(count):
        dtype = str(rng.choice(dtypes))
        kind = DTYPES[dtype]
        dhead = 2 * int(rng.integers(1, 65))
        shape = (*(int(n) for n in rng.integers(1, 6, int(rng.integers(2, 4)))), dhead)
        batch, seqlen = (shape[0] if len(shape) == 4 else 1), shape[-3]
        max_pos = int(rng.integers(seqlen, 120))
        sin, cos = (rng.uniform(-1, 1, (max_pos, dhead // 2)).astype(kind) for _ in range(2))
        pos = rng.integers(0, max_pos, (batch, seqlen) if rng.random() < 0.5 else (seqlen,)).astype(
            rng.choice(INTEGERS)
        )
        y_parent, x = strided(rng, shape, kind)
        x[...] = rng.uniform(-1, 1, shape).astype(kind)
        y = x
        if rng.random() < 0.7:
            y_parent, y = strided(rng, shape, kind)
        yield Call(y, x, pos, sin, cos, Algo(int(rng.integers(0, 2))), dtype, y_parent)


def right(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether a result is near enough; the limits are means, of few elements all may be rounded badly."""
    name = next(n for n, kind in DTYPES.items() if got.dtype == kind)
    return clrope.compare(np.ascontiguousarray(got), want).nmse <= LIMITS[name] * (1 if got.size >= 4096 else 5)


def test_random_calls(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    for call in calls(rng, 80, tuple(DTYPES) if device.fp64 else ("f16", "bf16", "f32")):
        want, x, parent = call.want(), call.x.copy(), call.y_parent.copy()
        descriptor = RoPEDescriptor(*call.tensors, call.algo, device=device.index)
        assert descriptor.run(*call.tensors) is call.y
        assert right(call.y, want), call
        outside = ~touched(call.y_parent, call.y)
        assert np.array_equal(bits(call.y_parent)[outside], bits(parent)[outside]), call
        if call.y is not call.x:
            assert np.array_equal(bits(np.ascontiguousarray(call.x)), bits(x)), f"x was changed: {call}"


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_limits(device: clrope.DeviceInfo, rng: np.random.Generator, dtype: str) -> None:
    y, x = np.full((4, 16, 8, 64), -7, DTYPES[dtype]), rng.uniform(-1, 1, (4, 16, 8, 64)).astype(DTYPES[dtype])
    angles = rng.uniform(0, 7, (50, 32))
    call = Call(
        y, x, rng.integers(0, 50, (4, 16)), np.sin(angles).astype(DTYPES[dtype]), np.cos(angles).astype(DTYPES[dtype]),
        Algo.GPT_NEOX, dtype, y,
    )  # fmt: skip
    assert right(RoPEDescriptor(*call.tensors, call.algo, device=device.index).run(*call.tensors), call.want())


def test_devices_agree(devices: tuple[clrope.DeviceInfo, ...], rng: np.random.Generator) -> None:
    for call in calls(rng, 30, ("f16", "bf16", "f32")):
        results = []
        for d in devices:
            y = np.full_like(call.y, -7) if call.y is not call.x else call.x.copy()
            x = y if call.y is call.x else call.x
            RoPEDescriptor(y, x, *call.tensors[2:], call.algo, device=d.index).run(y, x, *call.tensors[2:])
            results.append(y)
        for other in results[1:]:
            assert np.array_equal(bits(results[0]), bits(other)), call


def test_a_descriptor_serves_any_tensors_alike(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """Made from descriptions without data; then run with several tensors, other positions and other tables."""
    floats, table = TensorDescriptor((3, 2, 8), None, "F32"), TensorDescriptor((10, 4), (4, 1), "float32")
    made = RoPEDescriptor(floats, floats, TensorDescriptor((3,), None, "U8"), table, table, 0, device=device.index)
    assert made.workspace_size == 0
    for _ in range(3):
        x = rng.uniform(-1, 1, (3, 2, 8)).astype(np.float32)
        pos = rng.integers(0, 10, 3).astype(np.uint8)
        sin, cos = (rng.uniform(-1, 1, (10, 4)).astype(np.float32) for _ in range(2))
        y = np.full((3, 2, 8), -7, np.float32)
        call = Call(y, x, pos, sin, cos, Algo.GPT_J, "f32", y)
        assert right(made.run(y, x, pos, sin, cos), call.want())


def test_opencl_arrays(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    import pyopencl as cl
    import pyopencl.array as cla

    context = cl.Context([device.cl_device])  # kept: a queue of Intel's runtime does not hold its context
    queue = cl.CommandQueue(context)
    for call in calls(rng, 10, ("f16", "f32")):
        y, *rest = [cla.to_device(queue, np.ascontiguousarray(t)) for t in call.tensors]
        y.set(np.full(y.shape, 7, y.dtype))
        made = RoPEDescriptor(y, *rest, call.algo)
        assert made.run(y, *rest) is y
        assert right(y.get(), call.want()), call


def test_torch_tensors(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    for call in calls(rng, 10, ("f16", "f32")):
        if call.pos_ids.dtype.kind == "u" and call.pos_ids.dtype.itemsize > 1:
            continue
        tensors = [torch.from_numpy(np.ascontiguousarray(t)) for t in call.tensors]
        tensors[0] = torch.full_like(tensors[0], 7)
        assert RoPEDescriptor(*tensors, call.algo, device=device.index).run(*tensors) is tensors[0]
        assert right(tensors[0].numpy(), call.want()), call


def test_nothing_to_rotate() -> None:
    for shape in ((0, 2, 8), (3, 0, 8), (0, 3, 2, 8), (2, 3, 0, 8)):
        y, x = np.empty(shape, np.float32), np.empty(shape, np.float32)
        tables = np.zeros((4, 4), np.float32)
        pos = np.zeros(shape[-3], np.int32)
        assert RoPEDescriptor(y, x, pos, tables, tables, 1).run(y, x, pos, tables, tables) is y


# Refusals

Y, X = np.full((3, 2, 8), -7, np.float32), np.ones((3, 2, 8), np.float32)
POS = np.arange(3, dtype=np.int32)
SIN, COS = np.ones((10, 4), np.float32), np.ones((10, 4), np.float32)


def made(**changes: Any) -> RoPEDescriptor:
    given = {"y": Y, "x": X, "pos_ids": POS, "sin_table": SIN, "cos_table": COS, "algo": Algo.GPT_NEOX} | changes
    return RoPEDescriptor(**given)


def ran(**changes: Any) -> Any:
    given = {"y": Y, "x": X, "pos_ids": POS, "sin_table": SIN, "cos_table": COS} | changes
    return made().run(**given)


def read_only() -> np.ndarray:
    array = Y.copy()
    array.flags.writeable = False
    return array


REFUSALS: dict[str, tuple[Callable[[], Any], Status, str]] = {
    "none": (lambda: made(x=None), Status.NULL_POINTER, r"^x: got None"),
    "list": (lambda: made(pos_ids=[1, 2, 3]), Status.NULL_POINTER, r"^pos_ids: got list"),
    "algo": (lambda: made(algo=2), Status.NULL_POINTER, r"^algo: got 2, allowed are GPT_J \(0\) and GPT_NEOX \(1\)"),
    "algo name": (lambda: made(algo="neox"), Status.NULL_POINTER, r"^algo: got 'neox'"),
    "x dtype": (lambda: made(x=X.astype(np.float16)), Status.BAD_TENSOR_DTYPE, r"^x: got F16, y has F32"),
    "sin dtype": (lambda: made(sin_table=SIN.astype(np.float64)), Status.BAD_TENSOR_DTYPE, r"^sin_table: got F64, y"),
    "cos dtype": (lambda: made(cos_table=COS.astype(np.float16)), Status.BAD_TENSOR_DTYPE, r"^cos_table: got F16"),
    "integers": (
        lambda: made(y=Y.astype(int), x=X.astype(int), sin_table=SIN.astype(int), cos_table=COS.astype(int)),
        Status.BAD_TENSOR_DTYPE, r"^y: got I64, allowed are F16, BF16, F32, F64",
    ),
    "pos dtype": (lambda: made(pos_ids=POS.astype(np.float32)), Status.BAD_TENSOR_DTYPE, r"^pos_ids: got F32, allow"),
    "pos bool": (lambda: made(pos_ids=POS > 0), Status.BAD_TENSOR_DTYPE, r"^pos_ids: got bool"),
    "byte order": (
        lambda: made(y=Y.astype(">f4"), x=X.astype(">f4"), sin_table=SIN.astype(">f4"), cos_table=COS.astype(">f4")),
        Status.BAD_TENSOR_DTYPE, r"^y: got >f4",
    ),
    "rank": (lambda: made(y=Y[0], x=X[0]), Status.BAD_TENSOR_SHAPE, r"^y: got shape \[2, 8\], \[seqlen, nhead, d"),
    "x rank": (lambda: made(x=X[None]), Status.BAD_TENSOR_SHAPE, r"^x: got shape \[1, 3, 2, 8\], y has \[3, 2, 8\]"),
    "pos rank": (lambda: made(pos_ids=POS[None, None]), Status.BAD_TENSOR_SHAPE, r"^pos_ids: got shape \[1, 1, 3\]"),
    "pos length": (lambda: made(pos_ids=POS[:2]), Status.BAD_TENSOR_SHAPE, r"^pos_ids: .*\[3\] or \[1, 3\] is needed"),
    "pos batch": (
        lambda: made(pos_ids=np.zeros((2, 3), np.int32)), Status.BAD_TENSOR_SHAPE, r"^pos_ids: got shape \[2, 3\]"
    ),
    "table rank": (lambda: made(sin_table=SIN[None]), Status.BAD_TENSOR_SHAPE, r"^sin_table: got shape \[1, 10, 4\]"),
    "tables": (lambda: made(cos_table=COS[:9]), Status.BAD_TENSOR_SHAPE, r"^cos_table: .* sin_table has \[10, 4\]"),
    "dhead": (
        lambda: made(sin_table=np.ones((10, 8), np.float32), cos_table=np.ones((10, 8), np.float32)),
        Status.BAD_TENSOR_SHAPE, r"^sin_table: .* dhead is 8, which must be twice",
    ),
    "x strides": (
        lambda: made(x=np.ones((3, 2, 16), np.float32)[..., ::2]), Status.BAD_TENSOR_STRIDES,
        r"^x: got strides \[32, 16, 2\], the last axis must be dense",
    ),
    "y strides": (lambda: made(y=Y[..., ::-1]), Status.BAD_TENSOR_STRIDES, r"^y: got strides \[16, 8, -1\]"),
    "table strides": (
        lambda: made(cos_table=np.ones((10, 8), np.float32)[:, :4]), Status.BAD_TENSOR_STRIDES,
        r"^cos_table: got strides \[8, 1\], the table must be dense: \[4, 1\]",
    ),
    "descriptor strides": (
        lambda: TensorDescriptor((3, 2), (1,), "F32"), Status.BAD_TENSOR_STRIDES, r"^strides: got \[1\] for shape"
    ),
    "position": (lambda: ran(pos_ids=POS + 8), Status.BAD_PARAM, r"^pos_ids: got 10, the tables have rows 0 ... 9"),
    "negative": (lambda: ran(pos_ids=-POS), Status.BAD_PARAM, r"^pos_ids: got -2, the tables have rows 0 ... 9"),
    "other shape": (lambda: ran(x=X[:2]), Status.BAD_TENSOR_SHAPE, r"^x: got .*\[2, 2, 8\].* made for F32\[3, 2, 8\]"),
    "other dtype": (lambda: ran(pos_ids=POS.astype(np.int64)), Status.BAD_TENSOR_DTYPE, r"^pos_ids: got I64"),
    "other strides": (
        lambda: ran(y=np.ones((3, 4, 8), np.float32)[:, :2]), Status.BAD_TENSOR_STRIDES, r"^y: .* strides \[32, 8, 1\]"
    ),
    "read-only": (lambda: ran(y=read_only()), Status.BAD_PARAM, r"^y: the array is read-only"),
    "overlap": (
        lambda: (lambda p: ran(y=p[1:], x=p[:3]))(np.ones((4, 2, 8), np.float32)), Status.BAD_PARAM, r"^y: overlaps x"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    call, status, message = REFUSALS[name]
    with pytest.raises(InfiniOpError, match=message) as caught:
        call()
    assert caught.value.status == status
    assert isinstance(caught.value, clrope.RopeError)
    assert (Y == -7).all(), "y was changed"
