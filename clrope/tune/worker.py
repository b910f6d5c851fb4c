"""The child's side of tuning: build, run, check and time variants on one device.

Run by `device.child.run` in a process of its own, because some variants end the process or never end. An entry `begin`
(a variant's number, or 'ceiling') precedes every step that may fail; an entry with the outcome follows.
"""

from __future__ import annotations

import itertools
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from math import gcd
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyopencl as cl

from ..angles import angle_table
from ..buffer_place import BUFFER_ALIGNMENT
from ..call.runtime import queue_for
from ..config import RopeConfig
from ..device import child, devices
from ..device.probe import error_line
from ..emulation import emulate_cos_sin, emulate_rotation
from ..errors import BuildError, DeviceError
from ..kernels.build import build
from ..kernels.launch import Launch, LaunchSpec
from ..kernels.problem import AngleForm, Pairing, PairLayout, Problem
from ..kernels.variant import STRIDED, Variant
from ..layout import DTYPES, TensorView
from ..reference import pair_indices
from ..testing import POISON, close_limit, count_differing, nmse
from ..timed_outputs import TimedOutputs
from .ceiling import ceiling_launches
from .race import MOST_ROUNDS, Race

if TYPE_CHECKING:
    from ..device import DeviceInfo

#: Bytes that a variant rotates in consecutive runs on the same buffers, in at most so many runs.
TURN_BYTES, MOST_RUNS = 16 << 20, 8
#: The fewest rounds of a pair, which decide whether it replaces the default.
PAIRED_ROUNDS = 30
#: Share of the time after which no further variant is checked, so that time is left to measure the correct variants.
CHECKING = 0.7
HEADS, HEAD_DIM = 32, 128
_MARGIN = 64  # elements before and after an output that is checked

Bytes = npt.NDArray[np.uint8]


def main() -> None:
    """Do one job in this process, which a variant may end."""
    child.serve(_work)


def _work(job: dict[str, Any], write: child.Write) -> dict[str, Any]:
    write(stage="looking for the device")
    worker = Worker(job, write)
    worker.check_all()
    for number, case in enumerate(job["cases"]):
        worker.time_case(number, case, len(job["cases"]) - number)
    return {}


class _Failed(Exception):
    """A variant fails: outcome and reason as in `VariantResult`, and the log of the compiler or the driver."""

    def __init__(self, outcome: str, reason: str, log: str = "") -> None:
        super().__init__(outcome, reason, log[-4000:])


@contextmanager
def _driver_errors() -> Iterator[None]:
    """Turn an error of the compiler or the driver into `_Failed`."""
    try:
        yield
    except BuildError as error:
        raise _Failed("build_error", error_line(error.log), error.log) from error
    except cl.Error as error:
        raise _Failed("not_run", f"the driver refused: {error_line(str(error))}", str(error)) from error


class _Setup:
    """One tensor to check variants on: a flat input, the views of input and output, the right bytes."""

    def __init__(
        self, worker: Worker, shape: tuple[int, int, int, int], config: RopeConfig, x_offset: int, head_gap: int
    ) -> None:
        _, tokens, heads, head_dim = shape
        step = head_dim + head_gap
        self.config, self.bits = config, worker.bits
        self.pairs = PairLayout.of_config(config, head_dim)
        self.x_view = TensorView(shape, (tokens * heads * step, heads * step, step, 1), x_offset, worker.dtype_name)
        self.y_view = TensorView.dense(shape, worker.dtype_name).moved(_MARGIN)
        self.y_bytes = (self.y_view.span[1] + _MARGIN) * worker.dtype.itemsize
        self.x_flat = worker.numbers(self.x_view.span[1] + 16)
        strides = [stride * worker.dtype.itemsize for stride in self.x_view.strides]
        # By bits: NumPy's array interface has no name for float8_e5m2.
        elements = self.x_flat.view(worker.bits)[x_offset:]
        self.x = np.lib.stride_tricks.as_strided(elements, shape, strides, writeable=False).view(worker.dtype)
        self.positions = worker.rng.integers(0, 1 << 20, tokens)
        self.cosine, self.sine = emulate_cos_sin(self.positions, config, real=worker.real)
        self.want = self._output(emulate_rotation(self.x, self.cosine[None], self.sine[None], pair_indices(config)))

    def start(self, in_place: bool) -> Bytes:
        """Return the bytes of the output before the run: poison, in place with the input inside."""
        return self._output(self.x if in_place else self.x[:0])

    def _output(self, inside: npt.NDArray[Any]) -> Bytes:
        out = np.full(self.y_bytes, POISON, np.uint8)
        out.view(self.bits)[_MARGIN : _MARGIN + inside.size] = np.ascontiguousarray(inside).view(self.bits).ravel()
        return out

    def problem(self, in_place: bool) -> Problem:
        """Return the problem, also of rotating the output in place."""
        return _problem(self.y_view if in_place else self.x_view, self.y_view, self.pairs, in_place)


