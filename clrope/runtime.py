"""What is kept for one device in one context: queue, programs, compiled calls, tables, memory pools.

`runtime_for(selector)` and `runtime_of(context, device)` return it. Runtimes of the package's own contexts live as long
as the process; of callers' contexts the last few are kept.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import cachetools
import numpy as np

from .device import DeviceInfo, device
from .device.discovery import FORKED, check_fork
from .errors import DeviceError, ShapeError, reading, shown
from .kernels.binaries import includes_files
from .kernels.build import build
from .kernels.launch import LaunchSpec

if TYPE_CHECKING:
    import pyopencl

    from .device.select import Selector

#: The smallest page of any machine: no byte of it is out of reach if one is within.
PAGE = 4096
#: Bytes of cos and sin that are kept for later calls at the same positions.
TABLE_BYTES_KEPT = 256 << 20
TABLES_KEPT = 8
#: Bytes of a result below which nothing limits the pool.
SMALL_RESULT = 1 << 20
#: Bytes of dropped results on a queue that are kept at most, besides what is being allocated.
RESULT_BYTES_KEPT = 256 << 20
#: Bytes of staging buffers in no use that are kept at most.
STAGING_BYTES_KEPT = 256 << 20
CALLS_KEPT = 512
PROGRAMS_KEPT = 256
HOST_BUFFERS_KEPT = 1024
OPERATIONS_KEPT = 256
CONSTANTS_KEPT = 256
QUEUES_KEPT = 8
ARRAY_QUEUES_KEPT = 32
COPIES_KEPT = 16
FOREIGN_RUNTIMES_KEPT = 8


class QueueState:
    """What is known of one command queue: its runtime, its order, and a pool that results on it come from."""

    def __init__(self, runtime: Runtime, queue: pyopencl.CommandQueue) -> None:
        import pyopencl as cl
        import pyopencl.tools

        self.runtime = runtime
        self.queue = queue
        self.in_order = not queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        # A block goes back to the pool when its array is dropped, which is safe only if later commands come later.
        with warnings.catch_warnings():
            # It warns of allocators that do not touch the memory. The others put a write on the queue, or wait.
            warnings.simplefilter("ignore", UserWarning)
            self.results = pyopencl.tools.MemoryPool(pyopencl.tools.DeferredAllocator(queue.context))
        self._largest = int(queue.device.max_mem_alloc_size)

    def unordered(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the OpenCL arrays whose own queue does not keep later commands behind those on this queue."""
        queue = self.queue
        if not self.in_order:
            return list(arrays)
        return [array for array in arrays if array.queue is not queue and array.queue != queue]

    def before_writing(self, arrays: Sequence[Any]) -> list[Any]:
        """Return events of all work so far on other in-order queues that OpenCL arrays are on.

        What reads an array on its own queue leaves no event with it, as later commands there come later. One out of
        order leaves its event.
        """
        import pyopencl as cl

        queues = {array.queue.int_ptr: array.queue for array in self.unordered(arrays) if array.queue is not None}
        queues.pop(self.queue.int_ptr, None)
        events = []
        for queue in queues.values():
            if not queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE:
                events.append(cl.enqueue_marker(queue))
                queue.flush()  # or another queue might wait for it in vain
        return events

    def rounded(self, nbytes: int) -> int:
        """Return the bytes that the pool would take for a result; 0 if the device does not give so much."""
        size = int(self.results.alloc_size(self.results.bin_number(nbytes)))
        return size if size <= self._largest else 0

    def allocate(self, nbytes: int) -> Any:
        """Return memory for a result on this queue; raises `DeviceError` naming the bytes."""
        import pyopencl as cl

        try:
            pool = self.results
            if nbytes < SMALL_RESULT and self.in_order:
                return pool.allocate(nbytes)
            if not self.in_order or not self.rounded(nbytes):
                return cl.Buffer(self.queue.context, cl.mem_flags.READ_WRITE, nbytes)
            if pool.held_blocks and pool.managed_bytes - pool.active_bytes > RESULT_BYTES_KEPT:
                pool.free_held()
            return pool.allocate(nbytes)
        except cl.Error as error:
            raise out_of_memory(nbytes, self.queue.device.name, error) from error


