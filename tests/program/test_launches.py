"""The chosen spelling as it is launched: where it does not fit it gives way, and the bits stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clrope
from clrope import RopeConfig
from clrope.device import queue_for
from clrope.emulation import emulate_rope
from clrope.layout import DTYPES
from clrope.program.candidates import candidates
from clrope.program.variants import Variant

FAST = Variant(width=8, access="clang", prepared=True, store="nontemporal")
POISON = 0xA5


def memory(count: int, dtype: Any, shift: int) -> Any:
    """Poisoned elements that begin `shift` elements after an address that 64 divides."""
    dtype = np.dtype(dtype)
    raw = np.full(count * dtype.itemsize + 64 + shift * dtype.itemsize, POISON, np.uint8)
    start = -raw.__array_interface__["data"][0] % 64 + shift * dtype.itemsize
    return raw[start : start + count * dtype.itemsize].view(dtype)


def rotated(device: clrope.DeviceInfo, x: Any, out: Any, config: RopeConfig, variant: Variant | None) -> list[Variant]:
    want = emulate_rope(x, 3, config)
    plan = clrope.Rope(config, device, variant=variant).plan(x, 3, out=out)
    result = plan.run()
    assert result is out
    bits = f"u{x.dtype.itemsize}"
    np.testing.assert_array_equal(np.ascontiguousarray(result).view(bits), want.view(bits))
    return plan.variants


@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_host_memory(device: clrope.DeviceInfo, rng: np.random.Generator, mode: Any, dtype: str) -> None:
    if device.kind != "cpu":
        pytest.skip("stores past the cache are spelled for CPUs")
    if dtype == "f64" and not device.fp64:
        pytest.skip("no fp64")
    shape = (5, 2, 128)
    x = rng.standard_normal(shape).astype(DTYPES[dtype])
    for shift in (0, 1, 2, 4):
        out = memory(x.size, x.dtype, shift).reshape(shape)
        (variant,) = rotated(device, x, out, RopeConfig(mode, 128), FAST)
        aligned = shift * x.dtype.itemsize % FAST.store_bytes(dtype, mode) == 0
        odd = dtype == "bf16" and shift == 1
        assert variant == Variant("rows", variant.width, "clang", variant.store, not odd)
        assert (variant.store == "nontemporal") == aligned


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_defaults_of_both_sizes(
    device: clrope.DeviceInfo, cache: Any, rng: np.random.Generator, mode: Any, dtype: str, in_place: bool
) -> None:
    if dtype == "f64" and not device.fp64:
        pytest.skip("no fp64")
    for tokens in (2, (1 << 20) // (4 * 128 * DTYPES[dtype].itemsize)):
        x = rng.standard_normal((tokens, 4, 128)).astype(DTYPES[dtype])
        out = x if in_place else memory(x.size, x.dtype, 1).reshape(x.shape)
        (variant,) = rotated(device, x, out, RopeConfig(mode, 128), None)
        assert variant.store == "plain"
        if not in_place:
            out = memory(x.size, x.dtype, 0).reshape(x.shape)
            rotated(device, x, out, RopeConfig(mode, 128), None)


def test_an_opencl_array_with_an_offset(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    if device.kind != "cpu":
        pytest.skip("stores past the cache are spelled for CPUs")
    import pyopencl as cl
    import pyopencl.array as cla

    queue = queue_for(device)
    x = rng.standard_normal((5, 2, 128)).astype(np.float32)
    for offset, store in ((0, "nontemporal"), (4, "plain"), (32, "nontemporal")):
        buffer = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, x.nbytes + 64)
        cl.enqueue_fill_buffer(queue, buffer, np.uint8(POISON), 0, x.nbytes + 64)
        out = cla.Array(queue, x.shape, x.dtype, data=buffer, offset=offset)
        plan = clrope.Rope(RopeConfig("neox", 128), device, variant=FAST).plan(cla.to_device(queue, x), 3, out=out)
        assert [v.store for v in plan.variants] == [store]
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
    wide = Variant(width=16, prepared=True, access="clang" if device.kind == "cpu" else "builtin")
    for variant in (None, Variant(width=8, prepared=True), wide):
        got = clrope.rotate(x, *full, mode=mode, device=device, variant=variant)
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("mode", ["normal", "neox"])
def test_heads_per_item(device: clrope.DeviceInfo, rng: np.random.Generator, mode: Any) -> None:
    x = rng.standard_normal((5, 7, 64)).astype(np.float32)
    for heads in (1, 2, 3, 7, 8, 1 << 16):
        out = memory(x.size, x.dtype, 0).reshape(x.shape)
        variant = Variant(width=4, heads_per_item=heads)
        assert rotated(device, x, out, RopeConfig(mode, 64), variant) == [variant]


def test_every_candidate_gives_the_same(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    if device.kind != "cpu":
        pytest.skip("a candidate may be one that only a child process should try")
    # Vectors of 64 bytes change the calling convention without AVX-512: only a child process should try those.
    most = 8 if device.native_widths.float < 16 else 16
    x = rng.standard_normal((3, 2, 96)).astype(np.float32)
    for mode in ("normal", "neox"):
        for variant in candidates("cpu", "f32", mode):
            if variant.kernel == "rows" and variant.store_bytes("f32", mode) <= 4 * most:
                out = memory(x.size, x.dtype, 0).reshape(x.shape)
                rotated(device, x, out, RopeConfig(mode, 96), variant)
