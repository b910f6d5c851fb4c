"""Calls that write rows of a KV cache: q, k and v in one launch, keys shifted in place, rows moved as they are."""

from __future__ import annotations

from collections.abc import Sequence

from ..arrays import Operand
from ..config import RopeConfig
from ..kernels import cache_rows, move_rows
from ..kernels.problem import PairLayout, Problem, SlotForm
from ..kernels.variant import Variant
from ..layout import Shape4
from ..norm import NormForm
from ..select.choice import like_rotation
from .call import Call, Step, TensorPart
from .chunks import Chunk
from .memory import Access
from .prepare import access_of, part_of, state_for
from .runtime import PAGE, QueueState
from .sources import COUNTING, ConfigAngles, PositionForm, real_of

_MOVE = Variant(move_rows.KERNEL)
#: Of launches that do not rotate.
_UNUSED = ConfigAngles(RopeConfig("neox", 2))


def reachable(state: QueueState, arrays: Sequence[Operand]) -> Access | None:
    """Return how kernels reach arrays where they are; None if the device has memory of its own, or no such buffers."""
    access = access_of(arrays[0], state.runtime, "auto", None)
    if access in ("device", "svm"):
        return access
    # Mapped memory may need one buffer for all.
    spans = sum((o.view.span[1] - o.view.span[0]) * o.view.itemsize + 2 * PAGE for o in arrays)
    return None if access == "copied" or spans > state.runtime.info.max_alloc else access


def cache_call(
    state: QueueState, access: Access, inputs: Sequence[Operand], out: Operand | None, sides: Sequence[Operand],
    source: ConfigAngles, form: PositionForm, norms: Sequence[NormForm | None],
) -> Call | None:  # fmt: skip
    """Return the call that rotates q, and k and v (if there is one) into caches, by one launch; None if none can.

    inputs: q, k (, v). sides: the caches of k (, v). norms: of q and k, () for none.
    """
    pairs = [PairLayout.of_config(source.config, o.view.shape[3]) for o in inputs[:2]]
    given = [*norms, *(None for _ in inputs)]
    if pairs[0] != pairs[1] or len({None if n is None else n.program for n in given[:2]}) > 1:
        return None
    parts = [part_of(inputs[0], out, access, pairs[0], given[0])]
    for k, (x, side) in enumerate(zip(inputs[1:], sides, strict=True)):
        parts.append(part_of(x, side, access, pairs[0], None if k else given[1])._replace(cache="y"))
    problems = [_problem(part, source, form, part.x.shape) for part in parts]
    variant = _vectors(state, problems[0], sum(o.view.nbytes for o in inputs), problems[1:])
    if variant is None:
        return None
    tokens = parts[0].x.shape[1]
    steps = [Step(k, _whole(parts[0].x.shape[0], tokens, form), p, variant) for k, p in enumerate(problems)]
    steps[0].others = tuple(steps[1:])
    return _call(state, parts, source, form, steps[:1], inputs)


def shift_call(
    state: QueueState, access: Access, side: Operand, rows: int, source: ConfigAngles, form: PositionForm
) -> Call | None:
    """Return the call that rotates so many rows of a cache in place; None if no single launch can."""
    shape = (1, rows, *side.view.shape[2:])
    part = part_of(side, side, access, PairLayout.of_config(source.config, shape[3]))._replace(cache="x")
    problem = _problem(part, source, form, shape)
    variant = _vectors(state, problem, problem.nbytes, ())
    if variant is None:
        return None
    return _call(state, [part], source, form, [Step(0, _whole(1, rows, form), problem, variant)], [side])


def move_call(
    state: QueueState, access: Access, inputs: Sequence[Operand], outputs: Sequence[Operand], *, from_cache: bool
) -> Call:
    """Return the call that moves the rows of tensors into caches, or out of them."""
    tensors = outputs if from_cache else inputs
    parts = [
        part_of(x, y, access, PairLayout.none(x.view.shape[3]))._replace(cache="x" if from_cache else "y")
        for x, y in zip(inputs, outputs, strict=True)
    ]  # fmt: skip
    steps = [
        Step(k, _whole(*o.view.shape[:2], COUNTING), _problem(part, _UNUSED, COUNTING, o.view.shape), _MOVE)
        for k, (part, o) in enumerate(zip(parts, tensors, strict=True))
    ]  # fmt: skip
    return _call(state, parts, _UNUSED, COUNTING, steps, inputs)


def _call(
    state: QueueState, parts: Sequence[TensorPart], source: ConfigAngles, form: PositionForm, steps: Sequence[Step],
    inputs: Sequence[Operand],
) -> Call:  # fmt: skip
    return Call(state_for(state, parts, sum(o.view.nbytes for o in inputs)), parts, source, form, steps=steps)


def _whole(batches: int, tokens: int, form: PositionForm) -> Chunk:
    rows = tokens * (batches if form.batch_stride else 1)
    return Chunk(slice(0, batches), slice(0, tokens), slice(0, rows), form.batch_stride)


def _problem(part: TensorPart, source: ConfigAngles, form: PositionForm, shape: Shape4) -> Problem:
    """Return a part's problem; shape: that of its tokens, which a cache's is not."""
    slots, cache = None, part.x if part.cache == "x" else part.y
    if part.cache is not None:
        slots = SlotForm(cache.dtype, cache.shape[1], part.cache == "x")
    dtype = part.y.dtype if part.cache == "x" and not part.in_place else part.x.dtype
    return Problem(
        shape, dtype, part.x.strides, part.y.strides, part.pairs, part.in_place, True,
        source.form(form, real_of(dtype)), form.batch_stride, part.x_alignment, part.y_alignment, part.norm, slots,
    )  # fmt: skip


def _vectors(state: QueueState, first: Problem, nbytes: int, others: Sequence[Problem]) -> Variant | None:
    """Return how `cache_rows` rotates the first and second problem and copies the third; None if it cannot."""
    kernel = cache_rows.KERNEL
    for tried in kernel.order(like_rotation(state.runtime.info, first, nbytes, kernel).parameters):
        plain = {**tried, "store": "plain"}
        rotated = [kernel.supports(first, tried), *(kernel.supports(k, plain) for k in others[:1])]
        if not any([*rotated, *(cache_rows.copies(v, tried) for v in others[1:])]):
            return Variant(kernel, **tried)
    return None
