"""The kinds of array a caller may hand in: NumPy, PyOpenCL, torch CPU tensors, buffers, and what exports DLPack.

An `Operand` is such an array seen from this package: its layout, and either a NumPy view of its memory or a buffer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import mul
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .buffer_place import HOST, buffer_place
from .dlpack import from_dlpack
from .errors import ConfigError, ShapeError, reading, shown
from .host_memory import empty
from .layout import DTYPES, TensorView, dtype_name, parse_layout

Kind = Literal["numpy", "torch", "opencl"]


@dataclass(eq=False)
class Operand:
    """One tensor of a call.

    original: what the caller gave (or what was made for the result); returned as it is.
    view:     canonical layout; for host memory the offset is 0 at element [0, 0, 0, 0].
    host:     NumPy array of the same memory (host kinds).
    array:    `pyopencl.array.Array` (kind 'opencl').
    layout:   the letters of the caller's axes.
    twin:     another `pyopencl.array.Array` over the same elements, given as `out`: its events count, too.
    """

    original: Any
    kind: Kind
    view: TensorView
    layout: str
    host: npt.NDArray[Any] | None = None
    array: Any = None
    twin: Any = None

    @cached_property
    def address(self) -> int:
        """Address of element [0, 0, 0, 0] in host memory."""
        assert self.host is not None
        return int(self.host.__array_interface__["data"][0])

    @property
    def place(self) -> tuple[int, int]:
        """Memory that element [0, 0, 0, 0] is in, and its first byte there; see `buffer_place`."""
        if self.kind != "opencl":
            return HOST, self.address
        space, start, _, _ = buffer_place(self.array.base_data)
        return space, start + self.view.offset * self.view.itemsize


def is_opencl_array(x: object) -> bool:
    """Whether x is a `pyopencl.array.Array`; imports nothing."""
    module = sys.modules.get("pyopencl.array")
    return module is not None and isinstance(x, module.Array)


def refuse_buffer(x: object, argument: str) -> None:
    """Raise `ShapeError` for OpenCL memory without a shape and a dtype, with the line that gives it both."""
    cl = sys.modules.get("pyopencl")
    if cl is not None and isinstance(x, (cl.MemoryObjectHolder, cl.SVMPointer)) and not isinstance(x, cl.Image):
        raise ShapeError(
            f"{argument}: got {type(x).__name__}, which has no shape and no dtype; wrap it: "
            "pyopencl.array.Array(queue, shape, dtype, data=buffer)"
        )


def is_torch(x: object) -> bool:
    """Whether x is a torch tensor; imports nothing."""
    module = sys.modules.get("torch")
    return module is not None and isinstance(x, module.Tensor)


def operand(x: Any, layout: str, argument: str = "x", *, writable: bool = False) -> Operand:
    """Describe a caller's array; raise `ShapeError` naming the argument for what cannot be used."""
    with reading(argument, x):
        if is_opencl_array(x):
            return _opencl_operand(x, layout, argument)
        refuse_buffer(x, argument)
        return _host_operand(x, layout, argument, writable)


def _opencl_operand(x: Any, layout: str, argument: str) -> Operand:
    offset, rest = divmod(int(x.offset), DTYPES[dtype_name(x.dtype, argument)].itemsize)
    if rest:
        raise ShapeError(
            f"{argument}: got offset {x.offset}, a multiple of the element size {x.dtype.itemsize} is needed"
        )
    letters = parse_layout(layout, len(x.shape), argument)
    return Operand(x, "opencl", TensorView.of_array(x, layout, offset, argument), letters, array=x)


def _host_operand(x: Any, layout: str, argument: str, writable: bool) -> Operand:
    kind: Kind = "torch" if is_torch(x) else "numpy"
    host = _torch_memory(x, argument) if kind == "torch" else _host_memory(x, argument)
    letters = parse_layout(layout, host.ndim, argument)
    dtype_name(host.dtype, argument)
    if not host.flags.aligned:
        raise ShapeError(f"{argument}: its memory is not aligned to its elements of {host.itemsize} bytes; pass a copy")
    if writable and not host.flags.writeable:
        raise ShapeError(f"{argument}: the array is read-only, a writable one is needed")
    return Operand(x, kind, TensorView.of_array(host, layout, 0, argument), letters, host=host)


