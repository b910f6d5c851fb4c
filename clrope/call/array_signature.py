"""The signature of a call's arrays: all that what is launched depends on; never an address or a position."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from math import gcd
from typing import Any

import numpy as np

from ..arrays import Operand, held_bytes, within_storage
from ..buffer_place import BUFFER_ALIGNMENT, buffer_place
from ..errors import ShapeError
from ..host_memory import SMALLEST_KEPT, check_size, empty
from ..layout import TensorView
from .call import Maker
from .memory import opencl_types, pointer

#: Alignment of an address, at most 64, by its last six bits.
_ALIGNMENTS = tuple(gcd(BUFFER_ALIGNMENT, k) for k in range(BUFFER_ALIGNMENT))
#: Bytes that NumPy's and torch's own memory is aligned to at least.
_SMALL_ALIGNMENT = 16


def alignment_of_operand(operand: Operand) -> int:
    """Return the alignment of element [0, 0, 0, 0] in bytes, at most 64."""
    if operand.kind == "opencl":
        return gcd(buffer_place(operand.array.base_data).alignment, operand.view.offset * operand.view.itemsize)
    return _ALIGNMENTS[operand.address & 63]


def _describe(array: Any, types: tuple[Any, Any, Any], on_host: bool, key: list[Any], memories: list[Any]) -> bool:
    """Append all that a call depends on, and the memory for `Runner.bind`; False if a closer look is needed."""
    kind = type(array)
    svm, opencl_array, not_whole = types
    if kind is np.ndarray:
        shape = array.shape
        try:
            # Five times as quick as `array.ctypes`, where the memory is contiguous and may be written.
            memory = svm(array)
            key += (shape, array.dtype, array.strides, _ALIGNMENTS[memory.svm_ptr & 63])
        except not_whole:
            address = array.__array_interface__["data"][0]
            key += (shape, array.dtype, array.strides, _ALIGNMENTS[address & 63], array.flags.writeable)
            memory = pointer(address)
        memories.append(memory)
        return on_host and 0 not in shape
    if kind is opencl_array:
        shape, dtype, offset = array.shape, array.dtype, array.offset
        alignment = gcd(buffer_place(array.base_data).alignment, offset)
        key += (shape, "opencl", dtype, array.strides, array.allocator is None, alignment)
        memories.append(array)
        return not on_host and offset % dtype.itemsize == 0 and 0 not in shape
    torch = sys.modules.get("torch")
    return torch is not None and kind is torch.Tensor and on_host and _describe_tensor(array, torch, key, memories)


def _describe_tensor(x: Any, torch: Any, key: list[Any], memories: list[Any]) -> bool:
    """As `_describe`, for a torch tensor."""
    # Within a level of forward-mode differentiation it may have a tangent.
    if x.requires_grad or not x.is_cpu or getattr(torch.autograd.forward_ad, "_current_level", 0) >= 0:
        return False
    try:
        if x.is_neg():
            return False
        address, shape, strides = x.data_ptr(), x.shape, None if x.is_contiguous() else x.stride()
        held = x.nbytes <= held_bytes(x) if strides is None else within_storage(x, shape, strides)
    except RuntimeError:  # sparse, nested, or wrapped by `torch.func`
        return False
    key += (shape, x.dtype, strides, _ALIGNMENTS[address & 63])
    memories.append(pointer(address))
    return held and address != 0 and 0 not in shape


def signature(
    inputs: Sequence[Any], several: bool, out: Any, tables: Sequence[Any] = ()
) -> tuple[list[Any], list[Any], list[Any], bool] | None:
    """Return (key for the table of calls, outputs, memories for `Call.run`, whether they are on the host) of arrays.

    Outputs are None for new ones. None if an array needs a closer look, or if only some are on the host.
    """
    outputs: list[Any] = (
        [out] * len(inputs) if out is None or not several else list(out) if type(out) in (tuple, list) else []
    )
    if len(outputs) != len(inputs) or not inputs:
        return None
    key: list[Any] = []
    memories: list[Any] = []
    types = opencl_types()
    on_host = type(inputs[0]) is not types[1]
    for x, y in zip(inputs, outputs):  # noqa: B905 - of one length
        if not _describe(x, types, on_host, key, memories):
            return None
        if y is None or y is x:
            key.append(y is x)
            memories.append(None if y is None else memories[-1])
        elif not _describe(y, types, on_host, key, memories):
            return None
    for table in tables:
        if not _describe(table, types, on_host, key, memories):
            return None
    return key, outputs, memories, on_host


def result_maker(x: Operand) -> tuple[Maker, TensorView, int]:
    """Return what makes a result like x with its memory, its view and its alignment: C order, same kind and dtype."""
    if x.kind == "opencl":
        view = TensorView.dense(x.array.shape, x.view.dtype, x.layout)
        return _opencl_maker(x), view, BUFFER_ALIGNMENT if x.array.allocator is None else 1
    assert x.host is not None
    shape, dtype = x.host.shape, x.host.dtype
    view = TensorView.dense(shape, x.view.dtype, x.layout)
    nbytes = math.prod(shape) * dtype.itemsize
    check_size(nbytes)
    small = nbytes < SMALLEST_KEPT
    alignment = _SMALL_ALIGNMENT if small else BUFFER_ALIGNMENT
    if x.kind == "numpy":
        new, svm = np.empty if small else empty, opencl_types()[0]

        def make(_: Any, __: Any) -> tuple[Any, Any]:
            made = new(shape, dtype)
            return made, svm(made) if nbytes else None

        return make, view, alignment
    import torch

    torch_shape, torch_dtype = x.original.shape, x.original.dtype
    if small and x.original.is_contiguous():
        return _torch_maker(torch.empty_like), view, alignment
    if small:
        return _torch_maker(lambda _: torch.empty(torch_shape, dtype=torch_dtype, device="cpu")), view, alignment

    bf16 = x.view.dtype == "bf16"

    def from_numpy(_: Any) -> Any:
        made = empty(shape, dtype)
        if not bf16:
            return torch.from_numpy(made)
        return torch.from_numpy(made.view(np.int16)).view(torch_dtype)

    return _torch_maker(from_numpy), view, alignment


def _torch_maker(new: Callable[[Any], Any]) -> Maker:
    """Return what makes a tensor with its memory by `new`, which torch's modes and default device may change."""

    def make(a: Any, _: Any) -> tuple[Any, Any]:
        try:
            made = new(a)
            address = made.is_cpu and made.data_ptr()
        except Exception as error:
            raise ShapeError(f"x: torch makes no result for it: {type(error).__name__}: {error}") from error
        if not address and a.numel():
            raise ShapeError(
                "x: torch makes results without memory on the CPU here, as under FakeTensorMode; give `out`, or call "
                "outside of it"
            )
        return made, pointer(address)

    return make


def _opencl_maker(x: Operand) -> Maker:
    import pyopencl.array as cla

    steps = [x.view.itemsize]
    for length in reversed(x.array.shape[1:]):
        steps.append(steps[-1] * length)
    strides, nbytes = tuple(reversed(steps)), x.view.nbytes
    kind = cla.Array

    def make(array: Any, state: Any) -> tuple[Any, Any]:
        # The constructor takes 30 us, more than all the rest of a small call.
        fields = array.__dict__.copy()
        fields["base_data"], fields["offset"], fields["events"] = None, 0, []
        fields["strides"], fields["_flags"] = strides, None
        if nbytes:
            fields["base_data"] = (array.allocator or state.allocate)(nbytes)
            own = array.queue
            if own is not None and own is not state.queue and own != state.queue:
                fields["queue"] = state.queue  # whose pool the memory goes back to
        made = object.__new__(kind)
        made.__dict__ = fields
        return made, made

    return make
