"""`Plan`: a compiled call bound to its arrays; run as often as wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from os import getpid
from typing import TYPE_CHECKING, Any, NoReturn

from ..arguments import listed
from ..arrays import Operand, check_apart, check_out, note_writes, operand
from ..errors import CopyError, ShapeError
from ..kernels.launch import LaunchSpec
from ..kernels.variant import Variant
from ..positions import chosen_positions
from ..runtime import check_events, launch_error, pending, wait_on_host
from .angle_sources import COUNTING, LIMIT, ArrayAngles, Positions, counting_from
from .bound import AngleSource, BoundCall
from .template import CallTemplate

if TYPE_CHECKING:
    import pyopencl

    from ..device import DeviceInfo

Operands = Sequence[tuple[Operand, Operand]]
#: Runs a plan again, at other positions if an int is given; returns False if the general way is needed. It must not
#: hold the plan: a reference cycle would keep the caller's arrays until the garbage collector runs.
Quick = Callable[["Plan", Any], bool]
#: Returns the template of a call, and the queue that it runs on.
Target = Callable[[], "tuple[CallTemplate, pyopencl.CommandQueue]"]


class Plan:
    """A checked, built and bound call. Made by `Rope.plan`; `run()` does the work and returns the result.

    Results go to the same output at every run. OpenCL arrays: the launches are put on the queue and `run` returns at
    once; the output carries the events. Host arrays: `run` returns when the result is there.
    """

    _variants: Sequence[Variant] = ()
    _specs: Sequence[LaunchSpec] = ()

    def __init__(
        self,
        template: CallTemplate,
        operands: Operands,
        source: AngleSource,
        positions: Positions,
        queue: pyopencl.CommandQueue,
    ) -> None:
        self._several = template.several
        self._runtime = template.runtime
        self._queue = self._runtime.queue_state(queue)
        self._lock = threading.Lock()
        #: The events of each input that were seen to have ended, None if some have not.
        self._passed: list[list[Any]] | None = None
        self._quick: Quick | None = None
        self._source = source
        #: The plan's own outputs, which one run may have others in place of.
        self._own = [out for _, out in operands]
        self._described: dict[int, tuple[Any, ...]] = {}
        self._bind(template, list(operands), positions)
        self._bound.place(self._queue, self._source, positions)

    def __reduce__(self) -> NoReturn:
        raise CopyError(
            "plan: it is bound to its arrays and to this process, and can be neither copied nor pickled; make another "
            "one by `Rope.plan`"
        )

    @property
    def template(self) -> CallTemplate:
        """What calls with arrays of the same description share."""
        return self._template

    @property
    def device(self) -> DeviceInfo:
        """The device it runs on."""
        return self._runtime.info

    @property
    def queue(self) -> pyopencl.CommandQueue:
        """The queue it runs on."""
        return self._queue.queue

    @property
    def variants(self) -> list[Variant]:
        """The kernel variant of each launch."""
        return list(self._variants)

    @property
    def specs(self) -> list[LaunchSpec]:
        """Kernel file, options, sizes and arguments of each launch."""
        return list(self._specs)

    @property
    def launches(self) -> int:
        """Number of rotation launches of one run."""
        return len(self._specs)

    @property
    def out(self) -> Any:
        """The output, or a tuple of them."""
        return self._results(self._own)

    def _results(self, outputs: Sequence[Operand]) -> Any:
        results = tuple(out.original for out in outputs)
        return results if self._several else results[0]

    def run(
        self,
        x: Any = None,
        positions: Any = None,
        *,
        offsets: Any = None,
        out: Any = None,
        wait_for: Sequence[pyopencl.Event] | None = None,
    ) -> Any:
        """Run: read the inputs as they are now, write the outputs and return them.

        x: other arrays of the same kind, shape, strides and dtype, as many as the plan was made for; an in-place plan
        then rotates these in place. positions: other positions, valid from this run on; or offsets, [B], the first
        position of each batch. out: where this run alone puts its results, instead of the plan's own output: arrays
        like it in kind, shape, strides and dtype; not for an in-place plan. wait_for: events that the first launch
        waits for. Raises `ShapeError` for arrays or positions that do not fit the plan, `DeviceError` for an event that
        has failed.
        """
        try:
            with self._lock:
                waits = () if wait_for is None else check_events(wait_for)
                if offsets is not None:
                    positions = chosen_positions(positions, offsets)
                others = x is not None or out is not None or self._lent
                operands = self._taken(x, out) if others else self._operands
                if self._described:
                    self._check_tensors(operands)
                if not others:
                    if self._tensors:
                        note_writes(self._tensors)
                    quick = self._quick
                    if quick is not None and wait_for is None and quick(self, positions):
                        return self._result
                self._runtime.check()
                if others:
                    self._take(operands)
                    note_writes(self._tensors)
                if positions is not None:
                    self._move(positions)
                elif not self._source.constant or self._bound.unplaced:
                    self._bound.place(self._queue, self._source, self._positions)
                if self._template.all_on_host:
                    if waits:
                        wait_on_host(waits)
                    self._bound.run_on_host(self._queue, self._operands)
                else:
                    self._run_on_device(waits)
                if self._quick is None and self._source.constant and not self._lent:
                    self._quick = self._quick_on_host() if self._template.all_on_host else self._quick_on_device()
                return self._result
        except Exception as error:
            failed = launch_error(self._runtime.info.name, error)
            if failed is not None:
                raise failed from error
            raise

    def _run_on_device(self, waits: Sequence[Any]) -> None:
        queue, bound = self._queue, self._bound
        before = self._before(waits)
        if self._template.all_on_device:
            bound.launch_on_arrays(queue, before, self._outputs, self._arrays)
            for array, twin in self._twins:
                array.events[:] = twin.events
            self._passed = None if before else [list(array.events) for array in self._inputs]
            return
        if before:
            wait_on_host(before)  # host memory is read by more than launches: copies and maps
        events = bound.enqueue(queue, None, self._operands)
        bound.leave_events(queue, before, events, self._outputs, self._arrays)
        for array, twin in self._twins:
            array.events[:] = twin.events
        bound.finish(queue, events, self._operands)

    def _quick_on_host(self) -> Quick | None:
        """Return what runs on host arrays where launching and waiting is all there is to it."""
        bound, pid = self._bound, self._runtime.pid
        if bound.quick is None or bound.must_wait:
            return None
        move, launch = self._mover(), bound.launch_and_wait

        def quick(plan: Plan, positions: Any) -> bool:
            if getpid() != pid or not (positions is None or move(plan, positions)):
                return False
            launch(plan)
            return True

        return quick

    def _quick_on_device(self) -> Quick | None:
        """Return what runs on OpenCL arrays by one launch, where nothing has to be waited for."""
        bound, queue, pid = self._bound, self._queue, self._runtime.pid
        if not self._template.all_on_device or len(bound.launches) != 1 or bound.must_wait or not queue.in_order:
            return None
        if self._twins or queue.unordered(self._arrays):
            return None
        move, enqueue = self._mover(), bound.launches[0].bound(queue.queue)
        inputs, outputs = self._inputs, self._outputs

        def quick(plan: Plan, positions: Any) -> bool:
            passed, own = plan._passed, bound.events
            if passed is None:
                return False
            # An array has no events after the caller waited for it.
            for array, events in zip(inputs, passed):  # noqa: B905 - of one length
                if array.events and array.events != events:
                    return False
            for array in outputs:
                if array.events and array.events != own:  # type: ignore[union-attr]  # all are on the device
                    return False
            if getpid() != pid or not (positions is None or move(plan, positions)):
                return False
            event = enqueue()
            bound.events = [event]
            for array in outputs:
                array.events[:] = (event,)  # type: ignore[union-attr]
            return True

        return quick

    def _mover(self) -> Quick:
        """Return what sets positions that are an int, if the kernels take them as a number; False if it did not."""
        bound, source, queue = self._bound, self._source, self._queue
        plain = self._positions.form == COUNTING
        last = LIMIT - self._template.seq + 1

        def move(plan: Plan, positions: Any) -> bool:
            if not plain or type(positions) is not int or not -LIMIT <= positions <= last:
                return False
            bound.place_first(queue, source, positions)
            plan._positions = Positions(COUNTING, positions)
            return not bound.must_wait

        return move

    def _before(self, waits: Sequence[Any]) -> list[Any] | None:
        """Return the events that a launch waits for; this queue's own last launches come before in any case."""
        own, in_order = self._bound.events, self._queue.in_order
        before = [*waits, *self._queue.before_writing(self._written)]
        for array in self._arrays:
            for event in array.events:
                if not (in_order and event in own):
                    before.append(event)
        return pending(before) if before else None

    def _bind(self, template: CallTemplate, operands: list[tuple[Operand, Operand]], positions: Positions) -> None:
        bound = BoundCall(template.compiled(positions.form))
        bound.bind(self._queue, operands)
        bound.fresh = False  # the host may write before the next run
        self._quick = None
        self._template, self._operands, self._positions, self._bound = template, operands, positions, bound
        self._variants = self._bound.call.variants
        self._specs = [launch.spec for launch in self._bound.launches]
        self._result = self._results([out for _, out in operands])
        self._lent = any(out is not own for (_, out), own in zip(operands, self._own, strict=True))
        #: The outputs that are torch tensors.
        self._tensors = [out.original for _, out in self._operands if out.kind == "torch"]
        sides = self._sides(operands)
        self._tensor_sides = [(name, o) for name, o in sides if o.kind == "torch"]
        #: What was bound of each torch tensor at first, also of the plan's own outputs.
        before, held = self._described, [*(o for _, o in sides), *self._own]
        self._described = {id(o): before.get(id(o)) or _description(o.original) for o in held if o.kind == "torch"}
        #: The OpenCL arrays: outputs (None for a host array), and all that launches wait for.
        self._outputs = [out.original if out.kind == "opencl" else None for _, out in self._operands]
        both = [a for x, out in self._operands for a in ((x.array, x.twin) if x is out else (x.array, out.array))]
        self._arrays = [array for array in both if array is not None]
        self._twins = [(x.array, x.twin) for x, out in self._operands if x is out and x.twin is not None]
        self._inputs = [x.array for x, out in self._operands if x is not out and x.array is not None]
        self._written = [array for array in (*self._outputs, *(x for x, _ in self._twins)) if array is not None]

    def _move(self, positions: Any) -> None:
        moved = None
        if type(positions) is int and self._positions.form.counting:
            moved = counting_from(positions, self._template.seq)
        if moved is None:
            moved = self._source.positions(positions, self._template.batch, self._template.seq)
        if moved.form != self._positions.form:
            self._bind(self._template, self._operands, moved)
        self._bound.place(self._queue, self._source, moved)
        self._positions = moved

    def _sides(self, operands: Operands) -> list[tuple[str, Operand]]:
        """Return all arrays of a run by the argument's name."""
        sides = [("x", x) for x, _ in operands] + [("out", out) for x, out in operands if out is not x]
        if isinstance(self._source, ArrayAngles):
            sides += [("cos", self._source.cosine), ("sin", self._source.sine)]
        return sides

    def _check_tensors(self, operands: Operands) -> None:
        """Raise `ShapeError` for a tensor of a run that is no more what was bound."""
        for name, o in self._tensor_sides if operands is self._operands else self._sides(operands):
            bound = self._described.get(id(o))
            if bound is not None and _description(o.original) != bound:
                raise ShapeError(
                    f"{name}: memory, shape, strides, dtype or requires_grad of the tensor were replaced "
                    "(as `data = `, `set_`, `resize_`, `requires_grad_` do) after the plan was made; make a new plan"
                    + (", or give the tensor to `run`" if name == "x" else "")
                )

    def _take(self, operands: list[tuple[Operand, Operand]]) -> None:
        for name, o in self._sides(operands):
            if o.array is not None and o.array.context != self._runtime.context:
                raise ShapeError(f"{name}: the array lives in another OpenCL context than the plan")
        self._own = [x if out is x else own for (x, out), own in zip(operands, self._own, strict=True)]
        # Other addresses may be aligned otherwise, which other kernels may be right for.
        self._bind(self._template.for_operands(operands), operands, self._positions)
        self._bound.place(self._queue, self._source, self._positions)

    def _taken(self, x: Any, out: Any) -> list[tuple[Operand, Operand]]:
        """Return (input, output) of each part, some of them others; raises `ShapeError` for what does not fit.

        x: None for the inputs as they are. out: None, of a part as well, for the plan's own output.
        """
        inputs = [before for before, _ in self._operands]
        in_place = [before is own for before, own in zip(inputs, self._own, strict=True)]
        if x is not None:
            given = self._listed("x", x)
            inputs = [_like("x", new, x, moved) for new, x, moved in zip(given, inputs, in_place, strict=True)]
        outputs = [x if moved else own for x, own, moved in zip(inputs, self._own, in_place, strict=True)]
        if out is not None:
            if any(in_place):
                raise ShapeError("out: given to a plan that rotates in place; make a plan with another `out`")
            given = self._listed("out", out)
            outputs = [
                own if new is None else _like("out", new, own, True) for new, own in zip(given, self._own, strict=True)
            ]
        for taken, target, moved, own in zip(inputs, outputs, in_place, self._own, strict=True):
            if not moved and check_out(taken, target):
                what = "x: is the plan's own output" if target is own else "out: is the plan's input"
                raise ShapeError(f"{what}, the plan was made to rotate out of place")
        check_apart(inputs, outputs)
        return list(zip(inputs, outputs, strict=True))

    def _listed(self, name: str, given: Any) -> list[Any]:
        arrays = listed(name, given, len(self._operands)) if self._several else [given]
        if len(arrays) != len(self._operands):
            raise ShapeError(f"{name}: got {len(arrays)} arrays, the plan was made for {len(self._operands)}")
        return arrays