def empty_like(x: Operand) -> Operand:
    """Make a C-order result of the same kind, shape and dtype as x (an OpenCL array on the same queue)."""
    if x.kind == "opencl":
        import pyopencl.array as cla

        made: Any = cla.Array(
            x.array.queue or x.array.context, x.array.shape, x.array.dtype, allocator=x.array.allocator
        )
        return operand(made, x.layout, "out")
    assert x.host is not None
    made = empty(x.host.shape, x.host.dtype)
    if x.kind == "torch":
        import torch

        integers = torch.from_numpy(made.view(np.int16)) if x.view.dtype == "bf16" else None
        made = torch.from_numpy(made) if integers is None else integers.view(torch.bfloat16)
    return operand(made, x.layout, "out", writable=True)


def check_out(x: Operand, out: Operand) -> bool:
    """Check an output against its input and return whether it is the same memory (in place).

    Raises `ShapeError` if kind, shape or dtype differ, or if the two overlap in any other way than being the same.
    """
    if (x.kind == "opencl") != (out.kind == "opencl"):
        raise ShapeError(f"out: got {_kind_text(out)} for x in {_kind_text(x)}, both must be on the same side")
    if x.view.shape != out.view.shape:
        raise ShapeError(f"out: got shape {_shape(out)}, x has {_shape(x)}")
    if x.view.dtype != out.view.dtype:
        raise ShapeError(f"out: got dtype {DTYPES[out.view.dtype]}, x has {DTYPES[x.view.dtype]}")
    if out.view.overlaps_itself:
        raise ShapeError(
            f"out: elements share memory (strides {list(out.view.strides)}), each needs a place of its own"
        )
    if out.view.size == 0:
        return False
    if x.view.same_places(out.view) and x.place == out.place:
        return True
    if operands_overlap(x, out):
        raise ShapeError("out: overlaps x; allowed are x itself, the same view of its memory, or memory apart")
    return False


def check_apart(inputs: Sequence[Operand], outputs: Sequence[Operand | None], tables: Sequence[Operand] = ()) -> None:
    """Raise `ShapeError` if an output shares a byte with another one, with another one's input, or with a table."""
    for i, a in enumerate(outputs):
        for b in [*outputs[:i], *(o for j, o in enumerate(inputs) if j != i)]:
            if a is not None and b is not None and operands_overlap(a, b):
                raise ShapeError("out: an output overlaps another tensor of the same call")
        if a is not None and any(operands_overlap(a, table) for table in tables):
            raise ShapeError("out: an output overlaps cos or sin")


def _shape(x: Operand) -> list[int]:
    array: Any = x.array if x.kind == "opencl" else x.host
    return list(array.shape)


def _kind_text(x: Operand) -> str:
    return "an OpenCL array" if x.kind == "opencl" else "host memory"


def operands_overlap(a: Operand, b: Operand) -> bool:
    """Whether two operands share a byte; where that is hard to find out, whether their ranges overlap."""
    if not (a.view.size and b.view.size):
        return False
    (space, x), (other, y) = a.place, b.place
    x, y = x - a.view.offset * a.view.itemsize, y - b.view.offset * b.view.itemsize
    return space == other and views_overlap(a.view, b.view, y - x)


