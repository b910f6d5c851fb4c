"""The signature of a call's arrays: all that what is launched depends on; never an address or a position."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import cache
from math import gcd
from typing import Any

import numpy as np

from ..arrays import Operand, may_have_tangents, tensor_address
from ..errors import ShapeError
from ..host_memory import SMALLEST_KEPT, check_size, empty
from ..kernels.problem import BUFFER_ALIGNMENT
from ..layout import TensorView
from .call import Maker
from .runtime import QueueState

#: Alignment of an address, at most 64, by its last six bits.
_ALIGNMENTS = tuple(gcd(BUFFER_ALIGNMENT, k) for k in range(BUFFER_ALIGNMENT))
#: CL_MEM_USE_HOST_PTR.
_USE_HOST_PTR = 1 << 3
#: Bytes that NumPy's and torch's own memory is aligned to at least.
_SMALL_ALIGNMENT = 16


def alignment_of(address: int) -> int:
    """Return the bytes, up to 64, that an address is aligned to."""
    return _ALIGNMENTS[address & (BUFFER_ALIGNMENT - 1)]


def buffer_alignment(buffer: Any) -> int:
    """Return the bytes, up to 64, that the start of a buffer is aligned to: over host memory, the memory's own."""
    try:
        flags = buffer.flags
    except AttributeError:
        return 1  # shared virtual memory of a caller's allocator
    if not flags & _USE_HOST_PTR:
        return BUFFER_ALIGNMENT
    return alignment_of(buffer.get_host_array((1,), np.dtype(np.uint8)).__array_interface__["data"][0])


def alignment_of_operand(operand: Operand) -> int:
    """Return the alignment of element [0, 0, 0, 0] in bytes, at most 64."""
    if operand.kind == "opencl":
        return gcd(buffer_alignment(operand.array.base_data), operand.view.offset * operand.view.itemsize)
    return alignment_of(operand.address)


@cache
def _opencl_types() -> tuple[Any, Any, Any]:
    """Return the types of host memory and of OpenCL arrays, and the errors for what is no plain host memory."""
    import pyopencl as cl
    import pyopencl.array as cla

    return cl.SVM, cla.Array, (ValueError, cl.Error)


def describe(array: Any) -> tuple[tuple[Any, ...], Any] | None:
    """Return (all that a call depends on, its memory for `Runner.bind`); None if a closer look is needed."""
    kind = type(array)
    svm, opencl_array, not_whole = _opencl_types()
    if kind is np.ndarray:
        try:
            # Five times as quick as `array.ctypes`, where the memory is contiguous and may be written.
            memory = svm(array)
            return (array.dtype, array.shape, array.strides, _ALIGNMENTS[memory.svm_ptr & 63]), memory
        except not_whole:
            address = array.__array_interface__["data"][0]
            flags = array.flags
            return (array.dtype, array.shape, array.strides, _ALIGNMENTS[address & 63], flags.writeable), address
    if kind is opencl_array:
        if array.offset % array.dtype.itemsize:
            return None
        alignment = gcd(buffer_alignment(array.base_data), array.offset)
        return ("opencl", array.dtype, array.shape, array.strides, array.allocator is None, alignment), array
    torch = sys.modules.get("torch")
    if torch is not None and kind is torch.Tensor:
        address = tensor_address(array)
        if address:
            return ("torch", array.dtype, array.shape, array.stride(), _ALIGNMENTS[address & 63]), address
    return None


def signature(
    inputs: Sequence[Any], several: bool, out: Any, tables: Sequence[Any] = ()
) -> tuple[list[Any], list[Any], list[Any], bool] | None:
    """Return (key for the table of calls, outputs, memories for `Call.run`, whether they are on the host) of arrays.

    Outputs are None for new ones. None if an array needs a closer look, or if only some are on the host.
    """
    if out is None:
        outputs: list[Any] = [None] * len(inputs)
    elif several:
        if type(out) is not tuple and type(out) is not list:
            return None
        outputs = list(out)
    else:
        outputs = [out]
    if len(outputs) != len(inputs) or not inputs:
        return None
    key: list[Any] = []
    memories: list[Any] = []
    opencl_array = _opencl_types()[1]
    on_host = type(inputs[0]) is not opencl_array
    for a, b in zip(inputs, outputs):  # noqa: B905 - of one length
        described = describe(a)
        if described is None or (type(a) is opencl_array) is on_host or 0 in a.shape:
            return None
        key.append(described[0])
        memories.append(described[1])
        if b is None:
            key.append(None)
            memories.append(None)
        elif b is a:
            key.append("in place")
            memories.append(described[1])
        else:
            described = describe(b)
            if described is None or (type(b) is opencl_array) is on_host:
                return None
            key.append(described[0])
            memories.append(described[1])
    for a in tables:
        described = describe(a)
        if described is None or (type(a) is opencl_array) is on_host:
            return None
        key.append(described[0])
        memories.append(described[1])
    if int in map(type, memories) and may_have_tangents():
        return None
    return key, outputs, memories, on_host