class Staging:
    """Device buffers and queues for copied tensors, used again by the next plan.

    The caller gives them back after all work on them has ended.
    """

    def __init__(self, context: pyopencl.Context, cl_device: pyopencl.Device) -> None:
        import pyopencl as cl
        import pyopencl.tools

        # Reentrant: a plan can be dropped, by the garbage collector, while its own thread holds the lock.
        self._lock = threading.RLock()
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
        """Return a buffer of at least `nbytes` bytes with undefined contents, for `give_back`."""
        import pyopencl as cl

        with self._lock:
            memory = self._memory
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

    def queue(self) -> pyopencl.CommandQueue:
        """Return an in-order queue in no other use, for `give_back`."""
        import pyopencl as cl

        with self._lock:
            return self._queues.pop() if self._queues else cl.CommandQueue(self._context, self._device)

    def give_back(self, buffers: list[Any], queues: list[Any]) -> None:
        """Take back what is in no use any more."""
        with self._lock:
            for buffer in buffers:
                buffer.release()
            if self.kept > STAGING_BYTES_KEPT:
                self._memory.free_held()
            self._queues += queues
            del self._queues[QUEUES_KEPT:]


def all_ended(queue: pyopencl.CommandQueue) -> bool:
    """Wait for all that a queue was given; False where no way to wait works, so that a kernel may still run."""
    import pyopencl as cl

    for wait in (queue.finish, lambda: cl.enqueue_marker(queue).wait()):
        with suppress(cl.Error):
            wait()
            return True
    return False


