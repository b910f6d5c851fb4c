"""Events and errors of OpenCL: what to wait for, and what an error becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError, ShapeError, reading, shown

if TYPE_CHECKING:
    import pyopencl

#: How often an event is asked at most whether it has ended (150 us); runs in vain after which none is asked any more,
#: but one in so many.
POLLS, RUNS_IN_VAIN, RUNS_PER_TRIAL = 1000, 2, 16


class PollingWait:
    """Launches and waits. Before it sleeps it asks for a while whether they have ended, unless that was in vain lately.

    A thread that sleeps is woken late, by 20 to 100 us on virtual processors. But asking needs a processor, which
    other calls and programs and long launches need, too. One thread uses it at a time.
    """

    def __init__(self, in_flight: set[PollingWait]) -> None:
        self._in_flight, self._runs, self._in_vain = in_flight, 0, 0

    def run(self, enqueues: Sequence[Callable[[], Any]]) -> None:
        """Enqueue launches and wait for them; raises what their events raise."""
        alone = not self._in_flight  # no other thread's call is on the device
        try:
            self._in_flight.add(self)
            events = [enqueue() for enqueue in enqueues]
            self._runs += 1
            if alone and (self._in_vain < RUNS_IN_VAIN or not self._runs % RUNS_PER_TRIAL):
                ended = any(events[-1].command_execution_status <= 0 for _ in range(POLLS))
                self._in_vain = 0 if ended else self._in_vain + 1
            for event in events:
                event.wait()  # raises where the launch has failed, as `finish` does not
        finally:
            self._in_flight.discard(self)


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


def pending(events: Sequence[Any]) -> list[Any]:
    """Return the events that have not ended; raises `DeviceError` if one has failed."""
    out = []
    for event in events:
        status = event.command_execution_status
        if status < 0:  # some drivers never end what waits for such an event
            raise DeviceError(f"wait_for: an event has failed with status {status}, nothing was launched")
        if status:
            out.append(event)
    return out


def wait_on_host(events: Sequence[Any]) -> None:
    """Wait for events; raise `DeviceError` if one has failed or fails."""
    import pyopencl as cl

    try:
        for event in pending(events):
            event.wait()
    except cl.Error as cause:
        pending(events)
        raise DeviceError(f"wait_for: an event has failed: {cause}") from cause
    pending(events)


def all_ended(queue: pyopencl.CommandQueue) -> bool:
    """Wait for all that a queue was given, through interrupts; False where no way to wait works.

    A second interrupt is raised by the caller's own: it comes after the first, which is on its way already.
    """
    import pyopencl as cl

    ways: list[Callable[[], Any]] = [queue.finish, lambda: cl.enqueue_marker(queue).wait()]
    while ways:
        try:
            with suppress(cl.Error):
                ways[0]()
                return True
            ways.pop(0)
        except KeyboardInterrupt:
            continue
    return False


def raise_opencl_error(error: Exception, device_name: str) -> None:
    """Raise `DeviceError` for an error of OpenCL."""
    import pyopencl as cl

    if isinstance(error, cl.Error):
        raise DeviceError(f"device {device_name!r}: OpenCL failed: {error}") from error


@contextmanager
def opencl_errors(device_name: str) -> Iterator[None]:
    """Raise `DeviceError` for an error of OpenCL inside. Each call has a `try` of its own, which costs nothing."""
    try:
        yield
    except Exception as error:
        raise_opencl_error(error, device_name)
        raise


def out_of_memory(nbytes: int, device_name: str, error: Exception) -> DeviceError:
    """Return the error for memory that a device does not give."""
    return DeviceError(f"device {device_name.strip()!r}: {nbytes} bytes of memory could not be allocated: {error}")
