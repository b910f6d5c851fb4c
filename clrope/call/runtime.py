"""What is kept for one device in one context: queues, programs, calls, tables of cos and sin, memory pools.

`runtime_for(selector)` and `runtimes.state_of(selector)` return it. Runtimes of the package's own contexts live as long
as the process; of callers' contexts the last few are kept. Tables here are plain dictionaries: a reader sees what was
there before or after a change, whatever interrupts it.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..device import DeviceInfo, device, devices
from ..device.discovery import FORKED, check_fork
from ..environ import variable
from ..errors import DeviceError
from ..kernels.build import build, includes_files
from ..kernels.launch import LaunchSpec
from ..norm import Norm
from .events import all_ended, opencl_errors, out_of_memory

if TYPE_CHECKING:
    import pyopencl

    from ..device.select import Selector
    from .filled_tables import CosSinTable

#: The smallest page of any machine: no byte of it is out of reach if one is within.
PAGE = 4096
#: Bytes below which nothing limits a pool.
SMALL_BUFFER = 1 << 20
#: Bytes of buffers in no use that a pool keeps at most, besides what is being allocated.
POOL_BYTES_KEPT = 256 << 20
#: Bytes of cos and sin in no use that are kept at most, and the number of their tables.
TABLE_BYTES_KEPT = 256 << 20
TABLES_KEPT = 32
#: Other things that are kept: at most so many.
CALLS_KEPT, PROGRAMS_KEPT, CONSTANTS_KEPT, HOST_BUFFERS_KEPT = 512, 256, 1024, 1024
QUEUES_KEPT, COPY_QUEUES_KEPT, FOREIGN_RUNTIMES_KEPT, TARGETS_KEPT = 32, 8, 8, 64
#: Bytes of input up to which the calling thread runs a call on Intel's runtime. Bytes of input that one thread rotates
#: per second on PoCL, where the limit depends on how long other threads take to wake.
LOCAL_BYTES, ONE_THREAD_BYTES_PER_S = 256 << 10, 10 << 30
#: Property of a queue whose commands the calling thread runs (cl_intel_exec_by_local_thread).
_LOCAL_THREAD = 1 << 31


class Kept(dict[Any, Any]):
    """A dictionary of the last `most` values; the oldest go. Looked up at every call, by `dict.get`."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._lock, self._most = threading.RLock(), most

    def made(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the value of a key, made if there is none."""
        value = self.get(key)
        if value is None:
            with self._lock:
                value = self.get(key)
                if value is None:
                    value = make()
                    self.put(key, value)
        return value

    def put(self, key: Any, value: Any) -> None:
        """Keep a value."""
        with self._lock:
            while len(self) >= self._most:
                self.pop(next(iter(self)), None)
            self[key] = value


class BufferPool:
    """Device memory that is used again. A buffer goes back when it is dropped: after the last command with it, or on
    an in-order queue, where later commands come later."""

    def __init__(self, context: pyopencl.Context, cl_device: pyopencl.Device) -> None:
        import pyopencl.tools

        self._context, self._device = context, cl_device
        with warnings.catch_warnings():
            # It warns of allocators that do not touch the memory. The others put a write on a queue.
            warnings.simplefilter("ignore", UserWarning)
            self.memory = pyopencl.tools.MemoryPool(pyopencl.tools.DeferredAllocator(context))
        self.largest = int(cl_device.max_mem_alloc_size)

    def allocate(self, nbytes: int, kept: bool = True) -> Any:
        """Return memory of undefined contents, of its own unless `kept`; raises `DeviceError` naming the bytes."""
        try:
            return self.memory.allocate(nbytes) if kept and nbytes < SMALL_BUFFER else self._large(nbytes, kept)
        except Exception as error:
            raise out_of_memory(nbytes, self._device.name, error) from error

    def _large(self, nbytes: int, kept: bool) -> Any:
        import pyopencl as cl

        pool = self.memory
        # The pool rounds sizes up, which the device may not allow for this one.
        if not kept or pool.alloc_size(pool.bin_number(nbytes)) > self.largest:
            return cl.Buffer(self._context, cl.mem_flags.READ_WRITE, nbytes)
        if pool.managed_bytes - pool.active_bytes > POOL_BYTES_KEPT:
            pool.free_held()
        return pool.allocate(nbytes)


class QueueState:
    """What is known of one command queue: its runtime, its order, and a pool that results on it come from."""

    def __init__(self, runtime: Runtime, queue: pyopencl.CommandQueue) -> None:
        self.runtime = runtime
        self.queue = queue
        self.in_order = _in_order(queue)
        self.results = BufferPool(queue.context, queue.device)

    def check_waits(self, events: Sequence[Any]) -> None:
        """Raise `DeviceError` for events of this context to wait for, on a device that does not wait."""
        own = self.runtime.info.runs_at_once and sum(event.context == self.queue.context for event in events)
        if own:
            raise DeviceError(
                f"device {self.runtime.info.name!r}: it does not wait for events ({own} have not ended); wait "
                "for them first, or use PoCL's pthread device"
            )

    def before_writing(self, arrays: Sequence[Any]) -> list[Any]:
        """Return events of all work so far on other in-order queues that OpenCL arrays are on.

        What reads an array on its own queue leaves no event with it, as later commands there come later. One out of
        order leaves its event.
        """
        import pyopencl as cl

        queues = {array.queue.int_ptr: array.queue for array in arrays if array.queue is not None}
        queues.pop(self.queue.int_ptr, None)
        events = []
        for queue in filter(_in_order, queues.values()):
            events.append(cl.enqueue_marker(queue))
            queue.flush()  # or another queue might wait for it in vain
        return events

    def allocate(self, nbytes: int) -> Any:
        """Return memory for a result on this queue; raises `DeviceError` naming the bytes."""
        return self.results.allocate(nbytes, self.in_order)


def _in_order(queue: pyopencl.CommandQueue) -> bool:
    import pyopencl as cl

    return not queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE


class Runtime:
    """All OpenCL objects of one device in one context.

    info:      the device.
    context:   the context; `cl_device` its device.
    calls:     calls by signature: the one table of what `rope`, `rotate` and plans run.
    tables:    tables of cos and sin in no use, the oldest first, for the calls that read some.
    constants: what depends on a configuration alone, or on a norm, uploaded once.
    host_buffers: buffers over host memory that is the device's own ('direct'), by address and size. A buffer owns no
               memory, and is used again when an array comes at its address: making one takes PoCL 10 us.
    copy_queues: in-order queues in no use, for tensors that are copied to the device.
    """

    def __init__(self, context: pyopencl.Context, info: DeviceInfo) -> None:
        import pyopencl as cl

        # Not the caller's own object: this one keeps no other Python object alive.
        self.context = cl.Context.from_int_ptr(context.int_ptr, retain=True)
        self.info = info
        self.cl_device = info.cl_device
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.calls = Kept(CALLS_KEPT)
        self.tables: list[CosSinTable] = []
        self.constants = Kept(CONSTANTS_KEPT)
        self.host_buffers = Kept(HOST_BUFFERS_KEPT)
        self.copy_queues: deque[Any] = deque(maxlen=COPY_QUEUES_KEPT)
        self._programs = Kept(PROGRAMS_KEPT)

    @property
    def queue(self) -> pyopencl.CommandQueue:
        """The in-order queue that host arrays are rotated on."""
        return self.state.queue

    @cached_property
    def state(self) -> QueueState:
        """What is known of `queue`."""
        import pyopencl as cl

        try:
            return QueueState(self, cl.CommandQueue(self.context, self.cl_device))
        except cl.Error as error:
            raise DeviceError(f"device {self.info.name!r}: no command queue could be made: {error}") from error

    @cached_property
    def local_state(self) -> tuple[QueueState, int]:
        """A queue for calls so small that handing them to other threads takes longer, and their most bytes of input.

        Its commands run in the thread that enqueues them, without letting go of Python's lock: never give it one that
        has to wait for an event. Intel's runtime has such queues. PoCL has the device `basic`, if POCL_DEVICES asks for
        it next to `pthread`.
        """
        import pyopencl as cl

        if "cl_intel_exec_by_local_thread" in self.cl_device.extensions:
            with suppress(cl.Error):
                queue = cl.CommandQueue(self.context, self.cl_device, properties=_LOCAL_THREAD)  # type: ignore[arg-type]
                return QueueState(self, queue), LOCAL_BYTES
        info = self.info
        if runtimes.own.get(info) is self and not info.runs_at_once:  # a caller's context is used as it is
            for basic in devices():
                if basic.runs_at_once and basic.platform_index == info.platform_index and basic.health.ok:
                    return runtimes.of_device(basic).state, self._bytes_for_one_thread()
        return self.state, 0

    def _bytes_for_one_thread(self) -> int:
        """Return the bytes of input that one thread rotates as fast as all of them, which have to wake first."""
        import pyopencl as cl

        buffer = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, PAGE)
        seconds = []
        for _ in range(9):
            start = time.perf_counter()
            cl.enqueue_fill_buffer(self.queue, buffer, np.zeros(1, np.uint8), 0, PAGE).wait()
            seconds.append(time.perf_counter() - start)
        threads = self.info.compute_units
        return int(statistics.median(seconds) * ONE_THREAD_BYTES_PER_S * threads / max(1, threads - 1))

    @cached_property
    def staging(self) -> BufferPool:
        """Buffers for tensors that are copied to the device."""
        return BufferPool(self.context, self.cl_device)

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
        with opencl_errors(self.info.name):
            try:
                yield
            except BaseException:
                if not all_ended(queue):
                    runtimes.busy[id(memory)] = memory
                raise

    def program(self, spec: LaunchSpec) -> pyopencl.Program:
        """Return the program of a launch, built unless it is one of the last `PROGRAMS_KEPT`. Raises `BuildError`."""
        key = spec.file, spec.options, spec.source
        if spec.source is not None and includes_files(spec.source):
            self._programs.pop(key, None)
        program: pyopencl.Program = self._programs.made(
            key, lambda: build(self.context, self.cl_device, spec.text, spec.options, keep=True)
        )
        return program

    def scale_of(self, norm: Norm, real: str) -> pyopencl.Buffer:
        """Return the scale of a norm for a computing type, uploaded once."""
        dtype = np.float64 if real == "f64" else np.float32
        scale: pyopencl.Buffer = self.constants.made((norm, real), lambda: upload(self.context, norm.scale(dtype)))
        return scale

    @cached_property
    def host_access(self) -> str:
        """How kernels reach host memory: 'svm', 'direct', 'mapped' (all without a copy), or 'copied'.

        svm: any pointer of the host is one of the device (fine-grained system SVM). direct: buffers over host memory
        are that memory, tried out once. mapped: such buffers have to be mapped before and after.
        """
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


def upload(context: pyopencl.Context, array: npt.NDArray[Any]) -> pyopencl.Buffer:
    """Return a read-only buffer with a copy of an array in C order."""
    import pyopencl as cl

    flags = cl.mem_flags
    return cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=np.ascontiguousarray(array))


class Registry:
    """The runtimes of this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        #: Runtimes in the package's own contexts, and in callers' ones by (context, device).
        self.own: dict[DeviceInfo, Runtime] = {}
        self.foreign = Kept(FOREIGN_RUNTIMES_KEPT)
        #: Queues of OpenCL arrays that calls came with. Each is kept, so that its address is no other one's.
        self.queues = Kept(QUEUES_KEPT)
        #: The queue of each selector that a call came with.
        self.targets = Kept(TARGETS_KEPT)
        #: Host memory that commands may still use, because no way to wait for them worked: it is never freed.
        self.busy: dict[int, Any] = {}

    def of_device(self, info: DeviceInfo) -> Runtime:
        """Return the runtime of a device in the package's own context for it."""
        import pyopencl as cl

        with self.lock:
            if info not in self.own:
                try:
                    self.own[info] = Runtime(cl.Context([info.cl_device]), info)
                except cl.Error as error:
                    raise DeviceError(f"device {info.name!r}: no context could be made: {error}") from error
            return self.own[info]

    def of_context(self, context: pyopencl.Context, cl_device: pyopencl.Device) -> Runtime:
        """Return the runtime of a device in a caller's context, or in the package's own."""

        def new() -> Runtime:
            info = device(cl_device)
            own = self.own.get(info)
            return own if own is not None and own.context.int_ptr == context.int_ptr else Runtime(context, info)

        found: Runtime = self.foreign.made((context.int_ptr, cl_device.int_ptr), new)
        return found

    def of_queue(self, queue: pyopencl.CommandQueue) -> QueueState:
        """Return what is kept for a queue of the caller's."""
        found: QueueState | None = self.queues.get(queue.int_ptr)
        if found is None:
            runtime = self.of_context(queue.context, queue.device)
            found = self.queues.made(queue.int_ptr, lambda: QueueState(runtime, queue))
        return found

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
            return self.of_queue(selector) if hasattr(selector, "flush") else runtime.state
        found = self.targets.get(key)
        if found is None:  # the selector is kept, so that its identity is no other one's
            found = self.targets.made(key, lambda: (runtime_for(selector).state, selector))
        return found[0]  # type: ignore[no-any-return]


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

    return selector if isinstance(selector, cl.Context) else runtime_for(selector).context


def queue_for(selector: Selector = None) -> pyopencl.CommandQueue:
    """Return the in-order queue of a device (the same one each time), one in the caller's context, or the given one."""
    import pyopencl as cl

    check_fork()
    return selector if isinstance(selector, cl.CommandQueue) else runtime_for(selector).queue
