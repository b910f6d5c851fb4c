"""The child's side of tuning: build, run, check and time variants on one device, saying first what is tried.

Run by `device.child.run` in a process of its own, because some variants end the process, or never end. Entries in the
result file: `begin` (a variant's number, or 'ceiling') before anything that may go wrong, then what happened.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..angles import angle_table
from ..config import RopeConfig
from ..device import child, devices, probe
from ..emulation import emulate_cos_sin, emulate_rotation
from ..errors import BuildError, DeviceError
from ..kernels.build import build
from ..kernels.launch import Launch, LaunchSpec
from ..kernels.problem import BUFFER_ALIGNMENT, AngleForm, Pairing, PairLayout, Problem
from ..kernels.variant import STRIDED, Variant
from ..layout import DTYPES, TensorView
from ..reference import pair_indices
from ..runtime import queue_for
from ..testing import POISON, close_limit, count_differing
from .ceiling import ceiling_launches
from .race import MOST_ROUNDS, Race

if TYPE_CHECKING:
    import pyopencl

    from ..device import DeviceInfo

#: Bytes of a tensor that a variant rotates in a row, on the same buffers; in at most 20 runs.
TURN_BYTES = 16 << 20
#: Share of the time after which no further variant is checked, so that those that are right get timed.
CHECKING = 0.7
HEADS, HEAD_DIM = 32, 128
_SAMPLE = 3  # tokens checked at the start, in the middle and at the end of what is timed

Bytes = npt.NDArray[np.uint8]


def main(job_path: str, result_path: str) -> None:
    """Do one job and leave by `os._exit`: a driver's tear-down may crash after the answer is known."""
    started = time.monotonic()
    with open(job_path, encoding="utf-8") as file:
        job: dict[str, Any] = json.load(file)
    with open(result_path, "w", encoding="utf-8") as out:

        def write(**entry: Any) -> None:
            out.write(json.dumps(entry) + "\n")
            out.flush()

        probe._no_core_file()
        write(stage=child.IMPORTING)
        import pyopencl  # noqa: F401

        write(stage="looking for the device")
        worker = Worker(job, write, started)
        worker.check_all()
        for number, case in enumerate(job["cases"]):
            worker.time_case(number, case, len(job["cases"]) - number)
        write(answer={})
    os._exit(0)


@dataclass
class _Setup:
    """One tensor to check variants on: a flat input, the views of input and output, the right bytes."""

    x: Any
    x_view: TensorView
    y_view: TensorView
    pairs: PairLayout
    config: RopeConfig
    positions: Any
    cosine: Any
    sine: Any
    y_elements: int
    want: Bytes
    x_flat: npt.NDArray[Any]

    def problem(self, in_place: bool) -> Problem:
        """Return the problem, also of rotating the output in place."""
        return _problem(self.y_view if in_place else self.x_view, self.y_view, self.pairs, in_place)


