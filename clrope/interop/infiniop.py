"""InfiniOp's RoPE: a descriptor that checks shapes, strides and types once, and a call with the caller's tables.

Argument order (y before x, sin before cos), rules and status codes are those of `infiniopCreateRoPEDescriptor` and
`infiniopRoPE` of InfiniCore. Unlike there, a position outside the tables is an error and not a read out of bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from ..arrays import is_opencl_array
from ..errors import ConfigError, ShapeError, renamed
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
    """`infiniopTensorDescriptor_t`: what a tensor looks like, without its data.

    shape:   lengths. strides: in elements; None: C order.
    dtype:   'F16', 'BF16', 'F32', 'F64', 'I8' ... 'I64', 'U8' ... 'U64', or NumPy's name of it.
    """

    shape: tuple[int, ...]
    strides: Sequence[int] | None
    dtype: str

    def __post_init__(self) -> None:
        put = object.__setattr__  # frozen dataclass
        put(self, "shape", tuple(int(n) for n in self.shape))
        strides = c_order(self.shape) if self.strides is None else tuple(int(n) for n in self.strides)
        if len(strides) != len(self.shape):
            raise InfiniOpError(
                Status.BAD_TENSOR_STRIDES, f"strides: got {list(strides)} for shape {list(self.shape)}, one per axis"
            )
        put(self, "strides", strides)
        put(self, "dtype", _DTYPES.get(self.dtype, self.dtype))

    @classmethod
    def of(cls, tensor: Any, name: str = "tensor") -> TensorDescriptor:
        """Describe an array (NumPy, PyOpenCL, torch CPU) or return a descriptor as it is.

        Raises `InfiniOpError` with status NULL_POINTER for None and anything that is no tensor.
        """
        if isinstance(tensor, TensorDescriptor):
            return tensor
        if not (hasattr(tensor, "shape") and hasattr(tensor, "dtype")):
            what = "None" if tensor is None else type(tensor).__name__
            raise InfiniOpError(Status.NULL_POINTER, f"{name}: got {what}, an array or a TensorDescriptor is needed")
        dtype = str(tensor.dtype).removeprefix("torch.")
        if callable(getattr(tensor, "stride", None)):
            return cls(tuple(tensor.shape), tuple(tensor.stride()), dtype)
        item = tensor.dtype.itemsize
        return cls(tuple(tensor.shape), tuple(step // item for step in tensor.strides), dtype)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} strides {list(self.strides or ())}"


def c_order(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a dense tensor in C order."""
    return tuple(int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape)))


class RoPEDescriptor:
    """A checked RoPE, made once and run with any tensors that look like those it was made for.

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
        if not isinstance(algo, int) or algo not in list(Algo):
            raise InfiniOpError(Status.NULL_POINTER, f"algo: got {algo!r}, allowed are GPT_J (0) and GPT_NEOX (1)")
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

        The tensors must look like those of the descriptor. Raises `InfiniOpError` before anything is launched, with
        status BAD_PARAM for positions outside the tables, and for a y that cannot be written or overlaps x.
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


def _check_types(made: dict[str, TensorDescriptor]) -> None:
    y, pos_ids = made["y"], made["pos_ids"]
    for name in ("x", "sin_table", "cos_table"):
        if made[name].dtype != y.dtype:
            raise InfiniOpError(Status.BAD_TENSOR_DTYPE, f"{name}: got {made[name].dtype}, y has {y.dtype}")
    if y.dtype not in _FLOATS.values():
        raise InfiniOpError(Status.BAD_TENSOR_DTYPE, f"y: got {y.dtype}, allowed are {', '.join(_FLOATS.values())}")
    if pos_ids.dtype not in _INTEGERS.values():
        raise InfiniOpError(
            Status.BAD_TENSOR_DTYPE, f"pos_ids: got {pos_ids.dtype}, allowed are {', '.join(_INTEGERS.values())}"
        )


def _check_shapes(made: dict[str, TensorDescriptor]) -> None:
    y, x, pos_ids = made["y"].shape, made["x"].shape, made["pos_ids"].shape
    sin_table, cos_table = made["sin_table"].shape, made["cos_table"].shape

    def fail(name: str, wanted: str) -> None:
        raise InfiniOpError(Status.BAD_TENSOR_SHAPE, f"{name}: got shape {list(made[name].shape)}, {wanted}")

    if len(y) not in (3, 4):
        fail("y", "[seqlen, nhead, dhead] or [batch, seqlen, nhead, dhead] is needed")
    if x != y:
        fail("x", f"y has {list(y)}")
    batch, seqlen, dhead = (y[0] if len(y) == 4 else 1), y[-3], y[-1]
    if pos_ids not in ((seqlen,), (batch, seqlen)):
        fail("pos_ids", f"[{seqlen}] or [{batch}, {seqlen}] is needed")
    if len(sin_table) != 2:
        fail("sin_table", "[max_pos, dhead / 2] is needed")
    if cos_table != sin_table:
        fail("cos_table", f"sin_table has {list(sin_table)}")
    if dhead != 2 * sin_table[1]:
        fail("sin_table", f"dhead is {dhead}, which must be twice the columns of the tables")


def _check_strides(made: dict[str, TensorDescriptor]) -> None:
    for name in ("y", "x"):
        strides = made[name].strides or ()
        if strides[-1] != 1 and 0 not in made[name].shape:
            raise InfiniOpError(
                Status.BAD_TENSOR_STRIDES, f"{name}: got strides {list(strides)}, the last axis must be dense (1)"
            )
    for name in ("sin_table", "cos_table"):
        if not _equal_strides(made[name].strides, c_order(made[name].shape), made[name].shape):
            raise InfiniOpError(
                Status.BAD_TENSOR_STRIDES,
                f"{name}: got strides {list(made[name].strides or ())}, the table must be dense: "
                f"{list(c_order(made[name].shape))}",
            )


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
    """Whether two strides lead to the same places: axes of one element, and empty tensors, do not count."""
    return 0 in shape or all(n == 1 or i == j for i, j, n in zip(a or (), b or (), shape, strict=True))
