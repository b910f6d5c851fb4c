"""The chosen variant as it is launched: where it does not fit it gives way, and the bits stay the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np
import pytest
from helpers import POISON, aligned_memory, copies

import clrope
from clrope import RopeConfig
from clrope.call.runtime import queue_for
from clrope.emulation import emulate_rope
from clrope.host_memory import empty
from clrope.kernels import division, rows
from clrope.kernels.problem import AngleForm, PairLayout, Problem
from clrope.kernels.variant import STRIDED, Variant, candidates
from clrope.layout import DTYPES, TensorView
from clrope.select.defaults import default_for, medium_bytes
from clrope.select.records import TuningKey

FAST = Variant(width=8, access="clang", store="nontemporal")


def whole_heads(dtype: str, mode: Any, head_dim: int) -> Problem:
    """A dense tensor of a few heads."""
    view = TensorView.dense((1, 4, 2, head_dim), dtype)
    pairs = PairLayout.of_config(RopeConfig(mode, head_dim), head_dim)
    return Problem(view.shape, dtype, view.strides, view.strides, pairs, angles=AngleForm(exact=True))


def rotated(device: clrope.DeviceInfo, x: Any, out: Any, config: RopeConfig, variant: Variant | None) -> list[Variant]:
    want = emulate_rope(x, 3, config)
    plan = clrope.Rope(config, device, variant=variant).plan(x, 3, out=out)
    result = plan.run()
    assert result is out
    bits = f"u{x.dtype.itemsize}"
    got = np.ascontiguousarray(result)
    # Which NaN an operation makes is left open.
    nan = np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64))
    np.testing.assert_array_equal(np.where(nan, 0, got.view(bits)), np.where(nan, 0, want.view(bits)))
    return plan.variants


@pytest.mark.one_in(12)
@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_host_memory(device: clrope.DeviceInfo, rng: np.random.Generator, mode: Any, dtype: str) -> None:
    if device.kind != "cpu":
        pytest.skip("non-temporal stores are for CPUs")
    if dtype == "f64" and not device.fp64:
        pytest.skip("no fp64")
    shape = (5, 2, 128)
    x = rng.standard_normal(shape).astype(DTYPES[dtype])
    for shift in (0, 1, 2, 4):
        out = aligned_memory(x.size, x.dtype, shift).reshape(shape)
        (variant,) = rotated(device, x, out, RopeConfig(mode, 128), FAST)
        at = replace(whole_heads(dtype, mode, 128), y_alignment=gcd(64, shift * x.dtype.itemsize))
        aligned = [
            narrow for narrow in (FAST, FAST.changed(width=4), FAST.changed(width=2))
            if shift * x.dtype.itemsize % (size := rows.store_bytes(at, narrow.parameters)) == 0 and size >= 16
        ]  # fmt: skip
        assert variant == (aligned[0] if aligned else FAST.changed(store="plain"))


@pytest.mark.one_in(16)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_defaults_of_small_and_medium_sizes(
    device: clrope.DeviceInfo, cache: Any, rng: np.random.Generator, mode: Any, dtype: str, in_place: bool
) -> None:
    if dtype == "f64" and not device.fp64:
        pytest.skip("no fp64")
    if device.kind != "cpu":
        pytest.skip("non-temporal stores are for CPUs")
    for tokens in (2, medium_bytes(device) // (4 * 128 * DTYPES[dtype].itemsize)):
        x = rng.standard_normal((tokens, 4, 128)).astype(DTYPES[dtype])
        out = x if in_place else aligned_memory(x.size, x.dtype, 1).reshape(x.shape)
        (variant,) = rotated(device, x, out, RopeConfig(mode, 128), None)
        key = TuningKey(dtype, mode, in_place, "small" if tokens == 2 else "medium")
        streams = default_for(device, key).store == "nontemporal"
        assert variant.store == "plain"
        if not in_place:
            out = aligned_memory(x.size, x.dtype, 0).reshape(x.shape)
            (variant,) = rotated(device, x, out, RopeConfig(mode, 128), None)
            assert variant.store == ("nontemporal" if streams else "plain")


def test_an_opencl_array_with_an_offset(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    if device.kind != "cpu":
        pytest.skip("non-temporal stores are for CPUs")
    import pyopencl as cl
    import pyopencl.array as cla

    queue = queue_for(device)
    x = rng.standard_normal((5, 2, 128)).astype(np.float32)
    plain, short = FAST.changed(store="plain"), FAST.changed(width=4)
    for offset, variant in ((0, FAST), (4, plain), (16, short), (32, FAST)):
        buffer = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, x.nbytes + 64)
        cl.enqueue_fill_buffer(queue, buffer, np.uint8(POISON), 0, x.nbytes + 64)
        out = cla.Array(queue, x.shape, x.dtype, data=buffer, offset=offset)
        plan = clrope.Rope(RopeConfig("neox", 128), device, variant=FAST).plan(cla.to_device(queue, x), 3, out=out)
        assert plan.variants == [variant]
        got = plan.run()
        whole = np.empty(x.nbytes + 64, np.uint8)
        cl.enqueue_copy(queue, whole, buffer, wait_for=got.events)
        want = emulate_rope(x, 3, RopeConfig("neox", 128)).view(np.uint8).ravel()
        np.testing.assert_array_equal(whole[offset : offset + x.nbytes], want)
        assert (np.delete(whole, slice(offset, offset + x.nbytes)) == POISON).all()


@pytest.mark.parametrize("mode", ["normal", "neox"])
def test_full_tables(device: clrope.DeviceInfo, rng: np.random.Generator, mode: Any) -> None:
    x = rng.standard_normal((5, 2, 64)).astype(np.float32)
    angles = rng.standard_normal((5, 32)).astype(np.float32)
    halves = np.cos(angles), np.sin(angles)
    full = [np.concatenate([t, t], axis=-1) for t in halves]
    want = clrope.rotate(x, *halves, mode=mode, device=device)
    wide = Variant(width=16, access="clang" if device.kind == "cpu" else "builtin")
    for variant in (None, Variant(width=8), wide):
        got = clrope.rotate(x, *full, mode=mode, device=device, variant=variant)
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.fixture
def heads_of_an_item(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Set how many heads a work-item gets."""

    def set_to(heads: int) -> None:
        monkeypatch.setattr(division, "divided", lambda *_: (heads, 1))
        Variant.spec.cache_clear()

    yield set_to
    Variant.spec.cache_clear()


