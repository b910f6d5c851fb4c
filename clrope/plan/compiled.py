"""`CompiledCall`: what calls of one signature launch."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, Literal, NamedTuple

from ..errors import DeviceError
from ..kernels.launch import LaunchSpec
from ..kernels.problem import BUFFER_ALIGNMENT, AngleForm, PairLayout, Problem
from ..kernels.variant import Variant
from ..layout import TensorView
from ..runtime import PAGE, Runtime
from ..select.choice import select
from .angle_sources import ConfigAngles, PositionForm, TableColumns, real_of
from .bound import BoundCall
from .chunks import Chunk, chunks_that_fit
from .transfer import COPY_CHUNK_BYTES, tokens_at_once

#: What of an angle source a compiled call depends on.
AngleKind = ConfigAngles | TableColumns
#: How arrays reach the device: 'device' OpenCL arrays; the others as `Runtime.host_access` has them.
Access = Literal["device", "svm", "direct", "mapped", "copied"]
#: Bytes that the tables of one chunk may take.
TABLE_BYTES = 128 << 20
#: Bound calls that a compiled call keeps for the next calls.
BOUND_KEPT = 8


class PartSignature(NamedTuple):
    """One tensor of a call: input and output without their addresses.

    x, y: views with offset 0. Alignments are those of element [0, 0, 0, 0], in bytes, up to 64.
    """

    x: TensorView
    y: TensorView
    x_alignment: int
    y_alignment: int
    in_place: bool
    access: Access
    pairs: PairLayout


@dataclass(eq=False)
class Step:
    """One launch: a chunk of one part, or of two parts whose heads it rotates together."""

    part: int
    chunk: Chunk
    problem: Problem
    variant: Variant
    second: Step | None = None
    spec: LaunchSpec | None = None
    program: Any = None


class CompiledCall:
    """All launches of calls with one signature, built.

    runtime: where. parts: the tensors. angles: the form of cos and sin. steps: the launches, those of copied tensors
    last.
    """

    def __init__(
        self,
        runtime: Runtime,
        parts: Sequence[PartSignature],
        source: AngleKind,
        form: PositionForm,
        forward: bool,
        variant: Variant | None = None,
        copy_chunk_bytes: int = COPY_CHUNK_BYTES,
    ) -> None:
        self.runtime = runtime
        self.parts = tuple(parts)
        self.form = form
        self.row_width = source.row_width
        info = runtime.info
        direct: list[Step] = []
        copied: list[Step] = []
        total = sum(part.x.nbytes for part in self.parts)
        for number, part in enumerate(self.parts):
            if part.x.dtype == "f64" and not info.fp64:
                raise DeviceError(f"device {info.name!r} on {info.platform!r} has no fp64, float64 tensors need it")
            if not part.x.size:
                continue
            angles = source.form(form, real_of(part.x.dtype))
            for chunk in self._chunks(part, copy_chunk_bytes):
                step = self._step(number, part, chunk, angles, forward, total, variant)
                (copied if part.access == "copied" else direct).append(step)
        self.copied = len(copied)
        self.steps = [*_joined(direct), *copied]
        for step in self.steps:
            second = None if step.second is None else step.second.problem
            step.spec = step.variant.spec(step.problem, info, second)
            step.program = runtime.program(step.spec)
        self._free: deque[BoundCall] = deque(maxlen=BOUND_KEPT)
        #: Whether each array is one memory argument, from its first element on.
        self.whole = len(self.steps) <= len(self.parts) and all(
            view.span[0] == 0
            and step.chunk.batches == slice(0, view.shape[0])
            and step.chunk.tokens == slice(0, view.shape[1])
            for step in self.steps
            for one in (step, step.second)
            if one is not None
            for view in (self.parts[one.part].x, self.parts[one.part].y)
        )

    @property
    def numbers_only(self) -> bool:
        """Whether positions are nothing but a number for each launch: no buffers, no tables."""
        return bool(self.steps) and all(s.variant.angles == "fused" and s.problem.angles.counting for s in self.steps)

    @property
    def writes_all(self) -> bool:
        """Whether the launches write every element of their outputs."""
        return all(step.variant.implementation.writes_all for step in self.steps)

    @property
    def variants(self) -> list[Variant]:
        """The kernel variant of each launch."""
        return [step.variant for step in self.steps]

    def _chunks(self, part: PartSignature, copy_chunk_bytes: int) -> list[Chunk]:
        runtime = self.runtime
        batches, tokens = part.x.shape[:2]
        real_bytes = 8 if part.x.dtype == "f64" else 4
        most = max(1, min(TABLE_BYTES, runtime.info.max_alloc) // (self.row_width * real_bytes))
        if part.access == "copied":
            most = min(most, tokens_at_once(part.x, min(copy_chunk_bytes, runtime.info.max_alloc)))
        limit = runtime.info.max_alloc - 2 * PAGE
        # Two views with gaps may interleave, and then share one buffer.
        dense = (
            part.in_place
            or part.x.span[1] - part.x.span[0] == part.x.size
            or (part.y.span[1] - part.y.span[0] == part.y.size)
        )

        def fits(chunk: Chunk) -> bool:
            if part.access != "direct":
                return True
            spans = [view.part(chunk.batches, chunk.tokens).span for view in (part.x, part.y)]
            size = max(last - first for first, last in spans) * part.x.itemsize
            return size * (1 if dense else 2) <= limit

        return chunks_that_fit(batches, tokens, self.form.batch_stride, most, fits, "x")

    def _step(
        self,
        number: int,
        part: PartSignature,
        chunk: Chunk,
        angles: AngleForm,
        forward: bool,
        nbytes: int,
        preferred: Variant | None,
    ) -> Step:
        x, y = (view.part(chunk.batches, chunk.tokens) for view in (part.x, part.y))
        alignments = [gcd(a, v.offset * v.itemsize) for a, v in ((part.x_alignment, x), (part.y_alignment, y))]
        if part.access == "copied":  # in buffers of their own, dense; each comes and goes by itself
            x = y = TensorView.dense(x.shape, x.dtype)
            alignments, nbytes = [BUFFER_ALIGNMENT] * 2, x.nbytes
        problem = Problem(
            x.shape, x.dtype, x.strides, y.strides, part.pairs, part.in_place, forward, angles, chunk.row_stride,
            alignments[0], alignments[1],
        )  # fmt: skip
        return Step(number, chunk, problem, select(self.runtime.info, problem, nbytes, preferred))

    def take(self) -> BoundCall:
        """Return a bound call in no other use, for `give_back`."""
        try:
            return self._free.pop()  # atomic, so no two threads get the same one
        except IndexError:
            return BoundCall(self)

    def give_back(self, bound: BoundCall) -> None:
        """Keep a bound call whose launches have all been enqueued, for the next call."""
        if not self.copied:
            bound.release()
            self._free.append(bound)


def _joined(steps: Sequence[Step]) -> list[Step]:
    """Return the steps with those joined that one launch can do: two tensors alike but for their heads (q and k)."""
    joined: list[Step] = []
    waiting: dict[Any, Step] = {}
    for step in steps:
        chunk, problem = step.chunk, step.problem
        at = (chunk.batches.start, chunk.batches.stop, chunk.tokens.start, chunk.tokens.stop, chunk.row_stride)
        alike = (at, problem.dtype, problem.pairs, problem.in_place, problem.angles, step.variant)
        mate = waiting.pop(alike, None)
        if mate is not None:
            mate.second = step
            continue
        if step.variant.implementation.takes_second:
            waiting[alike] = step
        joined.append(step)
    return joined
