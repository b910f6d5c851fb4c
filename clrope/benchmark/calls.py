"""The cost of calls: a decode step of many layers, by every way in, next to torch, ggml and a bare launch.

A step rotates q and k of one token in every layer. The position moves with each step, as in generation. Before a cold
step other memory is read. One-shot calls on NumPy arrays are such a step of one layer and any number of tokens.
Another workload is a prefill into a new OpenCL array, compared with a prefill into a given array.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import reference
from ..api import rope
from ..compare import compare
from ..device.cache import CACHE_MULTIPLE, LEAST_BYTES, host_cache_bytes
from ..device.info import usable_cpus
from ..kernels.build import build
from ..layout import DTYPES
from ..operation import Rope
from ..testing import PEER_LIMITS, poisoned
from .buffers import Change, DeviceSets, make_inputs
from .entry import BenchmarkEntry, Kind, Refused, WrongResultError
from .peers import BenchmarkPeer, Prepared, Task, tables_of
from .validation import ResultCheck
from .workloads import Workload

if TYPE_CHECKING:
    import pyopencl

    from ..device import DeviceInfo

#: Steps before each timed step: they load this entry's data into the caches and wake the device's threads, which slept
#: while the process settled. After 3 of them launches still took twice as long.
WARM_UP_STEPS = 12
#: The same for cold steps and for steps that move more bytes than `LARGE_STEP`, which no cache keeps.
FEW_WARM_UP_STEPS, LARGE_STEP = 2, 8 << 20
#: Positions that the steps cycle through; the peers have tables of all of them.
FIRST_POSITION, LAST_POSITION = 1000, 4096

Array = npt.NDArray[Any]


@dataclass(eq=False)
class DecodeStep:
    """The inputs of a step and the position of the next one. x: q and k of each layer, [B, S, N, D].

    sampled: checks one layer of many tokens by some of them.
    """

    workload: Workload
    x: list[list[Array]]
    sampled: ResultCheck | None = None
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
            if self.sampled is not None:
                continue
            found = compare(y, reference.rope(x, self.workload.position_array(position), self.workload.config))
            if not found.nmse <= PEER_LIMITS[self.workload.dtype]:
                raise WrongResultError(f"layer {number // len(self.x[0])}, position {position}: {found}")
            worst = max(worst, found.nmse)
        return worst if self.sampled is None else self.sampled(got, Change(start=position))

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


def one_shot_step(workload: Workload, seed: int) -> DecodeStep:
    """Return a step of one layer whose results are checked by some of their tokens."""
    inputs = make_inputs(workload, seed)
    return DecodeStep(workload, [[x.copy() for x in inputs.tensors]], ResultCheck(inputs, seed))


def read_other_memory() -> Callable[[], None]:
    """Return what reads four times the host's largest cache by a thread of each processor, as a model reads weights."""
    count, size = usable_cpus(), CACHE_MULTIPLE * host_cache_bytes() or LEAST_BYTES
    # Ones: all untouched pages of zeros are one page of memory.
    parts, pool = np.ones((count, size // 8 // count)), ThreadPoolExecutor(count)

    def read() -> None:
        for _ in pool.map(np.sum, parts):
            pass

    return read


def _entry(
    kind: Kind,
    name: str,
    step: DecodeStep,
    run: Callable[[int], Any],
    read: Callable[[Any], Sequence[Array]],
    device: str | None = None,
    *,
    unmoved: bool = False,
    variant: str = "",
    reset: Callable[[], object] = lambda: None,
) -> BenchmarkEntry:
    """Return an entry with a whole step a call. unmoved: every step is at `FIRST_POSITION`. reset: before a check."""

    def call(_: int) -> None:
        run(step.move())

    def check() -> float:
        reset()
        position = FIRST_POSITION if unmoved else step.move()
        return step.check(read(run(position)), position)

    moved = step.workload.layers * step.workload.bytes_moved
    warm_up = FEW_WARM_UP_STEPS if step.workload.cold or moved > LARGE_STEP else WARM_UP_STEPS
    return BenchmarkEntry(kind, name, call, check, 1, moved, device, variant, least_warm_up=warm_up)


def _flat(results: Sequence[Sequence[Any]]) -> list[Array]:
    return [y.get() if hasattr(y, "get") else np.asarray(y) for layer in results for y in layer]


def _ways(
    step: DecodeStep, op: Rope, device: DeviceInfo | None, layers: Sequence[tuple[Any, ...]],
    empty: Callable[[], list[Any]], finish: Callable[[], object], names: tuple[str, str, str], label: str,
) -> list[BenchmarkEntry]:  # fmt: skip
    """Return one-shot calls, plans with a position of each step, and plans that stay at one position.

    finish: waits for what was enqueued, once for the one-shot calls of a step and after each run of a plan.
    """
    config = step.workload.config

    def one_shot(position: int) -> Any:
        results = [rope(x, position, config, device=device) for x in layers]
        finish()
        return results

    def planned(unmoved: bool) -> Callable[[int], Any]:
        # Each entry has plans and outputs of its own: none waits for another entry's work.
        outputs = empty()
        plans = [op.plan(x, FIRST_POSITION, out=tuple(y)) for x, y in zip(layers, outputs, strict=True)]

        def moving(position: int) -> Any:
            for plan in plans:
                plan.run(positions=position)
                finish()
            return outputs

        def still(_: int) -> Any:
            for plan in plans:
                plan.run()
                finish()
            return outputs

        return still if unmoved else moving

    ways = ((one_shot, False), (planned(False), False), (planned(True), True))
    return [
        _entry("clrope", name, step, run, _flat, label, unmoved=unmoved)
        for name, (run, unmoved) in zip(names, ways, strict=True)
    ]


def host_entries(step: DecodeStep, device: DeviceInfo, label: str) -> list[BenchmarkEntry]:
    """Return one-shot calls and plans on NumPy arrays."""
    names = ("rope numpy", "numpy plan.run(positions)", "numpy plan.run()")
    op, layers = Rope(step.workload.config, device), [(q, k) for q, k in step.x]
    return _ways(step, op, device, layers, step.empty, lambda: None, names, label)


def one_shot_entries(step: DecodeStep, device: DeviceInfo, label: str) -> list[BenchmarkEntry]:
    """Return one-shot calls on NumPy arrays: with new results, with results given, and in place."""
    config, (x,), (y,) = step.workload.config, step.x, step.empty()
    own = [a.copy() for a in x]  # rotated again and again, which keeps its norm

    def entry(name: str, x: Sequence[Array], out: Sequence[Array] | None) -> BenchmarkEntry:
        inputs, outputs = tuple(x), None if out is None else tuple(out)

        def run(position: int) -> Any:
            results = rope(inputs, position, config, out=outputs, device=device)
            return [results if outputs is None else outputs]

        return _entry("clrope", name, step, run, _flat, label, reset=reset)

    def reset() -> None:
        for a, b in zip(own, x, strict=True):
            np.copyto(a, b)

    return [entry("numpy new", x, None), entry("numpy out=", x, y), entry("numpy in place", own, own)]


def array_entries(step: DecodeStep, queue: pyopencl.CommandQueue, label: str) -> list[BenchmarkEntry]:
    """Return one-shot calls and plans on OpenCL arrays."""
    import pyopencl.array as cla

    layers = [tuple(cla.to_device(queue, x) for x in layer) for layer in step.x]

    def empty() -> list[Any]:
        return [[cla.empty_like(x) for x in layer] for layer in layers]

    op, names = Rope(step.workload.config, queue), ("rope arrays", "plan.run(positions)", "plan.run()")
    return _ways(step, op, None, layers, empty, queue.finish, names, label)


def torch_entry(step: DecodeStep, device: DeviceInfo, label: str) -> BenchmarkEntry:
    """Return one-shot calls on torch tensors; raise `Refused` without torch."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise Refused("torch is not installed") from error
    layers = [tuple(torch.from_numpy(x) for x in layer) for layer in step.x]

    def one_shot(position: int) -> Any:
        return [rope(x, position, step.workload.config, device=device) for x in layers]

    return _entry("clrope", "rope torch", step, one_shot, _flat, label)


def raw_entries(step: DecodeStep, device: DeviceInfo, queue: pyopencl.CommandQueue, label: str) -> list[BenchmarkEntry]:
    """Return launches of a kernel whose arguments are set in advance, with one work-item and with several.

    The host waits after each launch, as for plans here, or after all of them, as for one-shot calls on OpenCL arrays.
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

        # A kernel keeps no reference to its arguments.
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

        words = f"{items} work-item{'s' * (items > 1)}"
        return [
            _entry("launch", name, step, run, _flat, label, unmoved=True, variant=words)
            for name, run in (("raw launch", each_finished), ("raw launches, one finish", finished_once))
        ]

    return [made for items in ((1, 2) if device.kind == "cpu" else (heads,)) for made in entries(items)]


def peer_entries(peer: BenchmarkPeer, step: DecodeStep, threads: int) -> list[tuple[BenchmarkEntry, Prepared]]:
    """Return a peer's ways to do the same step; raise `Refused` if it has none."""
    workload = step.workload
    cos, sin = tables_of(workload, np.arange(LAST_POSITION + workload.tensors[0][1]))
    positions = workload.position_array(FIRST_POSITION)
    task = Task(workload, positions, cos, sin, False, step.x, step.empty(), threads)
    return [
        (_entry("peer", peer.name + p.suffix, step, p.call, p.read or _flat, variant=p.variant), p)
        for p in peer.prepare_step(task)
    ]


def new_result_entries(sets: DeviceSets, validate: ResultCheck, label: str) -> list[BenchmarkEntry]:
    """Return `op(x, positions)` on OpenCL arrays with a new array for the result, and with a given array."""
    workload, queue = sets.inputs.workload, sets.queue
    op, positions, x = Rope(workload.config, queue), workload.position_array(), sets.x[0][0]

    def entry(name: str, out: Any) -> BenchmarkEntry:
        def run() -> Any:
            result = op(x, positions, out=out)
            queue.finish()
            return result

        def call(_: int) -> None:
            run()

        return BenchmarkEntry(
            "clrope", name, call, lambda: validate([run().get()]), 1, workload.bytes_moved, label,
            least_warm_up=WARM_UP_STEPS,
        )  # fmt: skip

    return [entry("new array", None), entry("out=", sets.y[0][0])]
