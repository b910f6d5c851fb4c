"""How kernels reach the arrays of a call: one class for each kind of memory, which binds its arguments and finishes.

`bind` takes the memory of every side of a call: a `pyopencl.array.Array`, or a `pyopencl.SVM` at the element
[0, 0, 0, 0] of a host array.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from ..buffer_place import buffer_place
from ..errors import ShapeError
from ..kernels.launch import Launch
from ..layout import TensorView
from .events import out_of_memory
from .runtime import PAGE, QueueState

#: Memory at an address, of which no more than the address counts.
byte_at = (ctypes.c_ubyte * 1).from_address
#: How arrays reach the device: 'device' OpenCL arrays; the others as `Runtime.host_access` has them.
Access = Literal["device", "svm", "direct", "mapped", "copied"]


class Argument(NamedTuple):
    """A memory argument of a launch.

    launch:  whose argument number it is, and the number of its offset (None: the kernel takes none).
    side:    the tensor: 2k the input, 2k + 1 the output of part k; those behind are tables of the caller.
    view:    the tensor's elements that are touched, from element [0, 0, 0, 0] on: its offset is where they begin.
    made:    whether the call itself makes the tensor, so that it is within its memory.
    """

    launch: Launch
    number: int
    offset: int | None
    side: int
    view: TensorView
    written: bool
    made: bool = False

    @property
    def span(self) -> tuple[int, int]:
        """Bytes that are touched, from element [0, 0, 0, 0] on."""
        first, last = self.view.span
        return first * self.view.itemsize, last * self.view.itemsize


@cache
def opencl_types() -> tuple[Any, Any, Any]:
    """Return the types of host memory and of OpenCL arrays, and the errors for what is no plain host memory."""
    import pyopencl as cl
    import pyopencl.array as cla

    return cl.SVM, cla.Array, (ValueError, cl.Error)


@lru_cache(maxsize=4096)
def pointer(address: int) -> Any:
    """Return a `pyopencl.SVM` at an address of host memory, whatever is there now; a model's addresses come again."""
    return opencl_types()[0](byte_at(address))


def _offset_setter(a: Argument) -> Callable[[int], None]:
    """Return what sets an argument's offset in elements, unless it is set already."""
    last: int | None = None

    def place(elements: int) -> None:
        nonlocal last
        if elements != last:
            last = None
            a.launch.set_offset(a.offset, elements)
            last = elements

    return place


def _buffer(state: QueueState, access: int, low: int, high: int) -> Any:
    """Return a buffer over, or with a copy of, host memory between two addresses."""
    import pyopencl as cl

    try:
        return cl.Buffer(state.runtime.context, access, hostbuf=(ctypes.c_ubyte * (high - low)).from_address(low))
    except cl.Error as error:
        raise out_of_memory(high - low, state.runtime.info.name, error) from error


