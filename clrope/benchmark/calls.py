"""What a call costs: a decode step of many layers, by every way in, next to torch, ggml and a bare launch.

A step rotates q and k of one token in every layer, and the position moves with each step, as in generation. A second
workload is a prefill into a new OpenCL array against the same one into an array that is given.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import reference
from ..api import rope
from ..compare import compare
from ..kernels.build import build
from ..layout import DTYPES
from ..operation import Rope
from ..testing import PEER_LIMITS, poisoned
from .buffers import DeviceSets
from .entry import BenchmarkEntry, Kind, Refused, WrongResultError
from .peers import BenchmarkPeer, Prepared, Task
from .validation import ResultCheck
from .workloads import Workload

if TYPE_CHECKING:
    import pyopencl

    from ..device import DeviceInfo

#: Steps before each one that is timed: the device's threads are awake, its caches hold this entry's data.
WARM_UP_STEPS = 3
#: Positions that steps go through, over and over; the peers have tables of all of them.
FIRST_POSITION, LAST_POSITION = 1000, 4096

Array = npt.NDArray[Any]


@dataclass(eq=False)
class DecodeStep:
    """The inputs of a decode step and the position of the next one. x: q and k of each layer, [B, S, N, D]."""

    workload: Workload
    x: list[list[Array]]
    _position: int = FIRST_POSITION

    def move(self) -> int:
        """Return the position of the next step."""
        self._position = FIRST_POSITION + (self._position + 1 - FIRST_POSITION) % (LAST_POSITION - FIRST_POSITION)
        return self._position

    def check(self, got: Sequence[Array], position: int) -> float:
        """Return the NMSE of all results of a step, layer by layer; raise `WrongResultError`."""
        inputs = [x for layer in self.x for x in layer]
        if len(got) != len(inputs):
            raise WrongResultError(f"{len(got)} results for {len(inputs)} tensors")
        worst = 0.0
        for number, (x, y) in enumerate(zip(inputs, got, strict=True)):
            if y.shape != x.shape or y.dtype != x.dtype:
                raise WrongResultError(f"tensor {number}: {y.dtype}{list(y.shape)}, not {x.dtype}{list(x.shape)}")
            found = compare(y, reference.rope(x, self.workload.position_array(position), self.workload.config))
            if not found.nmse <= PEER_LIMITS[self.workload.dtype]:
                raise WrongResultError(f"layer {number // len(self.x[0])}, position {position}: {found}")
            worst = max(worst, found.nmse)
        return worst

    def empty(self) -> list[list[Array]]:
        """Return poisoned memory for the results."""
        return [[poisoned(x.shape, x.dtype) for x in layer] for layer in self.x]


def make_step(workload: Workload, seed: int) -> DecodeStep:
    """Return a step with uniform inputs in [-1, 1], each an ordinary array of its own."""
    rng = np.random.default_rng(seed)
    dtype = DTYPES[workload.dtype]
    layers = range(workload.layers)
    x = [[rng.uniform(-1, 1, shape).astype(dtype) for shape in workload.tensors] for _ in layers]
    return DecodeStep(workload, x)


def _entry(
    kind: Kind,
    name: str,
    step: DecodeStep,
    run: Callable[[int], Any],
    read: Callable[[Any], Sequence[Array]],
    device: str | None = None,
    *,
    unmoved: bool = False,
    details: str = "",
) -> BenchmarkEntry:
    """Return an entry that does a whole step at every call. unmoved: it stays at `FIRST_POSITION`."""

    def call(_: int) -> None:
        run(step.move())

    def check() -> float:
        position = FIRST_POSITION if unmoved else step.move()
        return step.check(read(run(position)), position)

    moved = step.workload.layers * step.workload.bytes_moved
    return BenchmarkEntry(kind, name, call, check, 1, moved, device, details, least_warm_up=WARM_UP_STEPS)


def _flat(results: Sequence[Sequence[Any]]) -> list[Array]:
    return [np.asarray(y) for layer in results for y in layer]


def host_entries(step: DecodeStep, device: DeviceInfo, label: str) -> list[BenchmarkEntry]:
    """Return one-shot calls and plans on NumPy arrays."""
    config = step.workload.config
    layers = [(q, k) for q, k in step.x]
    # Plans of their own, on outputs of their own: none waits for what another one did.
    outputs, still_outputs = step.empty(), step.empty()
    op = Rope(config, device)
    plans = [op.plan(x, FIRST_POSITION, out=tuple(y)) for x, y in zip(layers, outputs, strict=True)]
    still_plans = [op.plan(x, FIRST_POSITION, out=tuple(y)) for x, y in zip(layers, still_outputs, strict=True)]

    def one_shot(position: int) -> Any:
        return [rope(x, position, config, device=device) for x in layers]

    def moving(position: int) -> Any:
        for plan in plans:
            plan.run(positions=position)
        return outputs

    def still(_: int) -> Any:
        for plan in still_plans:
            plan.run()
        return still_outputs

    return [
        _entry("clrope", "rope numpy", step, one_shot, _flat, label),
        _entry("clrope", "numpy plan.run(positions)", step, moving, _flat, label),
        _entry("clrope", "numpy plan.run()", step, still, _flat, label, unmoved=True),
    ]


def torch_entry(step: DecodeStep, device: DeviceInfo, label: str) -> BenchmarkEntry | Refused:
    """Return one-shot calls on torch tensors."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return Refused("torch is not installed")
    config = step.workload.config
    layers = [tuple(torch.from_numpy(x) for x in layer) for layer in step.x]

    def one_shot(position: int) -> Any:
        return [rope(x, position, config, device=device) for x in layers]

    return _entry("clrope", "rope torch", step, one_shot, _flat, label)


