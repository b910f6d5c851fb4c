"""`Call`: what all calls of one signature launch, checked, selected and built once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from operator import add, le
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import note_writes, views_overlap
from ..buffer_place import BUFFER_ALIGNMENT, HOST, buffer_place
from ..errors import DeviceError
from ..kernels.launch import LaunchSpec
from ..kernels.problem import PairLayout, Problem
from ..kernels.variant import Variant
from ..layout import TensorView
from ..norm import Norm, NormForm
from ..select.choice import select
from .chunks import Chunk, chunks_that_fit
from .events import pending, wait_on_host
from .filled_tables import FilledTable
from .memory import Access
from .runner import Runner
from .runtime import PAGE, QueueState
from .sources import CallerTables, ConfigAngles, PositionForm, real_of
from .transfer import COPY_CHUNK_BYTES, tokens_at_once

#: Bytes that the tables of one chunk may take.
TABLE_BYTES = 128 << 20
#: Runners in no use that a call keeps.
RUNNERS_KEPT = 8
#: Makes a result like an input on a `QueueState`, and returns it with its memory.
Maker = Callable[[Any, Any], tuple[Any, Any]]


class TensorPart(NamedTuple):
    """One tensor of a call: input and output without their addresses.

    x, y: views with offset 0. Alignments are those of element [0, 0, 0, 0], in bytes, up to 64. make: how a new output
    is made; None if the caller gives one. tensor: which is a torch tensor. cache: the side that is a KV cache, whose
    rows are addressed by slots.
    """

    x: TensorView
    y: TensorView
    x_alignment: int
    y_alignment: int
    in_place: bool
    access: Access
    pairs: PairLayout
    make: Maker | None
    tensor: bool = False
    norm: NormForm | None = None
    cache: Literal["x", "y"] | None = None


@dataclass(eq=False)
class Step:
    """One launch: a chunk of one part, and those of others whose heads it rotates, too."""

    part: int
    chunk: Chunk
    problem: Problem
    variant: Variant
    others: tuple[Step, ...] = ()
    spec: LaunchSpec | None = None
    program: Any = None

    @property
    def reads_callers(self) -> bool:
        """Whether it reads the caller's tables where they are."""
        return self.spec is not None and "first_row" in self.spec.bound_names

    @property
    def number(self) -> str | None:
        """The argument that is all it takes of positions: the first one, or the first row of tables."""
        if self.reads_callers:
            return "first_row"
        return "positions" if self.variant.angles == "fused" and self.problem.angles.counting else None


