"""Tables of cos and sin that launches read, filled by the device's kernels in buffers that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..kernels.launch import Launch, LaunchSpec
from .events import out_of_memory
from .runtime import TABLE_BYTES_KEPT, TABLES_KEPT, QueueState, upload
from .sources import CallerTables, ConfigAngles, PositionForm, Real, int64_rows


class FilledTable(NamedTuple):
    """Tables of a call: some rows of positions, repeated so often. users: numbers of the launches that read them."""

    spec: LaunchSpec
    program: Any
    rows: slice
    repeats: int
    real: Real
    nbytes: int
    users: list[int]


class CosSinTable:
    """Tables REAL[rows][pairs], nbytes each of cos and sin. One call at a time has it.

    state: the queue of the commands that use it.
    """

    def __init__(self, state: QueueState, nbytes: int) -> None:
        import pyopencl as cl

        context = state.runtime.context
        try:
            self.cosine, self.sine = (cl.Buffer(context, cl.mem_flags.READ_WRITE, nbytes) for _ in range(2))
        except cl.Error as error:
            raise out_of_memory(nbytes, state.runtime.info.name, error) from error
        self.state, self.nbytes = state, nbytes
        #: What it holds, None if that is not known, and the event after which it does.
        self.value: Any = None
        self.ready: Any = None

    def holds(self, value: Any) -> bool:
        """Whether it holds this, or will."""
        return value is not None and self.value == value and self.ready.command_execution_status >= 0

    @classmethod
    def take(cls, state: QueueState, nbytes: int, value: Any) -> CosSinTable:
        """Return a table for `give_back`: one that holds this value if there is one in no use, or a new one."""
        runtime = state.runtime
        with runtime.lock:
            fitting = [t for t in runtime.tables if t.state is state and t.nbytes == nbytes]
            if fitting:
                chosen = next((t for t in fitting if t.holds(value)), fitting[0])
                runtime.tables = [t for t in runtime.tables if t is not chosen]
                return chosen
        return cls(state, nbytes)

    def give_back(self) -> None:
        """Keep it for the next call; what was enqueued with it has ended, or comes first in its queue."""
        runtime = self.state.runtime
        with runtime.lock:
            free = [*runtime.tables, self]
            while len(free) > TABLES_KEPT or sum(2 * t.nbytes for t in free) > TABLE_BYTES_KEPT:
                del free[0]
            runtime.tables = free


class Filler:
    """The launch of a runner that fills one of its call's tables, and the table that it has."""

    def __init__(
        self, state: QueueState, source: ConfigAngles | CallerTables, form: FilledTable, readers: Sequence[Launch]
    ) -> None:
        self._state, self._source, self._form = state, source, form
        self.launch = Launch(form.program, form.spec)
        self._readers = [readers[number] for number in form.users]
        rows = form.rows if form.repeats == 1 else slice(0, form.repeats * (form.rows.stop - form.rows.start))
        self._constants = source.table_arguments(state.runtime, rows, form.real)
        self.launch.bind(self._constants)
        self.table: CosSinTable | None = None
        self._bound: CosSinTable | None = None
        self._uploaded: Any = None

    def fill(self, value: Any, waits: Sequence[Any] | None) -> list[Any]:
        """Put what fills the tables on the queue unless they hold these positions; return what readers wait for."""
        state, wanted = self._state, self._wanted(value)
        table = self.table
        if table is None or not (table.holds(wanted) or state.in_order):  # out of order, launches may still read it
            table = CosSinTable.take(state, self._form.nbytes, wanted)
        if table is not self._bound:
            self._bound = None
            for launch in (self.launch, *self._readers):
                launch.bind({"cosine": table.cosine, "sine": table.sine})
            self._bound = table
        if not table.holds(wanted):
            table.value = None
            self.place(value)
            table.ready = self.launch.enqueue(state.queue, waits)
            table.value = wanted
        self.table = table
        return [table.ready] if table.ready.command_execution_status else []

    def release(self) -> None:
        """Give the table back, or keep it no longer than the launches need it."""
        table, self.table = self.table, None
        if not self._state.in_order:
            self._bound = None
        elif table is not None:
            table.give_back()

    def place(self, value: Any) -> None:
        """Set the positions."""
        source, form, rows = self._source, self._form, self._form.rows
        if isinstance(source, CallerTables) and not source.indexed:
            return
        if isinstance(value, int) and form.repeats == 1 and isinstance(source, ConfigAngles):
            self.launch.bind({"positions": np.int64(value + rows.start)})
            return
        self._uploaded = upload(self._state.runtime.context, np.tile(int64_rows(value, rows), form.repeats))
        self.launch.bind({"index" if isinstance(source, CallerTables) else "positions": self._uploaded})

    def _wanted(self, value: Any) -> Any:
        """Return what tables hold that are made for the positions; None for the caller's, which may change."""
        source, form, rows = self._source, self._form, self._form.rows
        if isinstance(source, CallerTables):
            return None
        held = value + rows.start if isinstance(value, int) else np.ascontiguousarray(value[:, rows]).tobytes()
        return source.config, form.real, form.spec, held


def fill_on_host(
    state: QueueState, source: ConfigAngles, form: PositionForm, positions: Any, results: Sequence[Any]
) -> None:
    """Write cos and sin of positions, int64[axes, R], into two arrays float32[R, pairs]."""
    import pyopencl as cl

    rows = slice(0, positions.shape[1])
    spec = source.table_spec(rows.stop, form, "f32", state.runtime.info)
    filler = Filler(
        state, source, FilledTable(spec, state.runtime.program(spec), rows, 1, "f32", results[0].nbytes, []), []
    )
    with state.runtime.using(state.queue, results):
        for event in filler.fill(positions, None):
            event.wait()
        assert filler.table is not None
        for result, buffer in zip(results, (filler.table.cosine, filler.table.sine), strict=True):
            cl.enqueue_copy(state.queue, result, buffer)
    filler.release()
