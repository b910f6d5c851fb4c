"""Device buffers and queues for copied tensors, used again by the next plan: making either anew costs more than a call.

One `Pool` per context and device. A plan takes what it needs and gives it back when it is dropped; by then all of its
work is done, because its runs return only after that.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyopencl

#: Bytes of buffers in no one's use that are kept at most.
MOST_KEPT = 256 << 20
_MOST_QUEUES = 8


class Pool:
    """Buffers (PyOpenCL's `MemoryPool`, bounded) and in-order queues of one device in one context."""

    def __init__(self, context: pyopencl.Context, device: pyopencl.Device) -> None:
        import pyopencl as cl
        import pyopencl.tools

        # Reentrant: a plan can be dropped, by the garbage collector, while its own thread holds the lock.
        self._lock = threading.RLock()
        self._queues: list[Any] = []
        # Intel's queues do not keep their context. Not the object that is the key in `_pools`: that would never go.
        self._context = cl.Context.from_int_ptr(context.int_ptr, retain=True)
        self._own = cl.CommandQueue(self._context, device)
        self._memory = pyopencl.tools.MemoryPool(pyopencl.tools.ImmediateAllocator(self._own))
        self._largest = int(device.max_mem_alloc_size)
        #: Buffers made so far, which is fewer than were handed out.
        self.made = 0

    @property
    def kept(self) -> int:
        """Bytes of buffers that no one uses."""
        return int(self._memory.managed_bytes - self._memory.active_bytes) if self._memory.held_blocks else 0

    def buffer(self, size: int) -> pyopencl.MemoryObjectHolder:
        """Return a buffer of at least `size` bytes with undefined contents, for `give_back`."""
        import pyopencl as cl

        with self._lock:
            memory = self._memory
            if memory.alloc_size(memory.bin_number(size)) > self._largest:
                # The pool rounds sizes up, which the device does not allow for this one.
                self.made += 1
                return cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size)
            before = memory.managed_bytes
            buffer = memory.allocate(size)
            if memory.managed_bytes != before:
                self.made += 1
                # Trying out that the memory is there may undefine its contents: not while somebody copies into it.
                self._own.finish()
            return buffer

    def queue(self) -> pyopencl.CommandQueue:
        """Return an in-order queue that nobody else uses, for `give_back`."""
        import pyopencl as cl

        with self._lock:
            return self._queues.pop() if self._queues else cl.CommandQueue(self._context, self._own.device)

    def give_back(self, buffers: list[Any], queues: list[Any]) -> None:
        """Take back what is in no use any more: nothing that touches the buffers, nothing on the queues."""
        with self._lock:
            for buffer in buffers:
                buffer.release()
            if self.kept > MOST_KEPT:
                self._memory.free_held()
            self._queues += queues
            del self._queues[_MOST_QUEUES:]


_pools: weakref.WeakKeyDictionary[Any, dict[int, Pool]] = weakref.WeakKeyDictionary()
_pools_lock = threading.Lock()


def pool_of(queue: pyopencl.CommandQueue) -> Pool:
    """Return the pool of a queue's context and device, the same one for as long as the context is known."""
    context, device = queue.context, queue.device
    with _pools_lock:
        pools = _pools.setdefault(context, {})
        if device.int_ptr not in pools:
            pools[device.int_ptr] = Pool(context, device)
        return pools[device.int_ptr]
