"""Lines of the suite 'fusion' that write KV caches: rows and pages, with norms and without, and shifts of keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ... import kv_write, reference
from ...config import RopeConfig
from ...emulation import emulate_rope
from ...kv_cache import CACHE_DTYPES, PagedCache, RowCache, write_rows
from ...layout import DTYPES, canonical
from ...norm import Norm
from ...norm_emulation import emulate_norm_rope
from ...testing import NAN_POISON, bits, changed_outside, digest_of, guarded, limit_for, nmse
from ..case_outcome import CaseOutcome
from ..rope_trial import generator

if TYPE_CHECKING:
    from ...device import DeviceInfo

Form = Literal["rows", "NHD", "HND"]
PAGES, PAGE_SIZE, HEADS, KV_HEADS, TOKENS = 5, 4, 4, 2, 7


@dataclass(frozen=True)
class CacheLine:
    """One call of `clrope.rope_cache` and one of `clrope.shift_cache`. to: the cache's type.

    norm: 'none', or the first letters of Norm's order, over and rounding.
    """

    type: str
    to: str
    form: Form
    mode: Literal["normal", "neox"]
    norm: str
    head_dim: int
    n_dims: int
    v_dim: int
    batches: int

    @property
    def label(self) -> str:
        """A text like the notation of the grid."""
        return (
            f"ROPE_CACHE(type={self.type},to={self.to},form={self.form},ne_a=[{self.head_dim},{HEADS},{TOKENS},"
            f"{self.batches}],v_dim={self.v_dim},n_dims={self.n_dims},mode={self.mode},norm={self.norm})"
        )

    def prepare(self, seed: int) -> CacheTrial:
        """Draw the inputs and compute what has to be in the cache."""
        return CacheTrial(self, seed)


class CacheTrial:
    """Tensors, slots and a cache between guards; some tokens have no slot, most rows no token."""

    def __init__(self, line: CacheLine, seed: int) -> None:
        self.line = line
        rng = generator(seed, line.label)
        sizes = ((HEADS, line.head_dim), (KV_HEADS, line.head_dim), (KV_HEADS, line.v_dim))
        self.arrays: list[npt.NDArray[Any]] = [
            rng.uniform(-1, 1, (line.batches, TOKENS, *size)).astype(DTYPES[line.type]) for size in sizes
        ]
        self.config = RopeConfig(line.mode, line.n_dims, attn_factor=1.25)
        self.positions = rng.integers(0, 1 << 20, (line.batches, TOKENS))
        self.norms = None if line.norm == "none" else [self._norm(rng, heads) for heads in (HEADS, KV_HEADS)]
        self.slots = rng.permutation(PAGES * PAGE_SIZE)[: line.batches * TOKENS].reshape(line.batches, TOKENS)
        self.slots[rng.random(self.slots.shape) < 0.2] = -1
        self.delta = rng.integers(-1000, 1000, self.slots.shape)
        rows = {"rows": (PAGES * PAGE_SIZE, KV_HEADS), "HND": (PAGES, KV_HEADS, PAGE_SIZE)}
        shape = rows.get(line.form, (PAGES, PAGE_SIZE, KV_HEADS))
        self.caches = [
            rng.uniform(-1, 1, (*shape, size)).astype(DTYPES[line.to]) for size in (line.head_dim, line.v_dim)
        ]
        self.rotated = [self._emulated(k) for k in (0, 1)]
        self.want = [self.rotated[0], *(cache.copy() for cache in self.caches)]
        for cache, written in zip(self.want[1:], (self.rotated[1], self.arrays[2]), strict=True):
            write_rows(self._paged(cache), self.slots.reshape(-1), written.reshape(-1, *written.shape[2:]))
        self.shifted = self.want[1].copy()
        self._shift(self.shifted)
        exact = self._reference(0)
        self.limit = max(limit_for(kind, exact.size) for kind in (line.type, line.to)) * (4 if "e" in line.norm else 1)
        self.exact = exact
        self.digest = digest_of([*self.want, self.shifted])

    def _norm(self, rng: np.random.Generator, heads: int) -> Norm:
        order, over, rounding = self.line.norm.split("-")
        count = self.line.head_dim * (heads if over == "heads" else 1)
        return Norm(rng.uniform(-1, 2, count).astype(np.float32), 1e-6, 0.0, over, order, rounding)  # type: ignore[arg-type]

    def _emulated(self, k: int) -> npt.NDArray[Any]:
        if self.norms is None:
            return emulate_rope(self.arrays[k], self.positions, self.config)
        return emulate_norm_rope(self.arrays[k], self.positions, self.config, self.norms[k])

    def _reference(self, k: int) -> npt.NDArray[Any]:
        if self.norms is None:
            return reference.rope(self.arrays[k], self.positions, self.config)
        return reference.norm_rope(self.arrays[k], self.positions, self.config, self.norms[k])

    def _paged(self, cache: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return canonical(cache, {"rows": "snd", "NHD": "bsnd", "HND": "bnsd"}[self.line.form])

    def _shift(self, keys: npt.NDArray[Any]) -> None:
        kept = self.slots >= 0
        pages, rows = np.divmod(self.slots[kept], self._paged(keys).shape[1])
        plain = RopeConfig(self.line.mode, self.line.n_dims)
        self._paged(keys)[pages, rows] = emulate_rope(self._paged(keys)[pages, rows][None], self.delta[kept], plain)[0]

    def run(self, device: DeviceInfo) -> CaseOutcome:
        """Run on the device and check q's result, the caches, and the memory around them."""
        memories = []
        for x in (self.arrays[0], *self.caches):
            memories.append(guarded(x.shape, x.dtype, NAN_POISON))
        q, *caches = (view for _, view in memories)
        for cache, content in zip(caches, self.caches, strict=True):
            cache[...] = content
        before = [memory.copy() for memory, _ in memories]
        keys, values = caches
        where: Any = RowCache(keys, values, self.slots)
        if self.line.form != "rows":
            where = PagedCache(keys, values, self.slots, self.line.form)
        x, k, v = self.arrays
        kv_write.rope_cache(x, k, v, self.positions, self.config, where, self.norms, out=q, device=device)
        got = [q.copy(), *(cache.copy() for cache in caches)]
        errors = [
            f"{name} has other bits than the separate calls"
            for name, a, b in zip(("q", "k", "v"), got, self.want, strict=True) if (bits(a) != bits(b)).any()
        ]  # fmt: skip
        kv_write.shift_cache(where, self.delta, self.config, device=device)
        if any(changed_outside(m, old, [view]).any() for (m, view), old in zip(memories, before, strict=True)):
            errors.append("elements outside the output changed")
        error = nmse(got[0], self.exact)
        if not error <= self.limit:
            errors.append(f"limit {self.limit:.0e}")
        digest = digest_of([*got, keys])
        return CaseOutcome("fail" if errors else "ok", error, self.limit, digest, "; ".join(errors))


def cache_lines() -> Iterator[CacheLine]:
    """Yield every type of tensors and caches in every form, with norms and sizes of heads in turn."""
    sizes = cycle(((64, 64, 64), (128, 64, 128), (80, 32, 72), (256, 256, 256), (512, 64, 512), (34, 34, 33)))
    norms = cycle(("none", "before-head-each", "before-heads-once", "none", "after-head-once"))
    modes: Any = cycle(("normal", "neox"))
    forms: tuple[Form, ...] = ("rows", "NHD", "HND")
    for kind, to, form in product(CACHE_DTYPES, CACHE_DTYPES, forms):
        head_dim, n_dims, v_dim = next(sizes)
        yield CacheLine(kind, to, form, next(modes), next(norms), head_dim, n_dims, v_dim, 2 if form == "NHD" else 1)
