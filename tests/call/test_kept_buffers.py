"""Buffers over host memory are kept by address: memory that comes and goes at one address must not confuse them."""

from __future__ import annotations

import numpy as np

import clrope
from clrope.call.runtime import HOST_BUFFERS_KEPT, runtime_for
from clrope.emulation import emulate_rope


def test_memory_at_one_address_with_changing_sizes(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    config = clrope.RopeConfig("neox", 64)
    block = np.empty(64 << 10, np.float32)
    for position in range(60):
        # Inputs and outputs at overlapping places of one block, of all sizes, in place and not.
        heads, start = int(rng.integers(1, 40)), int(rng.integers(0, 16)) * 16
        x = block[start : start + heads * 64].reshape(1, heads, 64)
        x[...] = rng.standard_normal(x.shape)
        before = x.copy()
        end = start + heads * 64 + int(rng.integers(0, 3)) * 16
        out = [None, x, block[end : end + heads * 64].reshape(x.shape)][position % 3]
        got = clrope.rope(x, position, config, out=out, device=device)
        np.testing.assert_array_equal(got, emulate_rope(before, position, config))
        assert out is x or np.array_equal(x, before)
    assert len(runtime_for(device).host_buffers) <= HOST_BUFFERS_KEPT


def test_only_so_many_buffers_are_kept(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    config = clrope.RopeConfig("normal", 4)
    pages = np.zeros((HOST_BUFFERS_KEPT + 50, 1024), np.float32)  # a page each
    clrope.rope(pages[0, :4].reshape(1, 1, 4), 0, config, out=pages[0, :4].reshape(1, 1, 4), device=device)
    for page in pages:
        x = page[:4].reshape(1, 1, 4)
        x[...] = rng.standard_normal(x.shape)
        want = emulate_rope(x, 3, config)
        np.testing.assert_array_equal(clrope.rope(x, 3, config, out=x, device=device), want)
    assert len(runtime_for(device).host_buffers) <= HOST_BUFFERS_KEPT
