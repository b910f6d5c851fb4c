"""`Plan`: everything of a call checked, built and bound once; run as often as wanted (FFTW's habit)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ..arrays import Operand, check_out, operand
from ..errors import DeviceError, ShapeError
from ..kernels.variant import Variant
from ..layout import TensorView
from .chunks import Chunk, chunks_that_fit
from .launch import Launch
from .memory import PAGE, HostBuffers, Stretch, in_order, stretch_of
from .rotation import Rotation
from .tables import Phases, Real, Tables, real_of
from .transfer import COPY_CHUNK_BYTES, Copies, Piece, tokens_at_once

if TYPE_CHECKING:
    import pyopencl

    from ..device import DeviceInfo

Transfer = Literal["auto", "map", "copy"]
#: Bytes that the tables of one chunk may take.
TABLE_BYTES = 128 << 20


class TableSource(Protocol):
    """Where the cos and sin of some rows come from."""

    @property
    def batch_stride(self) -> int:
        """Rows from one batch to the next; 0 if all share them."""

    @property
    def row_width(self) -> int:
        """Numbers in one row of cos."""

    @property
    def constant(self) -> bool:
        """Whether the tables stay the same until `move_to`."""

    def move_to(self, positions: Any) -> None:
        """Take other positions of the same number of rows."""

    def tables(self, queue: pyopencl.CommandQueue, device: DeviceInfo, rows: slice, real: Real) -> Tables:
        """Return the tables of those rows."""

    def phases(self, context: pyopencl.Context, rows: slice, real: Real) -> Phases:
        """Return what a kernel makes the cos and sin of those rows of, for rotations that say they have phases."""


@dataclass(eq=False)
class Part:
    """One tensor of a plan: input, output, how its pairs lie."""

    x: Operand
    out: Operand
    rotation: Rotation


@dataclass(eq=False)
class _Step:
    """One chunk of one part, bound to buffers; the launch is made when its tables are known.

    second: the same chunk of another part, whose heads the same launch rotates.
    """

    part: Part
    chunk: Chunk
    x: tuple[Any, TensorView]
    y: tuple[Any, TensorView]
    variant: Variant
    tables: Tables | Phases | None = None
    launch: Launch | None = None
    second: _Step | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts it works on."""
        return (self.part,) if self.second is None else (self.part, self.second.part)


@dataclass(frozen=True)
class Binding:
    """Launches that do all there is to a run, and what they are bound to.

    tables: where they have their cos and sin from. inputs, outputs: the arrays, each with its buffer, in the order of
    the call; in place both are the same ones.
    """

    queue: pyopencl.CommandQueue
    launches: Sequence[Launch]
    tables: Sequence[Tables | Phases]
    inputs: Sequence[tuple[Operand, Any]]
    outputs: Sequence[tuple[Operand, Any]]


class _Again(NamedTuple):
    """A launch of a further run: what does not change looked up, because small calls take Python as long as the device.

    arrays: those whose event it makes.
    """

    launch: Launch
    enqueue: Callable[[], pyopencl.Event]
    arrays: list[Any]


