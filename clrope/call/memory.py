"""How kernels reach the arrays of a call: one class for each kind of memory, which binds its arguments and finishes.

`bind` takes the memory of every side of a call: a `pyopencl.array.Array`, the address of a host array's element
[0, 0, 0, 0], or a `pyopencl.SVM` object that begins there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ..errors import ShapeError
from ..kernels.launch import Launch
from ..layout import TensorView
from .events import out_of_memory
from .runtime import HOST_BUFFERS_KEPT, PAGE, QueueState, keep

if TYPE_CHECKING:
    pass

#: How arrays reach the device: 'device' OpenCL arrays; the others as `Runtime.host_access` has them.
Access = Literal["device", "svm", "direct", "mapped", "copied"]


class Argument(NamedTuple):
    """A memory argument of a launch.

    launch:  whose argument number it is, and the number of its offset (None: the kernel takes none).
    side:    the tensor: 2k the input, 2k + 1 the output of part k; those behind are tables of the caller.
    view:    the tensor's elements that are touched, from element [0, 0, 0, 0] on: its offset is where they begin.
    """

    launch: Launch
    number: int
    offset: int | None
    side: int
    view: TensorView
    written: bool

    @property
    def span(self) -> tuple[int, int]:
        """Bytes that are touched, from element [0, 0, 0, 0] on."""
        first, last = self.view.span
        return first * self.view.itemsize, last * self.view.itemsize


def address_of(memory: Any) -> int:
    """Return the address of a host array's element [0, 0, 0, 0]."""
    return memory if type(memory) is int else int(memory.svm_ptr)


