"""One kernel call with its arguments bound."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyopencl


#: Kernel objects whose launch is gone, per program and name: making one costs more than all the rest of a small call.
_pools: weakref.WeakKeyDictionary[Any, dict[str, deque[Any]]] = weakref.WeakKeyDictionary()
_MOST_POOLED = 32


def _pool(program: pyopencl.Program, name: str) -> deque[Any]:
    return _pools.setdefault(program, {}).setdefault(name, deque(maxlen=_MOST_POOLED))


def _take(pool: deque[Any], program: pyopencl.Program, name: str) -> Any:
    import pyopencl as cl

    try:
        return pool.pop()  # atomic, so no two threads get the same one
    except IndexError:
        return cl.Kernel(program, name)


def _set(kernel: pyopencl.Kernel, arguments: Sequence[Any], first: int = 0) -> None:
    # The public way tries what a number might be, 6 us each; telling it the types before costs more than all else.
    set_number = getattr(kernel, "_set_arg_buf", kernel.set_arg)
    for number, argument in enumerate(arguments, first):
        if isinstance(argument, np.generic):
            set_number(number, argument)
        else:
            kernel.set_arg(number, argument)


class Launch:
    """A kernel object of its own (setting arguments is not thread-safe) with all arguments set, and its sizes.

    arguments: buffers, and numbers as NumPy scalars of the kernel's own types: the same ones at every launch of it.
    """

    def __init__(
        self,
        program: pyopencl.Program,
        name: str,
        global_size: tuple[int, ...],
        local_size: tuple[int, ...] | None,
        arguments: Sequence[Any],
    ) -> None:
        import pyopencl as cl

        self._enqueue = cl.enqueue_nd_range_kernel
        self._pool = _pool(program, name)
        self.kernel = _take(self._pool, program, name)
        _set(self.kernel, arguments)
        self.global_size = global_size
        self.local_size = local_size
        # OpenCL keeps no reference to buffers given as arguments before the launch.
        self.arguments = tuple(arguments)

    def __del__(self) -> None:
        # Absent if the constructor failed.
        if "kernel" in self.__dict__:
            self._pool.append(self.kernel)

    def forget_arguments(self) -> None:
        """Keep no buffer alive: whoever enqueues it from now on sees to that, and that the arguments are set."""
        self.arguments = ()

    def rebind(self, number: int, buffer: pyopencl.Buffer, offset: np.int64) -> None:
        """Set a buffer's argument and the one behind it, its offset in elements, for the next call."""
        _set(self.kernel, (buffer, offset), number)

    def enqueue(self, queue: pyopencl.CommandQueue, wait_for: Sequence[Any] | None = None) -> pyopencl.Event:
        """Put the call on the queue and return its event."""
        return self._enqueue(queue, self.kernel, self.global_size, self.local_size, wait_for=wait_for)

    def bound(self, queue: pyopencl.CommandQueue) -> Callable[[], pyopencl.Event]:
        """Return `enqueue` for a queue and nothing to wait for, as quick as can be."""
        return partial(self._enqueue, queue, self.kernel, self.global_size, self.local_size)


def local_size_for(kind: str, dimensions: int) -> tuple[int, ...] | None:
    """Return the work-group's size: one work-item on a CPU, where each does a whole row, else the driver's choice.

    A fixed size keeps PoCL from compiling the kernel anew for every shape.
    """
    return (1,) * dimensions if kind == "cpu" else None