def views_overlap(a: TensorView, b: TensorView, distance: int) -> bool:
    """Whether two views share a byte. distance: bytes from the memory that a's offset counts from to that of b's."""
    # Usually the ranges of the views are apart, and nothing else has to be looked at.
    (a0, a1), (b0, b1), m, n = a.span, b.span, a.itemsize, b.itemsize
    if a1 * m <= distance + b0 * n or distance + b1 * n <= a0 * m:
        return False
    return m != n or bool(distance % m) or shares_memory(a, b, distance // m)


@lru_cache(maxsize=64)
def shares_memory(a: TensorView, b: TensorView, distance: int = 0) -> bool:
    """Whether two views have an element in common, b's offset counting from so many elements behind a's.

    Solved exactly by NumPy; where that takes too long, overlapping spans count as overlap.
    """
    b = b.moved(distance)
    (a0, a1), (b0, b1) = a.span, b.span
    if a1 <= b0 or b1 <= a0:
        return False
    try:
        return bool(np.shares_memory(_Place(a).array(), _Place(b).array(), max_work=100_000))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


class _Place:
    """Memory that is only looked at by address: lets NumPy compare views without data."""

    def __init__(self, view: TensorView) -> None:
        item = view.itemsize
        base = 1 << 40
        self.__array_interface__ = {
            "version": 3,
            "shape": view.shape,
            "strides": tuple(step * item for step in view.strides),
            "typestr": f"|V{item}",
            "data": (base + view.offset * item, True),
        }

    def array(self) -> npt.NDArray[Any]:
        return np.asarray(self)


def _host_memory(x: Any, argument: str) -> npt.NDArray[Any]:
    if isinstance(x, np.ndarray):
        if isinstance(x, np.ma.MaskedArray):
            raise ShapeError(f"{argument}: got a masked array, whose mask would be ignored; pass its `data`")
        return x
    if isinstance(x, (list, tuple, int, float)) or x is None:
        raise ShapeError(
            f"{argument}: got {type(x).__name__}, allowed are NumPy and PyOpenCL arrays, torch CPU tensors "
            "and objects with the buffer protocol or DLPack"
        )
    try:
        if hasattr(x, "__array_interface__") or _has_buffer(x):
            return np.asarray(x)
        if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
            return from_dlpack(x, argument)
    except ShapeError:
        raise
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise ShapeError(f"{argument}: the memory of {type(x).__name__} cannot be read: {error}") from error
    raise ShapeError(
        f"{argument}: got {type(x).__name__}, allowed are NumPy and PyOpenCL arrays, torch CPU tensors "
        "and objects with the buffer protocol or DLPack"
    )


def _has_buffer(x: Any) -> bool:
    try:
        memoryview(x).release()
    except TypeError:
        return False
    return True


def _torch_memory(x: Any, argument: str) -> npt.NDArray[Any]:
    import torch

    if x.device.type != "cpu":
        raise ShapeError(
            f"{argument}: got a torch tensor on {x.device}, only CPU tensors share memory with OpenCL here"
        )
    if x.requires_grad:
        raise ShapeError(
            f"{argument}: the tensor requires grad; detach it, or use clrope.interop.torch, which differentiates"
        )
    forward_ad: Any = torch.autograd.forward_ad
    if forward_ad.unpack_dual(x).tangent is not None:
        raise ShapeError(f"{argument}: the tensor has a tangent of forward-mode differentiation, which would be lost")
    if x.is_conj() or x.is_neg():
        raise ShapeError(f"{argument}: the tensor has a lazy conjugate or negative bit, resolve it first")
    bf16 = x.dtype == torch.bfloat16
    host = np.asarray((x.view(torch.int16) if bf16 else x).numpy())
    # NumPy makes memory of its own for what `torch.func.functionalize` wraps.
    if host.size and not x.data_ptr():
        raise ShapeError(
            f"{argument}: the tensor has no memory of its own; it stands for another one while torch traces"
        )
    if not within_storage(x, x.shape, x.stride()):
        raise ShapeError(f"{argument}: the tensor's storage of {x.untyped_storage().nbytes()} bytes does not hold it")
    return host.view(DTYPES["bf16"]) if bf16 else host


def within_storage(tensor: Any, shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor's elements are all in its storage, which may have been resized. shape, strides: its own."""
    length = sum(map(mul, shape, strides)) - sum(strides) + 1
    return bool(length * tensor.itemsize <= held_bytes(tensor)) or 0 in shape


def held_bytes(tensor: Any) -> int:
    """Return the bytes of a tensor's storage from its first element on."""
    return int(tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.itemsize)


def note_writes(tensors: Sequence[Any]) -> None:
    """Tell torch that tensors are written, so that a backward pass that needs their earlier values is refused."""
    sys.modules["torch"].autograd.graph.increment_version(tensors)


def check_forward(forward: Any) -> bool:
    """Return the direction as a bool: no text or array is taken for one."""
    if not isinstance(forward, (bool, np.bool_)):
        raise ConfigError(f"forward: got {shown(forward)} of type {type(forward).__name__}, True or False is needed")
    return bool(forward)