class Plan:
    """A checked and bound call. Made by `Rope.plan`; `run()` does the work and returns the result.

    Results go to the same output at every run. Device arrays: the launches are put on the queue and `run` returns at
    once; the output carries the events. Host arrays: `run` returns when the result is there.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        source: TableSource,
        device: DeviceInfo,
        queue: pyopencl.CommandQueue,
        *,
        single: bool,
        variant: Variant | None = None,
        transfer: Transfer = "auto",
        copy_chunk_bytes: int = COPY_CHUNK_BYTES,
    ) -> None:
        self.device = device
        self.queue = queue
        self.source = source
        self._parts = list(parts)
        self._single = single
        self._variant = variant
        self._copy_chunk_bytes = copy_chunk_bytes
        self._lock = threading.Lock()
        if transfer not in ("auto", "map", "copy"):
            raise ShapeError(f"transfer: got {transfer!r}, allowed are 'auto', 'map', 'copy'")
        self._map = transfer == "map" or (transfer == "auto" and device.host_unified)
        for part in self._parts:
            if part.x.view.dtype == "f64" and not device.fp64:
                raise DeviceError(f"device {device.name!r} on {device.platform!r} has no fp64, float64 tensors need it")
        self._hosts: list[HostBuffers] = []
        self._steps: list[_Step] = []
        self._copies: Copies | None = None
        self._copied: list[_Step] = []  # the last of the steps
        self._fresh = True
        self._passed: list[Any] = []
        self._own_count = 0
        self._repeat: list[_Again] | None = None
        self._bind()

    @property
    def variants(self) -> list[Variant]:
        """The kernel spelling of each launch."""
        return [step.variant for step in self._steps]

    @property
    def launches(self) -> int:
        """Number of rotation launches of one run."""
        return len(self._steps)

    def binding(self) -> Binding | None:
        """Return what the launches are bound to, for others to run them with.

        None before the first run; if a further run is more than running them again; if an array is cut into chunks.
        """
        steps = [s for step in self._steps for s in (step, step.second) if s is not None]
        of_part = {id(step.part): step for step in steps}
        if self._repeat is None or not len(steps) == len(of_part) == len(self._parts):
            return None
        placed = [(part, of_part[id(part)]) for part in self._parts]
        inputs = [(part.x, step.x[0]) for part, step in placed]
        outputs = [(part.out, step.y[0]) for part, step in placed]
        tables = [step.tables for step in self._steps if step.tables is not None]
        return Binding(self.queue, [again.launch for again in self._repeat], tables, inputs, outputs)

    @property
    def out(self) -> Any:
        """The output, or a tuple of them."""
        return self._parts[0].out.original if self._single else tuple(part.out.original for part in self._parts)

    def run(self, x: Any = None, positions: Any = None, *, wait_for: Sequence[pyopencl.Event] | None = None) -> Any:
        """Do it (again): read the inputs as they are now, write the outputs, return them.

        x: other arrays of the same kind, shape, strides and dtype, as many as the plan was made for; an in-place plan
        then rotates these in place. positions: other positions, valid from this run on. wait_for: events that the
        first launch waits for. Raises `ShapeError` for arrays or positions that do not fit the plan.
        """
        with self._lock:
            if x is None and positions is None and not wait_for and self._repeat is not None and self._repeat_run():
                return self._result
            if positions is not None:
                self.source.move_to(positions)
            if x is not None:
                self._take(x)
            self._full_run(list(wait_for or ()))
        return self._result

    def _full_run(self, waits: list[Any]) -> None:
        for part in self._parts:
            if part.x.kind == "opencl":
                waits += part.x.array.events + (part.out.array.events if part.out is not part.x else [])
        if not self._fresh:
            for host in self._hosts:
                host.to_device(self.queue)
        self._fresh = False
        events: list[Any] = []
        direct = self._steps[: len(self._steps) - len(self._copied)]
        for step in direct:
            event = self._launch(step).enqueue(self.queue, [*waits, *self._ready(step)] or None)
            events.append(event)
        for part in self._parts:
            if part.out.kind == "opencl":
                # Every launch waited for the array's earlier events, so they need not be kept.
                part.out.array.events[:] = [
                    e for e, step in zip(events, direct, strict=True) if any(part is p for p in step.parts)
                ]
        if self._copies is not None:
            self._copies.run([self._starter(step) for step in self._copied], waits)
        for host in self._hosts:
            host.to_host(self.queue, events)
        # First this plan's own last events, then others that need no waiting for.
        self._passed, self._own_count = list(events), len(events)
        self._repeat = self._repeatable()

    def _repeatable(self) -> list[_Again] | None:
        """Return the launches if running them again is all there is to a run: nothing to map, copy, or make anew."""
        launches = [step.launch for step in self._steps if step.launch is not None]
        direct = all(host.direct for host in self._hosts) and (
            self._map or all(part.x.kind == "opencl" for part in self._parts)
        )
        if direct and self.source.constant and len(launches) == len(self._steps) and in_order(self.queue):
            return [
                _Again(launch, launch.bound(self.queue), arrays)
                for launch, arrays in zip(launches, self._step_arrays, strict=True)
            ]
        return None

    def _repeat_run(self) -> bool:
        passed = self._passed
        for array in self._device_arrays:
            for event in array.events:
                # What `in` compares with first is whether they are the same object, which they mostly are.
                if event not in passed and not self._passes(event):
                    return False  # somebody else's work comes first
        assert self._repeat is not None
        events = []
        for _, enqueue, arrays in self._repeat:
            event = enqueue()
            for array in arrays:
                array.events[:] = (event,)
            events.append(event)
        if self._hosts:
            self.queue.finish()
        self._passed[: self._own_count] = events
        self._own_count = len(events)
        return True

    def _passes(self, event: Any) -> bool:
        """Whether this queue's order already puts an event before the next launch; then it is remembered as such."""
        import pyopencl as cl

        if event.command_queue != self.queue and event.command_execution_status != cl.command_execution_status.COMPLETE:
            return False
        if len(self._passed) > self._own_count + 16:
            del self._passed[self._own_count :]
        self._passed.append(event)
        return True

    def _take(self, x: Any) -> None:
        given = [x] if self._single else list(x)
        if len(given) != len(self._parts):
            raise ShapeError(f"x: got {len(given)} arrays, the plan was made for {len(self._parts)}")
        parts = []
        for new, part in zip(given, self._parts, strict=True):
            taken = operand(new, part.x.layout, writable=part.rotation.in_place)
            same = replace(taken.view, offset=0) == replace(part.x.view, offset=0) and taken.kind == part.x.kind
            if not same:
                raise ShapeError(
                    f"x: got shape {list(taken.view.shape)}, strides {list(taken.view.strides)}, {taken.view.dtype} in "
                    f"{taken.kind} memory; the plan was made for shape {list(part.x.view.shape)}, strides "
                    f"{list(part.x.view.strides)}, {part.x.view.dtype} in {part.x.kind} memory (order b, s, n, d)"
                )
            out = taken if part.rotation.in_place else part.out
            if not part.rotation.in_place and check_out(taken, out):
                raise ShapeError("x: is the plan's own output, the plan was made to rotate out of place")
            parts.append(Part(taken, out, part.rotation))
        self._parts = parts
        self._hosts, self._steps, self._fresh, self._repeat = [], [], True, None
        self._bind()

    def _ready(self, step: _Step) -> list[Any]:
        tables = step.tables
        return [tables.ready] if tables is not None and tables.ready is not None else []

    def _launch(self, step: _Step) -> Launch:
        real = real_of(step.part.x.view.dtype)
        tables: Tables | Phases
        if step.variant.angles == "fused":
            tables = self.source.phases(self.queue.context, step.chunk.rows, real)
        else:
            tables = self.source.tables(self.queue, self.device, step.chunk.rows, real)
        if step.launch is None or step.tables is not tables:
            step.tables = tables
            second = None if step.second is None else (step.second.x, step.second.y)
            step.launch = step.part.rotation.launch(
                self.queue.context, self.device, step.variant, step.x, step.y, tables, step.chunk.row_stride, second
            )
        return step.launch

    def _starter(self, step: _Step) -> Any:
        return lambda waits: self._launch(step).enqueue(self.queue, [*waits, *self._ready(step)])

    def _bind(self) -> None:
        copied: list[Part] = []
        nbytes = sum(part.x.view.nbytes for part in self._parts)
        for part in self._parts:
            if part.x.view.size == 0:
                continue
            if part.x.kind == "opencl":
                for chunk in self._chunks(part, lambda _: True):
                    xb, yb = part.x.array.base_data, part.out.array.base_data
                    self._step(part, chunk, (xb, _cut(part.x, chunk)), (yb, _cut(part.out, chunk)), nbytes)
            elif self._map:
                self._bind_mapped(part, nbytes)
            else:
                copied.append(part)
        self._steps = _joined(self._steps)
        self._bind_copied(copied)
        self._result = self.out
        self._step_arrays = [[p.out.array for p in step.parts if p.out.kind == "opencl"] for step in self._steps]
        arrays = [o.array for part in self._parts for o in (part.x, part.out) if o.kind == "opencl"]
        self._device_arrays = [a for i, a in enumerate(arrays) if not any(a is b for b in arrays[:i])]

    def _step(
        self, part: Part, chunk: Chunk, x: tuple[Any, TensorView], y: tuple[Any, TensorView], nbytes: int
    ) -> None:
        variant = part.rotation.variant_for(self.device, x, y, self._variant, nbytes)
        self._steps.append(_Step(part, chunk, x, y, variant))

    def _chunks(self, part: Part, fits: Any, most: int | None = None) -> list[Chunk]:
        batches, tokens = part.x.view.shape[:2]
        real_bytes = 8 if part.x.view.dtype == "f64" else 4
        table_tokens = max(1, min(TABLE_BYTES, self.device.max_alloc) // (self.source.row_width * real_bytes))
        most = min(table_tokens, most or table_tokens)
        return chunks_that_fit(batches, tokens, self.source.batch_stride, most, fits, "x")

    def _bind_mapped(self, part: Part, nbytes: int) -> None:
        def stretches(chunk: Chunk) -> list[Stretch]:
            made = [stretch_of(part.x, _cut(part.x, chunk), part.rotation.in_place)]
            if not part.rotation.in_place:
                made.append(stretch_of(part.out, _cut(part.out, chunk), True))
            return made

        def fits(chunk: Chunk) -> bool:
            made = stretches(chunk)
            # Overlapping stretches become one buffer; then it is their union that has to fit.
            union = max(s.high for s in made) - min(s.low for s in made)
            apart = len(made) == 2 and (made[0].high <= made[1].low or made[1].high <= made[0].low)
            size: int = max(s.high - s.low for s in made) if apart else union
            return size <= limit

        limit = self.device.max_alloc - 2 * PAGE
        for chunk in self._chunks(part, fits):
            host = HostBuffers(self.queue, stretches(chunk))
            self._hosts.append(host)
            x = host.place(part.x, _cut(part.x, chunk))
            y = x if part.rotation.in_place else host.place(part.out, _cut(part.out, chunk))
            self._step(part, chunk, x, y, nbytes)

    def _bind_copied(self, parts: Sequence[Part]) -> None:
        self._copies, self._copied = None, []
        limit = min(self._copy_chunk_bytes, self.device.max_alloc)
        made = [
            (part, chunk)
            for part in parts
            for chunk in self._chunks(part, lambda _: True, tokens_at_once(part.x.view, limit))
        ]
        if not made:
            return
        self._copies = Copies(self.queue, [Piece(part.x, part.out, chunk) for part, chunk in made])
        for k, (part, chunk) in enumerate(made):
            # Each comes and goes by itself.
            self._step(part, chunk, *self._copies.bound(k), _cut(part.x, chunk).nbytes)
            self._copied.append(self._steps[-1])


def _joined(steps: Sequence[_Step]) -> list[_Step]:
    """Return the steps with those joined that one launch can do: two tensors alike but for their heads (q and k)."""
    joined: list[_Step] = []
    waiting: dict[Any, _Step] = {}
    for step in steps:
        chunk, dtype = step.chunk, step.part.x.view.dtype
        at = (chunk.batches.start, chunk.batches.stop, chunk.tokens.start, chunk.tokens.stop, chunk.row_stride)
        alike = (at, step.part.rotation, dtype, step.variant)
        mate = waiting.pop(alike, None)
        if mate is not None:
            mate.second = step
            continue
        if step.variant.kernel == "rows":
            waiting[alike] = step
        joined.append(step)
    return joined


class EmptyPlan(Plan):
    """The plan of tensors without elements: nothing to launch, no device needed."""

    def __init__(self, parts: Sequence[Part], single: bool) -> None:
        self._parts = list(parts)
        self._single = single
        self._steps = []
        self._repeat = None

    def run(self, x: Any = None, positions: Any = None, *, wait_for: Sequence[pyopencl.Event] | None = None) -> Any:
        """Return the empty output."""
        return self.out


def _cut(operand: Operand, chunk: Chunk) -> TensorView:
    return operand.view.part(chunk.batches, chunk.tokens)
