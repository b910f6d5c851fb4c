"""From a caller's arguments to a `Call`: every check that a call needs, once for each signature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from ..arguments import listed
from ..arrays import Operand, check_apart, check_out, operand
from ..config import RopeConfig
from ..errors import ConfigError, ShapeError, shown
from ..kernels.problem import PairLayout
from ..kernels.variant import Variant
from ..layout import LONGEST_AXIS, TensorView
from ..norm import Norm, NormForm, check_shapes
from ..positions import Offsets
from ..select import database
from .array_signature import alignment_of_operand, result_maker
from .call import Call, TensorPart
from .memory import Access
from .runtime import QueueState, Runtime
from .sources import CallerTables, ConfigAngles, PositionForm, Positions

Transfer = Literal["auto", "map", "copy"]
TRANSFERS = ("auto", "map", "copy")
#: Bytes of tensors up to which Intel's runtime is quicker if the calling thread runs the kernel.
LOCAL_BYTES = 256 << 10
#: Returns the queue that checked arrays are rotated on.
Target = Callable[[list[Operand]], QueueState]


class Setup(NamedTuple):
    """What a call needs besides its arrays, checked. norms: of each array; () if there is none at all."""

    pairs: list[PairLayout]
    source: ConfigAngles | CallerTables
    forward: bool
    several: bool
    variant: Variant | None
    transfer: Transfer
    norms: tuple[Norm | None, ...] = ()

    @property
    def norm_forms(self) -> tuple[NormForm | None, ...]:
        """The norms but their weights."""
        return tuple(None if norm is None else norm.form for norm in self.norms)


class CheckedCall(NamedTuple):
    """A call with its arrays: operands (outputs None for new ones; the input itself in place), tables, positions."""

    setup: Setup
    inputs: list[Operand]
    outputs: list[Operand | None]
    tables: list[Operand]
    positions: Positions
    target: Target

    @property
    def empty(self) -> bool:
        """Whether there is nothing to rotate."""
        return not any(o.view.size for o in self.inputs)

    def call(self) -> Call:
        """Return the call of these arrays: one that was kept if there is one."""
        state = self.target([*self.inputs, *self.tables, *(o for o in self.outputs if o is not None)])
        return call_for(state, self.setup, self.inputs, self.outputs, self.tables, self.positions.form)


def check_transfer(transfer: Any) -> None:
    """Raise `ShapeError` for anything but a `Transfer`."""
    if not isinstance(transfer, str) or transfer not in TRANSFERS:
        raise ShapeError(f"transfer: got {shown(transfer)}, allowed are 'auto', 'map', 'copy'")


def inputs_of(x: Any, layout: str) -> tuple[list[Operand], bool]:
    """Return the checked inputs and whether several were given: they share batches and tokens."""
    several = isinstance(x, (tuple, list))
    inputs = [operand(a, layout) for a in (x if several else [x])]
    if not inputs:
        raise ShapeError("x: got no arrays")
    tokens = inputs[0].view.shape[:2]
    for o in inputs:
        if o.view.shape[:2] != tokens:
            raise ShapeError(
                f"x: arrays that share positions need the same batches and tokens, got {list(tokens)} "
                f"and {list(o.view.shape[:2])}"
            )
    heads = sum(o.view.shape[2] for o in inputs)
    if heads > LONGEST_AXIS:
        raise ShapeError(f"x: got {heads} heads in {len(inputs)} arrays, at most 2**30 are allowed")
    return inputs, several


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


def prepare(
    config: RopeConfig, variant: Variant | None, x: Any, positions: Any, forward: bool, out: Any, layout: str,
    transfer: Transfer, target: Target, norms: tuple[Norm | None, ...] = (),
) -> CheckedCall:  # fmt: skip
    """Check the arguments of `clrope.rope`."""
    check_transfer(transfer)
    if norms and not forward:
        raise ConfigError("norm: given together with forward=False, only the forward direction has a norm")
    inputs, several = inputs_of(x, layout)
    outputs = outputs_of(inputs, out, not several, layout)
    configs = {config.for_head_dim(o.view.shape[3]) for o in inputs if o.view.shape[3]}
    if len(configs) > 1:
        raise ShapeError("x: arrays of different head_dim share positions only if the configuration sets n_dims")
    if norms:
        check_shapes(norms, [o.view.shape for o in inputs])
    own = next(iter(configs), config if config.n_dims else replace(config, n_dims=2))
    source = ConfigAngles(own)
    pairs = [PairLayout.of_config(own, max(2, o.view.shape[3])) for o in inputs]
    setup = Setup(pairs, source, forward, several, variant, transfer, norms)
    where = positions_for(setup, inputs, positions)
    return CheckedCall(setup, inputs, outputs, [], where, target)


def positions_for(setup: Setup, inputs: Sequence[Operand], positions: Any) -> Positions:
    """Return checked positions; for empty tensors no rows are made of them."""
    batch, seq = inputs[0].view.shape[:2]
    if any(o.view.size for o in inputs):
        return setup.source.positions(positions, batch, seq)
    setup.source.check(positions, batch, seq)
    return Positions(PositionForm(True, 1, 0, False), 0)


def call_for(
    state: QueueState, setup: Setup, inputs: Sequence[Operand], outputs: Sequence[Operand | None],
    tables: Sequence[Operand], form: PositionForm,
) -> Call:  # fmt: skip
    """Return the call for checked arrays: one with the same layouts and alignments, or a new one."""
    sides = tuple(
        None if o is None else "in place" if number and o is x else
        (o.kind, _unplaced(o.view), o.layout, alignment_of_operand(o), o.kind != "opencl" or o.array.allocator is None)
        for x, out in zip(inputs, outputs, strict=True) for number, o in enumerate((x, out))
    )  # fmt: skip
    source: Any = setup.source.config if isinstance(setup.source, ConfigAngles) else setup.source
    kinds = tuple(o.kind for o in tables)
    plain = setup._replace(source=source, pairs=None, norms=setup.norm_forms)  # type: ignore[arg-type]
    key = (state, *plain, *setup.pairs, sides, kinds, form, database.generation())
    call: Call | None = state.runtime.calls.get(key)
    if call is None:
        call = _new_call(state, setup, inputs, outputs, tables, form)
        state.runtime.remember(key, call)
    return call


def _new_call(
    state: QueueState, setup: Setup, inputs: Sequence[Operand], outputs: Sequence[Operand | None],
    tables: Sequence[Operand], form: PositionForm,
) -> Call:  # fmt: skip
    runtime, variant = state.runtime, setup.variant
    norms = setup.norm_forms or (None,) * len(inputs)
    parts = [
        part_of(x, out, access_of(x, runtime, setup.transfer, variant), pairs, norm)
        for x, out, pairs, norm in zip(inputs, outputs, setup.pairs, norms, strict=True)
    ]
    state = state_for(state, parts, sum(o.view.nbytes for o in inputs))
    tables_access: Access = "device"
    if tables and tables[0].kind != "opencl":
        tables_access = access_of(tables[0], runtime, setup.transfer, None)
    return Call(
        state, parts, setup.source, form, forward=setup.forward, several=setup.several, variant=variant,
        tables_access=tables_access,
        tensors=[k for k, out in enumerate(outputs) if out is not None and out.kind == "torch"],
    )  # fmt: skip


def part_of(
    x: Operand, out: Operand | None, access: Access, pairs: PairLayout, norm: NormForm | None = None
) -> TensorPart:
    """Return a tensor of a call: out None for a new output, x itself in place."""
    y, make = x.view, None
    alignment = alignment_of_operand(x if out is None else out)
    if out is None:
        make, y, alignment = result_maker(x)
    else:
        y = out.view
    own = alignment_of_operand(x)
    return TensorPart(_unplaced(x.view), _unplaced(y), own, alignment, out is x, access, pairs, make, norm)


def state_for(state: QueueState, parts: Sequence[TensorPart], nbytes: int) -> QueueState:
    """Return the queue for so many bytes: small calls on host arrays may have one that is quicker for them."""
    runtime = state.runtime
    if nbytes <= LOCAL_BYTES and state is runtime.queue_state(runtime.queue) and all(p.access == "svm" for p in parts):
        return runtime.local_state
    return state


def access_of(x: Operand, runtime: Runtime, transfer: Transfer, variant: Variant | None) -> Access:
    """Return how an array reaches the device."""
    if x.kind == "opencl":
        return "device"
    if transfer == "copy" or (variant is not None and variant.implementation.needs_copies):
        return "copied"
    access = runtime.host_access
    return "mapped" if transfer == "map" and access == "copied" else access  # type: ignore[return-value]


def _unplaced(view: TensorView) -> TensorView:
    return view.moved(-view.offset)


def memories_of(inputs: Sequence[Operand], outputs: Sequence[Operand | None], tables: Sequence[Operand]) -> list[Any]:
    """Return the memory of each side as `Call.run` takes it; None for new results."""
    memories: list[Any] = []
    for x, out in zip(inputs, outputs, strict=True):
        memories.append(memory_of(x))
        memories.append(x.twin if out is x and x.twin is not None else None if out is None else memory_of(out))
    return memories + [memory_of(o) for o in tables]


def memory_of(o: Operand) -> Any:
    """Return an OpenCL array, or the address of element [0, 0, 0, 0]."""
    return o.array if o.kind == "opencl" else o.address


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
