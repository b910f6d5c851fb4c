"""`BoundCall`: the launches of a compiled call with memory and positions, ready to run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..arrays import Operand
from ..errors import DeviceError
from ..kernels.launch import Launch
from ..runtime import HOST_BUFFERS_KEPT, PAGE, QueueState, all_ended, keep, launch_error, runtimes
from .angle_sources import ArrayAngles, ConfigAngles, Positions, Tables, own_rows, real_of, repeated
from .host_buffers import HostBuffers, MemoryRange
from .transfer import Copies, Piece

if TYPE_CHECKING:
    from .compiled import CompiledCall, Step

AngleSource = ConfigAngles | ArrayAngles


class _MemoryArgument(NamedTuple):
    """One memory argument of a launch: its number, that of its offset, and what it covers.

    side: 2 * part for an input, 2 * part + 1 for an output. first, last: bytes that are touched, from element
    [0, 0, 0, 0] on. start: elements from there to where the chunk begins.
    """

    launch: int
    argument: int
    offset: int | None
    side: int
    first: int
    last: int
    start: int
    written: bool


class BoundCall:
    """The launches of a compiled call with kernel objects of their own. One thread at a time uses it."""

    def __init__(self, call: CompiledCall) -> None:
        self.call = call
        self.runtime = call.runtime
        self.launches = [Launch(step.program, step.spec) for step in call.steps if step.spec is not None]
        self._slots = [slot for k, step in enumerate(call.steps) for slot in _slots(call, k, step, self.launches[k])]
        self._offsets: dict[tuple[int, int | None], int] = {}
        self._positions: Positions | None = None
        self._source: Any = None
        self._placed_for: QueueState | None = None
        #: Tables that launches read, and the events of those that are being made.
        self._tables: list[Tables | None] = [None] * len(self.launches)
        self._ready: list[list[Any]] = [[] for _ in self.launches]
        self.must_wait = self._has_tables = False
        #: Per launch a buffer with positions, the queue that writes it, and what was written last.
        self._position_buffers: dict[int, tuple[Any, Any, Any]] = {}
        self._keep: list[Any] = []
        self._hosts: list[HostBuffers] = []
        self._copies: Copies | None = None
        #: Whether buffers over host memory have been made since the host last wrote there.
        self.fresh = True
        self._busy = self.runtime.busy
        #: Events of the last launches on OpenCL arrays.
        self.events: list[Any] = []
        #: The queue for which `launch_and_wait` is enough, or None.
        self.quick: QueueState | None = None
        self._quick_run: list[Callable[[], Any]]
        #: Numbers of launches whose positions are one scalar: (set a number, its argument, rows before the chunk).
        self._scalars: list[tuple[Callable[[int, Any], None], int, int]] = []
        self._scalar_only = call.numbers_only
        if self._scalar_only:
            for step, launch in zip(call.steps, self.launches, strict=True):
                number = launch.index("positions")
                assert number is not None
                self._scalars.append((launch.set_number, number, step.chunk.rows.start))
        #: `bind_addresses` without a look at whether there is such a way, or None.
        self.bind_quick = self._quick_binder()
        self._array_setters = [
            (
                launch.kernel.set_arg, slot.argument, launch.set_offset, slot.offset, slot.side,
                call.parts[slot.side // 2].x.itemsize, slot.start, (slot.launch, slot.offset),
            )
            for slot in self._slots
            for launch in [self.launches[slot.launch]]
        ]  # fmt: skip

    # -- memory ---------------------------------------------------------------------------------------------------

    def bind_addresses(self, addresses: Sequence[int]) -> bool:
        """Set the memory of host arrays by the addresses of their elements [0, 0, 0, 0], inputs and outputs in turn.

        With `CompiledCall.whole` and SVM, `pyopencl.SVM` objects will do as well.

        Returns False if these arrays need `bind`.
        """
        if self.bind_quick is None:
            return False
        self.bind_quick(addresses)
        return True

    def bind_arrays(self, arrays: Sequence[Any]) -> None:
        """Set the memory of OpenCL arrays, inputs and outputs in turn."""
        offsets = self._offsets
        for set_arg, argument, set_offset, offset, side, item, start, key in self._array_setters:
            array = arrays[side]
            set_arg(argument, array.base_data)
            where = array.offset
            if offsets.get(key) != where:
                set_offset(offset, where // item + start)
                offsets[key] = where

    def bind(self, queue: QueueState, operands: Sequence[tuple[Operand, Operand]]) -> None:
        """Set the memory of any arrays: (input, output) of each part, the same object in place."""
        self._hosts, self._copies, self.fresh, self.quick = [], None, True, None
        self._offsets.clear()
        call = self.call
        touched: dict[int, list[MemoryRange]] = {}
        for step in call.steps:
            for one in (step, step.second):
                if one is None or call.parts[one.part].access in ("device", "copied"):
                    continue
                x, out = operands[one.part]
                views = [(o, o.view.part(one.chunk.batches, one.chunk.tokens)) for o in (x, out)]
                touched[id(one)] = [MemoryRange.of(o, v, o is out) for o, v in (views[1:] if x is out else views)]
        if any(part.access == "mapped" for part in call.parts):
            # The driver may keep a copy for each buffer, so no two may overlap: those of other launches neither.
            self._hosts = [HostBuffers(self.runtime, queue.queue, [r for ranges in touched.values() for r in ranges])]
            groups = dict.fromkeys(touched, self._hosts[0])
        else:
            groups = {key: HostBuffers(self.runtime, queue.queue, ranges) for key, ranges in touched.items()}
            self._hosts = list(groups.values())
        for slot in self._slots:
            launch, step = self.launches[slot.launch], call.steps[slot.launch]
            number, is_output = divmod(slot.side, 2)
            operand = operands[number][is_output]
            one = step if step.part == number else step.second
            assert one is not None
            access = call.parts[number].access
            if access == "copied":
                continue
            if access == "device":
                memory: Any = operand.array.base_data
                where = operand.view.offset + slot.start
            else:
                view = operand.view.part(one.chunk.batches, one.chunk.tokens)
                memory, placed = groups[id(one)].place(operand, view)
                where = placed.offset
            launch.kernel.set_arg(slot.argument, memory)
            launch.set_offset(slot.offset, where)
            self._keep.append(memory)
        if call.copied:
            steps = call.steps[-call.copied :]
            self._copies = Copies(
                self.runtime, queue.queue, [Piece(*operands[step.part], step.chunk) for step in steps],
                keeps_outputs=not call.writes_all,
            )  # fmt: skip
            for k, launch in enumerate(self.launches[-call.copied :]):
                (x_buffer, _), (y_buffer, _) = self._copies.bound(k)
                launch.bind({"x": x_buffer, "y": y_buffer})
                for name in ("x_offset", "y_offset"):
                    for number in launch.indices(name):
                        launch.set_offset(number, 0)

    def _quick_binder(self) -> Callable[[Sequence[int]], None] | None:
        accesses = {part.access for part in self.call.parts if part.x.size}
        if accesses == {"svm"}:
            return self._svm_binder()
        if accesses == {"direct"}:
            return self._direct_binder()
        return None

    def _svm_binder(self) -> Callable[[Sequence[int]], None]:
        import pyopencl as cl

        svm = cl.SVM
        setters = []
        for slot in self._slots:
            launch = self.launches[slot.launch]
            view = self.call.parts[slot.side // 2].x
            # The pointer is that of the lowest byte that is touched.
            launch.set_offset(slot.offset, slot.start - slot.first // view.itemsize)
            memory = ctypes.c_ubyte * (slot.last - slot.first)
            setters.append((launch.kernel.set_arg, slot.argument, slot.side, slot.first, memory.from_address))

        def bind(addresses: Sequence[int]) -> None:
            for set_arg, argument, side, first, at in setters:
                memory = addresses[side]
                set_arg(argument, svm(at(memory + first)) if type(memory) is int else memory)

        return bind

    def _direct_binder(self) -> Callable[[Sequence[int]], None] | None:
        import pyopencl as cl

        context, flags = self.runtime.context, cl.mem_flags
        buffer_of = cl.Buffer
        offsets, parts = self._offsets, self.call.parts
        known, lock = self.runtime.host_buffers, self.runtime.lock
        setters = []
        for slot in self._slots:
            access = (flags.READ_WRITE if slot.written else flags.READ_ONLY) | flags.USE_HOST_PTR
            item = self.call.parts[slot.side // 2].x.itemsize
            # Whole pages; and one more if the memory begins late in its first page.
            size = -(-(slot.last - slot.first) // PAGE) * PAGE
            types = [ctypes.c_ubyte * size, ctypes.c_ubyte * (size + PAGE)]
            launch = self.launches[slot.launch]
            setters.append((slot, launch.kernel.set_arg, launch.set_offset, access, item, size, types))

        def bind(addresses: Sequence[int]) -> None:
            kept = []
            for slot, set_arg, set_offset, access, item, size, types in setters:
                address: Any = addresses[slot.side]
                if type(address) is not int:
                    address = address.svm_ptr
                first, last = address + slot.first, address + slot.last
                low = first & -PAGE
                if not (slot.side % 2 and parts[slot.side // 2].in_place):
                    # In place the output comes right behind the input, and has the same buffer: two are undefined.
                    memory = types[low + size < last]
                    key = low, memory, access
                    buffer = known.get(key)
                    if buffer is None:
                        buffer = buffer_of(context, access, hostbuf=memory.from_address(low))
                        with lock:
                            keep(known, key, buffer, HOST_BUFFERS_KEPT)
                    kept.append(buffer)
                set_arg(slot.argument, buffer)
                where = (first - low - slot.first) // item + slot.start
                place = slot.launch, slot.offset
                if offsets.get(place) != where:
                    set_offset(slot.offset, where)
                    offsets[place] = where
            # OpenCL keeps no reference to buffers given as arguments before the launch.
            self._keep = kept

        return bind

    def release(self) -> None:
        """Keep no memory alive: tables, and buffers over the caller's arrays. OpenCL keeps what launches still use."""
        if self._keep:
            self._keep = []
            self._offsets.clear()
        self._hosts = []
        if self._has_tables:
            self._tables = [None] * len(self.launches)
            self._positions, self._has_tables = None, False

    # -- positions ------------------------------------------------------------------------------------------------

    def place(self, queue: QueueState, source: AngleSource, positions: Positions) -> None:
        """Set positions, or the tables made from them. They must have the form that the call was compiled for."""
        before = self._positions
        placed = source is self._source and queue is self._placed_for
        if placed and source.constant and before is not None and _same(before.value, positions.value):
            return
        if placed and self._scalar_only:
            for set_number, number, start in self._scalars:
                set_number(number, np.int64(positions.value + start))
            self._positions = positions
            return
        self._positions = None  # until all launches have the new ones
        for k, (step, launch) in enumerate(zip(self.call.steps, self.launches, strict=True)):
            rows = step.chunk.rows
            real = real_of(step.problem.dtype)
            if step.variant.angles == "fused":
                assert isinstance(source, ConfigAngles)
                value = positions.value
                if positions.form.counting:
                    numbers: Any = np.int64(value + rows.start)
                else:
                    numbers = self._upload(k, queue, np.ascontiguousarray(value[:, rows]))
                launch.bind(
                    {"positions": numbers, "rows": np.int32(rows.stop - rows.start)}
                    | ({} if source is self._source else self._constants(source, real))
                )
            elif step.variant.angles == "positions":
                launch.bind({"positions": self._upload(k, queue, own_rows(positions, rows, launch.spec))})
            else:
                made_for = repeated(positions, rows, launch.spec.row_repeats)
                tables = source.tables(self.runtime, queue.queue, *made_for, real)
                launch.bind({"cosine": tables.cosine, "sine": tables.sine})
                self._tables[k] = tables
                self._has_tables = True
                self._ready[k] = [tables.ready] if tables.ready is not None else []
        self.must_wait = any(self._ready)
        self._source, self._positions, self._placed_for = source, positions, queue

    @property
    def unplaced(self) -> bool:
        """Whether positions have to be set again, because tables could not be made."""
        return self._positions is None

    def settle_tables(self) -> None:
        """Forget the events of tables that are made by now; raises `DeviceError` where that failed."""
        for ready in self._ready:
            for event in ready:
                status = event.command_execution_status
                if status < 0:
                    self._positions = None
                    self.runtime.forget_tables()
                    raise DeviceError(f"device {self.runtime.info.name!r}: the kernel of cos and sin failed ({status})")
            ready[:] = [event for event in ready if event.command_execution_status]
        self.must_wait = any(self._ready)

    def place_first(self, queue: QueueState, source: Any, first: int) -> None:
        """Set positions that count up from `first`, all within ±2**31."""
        if self._scalar_only and source is self._source and queue is self._placed_for:
            for set_number, number, start in self._scalars:
                set_number(number, np.int64(first + start))
            self._positions = None
        else:
            self.place(queue, source, Positions(self.call.form, first))

    def _constants(self, source: ConfigAngles, real: Any) -> dict[str, Any]:
        constants = source.constants(self.runtime)
        self._keep_constants = constants
        return {**constants, "magnitude": source.magnitude(real)}

    def _upload(self, k: int, queue: QueueState, rows: Any) -> Any:
        """Return a buffer with positions: the same one each time, written in the order of the queue."""
        import pyopencl as cl

        known = self._position_buffers.get(k)
        if known is None or known[0].size < rows.nbytes or known[1] != queue.queue or not queue.in_order:
            flags = cl.mem_flags
            buffer = cl.Buffer(self.runtime.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=rows)
            self._position_buffers[k] = (buffer, queue.queue, None)
            return buffer
        # Behind the launches that still read the earlier ones.
        self._position_buffers[k] = (*known[:2], rows)
        runtimes.hold(cl.enqueue_copy(queue.queue, known[0], rows, is_blocking=False))
        return known[0]

    # -- running --------------------------------------------------------------------------------------------------

    def run_on_host(self, queue: QueueState, memory: Any) -> None:
        """Launch, and wait until the results are there; `memory`: what must stay alive until then."""
        if self.must_wait:
            self.settle_tables()
        if self.quick is not queue or self.must_wait:
            events = self.enqueue(queue, None, memory)
            self.finish(queue, events, memory)
            if self._copies is None and all(host.direct for host in self._hosts):
                self.launch_without_transfers(queue)
            return
        self.launch_and_wait(memory)

    def launch_without_transfers(self, queue: QueueState) -> None:
        """Let `launch_and_wait` be enough on a queue: the device reaches the host memory in place."""
        self._quick_run = [launch.bound(queue.queue) for launch in self.launches]
        self.quick = queue

    def launch_and_wait(self, memory: Any) -> None:
        """Launch and wait: the quick form of `run_on_host`, for calls that need nothing else."""
        enqueues = self._quick_run
        busy, key = self._busy, id(memory)
        busy[key] = memory
        try:
            if len(enqueues) == 1:
                enqueues[0]().wait()  # raises where the launch has failed, as `finish` does not
            else:
                for event in [enqueue() for enqueue in enqueues]:
                    event.wait()
        except BaseException as error:
            assert self.quick is not None
            if all_ended(self.quick.queue):
                busy.pop(key, None)
            failed = launch_error(self.runtime.info.name, error)
            if failed is not None:
                raise failed from error
            raise
        busy.pop(key, None)

    def enqueue(self, queue: QueueState, waits: Sequence[Any] | None, memory: Any = None) -> list[Any]:
        """Put all launches but those of copied tensors on the queue; returns their events."""
        with self.runtime.using(queue.queue, [memory]):
            if not self.fresh:
                for host in self._hosts:
                    host.to_device(queue.queue)
            self.fresh = False
            direct = len(self.launches) - self.call.copied
            return [
                launch.enqueue(queue.queue, [*(waits or ()), *self._ready[k]] or None)
                for k, launch in enumerate(self.launches[:direct])
            ]

    def launch_on_arrays(
        self, queue: QueueState, waits: Sequence[Any] | None, outputs: Sequence[Any], arrays: Sequence[Any]
    ) -> None:
        """Put all launches on the queue and leave their events with the OpenCL arrays, as `leave_events` does."""
        if self.must_wait:
            self.settle_tables()
        events = [
            launch.enqueue(queue.queue, [*waits, *ready] if waits else ready or None)
            for launch, ready in zip(self.launches, self._ready, strict=True)
        ]
        self.leave_events(queue, waits, events, outputs, arrays)

    def leave_events(
        self, queue: QueueState, waits: Sequence[Any] | None, events: list[Any], outputs: Sequence[Any],
        arrays: Sequence[Any],
    ) -> None:  # fmt: skip
        """Give each output (None for a host array) the events of the launches.

        Every launch waited for the array's earlier events, so they need not be kept. arrays: all OpenCL arrays of the
        call. Inputs get the events, too, if their queue does not keep what comes later behind these launches: what
        writes an input has to wait for its reads. Parts of one array share their list of events.
        """
        self.events = events
        unordered = queue.unordered(arrays)
        if unordered:
            self.runtime.leave_events(unordered, events, waits or ())
        known = {id(array.events) for array in unordered}
        for array in outputs:
            if array is not None and id(array.events) not in known:
                array.events[:] = events

    def finish(self, queue: QueueState, events: list[Any], memory: Any) -> None:
        """Wait for the launches, run those of copied tensors, and bring the results to the host."""
        with self.runtime.using(queue.queue, [memory]):
            if self._copies is not None:
                first = len(self.launches) - self.call.copied
                starts = [self._start(queue, k) for k in range(first, len(self.launches))]
                self._copies.run(starts, [])
            for host in self._hosts:
                host.to_host(queue.queue, events)
            if any(part.access in ("svm", "direct") for part in self.call.parts):
                queue.queue.finish()
            for event in events:
                event.wait()  # has ended; raises if it failed
        if self.must_wait:
            self.settle_tables()

    def _start(self, queue: QueueState, k: int) -> Callable[[list[Any]], Any]:
        launch = self.launches[k]
        return lambda waits: launch.enqueue(queue.queue, [*waits, *self._ready[k]] or None)


def _same(a: Any, b: Any) -> bool:
    if a is b:
        # An array may have been changed in place; positions are copies of their own, so this cannot be one.
        return True
    if isinstance(a, int) or isinstance(b, int):
        return bool(a == b) if isinstance(a, int) and isinstance(b, int) else False
    return a.shape == b.shape and bool(np.array_equal(a, b))


def _slots(call: CompiledCall, number: int, step: Step, launch: Launch) -> list[_MemoryArgument]:
    """Return the memory arguments of a launch."""
    out = []
    for one, names in ((step, ("x", "y")), (step.second, ("x2", "y2"))):
        if one is None:
            continue
        part = call.parts[one.part]
        for is_output, (name, whole) in enumerate(zip(names, (part.x, part.y), strict=True)):
            arguments, offsets = launch.indices(name), launch.indices(f"{name}_offset")
            view = whole.part(one.chunk.batches, one.chunk.tokens)
            first, last = (place * view.itemsize for place in view.span)
            written = bool(is_output) or part.in_place
            side = 2 * one.part + is_output
            for argument, offset in zip_longest(arguments, offsets):
                assert argument is not None
                out.append(_MemoryArgument(number, argument, offset, side, first, last, view.offset, written))
    return out