class Call:
    """All calls of one signature: checked once, their kernels selected and built.

    state:  the queue that they run on.
    parts:  the tensors. source: of cos and sin. form: of the positions.
    tables_access: how the caller's tables of cos and sin reach the device.
    steps: the launches, if they are not simply those of all parts.
    """

    def __init__(
        self,
        state: QueueState,
        parts: Sequence[TensorPart],
        source: ConfigAngles | CallerTables,
        form: PositionForm,
        *,
        forward: bool = True,
        several: bool = True,
        variant: Variant | None = None,
        tables_access: Access = "device",
        copy_chunk_bytes: int = COPY_CHUNK_BYTES,
        steps: Sequence[Step] | None = None,
    ) -> None:
        self.state, self.source, self.form = state, source, form
        self.several, self.tables_access = several, tables_access
        self.parts = _copied_if_too_large(parts, state.runtime.info.max_alloc) if steps is None else list(parts)
        self.batch, self.seq = parts[0].x.shape[:2]
        #: What makes new outputs, with the output's number.
        self._makers = [(k, part.make) for k, part in enumerate(parts) if part.make is not None]
        #: The parts whose output is a torch tensor of the caller's.
        self.tensors = [k for k, part in enumerate(parts) if part.tensor]
        self.on_host = all(part.access != "device" for part in parts)
        self.on_device = all(part.access == "device" for part in parts)
        #: Sides but outputs in place, and the caller's tables: number, whether written, view, first and last byte.
        self._compared = [
            (number, written, view, view.span[0] * view.itemsize, view.span[1] * view.itemsize)
            for number, written, view in (
                *((2 * k, part.in_place, part.x) for k, part in enumerate(parts)),
                *((2 * k + 1, True, part.y) for k, part in enumerate(parts) if not part.in_place),
                *((2 * len(parts) + k, False, view) for k, view in enumerate(source.sides)),
            )
        ]
        self._firsts, self._lasts = [c[3] for c in self._compared], [c[4] for c in self._compared]
        #: Bytes that each input and each of the caller's tables reaches to behind element [0, 0, 0, 0].
        self.reach = [view.span[1] * view.itemsize for view in (*(part.x for part in parts), *source.sides)]
        #: Numbers of the sides that are OpenCL arrays which are written.
        self._written = [
            2 * k + side
            for k, part in enumerate(parts)
            for side in range(2)
            if part.access == "device" and (side or part.in_place)
        ]
        #: Whether a written side may share memory with another one, which then has to be looked at.
        self.may_overlap = len(self._makers) < len(parts) and len(self._compared) > 1
        self.copied = 0
        self.steps = self._chosen(forward, variant, copy_chunk_bytes) if steps is None else list(steps)
        for step in self.steps:
            step.spec = step.variant.spec(step.problem, state.runtime.info, *(other.problem for other in step.others))
            step.program = state.runtime.program(step.spec)
        self.tables = self._tables()
        self._free: deque[Runner] = deque(maxlen=RUNNERS_KEPT)

    def _chosen(self, forward: bool, variant: Variant | None, copy_chunk_bytes: int) -> list[Step]:
        """Return the launches for all parts; last those of parts that are copied."""
        total = sum(part.x.nbytes for part in self.parts)
        direct: list[Step] = []
        copied: list[Step] = []
        for number, part in enumerate(self.parts):
            for chunk in self._chunks(part, copy_chunk_bytes) if part.x.size else []:
                step = self._step(number, part, chunk, forward, total, variant)
                (copied if part.access == "copied" else direct).append(step)
        self.copied = len(copied)
        return [*_joined(direct), *copied]

    def _chunks(self, part: TensorPart, copy_chunk_bytes: int) -> list[Chunk]:
        info = self.state.runtime.info
        if part.x.dtype == "f64" and not info.fp64:
            raise DeviceError(f"device {info.name!r} on {info.platform!r} has no fp64, float64 tensors need it")
        batches, tokens = part.x.shape[:2]
        real_bytes = 8 if part.x.dtype == "f64" else 4
        most = max(1, min(TABLE_BYTES, info.max_alloc) // (self.source.row_width * real_bytes))
        if part.access == "copied":
            most = min(most, tokens_at_once(part.x, min(copy_chunk_bytes, info.max_alloc)))

        def fits(chunk: Chunk) -> bool:
            if part.access != "direct":
                return True
            spans = [view.part(chunk.batches, chunk.tokens).span for view in (part.x, part.y)]
            return max(last - first for first, last in spans) * part.x.itemsize <= info.max_alloc - 2 * PAGE

        return chunks_that_fit(batches, tokens, self.form.batch_stride, most, fits)

    def _step(
        self, number: int, part: TensorPart, chunk: Chunk, forward: bool, nbytes: int, preferred: Variant | None
    ) -> Step:
        x, y = (view.part(chunk.batches, chunk.tokens) for view in (part.x, part.y))
        alignments = [gcd(a, v.offset * v.itemsize) for a, v in ((part.x_alignment, x), (part.y_alignment, y))]
        if part.access == "copied":  # in buffers of their own, dense; each comes and goes by itself
            x = y = TensorView.dense(x.shape, x.dtype)
            alignments, nbytes = [BUFFER_ALIGNMENT] * 2, x.nbytes
        problem = Problem(
            x.shape, x.dtype, x.strides, y.strides, part.pairs, part.in_place, forward,
            self.source.form(self.form, real_of(x.dtype)), chunk.row_stride, alignments[0], alignments[1],
            part.norm,
        )  # fmt: skip
        return Step(number, chunk, problem, select(self.state.runtime.info, problem, nbytes, preferred))

    def _tables(self) -> list[FilledTable]:
        runtime = self.state.runtime
        tables: dict[Any, FilledTable] = {}
        for number, step in enumerate(self.steps):
            if step.variant.angles != "cached" or step.reads_callers:
                continue
            assert step.spec is not None
            rows, repeats, real = step.chunk.rows, step.spec.row_repeats, real_of(step.problem.dtype)
            key = rows.start, rows.stop, repeats, real
            if key not in tables:
                count = repeats * (rows.stop - rows.start)
                form = self.form if repeats == 1 else self.form._replace(counting=False)
                spec = self.source.table_spec(count, form, real, runtime.info)
                nbytes = count * self.source.row_width * (8 if real == "f64" else 4)
                tables[key] = FilledTable(spec, runtime.program(spec), rows, repeats, real, nbytes, [])
            tables[key].users.append(number)
        return list(tables.values())

    @property
    def variants(self) -> list[Variant]:
        """The kernel variant of each launch."""
        return [step.variant for step in self.steps]

    @property
    def specs(self) -> list[LaunchSpec]:
        """Kernel file, options, sizes and arguments of each launch."""
        return [step.spec for step in self.steps if step.spec is not None]

    def are_apart(self, addresses: Sequence[int]) -> bool:
        """Whether no two ranges of bytes overlap, of inputs that are rotated in place and of the caller's tables."""
        lows, highs = sorted(map(add, addresses, self._firsts)), sorted(map(add, addresses, self._lasts))
        return all(map(le, highs, lows[1:]))

    def overlap(self, memories: Sequence[Any]) -> bool:
        """Whether a written side shares memory with another one. memories: None for new results."""
        spans = []
        for number, (k, _, _, first, last) in enumerate(self._compared):
            memory = memories[k]
            if memory is None:
                continue
            if self.on_host:
                space, start = HOST, memory.svm_ptr
            else:
                space, start, _, _ = buffer_place(memory.base_data)
                start += memory.offset
            spans.append((space, start + first, start + last, start, number))
        spans.sort()
        for number, (space, _, high, start, k) in enumerate(spans, 1):
            for other, low, _, other_start, j in spans[number:]:
                if other != space or low >= high:
                    break  # mostly all are apart
                (_, written, view, *_), (_, other_written, other_view, *_) = self._compared[k], self._compared[j]
                # Ranges of slices of one tensor overlap, too, such as those of q and k in qkv.
                if (written or other_written) and views_overlap(view, other_view, other_start - start):
                    return True
        return False

    def run(
        self, inputs: Sequence[Any], outputs: list[Any], memories: list[Any], value: Any, waits: Sequence[Any] = (),
        norms: tuple[Norm | None, ...] = (), slots: npt.NDArray[np.int64] | None = None,
    ) -> Any:  # fmt: skip
        """Rotate arrays of this signature and return the result.

        outputs: None for new ones. memories: inputs and outputs in turn, None for new ones, then tables. value: of
        positions, in this call's form. norms: one for each tensor, () for none. slots: of a KV cache, one per token.
        """
        for k, make in self._makers:
            outputs[k], memories[2 * k + 1] = make(inputs[k], self.state)
        try:
            runner = self._free.pop()  # atomic, so no two threads get the same one
        except IndexError:
            runner = Runner(self)
        runner.bind(memories)
        runner.place(value)
        if norms:
            runner.bind_norms(norms)
        if slots is not None:
            runner.bind_slots(slots)
        self.launch(runner, memories, inputs, outputs, waits)
        # After an error, which may have left it half set, it is not kept.
        if not runner.plain:
            runner.release()
        self._free.append(runner)
        return tuple(outputs) if self.several else outputs[0]

    def launch(
        self, runner: Runner, memories: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any],
        waits: Sequence[Any],
    ) -> None:  # fmt: skip
        """Run what is bound: wait for arrays on the host, leave events with OpenCL arrays."""
        if self.tensors:
            note_writes([outputs[k] for k in self.tensors])
        if self.on_host:
            if waits:
                self.state.check_waits(pending(waits))
                wait_on_host(waits)
            runner.run_on_host((inputs, outputs))
        else:
            arrays = memories if self.on_device else [m for m in memories if hasattr(m, "events")]
            runner.run_on_device(waits, arrays, [memories[k] for k in self._written], (inputs, outputs))


