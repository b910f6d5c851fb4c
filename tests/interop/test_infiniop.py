"""InfiniOp's RoPE against a float64 implementation of its own, and each check of its descriptor with its status."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from helpers import bits

import clrope
from clrope.interop.infiniop import Algo, InfiniOpError, RoPEDescriptor, Status, TensorDescriptor
from clrope.layout import DTYPES
from clrope.suite.grids.interop.block import Block
from clrope.suite.grids.interop.formula import INTEGERS, KINDS
from clrope.suite.grids.interop.infiniop_cases import InfiniopCall, draw

#: Against float64 arithmetic on the same stored tables.
LIMITS = {"f16": 6e-8, "bf16": 4e-6, "f32": 1e-13, "f64": 1e-30}


def calls(rng: np.random.Generator, count: int, kinds: Sequence[str] = KINDS) -> Iterator[InfiniopCall]:
    """Yield random calls."""
    for _ in range(count):
        yield draw(
            rng, str(rng.choice(kinds)), Algo(int(rng.integers(0, 2))), int(rng.integers(3, 5)),
            bool(rng.random() < 0.3), str(rng.choice(INTEGERS)), bool(rng.random() < 0.5),
        )  # fmt: skip


def right(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether a result is near enough; the limits are means, of few elements all may be rounded badly."""
    name = next(n for n, kind in DTYPES.items() if got.dtype == kind)
    return clrope.compare(np.ascontiguousarray(got), want).nmse <= LIMITS[name] * (1 if got.size >= 4096 else 5)


@pytest.mark.one_in(8)
def test_random_calls(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    for call in calls(rng, 24, ("f16", "bf16", "f32", "f64") if device.fp64 else ("f16", "bf16", "f32")):
        got, errors = call.apply(device)
        assert not errors, f"{errors}: {call}"
        assert right(got, call.want()), call


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_limits(device: clrope.DeviceInfo, rng: np.random.Generator, dtype: str) -> None:
    x = rng.uniform(-1, 1, (4, 16, 8, 64)).astype(DTYPES[dtype])
    angles = rng.uniform(0, 7, (50, 32))
    sin, cos = (f(angles).astype(DTYPES[dtype]) for f in (np.sin, np.cos))
    y = Block.of(np.full_like(x, -7))
    call = InfiniopCall(y, Block.of(x), rng.integers(0, 50, (4, 16)), sin, cos, Algo.GPT_NEOX, dtype)
    assert right(RoPEDescriptor(*call.tensors, call.algo, device=device.index).run(*call.tensors), call.want())


def test_devices_agree(devices: tuple[clrope.DeviceInfo, ...], rng: np.random.Generator) -> None:
    if len(devices) < 2:
        pytest.skip("one device has none to agree with")
    for call in calls(rng, 12, ("f16", "bf16", "f32")):
        results = []
        for d in devices:
            results.append(call.apply(d)[0])
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
        call = InfiniopCall(Block.of(y), Block.of(x), pos, sin, cos, Algo.GPT_J, "f32")
        assert right(made.run(y, x, pos, sin, cos), call.want())


@pytest.mark.one_in(8)
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


class Odd:
    """What has the attributes of an array, some of them of another type."""

    def __init__(self, **changes: Any) -> None:
        given = {"shape": (3, 2, 8), "strides": (64, 32, 4), "dtype": np.dtype(np.float32)} | changes
        self.shape, self.strides, self.dtype = given["shape"], given["strides"], given["dtype"]


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
    "algo bool": (lambda: made(algo=True), Status.NULL_POINTER, r"^algo: got True, allowed are GPT_J"),
    "algo huge": (lambda: made(algo=[10**5000]), Status.NULL_POINTER, r"^algo: got a list that cannot be printed"),
    "no lengths": (lambda: made(x=Odd(shape=3)), Status.BAD_PARAM, r"^x: Odd cannot be read: TypeError"),
    "no strides": (lambda: made(x=Odd(strides=None)), Status.BAD_PARAM, r"^x: Odd cannot be read: TypeError"),
    "no bytes": (lambda: made(x=np.empty(3, [])), Status.BAD_PARAM, r"^x: ndarray cannot be read: ZeroDivision"),
    "parts of an element": (
        lambda: made(x=np.zeros((3, 2, 8), "f4,i1")["f0"]), Status.BAD_TENSOR_STRIDES,
        r"^x: got byte strides \[80, 40, 5\], multiples of the element size 4",
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


@pytest.mark.parametrize(
    "given", [1.9, True, "2", None, b"2", [2], 2**63, -(10**5000), float("nan"), np.array([2])],
    ids=lambda given: type(given).__name__,
)  # fmt: skip
def test_lengths_and_strides_are_integers(given: Any) -> None:
    with pytest.raises(InfiniOpError, match=r"^shape\[1\]: got") as shape:
        TensorDescriptor((3, given), None, "F32")
    with pytest.raises(InfiniOpError, match=r"^strides\[1\]: got") as strides:
        TensorDescriptor((3, 2), (2, given), "F32")
    assert (shape.value.status, strides.value.status) == (Status.BAD_TENSOR_SHAPE, Status.BAD_TENSOR_STRIDES)


@pytest.mark.parametrize("given", [{3, 2}, {3: 0, 2: 0}, "32", b"32", 5, range(100)])
def test_lengths_and_strides_are_sequences(given: Any) -> None:
    with pytest.raises(InfiniOpError, match=r"^shape: got") as shape:
        TensorDescriptor(given, None, "F32")
    with pytest.raises(InfiniOpError, match=r"^strides: got") as strides:
        TensorDescriptor((3, 2), given, "F32")
    assert (shape.value.status, strides.value.status) == (Status.BAD_TENSOR_SHAPE, Status.BAD_TENSOR_STRIDES)


def test_lengths_are_not_negative_and_types_are_names() -> None:
    with pytest.raises(InfiniOpError, match=r"^shape\[0\]: got -1, the least allowed is 0") as caught:
        TensorDescriptor((-1, 2), None, "F32")
    assert caught.value.status == Status.BAD_TENSOR_SHAPE
    for dtype in (["F32"], None, np.float32, 0):
        with pytest.raises(InfiniOpError, match=r"^dtype: got .*, a name is needed") as caught:
            TensorDescriptor((1, 2), None, dtype)  # type: ignore[arg-type]
        assert caught.value.status == Status.BAD_TENSOR_DTYPE


def test_numbers_of_numpy_are_numbers() -> None:
    tensor = TensorDescriptor(np.array([3, 2]), np.array([2, -1]), "F32")  # type: ignore[arg-type]
    assert (tensor.shape, tensor.strides) == ((3, 2), (2, -1))
    assert TensorDescriptor((2**31, 2**31, 8), None, "F32").strides == (2**34, 8, 1)
    assert TensorDescriptor((2, 2**40, 2**40), None, "F32").strides == (2**80, 2**40, 1)
    assert made(algo=np.int64(1)).algo is Algo.GPT_NEOX