def result_maker(x: Operand) -> tuple[Maker, TensorView, int]:
    """Return what makes a result like x with its memory, its view and its alignment: C order, same kind and dtype."""
    if x.kind == "opencl":
        shape = x.array.shape
        view = TensorView.dense(shape, x.view.dtype, x.layout)
        return _opencl_maker(x), view, BUFFER_ALIGNMENT if x.array.allocator is None else 1
    assert x.host is not None
    shape, dtype = x.host.shape, x.host.dtype
    view = TensorView.dense(shape, x.view.dtype, x.layout)
    check_size(math.prod(shape) * dtype.itemsize)
    small = math.prod(shape) * dtype.itemsize < SMALLEST_KEPT
    alignment = _SMALL_ALIGNMENT if small else BUFFER_ALIGNMENT
    if x.kind == "numpy":
        return _numpy_maker(np.empty if small else empty, shape, dtype), view, alignment
    import torch

    torch_shape, torch_dtype, new = x.original.shape, x.original.dtype, torch.empty
    if small and x.original.is_contiguous():
        return _torch_maker(torch.empty_like), view, alignment
    if small:
        return _torch_maker(lambda _: new(torch_shape, dtype=torch_dtype, device="cpu")), view, alignment
    integers = {"bf16": np.int16}.get(x.view.dtype)

    def from_numpy(_: Any) -> Any:
        made = empty(shape, dtype)
        if integers is None:
            return torch.from_numpy(made)
        return torch.from_numpy(made.view(integers)).view(torch_dtype)

    return _torch_maker(from_numpy), view, alignment


def _numpy_maker(new: Callable[..., Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Maker:
    svm = _opencl_types()[0]

    def make(_: Any, __: QueueState) -> tuple[Any, Any]:
        made = new(shape, dtype)
        return made, svm(made)

    return make if 0 not in shape else lambda _, __: (new(shape, dtype), 0)


def _torch_maker(new: Callable[[Any], Any]) -> Maker:
    """Return what makes a tensor with its address by `new`, which torch's modes and default device may change."""

    def make(a: Any, _: QueueState) -> tuple[Any, int]:
        try:
            made = new(a)
            address = made.is_cpu and made.data_ptr()
        except MemoryError:
            raise
        except Exception as error:
            raise ShapeError(f"x: torch makes no result for it: {type(error).__name__}: {error}") from error
        if not address:
            raise ShapeError(
                "x: torch makes results without memory on the CPU here, as under FakeTensorMode; give `out`, or call "
                "outside of it"
            )
        return made, address

    return make


def _opencl_maker(x: Operand) -> Maker:
    import pyopencl.array as cla

    steps = [x.view.itemsize]
    for length in reversed(x.array.shape[1:]):
        steps.append(steps[-1] * length)
    strides, nbytes = tuple(reversed(steps)), x.view.nbytes
    kind = cla.Array

    def make(array: Any, queue: QueueState) -> tuple[Any, Any]:
        allocator = array.allocator
        data = queue.allocate(nbytes) if allocator is None else allocator(nbytes)
        # The constructor takes 30 us, more than all the rest of a small call.
        fields = array.__dict__.copy()
        fields["base_data"], fields["offset"], fields["events"] = data, 0, []
        fields["strides"], fields["_flags"] = strides, None
        own = array.queue
        if own is not None and own is not queue.queue and own != queue.queue:
            fields["queue"] = queue.queue  # whose pool the memory goes back to
        made = object.__new__(kind)
        made.__dict__ = fields
        return made, made

    return make
