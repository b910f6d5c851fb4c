"""Workloads as data: shapes of models, times types, pairings, in and out of place, forward and backward.

A workload's name is `family/dtype/mode/out|in/forward|backward`; patterns of names choose workloads.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..config import Mode, RopeConfig
from ..errors import ConfigError
from ..layout import DTYPES

Shape = tuple[int, int, int, int]
Positions = Literal["range", "per batch", "grid"]

#: Bytes of a cache line.
LINE = 64
TYPES = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class Workload:
    """One rotation to time. `tensors`: shapes [B, S, N, D] that share positions and are rotated by one call.

    positions: 'range' 0 ... S - 1 for all batches, 'per batch' an offset for each, 'grid' rows t, h, w, e of an image.
    cached:    whether data may stay in the cache between calls. latency: the time of a call counts, not bytes a second.
    fresh:     new positions at every call, so that each call computes cos and sin.
    sets:      the number of buffer sets; None: by their size.
    peers, host: whether peers, and calls on NumPy arrays, are timed too.
    calls:     the cost of calls (`calls.py`): 'step' a decode step of `layers` layers, 'new' a result in a new array,
               'one-shot' calls of `rope` on NumPy arrays.
    cold:      before each call other memory is read, so that neither data nor code of the call is in a cache.
    """

    family: str
    tensors: tuple[Shape, ...]
    dtype: str
    mode: Mode
    in_place: bool = False
    forward: bool = True
    n_dims: int | None = None
    sections: tuple[int, int, int, int] | None = None
    positions: Positions = "range"
    cached: bool = False
    latency: bool = False
    fresh: bool = False
    sets: int | None = None
    peers: bool = True
    host: bool = False
    calls: Literal["", "step", "new", "one-shot"] = ""
    layers: int = 1
    cold: bool = False

    @property
    def name(self) -> str:
        """The name for patterns."""
        direction = "forward" if self.forward else "backward"
        return f"{self.family}/{self.dtype}/{self.mode}/{'in' if self.in_place else 'out'}/{direction}"

    @cached_property
    def config(self) -> RopeConfig:
        """The configuration, n_dims filled in."""
        return RopeConfig(self.mode, n_dims=self.n_dims, sections=self.sections).for_head_dim(self.tensors[0][3])

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.dtype].itemsize

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors of one call, on one side."""
        return sum(math.prod(shape) for shape in self.tensors) * self.itemsize

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written: all out of place; in place the cache lines with rotated elements. Without tables."""
        if not self.in_place:
            return 2 * self.tensor_bytes
        return 2 * sum(self._lines(shape) for shape in self.tensors) * LINE

    @property
    def table_bytes(self) -> int:
        """Bytes of cos and sin in float32."""
        batch, seq = self.tensors[0][:2]
        return (batch if self.positions == "per batch" else 1) * seq * self.config.n_pairs(None) * 8

    def _lines(self, shape: Shape) -> int:
        row = shape[3] * self.itemsize
        rotated = 2 * self.config.n_pairs(None) * self.itemsize
        rows = math.prod(shape[:3])
        period = LINE // math.gcd(row, LINE)
        touched = {(start + at) // LINE for start in range(0, period * row, row) for at in range(rotated)}
        return -(-rows * len(touched) // period)

    def position_array(self, start: int = 0) -> npt.NDArray[np.int64]:
        """Return the positions, all moved by `start`: [S], [B, S], or [4, S] for section modes."""
        batch, seq = self.tensors[0][:2]
        if self.positions == "per batch":
            return start + 1000 + 61 * np.arange(batch, dtype=np.int64)[:, None] + np.arange(seq, dtype=np.int64)
        line = np.arange(seq, dtype=np.int64)
        if self.positions == "range":
            return start + line
        side = max(1, math.isqrt(seq))
        return start + np.stack([line // (side * side), line // side % side, line % side, 0 * line])

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of a result file."""
        config = self.config.to_dict()
        return {
            "tensors": [list(shape) for shape in self.tensors],
            "dtype": self.dtype,
            "config": {name: config[name] for name in ("mode", "n_dims", "sections") if name in config},
            **{name: getattr(self, name) for name in ("in_place", "forward", "positions", "cached", "latency")},
            "fresh_positions": self.fresh,
            **{n: getattr(self, n) for n in ("calls", "layers", "cold", "tensor_bytes", "bytes_moved", "table_bytes")},
        }

    def tiny(self) -> Workload:
        """Return the workload with short axes, for a quick trial without meaningful times."""
        small = tuple((min(b, 2), min(s, 16), min(n, 4), d) for b, s, n, d in self.tensors)
        return replace(self, tensors=small, sets=1 if self.cached else 2, layers=min(2, self.layers))