def _like(name: str, given: Any, before: Operand, writable: bool) -> Operand:
    """Return an array described in place of one that a plan was made for; raises `ShapeError` if it is unlike it."""
    new = operand(given, before.layout, name, writable=writable)
    if not (new.view.same_places(before.view) and new.kind == before.kind):
        raise ShapeError(
            f"{name}: got shape {list(new.view.shape)}, strides {list(new.view.strides)}, {new.view.dtype} in "
            f"{new.kind} memory; the plan was made for shape {list(before.view.shape)}, strides "
            f"{list(before.view.strides)}, {before.view.dtype} in {before.kind} memory (order b, s, n, d)"
        )
    return new


def _description(tensor: Any) -> tuple[Any, ...]:
    """Return what a plan has bound of a torch tensor, which torch may replace in the same object."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad


class EmptyPlan(Plan):
    """The plan of tensors without elements: nothing to launch, and no device needed until it is asked for.

    target: makes the template, and says on which queue other tensors would be rotated. check: checks positions.
    """

    def __init__(self, operands: Operands, several: bool, target: Target, check: Callable[[Any], object]) -> None:
        self._check = check
        self._operands = list(operands)
        self._own = [out for _, out in operands]
        self._several = several
        self._target = target

    @cached_property
    def _made(self) -> tuple[CallTemplate, pyopencl.CommandQueue]:
        return self._target()

    @property
    def template(self) -> CallTemplate:
        """What calls with arrays of the same description share. Raises `DeviceError`, as do device and queue."""
        return self._made[0]

    @property
    def device(self) -> DeviceInfo:
        """The device it would run on."""
        return self._made[0].runtime.info

    @property
    def queue(self) -> pyopencl.CommandQueue:
        """The queue it would run on."""
        return self._made[1]

    def run(
        self,
        x: Any = None,
        positions: Any = None,
        *,
        offsets: Any = None,
        out: Any = None,
        wait_for: Sequence[pyopencl.Event] | None = None,
    ) -> Any:
        """Check the arguments as other plans do, and return the empty output."""
        if wait_for is not None:
            check_events(wait_for)
        if offsets is not None:
            positions = chosen_positions(positions, offsets)
        operands = self._taken(x, out)
        if positions is not None:
            self._check(positions)
        self._operands = operands
        return self._results([out for _, out in operands])
