"""`Rope`: one configuration on one device; plans and calls for arrays of any kind."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .arrays import Operand, check_out, empty_like, operand
from .config import RopeConfig
from .device import DeviceInfo, device, queue_for
from .errors import ConfigError, DeviceError, ShapeError
from .kernels.variant import Variant
from .positions import PositionRows, position_rows
from .schedule.geometry import Geometry
from .schedule.plan import EmptyPlan, Part, Plan, Transfer
from .schedule.repeat import Repeats
from .schedule.rotation import Rotation
from .schedule.tables import Phases, Real, Tables, phases_of_config, tables_of_config

if TYPE_CHECKING:
    import pyopencl


class ConfigTables:
    """cos and sin of a configuration at positions that may move from run to run."""

    def __init__(self, config: RopeConfig, where: PositionRows, batch: int, seq: int) -> None:
        self.config = config
        self._where = where
        self._batch, self._seq = batch, seq

    @property
    def batch_stride(self) -> int:
        """Rows from one batch to the next; 0 if all share them."""
        return self._where.batch_stride

    @property
    def row_width(self) -> int:
        """Pairs of a row."""
        return self.config.n_pairs(None)

    @property
    def constant(self) -> bool:
        """The tables depend on the positions alone."""
        return True

    def move_to(self, positions: Any) -> None:
        """Take other positions; they must be shared by the batches, or not, as those of the plan."""
        where = position_rows(positions, self.config, batch=self._batch, seq=self._seq)
        if where.batch_stride != self._where.batch_stride:
            if self._where.batch_stride == 0:
                raise ShapeError(
                    "positions: the plan was made for positions that all batches share, got some per batch"
                )
            where = PositionRows(np.tile(where.rows, (1, self._batch)), self._where.batch_stride)
        self._where = where

    def tables(self, queue: pyopencl.CommandQueue, target: DeviceInfo, rows: slice, real: Real) -> Tables:
        """Return the tables of those rows, from memory if they were made before."""
        where = self._where
        return tables_of_config(queue, target, self.config, where.rows[:, rows], real, where.beyond_32_bits)

    def phases(self, context: pyopencl.Context, rows: slice, real: Real) -> Phases:
        """Return what a kernel makes the cos and sin of those rows of."""
        where = self._where
        return phases_of_config(context, self.config, where.rows[:, rows], real, where.beyond_32_bits)


class Rope:
    """A configuration bound to a device: `op(x, positions)`, `op.plan(...)`, `op.cos_sin(positions)`.

    device: anything `clrope.device` takes; a caller's own Context or CommandQueue is used as it is. Nothing is started
    before the first plan. variant: a kernel spelling to use instead of the chosen one.
    """

    def __init__(self, config: RopeConfig, device: Any = "auto", *, variant: Variant | None = None) -> None:
        if not isinstance(config, RopeConfig):
            raise ConfigError(f"config: got {type(config).__name__}, a RopeConfig is needed")
        self.config = config
        self.variant = variant
        # 'auto' leaves room for the environment's choice, as clrope.device() does.
        self._selector = None if isinstance(device, str) and device == "auto" else device
        self._target: tuple[DeviceInfo, pyopencl.CommandQueue] | None = None
        self._lock = threading.Lock()
        self._repeats = Repeats()

    @property
    def device(self) -> DeviceInfo:
        """The device that host arrays are rotated on (chosen at the first use)."""
        return self._own_target()[0]

    def __repr__(self) -> str:
        return f"Rope({self.config!r}, device={self._selector!r})"

    def __call__(
        self,
        x: Any,
        positions: Any,
        forward: bool = True,
        out: Any = None,
        layout: str = "bsnd",
        *,
        wait_for: Sequence[pyopencl.Event] | None = None,
    ) -> Any:
        """Rotate x (an array or a tuple of arrays that share positions) and return the result; see `clrope.rope`."""
        if wait_for:
            return self.plan(x, positions, forward=forward, out=out, layout=layout).run(wait_for=wait_for)
        result = self._repeats.call(x, positions, forward, out, layout)
        if result is None:
            plan = self.plan(x, positions, forward=forward, out=out, layout=layout)
            result = plan.run()
            self._repeats.remember(plan, x, positions, forward, out, layout)
        return result

    def plan(
        self,
        x: Any,
        positions: Any,
        forward: bool = True,
        out: Any = None,
        layout: str = "bsnd",
        *,
        transfer: Transfer = "auto",
    ) -> Plan:
        """Check everything, build, bind, and return a `Plan` whose `run()` rotates these arrays.

        transfer: how host arrays reach the device: 'map' in place, 'copy' in chunks, 'auto' by whether the device
        shares the host's memory. Other arguments and errors as for `clrope.rope`.
        """
        try:
            return self._plan(x, positions, forward, out, layout, transfer)
        except (ShapeError, ConfigError) as error:
            raise type(error)(f"{error}\n  in {call_text(x, positions, self.config, layout)}") from error

    def cos_sin(self, positions: Any, *, head_dim: int | None = None) -> tuple[Any, Any]:
        """Return (cos, sin), NumPy float32 [rows, pairs], times the magnitude, made by the device's kernels.

        positions: an int, [R], or [3, R] / [4, R] in section modes. head_dim: needed if n_dims is not set.
        """
        import pyopencl as cl

        config = self.config
        if config.n_dims is None:
            if head_dim is None:
                raise ConfigError("n_dims: the configuration has none, give head_dim")
            config = config.for_head_dim(head_dim)
        where = position_rows(positions, config, batch=None, seq=None)
        shape = (where.count, config.n_pairs(None))
        results: list[npt.NDArray[np.float32]] = [np.empty(shape, np.float32) for _ in range(2)]
        if where.count == 0:
            return results[0], results[1]
        target, queue = self._own_target()
        tables = tables_of_config(queue, target, config, where.rows, "f32", where.beyond_32_bits)
        for result, buffer in zip(results, (tables.cosine, tables.sine), strict=True):
            cl.enqueue_copy(queue, result, buffer, wait_for=[tables.ready] if tables.ready is not None else None)
        return results[0], results[1]

    def _own_target(self) -> tuple[DeviceInfo, pyopencl.CommandQueue]:
        with self._lock:
            if self._target is None:
                chosen = device(self._selector)
                self._target = chosen, queue_for(chosen if _is_name(self._selector) else self._selector)
            return self._target

    def target_of(self, operands: list[Operand]) -> tuple[DeviceInfo, pyopencl.CommandQueue]:
        """Return device and queue: the arrays' own where they live on a device."""
        arrays = [o.array for o in operands if o.kind == "opencl"]
        if not arrays:
            return self._own_target()
        if not _is_name(self._selector):
            target, queue = self._own_target()
            if any(a.context != queue.context for a in arrays):
                raise DeviceError("x: the array lives in another OpenCL context than the queue or context given")
            return target, queue
        first = arrays[0]
        if any(a.context != first.context for a in arrays[1:]):
            raise ShapeError("x: the arrays live in different OpenCL contexts")
        queue = first.queue if first.queue is not None else queue_for(first.context)
        found = device(queue)
        if self._selector is not None:
            wanted = self._own_target()[0]
            if wanted.cl_device != found.cl_device:
                raise DeviceError(f"device: {wanted.name!r} was asked for, but x lives on {found.name!r}")
        return found, queue

    def _plan(self, x: Any, positions: Any, forward: bool, out: Any, layout: str, transfer: Transfer) -> Plan:
        single = not isinstance(x, (tuple, list))
        inputs = [operand(a, layout) for a in ([x] if single else x)]
        if not inputs:
            raise ShapeError("x: got no arrays")
        outputs = outputs_of(inputs, out, single, layout)
        first = inputs[0].view.shape
        configs = []
        for o in inputs:
            if o.view.shape[:2] != first[:2]:
                raise ShapeError(
                    f"x: arrays that share positions need the same batches and tokens, got {list(first[:2])} "
                    f"and {list(o.view.shape[:2])}"
                )
            configs.append(self.config.for_head_dim(o.view.shape[3]) if o.view.shape[3] else None)
        known = {c for c in configs if c is not None}
        if len(known) > 1:
            raise ShapeError("x: arrays of different head_dim share positions only if the configuration sets n_dims")
        config = next(iter(known), self.config if self.config.n_dims else replace(self.config, n_dims=2))
        where = position_rows(positions, config, batch=first[0], seq=first[1])
        made = [empty_like(o) if given is None else given for o, given in zip(inputs, outputs, strict=True)]
        parts = [
            Part(
                o,
                result,
                Rotation(
                    Geometry.of_config(config, max(2, o.view.shape[3])),
                    bool(forward),
                    in_place=result is o,
                    phases=config.angles == "exact",
                    sections=config.uses_sections,
                ),
            )
            for o, result in zip(inputs, made, strict=True)
        ]
        if not any(part.x.view.size for part in parts):
            return EmptyPlan(parts, single)
        target, queue = self.target_of(inputs)
        source = ConfigTables(config, where, first[0], first[1])
        return Plan(parts, source, target, queue, single=single, variant=self.variant, transfer=transfer)


