"""Memory of a lab run: tensors, tables and positions in the middle of buffers, with poison around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import UnsupportedError
from ..testing import NAN_POISON, POISON, bits

if TYPE_CHECKING:
    import pyopencl

Bytes = npt.NDArray[np.uint8]
#: Bytes before and after a tensor's memory. Devices align sub-buffers to at most this.
GUARD_BYTES = 4096


class GuardedArrays:
    """A buffer with a copy of a NumPy parent inside, and an OpenCL array for each of the parent's views.

    offsets: whether the arrays begin inside of the buffer; otherwise each is a sub-buffer from its lowest element on,
    for kernels that take no offset. before: bytes of the only array's buffer before its lowest element, -1 for all that
    are in the way. exact: nothing around the tensors, for a simulator that checks bounds itself.
    """

    def __init__(
        self,
        queue: pyopencl.CommandQueue,
        parent: npt.NDArray[Any],
        views: tuple[npt.NDArray[Any], ...],
        *,
        offsets: bool,
        byte: int,
        before: int = -1,
        exact: bool = False,
    ) -> None:
        import pyopencl as cl

        self._queue, self._parent, self._byte = queue, parent, byte
        starts = [_first_byte(view) - _address(parent) for view in views]
        #: The bytes of the parent that are in the buffer, and where they begin there.
        self._part = slice(0, parent.nbytes)
        if exact:
            self._part = slice(min(starts), max(_last_byte(view) - _address(parent) for view in views))
            self._begin = max(before, 0)
            self._size = self._begin + self._part.stop - self._part.start
        else:
            # A sub-buffer has to begin at an aligned place.
            self._begin = GUARD_BYTES + (max(before, 0) - starts[0]) % GUARD_BYTES
            size = self._begin + parent.nbytes
            self._size = size + GUARD_BYTES + -size % GUARD_BYTES
        self.buffer = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, self._size)
        self.arrays = [
            self._array(view, start - self._part.start, offsets or exact, -1 if exact else before)
            for view, start in zip(views, starts, strict=True)
        ]
        self._before: Bytes = np.empty(0, np.uint8)

    def _array(self, view: npt.NDArray[Any], start: int, offsets: bool, before: int) -> Any:
        import pyopencl.array as cla

        whole = offsets and before < 0
        origin = 0 if whole else self._begin + start - (max(before, 0) if offsets else 0)
        if origin % (self._queue.device.mem_base_addr_align // 8):
            raise UnsupportedError("a second tensor of the same memory that begins at no aligned place")
        end = self._begin + start + _last_byte(view) - _first_byte(view)
        data = self.buffer if whole else self.buffer.get_sub_region(origin, end - origin)
        where = self._begin + _address(view) - _address(self._parent) - self._part.start - origin
        return cla.Array(self._queue, view.shape, view.dtype, data=data, offset=where, strides=view.strides)

    def upload(self) -> None:
        """Copy the parent as it is now into the buffer, with poison around."""
        import pyopencl as cl

        whole = np.full(self._size, self._byte, np.uint8)
        whole[self._inside] = _bytes(self._parent)[self._part]
        cl.enqueue_copy(self._queue, self.buffer, whole)
        self._before = whole
        for array in self.arrays:
            array.events.clear()

    def download(self) -> int:
        """Copy the buffer into the parent; return how many bytes of the poison around it have changed."""
        import pyopencl as cl

        whole = np.empty(self._size, np.uint8)
        cl.enqueue_copy(self._queue, whole, self.buffer)
        inside = self._inside
        changed = int(np.count_nonzero(whole != self._before)) - int(
            np.count_nonzero(whole[inside] != self._before[inside])
        )
        bits(self._parent).reshape(-1).view(np.uint8)[self._part] = whole[inside]
        return changed

    @property
    def _inside(self) -> slice:
        return slice(self._begin, self._begin + self._part.stop - self._part.start)


class GuardedBytes:
    """A buffer that a kernel reads, with poison on both sides. exact: without, for a simulator that checks bounds.

    The poison is a large number for positions, and NaN for all else: as an integer it is -1, or the largest.
    """

    def __init__(self, queue: pyopencl.CommandQueue, data: npt.NDArray[Any], exact: bool = False) -> None:
        import pyopencl as cl

        inside = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        around = 0 if exact else GUARD_BYTES
        byte = POISON if data.dtype.kind == "i" else NAN_POISON
        self._whole = np.pad(inside, around, constant_values=byte)
        flags = cl.mem_flags
        self._queue = queue
        self._buffer = cl.Buffer(queue.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=self._whole)
        #: What the kernel gets.
        self.memory = self._buffer if exact else self._buffer.get_sub_region(around, inside.size)

    def changed(self) -> int:
        """Return how many bytes, of the data or around, are no longer what they were."""
        import pyopencl as cl

        now = np.empty_like(self._whole)
        cl.enqueue_copy(self._queue, now, self._buffer)
        return int(np.count_nonzero(now != self._whole))


def _bytes(array: npt.NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(bits(array)).reshape(-1).view(np.uint8)


def _address(array: npt.NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0]) if array.dtype.kind != "V" else int(array.ctypes.data)


def _reach(view: npt.NDArray[Any]) -> list[int]:
    return [step * (length - 1) for step, length in zip(view.strides, view.shape, strict=True)]


def _first_byte(view: npt.NDArray[Any]) -> int:
    return _address(view) + sum(min(0, r) for r in _reach(view))


def _last_byte(view: npt.NDArray[Any]) -> int:
    return _address(view) + sum(max(0, r) for r in _reach(view)) + view.itemsize
