"""Tables of cos and sin on a device, in buffers that are kept: filling them again costs a kernel, not memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from .events import out_of_memory

if TYPE_CHECKING:
    import pyopencl

#: Bytes of cos and sin in no use that are kept at most, and their number.
TABLE_BYTES_KEPT = 256 << 20
SETS_KEPT = 32


class TableSet:
    """Tables REAL[rows][pairs], nbytes each of cos and sin. One call at a time has it."""

    def __init__(self, context: pyopencl.Context, nbytes: int) -> None:
        import pyopencl as cl

        try:
            self.cosine, self.sine = (cl.Buffer(context, cl.mem_flags.READ_WRITE, nbytes) for _ in range(2))
        except cl.Error as error:
            raise out_of_memory(nbytes, context.devices[0].name, error) from error
        self.nbytes = nbytes
        #: What the tables hold, None if that is not known, and the event after which they do.
        self.value: Any = None
        self.ready: Any = None

    def holds(self, value: Any) -> bool:
        """Whether the tables hold this, or will."""
        if value is None or self.value != value:
            return False
        return self.ready is None or self.ready.command_execution_status >= 0

    def under_way(self) -> list[Any]:
        """Return the event to wait for, if the tables are not filled yet."""
        if self.ready is not None and self.ready.command_execution_status == 0:
            self.ready = None
        return [] if self.ready is None else [self.ready]


class TableSets:
    """The sets in no use, by what they can hold; the oldest go when there are too many."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[tuple[Any, TableSet]] = []

    def take(self, key: Any, value: Any) -> TableSet | None:
        """Return a set of a key for `give_back`, one that holds this value if there is one."""
        with self._lock:
            fitting = [pair for pair in self._free if pair[0] == key]
            if not fitting:
                return None
            chosen = next((pair for pair in fitting if pair[1].holds(value)), fitting[0])
            self._free = [pair for pair in self._free if pair is not chosen]
            return chosen[1]

    def give_back(self, key: Any, used: TableSet) -> None:
        """Keep a set for the next call; what was enqueued with it has ended, or comes first in its queue."""
        with self._lock:
            free = [*self._free, (key, used)]
            while len(free) > SETS_KEPT or sum(2 * one.nbytes for _, one in free) > TABLE_BYTES_KEPT:
                del free[0]
            self._free = free
