"""Calls and plans in any order (Hypothesis): what is kept for later calls shows in no result and in no other array."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyopencl as cl
import pyopencl.array as cla
import pytest
from helpers import examples, same
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test

import clrope
from clrope.call.runtime import queue_for, runtime_for, runtimes
from clrope.emulation import emulate_cos_sin, emulate_rope
from clrope.kernels.variant import STRIDED
from clrope.layout import DTYPES

BATCH, SEQ, HEADS, DIM = SHAPE = (2, 3, 2, 16)
CONFIGS = (
    clrope.RopeConfig("neox", DIM), clrope.RopeConfig("normal", DIM, freq_base=500.0),
    clrope.RopeConfig("neox", DIM, freq_scale=0.5, ext_factor=1.0, n_ctx_orig=64),
)  # fmt: skip
near, far = st.integers(-4, 4), st.sampled_from([2**31 - 2, 2**31, -(2**40), 2**63 - SEQ])


def whole(*shape: int) -> st.SearchStrategy[Any]:
    count = int(np.prod(shape))
    return st.lists(near, min_size=count, max_size=count).map(lambda n: np.array(n).reshape(shape))


#: Few values, so that the same positions come again.
POSITIONS = near | far | whole(SEQ) | whole(BATCH) | whole(BATCH, SEQ)


@dataclass(eq=False)
class Tensor:
    """An array of a caller, and what it must hold."""

    array: Any
    holds: np.ndarray

    @property
    def kind(self) -> tuple[bool, Any]:
        return isinstance(self.array, np.ndarray), self.holds.dtype

    def check(self) -> None:
        assert same(to_host(self.array), self.holds).all()


@dataclass(eq=False)
class Planned:
    plan: clrope.Plan
    config: clrope.RopeConfig
    x: Tensor
    out: Tensor
    positions: Any
    forward: bool


def to_host(array: Any) -> np.ndarray:
    if isinstance(array, np.ndarray):
        return array.copy()
    got = np.empty(array.shape, np.dtype(f"u{array.dtype.itemsize}"))
    cl.enqueue_copy(array.queue, got, array.base_data, src_offset=array.offset, wait_for=array.events or None)
    return got.view(array.dtype)


class Calls(RuleBasedStateMachine):
    """Arrays, operations and plans of one caller on one device."""

    tensors, plans = Bundle("tensors"), Bundle("plans")
    device: clrope.DeviceInfo

    def __init__(self) -> None:
        super().__init__()
        self.ops = [clrope.Rope(config, self.device) for config in CONFIGS]
        # Which reads tables of cos and sin.
        self.ops.append(clrope.Rope(CONFIGS[0], self.device, variant=STRIDED))
        self.all: list[Tensor] = []

    def known(self, array: Any, holds: np.ndarray) -> Tensor:
        tensor = Tensor(array, holds)
        self.all.append(tensor)
        return tensor

    @rule(target=tensors, on_host=st.booleans(), dtype=st.sampled_from(["f32", "f16"]), seed=st.integers(0, 99))
    def new_array(self, on_host: bool, dtype: str, seed: int) -> Tensor:
        x = np.random.default_rng(seed).uniform(-1, 1, SHAPE).astype(DTYPES[dtype])
        return self.known(x.copy() if on_host else cla.to_device(queue_for(self.device), x), x)

    @rule(
        target=tensors, x=tensors, op=st.integers(0, 3), positions=POSITIONS, forward=st.booleans(),
        place=st.sampled_from(["new", "given", "in place", "rope"]),
    )  # fmt: skip
    def call(self, x: Tensor, op: int, positions: Any, forward: bool, place: str) -> Tensor:
        chosen = self.ops[op]
        want = emulate_rope(x.holds, positions, chosen.config, forward)
        if place == "in place":
            assert chosen(x.array, positions, forward, x.array) is x.array
            x.holds = want
            return x
        out = None
        if place == "given":
            out = np.full_like(x.holds, 7)
            out = out if x.kind[0] else cla.to_device(queue_for(self.device), out)
        if place == "rope":
            return self.known(clrope.rope(x.array, positions, chosen.config, forward, device=self.device), want)
        return self.known(chosen(x.array, positions, forward, out), want)

    @rule(
        target=plans, x=tensors, other=tensors, op=st.integers(0, 3), positions=POSITIONS, forward=st.booleans(),
        place=st.sampled_from(["new", "given", "in place"]), transfer=st.sampled_from(["auto", "map", "copy"]),
    )  # fmt: skip
    def new_plan(
        self, x: Tensor, other: Tensor, op: int, positions: Any, forward: bool, place: str, transfer: Any
    ) -> Planned:
        out = {"new": None, "given": other, "in place": x}[place]
        if out is not None and (out.kind != x.kind):
            out = None
        array = None if out is None else out.array
        plan = self.ops[op].plan(x.array, positions, forward, array, transfer=transfer)
        if out is None:
            # Not yet written.
            out = self.known(plan.out, to_host(plan.out))
        return Planned(plan, self.ops[op].config, x, out, positions, forward)

    @rule(planned=plans, positions=st.none() | POSITIONS)
    def run_plan(self, planned: Planned, positions: Any, x: Any = None) -> None:
        if positions is not None:
            planned.positions = positions
        want = emulate_rope(planned.x.holds, planned.positions, planned.config, planned.forward)
        assert planned.plan.run(x, positions) is planned.out.array
        planned.out.holds = want

    @rule(planned=plans, x=tensors, positions=st.none() | POSITIONS)
    def run_plan_on_another_array(self, planned: Planned, x: Tensor, positions: Any) -> None:
        in_place = planned.out is planned.x
        if x.kind != planned.x.kind or (x is planned.out and not in_place):
            with pytest.raises(clrope.ShapeError, match="x: "):
                planned.plan.run(x.array)
            return
        planned.x, planned.out = x, x if in_place else planned.out
        self.run_plan(planned, positions, x.array)

    @rule(planned=plans, x=tensors)
    def refused(self, planned: Planned, x: Tensor) -> None:
        for positions in (np.zeros(7, int), 2**63 - 1, np.zeros(SEQ)):
            with pytest.raises(clrope.ShapeError, match="positions: "):
                planned.plan.run(positions=positions)
            with pytest.raises(clrope.ShapeError, match="positions: "):
                self.ops[0](x.array, positions, True, x.array)

    @rule(op=st.integers(0, 3), positions=near | far | whole(SEQ))
    def cos_sin(self, op: int, positions: Any) -> None:
        got = self.ops[op].cos_sin(positions)
        for one, want in zip(got, emulate_cos_sin(positions, self.ops[op].config), strict=True):
            assert same(one, want).all()

    @rule(x=tensors)
    def written_by_the_caller(self, x: Tensor) -> None:
        x.holds = -x.holds
        if isinstance(x.array, np.ndarray):
            x.array[...] = x.holds
        else:
            x.array.queue.finish()
            cl.enqueue_copy(x.array.queue, x.array.base_data, x.holds.view(f"u{x.holds.itemsize}"))

    @rule(what=st.sampled_from(["tables", "calls", "constants", "host buffers", "queues", "staging"]))
    def forget(self, what: str) -> None:
        runtime = runtime_for(self.device)
        if what == "tables":
            runtime.tables = []
        elif what == "queues":
            runtimes.targets.clear()
        elif what == "staging":
            runtime.__dict__.pop("staging", None)
        else:
            {"calls": runtime.calls, "constants": runtime.constants, "host buffers": runtime.host_buffers}[what].clear()

    @rule(planned=consumes(plans))
    def drop_plan(self, planned: Planned) -> None:
        planned.plan = None  # type: ignore[assignment]
        gc.collect(0)

    @rule(x=consumes(tensors))
    def drop_array(self, x: Tensor) -> None:
        """A plan may still use it."""
        self.all = [tensor for tensor in self.all if tensor is not x]

    @invariant()
    def every_array_holds_what_it_must(self) -> None:
        for tensor in self.all:
            tensor.check()


@pytest.mark.one_in(2)
def test_calls_and_plans_in_any_order(device: clrope.DeviceInfo) -> None:
    machine = type("Calls", (Calls,), {"device": device})
    run_state_machine_as_test(machine, settings=examples(8, stateful_step_count=25))
