"""InfiniOp's RoPE: a descriptor that checks shapes, strides and types once, and a call with the caller's tables.

Argument order (y before x, sin before cos), rules and status codes are those of `infiniopCreateRoPEDescriptor` and
`infiniopRoPE` of InfiniCore. Unlike there, a position outside the tables is an error and not a read out of bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

from ..arguments import MOST_COUNT, integer, sequence
from ..arrays import is_opencl_array
from ..errors import ConfigError, RopeError, ShapeError, renamed, shown, unreadable
from ..integers import is_integer
from ..tables import rotate_plan

__all__ = ["Algo", "InfiniOpError", "RoPEDescriptor", "Status", "TensorDescriptor"]


class Algo(IntEnum):
    """`infiniopRoPEAlgo_t`: which two elements a pair is."""

    GPT_J = 0  #: neighbours, (2i, 2i + 1)
    GPT_NEOX = 1  #: halves, (i, i + dhead / 2)


class Status(IntEnum):
    """The values of `infiniStatus_t` that the RoPE operator returns."""

    SUCCESS = 0
    BAD_PARAM = 3
    NULL_POINTER = 4
    BAD_TENSOR_DTYPE = 10
    BAD_TENSOR_SHAPE = 11
    BAD_TENSOR_STRIDES = 12


class InfiniOpError(ShapeError):
    """What InfiniOp answers with a status other than success; `status` is that value."""

    def __init__(self, status: Status, message: str) -> None:
        self.status = status
        super().__init__(message)


_FLOATS = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"}
_INTEGERS = {f"{sign}int{bits}": f"{'U' if sign else 'I'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_DTYPES = {**_FLOATS, **_INTEGERS}


@dataclass(frozen=True)
class TensorDescriptor:
    """`infiniopTensorDescriptor_t`: shape, strides and type of a tensor, without its data.

    shape:   lengths. strides: in elements; None: C order.
    dtype:   'F16', 'BF16', 'F32', 'F64', 'I8' ... 'I64', 'U8' ... 'U64', or NumPy's name of it.

    Raises `InfiniOpError` for lengths and strides that are no integers, and lengths below 0.
    """

    shape: tuple[int, ...]
    strides: Sequence[int] | None
    dtype: str

    def __post_init__(self) -> None:
        put = object.__setattr__  # frozen dataclass
        put(self, "shape", _integers("shape", self.shape, 0, Status.BAD_TENSOR_SHAPE))
        strides = c_order(self.shape)
        if self.strides is not None:
            strides = _integers("strides", self.strides, -MOST_COUNT, Status.BAD_TENSOR_STRIDES)
        message = f"strides: got {list(strides)} for shape {list(self.shape)}, one per axis"
        _require(len(strides) == len(self.shape), Status.BAD_TENSOR_STRIDES, message)
        put(self, "strides", strides)
        message = f"dtype: got {shown(self.dtype)} of type {type(self.dtype).__name__}, a name is needed"
        _require(isinstance(self.dtype, str), Status.BAD_TENSOR_DTYPE, message)
        put(self, "dtype", _DTYPES.get(self.dtype, self.dtype))

    @classmethod
    def of(cls, tensor: Any, name: str = "tensor") -> TensorDescriptor:
        """Describe an array (NumPy, PyOpenCL, torch CPU) or return a descriptor as it is.

        Raises `InfiniOpError` with status NULL_POINTER for None and anything that is no tensor.
        """
        if isinstance(tensor, TensorDescriptor):
            return tensor
        try:
            return cls._of(tensor, name)
        except (RopeError, MemoryError):
            raise
        except Exception as error:
            raise InfiniOpError(Status.BAD_PARAM, unreadable(name, tensor, error)) from error

    @classmethod
    def _of(cls, tensor: Any, name: str) -> TensorDescriptor:
        if not (hasattr(tensor, "shape") and hasattr(tensor, "dtype")):
            what = "None" if tensor is None else type(tensor).__name__
            raise InfiniOpError(Status.NULL_POINTER, f"{name}: got {what}, an array or a TensorDescriptor is needed")
        dtype = str(tensor.dtype).removeprefix("torch.")
        if callable(getattr(tensor, "stride", None)):
            return cls(tuple(tensor.shape), tuple(tensor.stride()), dtype)
        item = tensor.dtype.itemsize
        whole = all(step % item == 0 for step in tensor.strides)
        message = f"{name}: got byte strides {list(tensor.strides)}, multiples of the element size {item} are needed"
        _require(whole, Status.BAD_TENSOR_STRIDES, message)
        return cls(tuple(tensor.shape), tuple(step // item for step in tensor.strides), dtype)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} strides {list(self.strides or ())}"


def c_order(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a dense tensor in C order."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class RoPEDescriptor:
    """A checked RoPE, made once and run with any tensors of the same shapes, strides and types.

    y, x:      `[seqlen, nhead, dhead]` or `[batch, seqlen, nhead, dhead]`, float16, bfloat16, float32 or float64; any
               strides, apart for x and y, but the last axis is dense. y may be x (in place).
    pos_ids:   `[seqlen]` shared by the batches, or `[batch, seqlen]`; any of the 8 integer types.
    sin_table, cos_table: `[max_pos, dhead / 2]`, dense, of x's dtype.
    algo:      `Algo.GPT_J` or `Algo.GPT_NEOX` (0, 1).
    device:    as for `clrope.rope`.

    Each of the five is an array or a `TensorDescriptor`. Raises `InfiniOpError`, whose `status` is InfiniOp's.
    """

    def __init__(
        self, y: Any, x: Any, pos_ids: Any, sin_table: Any, cos_table: Any, algo: int, *, device: Any = None
    ) -> None:
        named = {"y": y, "x": x, "pos_ids": pos_ids, "sin_table": sin_table, "cos_table": cos_table}
        made = {name: TensorDescriptor.of(tensor, name) for name, tensor in named.items()}
        known = is_integer(algo) and algo in list(Algo)
        _require(known, Status.NULL_POINTER, f"algo: got {shown(algo)}, allowed are GPT_J (0) and GPT_NEOX (1)")
        _check_types(made)
        _check_shapes(made)
        _check_strides(made)
        self.algo = Algo(algo)
        self.device = device
        self._made = made

    @property
    def workspace_size(self) -> int:
        """Bytes of workspace that `run` needs from the caller (`infiniopGetRoPEWorkspaceSize`): none."""
        return 0

    def run(self, y: Any, x: Any, pos_ids: Any, sin_table: Any, cos_table: Any) -> Any:
        """Rotate x into y (which may be x) and return y.

        The tensors must have the shapes, strides and types of the descriptor. Raises `InfiniOpError` before anything is
        launched, with status BAD_PARAM for positions outside the tables, and for a y that is read-only or overlaps x.
        """
        named = {"y": y, "x": x, "pos_ids": pos_ids, "sin_table": sin_table, "cos_table": cos_table}
        for name, tensor in named.items():
            _check_same(name, TensorDescriptor.of(tensor, name), self._made[name])
        positions = pos_ids.get() if is_opencl_array(pos_ids) else pos_ids
        dhead = self._made["y"].shape[-1]
        if 0 in self._made["y"].shape:
            return y
        mode = "normal" if self.algo == Algo.GPT_J else "neox"
        try:
            with renamed({"out": "y", "positions": "pos_ids", "cos": "cos_table", "sin": "sin_table"}):
                plan = rotate_plan(x, cos_table, sin_table, positions, mode, y, device=self.device, n_dims=dhead)
        except (ShapeError, ConfigError) as error:
            raise InfiniOpError(Status.BAD_PARAM, str(error)) from error
        return plan.run()


#: Most axes of a tensor; NumPy has no more.
_MOST_AXES = 64


def _integers(name: str, value: Any, least: int, status: Status) -> tuple[int, ...]:
    refuse = partial(InfiniOpError, status)
    found = sequence(name, value, _MOST_AXES, refuse)
    return tuple(integer(f"{name}[{i}]", n, least, refuse=refuse) for i, n in enumerate(found))


def _require(right: bool, status: Status, message: str) -> None:
    if not right:
        raise InfiniOpError(status, message)


def _check_types(made: dict[str, TensorDescriptor]) -> None:
    y, pos_ids = made["y"].dtype, made["pos_ids"].dtype
    floats, integers = _FLOATS.values(), _INTEGERS.values()
    for name in ("x", "sin_table", "cos_table"):
        _require(made[name].dtype == y, Status.BAD_TENSOR_DTYPE, f"{name}: got {made[name].dtype}, y has {y}")
    _require(y in floats, Status.BAD_TENSOR_DTYPE, f"y: got {y}, allowed are {', '.join(floats)}")
    allowed = f"allowed are {', '.join(integers)}"
    _require(pos_ids in integers, Status.BAD_TENSOR_DTYPE, f"pos_ids: got {pos_ids}, {allowed}")


def _check_shapes(made: dict[str, TensorDescriptor]) -> None:
    y, x, pos_ids, sin_table, cos_table = (tensor.shape for tensor in made.values())

    def require(right: bool, name: str, wanted: str) -> None:
        _require(right, Status.BAD_TENSOR_SHAPE, f"{name}: got shape {list(made[name].shape)}, {wanted}")

    require(len(y) in (3, 4), "y", "[seqlen, nhead, dhead] or [batch, seqlen, nhead, dhead] is needed")
    require(x == y, "x", f"y has {list(y)}")
    batch, seqlen, dhead = (y[0] if len(y) == 4 else 1), y[-3], y[-1]
    rows = [(seqlen,), (batch, seqlen)]
    require(pos_ids in rows, "pos_ids", f"[{seqlen}] or [{batch}, {seqlen}] is needed")
    require(len(sin_table) == 2, "sin_table", "[max_pos, dhead / 2] is needed")
    require(cos_table == sin_table, "cos_table", f"sin_table has {list(sin_table)}")
    columns = f"dhead is {dhead}, which must be twice the columns of the tables"
    require(dhead == 2 * sin_table[1], "sin_table", columns)


def _check_strides(made: dict[str, TensorDescriptor]) -> None:
    def require(right: bool, name: str, wanted: str) -> None:
        _require(right, Status.BAD_TENSOR_STRIDES, f"{name}: got strides {list(made[name].strides or ())}, {wanted}")

    for name in ("y", "x"):
        require((made[name].strides or ())[-1] == 1 or 0 in made[name].shape, name, "the last axis must be dense (1)")
    for name in ("sin_table", "cos_table"):
        dense = c_order(made[name].shape)
        same = _equal_strides(made[name].strides, dense, made[name].shape)
        require(same, name, f"the table must be dense: {list(dense)}")


def _check_same(name: str, got: TensorDescriptor, wanted: TensorDescriptor) -> None:
    if got.dtype != wanted.dtype:
        status = Status.BAD_TENSOR_DTYPE
    elif got.shape != wanted.shape:
        status = Status.BAD_TENSOR_SHAPE
    elif name != "pos_ids" and not _equal_strides(got.strides, wanted.strides, got.shape):
        status = Status.BAD_TENSOR_STRIDES
    else:
        return
    raise InfiniOpError(status, f"{name}: got {got}, the descriptor was made for {wanted}")


def _equal_strides(a: Sequence[int] | None, b: Sequence[int] | None, shape: Sequence[int]) -> bool:
    """Whether two strides address the same elements; axes of one element and empty tensors do not count."""
    return 0 in shape or all(n == 1 or i == j for i, j, n in zip(a or (), b or (), shape, strict=True))
