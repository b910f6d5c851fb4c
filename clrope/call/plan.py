"""`Plan`: a call that keeps its arrays; run as often as wanted."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from os import getpid
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..arguments import listed
from ..arrays import Operand, check_apart, check_out, empty_like, note_writes, operand, within_storage
from ..errors import CopyError, ShapeError
from ..kernels.launch import LaunchSpec
from ..kernels.variant import Variant
from ..positions import chosen_positions
from .call import Call
from .events import check_events, launch_error, pending, wait_on_host
from .prepare import CheckedCall, memories_of
from .runner import Runner
from .runtime import QueueState
from .sources import COUNTING, LIMIT, CallerTables

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
        call = None if prepared.empty else prepared.call()
        outputs = [
            _new_output(x, call, k) if out is None else out
            for k, (x, out) in enumerate(zip(prepared.inputs, prepared.outputs, strict=True))
        ]
        self._binding = _Binding(prepared._replace(outputs=[*outputs]), outputs, {})

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
        call, checked = self._binding.call, self._binding.checked
        return checked.target(checked.inputs) if call is None else call.state

    @property
    def variants(self) -> list[Variant]:
        """The kernel variant of each launch."""
        return [] if self._binding.call is None else self._binding.call.variants

    @property
    def specs(self) -> list[LaunchSpec]:
        """Kernel file, options, sizes and arguments of each launch."""
        return [] if self._binding.call is None else self._binding.call.specs

    @property
    def launches(self) -> int:
        """Number of rotation launches of one run."""
        return len(self.specs)

    @property
    def out(self) -> Any:
        """The output, or a tuple of them."""
        return _results(self._binding.checked, self._binding.own)

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
        call = self._binding.call
        try:
            with self._lock:
                waits = () if wait_for is None else check_events(wait_for)
                if offsets is not None:
                    positions = chosen_positions(positions, offsets)
                if call is not None and getpid() != call.state.runtime.pid:
                    call.state.runtime.check()
                binding = self._binding
                if x is not None or out is not None or binding.lent:
                    binding = self._replaced(binding, x, out)
                elif binding.tensor_sides:
                    binding.check_tensors(binding.tensor_sides)
                if positions is not None:
                    if binding.counting and type(positions) is int and -LIMIT <= positions <= binding.last:
                        binding.value = positions
                    else:
                        binding = _moved(binding, positions)
                self._binding = binding
                return binding.run(waits)
        except Exception as error:
            failure = None if call is None else launch_error(call.state.runtime.info.name, error)
            if failure is not None:
                raise failure from error
            raise

    def _replaced(self, binding: _Binding, x: Any, out: Any) -> _Binding:
        """Return a binding to other inputs, to other outputs for one run, or to the plan's own again.

        Raises `ShapeError` for what does not fit. out: None, of a part as well, for the plan's own output.
        """
        checked, own = binding.checked, binding.own
        inputs = checked.inputs
        in_place = [a is b for a, b in zip(inputs, own, strict=True)]
        if x is not None:
            arrays = _listed("x", x, checked)
            inputs = [_like("x", new, was, moved) for new, was, moved in zip(arrays, inputs, in_place, strict=True)]
        own = [a if moved else b for a, b, moved in zip(inputs, own, in_place, strict=True)]
        outputs = own
        if out is not None:
            if any(in_place):
                raise ShapeError("out: given to a plan that rotates in place; make a plan with another `out`")
            arrays = _listed("out", out, checked)
            outputs = [b if new is None else _like("out", new, b, True) for new, b in zip(arrays, own, strict=True)]
        for taken, target, moved, b in zip(inputs, outputs, in_place, own, strict=True):
            if not moved and check_out(taken, target):
                what = "x: is the plan's own output" if target is b else "out: is the plan's input"
                raise ShapeError(f"{what}, the plan was made to rotate out of place")
        check_apart(inputs, outputs, checked.tables)
        checked = checked._replace(
            inputs=inputs, outputs=[*outputs], positions=checked.positions._replace(value=binding.value)
        )
        sides = _sides(checked)
        binding.check_tensors(sides)
        context = None if binding.call is None else binding.call.state.runtime.context
        for name, o in sides:
            if context is not None and o.array is not None and o.array.context != context:
                raise ShapeError(f"{name}: the array lives in another OpenCL context than the plan")
        return _Binding(checked, own, binding.described)


class _Binding:
    """All that a plan runs with: made as a whole and replaced as a whole, so that an interrupt leaves no mixture.

    checked:  the call with its arrays. own: the plan's outputs, in place of which one run may have others.
    value:    of positions, in the form that `checked` has.
    runner:   None while it runs, and after an error or an interrupt, which may have left it half set.
    described: what was bound of each torch tensor at first, by operand.
    """

    def __init__(self, checked: CheckedCall, own: list[Operand], described: Mapping[int, tuple[Any, ...]]) -> None:
        self.checked, self.own = checked, own
        self.call = None if checked.empty else checked.call()
        self.value = checked.positions.value
        outputs = [o for o in checked.outputs if o is not None]
        self.result = _results(checked, outputs)
        self.lent = any(a is not b for a, b in zip(outputs, own, strict=True))
        sides = _sides(checked)
        self.tensor_sides = [(name, o) for name, o in sides if o.kind == "torch"]
        held = [*(o for _, o in sides), *own]
        self.described = {id(o): described.get(id(o)) or _description(o.original) for o in held if o.kind == "torch"}
        # NumPy does not resize an array that has a weak reference.
        self._unresized = [weakref.ref(o.original) for _, o in sides if type(o.original) is np.ndarray]
        self._tensors = [o.original for o in outputs if o.kind == "torch"]
        arrays = [a for o in (*checked.inputs, *outputs) for a in (o.array, o.twin)]
        self._arrays = [a for a in (*arrays, *(o.array for o in checked.tables)) if a is not None]
        self._written = [a for o in outputs for a in (o.array, o.twin) if a is not None]
        self.last = LIMIT - checked.inputs[0].view.shape[1] + 1
        self.counting = checked.positions.form == COUNTING and not isinstance(checked.setup.source, CallerTables)
        self.runner = None if self.call is None else self._new_runner(self.call)
        if self.runner is not None:
            self.runner.place(self.value)
            self.runner.keep_bound()

    def _new_runner(self, call: Call) -> Runner:
        runner = Runner(call)
        runner.bind(memories_of(self.checked.inputs, self.checked.outputs, self.checked.tables))
        if self.checked.setup.norms:
            runner.bind_norms(self.checked.setup.norms)
        return runner

    def check_tensors(self, sides: Sequence[tuple[str, Operand]]) -> None:
        """Raise `ShapeError` for a tensor of a run that is no more what was bound."""
        for name, o in sides:
            bound = self.described.get(id(o))
            if bound is not None and _description(o.original) != bound:
                raise ShapeError(
                    f"{name}: memory, shape, strides, dtype or requires_grad of the tensor were replaced "
                    "(as `data = `, `set_`, `resize_`, `requires_grad_` do) after the plan was made; make a new plan"
                    + (", or give the tensor to `run`" if name == "x" else "")
                )

    def run(self, waits: Sequence[Any]) -> Any:
        """Rotate and return the result."""
        call = self.call
        if call is None:
            return self.result
        runner, self.runner = self.runner, None
        if runner is None:
            runner = self._new_runner(call)
        runner.place(self.value)
        if self._tensors:
            note_writes(self._tensors)
        if call.on_host:
            if waits:
                call.state.check_waits(pending(waits))
                wait_on_host(waits)
            runner.run_on_host(self)
        else:
            runner.run_on_device(waits, self._arrays, self._written)
        self.runner = runner
        return self.result


def _moved(binding: _Binding, positions: Any) -> _Binding:
    """Return the binding at other positions: a new one if they have another form."""
    checked = binding.checked
    batch, seq = checked.inputs[0].view.shape[:2]
    if binding.call is None:
        checked.setup.source.check(positions, batch, seq)
        return binding
    moved = checked.setup.source.positions(positions, batch, seq)
    if moved.form != checked.positions.form:
        return _Binding(checked._replace(positions=moved), binding.own, binding.described)
    binding.value = moved.value
    return binding


def _new_output(x: Operand, call: Call | None, k: int) -> Operand:
    make = None if call is None else call.makers[k]
    if call is None or make is None or not x.view.size:
        return empty_like(x)
    made = make(x.array if x.kind == "opencl" else x.original, call.state)[0]
    return operand(made, x.layout, "out", writable=True)


def _results(checked: CheckedCall, outputs: Sequence[Operand]) -> Any:
    results = tuple(out.original for out in outputs)
    return results if checked.setup.several else results[0]


def _sides(checked: CheckedCall) -> list[tuple[str, Operand]]:
    """Return all arrays of a run by the argument's name."""
    pairs = zip(checked.inputs, checked.outputs, strict=True)
    outputs = [("out", out) for x, out in pairs if out is not None and out is not x]
    return [*(("x", o) for o in checked.inputs), *outputs, *zip(("cos", "sin"), checked.tables, strict=False)]


def _listed(name: str, given: Any, checked: CheckedCall) -> list[Any]:
    count = len(checked.inputs)
    arrays = listed(name, given, count) if checked.setup.several else [given]
    if len(arrays) != count:
        raise ShapeError(f"{name}: got {len(arrays)} arrays, the plan was made for {count}")
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
