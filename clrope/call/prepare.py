"""From a caller's arguments to a `Call`: every check that a call needs, once for each signature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

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
from .memory import Access, pointer
from .runtime import QueueState, Runtime
from .sources import COUNTING, CallerTables, ConfigAngles, Positions

Transfer = Literal["auto", "map", "copy"]
TRANSFERS = ("auto", "map", "copy")
#: Returns the queue that checked arrays are rotated on.
Target = Callable[[list[Operand]], QueueState]


@dataclass(frozen=True, eq=False)
class CheckedCall:
    """All of a call, checked.

    inputs, outputs, tables: operands; outputs None for new ones, the input itself in place. pairs: of each input.
    norms: of each input; () if there is none at all. target: finds the queue.
    """

    inputs: list[Operand]
    outputs: list[Operand | None]
    tables: list[Operand]
    positions: Positions
    pairs: list[PairLayout]
    source: ConfigAngles | CallerTables
    forward: bool
    several: bool
    variant: Variant | None
    transfer: Transfer
    norms: tuple[Norm | None, ...]
    target: Target

    @property
    def empty(self) -> bool:
        """Whether there is nothing to rotate, which needs no device."""
        return not any(o.view.size for o in self.inputs)

    def queue_state(self) -> QueueState:
        """Return the queue that the arrays are on, or host arrays are rotated on."""
        return self.target([*self.inputs, *self.tables, *(o for o in self.outputs if o is not None)])

    @cached_property
    def call(self) -> Call:
        """The call of these arrays: one with the same layouts and alignments that was kept, or a new one."""
        state = self.queue_state()
        sides = tuple(
            None if o is None else "in place" if number and o is x else
            (o.kind, _unplaced(o.view), o.layout, alignment_of_operand(o),
             o.kind != "opencl" or o.array.allocator is None)
            for x, out in zip(self.inputs, self.outputs, strict=True) for number, o in enumerate((x, out))
        )  # fmt: skip
        key = (
            state, sides, tuple(o.kind for o in self.tables), self.positions.form, *self.pairs, self.source,
            self.forward, self.several, self.variant, self.transfer, self._norm_forms, database.generation(),
        )  # fmt: skip
        call: Call = state.runtime.calls.made(key, lambda: self._new_call(state))
        return call

    @property
    def _norm_forms(self) -> tuple[NormForm | None, ...]:
        return tuple(None if norm is None else norm.form for norm in self.norms)

    def _new_call(self, state: QueueState) -> Call:
        runtime = state.runtime
        parts = [
            part_of(x, out, access_of(x, runtime, self.transfer, self.variant), pairs, norm)
            for x, out, pairs, norm in zip(
                self.inputs, self.outputs, self.pairs, self._norm_forms or [None] * len(self.inputs), strict=True
            )
        ]
        state = state_for(state, parts, sum(o.view.nbytes for o in self.inputs))
        tables_access: Access = "device"
        if self.tables and self.tables[0].kind != "opencl":
            tables_access = access_of(self.tables[0], runtime, self.transfer, None)
        return Call(
            state, parts, self.source, self.positions.form, forward=self.forward, several=self.several,
            variant=self.variant, tables_access=tables_access,
        )  # fmt: skip

    def run(self, waits: Sequence[Any], signed: Any = None, in_place: Sequence[bool] = ()) -> Any:
        """Run the call. signed: the signature to keep it under, if the outputs are `in_place` as they are here."""
        if self.empty:
            results = self.results(None)
            return tuple(results) if self.several else results[0]
        inputs, outputs = originals(self.inputs), originals(self.outputs)
        call = self.call
        memories = memories_of(self.inputs, self.outputs, self.tables)
        result = call.run(inputs, outputs, memories, self.positions.value, waits, self.norms)
        if signed is not None and in_place == [o is x for x, o in zip(self.inputs, self.outputs, strict=True)]:
            self.queue_state().runtime.calls.put(signed, call)
        return result

    def results(self, state: QueueState | None) -> list[Any]:
        """Return the arrays that results go to, new ones made. state: None if there is nothing to rotate."""
        return [
            result_maker(x)[0](x.original, state)[0] if out is None else out.original
            for x, out in zip(self.inputs, self.outputs, strict=True)
        ]


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
    where = positions_for(source, inputs, positions)
    return CheckedCall(
        inputs, outputs, [], where, pairs, source, forward, several, variant, transfer, norms, target
    )  # fmt: skip


def positions_for(source: ConfigAngles | CallerTables, inputs: Sequence[Operand], positions: Any) -> Positions:
    """Return checked positions; for empty tensors no rows are made of them."""
    batch, seq = inputs[0].view.shape[:2]
    if any(o.view.size for o in inputs):
        return source.positions(positions, batch, seq)
    source.check(positions, batch, seq)
    return Positions(COUNTING, 0)


def part_of(
    x: Operand, out: Operand | None, access: Access, pairs: PairLayout, norm: NormForm | None = None
) -> TensorPart:
    """Return a tensor of a call: out None for a new output, x itself in place."""
    make, y, alignment = result_maker(x) if out is None else (None, out.view, alignment_of_operand(out))
    own = alignment_of_operand(x)
    tensor = out is not None and out.kind == "torch"
    return TensorPart(_unplaced(x.view), _unplaced(y), own, alignment, out is x, access, pairs, make, tensor, norm)


def state_for(state: QueueState, parts: Sequence[TensorPart], nbytes: int) -> QueueState:
    """Return the queue for so many bytes: small calls on host arrays may have one that is quicker for them."""
    runtime = state.runtime
    if state is not runtime.state or any(p.access not in ("svm", "direct") for p in parts):
        return state
    local, most = runtime.local_state
    return local if nbytes <= most and local.runtime.host_access == runtime.host_access else state


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
        memories += [
            memory_of(x),
            x.twin if out is x and x.twin is not None else None if out is None else memory_of(out),
        ]
    return memories + [memory_of(o) for o in tables]


def memory_of(o: Operand) -> Any:
    """Return an OpenCL array, or a pointer to element [0, 0, 0, 0]."""
    return o.array if o.kind == "opencl" else pointer(o.address)


def originals(operands: Sequence[Operand | None]) -> list[Any]:
    """Return the callers' arrays, None for None."""
    return [None if o is None else o.original for o in operands]


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
