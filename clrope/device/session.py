"""One context and one in-order command queue per device, made once and shared; a caller's own are taken as they are."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from ..errors import DeviceError
from . import discovery
from .select import device as select_device

if TYPE_CHECKING:
    import pyopencl

    from .select import Selector

_lock = threading.Lock()
_contexts: dict[int, pyopencl.Context] = {}
_queues: dict[int, pyopencl.CommandQueue] = {}
#: Queues made for callers' contexts, which live as long as they are here: hence only the last few.
_foreign: OrderedDict[int, tuple[pyopencl.Context, pyopencl.CommandQueue]] = OrderedDict()
_MAX_FOREIGN = 8


def context_for(target: Selector = None) -> pyopencl.Context:
    """Return the context of a device (the same one each time), or the caller's own: of a queue, or as it is."""
    import pyopencl as cl

    discovery.check_fork()
    if isinstance(target, cl.Context):
        return target
    if isinstance(target, cl.CommandQueue):
        return target.context
    device = select_device(target).cl_device
    with _lock:
        return _context(device)


def queue_for(target: Selector = None) -> pyopencl.CommandQueue:
    """Return the in-order queue of a device (the same one each time), one in the caller's context, or his queue."""
    import pyopencl as cl

    discovery.check_fork()
    if isinstance(target, cl.CommandQueue):
        return target
    if isinstance(target, cl.Context):
        return _foreign_queue(target)
    device = select_device(target).cl_device
    with _lock:
        queue = _queues.get(device.int_ptr)
        if queue is None:
            queue = _queues[device.int_ptr] = _make_queue(_context(device), device)
        return queue


def _context(device: pyopencl.Device) -> pyopencl.Context:
    import pyopencl as cl

    context = _contexts.get(device.int_ptr)
    if context is None:
        try:
            context = _contexts[device.int_ptr] = cl.Context([device])
        except cl.Error as error:
            raise DeviceError(f"device {device.name.strip()!r}: no context could be made: {error}") from error
    return context


def _foreign_queue(context: pyopencl.Context) -> pyopencl.CommandQueue:
    with _lock:
        known = _foreign.get(context.int_ptr)
        if known is None:
            known = _foreign[context.int_ptr] = (context, _make_queue(context, context.devices[0]))
        _foreign.move_to_end(context.int_ptr)
        while len(_foreign) > _MAX_FOREIGN:
            _foreign.popitem(last=False)
        return known[1]


def _make_queue(context: pyopencl.Context, device: pyopencl.Device) -> pyopencl.CommandQueue:
    import pyopencl as cl

    try:
        return cl.CommandQueue(context, device)
    except cl.Error as error:
        raise DeviceError(f"device {device.name.strip()!r}: no command queue could be made: {error}") from error