def outputs_of(inputs: list[Operand], out: Any, single: bool, layout: str) -> list[Operand | None]:
    """Return the checked outputs; an output that is the input's own memory is returned as the input itself."""
    if out is None:
        return [None] * len(inputs)
    given = [out] if single else list(out)
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
            result.append(o)
        else:
            result.append(target)
    for i, a in enumerate(result):
        for b in [*result[:i], *(o for j, o in enumerate(inputs) if j != i)]:
            if a is not None and b is not None and operands_overlap(a, b):
                raise ShapeError("out: an output overlaps another tensor of the same call")
    return result


def operands_overlap(a: Operand, b: Operand) -> bool:
    """Whether two operands share a byte."""
    if (a.kind == "opencl") != (b.kind == "opencl"):
        return False
    if a.kind == "opencl":
        if a.array.base_data.int_ptr != b.array.base_data.int_ptr:
            return False
        spans = [(v.span[0] * v.itemsize, v.span[1] * v.itemsize) for v in (a.view, b.view)]
        return spans[0][0] < spans[1][1] and spans[1][0] < spans[0][1]
    assert a.host is not None
    assert b.host is not None
    try:
        return bool(np.shares_memory(a.host, b.host, max_work=100_000))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _is_name(selector: Any) -> bool:
    return selector is None or isinstance(selector, (str, DeviceInfo))


def call_text(x: Any, positions: Any, config: RopeConfig, layout: str) -> str:
    """Return a call in words, for the end of an error's message."""

    def text(a: Any) -> str:
        if isinstance(a, (tuple, list)):
            return "(" + ", ".join(map(text, a[:4])) + (", ..." if len(a) > 4 else "") + ")"
        shape = getattr(a, "shape", None)
        return repr(a)[:40] if shape is None else f"{getattr(a, 'dtype', '')}{list(shape)}"

    plain = RopeConfig("normal").to_dict()
    fields = "".join(
        f", {k}={'...' if isinstance(v, list) and len(v) > 4 else repr(v)}"
        for k, v in config.to_dict().items()
        if k == "mode" or v != plain[k]
    )
    return f"rope(x={text(x)}, positions={text(positions)}, layout={layout!r}{fields})"