class Device:
    """OpenCL arrays: their own buffers and offsets."""

    def __init__(self, state: QueueState, arguments: Sequence[Argument]) -> None:
        self._setters = [
            (a.launch.kernel.set_arg, a.number, _offset_setter(a), a.made, a.side, a.view.itemsize, a.view.offset,
             *a.span)
            for a in arguments
        ]  # fmt: skip

    def bind(self, memories: Sequence[Any]) -> None:
        """Set the arguments; raises `ShapeError` for an array that is not within its buffer."""
        for set_arg, number, place, made, side, item, start, first, last in self._setters:
            array = memories[side]
            buffer, at = array.base_data, array.offset
            if not made and (at + first < 0 or at + last > buffer_place(buffer).size):
                raise ShapeError(
                    f"{'out' if side % 2 else 'x'}: the array touches bytes {at + first} to {at + last} of a buffer "
                    f"of {buffer.size} bytes"
                )
            set_arg(number, buffer)
            place(at // item + start)


class Svm:
    """Host memory whose addresses the device takes (fine-grained system SVM)."""

    def __init__(self, state: QueueState, arguments: Sequence[Argument]) -> None:
        # The pointer is that of the lowest byte that is touched.
        self._setters = [(a.launch.kernel.set_arg, a.number, a.side, a.span[0]) for a in arguments]
        for a in arguments:
            a.launch.set_offset(a.offset, a.view.offset - a.span[0] // a.view.itemsize)

    def bind(self, memories: Sequence[Any]) -> None:
        """Set the arguments."""
        for set_arg, number, side, first in self._setters:
            memory = memories[side]
            set_arg(number, pointer(memory.svm_ptr + first) if first else memory)


class Direct:
    """Buffers over whole pages of host memory, which the device uses as it is. They are kept by address."""

    def __init__(self, state: QueueState, arguments: Sequence[Argument]) -> None:
        import pyopencl as cl

        self._state = state
        #: OpenCL keeps no reference to buffers given as arguments before the launch.
        self._kept: list[Any] = []
        flags = cl.mem_flags
        self._setters = [
            (a.launch.kernel.set_arg, a.number, _offset_setter(a), a.side, a.view.itemsize, a.view.offset,
             (flags.READ_WRITE if a.written else flags.READ_ONLY) | flags.USE_HOST_PTR, *a.span)
            for a in arguments
        ]  # fmt: skip

    def bind(self, memories: Sequence[Any]) -> None:
        """Set the arguments."""
        runtime, kept = self._state.runtime, []
        for set_arg, number, place, side, item, start, access, first, last in self._setters:
            address = memories[side].svm_ptr
            low = (address + first) & -PAGE
            # As many pages as such memory may take, so that few buffers are made for arrays that move by bytes.
            high = low + -(-(last - first) // PAGE) * PAGE
            key = low, high if address + last <= high else high + PAGE, access
            buffer = runtime.host_buffers.get(key)
            if buffer is None:
                buffer = _buffer(self._state, access, low, key[1])
                runtime.host_buffers.put(key, buffer)
            kept.append(buffer)
            set_arg(number, buffer)
            place((address - low) // item + start)
        self._kept = kept


class Mapped:
    """Buffers over host memory of which the driver may keep a copy: they are mapped before and after each run.

    Two buffers over the same memory are undefined, so ranges that overlap, of whatever launch, get one together.
    """

    def __init__(self, state: QueueState, arguments: Sequence[Argument]) -> None:
        import pyopencl as cl

        self._state, self._arguments = state, arguments
        self._flag = cl.mem_flags.USE_HOST_PTR
        #: (bytes [low, high), buffer, whether it is written).
        self._buffers: list[tuple[int, int, Any, bool]] = []
        #: Whether the host has not written since the buffers were made.
        self.fresh = True

    def bind(self, memories: Sequence[Any]) -> None:
        """Make buffers and set the arguments."""
        import pyopencl as cl

        flags = cl.mem_flags
        item = max(a.view.itemsize for a in self._arguments)
        addresses = [memories[a.side].svm_ptr for a in self._arguments]
        ranges = [(at + a.span[0], at + a.span[1], a.written) for at, a in zip(addresses, self._arguments, strict=True)]
        buffers = []
        for low, high, written in _joined(ranges, item):
            access = (flags.READ_WRITE if written else flags.READ_ONLY) | self._flag
            buffers.append((low, high, _buffer(self._state, access, low, high), written))
        self._buffers, self.fresh = buffers, True
        for a, at, (first, last, _) in zip(self._arguments, addresses, ranges, strict=True):
            low, _, buffer, _ = next(b for b in buffers if b[0] <= first and last <= b[1])
            a.launch.kernel.set_arg(a.number, buffer)
            a.launch.set_offset(a.offset, (at - low) // a.view.itemsize + a.view.offset)

    def before(self) -> None:
        """Make what the host wrote since the last run visible to the device; new buffers have it."""
        import pyopencl as cl

        if not self.fresh:
            for low, high, buffer, _ in self._buffers:
                # A driver that keeps a copy puts it into the memory first, unless that is to be written as a whole.
                self._map(buffer, high - low, cl.map_flags.WRITE_INVALIDATE_REGION, None)
        self.fresh = False

    def after(self, events: Sequence[Any]) -> None:
        """Make what the device wrote visible to the host."""
        import pyopencl as cl

        for low, high, buffer, written in self._buffers:
            if written:
                self._map(buffer, high - low, cl.map_flags.READ, events)

    def release(self) -> None:
        """Drop the buffers: the next call binds new ones."""
        self._buffers = []

    def _map(self, buffer: Any, size: int, access: Any, events: Sequence[Any] | None) -> None:
        import pyopencl as cl

        queue = self._state.queue
        mapped, _ = cl.enqueue_map_buffer(
            queue, buffer, access, 0, (size,), np.dtype(np.uint8), wait_for=list(events or ()) or None, is_blocking=True
        )
        unmapped = mapped.base.release(queue)
        if not self._state.in_order:
            unmapped.wait()


class Uploaded(Mapped):
    """The caller's tables for a device with memory of its own: copied to new buffers for each call."""

    def __init__(self, state: QueueState, arguments: Sequence[Argument]) -> None:
        import pyopencl as cl

        super().__init__(state, arguments)
        self._flag = cl.mem_flags.COPY_HOST_PTR

    def before(self) -> None:
        """Do nothing: each call binds new buffers."""


#: The kinds of memory whose arguments are bound as they are; 'copied' tensors travel in pieces (`transfer.py`).
KINDS: dict[str, Any] = {"device": Device, "svm": Svm, "direct": Direct, "mapped": Mapped, "copied": Uploaded}


def host_view(address: int, view: TensorView) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the elements of a host tensor in the order b, s, n, d, as unsigned integers of their size.

    address: of element [0, 0, 0, 0], which the view's offset counts from.
    """
    first, last = view.span
    item = view.itemsize
    memory: Any = (ctypes.c_ubyte * ((last - first) * item)).from_address(address + first * item)
    return np.ndarray(
        view.shape, np.dtype(f"u{item}"), memory, (view.offset - first) * item,
        tuple(step * item for step in view.strides),
    )  # fmt: skip


def _joined(ranges: Sequence[tuple[int, int, bool]], item: int) -> list[tuple[int, int, bool]]:
    """Return ranges of bytes that begin on elements of `item` bytes and do not overlap: those that did, together."""
    joined: list[tuple[int, int, bool]] = []
    for low, high, written in sorted(ranges):
        low = low // item * item
        if joined and low < joined[-1][1]:
            before = joined.pop()
            low, high, written = before[0], max(before[1], high), before[2] or written
        joined.append((low, high, written))
    return joined