class Runtime:
    """All OpenCL objects of one device in one context.

    info:      the device.
    context:   the context; `cl_device` its device.
    calls:     compiled calls by signature.
    tables:    cos and sin of the last positions, by configuration and positions.
    constants: what depends on a configuration alone, uploaded once.
    host_buffers: buffers over host memory that is the device's own ('direct'), by address and size. A buffer owns no
               memory, and is used again when an array comes at its address: making one takes PoCL 10 us.
    """

    def __init__(self, context: pyopencl.Context, info: DeviceInfo) -> None:
        import pyopencl as cl

        # Not the caller's own object: this one keeps no other Python object alive.
        self.context = cl.Context.from_int_ptr(context.int_ptr, retain=True)
        self.info = info
        self.cl_device = info.cl_device
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.calls: dict[Any, Any] = {}
        self.tables: cachetools.LRUCache[Any, Any] = cachetools.LRUCache(TABLE_BYTES_KEPT, getsizeof=lambda t: t.nbytes)
        self.constants: cachetools.LRUCache[Any, Any] = cachetools.LRUCache(CONSTANTS_KEPT)
        self.host_buffers: dict[Any, Any] = {}
        self.busy = runtimes.busy
        self._programs: dict[tuple[str, tuple[str, ...], str | None], pyopencl.Program] = {}
        self._queues: dict[int, QueueState] = {}
        self._queue: pyopencl.CommandQueue | None = None
        self._staging: Staging | None = None
        self._host_access: str | None = None

    @property
    def queue(self) -> pyopencl.CommandQueue:
        """The in-order queue that host arrays are rotated on."""
        if self._queue is None:
            import pyopencl as cl

            with self.lock:
                if self._queue is None:
                    try:
                        self._queue = cl.CommandQueue(self.context, self.cl_device)
                    except cl.Error as error:
                        raise DeviceError(
                            f"device {self.info.name!r}: no command queue could be made: {error}"
                        ) from error
        return self._queue

    @property
    def staging(self) -> Staging:
        """Buffers and queues for tensors that are copied to the device."""
        with self.lock:
            if self._staging is None:
                self._staging = Staging(self.context, self.cl_device)
            return self._staging

    def check(self) -> None:
        """Raise `DeviceError` in a process forked after this runtime was made."""
        if os.getpid() != self.pid:
            check_fork()
            raise DeviceError(FORKED)

    @contextmanager
    def using(self, queue: pyopencl.CommandQueue, memory: Any) -> Iterator[None]:
        """Keep host memory alive until all that a block enqueues has ended, however the block ends.

        Raises `DeviceError` for an error of OpenCL.
        """
        key = id(memory)
        self.busy[key] = memory
        try:
            yield
        except BaseException as error:
            # Where waiting fails, or is interrupted, too, the memory is kept for good rather than freed too early.
            if all_ended(queue):
                self.busy.pop(key, None)
            failed = launch_error(self.info.name, error)
            if failed is not None:
                raise failed from error
            raise
        self.busy.pop(key, None)

    def remember_call(self, key: Any, template: Any) -> None:
        """Keep a call template, and of all the last `CALLS_KEPT`."""
        with self.lock:
            keep(self.calls, key, template, CALLS_KEPT)

    def queue_state(self, queue: pyopencl.CommandQueue) -> QueueState:
        """Return what is kept for a queue of this context and device."""
        key = queue.int_ptr
        state = self._queues.get(key)
        if state is None:
            with self.lock:
                state = self._queues.get(key)
                if state is None:
                    state = QueueState(self, queue)
                    keep(self._queues, key, state, QUEUES_KEPT)
        return state

    def leave_events(self, arrays: Sequence[Any], events: Sequence[Any], waited: Sequence[Any]) -> None:
        """Let what comes later wait for launches that read or write OpenCL arrays, on a queue out of order.

        waited: what the launches waited for, so that nothing else has to. With what has ended it leaves the arrays'
        lists, which would grow otherwise. Several arrays may share one list.
        """
        known = [*waited, *events]
        with self.lock:  # other threads may read the same arrays
            for array in arrays:
                others = [e for e in array.events if e not in known and not _complete(e)]
                array.events[:] = [*others, *events]

    def program(self, spec: LaunchSpec) -> pyopencl.Program:
        """Return the program of a launch, built unless it is one of the last `PROGRAMS_KEPT`. Raises `BuildError`."""
        key = (spec.file, spec.options, spec.source)
        with self.lock:
            found = self._programs.get(key)
            if found is None or (spec.source is not None and includes_files(spec.source)):
                found = build(self.context, self.cl_device, spec.text, spec.options, keep=True)
                keep(self._programs, key, found, PROGRAMS_KEPT)
            return found

    def remember_table(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the tables of a key, made now unless they are kept."""
        with self.lock:
            found = self.tables.get(key)
            if found is None or (found.ready is not None and found.ready.command_execution_status < 0):
                found = make()
                if found.nbytes <= TABLE_BYTES_KEPT:
                    self.tables[key] = found
                while len(self.tables) > TABLES_KEPT:
                    self.tables.popitem()
            return found

    def forget_tables(self) -> None:
        """Drop the tables that are kept for later calls."""
        with self.lock:
            self.tables.clear()

    @property
    def host_access(self) -> str:
        """How kernels reach host memory: 'svm', 'direct', 'mapped' (all without a copy), or 'copied'.

        svm: any pointer of the host is one of the device (fine-grained system SVM). direct: buffers over host memory
        are that memory, tried out once. mapped: such buffers have to be mapped before and after.
        """
        if self._host_access is None:
            with self.lock:
                if self._host_access is None:
                    self._host_access = self._find_host_access()
        return self._host_access

    def _find_host_access(self) -> str:
        import pyopencl as cl

        if not self.info.host_unified:
            return "copied"
        # Only CPU devices are asked: others may keep caches that only mapping brings in line.
        if self.cl_device.type & cl.device_type.CPU:
            for access, tried in (("svm", self._try_svm), ("direct", self._try_direct)):
                with suppress(cl.Error, DeviceError):
                    if tried():
                        return access
        return "mapped"

    def _try_svm(self) -> bool:
        import pyopencl as cl

        if not self.cl_device.svm_capabilities & cl.device_svm_capabilities.FINE_GRAIN_SYSTEM:
            return False
        source, target = np.arange(1, 1025, dtype=np.int32), np.zeros(1024, np.int32)
        with self.using(self.queue, (source, target)):
            cl.enqueue_copy(self.queue, cl.SVM(target), cl.SVM(source))
            self.queue.finish()
        return bool(np.array_equal(source, target))

    def _try_direct(self) -> bool:
        import pyopencl as cl

        memory = np.zeros(3 * PAGE, np.uint8)
        start = -memory.ctypes.data % PAGE
        pages = memory[start : start + 2 * PAGE]
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        buffer = cl.Buffer(self.context, flags, hostbuf=pages)
        pages[:PAGE] = np.arange(PAGE) % 251 + 1  # after the buffer was made: a driver's copy would not have it
        with self.using(self.queue, (pages, buffer)):
            cl.enqueue_copy(self.queue, buffer, buffer, byte_count=PAGE, src_offset=0, dst_offset=PAGE)
            self.queue.finish()
        return bool(np.array_equal(pages[PAGE:], pages[:PAGE]))


class Registry:
    """The runtimes of this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.contexts: dict[int, pyopencl.Context] = {}
        #: Runtimes in the package's own contexts, and in callers' ones by (context, device).
        self.own: dict[DeviceInfo, Runtime] = {}
        self.foreign: cachetools.LRUCache[tuple[int, int], Runtime] = cachetools.LRUCache(FOREIGN_RUNTIMES_KEPT)
        #: Queues of OpenCL arrays that calls came with. Each is kept, so that its address is no other one's.
        self.queues: dict[int, QueueState] = {}
        #: The operations of the last calls of `clrope.rope`, by configuration and device.
        self.operations: dict[Any, Any] = {}
        #: Host memory that commands use which have begun and not yet ended, by its identity. What an exception
        #: interrupts stays here until the queue has been waited for, for good if that fails: none is freed in use.
        self.busy: dict[int, Any] = {}
        #: Events of copies from host memory: PyOpenCL waits for one that is dropped, and holds Python up meanwhile.
        self.copies: list[Any] = []
        self._most_copies = COPIES_KEPT

    def hold(self, copy: Any) -> None:
        """Keep the event of a copy from host memory until it has ended."""
        with self.lock:
            self.copies.append(copy)
            if len(self.copies) > self._most_copies:
                self.copies = [event for event in self.copies if _under_way(event)]
                self._most_copies = max(COPIES_KEPT, 2 * len(self.copies))

    def of_device(self, info: DeviceInfo) -> Runtime:
        """Return the runtime of a device in the package's own context for it."""
        found = self.own.get(info)
        if found is None:
            with self.lock:
                found = self.own.get(info)
                if found is None:
                    found = self.own[info] = Runtime(self.context(info), info)
        return found

    def context(self, info: DeviceInfo) -> pyopencl.Context:
        """Return the package's own context of a device."""
        import pyopencl as cl

        with self.lock:
            key = info.cl_device.int_ptr
            if key not in self.contexts:
                try:
                    self.contexts[key] = cl.Context([info.cl_device])
                except cl.Error as error:
                    raise DeviceError(f"device {info.name!r}: no context could be made: {error}") from error
            return self.contexts[key]

    def of_queue(self, queue: pyopencl.CommandQueue) -> QueueState:
        """Return what is kept for the queue of an OpenCL array."""
        state = self.queues.get(queue.int_ptr)
        if state is None:
            state = self.of_context(queue.context, queue.device).queue_state(queue)
            with self.lock:
                keep(self.queues, queue.int_ptr, state, ARRAY_QUEUES_KEPT)
        return state

    def of_context(self, context: pyopencl.Context, cl_device: pyopencl.Device) -> Runtime:
        """Return the runtime of a device in a caller's context, or in the package's own."""
        key = (context.int_ptr, cl_device.int_ptr)
        found = self.foreign.get(key)
        if found is None:
            with self.lock:
                found = self.foreign.get(key)
                if found is None:
                    info = device(cl_device)
                    own = self.contexts.get(key[1])
                    ours = own is not None and own.int_ptr == key[0]
                    found = self.foreign[key] = self.of_device(info) if ours else Runtime(context, info)
        return found


def keep(kept: dict[Any, Any], key: Any, value: Any, most: int) -> None:
    """Keep a value in a dictionary of at most `most`; the oldest go. Looked up at every call, by `dict.get`."""
    while len(kept) >= most:
        kept.pop(next(iter(kept)), None)
    kept[key] = value


runtimes = Registry()


def runtime_for(selector: Selector = None) -> Runtime:
    """Return the runtime of a device, context or queue; arguments and errors as for `clrope.device`."""
    import pyopencl as cl

    check_fork()
    if isinstance(selector, cl.CommandQueue):
        return runtimes.of_context(selector.context, selector.device)
    if isinstance(selector, cl.Context):
        return runtimes.of_context(selector, selector.devices[0])
    return runtimes.of_device(device(selector))


def context_for(selector: Selector = None) -> pyopencl.Context:
    """Return the context of a device (the same one each time), or the caller's own: of a queue, or as it is."""
    import pyopencl as cl

    check_fork()
    if isinstance(selector, cl.Context):
        return selector
    if isinstance(selector, cl.CommandQueue):
        return selector.context
    return runtimes.context(device(selector))


def queue_for(selector: Selector = None) -> pyopencl.CommandQueue:
    """Return the in-order queue of a device (the same one each time), one in the caller's context, or the given one."""
    import pyopencl as cl

    if isinstance(selector, cl.CommandQueue):
        check_fork()
        return selector
    return runtime_for(selector).queue


def check_events(events: Any) -> list[Any]:
    """Return the events of `wait_for` as a list; raises `ShapeError` for anything else."""
    import pyopencl as cl

    found = []
    with reading("wait_for", events):
        for event in events if isinstance(events, Iterable) else [None]:
            if not isinstance(event, cl.Event):
                raise ShapeError(f"wait_for: got {shown(events)}, a sequence of pyopencl.Event is needed")
            found.append(event)
    return found


def failed(events: Sequence[Any]) -> DeviceError | None:
    """Return the error of the first event that has failed."""
    for event in events:
        status = event.command_execution_status
        if status < 0:  # some drivers never end what waits for such an event
            return DeviceError(f"wait_for: an event has failed with status {status}, nothing was launched")
    return None


def _complete(event: Any) -> bool:
    """Whether an event's command has ended well; not where the driver does not say, so that it is waited for."""
    import pyopencl as cl

    try:
        return bool(event.command_execution_status == cl.command_execution_status.COMPLETE)
    except cl.Error:
        return False


def _under_way(event: Any) -> bool:
    """Whether an event's command has neither ended nor failed, or the driver does not say."""
    import pyopencl as cl

    try:
        return bool(event.command_execution_status > cl.command_execution_status.COMPLETE)
    except cl.Error:
        return True


def pending(events: Sequence[Any]) -> list[Any]:
    """Return the events that have not ended; raises `DeviceError` if one has failed."""
    out = []
    for event in events:
        status = event.command_execution_status
        if status < 0:
            raise failed(events) or DeviceError("wait_for: an event has failed")
        if status:
            out.append(event)
    return out


def wait_on_host(events: Sequence[Any]) -> None:
    """Wait for events; raise `DeviceError` if one has failed or fails."""
    import pyopencl as cl

    error = failed(events)
    if error is None:
        try:
            cl.wait_for_events(list(events))
        except cl.Error as cause:
            raise (failed(events) or DeviceError(f"wait_for: an event has failed: {cause}")) from cause
        error = failed(events)
    if error is not None:
        raise error


def launch_error(device_name: str, error: BaseException) -> DeviceError | None:
    """Return what to raise for an error of OpenCL; None for any other."""
    import pyopencl as cl

    return DeviceError(f"device {device_name!r}: OpenCL failed: {error}") if isinstance(error, cl.Error) else None


@contextmanager
def opencl_errors(device_name: str) -> Iterator[None]:
    """Raise `DeviceError` for an error of OpenCL inside."""
    try:
        yield
    except Exception as error:
        failed = launch_error(device_name, error)
        if failed is not None:
            raise failed from error
        raise


def out_of_memory(nbytes: int, device_name: str, error: Exception) -> DeviceError:
    """Return the error for memory that a device does not give."""
    return DeviceError(f"device {device_name.strip()!r}: {nbytes} bytes of memory could not be allocated: {error}")
