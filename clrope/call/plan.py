"""`Plan`: a call that keeps its arrays; run as often as wanted."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from os import getpid
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..arguments import listed
from ..arrays import Operand, check_apart, check_out, operand, within_storage
from ..errors import CopyError, ShapeError
from ..kernels.launch import LaunchSpec
from ..kernels.variant import Variant
from ..positions import chosen_positions
from .events import check_events, raise_opencl_error
from .prepare import CheckedCall, memories_of, originals, positions_for
from .runner import Runner
from .sources import COUNTING, LIMIT, CallerTables

if TYPE_CHECKING:
    import pyopencl

    from ..device import DeviceInfo


class Plan:
    """A checked, built and bound call. Made by `Rope.plan`; `run()` does the work and returns the result.

    Results go to the same output at every run. OpenCL arrays: the launches are put on the queue and `run` returns at
    once; the output carries the events. Host arrays: `run` returns when the result is there.
    """

    def __init__(self, checked: CheckedCall) -> None:
        self._lock = threading.Lock()
        state = checked.queue_state()
        outputs: list[Operand | None] = [
            operand(made, x.layout, "out", writable=True) if out is None else out
            for made, x, out in zip(checked.results(state), checked.inputs, checked.outputs, strict=True)
        ]
        self._bound = _BoundCall(replace(checked, outputs=outputs), {})

    def __reduce__(self) -> NoReturn:
        raise CopyError(
            "plan: it is bound to its arrays and to this process, and can be neither copied nor pickled; make another "
            "one by `Rope.plan`"
        )

    @property
    def device(self) -> DeviceInfo:
        """The device it runs on."""
        return self._bound.call.state.runtime.info

    @property
    def queue(self) -> pyopencl.CommandQueue:
        """The queue it runs on."""
        return self._bound.call.state.queue

    @property
    def variants(self) -> list[Variant]:
        """The kernel variant of each launch."""
        return self._bound.call.variants

    @property
    def specs(self) -> list[LaunchSpec]:
        """Kernel file, options, sizes and arguments of each launch."""
        return self._bound.call.specs

    @property
    def launches(self) -> int:
        """Number of rotation launches of one run."""
        return len(self.specs)

    @property
    def out(self) -> Any:
        """The output, or a tuple of them."""
        return self._bound.result

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
                bound = self._bound
                waits = () if wait_for is None else check_events(wait_for)
                if offsets is not None:
                    positions = chosen_positions(positions, offsets)
                if getpid() != bound.call.state.runtime.pid:
                    bound.call.state.runtime.check()
                if x is not None:
                    bound = _BoundCall(bound.with_arrays(x), bound.described)
                elif bound.described:
                    bound.check_tensors(bound.checked)
                once = None if out is None else bound.with_arrays(out=out)
                if positions is not None:
                    bound = bound.moved(positions)
                self._bound = bound
                if once is None:
                    return bound.run(waits)
                return replace(once, positions=bound.checked.positions._replace(value=bound.value)).run(waits)
        except Exception as error:
            raise_opencl_error(error, self.device.name)
            raise


class _BoundCall:
    """All that a plan runs with: made as a whole and replaced as a whole, so that an interrupt leaves no mixture.

    checked:  the call with its arrays, all given. value: of positions, in the form that `checked` has.
    runner:   None while it runs, and after an error or an interrupt, which may have left it half set.
    described: what was bound of each torch tensor at first, by operand.
    """

    def __init__(self, checked: CheckedCall, described: dict[int, tuple[Any, ...]]) -> None:
        self.checked, self.call, self.value = checked, checked.call, checked.positions.value
        self._inputs, self._outputs = originals(checked.inputs), originals(checked.outputs)
        self._memories = memories_of(checked.inputs, checked.outputs, checked.tables)
        self.result = tuple(self._outputs) if checked.several else self._outputs[0]
        sides = [o for _, o in _sides(checked)]
        self.described = {id(o): described.get(id(o)) or _description(o.original) for o in sides if o.kind == "torch"}
        # NumPy does not resize an array that has a weak reference.
        self._unresized = [weakref.ref(o.original) for o in sides if type(o.original) is np.ndarray]
        self._last = LIMIT - checked.inputs[0].view.shape[1] + 1
        self._counting = checked.positions.form == COUNTING and not isinstance(checked.source, CallerTables)
        self._runner: Runner | None = self._new_runner()
        self._runner.place(self.value)
        self._runner.keep_bound()

    def _new_runner(self) -> Runner:
        runner = Runner(self.call)
        runner.bind(self._memories)
        runner.bind_norms(self.checked.norms)
        return runner

    def run(self, waits: Sequence[Any]) -> Any:
        """Rotate and return the result."""
        runner, self._runner = self._runner, None
        if runner is None:
            runner = self._new_runner()
        runner.place(self.value)
        self.call.launch(runner, self._memories, self._inputs, self._outputs, waits)
        self._runner = runner
        return self.result

    def moved(self, positions: Any) -> _BoundCall:
        """Return this at other positions: a new one if they have another form."""
        if self._counting and type(positions) is int and -LIMIT <= positions <= self._last:
            self.value = positions
            return self
        checked = self.checked
        moved = positions_for(checked.source, checked.inputs, positions)
        if moved.form != checked.positions.form:
            return _BoundCall(replace(checked, positions=moved), self.described)
        self.value = moved.value
        return self

    def with_arrays(self, x: Any = None, out: Any = None) -> CheckedCall:
        """Return the call with other inputs, or with other outputs; raises `ShapeError` for what does not fit."""
        checked = self.checked
        inputs, outputs = checked.inputs, checked.outputs
        moved = [a is b for a, b in zip(inputs, outputs, strict=True)]
        if x is not None:
            arrays = _listed("x", x, checked)
            inputs = [_like("x", new, was, alike) for new, was, alike in zip(arrays, inputs, moved, strict=True)]
            outputs = [new if alike else own for new, own, alike in zip(inputs, outputs, moved, strict=True)]
        if out is not None:
            if any(moved):
                raise ShapeError("out: given to a plan that rotates in place; make a plan with another `out`")
            arrays = _listed("out", out, checked)
            outputs = [
                own if new is None or own is None else _like("out", new, own, True)
                for new, own in zip(arrays, outputs, strict=True)
            ]
        for a, b, alike, own in zip(inputs, outputs, moved, checked.outputs, strict=True):
            if b is not None and not alike and check_out(a, b):
                what = "x: is the plan's own output" if b is own else "out: is the plan's input"
                raise ShapeError(f"{what}, the plan was made to rotate out of place")
        check_apart(inputs, outputs, checked.tables)
        checked = replace(
            checked, inputs=inputs, outputs=outputs, positions=checked.positions._replace(value=self.value)
        )
        self.check_tensors(checked)
        for name, o in _sides(checked):
            if o.array is not None and o.array.context != self.call.state.runtime.context:
                raise ShapeError(f"{name}: the array lives in another OpenCL context than the plan")
        return checked

    def check_tensors(self, checked: CheckedCall) -> None:
        """Raise `ShapeError` for a tensor of a run that is no more what was bound."""
        for name, o in _sides(checked):
            bound = self.described.get(id(o))
            if bound is not None and _description(o.original) != bound:
                raise ShapeError(
                    f"{name}: memory, shape, strides, dtype or requires_grad of the tensor were replaced "
                    "(as `data = `, `set_`, `resize_`, `requires_grad_` do) after the plan was made; make a new plan"
                    + (", or give the tensor to `run`" if name == "x" else "")
                )


def _sides(checked: CheckedCall) -> list[tuple[str, Operand]]:
    """Return all arrays of a run by the argument's name."""
    pairs = zip(checked.inputs, checked.outputs, strict=True)
    outputs = [("out", out) for x, out in pairs if out is not None and out is not x]
    return [*(("x", o) for o in checked.inputs), *outputs, *zip(("cos", "sin"), checked.tables, strict=False)]


def _listed(name: str, given: Any, checked: CheckedCall) -> list[Any]:
    count = len(checked.inputs)
    arrays = listed(name, given, count) if checked.several else [given]
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
    shape, strides = tensor.shape, tensor.stride()
    return (
        tensor.data_ptr(), tensor.dtype, shape, strides, tensor.requires_grad, within_storage(tensor, shape, strides)
    )  # fmt: skip
