"""`clrope.rope` on NumPy arrays: modes, types, directions, windows, batches, letters; the same bits on every device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import Built, Case, View, assert_rotated, run

import clrope
from clrope import RopeConfig
from clrope.kernels.variant import Variant

MODES: dict[str, dict[str, Any]] = {
    "normal": {"mode": "normal"},
    "neox": {"mode": "neox"},
    "mrope": {"mode": "mrope", "sections": (3, 2, 4, 1)},
    "imrope": {"mode": "imrope", "sections": (3, 3, 2, 0)},
    "vision": {"mode": "vision", "sections": (3, 2, 0, 0)},
}
TYPES = ["f16", "bf16", "f32", "f64"]


def form(mode: str) -> str:
    return "4BS" if "sections" in MODES[mode] else "BS"


@pytest.mark.one_in(32)
@pytest.mark.parametrize("forward", [True, False], ids=["forward", "back"])
@pytest.mark.parametrize("out", [None, "in place"], ids=["new", "inplace"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("mode", MODES)
def test_modes_and_types(device: clrope.DeviceInfo, mode: str, dtype: str, out: Any, forward: bool, seed: int) -> None:
    for shape in ((2, 5, 3, 40), (1, 3, 2, 128), (2, 3, 4)):
        positions = form(mode) if len(shape) == 4 else "S"
        case = Case(MODES[mode], shape, dtype, positions=positions, low=-4096, high=131072, forward=forward, out=out)
        run(replace(case, seed=seed + len(shape)), device)


@pytest.mark.one_in(48)
@pytest.mark.parametrize("n_dims", [2, 4, 6, 14, 16, 30, 32, 34, 62])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("mode", ["normal", "neox", "imrope"])
def test_windows(device: clrope.DeviceInfo, mode: str, dtype: str, n_dims: int, seed: int) -> None:
    windows = [(0, n_dims), (0, n_dims + 1), (2, n_dims + 2), (6, n_dims + 17)]
    # Each is a program: types and modes take turns with them, those of one length have all, and others at another seed.
    k = (list(MODES).index(mode) + TYPES.index(dtype) + n_dims // 2 + seed) % 4
    n_offs, head_dim = windows[k]
    fields = {**MODES[mode], "n_dims": n_dims, "n_offs": n_offs, "attn_factor": 1.5}
    for out in (None, "in place"):
        run(Case(fields, (2, 3, 2, head_dim), dtype, low=-999, high=999, out=out, seed=seed + k), device)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", TYPES)
def test_parameters(device: clrope.DeviceInfo, dtype: str, seed: int, rng: np.random.Generator) -> None:
    yarn = {"ext_factor": 0.75, "freq_scale": 0.125, "n_ctx_orig": 256}
    for k, fields in enumerate([
        {"freq_base": 500000.0},
        {"freq_base": 1.0},
        {"freq_base": 0.1, "freq_scale": 3.0},
        {"freq_scale": 0.25, "attn_factor": -0.5},
        yarn,
        {**yarn, "beta_fast": 4.0, "beta_slow": 0.5, "attn_factor": 1.1},
        {**yarn, "n_ctx_orig": 0, "beta_fast": 1.0},
        {"freq_factors": tuple(map(float, rng.uniform(0.9, 1.1, 20)))},
        {"freq_factors": tuple(map(float, rng.uniform(1, 32, 24))), **yarn},
        {"attn_factor": 0.0},
    ]):  # fmt: skip
        for mode in ("normal", "mrope", "vision"):
            head_dim = 40 if mode != "vision" else 20
            case = Case({**MODES[mode], **fields}, (1, 4, 2, head_dim), dtype, low=-(2**31), high=2**31, seed=seed + k)
            run(case, device)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("layout", ["bsnd", "bnsd", "sbnd", "dnsb", "nsbd", "sdbn"])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_letters(device: clrope.DeviceInfo, layout: str, dtype: str, seed: int) -> None:
    lengths = {"b": 2, "s": 5, "n": 3, "d": 24}
    for mode in ("normal", "neox"):
        for letters in (layout, layout.replace("b", "")):
            shape = tuple(lengths[c] for c in letters)
            for out in (None, "in place"):
                run(Case({"mode": mode, "n_dims": 16}, shape, dtype, layout, "S", out=out, seed=seed), device)


def test_rank_4_layout_for_rank_3(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, (2, 5, 8)).astype(np.float32)
    config = RopeConfig("neox")
    got = clrope.rope(x, 3, config, layout="nsd", device=device.index)
    assert (got == clrope.rope(x, 3, config, layout="nbsd", device=device.index)).all()
    assert (got == clrope.rope(x.transpose(1, 0, 2), 3, config, device=device.index).transpose(1, 0, 2)).all()


@pytest.mark.one_in(8)
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (1, 1, 1, 4), (1, 300, 1, 8), (5, 1, 33, 6), (1, 2, 1, 258)])
def test_odd_sizes(device: clrope.DeviceInfo, shape: tuple[int, ...], seed: int) -> None:
    for mode in ("normal", "neox"):
        for dtype in TYPES:
            run(Case({"mode": mode}, shape, dtype, "bsnd", "S", "uint16", high=65535, seed=seed), device)


@pytest.mark.one_in(32)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("pairing", ["normal", "neox"])
def test_every_variant_gives_the_same_bits(device: clrope.DeviceInfo, pairing: str, dtype: str, seed: int) -> None:
    # Wider ones than the default are tried in child processes only, by the chooser: some drivers abort on them.
    # Widths take turns among the types and pairings, others at another seed: each is a program to be compiled.
    turn = seed + TYPES.index(dtype) + (pairing == "neox")
    variants = [Variant("strided"), Variant(width=2), Variant(width=4)]
    variants.append(Variant(width=(2, 4)[turn % 2], angles="fused"))
    variants += [Variant(width=4, store="nontemporal"), Variant(width=4, access="clang")]
    roomy = Case({"mode": pairing, "n_dims": 32, "attn_factor": 1.2}, (2, 3, 2, 64), dtype, positions="BS", seed=seed)
    odd = replace(roomy, config={**roomy.config, "n_dims": 10, "n_offs": 2}, shape=(2, 3, 2, 29))
    for variant in variants:
        for case in (roomy, odd):
            try:
                check_variant(device, case, variant, fits=case is roomy)
            except clrope.BuildError:
                assert variant.parameters.get("access") == "clang", (
                    "only clang's own extensions may be unknown to a driver"
                )


def check_variant(device: clrope.DeviceInfo, case: Case, variant: Variant, fits: bool) -> None:
    built = case.build()
    op = clrope.Rope(RopeConfig.from_dict(case.config), device.index, variant=variant)
    plan = op.plan(built.x, built.positions)
    assert [used.kernel for used in plan.variants] == [variant.kernel]
    assert not fits or plan.variants == [variant] or variant.store == "nontemporal"
    assert_rotated(plan.run(), built, device)


def test_all_devices_agree(devices: tuple[clrope.DeviceInfo, ...], rng: np.random.Generator) -> None:
    for dtype in TYPES:
        for mode in MODES:
            case = Case(
                {**MODES[mode], "attn_factor": 1.25}, (2, 7, 3, 20), dtype, positions=form(mode), low=-(2**31),
                high=2**31, values="bits" if dtype != "f64" else "uniform", seed=int(rng.integers(2**32)),
            )  # fmt: skip
            for device in devices:
                run(case, device)


def test_fields_as_keywords(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, (2, 3, 2, 16)).astype(np.float32)
    got = clrope.rope(x, [4, 5, 6], mode="neox", n_dims=8, freq_base=5e5, device=device.index)
    assert (got == clrope.rope(x, [4, 5, 6], RopeConfig("neox", 8, freq_base=5e5), device=device.index)).all()
    assert (got == clrope.rope(x, 4, mode=2, n_dims=8, freq_base=5e5, device=device.index)).all()
    assert got.flags.c_contiguous


@pytest.mark.parametrize("dtype", TYPES)
def test_memory_that_is_read_only_can_be_read(device: clrope.DeviceInfo, dtype: str, seed: int) -> None:
    case = Case({"mode": "neox"}, (2, 3, 2, 8), dtype, seed=seed)
    built = case.build()
    built.x.setflags(write=False)
    got = clrope.rope(built.x, built.positions, RopeConfig("neox"), device=device.index)
    assert_rotated(got, built, device)


def test_buffers_and_broadcasts(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    import array

    config = RopeConfig("normal")
    values = rng.uniform(-1, 1, 24).astype(np.float32)
    view = memoryview(array.array("f", values.tolist())).cast("B").cast("f", (2, 3, 4))
    want = clrope.rope(values.reshape(2, 3, 4), 1, config, device=device.index)
    assert (clrope.rope(view, 1, config, device=device.index) == want).all()
    wide = np.broadcast_to(values.reshape(2, 3, 4)[:, :1], (2, 5, 4))
    got = clrope.rope(wide, 1, config, device=device.index)
    assert (got == clrope.rope(wide.copy(), 1, config, device=device.index)).all()


def test_threads(device: clrope.DeviceInfo, seed: int) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def one(k: int) -> None:
        fields = {**MODES[list(MODES)[k % 5]], "freq_base": 10000.0 + k % 3}
        run(Case(fields, (2, 9, 3, 16), TYPES[k % 4], seed=seed + k), device)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(40)))


def test_result_of_an_op_is_that_of_the_function(device: clrope.DeviceInfo, seed: int) -> None:
    case = Case({"mode": "normal", "n_dims": 8}, (2, 4, 2, 12), "bf16", x=View(pads=(0, 1, 0, 3)), seed=seed)
    built: Built = case.build()
    op = clrope.Rope(RopeConfig.from_dict(case.config), device.index)
    assert op.device == device
    assert_rotated(op(built.x, built.positions), built, device)
