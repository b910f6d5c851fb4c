"""`Rope`: one configuration on one device; plans and calls for arrays of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from os import getpid
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .arrays import Operand, check_forward
from .call.array_signature import signature
from .call.events import check_events, opencl_errors, raise_opencl_error
from .call.filled_tables import fill_on_host
from .call.plan import Plan
from .call.prepare import CheckedCall, Transfer, call_text, prepare
from .call.runtime import QueueState, runtime_for, runtimes
from .call.sources import COUNTING, LIMIT, ConfigAngles, PositionForm, positions_of
from .config import RopeConfig
from .device import DeviceInfo
from .device import device as chosen_device
from .errors import ConfigError, DeviceError, ShapeError, shown
from .kernels.kernel import Kernel
from .kernels.variant import Variant, check_variant
from .layout import LONGEST_AXIS, parse_layout
from .norm import Norm, checked_norms
from .positions import chosen_positions, position_rows
from .select import database

if TYPE_CHECKING:
    import pyopencl

#: First positions that count up within ±2**31 for any number of tokens.
_PLAIN = LIMIT - LONGEST_AXIS


class Rope:
    """A configuration bound to a device: `op(x, positions)`, `op.plan(...)`, `op.cos_sin(positions)`.

    device: anything `clrope.device` takes; None is 'auto'. A caller's own Context or CommandQueue is used as it is.
    Nothing is started before the first plan. variant: a kernel variant to use instead of the chosen one. kernel: a
    kernel of your own (`clrope.lab.load`); calls that it cannot express raise `UnsupportedError`.

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
        self._own: QueueState | None = None

    @property
    def _by_name(self) -> bool:
        return self._selector is None or isinstance(self._selector, (str, DeviceInfo))

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
        """The device that host arrays are rotated on (chosen at the first use); small calls: see `Plan.device`."""
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
        norm: Any = None,
    ) -> Any:
        """Rotate x (an array or a tuple of arrays that share positions) and return the result; see `clrope.rope`."""
        try:
            if positions is None or offsets is not None:
                positions = chosen_positions(positions, offsets)
            waits = () if wait_for is None else check_events(wait_for)
            several = type(x) is tuple or type(x) is list
            inputs = x if several else (x,)
            norms = () if norm is None else checked_norms(norm, x)
            found = None
            if (forward is True or forward is False) and type(layout) is str:
                found = signature(inputs, several, out)
            if found is None:
                return self._checked(x, positions, forward, out, layout, "auto", norms).run(waits)
            key, given, memories, on_host = found
            state = self.target_of_memories(memories, on_host)
            if type(positions) is int and -_PLAIN <= positions <= _PLAIN:
                form, value = COUNTING, positions
            else:
                form, value = self._positions(x, inputs[0].shape, positions, forward, out, layout)
            signed = (*key, self.config, self.variant, forward, layout, several, database.snapshot.rereads, form, state)
            if norms:
                signed += tuple(None if n is None else n.form for n in norms)
            call = state.runtime.calls.get(signed)
            if call is None or (call.may_overlap and call.overlap(memories)):
                in_place = [b is a for a, b in zip(inputs, given, strict=True)]
                return self._checked(x, positions, forward, out, layout, "auto", norms).run(waits, signed, in_place)
            return call.run(inputs, given, memories, value, waits, norms)
        except Exception as error:
            raise_opencl_error(error, self.device_name)
            raise

    def _positions(
        self, x: Any, shape: tuple[int, ...], positions: Any, forward: bool, out: Any, layout: str
    ) -> tuple[PositionForm, Any]:
        """Return the form and value of positions for arrays of a shape, of which the first was not checked yet."""
        try:
            letters = parse_layout(layout, len(shape))
            batch = shape[letters.index("b")] if "b" in letters else 1
            return positions_of(positions, self.config, batch, shape[letters.index("s")])
        except (ShapeError, ConfigError):
            self._checked(x, positions, forward, out, layout, "auto")  # raises what is wrong with x first
            raise

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
        norm: Any = None,
    ) -> Plan:
        """Check everything, build, bind, and return a `Plan` whose `run()` rotates these arrays.

        transfer: how host arrays reach the device: 'map' in place, 'copy' in chunks, 'auto' by whether the device
        shares the host's memory. Other arguments and errors as for `clrope.rope`.
        """
        positions = chosen_positions(positions, offsets)
        norms = checked_norms(norm, x)
        with opencl_errors(self.device_name):
            return Plan(self._checked(x, positions, forward, out, layout, transfer, norms))

    def _checked(
        self, x: Any, positions: Any, forward: Any, out: Any, layout: str, transfer: Transfer,
        norms: tuple[Norm | None, ...] = (),
    ) -> CheckedCall:  # fmt: skip
        """Return the checked call of these arguments, for which there is a kernel."""
        try:
            checked = prepare(
                self.config, self.variant, x, positions, check_forward(forward), out, layout, transfer, self.target_of,
                norms,
            )  # fmt: skip
            if not checked.empty:
                checked.call  # noqa: B018 - selected and built now
            return checked
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
        results: list[npt.NDArray[np.float32]] = [
            np.empty((where.count, config.n_pairs(None)), np.float32) for _ in range(2)
        ]
        if where.count:
            form = PositionForm(False, where.rows.shape[0], 0, where.beyond_32_bits)
            with opencl_errors(self.device_name):
                own = self._target()
                own.runtime.check()
                fill_on_host(own, ConfigAngles(config), form, where.rows, results)
        return results[0], results[1]

    @property
    def device_name(self) -> str:
        """The device's name if it was chosen already, otherwise what was asked for."""
        return str(self._own.runtime.info.name) if self._own else shown(self._selector, str)

    def _target(self) -> QueueState:
        """Return the queue that host arrays are rotated on, chosen at the first use; see `Runtime.check` for forks."""
        own = self._own
        if own is None:
            own = self._own = runtimes.state_of(self._selector)
        return own

    def _state_of(self, arrays: Sequence[Any]) -> QueueState:
        """Return the queue that OpenCL arrays are rotated on; None for new ones. Raises `DeviceError`, `ShapeError`."""
        first = arrays[0]
        queue = first.queue
        if not self._by_name:
            own = self._target()
            for array in arrays:
                if array is not None and array.queue is not own.queue and array.context != own.queue.context:
                    raise DeviceError("x: the array lives in another OpenCL context than the queue or context given")
            return own
        for array in arrays:
            if array is not None and array.queue is not queue and array.context != first.context:
                raise ShapeError("x: the arrays live in different OpenCL contexts")
        state = runtimes.of_queue(queue) if queue is not None else runtime_for(first.context).state
        if self._selector is not None:
            wanted, found = (self._own or self._target()).runtime.info, state.runtime.info
            if wanted is not found and wanted.cl_device != found.cl_device:
                raise DeviceError(f"device: {wanted.name!r} was asked for, but x lives on {found.name!r}")
        return state

    def target_of_memories(self, memories: Sequence[Any], on_host: bool) -> QueueState:
        """Return the queue of arrays that `signature` described."""
        state = self._target() if on_host else self._state_of(memories)
        if getpid() != state.runtime.pid:
            state.runtime.check()
        return state

    def target_of(self, operands: Sequence[Operand]) -> QueueState:
        """Return the queue: the arrays' own where they are on a device. Raises `DeviceError`, `ShapeError`."""
        arrays = [o.array for o in operands if o.kind == "opencl"]
        return self.target_of_memories(arrays, not arrays)


def _unpickled(config: RopeConfig, device: Any, variant: Variant | None) -> Rope:
    return Rope(config, device, variant=variant)
