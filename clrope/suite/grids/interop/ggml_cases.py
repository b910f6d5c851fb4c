"""ggml's rope operators: forward, in place, backward, views by ne and nb, and rows of a cache.

The formulas are ggml's (`ggml_compute_forward_rope`, `ggml_mrope_cache_init`, `rope_yarn`, `ggml_rope_yarn_corr_dims`),
in float64. They share nothing with the package's own angles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from ....config import Mode, RopeConfig
from ....emulation import emulate_rope
from ....interop import ggml
from ....layout import DTYPES, dtype_name
from .block import Block
from .formula import Array, uniform
from .line import Line

if TYPE_CHECKING:
    from ....device import DeviceInfo

NEEDS = ""
MODES: dict[Mode, int] = {"normal": 0, "neox": 2, "mrope": 8, "vision": 24, "imrope": 40}
TYPES = ("f32", "f16")
_VISION, _IMROPE = MODES["vision"], MODES["imrope"]


@dataclass(eq=False)
class GgmlCall:
    """The arguments of one call of ggml's rope."""

    a: Array
    b: npt.NDArray[np.int32]
    c: npt.NDArray[np.float32] | None
    n_dims: int
    mode: int
    sections: tuple[int, int, int, int] | None
    floats: dict[str, Any]
    n_offs: int = 0
    forward: bool = True

    def fields(self) -> dict[str, Any]:
        """Return the parameters by the names of `RopeConfig`, rounded to float32 as in a C call."""
        name = {number: name for name, number in MODES.items()}[self.mode]
        rounded = {k: v if k == "n_ctx_orig" else float(np.float32(v)) for k, v in self.floats.items()}
        factors = None if self.c is None else tuple(float(f) for f in self.c)
        return {"mode": name, "n_dims": self.n_dims, "freq_factors": factors, "sections": self.sections,
                "n_offs": self.n_offs, **rounded}  # fmt: skip

    def positions(self) -> npt.NDArray[np.int32]:
        """Return b as [S], or [4, S] in the modes with sections."""
        return self.b.reshape(4, -1) if self.mode & 8 else self.b

    def with_four_axes(self) -> Array:
        """Return a as [B, S, N, D]; a missing leading axis is one of length 1."""
        return self.a.reshape((1,) * (4 - self.a.ndim) + self.a.shape)

    def want(self) -> npt.NDArray[np.float64]:
        """Rotate in float64."""
        out = self.with_four_axes().astype(np.float64)
        fields = self.fields()
        omegas, rows, magnitude = frequencies(fields, self.mode, out.shape[3])
        where = self.positions().reshape(-1, out.shape[1]).astype(np.float64)
        where = where[rows] if self.mode & 8 else np.broadcast_to(where, (len(omegas), out.shape[1]))
        theta = (where * np.array(omegas)[:, None]).T[:, None, :]  # [S, 1, pairs]
        cos, sin = np.cos(theta) * magnitude, np.sin(theta) * magnitude * (1 if self.forward else -1)
        pairs = np.arange(len(omegas))
        neighbours = self.mode == MODES["normal"]
        first = self.n_offs + (2 * pairs if neighbours else pairs)
        second = first + (1 if neighbours else len(omegas))
        x, y = out[..., first].copy(), out[..., second].copy()
        out[..., first] = x * cos - y * sin
        out[..., second] = x * sin + y * cos
        return out.reshape(self.a.shape)

    def right_bits(self) -> Array:
        """The kernels' arithmetic in NumPy."""
        config = RopeConfig(**self.fields())
        return emulate_rope(self.with_four_axes(), self.positions(), config, self.forward).reshape(self.a.shape)

    def run(self, a: Any = None, *, inplace: bool = False, **options: Any) -> Any:
        """Call the operator of the mode and direction. a: replaces the call's tensor."""
        name = ("multi" if self.sections else "ext") + ("_inplace" if inplace else "" if self.forward else "_back")
        multi = {"sections": self.sections} if self.sections else {}
        given = {"b": self.b, "c": self.c, "n_dims": self.n_dims, "mode": self.mode, **multi, **self.floats}
        if self.n_offs:
            options["n_offs"] = self.n_offs
        return getattr(ggml, f"rope_{name}")(self.a if a is None else a, **given, **options)

    def __str__(self) -> str:
        return (
            f"mode {self.mode} {self.a.dtype}{list(self.a.shape)} n_dims {self.n_dims} n_offs {self.n_offs} sections "
            f"{self.sections} forward {self.forward} c {self.c is not None} {self.floats} b {self.b.tolist()}"
        )