class Device:
    """OpenCL arrays: their own buffers and offsets."""

    def __init__(self, state: QueueState, arguments: Sequence[Argument]) -> None:
        self._setters = [
            (a.launch.kernel.set_arg, a.number, a.launch.set_offset, a.offset, a.side, a.view.itemsize, a.view.offset,
             *a.span)
            for a in arguments
        ]  # fmt: skip
        self._offsets: list[int | None] = [None] * len(self._setters)

    def bind(self, memories: Sequence[Any]) -> None:
        """Set the arguments; raises `ShapeError` for an array that does not lie within its buffer."""
        offsets = self._offsets
        for k, (set_arg, number, set_offset, offset, side, item, start, first, last) in enumerate(self._setters):
            array = memories[side]
            buffer, at = array.base_data, array.offset
            if at + first < 0 or at + last > buffer.size:
                raise ShapeError(
                    f"{'out' if side % 2 else 'x'}: the array touches bytes {at + first} to {at + last} of a buffer "
                    f"of {buffer.size} bytes"
                )
            set_arg(number, buffer)
            if offsets[k] != at:
                offsets[k] = None
                set_offset(offset, at // item + start)
                offsets[k] = at


class Svm:
    """Host memory whose addresses the device takes (fine-grained system SVM)."""

    def __init__(self, state: QueueState, arguments: Sequence[Argument]) -> None:
        import pyopencl as cl

        self._svm = cl.SVM
        self._setters = []
        for a in arguments:
            first, last = a.span
            # The pointer is that of the lowest byte that is touched.
            a.launch.set_offset(a.offset, a.view.offset - first // a.view.itemsize)
            memory = (ctypes.c_ubyte * (last - first)).from_address
            self._setters.append((a.launch.kernel.set_arg, a.number, a.side, first, memory))

    def bind(self, memories: Sequence[Any]) -> None:
        """Set the arguments."""
        svm = self._svm
        for set_arg, number, side, first, at in self._setters:
            memory = memories[side]
            if type(memory) is int:
                set_arg(number, svm(at(memory + first)))
            else:
                set_arg(number, svm(at(memory.svm_ptr + first)) if first else memory)


class Direct:
    """Buffers over whole pages of host memory, which the device uses as it is. They are kept by address."""

    def __init__(self, state: QueueState, arguments: Sequence[Argument]) -> None:
        import pyopencl as cl

        self._runtime = state.runtime
        self._setters = []
        #: OpenCL keeps no reference to buffers given as arguments before the launch.
        self._kept: list[Any] = []
        flags = cl.mem_flags
        for a in arguments:
            first, last = a.span
            access = (flags.READ_WRITE if a.written else flags.READ_ONLY) | flags.USE_HOST_PTR
            # Whole pages; and one more if the memory begins late in its first page.
            size = -(-(last - first) // PAGE) * PAGE
            types = [ctypes.c_ubyte * size, ctypes.c_ubyte * (size + PAGE)]
            self._setters.append(
                (a.launch.kernel.set_arg, a.number, a.launch.set_offset, a.offset, a.side, a.view.itemsize,
                 a.view.offset, access, size, first, last, types)
            )  # fmt: skip
        self._offsets: list[int | None] = [None] * len(self._setters)

    def bind(self, memories: Sequence[Any]) -> None:
        """Set the arguments."""
        known, kept, offsets = self._runtime.host_buffers, [], self._offsets
        for k, setter in enumerate(self._setters):
            set_arg, number, set_offset, offset, side, item, start, access, size, first, last, types = setter
            memory = memories[side]
            address = memory if type(memory) is int else memory.svm_ptr
            low = (address + first) & -PAGE
            pages = types[low + size < address + last]
            key = low, pages, access
            buffer = known.get(key)
            if buffer is None:
                buffer = self._new(access, pages.from_address(low))
                with self._runtime.lock:
                    keep(known, key, buffer, HOST_BUFFERS_KEPT)
            kept.append(buffer)
            set_arg(number, buffer)
            where = (address - low) // item + start
            if offsets[k] != where:
                offsets[k] = None
                set_offset(offset, where)
                offsets[k] = where
        self._kept = kept

    def _new(self, access: int, memory: Any) -> Any:
        import pyopencl as cl

        try:
            return cl.Buffer(self._runtime.context, access, hostbuf=memory)
        except cl.Error as error:
            raise out_of_memory(len(memory), self._runtime.info.name, error) from error


class Mapped:
    """Buffers over host memory of which the driver may keep a copy: they are mapped before and after each run.

    Two buffers over the same memory are undefined, so ranges that overlap, of whatever launch, get one together.
    """

    def __init__(self, state: QueueState, arguments: Sequence[Argument]) -> None:
        self._state, self._arguments = state, arguments
        #: (bytes [low, high), buffer, whether it is written).
        self._buffers: list[tuple[int, int, Any, bool]] = []
        #: Whether the host has not written since the buffers were made.
        self.fresh = True

    def bind(self, memories: Sequence[Any]) -> None:
        """Make buffers and set the arguments."""
        import pyopencl as cl

        runtime, flags = self._state.runtime, cl.mem_flags
        item = max(a.view.itemsize for a in self._arguments)
        ranges = []
        for a in self._arguments:
            first, last = a.span
            address = address_of(memories[a.side])
            ranges.append((address + first, address + last, a.written))
        buffers: list[tuple[int, int, Any, bool]] = []
        for low, high, written in _joined(ranges, item):
            memory = (ctypes.c_ubyte * (high - low)).from_address(low)
            access = (flags.READ_WRITE if written else flags.READ_ONLY) | flags.USE_HOST_PTR
            try:
                buffers.append((low, high, cl.Buffer(runtime.context, access, hostbuf=memory), written))
            except cl.Error as error:
                raise out_of_memory(high - low, runtime.info.name, error) from error
        self._buffers, self.fresh = buffers, True
        for a, (first, last, _) in zip(self._arguments, ranges, strict=True):
            low, _, buffer, _ = next(b for b in buffers if b[0] <= first and last <= b[1])
            a.launch.kernel.set_arg(a.number, buffer)
            a.launch.set_offset(a.offset, (address_of(memories[a.side]) - low) // a.view.itemsize + a.view.offset)

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

    def _map(self, buffer: Any, size: int, access: Any, events: Sequence[Any] | None) -> None:
        import pyopencl as cl

        queue = self._state.queue
        mapped, _ = cl.enqueue_map_buffer(
            queue, buffer, access, 0, (size,), np.dtype(np.uint8), wait_for=list(events or ()) or None, is_blocking=True
        )
        unmapped = mapped.base.release(queue)
        if not self._state.in_order:
            unmapped.wait()


class Uploaded:
    """The caller's tables for a device with memory of its own: copied to new buffers for each call."""

    def __init__(self, state: QueueState, arguments: Sequence[Argument]) -> None:
        self._context, self._arguments = state.runtime.context, arguments
        self._kept: list[Any] = []

    def bind(self, memories: Sequence[Any]) -> None:
        """Copy and set the arguments."""
        import pyopencl as cl

        kept: list[Any] = []
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        for a in self._arguments:
            first, last = a.span
            memory = (ctypes.c_ubyte * (last - first)).from_address(address_of(memories[a.side]) + first)
            kept.append(cl.Buffer(self._context, flags, hostbuf=memory))
            a.launch.kernel.set_arg(a.number, kept[-1])
            a.launch.set_offset(a.offset, a.view.offset - first // a.view.itemsize)
        self._kept = kept


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