@pytest.mark.parametrize("mode", ["normal", "neox"])
def test_heads_per_item(
    device: clrope.DeviceInfo, rng: np.random.Generator, mode: Any, heads_of_an_item: Callable[[int], None]
) -> None:
    for heads in (1, 2, 3, 7, 8):
        heads_of_an_item(heads)
        # Tokens that differ, since a call like an earlier one is launched as that was.
        x = rng.standard_normal((4 + heads, 7, 64)).astype(np.float32)
        plan = clrope.Rope(RopeConfig(mode, 64), device, variant=Variant(width=4)).plan(x, 3)
        (spec,) = plan.specs
        assert dict(spec.arguments)["heads_per_item"] == heads
        np.testing.assert_array_equal(plan.run(), emulate_rope(x, 3, RopeConfig(mode, 64)))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("tokens", [slice(2), slice(1, 2), slice(None)])
def test_work_items_go_from_batch_to_batch(
    device: clrope.DeviceInfo, rng: np.random.Generator, tokens: slice, own: bool
) -> None:
    """Also where the tokens of the next batch do not follow."""
    x = rng.standard_normal((5, 3, 2, 16)).astype(np.float32)[:, tokens]
    positions = rng.integers(0, 1 << 20, (5, x.shape[1]) if own else x.shape[1])
    config = RopeConfig("neox", 16)
    got = clrope.Rope(config, device, variant=Variant(width=4))(x, positions)
    np.testing.assert_array_equal(got, emulate_rope(x, positions, config))


@pytest.mark.parametrize("shape", [(70000, 1, 4), (1, 40000, 4), (2, 1, 150000)])
@pytest.mark.parametrize("variant", [None, Variant(width=2), STRIDED])
@pytest.mark.one_in(4)
def test_more_work_than_loops_are_long(
    device: clrope.DeviceInfo, rng: np.random.Generator, shape: tuple[int, ...], variant: Variant | None
) -> None:
    """Some drivers end loops, silently, after 65535 rounds."""
    config = RopeConfig("normal", 4)
    x = rng.standard_normal(shape).astype(np.float32)
    out = np.full_like(x, np.nan)
    plan = clrope.Rope(config, device, variant=variant).plan(x, 3, out=out)
    assert variant is None or plan.variants == [variant if shape[2] == 4 else STRIDED]
    plan.run()
    assert out.tobytes() == emulate_rope(x, 3, config).tobytes()


# Shape, and which tokens.
BATCHES = {
    "one token each": ((6, 1, 3, 16), slice(None)),
    "contiguous": ((3, 4, 3, 16), slice(None)),
    "tokens left out behind each": ((3, 4, 3, 16), slice(2)),
    "one of the tokens of each": ((6, 4, 3, 16), slice(1, 2)),
}