def array_entries(step: DecodeStep, queue: pyopencl.CommandQueue, label: str) -> list[BenchmarkEntry]:
    """Return one-shot calls and plans on OpenCL arrays: a step of one-shot calls waits once, plans after each call."""
    import pyopencl.array as cla

    config = step.workload.config
    layers = [tuple(cla.to_device(queue, x) for x in layer) for layer in step.x]
    outputs, still_outputs = ([tuple(cla.empty_like(x) for x in layer) for layer in layers] for _ in range(2))
    op = Rope(config, queue)
    plans = [op.plan(x, FIRST_POSITION, out=y) for x, y in zip(layers, outputs, strict=True)]
    still_plans = [op.plan(x, FIRST_POSITION, out=y) for x, y in zip(layers, still_outputs, strict=True)]

    def one_shot(position: int) -> Any:
        results = [rope(x, position, config) for x in layers]
        queue.finish()
        return results

    def moving(position: int) -> Any:
        for plan in plans:
            plan.run(positions=position)
            queue.finish()
        return outputs

    def still(_: int) -> Any:
        for plan in still_plans:
            plan.run()
            queue.finish()
        return still_outputs

    def read(results: Sequence[Sequence[Any]]) -> list[Array]:
        return [y.get(queue) for layer in results for y in layer]

    return [
        _entry("clrope", "rope arrays", step, one_shot, read, label),
        _entry("clrope", "plan.run(positions)", step, moving, read, label),
        _entry("clrope", "plan.run()", step, still, read, label, unmoved=True),
    ]


