"""Random cases: configuration, shape, layout, type and positions drawn from a seed, each run in every way there is.

A way is how a caller can get one result: a call or a plan, on NumPy or on OpenCL arrays, into an output of the caller's
or a new one. Some cases are rotated by the default variant of larger tensors. All ways must give the bits of the
kernels' arithmetic in NumPy, and change nothing else. Some cases have an argument that must be refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import api
from ..call.prepare import Transfer
from ..call.runtime import queue_for
from ..errors import RopeError
from ..layout import DTYPES
from ..mode import GGML_MODES, SECTION_MODES, parse_mode
from ..operation import Rope
from ..select.defaults import default_for
from ..select.records import SizeClass, TuningKey
from ..testing import bits, digest_of
from .case import Case
from .case_memory import Memory
from .case_outcome import CaseOutcome
from .registry import Suite
from .rope_trial import RopeTrial, draw_positions

if TYPE_CHECKING:
    from ..device import DeviceInfo
    from ..kernels.problem import Pairing

Array = npt.NDArray[Any]

#: Cases of neighbouring seeds that share a program: type, pairs and length of a head. Compiling takes most of the time.
FAMILY = 64
#: The most elements of a tensor, so that a case takes milliseconds.
MOST_ELEMENTS = 1 << 14

Call = dict[str, Any]


def _flipped(trial: FuzzTrial) -> Array:
    """Return the elements of the first tensor in reverse: memory that overlaps it in another way than being it."""
    view: Array = np.flip(trial.x.views[0], trial.case.lo.index("d"))
    return view


def _read_only(trial: FuzzTrial) -> Array:
    out = np.zeros_like(trial.x.views[0])
    out.flags.writeable = False
    return out


#: Arguments that must be refused, by name: what replaces those of a right call with one tensor.
REFUSALS: dict[str, Callable[[FuzzTrial], Call]] = {
    "positions that are too many": lambda t: {"positions": np.zeros(t.case.shape["b"] + t.case.shape["s"] + 1, int)},
    "positions that are no integers": lambda t: {"positions": np.zeros(t.case.shape["s"])},
    "positions beyond 64 bits": lambda t: {"positions": np.full(t.case.shape["s"], 2**63, np.uint64)},
    "n_dims beyond the head": lambda t: {"config": replace(t.config, n_dims=4096, freq_factors=None)},
    "layout": lambda t: {"layout": t.case.lo.replace("s", "x")},
    "x of rank 2": lambda t: {"x": t.x.views[0].reshape(-1, 1), "out": None},
    "out that overlaps x": lambda t: {"out": _flipped(t)},
    "out of another type": lambda t: {"out": np.zeros(t.x.views[0].shape, np.int8)},
    "out of another shape": lambda t: {"out": np.zeros([n + 1 for n in t.x.views[0].shape], t.x.views[0].dtype)},
    "out that is read-only": lambda t: {"out": _read_only(t)},
    "forward": lambda t: {"forward": "yes"},
}


def case_seed(seed: int, index: int) -> int:
    """Return the seed of a case of a run; that of the first case is the run's."""
    family, member = divmod(index, FAMILY)
    if family == 0:
        return seed - seed % FAMILY + (seed + member) % FAMILY
    drawn = int(np.random.SeedSequence([seed, family]).generate_state(1)[0])
    return drawn - drawn % FAMILY + member


def fuzz_suite(count: int, seed: int) -> Suite:
    """Return the suite of `count` random cases of a seed."""
    return Suite("fuzz", lambda: (FuzzLine(case_seed(seed, n)) for n in range(count)), lambda: f"{count} random cases")


@dataclass(frozen=True)
class Drawn:
    """A drawn case.

    refusal: a name of `REFUSALS`, or ''. size: the size class whose default variant rotates it, None for its own.
    """

    case: Case
    refusal: str = ""
    size: SizeClass | None = None