def _cross(
    family: str, tensors: Sequence[Shape], modes: Sequence[Mode] = ("normal", "neox"), **more: Any
) -> list[Workload]:
    return [
        Workload(family, tuple(tensors), dtype, mode, in_place, forward, **more)
        for dtype, mode, in_place, forward in itertools.product(TYPES, modes, (False, True), (True, False))
    ]


PREFILL: Shape = (1, 4096, 32, 128)
#: Sections of Qwen2-VL's language model, and of its vision tower (head 80, so 40 pairs).
TEXT_SECTIONS = (16, 24, 24, 0)
VISION_SECTIONS = (20, 20, 20, 20)
#: Bytes of the tensors of the size sweep.
SIZES = tuple(1 << k for k in (16, 18, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30))
#: Numbers of tokens of the one-shot calls.
TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


def size_name(count: int) -> str:
    """Return e.g. 'size-64KiB'."""
    shift, unit = next((shift, unit) for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")) if count >> shift)
    return f"size-{count >> shift}{unit}"


def _q_and_k(tokens: int) -> tuple[Shape, Shape]:
    return (1, tokens, 32, 128), (1, tokens, 8, 128)


def _all() -> list[Workload]:
    made = _cross("prefill", [PREFILL], host=True)
    for mode in ("mrope", "imrope"):
        made += _cross("prefill", [PREFILL], [mode], sections=TEXT_SECTIONS, positions="grid")
    made += _cross("prompt", [(1, 512, 32, 128)])
    made += _cross("batch", [(8, 512, 32, 128)])
    made += _cross("gqa", [PREFILL, (1, 4096, 8, 128)])
    made += _cross("partial-64of128", [PREFILL], n_dims=64)
    made += _cross("partial-20of80", [(1, 4096, 32, 80)], n_dims=20)
    made += _cross("long", [(1, 32768, 8, 128)])
    made += _cross("vision", [(1, 4096, 16, 80)], ["vision"], sections=VISION_SECTIONS, positions="grid")
    decode: dict[str, Any] = {"positions": "per batch", "cached": True, "latency": True, "host": True}
    made += _cross("decode-1", [(1, 1, 32, 128)], **decode)
    made += _cross("decode-64", [(64, 1, 32, 128)], **decode)
    modes: tuple[Mode, ...] = ("neox", "normal")
    call: dict[str, Any] = {"cached": True, "latency": True}
    made += [
        Workload("calls", _q_and_k(1), dtype, mode, calls="step", layers=32, **call)
        for mode in modes
        for dtype in ("f32", "f16")
    ]
    made += [Workload("calls-cold", _q_and_k(1), dtype, "neox", calls="step", cold=True, **call) for dtype in TYPES[:2]]
    made += [
        Workload(f"tokens-{n}", _q_and_k(n), dtype, "neox", calls="one-shot", **call)
        for dtype in TYPES[:2]
        for n in TOKENS
    ]
    made.append(Workload("calls-new", (PREFILL,), "f32", "neox", cached=True, peers=False, calls="new"))
    made += [w for w in _cross("prefill-fresh", [PREFILL], fresh=True, peers=False) if w.forward and not w.in_place]
    made += [
        # Small tensors stay in the cache in any case.
        Workload(size_name(n), ((1, n >> 14, 32, 128),), "f32", "neox", cached=n < 1 << 22, peers=False)
        for n in SIZES
    ]
    return made


WORKLOADS: tuple[Workload, ...] = tuple(_all())
#: Names for several patterns.
GROUPS: dict[str, tuple[str, ...]] = {
    "all": ("*",),
    "quick": ("prefill/f*/neox/out/forward", "decode-1/f32/neox/out/forward"),
    "calls": ("calls/*/neox/*", "calls-new/*", "calls-cold/*"),
    "sizes": ("tokens-*",),
    "standard": ("prefill/*/forward", "gqa/*/forward", "partial-*/forward", "decode-*/out/forward", "size-*"),
}
FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(w.family for w in WORKLOADS))


def select(patterns: Iterable[str] = ()) -> list[Workload]:
    """Return the workloads that match any of the patterns, in the order of the list.

    A pattern is a name with `*`, `?` and `[...]`, the beginning of a name, or a group (all, quick, calls, sizes,
    standard; default: standard). Raises `ConfigError` for a pattern that matches nothing.
    """
    chosen: set[str] = set()
    for given in list(patterns) or ["standard"]:
        # The beginning of a name stands for all names that begin so.
        wanted = [pattern for group in GROUPS.get(given, (given,)) for pattern in (group, f"{group}/*")]
        found = {w.name for w in WORKLOADS if any(fnmatch.fnmatchcase(w.name, pattern) for pattern in wanted)}
        if not found:
            raise ConfigError(
                f"workload: got {given!r}, which matches none; allowed are the groups {', '.join(GROUPS)}, the "
                f"families {', '.join(FAMILIES)}, and patterns of names such as {WORKLOADS[0].name!r}"
            )
        chosen |= found
    return [w for w in WORKLOADS if w.name in chosen]