class Worker:
    """One job on its device."""

    def __init__(self, job: dict[str, Any], write: Any, started: float) -> None:
        self.job, self.write, self.started = job, write, started
        self.device = _find(job["device"], job["ordinal"])
        self.queue = queue_for(self.device)
        self.context = self.queue.context
        self.dtype_name: str = job["dtype"]
        self.dtype = DTYPES[self.dtype_name]
        self.bits = np.dtype(f"u{self.dtype.itemsize}")
        self.pairing: Pairing = job["pairing"]
        self.rng = np.random.default_rng(job["seed"])
        self.variants = [Variant.from_dict(v) for v in job["variants"]]
        self.usable: list[int] = list(job["usable"])
        self.checked_against: str = job["checked_against"]
        self.sources = {int(number): str(text) for number, text in job["sources"].items()}
        self._programs: dict[LaunchSpec, pyopencl.Program] = {}
        self._alive: list[dict[str, Any]] = []  # a kernel does not keep the buffers alive that are its arguments

    # -- right or not -------------------------------------------------------------------------------------------------

    def check_all(self) -> None:
        """Check every variant that is to be checked, as long as there is time for it."""
        todo = self.job["todo"]
        if not todo:
            return
        setups = self._setups()
        self._settle(setups)
        for number in todo:
            if self._seconds() > CHECKING * self.job["seconds"]:
                return
            self._begin(number, "checking")
            failure, log = self._checked(number, setups)
            self.write(end=number, outcome=failure[0], reason=failure[1], log=log)
            if not failure[0]:
                self.usable.append(number)

    def _settle(self, setups: list[_Setup]) -> None:
        """Find what to check against: the emulation, or the strided kernel where a device rounds in its own way."""
        numbers = [n for n, v in enumerate(self.variants) if v == STRIDED]
        if not numbers:
            return
        self._begin(numbers[0], "checking")
        for setup in setups:
            try:
                got = self._run(numbers[0], setup, in_place=False)
            except (BuildError, _cl_error()):
                return  # its own check says why
            if not self._wrong(got, setup.want) or not self._close(got, setup):
                continue
            setup.want = got
            self.checked_against = "strided"
            self.write(checked_against="strided")

    def _setups(self) -> list[_Setup]:
        whole = self._setup((2, 19, 3, HEAD_DIM), HEAD_DIM, 0, x_offset=64, head_gap=0)
        # A window in the head, a rest that is copied, and an input that no vector is aligned in.
        part = self._setup((1, 21, 5, 80), 40, 16, x_offset=5, head_gap=3)
        return [whole, part]

    def _setup(self, shape: tuple[int, int, int, int], n_dims: int, n_offs: int, x_offset: int, head_gap: int) -> Any:
        _, tokens, heads, head_dim = shape
        config = RopeConfig(self.pairing, n_dims, n_offs=n_offs)
        step = head_dim + head_gap
        x_view = TensorView(shape, (tokens * heads * step, heads * step, step, 1), x_offset, self.dtype_name)
        y_view = TensorView.dense(shape, self.dtype_name).moved(64)
        flat = self._numbers(x_view.span[1] + 16)
        # By bits: NumPy's array interface has no name for float8_e5m2.
        x = np.lib.stride_tricks.as_strided(
            flat.view(self.bits)[x_offset:], shape, [s * self.dtype.itemsize for s in x_view.strides], writeable=False
        ).view(self.dtype)
        positions = self.rng.integers(0, 1 << 20, tokens)
        cosine, sine = emulate_cos_sin(positions, config, real=self.real)
        y_elements = y_view.span[1] + 64
        want = np.full(y_elements * self.dtype.itemsize, POISON, np.uint8)
        rotated = emulate_rotation(x, cosine[None], sine[None], pair_indices(config))
        want.view(self.bits)[64 : 64 + rotated.size] = np.ascontiguousarray(rotated).view(self.bits).ravel()
        pairs = PairLayout.of_config(config, head_dim)
        return _Setup(x, x_view, y_view, pairs, config, positions, cosine, sine, y_elements, want, flat)

    @property
    def real(self) -> Any:
        """The computing type."""
        return "f64" if self.dtype_name == "f64" else "f32"

    def _numbers(self, count: int) -> npt.NDArray[Any]:
        """Return numbers around 1, and for small types some of any bits: what converts them is what differs."""
        values = self.rng.standard_normal(count).astype(np.float32).astype(self.dtype)
        if self.dtype.itemsize <= 2:
            odd = np.flatnonzero(self.rng.random(count) < 0.05)
            some = self.rng.integers(0, 1 << 8 * self.dtype.itemsize, odd.size).astype(self.bits)
            if self.dtype_name == "bf16":
                some = some[(some & 0x7F80) != 0]  # a subnormal bfloat16 is a subnormal float: devices may flush it
                odd = odd[: some.size]
            values.view(self.bits)[odd] = some
        return values

    def _checked(self, number: int, setups: list[_Setup]) -> tuple[tuple[str, str], str]:
        """Return ((outcome, reason), log); the outcome is '' if every byte is right."""
        ran = False
        try:
            for setup in setups[:1] if self.variants[number].parameters.get("prepared") else setups:
                for in_place in (False, True):
                    if self.variants[number].unsupported(setup.problem(in_place)):
                        continue
                    ran, want = True, setup.want
                    got = self._run(number, setup, in_place)
                    before = self._start(setup, in_place)
                    if np.array_equal(got, before):
                        return ("not_run", "it silently did not run: its output was left as it was"), ""
                    wrong = self._wrong(got, want)
                    if wrong:
                        place = "in place" if in_place else "out of place"
                        return ("wrong", f"{wrong} of {setup.y_view.size} values are wrong, {place}"), ""
                    if self.variants[number].implementation.takes_second and not in_place:
                        wrong = sum(self._wrong(got, want) for got in self._run_two(number, setup))
                        if wrong:
                            return ("wrong", f"{wrong} values are wrong where a launch rotates two tensors"), ""
        except BuildError as error:
            return ("build_error", _error_line(error.log)), error.log[-4000:]
        except _cl_error() as error:
            return ("not_run", f"the driver refused: {_error_line(str(error))}"), str(error)[-4000:]
        return ("", "") if ran else ("not_run", "it supports nothing that it could be checked on"), ""

    def _start(self, setup: _Setup, in_place: bool) -> Bytes:
        """Return the bytes of the output before the run: poison, in place with the input inside."""
        out = np.full(setup.y_elements * self.dtype.itemsize, POISON, np.uint8)
        if in_place:
            bits = np.ascontiguousarray(setup.x).view(self.bits).ravel()
            out.view(self.bits)[64 : 64 + bits.size] = bits
        return out

    def _run(self, number: int, setup: _Setup, in_place: bool) -> Bytes:
        import pyopencl as cl

        got = self._start(setup, in_place)
        y = self._buffer(got)
        x = y if in_place else self._buffer(setup.x_flat.view(self.bits))
        problem = setup.problem(in_place)
        bound = {**self._tables(number, setup), **self._tensors(setup, x, y, in_place)}
        launch = self._launch(number, problem, bound)
        launch.enqueue(self.queue)
        cl.enqueue_copy(self.queue, got, y)
        self.queue.finish()
        return got

    def _run_two(self, number: int, setup: _Setup) -> list[Bytes]:
        """Return the outputs of one launch that rotates the tensor twice, as if it were two."""
        import pyopencl as cl

        x = self._buffer(setup.x_flat.view(self.bits))
        outputs = [self._start(setup, in_place=False) for _ in range(2)]
        y, y2 = (self._buffer(output) for output in outputs)
        bound = {**self._tables(number, setup), **self._tensors(setup, x, y, False)}
        bound |= {f"{name[0]}2{name[1:]}": value for name, value in self._tensors(setup, x, y2, False).items()}
        problem = setup.problem(in_place=False)
        self._launch(number, problem, bound, problem).enqueue(self.queue)
        for output, buffer in zip(outputs, (y, y2), strict=True):
            cl.enqueue_copy(self.queue, output, buffer)
        self.queue.finish()
        return outputs

    @staticmethod
    def _tensors(setup: _Setup, x: Any, y: Any, in_place: bool) -> dict[str, Any]:
        x_view = setup.y_view if in_place else setup.x_view
        return {"x": x, "x_offset": np.int64(x_view.offset), "y": y, "y_offset": np.int64(setup.y_view.offset)}

    def _buffer(self, contents: npt.NDArray[Any]) -> pyopencl.Buffer:
        import pyopencl as cl

        return cl.Buffer(self.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=contents)

    def _tables(self, number: int, data: _Setup | _Workload) -> dict[str, Any]:
        """Return the arguments that a variant takes cos and sin from: finished tables, or positions and steps."""
        if self.variants[number].angles != "fused":
            return {"cosine": self._buffer(data.cosine), "sine": self._buffer(data.sine)}
        table, rows = angle_table(data.config), np.asarray(data.positions, np.int64)
        real = np.float64 if self.real == "f64" else np.float32
        arrays = {"positions": rows, "step": table.step, "step_low": table.step_low, "axis": table.axis}
        buffers = {name: self._buffer(np.ascontiguousarray(array)) for name, array in arrays.items()}
        return {**buffers, "rows": np.int32(rows.size), "magnitude": real(table.magnitude)}

    def _launch(self, number: int, problem: Problem, bound: dict[str, Any], second: Problem | None = None) -> Launch:
        spec = self.variants[number].spec(problem, self.device, second)
        if number in self.sources:
            spec = replace(spec, source=self.sources[number])
        key = replace(spec, global_size=(), local_size=None, arguments=())
        if key not in self._programs:
            self._programs[key] = build(self.context, self.device.cl_device, spec.text, spec.options)
        launch = Launch(self._programs[key], spec)
        launch.bind(bound)
        self._alive.append(bound)
        return launch

    def _wrong(self, got: Bytes, want: Bytes) -> int:
        return count_differing(got.view(self.dtype), want.view(self.dtype))

    def _close(self, got: Bytes, setup: _Setup) -> bool:
        a, b = (part.view(self.dtype).astype(np.float64) for part in (got, setup.want))
        finite = np.isfinite(a) & np.isfinite(b)
        with np.errstate(all="ignore"):
            error = np.square(a[finite] - b[finite]).sum() / np.square(b[finite]).sum()
        return bool(error <= close_limit(self.dtype_name))

    # -- how fast -----------------------------------------------------------------------------------------------------

    def time_case(self, number: int, case: dict[str, Any], cases_left: int) -> None:
        """Time all usable variants for one tuning key in rounds, with the ceilings, and write what each takes."""
        share = max(0.5, (self.job["seconds"] - self._seconds()) / cases_left)
        end = time.monotonic() + share
        self._alive.clear()
        workload = _Workload(self, case["in_place"], case["nbytes"], case["sets"])
        # For each variant a launch a set, and for each ceiling.
        runs: dict[int, list[Any]] = {}
        failed: dict[int, tuple[str, str]] = {}
        usable = [i for i in self.usable if not self.variants[i].unsupported(workload.problem)]
        without = [i for i in usable if self.variants[i].angles == "fused"]
        for i in without if case["no_table"] and without else usable:
            self._begin(i, f"running on {workload.nbytes} bytes")
            tables = self._tables(i, workload)
            zero = {"x_offset": np.int64(0), "y_offset": np.int64(0)}
            launches = [self._launch(i, workload.problem, {**tables, **zero, "x": x, "y": y}) for x, y in workload.sets]
            failure = workload.failure(launches[0])
            if failure:
                failed[i] = failure
            else:
                runs[i] = [launch.enqueue for launch in launches]
        ceilings = self._ceilings(workload) if self.job["ceiling"] else []
        # Several, of 4 MiB too, so that the best found the caches as its like leaves them: non-temporal stores are slow
        # where another variant has just left the same lines there.
        repeat = 1 if case["sets"] > 1 else max(1, min(20, TURN_BYTES // workload.nbytes))
        race: Race[int | str] = Race(list(runs), self.rng, "ceiling" if ceilings else None)

        def seconds_of(runner: int | str) -> float:
            if not isinstance(runner, int):
                self._begin("ceiling", "timing")
                return min(self._time(copies, repeat, workload) for copies in ceilings)
            self._begin(runner, f"timing on {workload.nbytes} bytes")
            return self._time(runs[runner], repeat, workload)

        while len(race.rounds) < MOST_ROUNDS and (len(race.rounds) < 2 or time.monotonic() < end):
            race.round(seconds_of)
        self._alarm(0)
        seconds = race.seconds()
        ceiling = seconds.pop("ceiling", None)
        self.write(case=number, nbytes=workload.nbytes, seconds=seconds, ceiling=ceiling, failed=failed)

    def _time(self, enqueues: list[Any], repeat: int, workload: _Workload) -> float:
        """Return the best time of so many runs, each on the set whose last use is longest ago."""
        best = float("inf")
        for _ in range(repeat):
            enqueue = enqueues[next(workload.turns)]
            start = time.perf_counter()
            enqueue(self.queue)
            self.queue.finish()
            best = min(best, time.perf_counter() - start)
        return best

    def _ceilings(self, workload: _Workload) -> list[list[Any]]:
        """Return what moves the same bytes with no work, a call a set: copies, or in place scalings."""
        import pyopencl as cl

        self._begin("ceiling", "building")
        places = workload.sets
        launches = ceiling_launches(self.context, self.device, places, workload.nbytes)
        out: list[list[Any]] = [[launch.enqueue for launch in variant] for variant in launches]
        if places[0][0] is not places[0][1]:
            out.append([partial(cl.enqueue_copy, dest=y, src=x, byte_count=workload.nbytes) for x, y in places])
        for calls in out:
            calls[0](self.queue)
        self.queue.finish()
        return out

    # -- telling ------------------------------------------------------------------------------------------------------

    def _seconds(self) -> float:
        return time.monotonic() - self.started

    def _begin(self, what: int | str, doing: str) -> None:
        name = self.variants[what] if isinstance(what, int) else what
        self.write(stage=f"{doing}: {name}")
        self.write(begin=what)
        self._alarm(self.job["limit"])

    def _alarm(self, seconds: float) -> None:
        # Left at its default, the signal ends the process, also inside a driver that never returns.
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, seconds)


class _Workload:
    """Buffers of a size class, filled, and the means to see whether a run did its work.

    sets: (input, output), used in turn; with enough of them none is in a cache when it comes again.
    turns: the numbers of the sets, over and over.
    """

    def __init__(self, worker: Worker, in_place: bool, nbytes: int, sets: int) -> None:
        import pyopencl as cl

        self.worker = worker
        row = HEADS * HEAD_DIM * worker.dtype.itemsize
        self.tokens = max(1, nbytes // row)
        self.nbytes = self.tokens * row
        self.config = RopeConfig(worker.pairing, HEAD_DIM)
        view = TensorView.dense((1, self.tokens, HEADS, HEAD_DIM), worker.dtype_name)
        self.positions = np.arange(self.tokens)
        self.cosine, self.sine = emulate_cos_sin(self.positions, self.config, real=worker.real)
        self.sets: list[tuple[Any, Any]] = []
        for _ in range(sets):
            x = y = cl.Buffer(worker.context, cl.mem_flags.READ_WRITE, self.nbytes)
            if not in_place:
                y = cl.Buffer(worker.context, cl.mem_flags.READ_WRITE, self.nbytes)
            self.sets.append((x, y))
        self.turns = itertools.cycle(range(sets))
        self.x, self.y = self.sets[0]
        self.problem = _problem(view, view, PairLayout.of_config(self.config, HEAD_DIM), in_place)
        self._fill([buffer for x, y in self.sets for buffer in ((x,) if in_place else (x, y))])

    def _fill(self, buffers: list[Any]) -> None:
        import pyopencl as cl

        queue, dtype = self.worker.queue, self.worker.dtype
        block = self.worker.rng.standard_normal(min(self.nbytes, 1 << 20) // dtype.itemsize).astype(dtype)
        first, *others = buffers
        for start in range(0, self.nbytes, block.nbytes):
            part = block.view(np.uint8)[: min(block.nbytes, self.nbytes - start)]
            cl.enqueue_copy(queue, first, part, dst_offset=start)
        for other in others:
            cl.enqueue_copy(queue, other, first, byte_count=self.nbytes)
        queue.finish()

    def failure(self, launch: Any) -> tuple[str, str] | None:
        """Run once and return what is wrong with some tokens of the result: (outcome, reason)."""
        import pyopencl as cl

        worker, queue = self.worker, self.worker.queue
        row = self.nbytes // self.tokens
        # All of a few tokens, or some that do not overlap.
        few = self.tokens < 4 * _SAMPLE
        count = self.tokens if few else _SAMPLE
        starts = [0] if few else [0, self.tokens // 2, self.tokens - count]
        inputs = []
        for start in starts:
            x = worker.rng.standard_normal((1, count, HEADS, HEAD_DIM)).astype(worker.dtype)
            inputs.append(x)
            if self.y is not self.x:
                poison = np.full(count * row, POISON, np.uint8)
                cl.enqueue_copy(queue, self.y, poison, dst_offset=start * row)
            cl.enqueue_copy(queue, self.x, x.view(worker.bits), dst_offset=start * row)
        queue.finish()
        try:
            launch.enqueue(queue)
            queue.finish()
        except cl.Error as error:
            return "not_run", f"the driver refused: {_error_line(str(error))}"
        for start, x in zip(starts, inputs, strict=True):
            got = np.empty(count * row, np.uint8)
            cl.enqueue_copy(queue, got, self.y, src_offset=start * row)
            rows = slice(start, start + count)
            want = emulate_rotation(x, self.cosine[None, rows], self.sine[None, rows], pair_indices(self.config))
            before = x if self.y is self.x else np.full(count * row, POISON, np.uint8)
            if np.array_equal(got, np.ascontiguousarray(before).view(np.uint8).ravel()) and self.tokens > 1:
                return "not_run", f"it silently did not run on {self.nbytes} bytes"
            bits = np.ascontiguousarray(want).view(np.uint8).ravel()
            if worker.checked_against != "strided" and (wrong := worker._wrong(got, bits)):
                return "wrong", f"{wrong} of {x.size} values are wrong, in a tensor of {self.nbytes} bytes"
        return None


def _problem(x: TensorView, y: TensorView, pairs: PairLayout, in_place: bool) -> Problem:
    alignments = [gcd(BUFFER_ALIGNMENT, view.offset * view.itemsize) for view in (x, y)]
    return Problem(
        x.shape, x.dtype, x.strides, y.strides, pairs, in_place, angles=AngleForm(exact=True),
        x_alignment=alignments[0], y_alignment=alignments[1],
    )  # fmt: skip


def _find(key: str, ordinal: int) -> DeviceInfo:
    same = [d for d in devices() if d.key == key]
    if len(same) <= ordinal or same[ordinal]._cl is None:
        raise DeviceError(f"device {key!r} is not there in a fresh process")
    return same[ordinal]


def _cl_error() -> type[pyopencl.Error]:
    import pyopencl

    return pyopencl.Error


def _error_line(text: str) -> str:
    return probe._error_line(text)