def frequencies(fields: dict[str, Any], mode: int, head_dim: int) -> tuple[list[float], list[int], float]:
    """Return per pair radians per position and the row (0 to 3: t, h, w, e) that drives it, and the magnitude."""
    n_dims, scale, ext = fields["n_dims"], fields["freq_scale"], fields["ext_factor"]
    low, high = corr_dims(fields) if ext else (0.0, 0.0)
    magnitude = fields["attn_factor"] * (1 + 0.1 * math.log(1 / scale) if ext else 1.0)
    sections = fields["sections"] or (0, 0, 0, 0)
    powers = [0, 0, 0, 0]
    omegas, rows = [], []
    for i in range(head_dim // 2 if mode == _VISION else n_dims // 2):
        row = 0
        if mode & 8:
            sector = i % sum(sections)
            row = row_of(mode, sector, sections)
            # Each section of a vision head begins with the first frequency; of empty sections only the first one.
            begins = [sum(sections[:k]) for k in range(4)]
            if mode == _VISION and sector in begins:
                powers[begins.index(sector)] = 0
        omega = fields["freq_base"] ** (-2.0 * powers[row] / n_dims)
        if fields["freq_factors"] is not None:
            omega /= fields["freq_factors"][i]
        scaled = scale * omega
        if ext:
            mix = (1 - min(1.0, max(0.0, (i - low) / max(0.001, high - low)))) * ext
            scaled = scaled * (1 - mix) + omega * mix
        omegas.append(scaled)
        rows.append(row)
        powers = [n + 1 for n in powers]
    return omegas, rows, magnitude


def row_of(mode: int, sector: int, sections: tuple[int, int, int, int]) -> int:
    """Return which of the four position rows drives a pair at that place of the sections."""
    t, h, w, _ = sections
    if mode == _IMROPE:
        row = (0, 1, 2)[sector % 3]
        return row if sector < 3 * (t, h, w)[row] else 3
    return sum(sector >= bound for bound in (t, t + h, t + h + w))


def corr_dims(fields: dict[str, Any]) -> tuple[float, float]:
    """Return the pairs between which YaRN goes from extrapolation to interpolation."""

    def dim(rotations: float) -> float:
        context = fields["n_ctx_orig"]
        if context == 0:  # the logarithm of 0
            return -math.inf if fields["freq_base"] > 1 else math.inf
        turns = math.log(context / (rotations * 2 * math.pi))
        return float(fields["n_dims"] * turns / (2 * math.log(fields["freq_base"])))

    low, high = dim(fields["beta_fast"]), dim(fields["beta_slow"])
    return (
        max(0.0, math.floor(low) if math.isfinite(low) else low),
        min(fields["n_dims"] - 1.0, math.ceil(high) if math.isfinite(high) else high),
    )


def draw(
    rng: np.random.Generator, mode: int, *, kind: str | None = None, forward: bool | None = None, whole: bool = False,
    highest: int = 512, offsets: bool = True, largest: int = 16,
) -> GgmlCall:  # fmt: skip
    """Draw a call of a mode.

    kind, forward: None to draw them too. whole: no axis is omitted. highest: bound of the positions. offsets: whether
    `n_offs` may be above 0. largest: bound of the quarters of a head.
    """
    head_dim = 4 * int(rng.integers(2, largest + 1))
    n_dims = head_dim // 2 if mode == _VISION else 2 * int(rng.integers(1, head_dim // 2 + 1))
    n_offs = 2 * int(rng.integers(0, (head_dim - n_dims) // 2 + 1)) if offsets and mode != _VISION else 0
    pairs = n_dims if mode == _VISION else n_dims // 2
    sections = None
    if mode & 8:
        counts = rng.integers(0, max(2, pairs // 2), 4)
        counts[rng.integers(0, 3)] += 1
        sections = cast("tuple[int, int, int, int]", tuple(int(n) for n in counts))
    shape = [int(n) for n in (rng.integers(1, 4), rng.integers(1, 8), rng.integers(1, 5), head_dim)]
    if rng.random() < 0.3 and not whole:
        shape = shape[int(rng.integers(1, 4)) :]
    seq = shape[-3] if len(shape) > 2 else 1
    low = -highest if rng.random() < 0.2 else 0
    b = rng.integers(low, highest, seq * (4 if mode & 8 else 1), dtype=np.int32)
    yarn = bool(rng.random() < 0.5)
    floats = {
        "n_ctx_orig": int(rng.choice([512, 4096, 32768])) if yarn else 0,
        "freq_base": float(rng.choice([1e4, 5e5, 1e6 + 0.1])),
        "freq_scale": float(rng.uniform(0.1, 1.5)),
        "ext_factor": float(rng.uniform(0.1, 1)) if yarn else 0.0,
        "attn_factor": float(rng.uniform(0.7, 1.5)),
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    }
    c = rng.uniform(0.9, 1.1, pairs).astype(np.float32) if rng.random() < 0.4 else None
    a = uniform(rng, tuple(shape), str(rng.choice(TYPES)) if kind is None else kind)
    drawn = bool(rng.random() < 0.7)
    return GgmlCall(a, b, c, n_dims, mode, sections, floats, n_offs, drawn if forward is None else forward)


def set_rows(call: GgmlCall, dst: Any, rows: Any, **options: Any) -> Any:
    """Rotate the call's tensor into rows of a cache."""
    return ggml.rope_set_rows(
        dst, call.a, call.b, call.c, rows, call.n_dims, call.mode, sections=call.sections, n_offs=call.n_offs,
        **call.floats, **options,
    )  # fmt: skip


class _CallInMemory:
    """A call with a block of memory of its own; inputs and right result are those of `call`."""

    call: GgmlCall

    @property
    def inputs(self) -> list[Array | None]:
        """The inputs, which must not change."""
        return [self.call.a, self.call.b, self.call.c]

    def want(self) -> npt.NDArray[np.float64]:
        """Return the rotation in float64."""
        return self.call.want()

    def right_bits(self) -> Array:
        """Return the kernels' arithmetic in NumPy."""
        return self.call.right_bits()


@dataclass(eq=False)
class TensorCall(_CallInMemory):
    """A call with its tensor in a block, as an array or by ne, nb and view_offs."""

    call: GgmlCall
    a: Block
    by_nb: bool
    inplace: bool

    @property
    def kind(self) -> str:
        """a's type."""
        return dtype_name(self.call.a.dtype)

    def apply(self, device: DeviceInfo) -> tuple[Array, list[str]]:
        """Call the operator on a copy of a's memory."""
        block = self.a.copy()
        given: Any = block.view
        if self.by_nb:
            given = ggml.Tensor(block.memory, self.kind, block.view.shape[::-1], block.view.strides[::-1], block.offset)
        got = self.call.run(given, inplace=self.inplace, device=device)
        errors = []
        if self.inplace and got is not given:
            errors.append("the result is not a")
        errors += block.errors(self.a, "bytes of a's memory", around=self.inplace)
        return np.array(got.array() if isinstance(got, ggml.Tensor) else got), errors

    def __str__(self) -> str:
        return f"nb {self.a.view.strides[::-1]} {self.call}"


@dataclass(eq=False)
class RowsCall(_CallInMemory):
    """A call of rope_set_rows into a cache of either type; the result is the rows of `rows`."""

    call: GgmlCall
    dst: Block
    rows: npt.NDArray[np.int64]
    kind: str

    def _token_rows(self, dst: Array) -> Array:
        """Return the rows of a cache [(B,) rows, N * D] in the order of the tokens, [B, S, N * D]."""
        return np.stack([cache[self.rows[i % len(self.rows)]] for i, cache in enumerate(self._caches(dst))])

    def _caches(self, dst: Array) -> Array:
        return dst.reshape((1,) * (3 - dst.ndim) + dst.shape)

    def want(self) -> npt.NDArray[np.float64]:
        """The rotated tokens."""
        return self.call.want().reshape(*self.call.a.shape[:2], -1)

    def right_bits(self) -> Array:
        """Rotated in a's type, then rounded to the cache's."""
        bits: Array = self.call.right_bits().reshape(*self.call.a.shape[:2], -1).astype(DTYPES[self.kind])
        return bits

    def apply(self, device: DeviceInfo) -> tuple[Array, list[str]]:
        """Store into a copy of the cache; all other rows must keep their bytes."""
        errors = []
        block = self.dst.copy()
        rows = self.rows[0] if len(self.rows) == 1 else self.rows
        if set_rows(self.call, block.view, rows, device=device) is not block.view:
            errors.append("the result is not dst")
        got = self._token_rows(block.view)
        expected = self.dst.copy()
        for i, cache in enumerate(self._caches(expected.view)):
            cache[self.rows[i % len(self.rows)]] = got[i]
        errors += block.errors(expected, "bytes of dst outside the rows")
        return got, errors

    def __str__(self) -> str:
        return f"dst {list(self.dst.view.shape)} row_indices {self.rows.tolist()} {self.call}"


def _draw_tensor(rng: np.random.Generator, mode: int, kind: str, form: str, by_nb: bool) -> TensorCall:
    call = draw(rng, mode, kind=kind, forward=form != "_back")
    a = Block.drawn(rng, call.a.shape, call.a.dtype) if by_nb else Block.of(call.a)
    a.view[...] = call.a
    return TensorCall(call, a, by_nb, form == "_inplace")


def _draw_rows(rng: np.random.Generator, mode: int, kind: str, to: str) -> RowsCall:
    call = draw(rng, mode, kind=kind, forward=True, whole=True)
    batch, seq, heads, head_dim = call.a.shape
    total = seq + 3
    parts = int(rng.choice([m for m in range(1, batch + 1) if batch % m == 0]))
    rows = np.array([rng.permutation(total)[:seq] for _ in range(parts)], np.int64)
    # The other rows of the cache are poison too.
    dst = Block.drawn(rng, ((batch,) if batch > 1 else ()) + (total, heads * head_dim), DTYPES[to])
    return RowsCall(call, dst, rows, to)


def lines() -> Iterator[Line]:
    """Yield every operator in each of its modes and types, on arrays and by ne and nb, and every type of cache."""
    for mode, form, kind, by_nb, n in product(
        MODES.values(), ("", "_inplace", "_back"), TYPES, (False, True), range(2)
    ):
        name = f"rope_{'multi' if mode & 8 else 'ext'}{form}"
        label = f"GGML(op={name},type={kind},mode={mode},a={'nb' if by_nb else 'array'},n={n})"
        yield Line(label, kind, partial(_draw_tensor, mode=mode, kind=kind, form=form, by_nb=by_nb))
    for mode, kind, to in product(MODES.values(), TYPES, TYPES):
        coarsest = "f16" if "f16" in (kind, to) else "f32"
        label = f"GGML(op=rope_set_rows,type={coarsest},mode={mode},a={kind},dst={to})"
        yield Line(label, coarsest, partial(_draw_rows, mode=mode, kind=kind, to=to))