def _copied_if_too_large(parts: Sequence[TensorPart], max_alloc: int) -> list[TensorPart]:
    """Return the parts; mapped ones are copied if one buffer might not hold them, which those that overlap share."""
    spans = [
        (view.span[1] - view.span[0]) * view.itemsize
        for part in parts if part.access == "mapped"
        for view in ((part.x,) if part.in_place else (part.x, part.y))
    ]  # fmt: skip
    if sum(spans) <= max_alloc - BUFFER_ALIGNMENT:
        return list(parts)
    return [part._replace(access="copied") if part.access == "mapped" else part for part in parts]


def _joined(steps: Sequence[Step]) -> list[Step]:
    """Return the steps with those joined that one launch can do: two tensors alike but for their heads (q and k)."""
    joined: list[Step] = []
    waiting: dict[Any, Step] = {}
    for step in steps:
        chunk, problem = step.chunk, step.problem
        at = (chunk.batches.start, chunk.batches.stop, chunk.tokens.start, chunk.tokens.stop, chunk.row_stride)
        norm = None if problem.norm is None else problem.norm.program
        alike = (at, problem.dtype, problem.pairs, problem.in_place, problem.angles, step.variant, norm)
        mate = waiting.pop(alike, None)
        if mate is not None:
            mate.others = (step,)
            continue
        if step.variant.implementation.takes_second:
            waiting[alike] = step
        joined.append(step)
    return joined
