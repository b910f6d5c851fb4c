"""`RecentCall`: the compiled call of an operation's last arrays, found by comparing instead of by hashing.

In a decoder all layers call alike, and what a call costs beyond its launch is as long as the rotation itself. So what
such a call does is put together once, as one function of the arrays and the position.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from os import getpid
from typing import Any

import numpy as np

from ..arrays import tensor_address
from ..runtime import QueueState, pending
from ..select.database import generation
from .angle_sources import COUNTING, LIMIT, ConfigAngles
from .bound import BoundCall
from .compiled import BOUND_KEPT
from .template import CallTemplate, buffer_alignment

#: Recent calls of one shape after which the last one stays: arrays of one kind differ in alignment.
MOST_REPLACED = 8
#: Returns what a bound call takes as memory, None for an array that does not match.
Match = Callable[[Any], Any]
#: Of one tensor: what recognises an input, what makes a result, and what makes memory of a result (or its address).
Part = tuple[Match, Callable[[Any, QueueState], tuple[Any, Any]], "Callable[[Any], Any] | None"]
#: Rotates arrays at a position and returns the results; None if an array does not match.
Rotation = Callable[[list[Any], int], "list[Any] | None"]


class RecentCall:
    """Calls on new results, at a position given as an int, with arrays like those given."""

    def __init__(
        self,
        template: CallTemplate,
        state: QueueState,
        inputs: list[Any],
        forward: bool,
        layout: str,
        before: RecentCall | None = None,
    ) -> None:
        self._template, self._state = template, state
        #: How many recent calls were there before, one in place of the other.
        self._number: int = 0 if before is None or before.stale else before._number + 1
        self._forward, self._layout = forward, layout
        self._generation, self._pid = generation(), getpid()
        self._last = LIMIT - template.seq + 1
        self._call = template.compiled(COUNTING)
        self._parts = [
            _part(a, part.x_alignment, maker, self._call.whole and part.access == "svm")
            for a, part, maker in zip(inputs, template.parts, template.makers, strict=True)
        ]
        self._several = template.several
        #: Rotations in no use: one thread at a time uses each.
        self._free: deque[Rotation] = deque([self._rotation()], maxlen=BOUND_KEPT)

    @property
    def stale(self) -> bool:
        """Whether no call can match any more: other kernels may be chosen now, or the process is another one."""
        return generation() != self._generation or getpid() != self._pid

    @property
    def replaceable(self) -> bool:
        """Whether another one may come in its place; not for calls that take turns: making one is slow."""
        return self._number < MOST_REPLACED or self.stale

    @staticmethod
    def fits(template: CallTemplate) -> bool:
        """Whether calls of a template can be made so: new results, angles by the kernel, nothing to copy."""
        new_results = all(maker is not None for maker in template.makers)
        direct = template.all_on_device or all(part.access in ("svm", "direct") for part in template.parts)
        return (
            new_results and direct and isinstance(template.source, ConfigAngles)
            and template.compiled(COUNTING).numbers_only
        )  # fmt: skip

    def run(self, inputs: list[Any], several: bool, position: int, forward: bool, layout: str) -> Any:
        """Rotate and return the result; None if this call is another one."""
        if (
            several is not self._several
            or forward is not self._forward
            or layout != self._layout
            or len(inputs) != len(self._parts)
            or not -LIMIT <= position <= self._last
            or getpid() != self._pid
            or generation() != self._generation
        ):
            return None
        try:
            rotate = self._free.pop()  # atomic
        except IndexError:
            rotate = self._rotation()
        results = rotate(inputs, position)
        self._free.append(rotate)  # not after an error
        if results is None:
            return None
        return tuple(results) if several else results[0]

    def _rotation(self) -> Rotation:
        bound = BoundCall(self._call)
        if self._template.all_on_host:
            return _on_host(bound, self._template.source, self._state, self._parts)
        return _on_device(bound, self._template.source, self._state, self._parts)


def _on_host(bound: BoundCall, source: Any, state: QueueState, parts: list[Part]) -> Rotation:
    """Return the rotation of host arrays that the device reaches in place: it waits for the launches."""
    launch_and_wait, bind = bound.launch_and_wait, bound.bind_quick
    assert bind is not None, "no memory in place, see `RecentCall.fits`"
    bound.launch_without_transfers(state)
    placed: int | None = None

    def rotate(inputs: list[Any], position: int) -> list[Any] | None:
        nonlocal placed
        memories: list[Any] = []
        results: list[Any] = []
        for a, (match, make, wrap) in zip(inputs, parts):  # noqa: B905 - of one length, as `run` has found
            memory = match(a)
            if memory is None:
                return None
            result, address = make(a, state)
            memories += (memory, address if wrap is None else wrap(result))
            results.append(result)
        bind(memories)
        if position != placed:
            bound.place_first(state, source, position)
            placed = position
        launch_and_wait((inputs, results))
        return results

    return rotate


def _on_device(bound: BoundCall, source: Any, state: QueueState, parts: list[Part]) -> Rotation:
    """Return the rotation of OpenCL arrays: nothing waits, each result has the event of its launch."""
    queue = state.queue
    # On a queue out of order events go to the inputs, too.
    quick = len(bound.launches) == 1 and state.in_order
    enqueue = bound.launches[0].bound(queue) if quick else None
    placed: int | None = None

    def rotate(inputs: list[Any], position: int) -> list[Any] | None:
        nonlocal placed
        memories: list[Any] = []
        results: list[Any] = []
        before: list[Any] = []
        for a, (match, make, _) in zip(inputs, parts):  # noqa: B905 - of one length, as `run` has found
            if match(a) is None or a.queue is not queue:
                return None
            if a.events:
                before += a.events
            result, _ = make(a, state)
            memories += (a, result)
            results.append(result)
        bound.bind_arrays(memories)
        if position != placed:
            bound.place_first(state, source, position)
            placed = position
        waits = pending(before) if before else None
        if waits or enqueue is None:
            bound.launch_on_arrays(state, waits, results, memories)
        else:
            event = enqueue()
            for result in results:
                result.events.append(event)
        return results

    return rotate


def _part(like: Any, alignment: int, make: Any, whole: bool) -> Part:
    """Return the functions for one tensor of a call. whole: `pyopencl.SVM` objects can be its memory."""
    import pyopencl as cl

    if isinstance(like, np.ndarray):
        return _match_numpy(like, alignment - 1, whole), make, cl.SVM if whole else None
    if isinstance(like, getattr(sys.modules.get("torch"), "Tensor", ())):
        return _match_torch(like, alignment - 1), make, None
    return _match_opencl(like, alignment), make, None


def _match_numpy(like: Any, mask: int, whole: bool) -> Match:
    import pyopencl as cl

    kind, dtype, shape, strides, svm = np.ndarray, like.dtype, like.shape, like.strides, cl.SVM

    def match(a: Any) -> Any:
        if type(a) is not kind or a.dtype != dtype or a.shape != shape or a.strides != strides:
            return None
        try:
            memory = svm(a)
            address = memory.svm_ptr
        except ValueError:  # not contiguous, or read-only
            memory = address = a.__array_interface__["data"][0]
        if address & mask:
            return None
        return memory if whole else address

    return match


def _match_torch(like: Any, mask: int) -> Match:
    import torch

    kind, dtype, shape, strides, strided = torch.Tensor, like.dtype, like.shape, like.stride(), torch.strided

    def match(a: Any) -> Any:
        if type(a) is not kind or a.dtype is not dtype or a.shape != shape or a.stride() != strides:
            return None
        if a.requires_grad or not a.is_cpu or a.layout is not strided or a.is_neg():
            return None
        address = tensor_address(a)
        return None if address & mask else address or None

    return match


def _match_opencl(like: Any, alignment: int) -> Match:
    kind, dtype, shape, strides = type(like), like.dtype, like.shape, like.strides
    mask, own, itemsize = alignment - 1, like.allocator is None, like.dtype.itemsize

    def match(a: Any) -> Any:
        if type(a) is not kind or a.shape != shape or a.strides != strides or a.dtype != dtype:
            return None
        if (a.allocator is None) is not own or a.offset & mask or a.offset % itemsize:
            return None
        if buffer_alignment(a.base_data) < alignment:
            return None
        return a

    return match