def raw_entries(step: DecodeStep, device: DeviceInfo, queue: pyopencl.CommandQueue, label: str) -> list[BenchmarkEntry]:
    """Return launches of a kernel with everything bound before, in one work-item and in several.

    Each is waited for, as plans are here, or all of them at once, as one-shot calls on OpenCL arrays are.
    """
    import pyopencl as cl
    import pyopencl.array as cla

    workload = step.workload
    (_, _, q_heads, head_dim), (_, _, k_heads, _) = workload.tensors
    heads = q_heads + k_heads
    options = [f"-DD={head_dim}"]
    options += ["-DHALF"] * (workload.dtype == "f16") + ["-DINTERLEAVED"] * (workload.mode == "normal")
    source = (Path(__file__).parent / "calls.cl").read_text(encoding="utf-8")
    program = build(queue.context, queue.device, source, tuple(options))
    positions = workload.position_array(FIRST_POSITION)
    tables = [cla.to_device(queue, t.astype(np.float32)) for t in reference.cos_sin(positions, workload.config)]
    layers = [tuple(cla.to_device(queue, x) for x in layer) for layer in step.x]
    outputs = [tuple(cla.empty_like(x) for x in layer) for layer in layers]

    def entries(items: int) -> list[BenchmarkEntry]:
        kernels = []
        for (q, k), (q_out, k_out) in zip(layers, outputs, strict=True):
            kernel = cl.Kernel(program, "rotate_heads")
            numbers = (np.uint32(q_heads), np.uint32(heads), np.uint32(-(-heads // items)))
            kernel.set_args(*(a.data for a in (q, q_out, k, k_out, *tables)), *numbers)
            kernels.append(kernel)
        size, local, enqueue = (items,), (1,), cl.enqueue_nd_range_kernel

        # A kernel does not keep its arguments alive.
        def each_finished(_: int, kept: Any = (layers, tables)) -> Any:
            for kernel in kernels:
                enqueue(queue, kernel, size, local)
                queue.finish()
            return outputs

        def finished_once(_: int) -> Any:
            for kernel in kernels:
                enqueue(queue, kernel, size, local)
            queue.finish()
            return outputs

        def read(results: Sequence[Sequence[Any]]) -> list[Array]:
            return [y.get(queue) for layer in results for y in layer]

        words = f"{items} work-item{'s' * (items > 1)}"
        return [
            _entry("launch", name, step, run, read, label, unmoved=True, details=words)
            for name, run in (("raw launch", each_finished), ("raw launches, one finish", finished_once))
        ]

    return [made for items in ((1, 2) if device.kind == "cpu" else (heads,)) for made in entries(items)]


def peer_entries(
    peer: BenchmarkPeer, step: DecodeStep, threads: int
) -> list[tuple[BenchmarkEntry, Prepared]] | Refused:
    """Return a peer's ways to do the same step, if its file says how."""
    prepare: Callable[[Task], list[Prepared] | Refused] | None = getattr(peer, "prepare_step", None)
    if prepare is None:
        return Refused("does no decode step here")
    config = step.workload.config
    cos, sin = reference.cos_sin(np.arange(LAST_POSITION), config)
    task = Task(
        step.workload, config, step.workload.position_array(FIRST_POSITION), cos.astype(np.float32),
        sin.astype(np.float32), False, step.x, step.empty(), threads,
    )  # fmt: skip
    made = prepare(task)
    if isinstance(made, Refused):
        return made
    return [
        (_entry("peer", peer.name + p.suffix, step, p.call, p.read or _flat, details=p.variant), p) for p in made
    ]  # fmt: skip


def new_result_entries(sets: DeviceSets, validate: ResultCheck, label: str) -> list[BenchmarkEntry]:
    """Return `op(x, positions)` on OpenCL arrays with a new array for the result, and with one that is given."""
    workload, queue = sets.inputs.workload, sets.queue
    op, positions = Rope(workload.config, queue), workload.position_array()
    x, y = sets.x[0][0], sets.y[0][0]

    def new() -> Any:
        result = op(x, positions)
        queue.finish()
        return result

    def given() -> Any:
        result = op(x, positions, out=y)
        queue.finish()
        return result

    def entry(name: str, run: Callable[[], Any]) -> BenchmarkEntry:
        def call(_: int) -> None:
            run()

        def check() -> float:
            return validate([run().get(queue)])

        return BenchmarkEntry(
            "clrope", name, call, check, 1, workload.bytes_moved, label, least_warm_up=WARM_UP_STEPS
        )  # fmt: skip

    return [entry("new array", new), entry("out=", given)]
