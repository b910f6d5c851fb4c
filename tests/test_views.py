"""Views into larger memory: any strides, fused QKV, in place; not one byte outside the view changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import POISON, Case, View, bits, run, same, touched

import clrope
from clrope import RopeConfig
from clrope.emulation import emulate_rope
from clrope.kernels.variant import Variant

VIEWS = {
    "offset": View(before=3),
    "padded": View(pads=(1, 2, 1, 5), before=1),
    "every second token": View((1, 2, 1, 1)),
    "every second batch and head": View((2, 1, 3, 1), (0, 0, 1, 0)),
    "heads outside tokens": View(order=(0, 2, 1, 3)),
    "tokens backwards": View((1, -1, 1, 1), before=2),
    "all backwards": View((-1, -2, -1, -1), (0, 1, 1, 3)),
    "every third element": View((1, 1, 1, 3)),
    "elements backwards": View((1, 1, 1, -1)),
    "elements outermost": View(order=(3, 2, 1, 0), pads=(1, 1, 1, 1)),
    "all at once": View((-2, 3, -1, -2), (1, 0, 2, 3), (2, 0, 3, 1), 7),
}
TYPES = ["f16", "bf16", "f32", "f64"]


@pytest.mark.one_in(32)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", VIEWS)
def test_input_and_output_views(device: clrope.DeviceInfo, name: str, dtype: str, seed: int) -> None:
    others = list(VIEWS.values())
    for k, mode in enumerate(("normal", "neox")):
        case = Case({"mode": mode, "n_dims": 12, "n_offs": 2}, (2, 3, 2, 17), dtype, x=VIEWS[name], positions="BS")
        other = others[(list(VIEWS).index(name) + 3 + 2 * k) % len(others)]
        for out in (None, "in place", other):
            run(replace(case, out=out, seed=seed + k, forward=k == 0), device)


@pytest.mark.parametrize("name", ["offset", "padded", "tokens backwards", "elements backwards"])
def test_rank_3(device: clrope.DeviceInfo, name: str, seed: int) -> None:
    view = VIEWS[name]
    three = View(view.steps[1:], view.pads[1:], (), view.before)
    for out in (None, "in place", View((2, 1, -1), (0, 1, 0), before=4)):
        run(Case({"mode": "neox", "n_dims": 8}, (4, 2, 10), "f16", x=three, out=out, seed=seed), device)


@pytest.mark.parametrize("layout", ["bnsd", "dnsb", "sbnd"])
def test_views_of_any_letters(device: clrope.DeviceInfo, layout: str, seed: int) -> None:
    lengths = {"b": 2, "s": 3, "n": 2, "d": 16}
    shape = tuple(lengths[c] for c in layout)
    for x in VIEWS.values():
        case = Case({"mode": "normal"}, shape, "f32", layout, x=x, out=VIEWS["all at once"], positions="B", seed=seed)
        run(case, device)
        run(replace(case, out="in place"), device)


@pytest.mark.parametrize("transfer", ["map", "copy"])
@pytest.mark.parametrize("dtype", TYPES)
def test_fused_qkv_in_place(device: clrope.DeviceInfo, dtype: str, transfer: Any, rng: np.random.Generator) -> None:
    """q and k with their own head counts are slices of one tensor [B, S, (8 + 2 + 2) * 16]; v stays as it is."""
    config = RopeConfig("neox", 12)
    fused = rng.uniform(-1, 1, (2, 5, 12 * 16)).astype(clrope.layout.DTYPES[dtype])
    before = fused.copy()
    q = fused[..., : 8 * 16].reshape(2, 5, 8, 16)
    k = fused[..., 8 * 16 : 10 * 16].reshape(2, 5, 2, 16)
    assert np.shares_memory(q, fused)
    assert np.shares_memory(k, fused)
    positions = rng.integers(-5000, 5000, (2, 5))
    want_q, want_k = (emulate_rope(t, positions, config) for t in (q, k))
    plan = clrope.Rope(config, device.index).plan((q, k), positions, out=(q, k), transfer=transfer)
    results = plan.run()
    assert results[0] is q
    assert results[1] is k
    assert same(q, want_q).all()
    assert same(k, want_k).all()
    assert (bits(fused)[..., 10 * 16 :] == bits(before)[..., 10 * 16 :]).all()


def test_interleaved_input_and_output_share_no_element(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """Input and output interleave in one memory: their spans overlap, their elements do not."""
    parent = np.zeros((2, 4, 2, 2, 8), np.float32)
    x, out = parent[:, :, 0], parent[:, :, 1]
    x[...] = rng.uniform(-1, 1, x.shape)
    before = x.copy()
    config = RopeConfig("normal")
    assert clrope.rope(x, 9, config, out=out, device=device.index) is out
    assert same(out, emulate_rope(before, 9, config)).all()
    assert (x == before).all()


@pytest.mark.parametrize("shape", [(1, 5, 3, 16), (2, 1, 3, 16), (2, 5, 1, 16), (1, 1, 1, 16)])
def test_in_place_whatever_the_strides_of_axes_of_length_1(
    device: clrope.DeviceInfo, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    x = rng.uniform(-1, 1, shape).astype(np.float32)
    op = clrope.Rope(clrope.RopeConfig("neox"), device.index)
    for stride in (0, 4, -64, 1 << 20):
        same_places = np.lib.stride_tricks.as_strided(
            x, shape, [stride if n == 1 else s for n, s in zip(shape, x.strides, strict=True)]
        )
        want = emulate_rope(x, 7, op.config)
        assert op(x, 7, out=same_places) is same_places
        assert same(x, want).all()
        plan = op.plan(same_places, 7, out=x)
        for given in (same_places, x):
            want = emulate_rope(x, 7, op.config)
            assert plan.run(given) is given
            assert same(x, want).all()
    with pytest.raises(clrope.ShapeError, match="out: overlaps x"):
        op(x, 7, out=x[..., ::-1])


def test_in_place_by_another_object_of_the_same_view(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, (2, 4, 2, 8)).astype(np.float16)
    want = emulate_rope(x, 3, RopeConfig("neox"))
    again = x[:]
    assert clrope.rope(x, 3, RopeConfig("neox"), out=again, device=device.index) is again
    assert same(x, want).all()


def test_a_view_of_a_large_parent_copies_only_itself(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    parent = np.full((4, 4096, 64), POISON, np.uint8).view(np.float32)
    x = parent[1:3, 100:104, None, :]
    x[...] = rng.uniform(-1, 1, x.shape)
    want = emulate_rope(x, 0, RopeConfig("neox"))
    assert clrope.rope(x, 0, RopeConfig("neox"), out=x, device=device.index) is x
    assert same(x, want).all()
    outside = bits(parent.ravel())[~touched(parent.ravel(), x)]
    assert (outside == 0x5A5A5A5A).all()


@pytest.mark.parametrize("gap", [0, 8])
@pytest.mark.parametrize("backwards", [False, True])
def test_one_token_and_head_of_each_batch(
    device: clrope.DeviceInfo, gap: int, backwards: bool, rng: np.random.Generator
) -> None:
    """Batches at one position are launched as heads, with what is between them."""
    config = RopeConfig("neox", 64)
    variant = Variant("rows", width=8, access="clang", store="nontemporal")
    op = clrope.Rope(config, device, variant=variant if device.kind == "cpu" else None)
    for batches in (2, 5, 33):
        memory = np.full((batches + 2, 1, 1, 64 + gap), np.nan, np.float32)
        out = memory[1:-1, :, :, :64][:: -1 if backwards else 1]
        x = rng.standard_normal(out.shape).astype(np.float32)
        op(x, 7, out=out)
        np.testing.assert_array_equal(out, emulate_rope(x, 7, config))
        out[...] = np.nan
        assert np.isnan(memory).all(), "something outside the output was written"
