"""Host arrays on a device with memory of its own: chunks that are copied in, rotated and copied out at the same time.

Three queues work on three slots of device buffers. While chunk c is rotated, chunk c + 1 is on its way in and chunk
c - 1 on its way out; events make sure that a buffer is used again only after its last user has ended:

    upload(c)    after rotation(c - slots), in place after download(c - slots)
    rotation(c)  after upload(c) and download(c - slots)
    download(c)  after rotation(c)

A chunk that is contiguous in host memory is copied directly. Other chunks go through a contiguous array of their slot,
gathered and scattered by NumPy, so that only the view's own elements are touched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..host_memory import empty
from ..layout import TensorView
from .events import all_ended, out_of_memory

if TYPE_CHECKING:
    import pyopencl

#: Bytes of a tensor that travel at once: several of them in a large tensor, each worth its commands.
COPY_CHUNK_BYTES = 8 << 20
#: Chunks on their way at the same time: one in, one being rotated, one out.
SLOTS = 3
#: Bytes of staging buffers in no use that are kept at most, and queues.
STAGING_BYTES_KEPT = 256 << 20
QUEUES_KEPT = 8

#: Puts a rotation on the call's queue, after the events given.
Start = Callable[[list[Any]], Any]


class Staging:
    """Device buffers and queues for copied tensors, used again by the next call.

    A buffer goes back by itself when it is dropped, which must be after all work on it has ended.
    """

    def __init__(self, context: pyopencl.Context, cl_device: pyopencl.Device) -> None:
        import pyopencl as cl
        import pyopencl.tools

        self._lock = threading.Lock()
        self._context, self._device = context, cl_device
        self._queues: list[Any] = []
        self._own = cl.CommandQueue(context, cl_device)
        self._memory = pyopencl.tools.MemoryPool(pyopencl.tools.ImmediateAllocator(self._own))
        self._largest = int(cl_device.max_mem_alloc_size)
        #: Buffers made so far, which is fewer than were handed out.
        self.made = 0

    @property
    def kept(self) -> int:
        """Bytes of buffers in no use."""
        return int(self._memory.managed_bytes - self._memory.active_bytes) if self._memory.held_blocks else 0

    def buffer(self, nbytes: int) -> pyopencl.MemoryObjectHolder:
        """Return a buffer of at least `nbytes` bytes with undefined contents."""
        import pyopencl as cl

        with self._lock:
            memory = self._memory
            if self.kept > STAGING_BYTES_KEPT:
                memory.free_held()
            try:
                if memory.alloc_size(memory.bin_number(nbytes)) > self._largest:
                    # The pool rounds sizes up, which the device does not allow for this one.
                    self.made += 1
                    return cl.Buffer(self._context, cl.mem_flags.READ_WRITE, nbytes)
                before = memory.managed_bytes
                buffer = memory.allocate(nbytes)
            except cl.Error as error:
                raise out_of_memory(nbytes, self._device.name, error) from error
            if memory.managed_bytes != before:
                self.made += 1
                # The allocator writes into new memory, which must end before a copy into it begins.
                self._own.finish()
            return buffer

    def queues(self) -> tuple[Any, Any]:
        """Return two in-order queues in no other use, for `give_back`."""
        import pyopencl as cl

        with self._lock:
            while len(self._queues) < 2:
                self._queues.append(cl.CommandQueue(self._context, self._device))
            return self._queues.pop(), self._queues.pop()

    def give_back(self, queues: Sequence[Any]) -> None:
        """Take back queues on which all work has ended."""
        with self._lock:
            self._queues = [*self._queues, *queues][:QUEUES_KEPT]


@dataclass(eq=False)
class _Slot:
    """Buffers for one piece at a time (x and y are the same if all pieces are in place), and their last users."""

    x: Any
    y: Any
    nbytes: int
    upload: Any = None
    downloads: list[Any] = field(default_factory=list)
    #: What x waits for before it is written again.
    x_free: list[Any] = field(default_factory=list)
    #: The dense host arrays that strided pieces pass through, made when first needed.
    staging: dict[str, npt.NDArray[np.uint8]] = field(default_factory=dict)
    #: What the last download still has to be scattered to, and from where.
    scatter: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None = None

    def stage(self, way: str, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the slot's dense array for one way ('in' or 'out'), in the shape of a strided one."""
        if way not in self.staging:
            self.staging[way] = empty((self.nbytes,), np.dtype(np.uint8))
        return self.staging[way][: like.nbytes].view(like.dtype).reshape(like.shape)

    def gather(self, source: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a dense copy in the slot's memory, once the last upload from there is done."""
        if self.upload is not None:
            self.upload.wait()
        dense = self.stage("in", source)
        dense[...] = source
        return dense

    def settle(self) -> None:
        """Wait for the last download and put its elements in their places."""
        if self.scatter is not None:
            self.downloads[0].wait()
            target, dense = self.scatter
            target[...] = dense
            self.scatter = None

    def forget(self) -> None:
        """Drop the events of a run that has ended."""
        self.upload = self.scatter = None
        self.downloads, self.x_free = [], []


class Copies:
    """Device buffers for the copied chunks of a call. One thread at a time uses it.

    pieces: shape and type of each chunk, dense, and whether it is rotated in place. keeps_outputs: outputs are copied
    in, too: the launches may leave some of their elements as they were.
    """

    def __init__(
        self, staging: Staging, queue: pyopencl.CommandQueue, pieces: Sequence[tuple[TensorView, bool]], *,
        in_order: bool, keeps_outputs: bool, busy: dict[int, Any],
    ) -> None:  # fmt: skip
        self._staging, self._queue, self._in_order = staging, queue, in_order
        self._keeps_outputs, self._busy = keeps_outputs, busy
        largest = max(view.nbytes for view, _ in pieces)
        apart = not all(in_place for _, in_place in pieces)
        self._slots: list[_Slot] = []
        for _ in range(min(SLOTS, len(pieces))):
            x = staging.buffer(largest)
            self._slots.append(_Slot(x, staging.buffer(largest) if apart else x, largest))
        self._in_place = [in_place for _, in_place in pieces]

    def buffers(self, index: int) -> tuple[Any, Any]:
        """Return the buffers that rotation `index` reads and writes."""
        slot = self._slots[index % len(self._slots)]
        return slot.x, slot.x if self._in_place[index] else slot.y

    def run(self, chunks: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]], starts: Sequence[Start]) -> None:
        """Copy every chunk in, start its rotation, copy it out; return when all results are in host memory.

        chunks: (input, output) as bits, of each piece. Whatever is raised is raised only after all that was enqueued
        has ended; the outputs of pieces that were not finished are then undefined.
        """
        import pyopencl as cl

        # An event of a copy keeps its host memory, and would wait for it when dropped, so all are kept to the end.
        events: list[Any] = []
        queues = self._staging.queues() if len(chunks) > 1 else (self._queue, self._queue)  # one: nothing to overlap
        try:
            self._enqueue(chunks, starts, queues, events)
            for slot in self._slots:
                slot.settle()
            cl.wait_for_events(events)
        except BaseException:
            for event in events:
                with suppress(cl.Error):  # of what failed, and of all that waited for it, only the end matters
                    event.wait()
            ended = [all_ended(queue) for queue in (self._queue, *queues)]
            if not all(ended):
                self._busy[id(events)] = (events, [slot.staging for slot in self._slots])
            raise  # the queues are dropped: one may refuse all work after a failure
        finally:
            for slot in self._slots:
                slot.forget()
        if len(chunks) > 1:
            self._staging.give_back(queues)

    def _enqueue(
        self, chunks: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]], starts: Sequence[Start],
        queues: tuple[Any, Any], events: list[Any],
    ) -> None:  # fmt: skip
        import pyopencl as cl

        upload_queue, download_queue = queues
        waits: list[Any] = []
        if self._in_order:
            # What was put on the call's queue before comes before the copies, too.
            waits = [cl.enqueue_marker(self._queue)]
            self._queue.flush()
        may_read = False
        for index, ((source, target), start) in enumerate(zip(chunks, starts, strict=True)):
            slot = self._slots[index % len(self._slots)]
            slot.settle()
            if not source.flags.c_contiguous:
                if not may_read:
                    if waits:  # OpenCL takes no empty list
                        cl.wait_for_events(waits)
                    may_read = True
                source = slot.gather(source)
            into = target if target.flags.c_contiguous else slot.stage("out", target)
            free = slot.x_free
            slot.upload = cl.enqueue_copy(
                upload_queue, slot.x, source, is_blocking=False, wait_for=[*free, *([] if index else waits)] or None
            )
            events.append(slot.upload)
            y = self.buffers(index)[1]
            if self._keeps_outputs and y is not slot.x:
                for event in slot.downloads:
                    event.wait()
                events.append(cl.enqueue_copy(upload_queue, y, np.ascontiguousarray(target), is_blocking=True))
            upload_queue.flush()
            rotation = start([slot.upload, *slot.downloads])
            events.append(rotation)
            self._queue.flush()
            download = cl.enqueue_copy(download_queue, into, y, is_blocking=False, wait_for=[rotation])
            events.append(download)
            download_queue.flush()
            slot.downloads = [download]
            slot.x_free = [rotation, download] if y is slot.x else [rotation]
            slot.scatter = None if into is target else (target, into)


def tokens_at_once(view: TensorView, chunk_bytes: int) -> int:
    """Return how many tokens of a tensor make a chunk of at most that many bytes (at least one)."""
    _, _, heads, head_dim = view.shape
    return max(1, chunk_bytes // max(1, heads * head_dim * view.itemsize))
