"""Rotation into KV caches and the shift of keys in them: every bit against NumPy, by one launch or two; refusals."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pytest
from helpers import same
from numpy.lib.stride_tricks import as_strided

import clrope
from clrope import ConfigError, Norm, PagedCache, RopeConfig, RowCache, ShapeError, kv_write
from clrope.call.runtime import queue_for, runtime_for
from clrope.emulation import emulate_rope
from clrope.layout import DTYPES
from clrope.norm_emulation import emulate_norm_rope

PAGES, PAGE_SIZE, HEADS = 5, 4, 2


class Given(NamedTuple):
    """q, k, v, slots and a cache; what k and v have to become in it."""

    arrays: tuple[Any, Any, Any]
    positions: Any
    config: RopeConfig
    norms: tuple[Norm, Norm] | None
    cache: Any
    want: tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]

    def run(self, device: Any, **options: Any) -> Any:
        return clrope.rope_cache(
            *self.arrays, self.positions, self.config, self.cache, self.norms, device=device, **options
        )

    @property
    def keys(self) -> npt.NDArray[Any]:
        return self.cache.k_rows if isinstance(self.cache, RowCache) else self.cache.k_pages

    @property
    def values(self) -> npt.NDArray[Any]:
        return self.cache.v_rows if isinstance(self.cache, RowCache) else self.cache.v_pages

    def check(self, got: npt.NDArray[Any]) -> None:
        for name, a, b in zip("qkv", (got, self.keys, self.values), self.want, strict=True):
            assert same(a, b).all(), name


def by_slot(cache: npt.NDArray[Any], kind: str) -> npt.NDArray[Any]:
    """Return a view [rows, heads, head_dim] of a dense cache; of pages "HND" a copy."""
    return (cache.transpose(0, 2, 1, 3) if kind == "HND" else cache).reshape(-1, HEADS, cache.shape[-1])


def given(
    rng: np.random.Generator, dtype: str, to: str, kind: str, *, head_dim: int = 64, v_dim: int = 64, batch: int = 1,
    tokens: int = 7, norm: dict[str, Any] | None = None, spread: int = 1, **fields: Any,
) -> Given:  # fmt: skip
    """Draw a call: some tokens have no slot; spread: every so many-th element is one of a head."""
    q, k, v = (
        rng.standard_normal((batch, tokens, heads, size * spread)).astype(DTYPES[dtype])[..., ::spread]
        for heads, size in ((3, head_dim), (HEADS, head_dim), (HEADS, v_dim))
    )
    config = RopeConfig(fields.pop("mode", "neox"), **{"n_dims": head_dim, "attn_factor": 1.25, **fields})
    norms = None
    if norm is not None:
        counts = (3 * head_dim, HEADS * head_dim) if norm.get("over") == "heads" else (head_dim, head_dim)
        norms = tuple(Norm(rng.uniform(-1, 2, n).astype(np.float32), 1e-5, **norm) for n in counts)
    slots = rng.permutation(PAGES * PAGE_SIZE)[: batch * tokens].reshape(batch, tokens)
    slots.flat[::3] = -1 - np.arange(len(slots.flat[::3]))
    positions = rng.integers(0, 1 << 20, (batch, tokens))
    shape = {"rows": (PAGES * PAGE_SIZE, HEADS), "NHD": (PAGES, PAGE_SIZE, HEADS), "HND": (PAGES, HEADS, PAGE_SIZE)}
    caches = [rng.standard_normal((*shape[kind], size)).astype(DTYPES[to]) for size in (head_dim, v_dim)]
    rotated = [
        emulate_rope(x, positions, config) if norms is None else emulate_norm_rope(x, positions, config, norms[j])
        for j, x in enumerate((q, k))
    ]
    want = []
    for cache, rows in zip(caches, (rotated[1], v), strict=True):
        after = by_slot(cache, kind).copy()
        after[slots[slots >= 0]] = rows[slots >= 0].astype(after.dtype)
        paged = after.reshape(PAGES, PAGE_SIZE, HEADS, -1)
        want.append(paged.transpose(0, 2, 1, 3) if kind == "HND" else after.reshape(cache.shape))
    cache = RowCache(*caches, slots) if kind == "rows" else PagedCache(*caches, slots, kind)  # type: ignore[arg-type]
    return Given((q, k, v), positions, config, norms, cache, (rotated[0], want[0], want[1]))


def refused(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("a second launch moves rows")


CASES = [
    ("f32", "f16", "rows", {}),
    ("f16", "f16", "NHD", {"norm": {"rounding": "each"}, "head_dim": 128}),
    ("bf16", "bf16", "HND", {"norm": {"over": "heads"}, "batch": 2}),
    ("f32", "bf16", "NHD", {"norm": {"order": "after"}, "mode": "normal"}),
    ("bf16", "f32", "rows", {"n_dims": 32, "n_offs": 16, "head_dim": 80, "v_dim": 96}),
    ("f16", "bf16", "HND", {"angles": "ggml", "mode": "normal", "batch": 2}),
    ("f16", "f32", "rows", {"mode": "mrope", "sections": (16, 8, 8, 0), "norm": {"order": "after", "over": "heads"}}),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case[:3]))
def test_one_launch(
    device: clrope.DeviceInfo, case: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bits of a rotation and an assignment; also in a second call, which was prepared by the first."""
    monkeypatch.setattr(kv_write, "move_call", refused)
    dtype, to, kind, fields = case
    for tokens in (7, 7, 1):
        call = given(rng, dtype, to, kind, tokens=tokens, **fields)
        if device.host_unified:
            call.check(call.run(device))
    call = given(rng, dtype, to, kind, **fields)
    target = np.full_like(call.arrays[0], np.nan)
    if device.host_unified:
        assert call.run(device, out=target) is target
        call.check(target)


