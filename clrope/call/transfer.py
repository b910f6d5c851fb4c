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

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..host_memory import empty
from ..kernels.launch import Launch
from ..layout import TensorView
from .events import all_ended
from .memory import host_view
from .runtime import runtimes

if TYPE_CHECKING:
    from .call import Call

#: Bytes of a tensor that travel at once: several of them in a large tensor, each worth its commands.
COPY_CHUNK_BYTES = 8 << 20
#: Chunks on their way at the same time: one in, one being rotated, one out.
SLOTS = 3


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


class Copied:
    """The copied chunks of a call, the last of its launches, and device memory for them."""

    def __init__(self, call: Call, launches: Sequence[Launch]) -> None:
        self._call, self._state = call, call.state
        self._steps, self._launches = call.steps[-call.copied :], launches[-call.copied :]
        self._nbytes = max(step.problem.x.nbytes for step in self._steps)
        for launch in self._launches:
            for number in (*launch.indices("x_offset"), *launch.indices("y_offset")):
                launch.set_offset(number, 0)
        #: Device memory for chunks; none between calls.
        self._buffers: list[tuple[Any, Any]] = []
        #: Input and output of each chunk, as bits.
        self._pieces: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []

    def _allocate(self) -> None:
        pool = self._state.runtime.staging
        in_place = all(step.problem.in_place for step in self._steps)
        buffers = []
        for _ in self._steps[:SLOTS]:
            x = pool.allocate(self._nbytes)
            buffers.append((x, x if in_place else pool.allocate(self._nbytes)))
        for k, (step, launch) in enumerate(zip(self._steps, self._launches, strict=True)):
            x, y = buffers[k % len(buffers)]
            launch.bind({"x": x, "y": x if step.problem.in_place else y})
        self._buffers = buffers

    def release(self) -> None:
        """Give the device memory back."""
        self._buffers = []

    def bind(self, memories: Sequence[Any]) -> None:
        """Take the host memory of every side."""
        if not self._buffers:
            self._allocate()
        self._pieces = []
        for step in self._steps:
            part, chunk = self._call.parts[step.part], step.chunk
            x, y = (
                host_view(memories[2 * step.part + side].svm_ptr, view.part(chunk.batches, chunk.tokens))
                for side, view in enumerate((part.x, part.y))
            )
            self._pieces.append((x, x if part.in_place else y))

    def run(self, ready: Sequence[list[Any]]) -> None:
        """Copy every chunk in, rotate it, copy it out; return when all results are in host memory.

        ready: what each rotation waits for besides. Whatever is raised is raised only after all that was enqueued has
        ended; the outputs of chunks that were not finished are then undefined.
        """
        import pyopencl as cl

        # An event of a copy keeps its host memory, and would wait for it when dropped, so all are kept to the end.
        events: list[Any] = []
        runtime, queues = self._state.runtime, [self._state.queue] * 2
        if len(self._pieces) > 1:  # else there is nothing to overlap
            queues = []
            while len(queues) < 2:
                with suppress(IndexError):
                    queues.append(runtime.copy_queues.pop())
                    continue
                queues.append(cl.CommandQueue(runtime.context, runtime.cl_device))
        slots = [_Slot(x, y, self._nbytes) for x, y in self._buffers]
        try:
            self._enqueue(slots, ready, queues, events)
            for slot in slots:
                slot.settle()
            cl.wait_for_events(events)
        except BaseException:
            for event in events:
                with suppress(cl.Error):  # of what failed, and of all that waited for it, only the end matters
                    event.wait()
            ended = [all_ended(queue) for queue in (self._state.queue, *queues)]
            if not all(ended):
                runtimes.busy[id(events)] = (events, slots)
            raise  # the queues are dropped: one may refuse all work after a failure
        if len(self._pieces) > 1:
            runtime.copy_queues.extend(queues)

    def _enqueue(
        self, slots: Sequence[_Slot], ready: Sequence[list[Any]], queues: Sequence[Any], events: list[Any]
    ) -> None:
        import pyopencl as cl

        (upload_queue, download_queue), queue = queues, self._state.queue
        keeps_outputs = not all(step.variant.implementation.writes_all for step in self._call.steps)
        waits: list[Any] = []
        if self._state.in_order:
            # What was put on the call's queue before comes before the copies, too.
            waits = [cl.enqueue_marker(queue)]
            queue.flush()
        may_read = False
        for index, (source, target) in enumerate(self._pieces):
            slot = slots[index % len(slots)]
            y = slot.x if self._steps[index].problem.in_place else slot.y
            slot.settle()
            if not source.flags.c_contiguous:
                if not may_read:
                    if waits:  # OpenCL takes no empty list
                        cl.wait_for_events(waits)
                    may_read = True
                source = slot.gather(source)
            into = target if target.flags.c_contiguous else slot.stage("out", target)
            slot.upload = cl.enqueue_copy(
                upload_queue, slot.x, source, is_blocking=False,
                wait_for=[*slot.x_free, *([] if index else waits)] or None,
            )  # fmt: skip
            events.append(slot.upload)
            if keeps_outputs and y is not slot.x:
                for event in slot.downloads:
                    event.wait()
                events.append(cl.enqueue_copy(upload_queue, y, np.ascontiguousarray(target), is_blocking=True))
            upload_queue.flush()
            rotation = self._launches[index].enqueue(queue, [slot.upload, *slot.downloads, *ready[index]])
            events.append(rotation)
            queue.flush()
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