@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("which", BATCHES)
def test_batches_are_further_tokens_or_heads(
    device: clrope.DeviceInfo, rng: np.random.Generator, mode: Any, several: bool, which: str
) -> None:
    shape, tokens = BATCHES[which]
    config = RopeConfig(mode)
    x = rng.standard_normal(shape).astype(np.float32)[:, tokens]
    positions = rng.integers(-9999, 9999, x.shape[:2])
    given = (x, x[:, :, :1].copy()) if several else (x,)
    op = clrope.Rope(config, device, variant=Variant(width=4))
    for place in (positions, positions[0]):
        out = [np.full_like(a, np.nan) for a in given]
        plan = op.plan(given, place, out=out, transfer="map")
        for got, a in zip(plan.run(), given, strict=True):
            assert got.tobytes() == emulate_rope(a, place, config).tobytes()


@pytest.mark.one_in(16)
def test_every_candidate_gives_the_same(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    if device.kind != "cpu":
        pytest.skip("a candidate may be one that only a child process should try")
    # Vectors of 64 bytes change the calling convention without AVX-512: only a child process should try those.
    most = 8 if device.native_widths.float < 16 else 16
    x = rng.standard_normal((3, 2, 96)).astype(np.float32)
    for mode in ("normal", "neox"):
        whole = whole_heads("f32", mode, 96)
        tried = [v for v in candidates("cpu", "f32") if v.kernel == "rows"]
        tried = [v for v in tried if rows.store_bytes(whole, v.parameters) <= 4 * most]
        assert len(tried) > 15
        # Each costs a compilation; other runs draw others.
        for number in rng.permutation(len(tried))[: len(tried) // 2]:
            out = aligned_memory(x.size, x.dtype, 0).reshape(x.shape)
            rotated(device, x, out, RopeConfig(mode, 96), tried[number])


POSITIONS = {
    "few": 3,
    "many": np.array([5, -7, 2**31 - 1, 40]),
    "beyond 32 bits": np.array([5, 2**40 + 3, -(2**50), 1]),
}


@pytest.mark.one_in(20)
@pytest.mark.parametrize("where", POSITIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["normal", "neox"])
def test_fused_angles(device: clrope.DeviceInfo, rng: np.random.Generator, mode: Any, dtype: str, where: str) -> None:
    if dtype == "f64" and not device.fp64:
        pytest.skip("no fp64")
    config = RopeConfig(mode, 64, n_offs=8, attn_factor=0.7, ext_factor=1.0, n_ctx_orig=4096, freq_scale=0.25)
    x = rng.standard_normal((4, 3, 80)).astype(DTYPES[dtype])
    positions = POSITIONS[where]
    want = emulate_rope(x, positions, config)
    for forward in (True, False):
        variant = Variant(width=8, angles="fused")
        plan = clrope.Rope(config, device, variant=variant).plan(x, positions, forward=forward)
        assert [v.angles for v in plan.variants] == ["fused"]
        want = emulate_rope(x, positions, config, forward=forward)
        bits = f"u{x.dtype.itemsize}"
        np.testing.assert_array_equal(plan.run().view(bits), want.view(bits))
        # Other positions, another number of 64-bit parts.
        other = np.array([2**45, 1, 0, -5])
        want = emulate_rope(x, other, config, forward=forward)
        np.testing.assert_array_equal(plan.run(positions=other).view(bits), want.view(bits))


@pytest.mark.parametrize("mode", ["mrope", "imrope", "vision"])
def test_fused_angles_of_sections(device: clrope.DeviceInfo, rng: np.random.Generator, mode: Any) -> None:
    head_dim = 64
    config = RopeConfig(mode, None if mode == "vision" else head_dim, sections=(8, 12, 12, 0)).for_head_dim(head_dim)
    x = rng.standard_normal((2, 5, 3, head_dim)).astype(np.float32)
    positions = rng.integers(-100, 1 << 33, (4, 5))
    variant = Variant(width=4, angles="fused")
    plan = clrope.Rope(config, device, variant=variant).plan(x, positions)
    assert [v.angles for v in plan.variants] == ["fused"]
    want = emulate_rope(x, positions, config)
    np.testing.assert_array_equal(plan.run().view(np.uint32), want.view(np.uint32))
    # Per batch, and few enough for the 64 bits to do.
    positions = rng.integers(0, 1000, (4, 2, 5))
    got = clrope.Rope(config, device, variant=variant)(x, positions)
    np.testing.assert_array_equal(got.view(np.uint32), emulate_rope(x, positions, config).view(np.uint32))


@pytest.mark.one_in(10)
@pytest.mark.parametrize("store", ["plain", "nontemporal", "in place"])
@pytest.mark.parametrize("kind", ["levels", "nta"])
@pytest.mark.parametrize("n_dims", [128, 64, 32])
def test_fused_angles_that_fetch_ahead(
    device: clrope.DeviceInfo, rng: np.random.Generator, n_dims: int, kind: Any, store: Any
) -> None:
    """Whole heads, parts of them, and heads that are not contiguous; up to the last token of the memory."""
    if device.kind != "cpu":
        pytest.skip("prefetching is for CPUs")
    variant = Variant(width=16, access="clang", prefetch=4096, prefetch_kind=kind, angles="fused",
                      store="nontemporal" if store == "nontemporal" else "plain")  # fmt: skip
    op = clrope.Rope(RopeConfig("normal", n_dims), device, variant=variant)
    positions = rng.integers(0, 1 << 20, 9)
    for layout in ("bsnd", "bnsd"):
        x = empty((1, 9, 5, 128) if layout == "bsnd" else (1, 5, 9, 128), np.dtype(np.float16))
        out = x if store == "in place" else empty(x.shape, x.dtype)
        x[...] = rng.standard_normal(x.shape)
        if out is not x:
            out[...] = np.nan
        plain = x if layout == "bsnd" else x.swapaxes(1, 2)
        want = emulate_rope(np.ascontiguousarray(plain), positions, op.config)
        plan = op.plan(x, positions, out=out, layout=layout)
        assert [v.angles for v in plan.variants] == ["fused"]
        got = plan.run()
        got = got if layout == "bsnd" else np.ascontiguousarray(got.swapaxes(1, 2))
        np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


def test_what_cannot_be_fused_is_cached(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 3, 64)).astype(np.float32)
    fused = Variant(width=8, angles="fused")
    config = RopeConfig("neox", 64, angles="ggml")
    plan = clrope.Rope(config, device, variant=fused).plan(x, 9)
    assert [v.angles for v in plan.variants] == ["cached"]
    np.testing.assert_array_equal(plan.run().view(np.uint32), emulate_rope(x, 9, config).view(np.uint32))
    angles = rng.standard_normal((4, 32)).astype(np.float32)
    want = clrope.rotate(x, np.cos(angles), np.sin(angles), device=device)
    got = clrope.rotate(x, np.cos(angles), np.sin(angles), device=device, variant=fused)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_q_and_k_in_one_launch(
    device: clrope.DeviceInfo, rng: np.random.Generator, dtype: str, in_place: bool, fused: bool,
    heads_of_an_item: Callable[[int], None],
) -> None:  # fmt: skip
    config = RopeConfig("neox", 64)
    bits = f"u{DTYPES[dtype].itemsize}"
    variant = Variant(width=4, angles="fused" if fused else "cached")
    for heads in (0, 1, 4, 12, 100):
        if heads:  # otherwise by the rule
            heads_of_an_item(heads)
        # Unlike numbers of heads, k with gaps; and three tensors, of which two are taken together.
        wide = rng.standard_normal((2, 7 + heads, 3, 100)).astype(DTYPES[dtype])
        q = rng.standard_normal((2, 7 + heads, 10, 96)).astype(DTYPES[dtype])
        third = rng.standard_normal((2, 7 + heads, 1, 96)).astype(DTYPES[dtype])
        positions = rng.integers(0, 5000, (2, 7 + heads))
        xs = [q.copy(), wide.copy()[..., :96], third.copy()]
        outs = xs if in_place else [np.full_like(x, 9) for x in xs]
        want = [emulate_rope(x, positions, config).view(bits) for x in xs]
        plan = clrope.Rope(config, device, variant=variant).plan(tuple(xs), positions, out=tuple(outs))
        assert plan.launches == (3 if copies(device) else 2)
        for _ in range(1 if in_place else 2):
            results = plan.run()
            for result, right in zip(results, want, strict=True):
                np.testing.assert_array_equal(np.ascontiguousarray(result).view(bits), right)


def test_what_differs_is_not_launched_together(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    q = rng.standard_normal((3, 4, 64)).astype(np.float32)
    variant = Variant(width=4)
    for k in (q.astype(np.float16), rng.standard_normal((3, 4, 96)).astype(np.float32)):
        plan = clrope.Rope(RopeConfig("neox", 64), device, variant=variant).plan((q, k), 5)
        assert plan.launches == 2
        for x, y in zip((q, k), plan.run(), strict=True):
            want = emulate_rope(x, 5, RopeConfig("neox", 64))
            np.testing.assert_array_equal(y.view(np.uint8), want.view(np.uint8))


def test_q_and_k_on_the_device_share_an_event(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    import pyopencl.array as cla

    queue = queue_for(device)
    q, k = (cla.to_device(queue, rng.standard_normal((3, n, 64)).astype(np.float32)) for n in (8, 2))
    plan = clrope.Rope(RopeConfig("normal", 64), queue, variant=Variant(width=4)).plan((q, k), 5)
    for _ in range(3):
        results = plan.run()
        assert plan.launches == 1
        assert [len(y.events) for y in results] == [1, 1]
        assert results[0].events[0] is results[1].events[0]
        for x, y in zip((q, k), results, strict=True):
            want = emulate_rope(x.get(), 5, RopeConfig("normal", 64))
            np.testing.assert_array_equal(y.get().view(np.uint32), want.view(np.uint32))


@pytest.mark.one_in(20)
@pytest.mark.parametrize("n_dims", [20, 62, 94])
@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_pairs_that_are_left_over(
    device: clrope.DeviceInfo, rng: np.random.Generator, mode: Any, dtype: str, n_dims: int, seed: int
) -> None:
    """Pairs that do not fill a round of vectors, with tables of their own, in place and out of place."""
    if device.kind != "cpu":
        pytest.skip("for CPUs")
    if dtype == "f64" and not device.fp64:
        pytest.skip("no fp64")
    width = (16 if device.native_widths.float >= 16 else 8) // (2 if dtype == "f64" else 1)
    config = RopeConfig(mode, n_dims)
    x = (100 * rng.standard_normal((5, 3, 100))).astype(DTYPES[dtype])
    x[rng.random(x.shape) < 0.02] = np.inf
    # Each is a program: types, modes and lengths take turns with the stores, and with the other one at another seed.
    turn = list(DTYPES).index(dtype) + ("normal", "neox").index(mode) + n_dims // 20 + seed
    variant = Variant(
        width=width, access="clang", store=("plain", "nontemporal")[turn % 2],
        angles=("cached", "fused")[turn // 2 % 2],
    )  # fmt: skip
    out = aligned_memory(x.size, x.dtype, 0).reshape(x.shape)
    (used,) = rotated(device, x, out, config, variant)
    assert (used.kernel, used.angles) == ("rows", variant.angles)
    assert n_dims // 2 % rows.round_pairs(used.parameters, mode)
    whole = x.copy()
    rotated(device, whole, whole, config, variant)


@pytest.mark.one_in(30)
@pytest.mark.parametrize("store", ["plain", "nontemporal"])
@pytest.mark.parametrize("n_offs", [0, 32])
@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rest_of_a_head(
    device: clrope.DeviceInfo, rng: np.random.Generator, mode: Any, dtype: str, n_offs: int, store: Any, seed: int
) -> None:
    """What is not rotated is copied to its last element, and nothing behind it is written."""
    if device.kind != "cpu":
        pytest.skip("non-temporal stores are for CPUs")
    if dtype == "f64" and not device.fp64:
        pytest.skip("no fp64")
    widths = [8, 16] if device.native_widths.float >= 16 else [8]
    # Each is a program: types, modes, stores and offsets take turns with the lengths, and with others at another seed.
    turn = list(DTYPES).index(dtype) + ("normal", "neox").index(mode) + ("plain", "nontemporal").index(store)
    k = (turn + (2 if n_offs else 0) + seed) % 4
    head_dim = (256, 200, 161, 160)[k]
    width = widths[(k + (n_offs > 0)) % len(widths)] // (2 if dtype == "f64" else 1)
    kind: Any = "nta" if n_offs else "levels"
    variant = Variant(width=width, access="clang", store=store, prefetch=4096, prefetch_kind=kind)
    # Heads begin at whole lines, and need not end at one.
    room = (1, 5, 2, 256)
    source, whole = (aligned_memory(int(np.prod(room)), DTYPES[dtype], 0).reshape(room) for _ in range(2))
    # Numbers behind each head, too, which would be seen where poison has to stay.
    source[...] = rng.standard_normal(room).astype(DTYPES[dtype])
    x = source[..., :head_dim]
    (used,) = rotated(device, x, whole[..., :head_dim], RopeConfig(mode, 128, n_offs=n_offs), variant)
    assert (used.kernel, used.store) == ("rows", store)
    assert (np.ascontiguousarray(whole[..., head_dim:]).view(np.uint8) == POISON).all()
