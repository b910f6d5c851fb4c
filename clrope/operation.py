"""`Rope`: one configuration on one device; plans and calls for arrays of any kind."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from os import getpid
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .arguments import listed
from .arrays import Operand, check_apart, check_forward, check_out, empty_like, operand
from .config import RopeConfig
from .device import DeviceInfo
from .device import device as chosen_device
from .device.discovery import check_fork
from .errors import ConfigError, DeviceError, ShapeError, shown
from .kernels.kernel import Kernel
from .kernels.problem import PairLayout
from .kernels.variant import Variant, check_variant
from .layout import LONGEST_AXIS
from .plan.angle_sources import ConfigAngles, PositionForm, Positions, counting_from
from .plan.plan import EmptyPlan, Plan
from .plan.recent import RecentCall
from .plan.template import CallTemplate, Transfer, check_transfer, describe
from .positions import Offsets, chosen_positions, position_rows
from .runtime import (
    QueueState,
    Runtime,
    check_events,
    keep,
    launch_error,
    opencl_errors,
    queue_for,
    runtime_for,
    runtimes,
    wait_on_host,
)
from .select import database

if TYPE_CHECKING:
    import pyopencl

#: Calls that an operation finds again by comparing.
RECENT_KEPT = 8


class Rope:
    """A configuration bound to a device: `op(x, positions)`, `op.plan(...)`, `op.cos_sin(positions)`.

    device: anything `clrope.device` takes; a caller's own Context or CommandQueue is used as it is. Nothing is started
    before the first plan. variant: a kernel variant to use instead of the chosen one. kernel: a kernel of your own
    (`clrope.lab.load`); calls that it cannot express raise `UnsupportedError`.

    A copy is on the same device, context or queue. Pickled, it finds its device again in the other process, or raises
    `DeviceError` there when it is used.
    """

    def __init__(
        self,
        config: RopeConfig,
        device: Any = "auto",
        *,
        variant: Variant | None = None,
        kernel: Kernel | None = None,
    ) -> None:
        if not isinstance(config, RopeConfig):
            raise ConfigError(f"config: got {type(config).__name__}, a RopeConfig is needed")
        if kernel is not None:
            if not isinstance(kernel, Kernel):
                raise ConfigError(f"kernel: got {type(kernel).__name__}, what clrope.lab.load returns is needed")
            if variant is not None:
                raise ConfigError("kernel: given together with variant, which is of another kernel")
            variant = Variant(kernel if kernel.configured is None else kernel.configured(config))
        check_variant(variant)
        self.config = config
        self.variant = variant
        # 'auto': the environment may choose, as for clrope.device().
        self._selector = None if isinstance(device, str) and device == "auto" else device
        self._by_name = self._selector is None or isinstance(self._selector, (str, DeviceInfo))
        self._own: QueueState | None = None
        #: The last calls by shape and dtype of their first array and the direction: q and k may come in turns.
        self._recent: dict[Any, RecentCall] = {}
        self._lock = threading.Lock()

    def __copy__(self) -> Rope:
        return _unpickled(self.config, self._selector, self.variant)

    def __deepcopy__(self, memo: dict[int, Any]) -> Rope:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        # Contexts and queues stay in this process; the device is found again.
        selector = self._selector if self._by_name else chosen_device(self._selector)
        return _unpickled, (self.config, selector, self.variant)

    @property
    def device(self) -> DeviceInfo:
        """The device that host arrays are rotated on (chosen at the first use)."""
        return self._target().runtime.info

    def __repr__(self) -> str:
        return f"Rope({self.config!r}, device={self._selector!r})"

    def __call__(
        self,
        x: Any,
        positions: Any = None,
        forward: bool = True,
        out: Any = None,
        layout: str = "bsnd",
        *,
        offsets: Any = None,
        wait_for: Sequence[pyopencl.Event] | None = None,
    ) -> Any:
        """Rotate x (an array or a tuple of arrays that share positions) and return the result; see `clrope.rope`."""
        try:
            if positions is None or offsets is not None:
                positions = chosen_positions(positions, offsets)
            several = type(x) is tuple or type(x) is list
            inputs = list(x) if several else [x]
            like = recent = None
            try:
                plain = out is None and wait_for is None and type(layout) is str
                if plain and type(positions) is int and inputs:
                    like = inputs[0].shape, inputs[0].dtype, forward
                    recent = self._recent.get(like)
            except MemoryError:
                raise
            except Exception:  # of the array's own code; `operand` says it
                like = None
            if recent is not None:
                result = recent.run(inputs, several, positions, forward, layout)
                if result is not None:
                    return result
            forward = check_forward(forward)
            waits = () if wait_for is None else check_events(wait_for)
            found = self._known(inputs, several, out, forward, layout)
            if found is None:
                plan = self.plan(x, positions, forward, out, layout)
                result = plan.run(wait_for=waits)
                self._remember(plan, inputs, several, out, forward, layout)
                return result
            template, outputs, memories, queue = found
            if like is not None and (recent is None or recent.replaceable) and RecentCall.fits(template):
                made = RecentCall(template, queue, inputs, forward, layout, recent)
                with self._lock:
                    keep(self._recent, like, made, RECENT_KEPT)
            source = template.source
            assert isinstance(source, ConfigAngles)
            places = counting_from(positions, template.seq) if type(positions) is int else None
            if places is None:
                try:
                    places = source.positions(positions, template.batch, template.seq)
                except (ShapeError, ConfigError) as error:
                    raise type(error)(f"{error}\n  in {call_text(x, positions, self.config, layout)}") from error
            call = template.compiled(places.form)
            if waits and template.all_on_host:
                wait_on_host(waits)
            return template.run(call, queue, inputs, outputs, memories, places, waits, layout)
        except Exception as error:
            failed = launch_error(self._device_name, error)
            if failed is not None:
                raise failed from error
            raise

    def _known(
        self, inputs: list[Any], several: bool, out: Any, forward: bool, layout: str
    ) -> tuple[CallTemplate, list[Any], list[Any], QueueState] | None:
        """Return (template, outputs with None for new ones, memories, queue) of a call like one before.

        None if there was none, or if the arrays need a closer look.
        """
        described = self._describe(inputs, several, out, forward, layout)
        if described is None:
            return None
        key, outputs, memories, state = described
        template = state.runtime.calls.get(key)
        if template is None or (template.may_overlap and template.overlap(memories)):
            return None
        return template, outputs, memories, state

    def _describe(
        self, inputs: list[Any], several: bool, out: Any, forward: bool, layout: str
    ) -> tuple[Any, list[Any], list[Any], QueueState] | None:
        """Return (signature, outputs, memories, queue); None for arrays that need a closer look.

        memories: addresses or OpenCL arrays, inputs and outputs in turn, None for new results.
        """
        if out is None:
            outputs: list[Any] = [None] * len(inputs)
        elif several:
            if type(out) is not tuple and type(out) is not list:
                return None
            outputs = list(out)
        else:
            outputs = [out]
        if len(outputs) != len(inputs) or not inputs or type(layout) is not str:
            return None
        key: list[Any] = [self.config, self.variant, forward, layout, several, database.generation()]
        memories: list[Any] = []
        hosts = 0
        for a, b in zip(inputs, outputs, strict=True):
            described = describe(a)
            if described is None or 0 in a.shape:
                return None
            kind, memory = described
            key.append(kind)
            memories.append(memory)
            hosts += type(memory) is int
            if b is None:
                key.append(None)
                memories.append(None)
            elif b is a:
                key.append("in place")
                memories.append(memory)
            else:
                described = describe(b)
                if described is None or _same_memory(memory, described[1]):
                    return None
                key.append(described[0])
                memories.append(described[1])
        if hosts:
            if any(type(memory) is not int for memory in memories if memory is not None):
                return None
            state = self._target()
        elif any(type(memory) is int for memory in memories) or memories[0].queue is None:
            return None
        else:
            state = runtimes.of_queue(memories[0].queue)
            if not self._on_one_queue(state, memories):
                return None
        if getpid() != state.runtime.pid:
            state.runtime.check()
        return tuple(key), outputs, memories, state

    def _on_one_queue(self, state: QueueState, arrays: list[Any]) -> bool:
        """Whether OpenCL arrays are in one context, and where this operation is to work."""
        first = arrays[0].context
        for array in arrays:
            if array is not None and array.context is not first and array.context != first:
                return False
        if self._selector is None:
            return True
        own = self._target()
        return own is state or (self._by_name and own.runtime.cl_device == state.runtime.cl_device)

    def _remember(self, plan: Plan, inputs: list[Any], several: bool, out: Any, forward: bool, layout: str) -> None:
        """Keep the template of a call for calls like it."""
        described = self._describe(inputs, several, out, forward, layout)
        if described is None or isinstance(plan, EmptyPlan):
            return
        outputs = described[1]
        if plan.template.in_place != [b is a for a, b in zip(inputs, outputs, strict=True)]:
            return  # in place by another array over the same memory, which the signature does not say
        key, _, _, state = described
        state.runtime.remember_call(key, plan.template)

    def plan(
        self,
        x: Any,
        positions: Any = None,
        forward: bool = True,
        out: Any = None,
        layout: str = "bsnd",
        *,
        offsets: Any = None,
        transfer: Transfer = "auto",
    ) -> Plan:
        """Check everything, build, bind, and return a `Plan` whose `run()` rotates these arrays.

        transfer: how host arrays reach the device: 'map' in place, 'copy' in chunks, 'auto' by whether the device
        shares the host's memory. Other arguments and errors as for `clrope.rope`.
        """
        positions = chosen_positions(positions, offsets)
        try:
            with opencl_errors(self._device_name):
                return self._plan(x, positions, forward, out, layout, transfer)
        except (ShapeError, ConfigError) as error:
            raise type(error)(f"{error}\n  in {call_text(x, positions, self.config, layout)}") from error

    def cos_sin(self, positions: Any, *, head_dim: int | None = None) -> tuple[Any, Any]:
        """Return (cos, sin), NumPy float32 [rows, pairs], times the magnitude, made by the device's kernels.

        positions: an int, [R], or [3, R] / [4, R] in section modes. head_dim: needed if n_dims is not set, else
        checked against it.
        """
        config = self.config
        if config.n_dims is None and head_dim is None:
            raise ConfigError("n_dims: the configuration has none, give head_dim")
        if head_dim is not None:
            config = config.for_head_dim(head_dim)
        where = position_rows(positions, config, batch=None, seq=None)
        shape = (where.count, config.n_pairs(None))
        results: list[npt.NDArray[np.float32]] = [np.empty(shape, np.float32) for _ in range(2)]
        if where.count == 0:
            return results[0], results[1]
        form = PositionForm(False, where.rows.shape[0], 0, where.beyond_32_bits)
        with opencl_errors(self._device_name):
            own = self._target()
            own.runtime.check()
            self._fill(results, own, Positions(form, where.rows), config)
        return results[0], results[1]

    @staticmethod
    def _fill(results: list[Any], own: QueueState, positions: Positions, config: RopeConfig) -> None:
        import pyopencl as cl

        runtime, queue = own.runtime, own.queue
        rows = slice(0, results[0].shape[0])
        tables = ConfigAngles(config).tables(runtime, queue, positions, rows, "f32")
        with runtime.using(queue, results):
            if tables.ready is not None:
                tables.ready.wait()
            for result, buffer in zip(results, (tables.cosine, tables.sine), strict=True):
                cl.enqueue_copy(queue, result, buffer)

    @property
    def _device_name(self) -> str:
        return str(self._own.runtime.info.name) if self._own else shown(self._selector, str)

    def _target(self) -> QueueState:
        """Return the queue that host arrays are rotated on, chosen at the first use."""
        own = self._own
        if own is None:
            check_fork()
            with self._lock:
                if self._own is None:
                    runtime = runtime_for(self._selector)
                    self._own = runtime.queue_state(runtime.queue if self._by_name else queue_for(self._selector))
                own = self._own
        return own

    def target_of(self, operands: list[Operand]) -> tuple[Runtime, pyopencl.CommandQueue]:
        """Return runtime and queue: the arrays' own where they are on a device. Raises `DeviceError`, `ShapeError`."""
        arrays = [o.array for o in operands if o.kind == "opencl"]
        if not arrays:
            own = self._target()
            own.runtime.check()
            return own.runtime, own.queue
        if not self._by_name:
            own = self._target()
            runtime, queue = own.runtime, own.queue
            if any(a.context != queue.context for a in arrays):
                raise DeviceError("x: the array lives in another OpenCL context than the queue or context given")
            runtime.check()
            return runtime, queue
        first = arrays[0]
        if any(a.context != first.context for a in arrays[1:]):
            raise ShapeError("x: the arrays live in different OpenCL contexts")
        queue = first.queue if first.queue is not None else queue_for(first.context)
        runtime = runtime_for(queue)
        runtime.check()
        if self._selector is not None:
            wanted = self.device
            if wanted.cl_device != runtime.cl_device:
                raise DeviceError(f"device: {wanted.name!r} was asked for, but x lives on {runtime.info.name!r}")
        return runtime, queue

    def _plan(self, x: Any, positions: Any, forward: bool, out: Any, layout: str, transfer: Transfer) -> Plan:
        forward = check_forward(forward)
        check_transfer(transfer)
        several = isinstance(x, (tuple, list))
        inputs = [operand(a, layout) for a in (x if several else [x])]
        if not inputs:
            raise ShapeError("x: got no arrays")
        outputs = outputs_of(inputs, out, not several, layout)
        batch, seq = inputs[0].view.shape[:2]
        heads = sum(o.view.shape[2] for o in inputs)
        if heads > LONGEST_AXIS:
            raise ShapeError(f"x: got {heads} heads in {len(inputs)} arrays, at most 2**30 are allowed")
        configs = []
        for o in inputs:
            if o.view.shape[:2] != (batch, seq):
                raise ShapeError(
                    f"x: arrays that share positions need the same batches and tokens, got {[batch, seq]} "
                    f"and {list(o.view.shape[:2])}"
                )
            configs.append(self.config.for_head_dim(o.view.shape[3]) if o.view.shape[3] else None)
        known = {c for c in configs if c is not None}
        if len(known) > 1:
            raise ShapeError("x: arrays of different head_dim share positions only if the configuration sets n_dims")
        config = next(iter(known), self.config if self.config.n_dims else replace(self.config, n_dims=2))
        source = ConfigAngles(config)
        pairs = [PairLayout.of_config(config, max(2, o.view.shape[3])) for o in inputs]

        def target() -> tuple[CallTemplate, pyopencl.CommandQueue]:
            runtime, queue = self.target_of([*inputs, *(o for o in outputs if o is not None)])
            template = CallTemplate(
                runtime, list(zip(inputs, outputs, strict=True)), pairs, source, forward=forward,
                several=several, variant=self.variant, transfer=transfer,
            )  # fmt: skip
            return template, queue

        if not any(o.view.size for o in inputs):
            check = partial(source.check, batch=batch, seq=seq)
            check(positions)
            return EmptyPlan(made_outputs(inputs, outputs, None), several, target, check)
        where = source.positions(positions, batch, seq)
        template, queue = target()
        return Plan(template, made_outputs(inputs, outputs, (template, queue)), source, where, queue)


