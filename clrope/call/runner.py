"""`Runner`: the launches of a call with kernel objects of their own, bound to memory and positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..kernels.launch import Launch, int64_bytes
from ..norm import Norm
from .events import all_ended, launch_error, pending, wait_on_host
from .memory import KINDS, Access, Argument, Mapped, address_of, host_view
from .runtime import runtimes
from .sources import CallerTables, ConfigAngles, int64_rows, own_rows, real_of, upload
from .table_sets import TableSet
from .transfer import Copies

if TYPE_CHECKING:
    from .call import Call, FilledTable


#: How names of arguments end that are of a launch's first, second and third tensor.
SUFFIXES = ("", "2", "3")


class Runner:
    """The launches of a call, bound to memory and positions. One thread at a time uses it.

    After an error or an interrupt it is dropped: nobody has to find out what is set and what is not.
    """

    def __init__(self, call: Call) -> None:
        self.call, self._state = call, call.state
        runtime, self._queue = call.state.runtime, call.state.queue
        self._device_name = runtime.info.name
        self.launches = [Launch(step.program, step.spec) for step in call.steps if step.spec is not None]
        self._fillers = [Launch(table.program, table.spec) for table in call.tables]
        self._sets: list[TableSet | None] = [None] * len(call.tables)
        self._bound_sets: list[TableSet | None] = [None] * len(call.tables)
        #: Events that each launch waits for besides the call's: its tables'.
        self._ready: list[list[Any]] = [[] for _ in self.launches]
        self._direct = self.launches[: len(self.launches) - call.copied]
        self._value: Any = None
        self._numbers_only = call.numbers_only
        #: The norms that are bound, and what must stay alive for them.
        self._norms: tuple[Norm | None, ...] = ()
        self._scales: list[Any] = []
        self._slots: Any = None
        #: Of the last launches on OpenCL arrays.
        self._events: list[Any] = []
        self._uploads: list[Any] = []
        self._constants = self._bind_constants()
        self._scalars = [
            (launch.set_number, launch.indices(step.number)[0], call.source.first_row(step.chunk.rows))
            for step, launch in zip(call.steps, self.launches, strict=True) if step.number is not None
        ]  # fmt: skip
        by_kind: dict[str, list[Argument]] = {}
        for access, argument in self._arguments():
            by_kind.setdefault(access, []).append(argument)
        self._memory = [KINDS[access](call.state, arguments) for access, arguments in by_kind.items()]
        self._mapped: list[Mapped] = [kind for kind in self._memory if isinstance(kind, Mapped)]
        self._binders = [kind.bind for kind in self._memory]
        self._copies: Copies | None = None
        self._pieces: list[tuple[Any, Any]] = []
        #: Nothing but launches and a wait: no maps, no copies, no tables.
        self.plain = not (self._mapped or call.copied or call.tables)
        self._enqueues = [launch.bound(self._queue) for launch in self._direct]

    def _bind_constants(self) -> list[Any]:
        """Set the arguments that neither memory nor positions change; returns what must stay alive."""
        kept: list[Any] = []
        source, runtime = self.call.source, self._state.runtime
        for step, launch in zip(self.call.steps, self.launches, strict=True):
            if step.variant.angles == "fused":
                assert isinstance(source, ConfigAngles)
                rows = step.chunk.rows
                constants = source.constants(runtime, real_of(step.problem.dtype))
                launch.bind({**constants, "rows": np.int32(rows.stop - rows.start)})
                kept.append(constants)
        for table, filler in zip(self.call.tables, self._fillers, strict=True):
            rows = table.rows if table.repeats == 1 else slice(0, table.repeats * (table.rows.stop - table.rows.start))
            constants = source.table_arguments(runtime, rows, table.real)
            filler.bind(constants)
            kept.append(constants)
        return kept

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
                        out.append((part.access, Argument(launch, number, offset, side, view, written)))
        if isinstance(call.source, CallerTables):
            readers = [
                (launch, step.chunk.rows, "")
                for step, launch in zip(call.steps, self.launches, strict=True) if step.reads_callers
            ]  # fmt: skip
            readers += [(filler, t.rows, "_table") for t, filler in zip(call.tables, self._fillers, strict=True)]
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
        if self.call.copied:
            self._bind_copies(memories)

    def _bind_copies(self, memories: Sequence[Any]) -> None:
        call, state = self.call, self._state
        steps = call.steps[-call.copied :]
        dense = [(step.problem.x, step.problem.in_place) for step in steps]
        self._copies = Copies(
            state.runtime.staging, self._queue, dense, in_order=state.in_order, busy=runtimes.busy,
            keeps_outputs=not all(step.variant.implementation.writes_all for step in call.steps),
        )  # fmt: skip
        self._pieces = []
        for k, (step, launch) in enumerate(zip(steps, self.launches[-call.copied :], strict=True)):
            part, chunk = call.parts[step.part], step.chunk
            x, y = (
                host_view(address_of(memories[2 * step.part + side]), view.part(chunk.batches, chunk.tokens))
                for side, view in enumerate((part.x, part.y))
            )
            self._pieces.append((x, x if part.in_place else y))
            x_buffer, y_buffer = self._copies.buffers(k)
            launch.bind({"x": x_buffer, "y": y_buffer})
            for name in ("x_offset", "y_offset"):
                for number in launch.indices(name):
                    launch.set_offset(number, 0)

    def place(self, value: Any) -> None:
        """Set the positions: an int from which they count, or int64[axes, rows]; as the call's form says."""
        if self._numbers_only:
            if value != self._value:
                self._value = None  # until all launches have the new one
                for set_number, number, start in self._scalars:
                    set_number(number, int64_bytes(value + start))
                self._value = value
            return
        if self._value is not None and _same(self._value, value):
            return
        self._value = None
        for set_number, number, start in self._scalars:
            set_number(number, int64_bytes(value + start))
        uploads = []
        for step, launch in zip(self.call.steps, self.launches, strict=True):
            rows = step.chunk.rows
            if step.number is not None or launch.index("positions") is None:
                continue
            own = int64_rows(value, rows) if step.variant.angles == "fused" else own_rows(value, rows, launch.spec)
            uploads.append(upload(self._state.runtime.context, own))
            launch.bind({"positions": uploads[-1]})
        self._uploads = uploads  # OpenCL keeps no reference to buffers given as arguments before the launch
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

    def _fill_tables(self, waits: Sequence[Any] | None) -> None:
        """Put on the queue what fills the tables, unless they hold these positions; launches wait for it."""
        state = self._state
        for k, (table, filler) in enumerate(zip(self.call.tables, self._fillers, strict=True)):
            wanted = self._wanted(table)
            used = self._sets[k]
            if used is not None and not (used.holds(wanted) or state.in_order):
                used = None  # launches out of order may still read it
            if used is None:
                used = state.runtime.tables.take((state, table.nbytes), wanted)
                used = TableSet(state.runtime.context, table.nbytes) if used is None else used
            if used is not self._bound_sets[k]:
                self._bound_sets[k] = None
                for launch in (filler, *(self.launches[number] for number in table.users)):
                    launch.bind({"cosine": used.cosine, "sine": used.sine})
                self._bound_sets[k] = used
            if not used.holds(wanted):
                used.value = None
                self._place_filler(table, filler)
                used.ready = filler.enqueue(self._queue, waits)
                used.value = wanted
            self._sets[k] = used
            ready = used.under_way()
            for number in table.users:
                self._ready[number] = ready

    def _wanted(self, table: FilledTable) -> Any:
        """Return what tables hold that are made for the positions; None for the caller's, which may change."""
        source = self.call.source
        if isinstance(source, CallerTables):
            return None
        rows, value = table.rows, self._value
        held = value + rows.start if isinstance(value, int) else np.ascontiguousarray(value[:, rows]).tobytes()
        return source.config, table.real, table.spec, held

    def _place_filler(self, table: FilledTable, filler: Launch) -> None:
        source, value, rows = self.call.source, self._value, table.rows
        callers = isinstance(source, CallerTables)
        if isinstance(source, CallerTables) and not source.indexed:
            return
        if isinstance(value, int) and table.repeats == 1 and not callers:
            filler.bind({"positions": np.int64(value + rows.start)})
            return
        made = upload(self._state.runtime.context, np.tile(int64_rows(value, rows), table.repeats))
        filler.bind({"index" if callers else "positions": made})
        self._uploads = [*self._uploads, made]

    def keep_bound(self) -> None:
        """Be bound for a later run, before which the host may write; its tables are filled now."""
        for kind in self._mapped:
            kind.fresh = False
        if self.call.tables and isinstance(self.call.source, ConfigAngles):
            self._fill_tables(None)

    def enqueue(self, waits: Sequence[Any] | None) -> list[Any]:
        """Put all launches but those of copied tensors on the queue; returns their events."""
        if not self.call.tables:
            if waits:
                return [launch.enqueue(self._queue, waits) for launch in self._direct]
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
                enqueues = self._enqueues
                if len(enqueues) == 1:
                    enqueues[0]().wait()  # raises where the launch has failed, as `finish` does not
                    return
                for event in [enqueue() for enqueue in enqueues]:
                    event.wait()
                return
            for kind in self._mapped:
                kind.before()
            self._finish(self.enqueue(None))
        except BaseException as error:
            if not all_ended(self._queue):
                runtimes.busy[id(keep)] = (keep, self)
            failure = launch_error(self._device_name, error)
            if failure is not None:
                raise failure from error
            raise

    def _finish(self, events: list[Any]) -> None:
        """Wait for launches, run those of copied tensors, and bring the results to the host."""
        if self._copies is not None:
            first = len(self._direct)
            starts = [self._start(k) for k in range(first, len(self.launches))]
            self._copies.run(self._pieces, starts)
        for kind in self._mapped:
            kind.after(events)
        for event in events:
            event.wait()  # raises if it failed

    def _start(self, k: int) -> Callable[[list[Any]], Any]:
        launch = self.launches[k]
        return lambda waits: launch.enqueue(self._queue, [*waits, *self._ready[k]] or None)

    def run_on_device(
        self, waits: Sequence[Any], arrays: Sequence[Any], written: Sequence[Any], keep: Any = None
    ) -> None:
        """Launch on OpenCL arrays and leave the events with them; host arrays of the same call are waited for.

        arrays: all OpenCL arrays of the call. written: those that it writes. keep: what holds host arrays' memory.
        """
        state, on_device, own = self._state, self.call.on_device, self._events
        unordered, in_order = state.unordered(arrays), state.in_order
        before = [*waits, *state.before_writing(written)] if unordered else list(waits)
        for array in arrays:
            events = array.events
            # This queue's own last launches come before in any case.
            if events and not (in_order and events == own):
                before += events
        if before:
            before = pending(before)
            state.check_waits(before)
        if before and not on_device:
            wait_on_host(before)  # host memory is read by more than launches: copies and maps
            before = []
        try:
            for kind in self._mapped:
                kind.before()
            events = self.enqueue(before or None)
            self._leave(events, before, unordered, written)
            if not on_device:
                self._finish(events)
        except BaseException as error:
            self._abandon(arrays, keep)
            failure = launch_error(self._device_name, error)
            if failure is not None:
                raise failure from error
            raise

    def _leave(self, events: list[Any], waited: list[Any], unordered: Sequence[Any], written: Sequence[Any]) -> None:
        """Give each written array the events of the launches.

        Every launch waited for the array's earlier events, so they need not be kept. Inputs get the events, too, if
        their queue does not keep what comes later behind these launches: what writes an input has to wait for its
        reads. Parts of one array share their list of events.
        """
        if unordered:
            self._state.runtime.leave_events(unordered, events, waited)
            known = {id(array.events) for array in unordered}
            written = [array for array in written if id(array.events) not in known]
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

    def release(self) -> None:
        """Give back tables, and keep what else may be large no longer than the launches need it."""
        if self._state.in_order:
            for k, used in enumerate(self._sets):
                if used is not None:
                    self._sets[k] = None
                    self._state.runtime.tables.give_back((self._state, used.nbytes), used)
        else:
            self._sets = [None] * len(self._sets)
            self._bound_sets = [None] * len(self._sets)


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True  # positions are copies of their own, which nobody changes
    if isinstance(a, int) or isinstance(b, int):
        return bool(a == b) if isinstance(a, int) and isinstance(b, int) else False
    return a.shape == b.shape and bool(np.array_equal(a, b))