class Worker:
    """One job on its device."""

    def __init__(self, job: dict[str, Any], write: Any) -> None:
        self.job, self.write = job, write
        self.device = _find(job["device"], job["ordinal"])
        self.started = time.monotonic()  # where nothing is remembered, finding the device takes many seconds
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
        #: The computing type.
        self.real: Literal["f32", "f64"] = "f64" if self.dtype_name == "f64" else "f32"
        self._programs: dict[LaunchSpec, cl.Program] = {}
        self._alive: list[dict[str, Any]] = []  # a kernel does not keep the buffers alive that are its arguments

    # -- correctness --------------------------------------------------------------------------------------------------

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
            outcome = reason = log = ""
            try:
                with _driver_errors():
                    self._check(number, setups)
                self.usable.append(number)
            except _Failed as failed:
                outcome, reason, log = failed.args
            self.write(end=number, outcome=outcome, reason=reason, log=log)

    def _settle(self, setups: list[_Setup]) -> None:
        """Find what to check against: the emulation, or the strided kernel where a device rounds in its own way."""
        numbers = [n for n, v in enumerate(self.variants) if v == STRIDED]
        if not numbers:
            return
        self._begin(numbers[0], "checking")
        for setup in setups:
            try:
                (got,) = self._run(numbers[0], setup, in_place=False)
            except (BuildError, cl.Error):
                return  # its own check says why
            if not self.wrong(got, setup.want) or not self.close(got, setup.want):
                continue
            setup.want = got
            self.checked_against = "strided"
            self.write(checked_against="strided")

    def _setups(self) -> list[_Setup]:
        whole = _Setup(self, (2, 19, 3, HEAD_DIM), RopeConfig(self.pairing, HEAD_DIM), x_offset=64, head_gap=0)
        # A window in the head, a rest that is copied, and an input that no vector is aligned in.
        window = RopeConfig(self.pairing, 40, n_offs=16)
        return [whole, _Setup(self, (1, 21, 5, 80), window, x_offset=5, head_gap=3)]

    def numbers(self, count: int) -> npt.NDArray[Any]:
        """Return numbers around 1, and for small types some of any bits, because variants differ in conversions."""
        values = self.rng.standard_normal(count).astype(np.float32).astype(self.dtype)
        if self.dtype.itemsize <= 2:
            odd = np.flatnonzero(self.rng.random(count) < 0.05)
            some = self.rng.integers(0, 1 << 8 * self.dtype.itemsize, odd.size).astype(self.bits)
            if self.dtype_name == "bf16":
                some = some[(some & 0x7F80) != 0]  # a subnormal bfloat16 is a subnormal float: devices may flush it
                odd = odd[: some.size]
            values.view(self.bits)[odd] = some
        return values

    def _check(self, number: int, setups: list[_Setup]) -> None:
        """Raise `_Failed` unless every byte is right."""
        variant, ran = self.variants[number], False
        for setup in setups if variant == STRIDED else setups[:1]:
            for in_place in (False, True):
                if variant.unsupported(setup.problem(in_place)):
                    continue
                ran = True
                (got,) = self._run(number, setup, in_place)
                if np.array_equal(got, setup.start(in_place)):
                    raise _Failed("not_run", "it silently did not run: its output was left as it was")
                if wrong := self.wrong(got, setup.want):
                    place = "in place" if in_place else "out of place"
                    raise _Failed("wrong", f"{wrong} of {setup.y_view.size} values are wrong, {place}")
                if variant.implementation.takes_second and not in_place:
                    both = self._run(number, setup, in_place, outputs=2)
                    if wrong := sum(self.wrong(got, setup.want) for got in both):
                        raise _Failed("wrong", f"{wrong} values are wrong where a launch rotates two tensors")
        if not ran:
            raise _Failed("not_run", "it supports nothing that it could be checked on")

    def _run(self, number: int, setup: _Setup, in_place: bool, outputs: int = 1) -> list[Bytes]:
        """Return the outputs of one launch; 2: it rotates the tensor twice, as if it were two."""
        got = [setup.start(in_place) for _ in range(outputs)]
        buffers = [self.buffer(output) for output in got]
        x = buffers[0] if in_place else self.buffer(setup.x_flat.view(self.bits))
        x_offset = np.int64((setup.y_view if in_place else setup.x_view).offset)
        bound = self._tables(number, setup)
        for y, mark in zip(buffers, ("", "2"), strict=False):
            bound |= {f"x{mark}": x, f"x{mark}_offset": x_offset}
            bound |= {f"y{mark}": y, f"y{mark}_offset": np.int64(setup.y_view.offset)}
        problem = setup.problem(in_place)
        self._launch(number, problem, bound, problem if outputs == 2 else None).enqueue(self.queue)
        for output, y in zip(got, buffers, strict=True):
            cl.enqueue_copy(self.queue, output, y)
        self.queue.finish()
        return got

    def buffer(self, contents: npt.NDArray[Any]) -> cl.Buffer:
        """Return a new buffer with these contents."""
        return cl.Buffer(self.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=contents)

    def _tables(self, number: int, data: _Setup | _Workload) -> dict[str, Any]:
        """Return the arguments that a variant takes cos and sin from: finished tables, or positions and steps."""
        if self.variants[number].angles != "fused":
            return {"cosine": self.buffer(data.cosine), "sine": self.buffer(data.sine)}
        table, rows = angle_table(data.config), np.asarray(data.positions, np.int64)
        real = np.float64 if self.real == "f64" else np.float32
        arrays = {"positions": rows, "step": table.step, "step_low": table.step_low, "axis": table.axis}
        buffers = {name: self.buffer(np.ascontiguousarray(array)) for name, array in arrays.items()}
        return {**buffers, "rows": np.int32(rows.size), "magnitude": real(table.magnitude)}

    def _launch(self, number: int, problem: Problem, bound: dict[str, Any], second: Problem | None = None) -> Launch:
        spec = self.variants[number].spec(problem, self.device, *(() if second is None else (second,)))
        if number in self.sources:
            spec = replace(spec, source=self.sources[number])
        key = replace(spec, global_size=(), local_size=None, arguments=())
        if key not in self._programs:
            self._programs[key] = build(self.context, self.device.cl_device, spec.text, spec.options)
        launch = Launch(self._programs[key], spec)
        launch.bind(bound)
        self._alive.append(bound)
        return launch

    def wrong(self, got: Bytes, want: Bytes) -> int:
        """Return how many values of an output are wrong."""
        return count_differing(got.view(self.dtype), want.view(self.dtype))

    def close(self, got: Bytes, want: Bytes) -> bool:
        """Whether two outputs differ by rounding only."""
        a, b = (part.view(self.dtype).astype(np.float64) for part in (got, want))
        finite = np.isfinite(a) & np.isfinite(b)
        return nmse(a[finite], b[finite]) <= close_limit(self.dtype_name)

    # -- timing -------------------------------------------------------------------------------------------------------

    def time_case(self, number: int, case: dict[str, Any], cases_left: int) -> None:
        """Time usable variants for one tuning key in rounds, with the ceilings, and write what each takes.

        Those of the case's `pair`, the default and what may replace it, or all; of a pair the times of all rounds, too.
        """
        share = max(0.5, (self.job["seconds"] - self._seconds()) / cases_left)
        end, least = time.monotonic() + share, PAIRED_ROUNDS if case["pair"] else 2
        self._alive.clear()
        workload = _Workload(self, case["in_place"], case["nbytes"], case["sets"])
        # For each variant a launch a set, and for each ceiling.
        runs: dict[int, list[Any]] = {}
        failed: dict[int, tuple[str, str]] = {}
        usable = [i for i in self.usable if not self.variants[i].unsupported(workload.problem)]
        without = [i for i in usable if self.variants[i].angles == "fused"]
        for i in case["pair"] or (without if case["no_table"] and without else usable):
            self._begin(i, f"running on {workload.nbytes} bytes")
            bound = {**self._tables(i, workload), "x_offset": np.int64(0), "y_offset": np.int64(0)}
            try:
                with _driver_errors():
                    launches = [self._launch(i, workload.problem, {**bound, "x": x, "y": y}) for x, y in workload.sets]
                    runs[i] = [launch.enqueue for launch in launches]
                    self._time(runs[i], 1, workload)
            except _Failed as error:
                failed[i] = error.args[:2]
                runs.pop(i, None)
        ceilings = self._ceilings(workload) if self.job["ceiling"] and not case["pair"] else []
        repeat = 1 if case["sets"] > 1 else max(1, min(MOST_RUNS, TURN_BYTES // workload.nbytes))
        race: Race[int | str] = Race(list(runs), self.rng, "ceiling" if ceilings else None)
        if case["pair"]:
            race = Race(case["pair"][1:], self.rng, case["pair"][0])  # neither of which drops out

        def seconds_of(runner: int | str) -> float:
            if not isinstance(runner, int):
                self._begin("ceiling", "timing")
                return min(self._time(copies, repeat, workload, compared=False) for copies in ceilings)
            self._begin(runner, f"timing on {workload.nbytes} bytes")
            try:
                return self._time(runs[runner], repeat, workload)
            except _Failed as error:
                failed[runner] = error.args[:2]
                return math.inf

        while len(race.rounds) < MOST_ROUNDS and (len(race.rounds) < least or time.monotonic() < end):
            if failed and case["pair"]:
                break
            race.round(seconds_of)
            race.alive = [runner for runner in race.alive if runner not in failed]
        self._alarm(0)
        seconds = {runner: s for runner, s in race.seconds().items() if runner not in failed}
        ceiling = seconds.pop("ceiling", None)
        pairs = [[times[i] for i in case["pair"]] for times in race.rounds] if case["pair"] and not failed else []
        self.write(case=number, nbytes=workload.nbytes, seconds=seconds, ceiling=ceiling, failed=failed, pairs=pairs)

    def _time(self, enqueues: list[Any], repeat: int, workload: _Workload, compared: bool = True) -> float:
        """Return the best time of `repeat` runs, each on the least recently used set, whose output is damaged before.

        Raises `_Failed` unless all bits that a run wrote are right. compared: or not; copies are treated alike.
        """
        best = float("inf")
        for _ in range(repeat):
            turn = next(workload.turns)
            workload.damage(turn)
            start = time.perf_counter()
            enqueues[turn](self.queue)
            self.queue.finish()
            best = min(best, time.perf_counter() - start)
            workload.verify(turn, compared)
        return best

    def _ceilings(self, workload: _Workload) -> list[list[Any]]:
        """Return calls that move the same bytes without other work, one per set: copies, or scalings in place."""
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

    # -- reporting ----------------------------------------------------------------------------------------------------

    def _seconds(self) -> float:
        return time.monotonic() - self.started

    def _begin(self, what: int | str, doing: str) -> None:
        name = self.variants[what] if isinstance(what, int) else what
        self.write(stage=f"{doing}: {name}")
        self.write(begin=what)
        self._alarm(self.job["limit"])

    def _alarm(self, seconds: float) -> None:
        # The signal's default action ends the process, also inside a driver that never returns.
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, seconds)


class _Workload:
    """Filled buffers of a size class, and a comparison of all that a run writes.

    sets: (input, output), used in rotation; with enough sets none is in a cache at its next use. All inputs are alike.
    turns: the numbers of the sets, repeated without end.
    """

    def __init__(self, worker: Worker, in_place: bool, nbytes: int, sets: int) -> None:
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
        self.problem = _problem(view, view, PairLayout.of_config(self.config, HEAD_DIM), in_place)
        numbers = worker.rng.standard_normal(min(self.nbytes, 1 << 20) // worker.dtype.itemsize).astype(worker.dtype)
        self._x = np.resize(_bytes(numbers), self.nbytes)
        #: What the sets' inputs are copies of.
        self._original = worker.buffer(self._x)
        for x, _ in self.sets:
            cl.enqueue_copy(worker.queue, x, self._original, byte_count=self.nbytes)
        self._outputs = TimedOutputs(worker.queue, worker.device, self.nbytes, streaming=sets > 1)
        damaged = self._outputs.check(self.sets[0][1])
        self._before = self._outputs.digest(self._original) if in_place else damaged
        #: Digests of right outputs.
        self._right: set[bytes] = set()
        if not in_place:
            return
        self._outputs.restore(self.sets[0][0], self._original)
        if self._outputs.digest(self.sets[0][0]) != self._before:
            raise DeviceError("the kernel that restores inputs of timed runs does nothing on this device")

    @cached_property
    def _want(self) -> Bytes:
        worker = self.worker
        x = self._x.view(worker.dtype).reshape(1, self.tokens, HEADS, HEAD_DIM)
        return _bytes(emulate_rotation(x, self.cosine[None], self.sine[None], pair_indices(self.config)))

    def damage(self, turn: int) -> None:
        """Make a set ready for a run: poison in its output, or in place the input as it was."""
        x, y = self.sets[turn]
        if x is y:
            self._outputs.restore(x, self._original)
        else:
            self._outputs.damage(y)

    def verify(self, turn: int, compared: bool) -> None:
        """Raise `_Failed` unless all bits of a set's output are right."""
        digest = self._outputs.digest(self.sets[turn][1])
        if not compared or digest in self._right:
            return
        worker, got = self.worker, np.empty(self.nbytes, np.uint8)
        if digest == self._before and self.tokens > 1:  # token 0 is not turned
            raise _Failed("not_run", f"it silently did not run on {self.nbytes} bytes")
        cl.enqueue_copy(worker.queue, got, self.sets[turn][1])
        wrong = worker.wrong(got, self._want)
        if wrong and not (worker.checked_against == "strided" and worker.close(got, self._want)):
            size = self.nbytes // worker.dtype.itemsize
            raise _Failed("wrong", f"{wrong} of {size} values are wrong, in a tensor of {self.nbytes} bytes")
        self._right.add(digest)


def _bytes(array: npt.NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(array).view(np.uint8).ravel()


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