def _unpickled(config: RopeConfig, device: Any, variant: Variant | None) -> Rope:
    return Rope(config, device, variant=variant)


def made_outputs(
    inputs: list[Operand], outputs: list[Operand | None], target: tuple[CallTemplate, Any] | None
) -> list[tuple[Operand, Operand]]:
    """Return (input, output) pairs with the outputs made that were not given."""
    pairs = []
    for k, (o, given) in enumerate(zip(inputs, outputs, strict=True)):
        if given is None and target is not None and o.view.size:
            template, queue = target
            make = template.makers[k]
            assert make is not None
            made = make(o.array if o.kind == "opencl" else o.original, template.runtime.queue_state(queue))[0]
            given = operand(made, o.layout, "out", writable=True)
        pairs.append((o, empty_like(o) if given is None else given))
    return pairs


def _same_memory(a: Any, b: Any) -> bool:
    if type(a) is int or type(b) is int:
        return type(a) is type(b) and a == b
    # Parts of one buffer are other objects than it: `CallTemplate.overlap` looks where they are.
    return bool(a.base_data is b.base_data or a.base_data == b.base_data)


def outputs_of(inputs: list[Operand], out: Any, single: bool, layout: str) -> list[Operand | None]:
    """Return the checked outputs; an output that is the input's own memory is returned as the input itself."""
    if out is None:
        return [None] * len(inputs)
    given = [out] if single else listed("out", out, len(inputs))
    if len(given) != len(inputs):
        raise ShapeError(f"out: got {len(given)} arrays for {len(inputs)} inputs")
    result: list[Operand | None] = []
    for o, candidate in zip(inputs, given, strict=True):
        if candidate is None:
            result.append(None)
            continue
        target = operand(candidate, layout, "out", writable=True)
        if check_out(o, target):
            # The same memory: the input stands for it, but what is returned is the caller's own object.
            o.original = candidate
            if target.array is not o.array:
                o.twin = target.array
            result.append(o)
        else:
            result.append(target)
    check_apart(inputs, result)
    return result


def call_text(x: Any, positions: Any, config: RopeConfig, layout: str) -> str:
    """Return a call in words, for the end of an error's message."""

    def text(a: Any, depth: int = 3) -> str:
        try:
            if isinstance(a, (tuple, list)):
                if not depth:
                    return "(...)"
                return "(" + ", ".join(text(b, depth - 1) for b in a[:4]) + (", ..." if len(a) > 4 else "") + ")"
            shape = getattr(a, "shape", None)
            return repr(a)[:40] if shape is None else f"{getattr(a, 'dtype', '')}{list(shape)}"
        except Exception:  # of its own code
            return type(a).__name__

    where = f"positions={text(positions)}"
    if isinstance(positions, Offsets):
        where = f"offsets={text(positions.array)}"
    plain = RopeConfig("normal").to_dict()
    fields = "".join(
        f", {k}={'...' if isinstance(v, list) and len(v) > 4 else repr(v)}"
        for k, v in config.to_dict().items()
        if k == "mode" or v != plain[k]
    )
    return f"rope(x={text(x)}, {where}, layout={shown(layout)}{fields})"
