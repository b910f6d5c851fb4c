"""Lines of the suite 'fusion' that write KV caches: rows and pages, with norms and without, and shifts of keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ... import kv_write, reference
from ...config import RopeConfig
from ...emulation import emulate_rope
from ...kv_cache import CACHE_DTYPES, PagedCache, RowCache, write_rows
from ...layout import DTYPES
from ...norm import Norm
from ...norm_emulation import emulate_norm_rope
from ..call_trial import CallTrial, Place
from ..rope_trial import generator

if TYPE_CHECKING:
    from ...device import DeviceInfo

Array = npt.NDArray[Any]
Form = Literal["rows", "NHD", "HND"]
PAGES, PAGE_SIZE, HEADS, KV_HEADS, TOKENS = 5, 4, 4, 2, 7


@dataclass(frozen=True)
class CacheLine:
    """One call of `clrope.rope_cache` and one of `clrope.shift_cache`. to: the cache's type.

    norm: 'none', or order, over and rounding of a `Norm`, with dashes between.
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

    def prepare(self, seed: int) -> CallTrial:
        """Draw tensors, which are parts of a fused one, slots and a cache; compute what has to be in it.

        Some tokens have no slot, most rows no token. The last output is the cache's keys after a shift.
        """
        rng = generator(seed, self.label)
        sizes = ((HEADS, self.head_dim), (KV_HEADS, self.head_dim), (KV_HEADS, self.v_dim))
        x = [rng.uniform(-1, 1, (self.batches, TOKENS, *size)).astype(DTYPES[self.type]) for size in sizes]
        config = RopeConfig(self.mode, self.n_dims, attn_factor=1.25)
        positions = rng.integers(0, 1 << 20, (self.batches, TOKENS))
        norms = None if self.norm == "none" else tuple(self._norm(rng, heads) for heads in (HEADS, KV_HEADS))
        slots = rng.permutation(PAGES * PAGE_SIZE)[: self.batches * TOKENS].reshape(self.batches, TOKENS)
        slots[rng.random(slots.shape) < 0.2] = -1
        delta = rng.integers(-1000, 1000, slots.shape)
        shapes = {"rows": (1, PAGES * PAGE_SIZE, KV_HEADS), "HND": (PAGES, KV_HEADS, PAGE_SIZE)}
        shape = shapes.get(self.form, (PAGES, PAGE_SIZE, KV_HEADS))
        caches = [rng.uniform(-1, 1, (*shape, size)).astype(DTYPES[self.to]) for size in (self.head_dim, self.v_dim)]
        want = [cache.astype(np.float64) for cache in caches]
        right = [cache.copy() for cache in caches]
        if norms is None:
            exact = [reference.rope(a, positions, config) for a in x[:2]]
            rotated = [emulate_rope(a, positions, config) for a in x[:2]]
        else:
            both = list(zip(x[:2], norms, strict=True))
            exact = [reference.norm_rope(a, positions, config, norm) for a, norm in both]
            rotated = [emulate_norm_rope(a, positions, config, norm) for a, norm in both]
        for after, k in ((want, exact[1]), (right, rotated[1])):
            for cache, written in zip(after, (k, x[2]), strict=True):
                write_rows(self._paged(cache), slots.reshape(-1), written.reshape(-1, *written.shape[2:]))
        want.append(right[0].astype(np.float64))
        right.append(right[0].copy())
        pages, rows = np.divmod(slots[slots >= 0], self._paged(right[0]).shape[1])
        keys, by = self._paged(right[0])[pages, rows][None], delta[slots >= 0]
        plain = RopeConfig(self.mode, self.n_dims)
        self._paged(want[2])[pages, rows] = reference.rope(keys, by, plain)[0]
        self._paged(right[2])[pages, rows] = emulate_rope(keys, by, plain)[0]

        def cache_of(keys: Array, values: Array) -> Any:
            return (
                RowCache(keys[0], values[0], slots)
                if self.form == "rows"
                else PagedCache(keys, values, slots, self.form)
            )

        def run(x: Sequence[Array], out: Sequence[Array], device: DeviceInfo) -> None:
            q, keys, values, shifted = out
            kv_write.rope_cache(
                x[0], x[1], x[2], positions, config, cache_of(keys, values), norms, out=q, device=device
            )
            shifted[...] = keys
            kv_write.shift_cache(cache_of(shifted, values), delta, config, device=device)

        return CallTrial(
            run, x, positions, config, [exact[0], *want], [rotated[0], *right],
            places=[Place(more_heads=HEADS + 2 * KV_HEADS - heads) for heads, _ in sizes],
            before=[*caches, np.full_like(caches[0], np.nan)], rounded=4 if "each" in self.norm else 1,
        )  # fmt: skip

    def _norm(self, rng: np.random.Generator, heads: int) -> Norm:
        order, over, rounding = self.norm.split("-")
        count = self.head_dim * (heads if over == "heads" else 1)
        return Norm(rng.uniform(-1, 2, count).astype(np.float32), 1e-6, 0.0, over, order, rounding)  # type: ignore[arg-type]

    def _paged(self, cache: Array) -> Array:
        return cache.swapaxes(1, 2) if self.form == "HND" else cache


def cache_lines() -> Iterator[CacheLine]:
    """Yield every type of tensors and caches in every form, with norms and sizes of heads in turn."""
    sizes = cycle(((64, 64, 64), (128, 64, 128), (80, 32, 72), (256, 256, 256), (512, 64, 512), (34, 34, 33)))
    norms = cycle(("none", "before-head-each", "before-heads-once", "none", "after-head-once"))
    modes: Any = cycle(("normal", "neox"))
    forms: tuple[Form, ...] = ("rows", "NHD", "HND")
    for kind, to, form in product(CACHE_DTYPES, CACHE_DTYPES, forms):
        head_dim, n_dims, v_dim = next(sizes)
        yield CacheLine(kind, to, form, next(modes), next(norms), head_dim, n_dims, v_dim, 2 if form == "NHD" else 1)
