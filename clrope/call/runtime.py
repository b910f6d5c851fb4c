"""What is kept for one device in one context: queues, programs, calls, tables of cos and sin, memory pools.

`runtime_for(selector)` and `runtimes.state_of(selector)` return it. Runtimes of the package's own contexts live as long
as the process; of callers' contexts the last few are kept. Tables here are plain dictionaries: a reader sees what was
there before or after a change, whatever interrupts it.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from ..device import DeviceInfo, device
from ..device.discovery import FORKED, check_fork
from ..environ import variable
from ..errors import DeviceError
from ..kernels.build import build, includes_files
from ..kernels.launch import LaunchSpec
from ..norm import Norm
from .events import all_ended, complete, launch_error, out_of_memory
from .table_sets import TableSets
from .transfer import Staging

if TYPE_CHECKING:
    import pyopencl

    from ..device.select import Selector

#: The smallest page of any machine: no byte of it is out of reach if one is within.
PAGE = 4096
#: Bytes of a result below which nothing limits the pool.
SMALL_RESULT = 1 << 20
#: Bytes of dropped results on a queue that are kept at most, besides what is being allocated.
RESULT_BYTES_KEPT = 256 << 20
CALLS_KEPT = 512
PROGRAMS_KEPT = 256
HOST_BUFFERS_KEPT = 1024
CONSTANTS_KEPT = 256
SCALES_KEPT = 1024
QUEUES_KEPT = 32
FOREIGN_RUNTIMES_KEPT = 8
TARGETS_KEPT = 64
#: Property of a queue whose commands the calling thread runs (cl_intel_exec_by_local_thread).
_LOCAL_THREAD = 1 << 31


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
        # PoCL's `basic` device runs commands at once, whatever they are to wait for.
        name, platform = runtime.info.name, runtime.info.platform
        self._cannot_wait = platform == "Portable Computing Language" and name.startswith("basic")

    def check_waits(self, events: Sequence[Any]) -> None:
        """Raise `DeviceError` for events to wait for on a device that does not wait."""
        if self._cannot_wait and events:
            raise DeviceError(
                f"device {self.runtime.info.name!r}: it does not wait for events ({len(events)} have not ended); wait "
                "for them first, or use PoCL's pthread device"
            )

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


class Runtime:
    """All OpenCL objects of one device in one context.

    info:      the device.
    context:   the context; `cl_device` its device.
    calls:     calls by signature: the one table of what `rope`, `rotate` and plans run.
    tables:    tables of cos and sin in no use, for the calls that read some.
    constants: what depends on a configuration alone, uploaded once. scales: of norms, likewise.
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
        self.tables = TableSets()
        self.constants: dict[Any, Any] = {}
        self.scales: dict[tuple[Norm, str], pyopencl.Buffer] = {}
        self.host_buffers: dict[Any, Any] = {}
        self._programs: dict[tuple[str, tuple[str, ...], str | None], pyopencl.Program] = {}
        self._queues: dict[int, QueueState] = {}
        self._queue: pyopencl.CommandQueue | None = None
        self._local: QueueState | None = None
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
    def local_state(self) -> QueueState:
        """A queue for calls so small that handing them to other threads takes longer; else the usual one.

        Intel's runtime runs the commands of such a queue in the thread that enqueues them, without letting go of
        Python's lock: never give it one that has to wait for an event.
        """
        if self._local is None:
            import pyopencl as cl

            state = self.queue_state(self.queue)
            if "cl_intel_exec_by_local_thread" in self.cl_device.extensions:
                with suppress(cl.Error):
                    queue = cl.CommandQueue(self.context, self.cl_device, properties=_LOCAL_THREAD)  # type: ignore[arg-type]
                    state = self.queue_state(queue)
            self._local = state
        return self._local

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
        """Wait for all that a block has enqueued if it raises; where no way to wait works, keep host memory for good.

        Raises `DeviceError` for an error of OpenCL.
        """
        try:
            yield
        except BaseException as error:
            if not all_ended(queue):
                runtimes.busy[id(memory)] = memory
            failed = launch_error(self.info.name, error)
            if failed is not None:
                raise failed from error
            raise

    def remember(self, key: Any, call: Any) -> None:
        """Keep a call, and of all the last `CALLS_KEPT`."""
        with self.lock:
            keep(self.calls, key, call, CALLS_KEPT)

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
                others = [e for e in array.events if e not in known and not complete(e)]
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

    def scale_of(self, norm: Norm, real: str) -> pyopencl.Buffer:
        """Return the scale of a norm for a computing type, uploaded once."""
        import pyopencl as cl

        found = self.scales.get((norm, real))
        if found is None:
            flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
            found = cl.Buffer(self.context, flags, hostbuf=norm.scale(np.float64 if real == "f64" else np.float32))
            with self.lock:
                keep(self.scales, (norm, real), found, SCALES_KEPT)
        return found

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
        self.foreign: dict[tuple[int, int], Runtime] = {}
        #: Queues of OpenCL arrays that calls came with. Each is kept, so that its address is no other one's.
        self.queues: dict[int, QueueState] = {}
        #: The queue of each selector that a call came with.
        self.targets: dict[Any, tuple[QueueState, Any]] = {}
        #: Host memory that commands may still use, because no way to wait for them worked: it is never freed.
        self.busy: dict[int, Any] = {}

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

    def state_of(self, selector: Any) -> QueueState:
        """Return the queue of a selector of `clrope.device`; None and names are looked up once."""
        if selector is None:
            key: Any = (variable(b"CLROPE_DEVICE"), variable(b"PYOPENCL_CTX"))
        elif type(selector) is str:
            key = selector
        elif type(selector) is DeviceInfo:
            key = id(selector)  # its hash takes as long as a small call
        else:
            runtime = runtime_for(selector)
            return runtime.queue_state(queue_for(selector))
        found = self.targets.get(key)
        if found is None:
            runtime = runtime_for(selector)
            found = runtime.queue_state(runtime.queue), selector  # kept, so that its identity is no other one's
            with self.lock:
                keep(self.targets, key, found, TARGETS_KEPT)
        return found[0]

    def of_queue(self, queue: pyopencl.CommandQueue) -> QueueState:
        """Return what is kept for the queue of an OpenCL array."""
        state = self.queues.get(queue.int_ptr)
        if state is None:
            state = self.of_context(queue.context, queue.device).queue_state(queue)
            with self.lock:
                keep(self.queues, queue.int_ptr, state, QUEUES_KEPT)
        return state

    def of_context(self, context: pyopencl.Context, cl_device: pyopencl.Device) -> Runtime:
        """Return the runtime of a device in a caller's context, or in the package's own."""
        key = (context.int_ptr, cl_device.int_ptr)
        with self.lock:
            found = self.foreign.get(key)
            if found is None:
                info = device(cl_device)
                own = self.contexts.get(key[1])
                ours = own is not None and own.int_ptr == key[0]
                found = self.of_device(info) if ours else Runtime(context, info)
                keep(self.foreign, key, found, FOREIGN_RUNTIMES_KEPT)
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
