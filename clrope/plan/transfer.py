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

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Operand
from ..host_memory import empty
from ..layout import TensorView
from ..runtime import Runtime, all_ended, runtimes
from .chunks import Chunk

if TYPE_CHECKING:
    import pyopencl

#: Bytes of a tensor that travel at once: several of them in a large tensor, each worth its commands.
COPY_CHUNK_BYTES = 8 << 20
#: Chunks on their way at the same time: one in, one being rotated, one out.
SLOTS = 3

#: Puts a rotation on the plan's queue, after the events given.
Start = Callable[[list[Any]], Any]


class Piece(NamedTuple):
    """A chunk of one tensor, from host memory to host memory."""

    x: Operand
    out: Operand
    chunk: Chunk

    @property
    def view(self) -> TensorView:
        """The piece in its slot's buffers, dense."""
        batches, tokens = self.chunk.batches, self.chunk.tokens
        shape = (batches.stop - batches.start, tokens.stop - tokens.start, *self.x.view.shape[2:])
        return TensorView.dense(shape, self.x.view.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.view.size * self.x.view.itemsize


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

    def y_of(self, piece: Piece) -> Any:
        """Return the buffer of the piece's result."""
        return self.x if piece.out is piece.x else self.y

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
    """The copied pieces of a plan with buffers and queues of their own. One thread at a time runs it."""

    def __init__(
        self, runtime: Runtime, queue: pyopencl.CommandQueue, pieces: Sequence[Piece], *, keeps_outputs: bool = False
    ) -> None:
        self._queue = queue
        #: Whether outputs are copied in, too: the launches may leave some of their elements as they were.
        self._keeps_outputs = keeps_outputs
        self._in_order = runtime.queue_state(queue).in_order
        self._pieces = list(pieces)
        self._pool = runtime.staging
        self._buffers: list[Any] = []
        self._queues: list[Any] = []
        largest = max(piece.nbytes for piece in pieces)
        apart = any(piece.out is not piece.x for piece in pieces)
        self._slots: list[_Slot] = []
        for _ in range(min(SLOTS, len(pieces))):
            x = self._buffer(largest)
            self._slots.append(_Slot(x, self._buffer(largest) if apart else x, largest))

    def _buffer(self, size: int) -> Any:
        buffer = self._pool.buffer(size)
        self._buffers.append(buffer)
        return buffer

    def __del__(self) -> None:
        # Absent if the constructor failed.
        if "_queues" in self.__dict__:
            self._pool.give_back(self._buffers, self._queues)

    def bound(self, index: int) -> tuple[tuple[Any, TensorView], tuple[Any, TensorView]]:
        """Return the buffers and views that rotation `index` reads and writes."""
        slot, piece = self._slots[index % len(self._slots)], self._pieces[index]
        return (slot.x, piece.view), (slot.y_of(piece), piece.view)

    def run(self, starts: Sequence[Start], waits: Sequence[Any]) -> None:
        """Copy every piece in, start its rotation, copy it out; return when all results are in host memory.

        starts: per piece. waits: events that come before any byte is read. Whatever is raised is raised only after
        all that was enqueued has ended; the outputs of pieces that were not finished are then undefined.
        """
        import pyopencl as cl

        # An event of a copy keeps its host memory, and would wait for it when dropped, so all are kept to the end.
        events: list[Any] = []
        try:
            self._enqueue(starts, list(waits), events)
            for slot in self._slots:
                slot.settle()
            cl.wait_for_events(events)
        except BaseException:
            for event in events:
                with suppress(cl.Error):  # of what failed, and of all that waited for it, only the end matters
                    event.wait()
            ended = [all_ended(queue) for queue in (self._queue, *self._queues)]
            if not all(ended):
                runtimes.busy[id(events)] = (events, [slot.staging for slot in self._slots])
            self._queues.clear()  # a queue may refuse all work after a failure
            raise
        finally:
            for slot in self._slots:
                slot.forget()

    def _enqueue(self, starts: Sequence[Start], waits: list[Any], events: list[Any]) -> None:
        import pyopencl as cl

        upload_queue, download_queue = self._side_queues()
        if self._in_order:
            # What was put on the plan's queue before comes before the copies, too.
            waits = [*waits, cl.enqueue_marker(self._queue)]
            self._queue.flush()
        may_read = False
        for index, (piece, start) in enumerate(zip(self._pieces, starts, strict=True)):
            slot = self._slots[index % len(self._slots)]
            source, target = (_bits(operand, piece.chunk) for operand in (piece.x, piece.out))
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
            y = slot.y_of(piece)
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

    def _side_queues(self) -> tuple[Any, Any]:
        if len(self._pieces) == 1:
            return self._queue, self._queue  # nothing to overlap with
        if not self._queues:
            self._queues = [self._pool.queue(), self._pool.queue()]
        return self._queues[0], self._queues[1]


def tokens_at_once(view: TensorView, chunk_bytes: int) -> int:
    """Return how many tokens of a tensor make a chunk of at most that many bytes (at least one)."""
    _, _, heads, head_dim = view.shape
    return max(1, chunk_bytes // max(1, heads * head_dim * view.itemsize))


def _bits(operand: Operand, chunk: Chunk) -> npt.NDArray[Any]:
    """Return the chunk of a host operand in the order b, s, n, d, as bits (bfloat16 has no buffer protocol)."""
    assert operand.host is not None
    array = operand.host.view(np.dtype(f"u{operand.view.itemsize}"))
    letters = operand.layout
    if "b" not in letters:
        array, letters = array[None], "b" + letters
    ordered = array.transpose([letters.index(c) for c in "bsnd"])
    return ordered[chunk.batches, chunk.tokens]
