"""`Runner`: the launches of a call with kernel objects of their own, bound to memory and positions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..kernels.launch import Launch, int64_bytes
from ..norm import Norm
from .events import all_ended, pending, wait_on_host
from .filled_tables import Filler
from .memory import KINDS, Access, Argument, Mapped
from .runtime import runtimes, upload
from .sources import CallerTables, ConfigAngles, int64_rows, own_rows, real_of
from .transfer import Copied

if TYPE_CHECKING:
    from .call import Call


#: How names of arguments end that are of a launch's first, second and third tensor.
SUFFIXES = ("", "2", "3")


class Runner:
    """The launches of a call, bound to memory and positions. One thread at a time uses it.

    After an error or an interrupt it is dropped: nobody has to find out what is set and what is not.
    """

    def __init__(self, call: Call) -> None:
        self.call, self._state, self._queue = call, call.state, call.state.queue
        self.launches = [Launch(step.program, step.spec) for step in call.steps if step.spec is not None]
        self._fillers = [Filler(call.state, call.source, table, self.launches) for table in call.tables]
        #: Events that each launch waits for besides the call's: its tables'.
        self._ready: list[list[Any]] = [[] for _ in self.launches]
        self._direct = self.launches[: len(self.launches) - call.copied]
        self._value: Any = None
        #: The norms that are bound, and what must stay alive for them.
        self._norms: tuple[Norm | None, ...] = ()
        self._scales: list[Any] = []
        self._slots: Any = None
        #: Of the last launches on OpenCL arrays.
        self._events: list[Any] = []
        #: Arguments that neither memory nor positions change.
        self._constants: list[Any] = []
        for step, launch in zip(call.steps, self.launches, strict=True):
            if step.variant.angles == "fused":
                real = real_of(step.problem.dtype)
                self._constants.append(call.source.table_arguments(call.state.runtime, step.chunk.rows, real))
                launch.bind(self._constants[-1])
        #: Positions that are a number of each launch, and those that are rows in a buffer.
        self._scalars = [
            (launch.set_number, launch.indices(step.number)[0], call.source.first_row(step.chunk.rows))
            for step, launch in zip(call.steps, self.launches, strict=True) if step.number is not None
        ]  # fmt: skip
        self._rows = [
            (step, launch) for step, launch in zip(call.steps, self.launches, strict=True)
            if step.number is None and launch.index("positions") is not None
        ]  # fmt: skip
        self._uploads: list[Any] = []
        by_kind: dict[str, list[Argument]] = {}
        for access, argument in self._arguments():
            by_kind.setdefault(access, []).append(argument)
        memory = [KINDS[access](call.state, arguments) for access, arguments in by_kind.items()]
        self._mapped: list[Mapped] = [kind for kind in memory if isinstance(kind, Mapped)]
        self._copied = Copied(call, self.launches) if call.copied else None
        self._binders = [kind.bind for kind in memory] + ([self._copied.bind] if self._copied else [])
        #: Nothing but launches and a wait: no maps, no copies, no tables.
        self.plain = not (self._mapped or call.copied or call.tables)
        self._enqueues = [launch.bound(self._queue) for launch in self._direct]

    def _arguments(self) -> list[tuple[Access, Argument]]:
        """Return the memory arguments of all launches but those of copied tensors, with how each is reached."""
        call, out = self.call, []
        for step, launch in zip(call.steps, self._direct, strict=False):
            for one, suffix in zip((step, *step.others), SUFFIXES, strict=False):
                part = call.parts[one.part]
                for is_output, (side_name, whole) in enumerate((("x", part.x), ("y", part.y))):
                    name, view = side_name + suffix, whole
                    if part.cache is None or (part.cache != side_name and not part.in_place):
                        view = whole.part(one.chunk.batches, one.chunk.tokens)
                    written = bool(is_output) or part.in_place
                    side = 2 * one.part + (is_output if not part.in_place else 0)
                    for number, offset in zip_longest(launch.indices(name), launch.indices(f"{name}_offset")):
                        made = bool(is_output) and part.make is not None
                        out.append((part.access, Argument(launch, number, offset, side, view, written, made)))
        if isinstance(call.source, CallerTables):
            readers = [
                (launch, step.chunk.rows, "")
                for step, launch in zip(call.steps, self.launches, strict=True) if step.reads_callers
            ]  # fmt: skip
            readers += [(f.launch, t.rows, "_table") for t, f in zip(call.tables, self._fillers, strict=True)]
            for launch, rows, suffix in readers:
                for k, name in enumerate(("cosine", "sine")):
                    number, offset = launch.index(name + suffix), launch.index(f"{name}_offset")
                    assert number is not None
                    view, side = call.source.part(k, rows), 2 * len(call.parts) + k
                    out.append((call.tables_access, Argument(launch, number, offset, side, view, False)))
        return out

    def bind(self, memories: Sequence[Any]) -> None:
        """Set the memory of every side: inputs and outputs in turn, then tables."""
        for bind in self._binders:
            bind(memories)

    def place(self, value: Any) -> None:
        """Set the positions: an int from which they count, or int64[axes, rows]; as the call's form says."""
        known = self._value
        if value == known if type(value) is int else value is known or np.array_equal(value, known):
            return  # rows are copies of their own, which nobody changes
        self._value = None  # until all launches have the new one
        for set_number, number, start in self._scalars:
            set_number(number, int64_bytes(value + start))
        if self._rows:
            uploads = []  # OpenCL keeps no reference to buffers given as arguments before the launch
            for step, launch in self._rows:
                rows = step.chunk.rows
                own = int64_rows(value, rows) if step.variant.angles == "fused" else own_rows(value, rows, launch.spec)
                uploads.append(upload(self._state.runtime.context, own))
                launch.bind({"positions": uploads[-1]})
            self._uploads = uploads
        self._value = value

    def bind_norms(self, norms: tuple[Norm | None, ...]) -> None:
        """Set the weights of the norms, one for each tensor of the call."""
        if norms == self._norms:
            return
        self._norms = ()
        scales = []
        for step, launch in zip(self.call.steps, self.launches, strict=True):
            for one, suffix in zip((step, *step.others), SUFFIXES, strict=False):
                norm = norms[one.part]
                if norm is not None:
                    scales.append(self._state.runtime.scale_of(norm, real_of(step.problem.dtype)))
                    launch.bind({f"scale{suffix}": scales[-1]})
        self._scales, self._norms = scales, norms

    def bind_slots(self, slots: npt.NDArray[np.int64]) -> None:
        """Set where the tokens' rows of a KV cache are."""
        import pyopencl as cl

        runtime = self._state.runtime
        # A call on host arrays has ended before the numbers go.
        there = self.call.on_host and runtime.host_access == "svm"
        self._slots = cl.SVM(slots) if there else upload(runtime.context, slots)
        for launch in self.launches:
            for k in launch.indices("slots"):
                launch.kernel.set_arg(k, self._slots)

    def keep_bound(self) -> None:
        """Be bound for a later run, before which the host may write; its tables are filled now."""
        for kind in self._mapped:
            kind.fresh = False
        if isinstance(self.call.source, ConfigAngles):
            self._fill_tables(None)

    def release(self) -> None:
        """Give back tables, and device memory that host arrays were copied to."""
        for filler in self._fillers:
            filler.release()
        for kind in self._mapped:
            kind.release()
        if self._copied is not None:
            self._copied.release()

    def _fill_tables(self, waits: Sequence[Any] | None) -> None:
        for table, filler in zip(self.call.tables, self._fillers, strict=True):
            ready = filler.fill(self._value, waits)
            for number in table.users:
                self._ready[number] = ready

    def enqueue(self, waits: Sequence[Any] | None) -> list[Any]:
        """Put all launches but those of copied tensors on the queue; returns their events."""
        if not waits and not self._fillers:
            return [enqueue() for enqueue in self._enqueues]
        self._fill_tables(waits)
        return [
            launch.enqueue(self._queue, [*(waits or ()), *ready] or None)
            for launch, ready in zip(self._direct, self._ready, strict=False)
        ]

    def run_on_host(self, keep: Any) -> None:
        """Launch on host arrays and wait until the results are there. keep: what holds their memory.

        Nothing reads or writes the memory any more when this returns or raises. Where no way to wait works, it is kept
        for good.
        """
        try:
            if self.plain:
                if len(self._enqueues) == 1:
                    self._enqueues[0]().wait()  # raises where the launch has failed, as `finish` does not
                    return
                for event in [enqueue() for enqueue in self._enqueues]:
                    event.wait()
                return
            for kind in self._mapped:
                kind.before()
            self._finish(self.enqueue(None))
        except BaseException:
            if not all_ended(self._queue):
                runtimes.busy[id(keep)] = (keep, self)
            raise

    def _finish(self, events: list[Any]) -> None:
        """Wait for launches, run those of copied tensors, and bring the results to the host."""
        if self._copied is not None:
            self._copied.run(self._ready[len(self._direct) :])
        for kind in self._mapped:
            kind.after(events)
        for event in events:
            event.wait()  # raises if it failed

    def run_on_device(self, waits: Sequence[Any], arrays: Sequence[Any], written: Sequence[Any], keep: Any) -> None:
        """Launch on OpenCL arrays and leave the events with them; host arrays of the same call are waited for.

        arrays: all OpenCL arrays of the call. written: those that it writes. keep: what holds host arrays' memory.
        """
        state, on_device, queue, own = self._state, self.call.on_device, self._queue, self._events
        in_order, before = state.in_order, list(waits)
        #: Those whose own queue does not keep later commands behind the launches.
        unordered = []
        for array in arrays:
            events = array.events
            # This queue's own last launches come before in any case.
            if events and not (in_order and events == own):
                before += events
            if not in_order or (array.queue is not queue and array.queue != queue):
                unordered.append(array)
        if unordered:
            before += state.before_writing(written)
        if before:
            before = pending(before)
            state.check_waits(before)
        if before and not on_device:
            wait_on_host(before)  # host memory is read by more than launches: copies and maps
            before = []
        try:
            for kind in self._mapped:
                kind.before()
            events = self.enqueue(before)
            self._leave(events, before, unordered, written)
            if not on_device:
                self._finish(events)
        except BaseException:
            self._abandon(arrays, keep)
            raise

    def _leave(self, events: list[Any], waited: list[Any], unordered: Sequence[Any], written: Sequence[Any]) -> None:
        """Give each written array the events of the launches, and those arrays that their queue does not keep in order.

        Every launch waited for the array's earlier events, so they need not be kept. What writes an unordered input has
        to wait for its reads. Parts of one array share their list of events.
        """
        if unordered:
            known = [*waited, *events]
            with self._state.runtime.lock:  # other threads may read the same arrays
                for array in unordered:
                    # What has ended leaves the list, which would grow otherwise.
                    others = [e for e in array.events if e not in known and e.command_execution_status]
                    array.events[:] = [*others, *events]
            shared = {id(array.events) for array in unordered}
            written = [array for array in written if id(array.events) not in shared]
        for array in written:
            array.events[:] = events
        self._events = events

    def _abandon(self, arrays: Sequence[Any], keep: Any) -> None:
        """After an error or interrupt: let what comes later wait for whatever was put on the queue."""
        import pyopencl as cl

        if not self.call.on_device:
            if not all_ended(self._queue):
                runtimes.busy[id(self)] = (arrays, keep, self)
            return
        try:
            marker = cl.enqueue_marker(self._queue)
            self._queue.flush()
        except cl.Error:
            return  # the queue takes nothing any more
        for array in arrays:
            array.events.append(marker)
