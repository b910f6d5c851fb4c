"""Events and errors of OpenCL: what to wait for, and what an error becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError, ShapeError, reading, shown

if TYPE_CHECKING:
    import pyopencl


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