def draw(seed: int) -> Drawn:
    """Draw a case. What decides about programs depends on the seed without its last six bits."""
    family, own = np.random.default_rng([seed // FAMILY, 0]), np.random.default_rng([seed, 1])
    fields = _draw_programs(family)
    size = fields.pop("size")
    fields |= _draw_config(own, fields["mode"]) | _draw_tensor(own, fields.pop("head")) | _draw_positions(own, fields)
    if fields["pos"] == "packed":
        fields["ne_a"] = (*fields["ne_a"][:3], 1)
    if fields["ne_a"][3] > 1:
        fields["lo"] = fields["lo"] if "b" in fields["lo"] else "b" + fields["lo"]
    refusal = str(own.choice(list(REFUSALS))) if own.random() < 1 / 16 else ""
    if refusal:
        fields |= {"v": 0 if fields["v"] == 3 else fields["v"], "inplace": False}
    return Drawn(Case(**fields), refusal, size)


def _one_of(rng: np.random.Generator, *values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def _draw_programs(rng: np.random.Generator) -> dict[str, Any]:
    """Draw what decides about programs; head: the length of a head, size: of `Drawn`."""
    mode = _one_of(rng, *GGML_MODES.values())
    if parse_mode(mode) == "vision":
        head = _one_of(rng, 4, 8, 12, 32, 64, 72, 80, 128)
        dims, offset = head, 0
    else:
        head = _one_of(rng, 2, 4, 7, 8, 20, 32, 34, 64, 64, 80, 96, 128, 128, 130, 256)
        dims = head // 2 * 2 if rng.random() < 0.5 else 2 * int(rng.integers(1, head // 2 + 1))
        offset = 2 * int(rng.integers(0, (head - dims) // 2 + 1))
    return {
        "type": _one_of(rng, *DTYPES, "f32", "f16", "bf16"), "mode": mode, "head": head, "n_dims": dims,
        "n_offs": offset, "angles": _one_of(rng, "exact", "exact", "exact", "exact", "ggml"),
        "size": _one_of(rng, None, None, "medium", "large"),
    }  # fmt: skip


def _draw_config(rng: np.random.Generator, mode: int) -> dict[str, Any]:
    def real(low: float, high: float) -> float:
        return round(float(rng.uniform(low, high)), 3)

    yarn = rng.random() < 0.3
    fast, slow = _one_of(rng, (32.0, 1.0), (1.0, 1.0), (4.0, 0.5))
    sections = None
    if parse_mode(mode) in SECTION_MODES:
        counts = [int(n) for n in rng.integers(0, 10, 4)]
        sections = (counts[0] + (not any(counts[:3])), *counts[1:])
    return {
        "base": _one_of(rng, 10000.0, 500000.0, 1e6, 100.0, 10000.0 if yarn else 1.0, real(1.1, 1e4)),
        "fs": _one_of(rng, 1.0, real(0.02, 1), real(1, 4)), "ef": real(0.1, 1) if yarn else 0.0,
        "af": _one_of(rng, 1.0, 1.0, real(0.25, 2), -real(0.25, 2)), "bf": fast, "bs": slow,
        "n_ctx_orig": _one_of(rng, 0, 128, 4096, 131072), "ff": bool(rng.random() < 0.3), "sections": sections,
        "forward": bool(rng.random() < 0.7),
    }  # fmt: skip


def _draw_tensor(rng: np.random.Generator, head: int) -> dict[str, Any]:
    heads = _one_of(rng, 1, 2, 3, 4, 5, 8, 33)
    most = max(1, MOST_ELEMENTS // (head * heads))
    seq = min(most, _one_of(rng, 1, 1, 2, 3, 4, 5, 7, 17, 64, 300))
    batch = min(max(1, most // seq), _one_of(rng, 1, 1, 2, 3, 5))
    order = "bsnd" if rng.random() < 0.5 else "".join(rng.permutation(list("bsnd")))
    return {
        "ne_a": (head, heads, seq, batch), "lo": order if rng.random() < 0.7 else order.replace("b", ""),
        "v": _one_of(rng, 0, 0, 1, 2, 3, 4, 5, 6, 6, 6), "o": int(rng.integers(2)), "inplace": bool(rng.random() < 0.3),
    }  # fmt: skip


def _draw_positions(rng: np.random.Generator, fields: dict[str, Any]) -> dict[str, Any]:
    """Draw form, range and type of positions, so that the type holds them."""
    sections = parse_mode(fields["mode"]) in SECTION_MODES
    form = _one_of(
        rng, "random", "offset", "offset", "signed", "back", "offsets", "batch", "each", "packed", "far", "huge",
        "three" if sections else "random",
    )  # fmt: skip
    reach, types = _one_of(
        rng, (100, ("int8", "int16", "uint8", "uint16")), (4096, ("int16", "uint16", "int32", "uint32", "uint64")),
        (1 << 17, ("int32", "int64", "uint64")), (1 << 62, ("int64", "uint64")),
    )  # fmt: skip
    if form in ("far", "huge", "packed"):
        types = ("int64",)
    elif form in ("signed", "back", "each"):
        types = tuple(kind for kind in types if kind.startswith("int"))
    return {"pos": form, "n_ctx": reach, "pt": _one_of(rng, *types)}


@dataclass(frozen=True)
class FuzzLine:
    """A random case as a line of a suite; the label ends with the command that repeats the case."""

    seed: int

    @cached_property
    def label(self) -> str:
        """The case's notation and the command that repeats it alone."""
        drawn = draw(self.seed)
        what = f", to be refused: {drawn.refusal}" if drawn.refusal else ""
        what = what or (f", by the variant of {drawn.size} tensors" if drawn.size else "")
        return f"{drawn.case} # clrope verify --fuzz 1 --seed {self.seed}{what}"

    def prepare(self, seed: int) -> FuzzTrial:
        """Draw the inputs, from the case's own seed, and compute the reference."""
        return FuzzTrial(self.seed)


class FuzzTrial(RopeTrial):
    """A random call, in every way.

    other: positions at which plans run first, to be moved from there. transfer: how plans reach NumPy arrays.
    """

    def __init__(self, seed: int) -> None:
        drawn = draw(seed)
        super().__init__(drawn.case, seed)
        case, self.refusal, self.size = self.case, drawn.refusal, drawn.size
        rng = np.random.default_rng([seed, 2])
        form = _one_of(rng, "offset", "random", case.pos)
        self.other = draw_positions(replace(case, pos=form, n_ctx=100), rng)
        self.transfer: Transfer = _one_of(rng, "auto", "auto", "map", "copy")
        if case.pt == "int64":
            # What most callers pass, which has a way of its own.
            self.positions, self.other = (int(p) if np.ndim(p) == 0 else p for p in (self.positions, self.other))
        self.right_bits = self.digest
        if self.refusal:
            self.digest = ""

    @property
    def _packed(self) -> Call:
        """The positions as bounds of sequences and their offsets: a new sequence where they do not count up by one."""
        seq = self.case.shape["s"]
        bounds = np.array([0, *np.flatnonzero(np.diff(self.positions) != 1) + 1, seq])
        return {"positions": None, "cu_seqlens": bounds, "offsets": self.positions[bounds[:-1]]}

    def run(self, device: DeviceInfo) -> CaseOutcome:
        """Run in every way on the device; the inputs are as before afterwards."""
        if self.case.type == "f64" and not device.fp64:
            return CaseOutcome("skip", limit=self.limit, detail="the device has no fp64")
        if self.refusal:
            return self._run_refused(device)
        errors: list[str] = []
        seen: dict[str, CaseOutcome] = {}  # by the bits: the error of equal results is computed once
        outputs = ("given",) if self.case.inplace else ("given", "new")
        for host in (True, False):
            for way in (*outputs, "plan"):
                try:
                    got, wrong = self._result(device, way, None if host else queue_for(device))
                    digest = digest_of(got)
                    if digest not in seen:
                        seen[digest] = self.check(got, [])
                        wrong += [seen[digest].detail] if seen[digest].detail else []
                    if digest != self.right_bits:
                        wrong.append(f"the bits are not NumPy's: {digest}, {self.right_bits} is right")
                except Exception as error:
                    wrong = [f"{type(error).__name__}: {' '.join(str(error).split())}"]
                finally:
                    self.x.restore()
                name = f"{'NumPy' if host else 'OpenCL'} arrays, {way if way == 'plan' else f'{way} output'}"
                errors += [f"{name}: {text}" for text in wrong]
        worst = max(seen.values(), key=lambda outcome: outcome.nmse or 0.0, default=CaseOutcome("fail"))
        return replace(worst, status="fail" if errors else "ok", detail="; ".join(errors))

    def _operation(self, device: DeviceInfo) -> Rope:
        if self.size is None:
            return Rope(self.config, device)
        pairing: Pairing = "normal" if self.config.mode == "normal" else "neox"
        variant = default_for(device, TuningKey(self.case.type, pairing, self.case.inplace, self.size))
        return Rope(self.config, device, variant=variant)

    def _result(self, device: DeviceInfo, way: str, queue: Any) -> tuple[list[Array], list[str]]:
        """Return the result in one way and what is wrong with the memory. queue: None for NumPy arrays."""
        case = self.case
        several = len(self.x.views) > 1
        target = self.x if case.inplace else Memory.of_output(case)
        if target is not self.x:
            target.poison()
        memories = [self.x] if target is self.x else [self.x, target]
        sides = [_Side(memory, queue) for memory in memories]
        x, out = (side.views if several else side.views[0] for side in (sides[0], sides[-1]))
        result: Any
        if way == "plan":
            plan = self._operation(device).plan(x, self.other, case.forward, out, case.lo, transfer=self.transfer)
            if not case.inplace:
                plan.run()
            result = plan.run(positions=self.positions)
        elif self.size:
            given = out if way == "given" else None
            result = self._operation(device)(x, self.positions, case.forward, given, case.lo)
        else:
            call: Call = {"positions": self.positions, "layout": case.lo, "device": device}
            call |= self._packed if case.pos == "packed" else {}
            result = api.rope(x, config=self.config, forward=case.forward, out=out if way == "given" else None, **call)
        events = [event for a in (result if several else [result]) for event in getattr(a, "events", ())]
        for side in sides:
            side.read(events)
        if way == "new":
            got = [_dense(a, queue) for a in (result if several else [result])]
        else:
            got = [np.array(view) for view in target.views]
        counts = {"outside the output": 0 if way == "new" else target.stray()}
        if target is not self.x:
            counts["of the input"] = self.x.changed()
        return got, [f"{count} elements {where} changed" for where, count in counts.items() if count]

    def _run_refused(self, device: DeviceInfo) -> CaseOutcome:
        """Make a call that must be refused before anything changes."""
        out = Memory(self.case, 0)
        out.poison()
        call: Call = {
            "x": self.x.views[0], "positions": self.positions, "config": self.config, "forward": self.case.forward,
            "out": out.views[0], "layout": self.case.lo, "device": device, **REFUSALS[self.refusal](self),
        }  # fmt: skip
        try:
            api.rope(**call)
        except RopeError as error:
            changed = self.x.changed() + out.changed()
            if not changed:
                return CaseOutcome("ok", detail=f"refused: {str(error).partition(chr(10))[0]}")
            return CaseOutcome("fail", detail=f"refused after {changed} elements had changed")
        except Exception as error:
            return CaseOutcome("fail", detail=f"no RopeError but {type(error).__name__}: {error}")
        finally:
            self.x.restore()
        return CaseOutcome("fail", detail=f"not refused: {self.refusal}")


class _Side:
    """A memory as NumPy arrays (queue: None), or a copy on a device with OpenCL arrays in the places of its views."""

    def __init__(self, memory: Memory, queue: Any) -> None:
        self.views: tuple[Any, ...] = memory.views
        self._memory, self._queue = bits(memory.parent), queue
        if queue is not None:
            import pyopencl as cl
            import pyopencl.array as cla

            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
            self._buffer = cl.Buffer(queue.context, flags, hostbuf=self._memory)
            start = _address(memory.parent)
            self.views = tuple(
                cla.Array(queue, v.shape, v.dtype, strides=v.strides, data=self._buffer, offset=_address(v) - start)
                for v in memory.views
            )

    def read(self, events: list[Any]) -> None:
        """Copy all bytes back after the events."""
        if self._queue is not None:
            import pyopencl as cl

            cl.enqueue_copy(self._queue, self._memory, self._buffer, wait_for=events or None)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _dense(made: Any, queue: Any) -> Array:
    """Return a result that the package has made as a NumPy array."""
    if queue is None:
        return np.asarray(made)
    import pyopencl as cl

    got = np.empty(made.shape, np.dtype(f"u{made.dtype.itemsize}"))
    cl.enqueue_copy(queue, got, made.base_data, src_offset=made.offset)
    return got.view(made.dtype)
