"""`Plan`: a call that keeps its arrays; run as often as wanted."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from os import getpid
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..arguments import listed
from ..arrays import Operand, check_apart, check_out, empty_like, note_writes, operand, within_storage
from ..errors import CopyError, ShapeError
from ..kernels.launch import LaunchSpec
from ..kernels.variant import Variant
from ..positions import chosen_positions
from .events import check_events, launch_error, pending, wait_on_host
from .prepare import CheckedCall, memories_of
from .runner import Runner
from .runtime import QueueState
from .sources import COUNTING, LIMIT, CallerTables, Positions

if TYPE_CHECKING:
    import pyopencl

    from ..device import DeviceInfo


class Plan:
    """A checked, built and bound call. Made by `Rope.plan`; `run()` does the work and returns the result.

    Results go to the same output at every run. OpenCL arrays: the launches are put on the queue and `run` returns at
    once; the output carries the events. Host arrays: `run` returns when the result is there.
    """

    def __init__(self, prepared: CheckedCall) -> None:
        self._lock = threading.Lock()
        self._prepared = prepared
        self._call = None if prepared.empty else prepared.call()
        inputs, outputs = prepared.inputs, list(prepared.outputs)
        for k, x in enumerate(inputs):
            if outputs[k] is None:
                outputs[k] = self._new_output(k, x)
        #: The plan's own outputs, in place of which one run may have others.
        self._own = [out for out in outputs if out is not None]
        self._bound: dict[int, tuple[Any, ...]] = {}
        self._take(inputs, self._own, prepared.positions)

    def _new_output(self, k: int, x: Operand) -> Operand:
        make = None if self._call is None else self._call.makers[k]
        if make is None or not x.view.size:
            return empty_like(x)
        assert self._call is not None
        made = make(x.array if x.kind == "opencl" else x.original, self._call.state)[0]
        return operand(made, x.layout, "out", writable=True)

    def _take(self, inputs: Sequence[Operand], outputs: Sequence[Operand], positions: Positions) -> None:
        """Bind to arrays, all of which are given now, at positions of any form."""
        prepared = self._prepared._replace(inputs=list(inputs), outputs=list(outputs), positions=positions)
        call = None
        runner: Runner | None = None
        if not prepared.empty:
            call = prepared.call()
            runner = Runner(call)
            runner.bind(memories_of(prepared.inputs, prepared.outputs, prepared.tables))
            runner.place(positions.value)
            runner.bind_norms(prepared.setup.norms)
            runner.keep_bound()
        self._prepared, self._call, self._runner = prepared, call, runner
        self._value, self._result = positions.value, self._results(outputs)
        self._lent = any(out is not own for out, own in zip(outputs, self._own, strict=True))
        self._note_sides()

    def _note_sides(self) -> None:
        """Keep what each run looks at: torch tensors and OpenCL arrays, and NumPy arrays so that none is resized."""
        given = self._prepared
        sides = self._sides(given.inputs, given.outputs)
        self._tensor_sides = [(name, o) for name, o in sides if o.kind == "torch"]
        #: What was bound of each torch tensor at first, also of the plan's own outputs.
        before, held = self._bound, [*(o for _, o in sides), *self._own]
        self._bound = {id(o): before.get(id(o)) or _description(o.original) for o in held if o.kind == "torch"}
        # NumPy does not resize an array that has a weak reference.
        self._unresized = [weakref.ref(o.original) for _, o in sides if type(o.original) is np.ndarray]
        self._tensors = [o.original for o in given.outputs if o is not None and o.kind == "torch"]
        pairs = list(zip(given.inputs, given.outputs, strict=True))
        arrays = [a for x, out in pairs for o in (x, out) if o is not None for a in (o.array, o.twin)]
        self._arrays = [a for a in (*arrays, *(o.array for o in given.tables)) if a is not None]
        written = [a for _, out in pairs if out is not None for a in (out.array, out.twin)]
        self._written = [a for a in written if a is not None]
        self._last = LIMIT - given.inputs[0].view.shape[1] + 1
        self._counting = given.positions.form == COUNTING and not isinstance(given.setup.source, CallerTables)

    def __reduce__(self) -> NoReturn:
        raise CopyError(
            "plan: it is bound to its arrays and to this process, and can be neither copied nor pickled; make another "
            "one by `Rope.plan`"
        )

    @property
    def device(self) -> DeviceInfo:
        """The device it runs on."""
        return self._state.runtime.info

    @property
    def queue(self) -> pyopencl.CommandQueue:
        """The queue it runs on."""
        return self._state.queue

    @property
    def _state(self) -> QueueState:
        return self._prepared.target(self._prepared.inputs) if self._call is None else self._call.state

    @property
    def variants(self) -> list[Variant]:
        """The kernel variant of each launch."""
        return [] if self._call is None else self._call.variants

    @property
    def specs(self) -> list[LaunchSpec]:
        """Kernel file, options, sizes and arguments of each launch."""
        return [] if self._call is None else self._call.specs

    @property
    def launches(self) -> int:
        """Number of rotation launches of one run."""
        return len(self.specs)

    @property
    def out(self) -> Any:
        """The output, or a tuple of them."""
        return self._results(self._own)

    def _results(self, outputs: Sequence[Operand]) -> Any:
        results = tuple(out.original for out in outputs)
        return results if self._prepared.setup.several else results[0]

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
                if self._call is not None and getpid() != self._call.state.runtime.pid:
                    self._call.state.runtime.check()
                if x is not None or out is not None or self._lent:
                    self._replace(x, out)
                elif self._tensor_sides:
                    self._check_tensors(self._tensor_sides)
                if positions is not None:
                    self._move(positions)
                return self._run(waits)
        except Exception as error:
            if self._call is not None:
                failure = launch_error(self._call.state.runtime.info.name, error)
                if failure is not None:
                    raise failure from error
            raise

    def _run(self, waits: Sequence[Any]) -> Any:
        call = self._call
        if call is None:
            return self._result
        # What an error or an interrupt leaves half set is not used again.
        runner, self._runner = self._runner, None
        if runner is None:
            given = self._prepared
            runner = Runner(call)
            runner.bind(memories_of(given.inputs, given.outputs, given.tables))
        runner.place(self._value)
        runner.bind_norms(self._prepared.setup.norms)
        if self._tensors:
            note_writes(self._tensors)
        if call.on_host:
            if waits:
                call.state.check_waits(pending(waits))
                wait_on_host(waits)
            runner.run_on_host(self)
        else:
            runner.run_on_device(waits, self._arrays, self._written)
        self._runner = runner
        return self._result

    def _move(self, positions: Any) -> None:
        """Take other positions."""
        if self._counting and type(positions) is int and -LIMIT <= positions <= self._last:
            self._value = positions
            return
        given = self._prepared
        batch, seq = given.inputs[0].view.shape[:2]
        if self._call is None:
            given.setup.source.check(positions, batch, seq)
            return
        moved = given.setup.source.positions(positions, batch, seq)
        if moved.form != given.positions.form:
            self._take(given.inputs, [o for o in given.outputs if o is not None], moved)
        self._value = moved.value

    def _sides(self, inputs: Sequence[Operand], outputs: Sequence[Operand | None]) -> list[tuple[str, Operand]]:
        """Return all arrays of a run by the argument's name."""
        sides = [("x", o) for o in inputs]
        sides += [("out", out) for x, out in zip(inputs, outputs, strict=True) if out is not None and out is not x]
        return [*sides, *zip(("cos", "sin"), self._prepared.tables, strict=False)]

    def _check_tensors(self, sides: Sequence[tuple[str, Operand]]) -> None:
        """Raise `ShapeError` for a tensor of a run that is no more what was bound."""
        for name, o in sides:
            bound = self._bound.get(id(o))
            if bound is not None and _description(o.original) != bound:
                raise ShapeError(
                    f"{name}: memory, shape, strides, dtype or requires_grad of the tensor were replaced "
                    "(as `data = `, `set_`, `resize_`, `requires_grad_` do) after the plan was made; make a new plan"
                    + (", or give the tensor to `run`" if name == "x" else "")
                )

    def _replace(self, x: Any, out: Any) -> None:
        """Bind to other inputs, to other outputs for one run, or to the plan's own again.

        Raises `ShapeError` for what does not fit. out: None, of a part as well, for the plan's own output.
        """
        given = self._prepared
        inputs = given.inputs
        in_place = [a is own for a, own in zip(inputs, self._own, strict=True)]
        if x is not None:
            arrays = self._listed("x", x)
            inputs = [_like("x", new, was, moved) for new, was, moved in zip(arrays, inputs, in_place, strict=True)]
        outputs = [a if moved else own for a, own, moved in zip(inputs, self._own, in_place, strict=True)]
        if out is not None:
            if any(in_place):
                raise ShapeError("out: given to a plan that rotates in place; make a plan with another `out`")
            arrays = self._listed("out", out)
            outputs = [
                own if new is None else _like("out", new, own, True)
                for new, own in zip(arrays, self._own, strict=True)
            ]  # fmt: skip
        for taken, target, moved, own in zip(inputs, outputs, in_place, self._own, strict=True):
            if not moved and check_out(taken, target):
                what = "x: is the plan's own output" if target is own else "out: is the plan's input"
                raise ShapeError(f"{what}, the plan was made to rotate out of place")
        check_apart(inputs, outputs)
        sides = self._sides(inputs, outputs)
        self._check_tensors(sides)
        for name, o in sides:
            if self._call is not None and o.array is not None and o.array.context != self._call.state.runtime.context:
                raise ShapeError(f"{name}: the array lives in another OpenCL context than the plan")
        self._own = [a if moved else own for a, own, moved in zip(inputs, self._own, in_place, strict=True)]
        self._take(inputs, outputs, given.positions._replace(value=self._value))

    def _listed(self, name: str, given: Any) -> list[Any]:
        own = self._own
        arrays = listed(name, given, len(own)) if self._prepared.setup.several else [given]
        if len(arrays) != len(own):
            raise ShapeError(f"{name}: got {len(arrays)} arrays, the plan was made for {len(own)}")
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
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad, within_storage(tensor)