@pytest.mark.parametrize("access", ["svm or direct", "mapped", "copied"])
def test_two_launches(
    device: clrope.DeviceInfo, access: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads that are not contiguous, pairs that are no vectors; and where the host writes the rows."""
    if access != "svm or direct":
        monkeypatch.setattr(runtime_for(device), "host_access", access)
    for fields in ({"spread": 2, "norm": {"rounding": "each"}}, {"head_dim": 34, "v_dim": 7}, {"v_dim": 33}):
        call = given(rng, "f16", "bf16", "NHD", attn_factor=1.5, **fields)
        call.check(call.run(device))
        whole = given(rng, "f32", "f16", "rows", attn_factor=1.5)
        apart = dataclasses.replace(whole.cache, k_rows=np.repeat(whole.keys, 2, -1)[..., ::2])
        whole = whole._replace(cache=apart)
        whole.check(whole.run(device))


@pytest.mark.parametrize("access", ["svm or direct", "mapped", "copied"])
@pytest.mark.parametrize("kind", ["rows", "NHD", "HND"])
def test_shift(
    device: clrope.DeviceInfo, kind: Any, access: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of slots turn by their own deltas, without YaRN's magnitude; others, and values, keep their bytes."""
    if access != "svm or direct":
        monkeypatch.setattr(runtime_for(device), "host_access", access)
    yarn = {"ext_factor": 1.0, "freq_scale": 0.25, "n_ctx_orig": 4096}
    for dtype, head_dim, fields in (("f16", 64, yarn), ("bf16", 128, {"mode": "normal"}), ("f32", 34, {})):
        call = given(rng, "f32", dtype, kind, head_dim=head_dim, **fields)
        slots = call.cache.rows if kind == "rows" else call.cache.slots
        delta = rng.integers(-5000, 5000, slots.shape)
        turning = dataclasses.replace(call.config, attn_factor=1 / (1 + 0.1 * np.log(4)) if fields is yarn else 1.0)
        want = by_slot(call.keys, kind).copy()
        for slot, by in zip(slots.flat, delta.flat, strict=True):
            if slot >= 0:
                want[slot] = emulate_rope(want[slot][None, None], [by], turning)[0, 0]
        values = call.values.copy()
        clrope.shift_cache(call.cache, delta, call.config, device=device)
        assert same(by_slot(call.keys, kind), want).all()
        assert same(call.values, values).all()
        clrope.shift_cache(call.cache, -7, call.config, device=device)  # one delta for all
        kept = slots[slots >= 0]
        want[kept] = emulate_rope(want[kept][None], np.full(len(kept), -7), turning)[0]
        assert same(by_slot(call.keys, kind), want).all()


def test_opencl_arrays(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """Nothing waits: later commands on the queue come after the launch."""
    import pyopencl.array as cla

    queue = queue_for(device)
    for spread in (1, 2):
        call = given(rng, "f16", "f16", "rows", head_dim=66 // spread * 2)
        arrays = tuple(cla.to_device(queue, x) for x in call.arrays)
        k, v = (cla.to_device(queue, side) for side in (call.keys, call.values))
        on_device = call._replace(arrays=arrays, cache=RowCache(k, v, call.cache.rows))
        got = on_device.run(None).get()
        on_device._replace(cache=RowCache(k.get(), v.get(), None)).check(got)
        clrope.shift_cache(on_device.cache, 9, call.config)
        host = RowCache(call.want[1].copy(), None, call.cache.rows)
        clrope.shift_cache(host, 9, call.config, device=device)
        assert same(k.get(), host.k_rows).all()


def test_torch_tensors(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """Caches are written in place, and torch is told."""
    torch = pytest.importorskip("torch")
    call = given(rng, "f16", "f32", "NHD")
    arrays = tuple(map(torch.from_numpy, call.arrays))
    k, v = torch.from_numpy(call.keys.copy()), torch.from_numpy(call.values.copy())
    versions = k._version, v._version
    got = call._replace(arrays=arrays, cache=PagedCache(k, v, torch.from_numpy(call.cache.slots))).run(device)
    call._replace(cache=PagedCache(k.numpy(), v.numpy(), None)).check(got.numpy())
    assert (k._version > versions[0], v._version > versions[1]) == (True, True)


def changed_cache(call: Given, **fields: Any) -> Given:
    return call._replace(cache=dataclasses.replace(call.cache, **fields))


REFUSED = {
    "rows: got 3 twice": lambda c: changed_cache(c, rows=np.full_like(c.cache.rows, 3)),
    "rows: got 20, the cache has rows 0 ... 19": lambda c: changed_cache(c, rows=np.full_like(c.cache.rows, 20)),
    "rows: got shape [6]": lambda c: changed_cache(c, rows=c.cache.rows[0, :6]),
    "rows: got dtype float64": lambda c: changed_cache(c, rows=c.cache.rows.astype(float)),
    "k_rows: got dtype float64": lambda c: changed_cache(c, k_rows=c.keys.astype(np.float64)),
    "k_rows: elements share memory": lambda c: changed_cache(c, k_rows=as_strided(c.keys, c.keys.shape, (0, 256, 4))),
    "v_rows: shares memory with k_rows": lambda c: changed_cache(c, v_rows=c.keys),
    "v_rows: got shape": lambda c: changed_cache(c, v_rows=c.values[:5]),
    "v: got an array": lambda c: changed_cache(c, v_rows=None),
    "v: got None": lambda c: c._replace(arrays=(*c.arrays[:2], None)),
    "k: got 3 heads": lambda c: c._replace(arrays=(c.arrays[0], c.arrays[0].copy(), c.arrays[2])),
    "k: got dtype float16": lambda c: c._replace(arrays=(c.arrays[0], c.arrays[1].astype(np.float16), c.arrays[2])),
    "norm: got 1 for 2 arrays": lambda c: c._replace(norms=Norm(np.ones(64), 1e-5)),
    "cache: got NoneType": lambda c: c._replace(cache=None),
    "positions: got shape [2]": lambda c: c._replace(positions=[1, 2]),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals(device: clrope.DeviceInfo, message: str, rng: np.random.Generator) -> None:
    """One error before anything is written; also in a call whose like was made before."""
    call = given(rng, "f32", "f32", "rows")
    before = call.keys.copy(), call.values.copy()
    for _ in range(2):
        with pytest.raises((ShapeError, ConfigError)) as error:
            REFUSED[message](call).run(device)
        assert str(error.value).startswith(message)
        assert same(call.keys, before[0]).all()
        assert same(call.values, before[1]).all()
        clrope.rope_cache(*call.arrays, 0, call.config, RowCache(*map(np.copy, before), call.cache.rows), device=device)


def test_memory_that_overlaps(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    call = given(rng, "f32", "f32", "rows")
    for _ in range(2):
        with pytest.raises(ShapeError, match="k: shares memory with the cache"):
            call._replace(arrays=(call.arrays[0], call.keys[None, :7], call.arrays[2])).run(device)
        with pytest.raises(ShapeError, match="delta: got shape"):
            clrope.shift_cache(call.cache, [1, 2], call.config, device=device)
        call.check(call.run(device))
