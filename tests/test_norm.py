"""RMS norm and rotation in one launch: every bit against NumPy, the error against float64, separate calls, refusals."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyopencl.array as cla
import pytest
from helpers import aligned_memory, copies, same

import clrope
from clrope import ConfigError, Norm, RopeConfig, ShapeError, reference
from clrope.call import call
from clrope.call.runtime import queue_for, runtime_for
from clrope.kernels import norm_lanes, norm_rows
from clrope.kernels.problem import AngleForm, PairLayout, Problem
from clrope.kernels.variant import Variant
from clrope.layout import DTYPES, TensorView
from clrope.norm import NormForm
from clrope.norm_emulation import emulate_norm_rope, emulate_rms_norm
from clrope.select.choice import select
from clrope.testing import limit_for, nmse

LIMITS = {"f16": 2e-7, "bf16": 1.5e-5}  # some values of "each" are rounded three times


def drawn(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    """Heads of different magnitudes, one of them of zeros."""
    x = rng.uniform(-1, 1, shape) * 4.0 ** rng.integers(-3, 4, (*shape[:-1], 1))
    x[..., 0, 0, :] = 0
    return x.astype(DTYPES[dtype])


def norm_for(rng: np.random.Generator, count: int, **fields: Any) -> Norm:
    return Norm(rng.uniform(-1, 2, count).astype(np.float32), 10.0 ** rng.uniform(-12, -3), **fields)


def check(got: np.ndarray, x: np.ndarray, positions: Any, config: RopeConfig, norm: Norm, dtype: str) -> None:
    assert got.dtype == x.dtype
    assert got.shape == x.shape
    assert same(got, emulate_norm_rope(x, positions, config, norm)).all()
    want = reference.norm_rope(x, positions, config, norm)
    assert nmse(got, want) <= LIMITS.get(dtype, limit_for(dtype, got.size))


KINDS = [
    {"mode": mode, "over": over, "order": order, "rounding": rounding}
    for mode in ("normal", "neox")
    for over in ("head", "heads")
    for order in ("before", "after")
    for rounding in ("once", "each")
]


@pytest.mark.one_in(16)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind.values()))
def test_every_kind(device: clrope.DeviceInfo, kind: dict[str, Any], rng: np.random.Generator) -> None:
    """Types and head sizes in turn, by the kernel for rows and by the one for any strides."""
    fields = dict(kind)
    mode, number = fields.pop("mode"), KINDS.index(kind)
    dtype = ("f32", "f16", "bf16", "f64", "f16")[number % 5]
    if dtype == "f64" and not device.fp64:
        pytest.skip("the device has no fp64")
    head_dim = (64, 80, 128, 256, 512)[number % 3 + number // 8]
    n_dims = (head_dim, head_dim // 4 // 16 * 16 or 16)[number % 2]
    config = RopeConfig(mode, n_dims, n_offs=0 if n_dims == head_dim else 16, attn_factor=1.25)
    x = drawn(rng, dtype, 2, 5, 3, head_dim)
    norm = norm_for(rng, head_dim * (3 if fields["over"] == "heads" else 1), weight_offset=number % 3 / 2, **fields)
    positions = rng.integers(0, 1 << 20, (2, 5))
    by_lanes = device.kind == "gpu" and fields["over"] == "head"
    plan = clrope.Rope(config, device).plan(x, positions, norm=norm)
    assert [v.kernel for v in plan.variants] == ["norm_lanes" if by_lanes else "norm_rows"]
    check(plan.run(), x, positions, config, norm, dtype)
    apart = np.repeat(x, 2, axis=-1)[..., ::2]
    plan = clrope.Rope(config, device).plan(apart, positions, norm=norm)
    if not copies(device):  # copies are contiguous
        assert [v.kernel for v in plan.variants] == ["norm_strided"]
    check(plan.run(), x, positions, config, norm, dtype)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("head_dim", [96, 512, 4096])
def test_long_sums_of_elements_apart(
    device: clrope.DeviceInfo, head_dim: int, dtype: str, rng: np.random.Generator
) -> None:
    """A compiler may not add in another order, as Intel's does for AVX-512 in a plain loop."""
    if dtype == "f64" and not device.fp64:
        pytest.skip("the device has no fp64")
    config, norm = RopeConfig("neox", head_dim), norm_for(rng, head_dim)
    x = np.repeat(rng.uniform(-1, 1, (1, 2, 2, head_dim)).astype(DTYPES[dtype]), 2, axis=-1)[..., ::2]
    check(clrope.Rope(config, device)(x, 5, norm=norm), x, 5, config, norm, dtype)


VARIANTS = [
    {"width": width, "access": access, "store": store, "angles": angles}
    for width, store, angles in ((2, "plain", "fused"), (4, "nontemporal", "cached"), (8, "nontemporal", "fused"),
                                 (16, "plain", "cached"))
    for access in ("builtin", "clang")
]  # fmt: skip


@pytest.mark.one_in(12)
@pytest.mark.parametrize("parameters", VARIANTS, ids=lambda p: "-".join(map(str, p.values())))
def test_every_variant(
    device: clrope.DeviceInfo, parameters: dict[str, Any], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors of every length, also those that are not chosen here, have the same bits."""
    number = VARIANTS.index(parameters)
    variant = Variant(norm_rows.KERNEL, **parameters)
    monkeypatch.setattr(call, "select", lambda device, problem, nbytes, preferred: variant.fit(problem))
    # A configuration of its own, so that no call that was made for another variant is used.
    config = RopeConfig(("normal", "neox")[number // 2 % 2], 64, n_offs=16, attn_factor=1 + (number + 1) / 64)
    x = drawn(rng, ("f32", "bf16")[number % 2] if parameters["store"] == "plain" else "f32", 1, 5, 20, 96)
    norm = norm_for(rng, 96, order=("before", "after")[number // 4], rounding="each")
    target = aligned_memory(x.size, x.dtype).reshape(x.shape)
    plan = clrope.Rope(config, device).plan(x, 11, out=target, norm=norm)
    assert plan.variants == [variant]
    assert same(plan.run(), emulate_norm_rope(x, 11, config, norm)).all()


LANES = [
    (dtype, mode, order, head_dim)
    for dtype in DTYPES for mode in ("normal", "neox") for order in ("before", "after") for head_dim in (64, 96, 256)
]  # fmt: skip


@pytest.mark.one_in(24)
@pytest.mark.parametrize(("dtype", "mode", "order", "head_dim"), LANES)
def test_the_kernel_for_gpus(
    device: clrope.DeviceInfo, dtype: str, mode: Any, order: Any, head_dim: int, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Several heads of a work-item, also of both tensors, tokens that do not fill a work-group; partial, in place."""
    if dtype == "f64" and not device.fp64:
        pytest.skip("the device has no fp64")
    number = LANES.index((dtype, mode, order, head_dim))
    parameters = {"heads_per_item": 2 ** (number % 4), "angles": ("fused", "cached")[number // 4 % 2]}
    variant = Variant(norm_lanes.KERNEL, **parameters)
    monkeypatch.setattr(call, "select", lambda device, problem, nbytes, preferred: variant.fit(problem))
    whole = number % 3 == 0
    config = RopeConfig(
        mode, head_dim if whole else 32, n_offs=0 if whole else 16 * (number % 2), attn_factor=1 + (number + 1) / 512
    )
    q, k = (cla.to_device(queue_for(device), drawn(rng, dtype, 2, 7, heads, head_dim)) for heads in (5, 3))
    norms = tuple(norm_for(rng, head_dim, order=order, rounding=("once", "each")[number % 2]) for _ in range(2))
    want = [emulate_norm_rope(a.get(), 11, config, norm) for a, norm in zip((q, k), norms, strict=True)]
    out = (q, k)
    if number // 2 % 2:
        out = tuple(cla.to_device(q.queue, np.full(a.shape, 7, a.dtype)) for a in (q, k))
    plan = clrope.Rope(config, q.queue).plan((q, k), 11, out=out, norm=norms)
    assert plan.variants == [variant]
    for a, b in zip(plan.run(), want, strict=True):
        assert same(a.get(), b).all()


def test_what_the_kernel_for_gpus_leaves_to_another() -> None:
    gpu = clrope.DeviceInfo("made up", kind="gpu", max_work_group_size=1024)

    def chosen(dtype: str, head_dim: int, **fields: Any) -> str:
        view = TensorView.dense((1, 4, 2, head_dim), dtype)
        pairs = PairLayout.of_config(RopeConfig("neox", fields.pop("n_dims", head_dim)), head_dim)
        elements = head_dim * (2 if fields.get("over") == "heads" else 1)
        norm = NormForm(fields.pop("over", "head"), "before", "once", 1e-6, elements)
        problem = Problem(
            view.shape, dtype, view.strides, view.strides, pairs, angles=AngleForm(exact=True), norm=norm, **fields
        )
        return select(gpu, problem, view.nbytes).kernel

    assert chosen("f16", 128) == "norm_lanes"
    assert chosen("f16", 128, over="heads") == "norm_rows"
    assert chosen("f16", 128, n_dims=8) == "norm_rows"  # 4 elements are half a vector
    assert chosen("f32", 8192) == "norm_strided"  # too long for local memory
    assert chosen("f16", 128, x_alignment=8) == "norm_rows"


@pytest.mark.one_in(8)
@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("over", ["head", "heads"])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_each_is_the_separate_calls(
    device: clrope.DeviceInfo, dtype: str, over: Any, order: Any, rng: np.random.Generator
) -> None:
    config = RopeConfig("neox", 32)
    x = drawn(rng, dtype, 1, 7, 4, 64)
    norm = norm_for(rng, 64 if over == "head" else 256, over=over, order=order, rounding="each")
    normed = clrope.rms_norm(x, norm, device=device)
    assert same(normed, emulate_rms_norm(x, norm)).all()
    if order == "before":
        want = clrope.rope(normed, 5, config, device=device)
    else:
        want = clrope.rms_norm(clrope.rope(x, 5, config, device=device), norm, device=device)
    assert same(clrope.rope(x, 5, config, device=device, norm=norm), want).all()
    once = dataclasses.replace(norm, rounding="once")
    assert same(clrope.rope(x, 5, config, device=device, norm=once), want).all() == (dtype == "f32")
    assert nmse(normed, reference.rms_norm(x, norm)) <= LIMITS.get(dtype, limit_for(dtype, x.size))


@pytest.mark.parametrize("out", [None, "in place", "given"])
def test_q_and_k_in_one_launch(device: clrope.DeviceInfo, out: Any, rng: np.random.Generator) -> None:
    """Different heads and norms, views of a fused tensor; other weights for the same call; None for one of them."""
    config = RopeConfig("neox", 64)
    fused = drawn(rng, "bf16", 2, 9, 21, 64)
    norms = [tuple(norm_for(rng, 64, rounding="each") for _ in range(2)) for _ in range(2)]
    op = clrope.Rope(config, device)
    for pair in (*norms, norms[0], (None, norms[1][1])):
        memory = fused.copy()
        before = memory.copy()
        q, k = memory[:, :, :16], memory[:, :, 16:20]
        target = {"in place": (q, k), "given": (np.full(q.shape, 7, q.dtype), np.full(k.shape, 7, k.dtype))}.get(out)
        want = [clrope.emulation.emulate_rope(a, 3, config) if n is None else emulate_norm_rope(a, 3, config, n)
                for a, n in zip((q.copy(), k.copy()), pair, strict=True)]  # fmt: skip
        got = op((q, k), 3, out=target, norm=pair)
        for a, b in zip(got, want, strict=True):
            assert same(a, b).all()
        assert target is None or all(a is b for a, b in zip(got, target, strict=True))
        unchanged = memory[:, :, 20:] if out == "in place" else memory
        assert same(unchanged, before[:, :, 20:] if out == "in place" else before).all()
        plan = op.plan((fused[:, :, :16], fused[:, :, 16:20]), 3, norm=pair)
        assert plan.launches == (1 if pair[0] is not None and not copies(device) else 2)
        for a, b in zip(plan.run(), want, strict=True):
            assert same(a, b).all()


@pytest.mark.parametrize("transfer", ["auto", "map", "copy"])
def test_plans(device: clrope.DeviceInfo, transfer: Any, rng: np.random.Generator) -> None:
    """Plans of every kind of memory keep their norms when arrays and positions change."""
    config, op = RopeConfig("normal", 32), clrope.Rope(RopeConfig("normal", 32), device)
    for norm in (norm_for(rng, 64), norm_for(rng, 64 * 6, over="heads", order="after", rounding="each")):
        x, other = drawn(rng, "f16", 2, 40, 6, 64), drawn(rng, "f16", 2, 40, 6, 64)
        plan = op.plan(x, 9, norm=norm, transfer=transfer)
        assert same(plan.run(), emulate_norm_rope(x, 9, config, norm)).all()
        assert same(plan.run(other, 1 << 19), emulate_norm_rope(other, 1 << 19, config, norm)).all()
        positions = rng.integers(0, 1000, (2, 40))
        assert same(plan.run(positions=positions), emulate_norm_rope(other, positions, config, norm)).all()


def test_layers_share_a_call(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """Norms that differ in their weights alone need no call of their own, also in several threads at a time."""
    x, config = drawn(rng, "f32", 1, 2, 4, 64), RopeConfig("neox", 64)
    norms = [Norm(rng.uniform(-1, 1, 64), 1e-6) for _ in range(12)]
    want = [emulate_norm_rope(x, 4, config, norm) for norm in norms]
    op = clrope.Rope(config, device)
    op(x, 4, norm=norms[0])
    calls = runtime_for(device).calls
    before = len(calls)

    def layers(first: int) -> None:
        for k in (*range(first, 12), *range(first)):
            assert same(op(x, 4, norm=norms[k]), want[k]).all()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(layers, 3 * k) for k in range(4)]:
            done.result()
    assert len(calls) == before
    assert same(op(x, 4), clrope.emulation.emulate_rope(x, 4, config)).all()


def test_strides_and_angles(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """Unaligned memory, other orders of axes, broadcast heads, ggml's angles, sections, far positions, odd lengths."""
    dense = drawn(rng, "f16", 2, 6, 5, 64)
    norm, over = norm_for(rng, 64), norm_for(rng, 320, over="heads", order="after")
    for config, positions in (
        (RopeConfig("normal", 64, angles="ggml"), 100), (RopeConfig("neox", 64), (1 << 40) + np.arange(6)),
        (RopeConfig("mrope", 64, sections=(8, 12, 12, 0)), rng.integers(0, 1000, (4, 2, 6))),
    ):  # fmt: skip
        shifted = aligned_memory(dense.size, dense.dtype, 1).reshape(dense.shape)
        swapped = np.empty((5, 6, 2, 64), dense.dtype).transpose(2, 1, 0, 3)
        broadcast = np.broadcast_to(dense[:, :, :1], dense.shape)
        for each in (norm, over):
            for view in (shifted, swapped):
                view[...] = dense
                got = clrope.rope(view, positions, config, device=device, norm=each)
                assert same(got, emulate_norm_rope(dense, positions, config, each)).all()
            got = clrope.rope(broadcast, positions, config, device=device, norm=each)
            assert same(got, emulate_norm_rope(broadcast, positions, config, each)).all()
    lengths = aligned_memory(3 * 20, np.float32).reshape(3, 1, 20)
    lengths[...] = drawn(rng, "f32", 1, 3, 1, 20)[0]
    short, config = norm_for(rng, 20), RopeConfig("neox", 6, n_offs=4)
    got = clrope.rope(lengths, 2, config, device=device, norm=short)
    assert same(got, emulate_norm_rope(lengths, 2, config, short)).all()


def test_values_without_a_norm(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """Zeros stay zeros; what overflows float32 as a square, and what is no number, makes its own head NaN only."""
    x = drawn(rng, "f32", 1, 4, 4, 32)
    x[0, 0] = 0
    x[0, 1, 0, 3], x[0, 2, 1, 5], x[0, 3, 2, 7] = 1e25, np.inf, np.nan
    norm, config = norm_for(rng, 32), RopeConfig("neox", 16)
    got = clrope.rope(x, 0, config, device=device, norm=norm)
    assert same(got, emulate_norm_rope(x, 0, config, norm)).all()
    assert not got[0, 0].any()
    finite = np.isfinite(got).all(axis=-1)[0]
    assert not finite[1, 0]
    assert not finite[2, 1]
    assert not finite[3, 2]
    assert np.count_nonzero(~finite) == 3


def test_opencl_arrays(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:

    config, x = RopeConfig("neox", 64), drawn(rng, "f32", 1, 3, 4, 64)
    values = rng.uniform(-1, 1, 64).astype(np.float32)
    want = emulate_norm_rope(x, 7, config, Norm(values, 1e-5))
    queue = queue_for(device)
    norm = Norm(cla.to_device(queue, values), 1e-5)
    given = cla.to_device(queue, x)
    for _ in range(2):
        assert same(clrope.rope(given, 7, config, norm=norm).get(), want).all()
    assert same(given.get(), x).all()


def test_torch(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """The weight's later values do not count."""
    torch = pytest.importorskip("torch")
    config, x = RopeConfig("neox", 64), drawn(rng, "f32", 1, 3, 4, 64)
    values = rng.uniform(-1, 1, 64).astype(np.float32)
    want = emulate_norm_rope(x, 7, config, Norm(values, 1e-5))
    parameter = torch.nn.Parameter(torch.from_numpy(values.copy()))
    norm = Norm(parameter, 1e-5)
    parameter.detach().zero_()
    assert same(clrope.rope(torch.from_numpy(x), 7, config, device=device, norm=norm).numpy(), want).all()
    half = Norm(torch.from_numpy(values).bfloat16(), 1e-5)
    assert same(half.weight, torch.from_numpy(values).bfloat16().double().numpy()).all()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"eps": 0}, "eps: got 0, a number from 6.62e-24"), ({"eps": "1e-5"}, "eps: got '1e-5'"),
        ({"eps": float("nan")}, "eps: got nan"), ({"eps": True}, "eps: got True"),
        ({"weight": np.ones((2, 4))}, "weight: got shape \\[2, 4\\]"), ({"weight": [1, 2]}, "weight: got int64"),
        ({"weight": np.ones(0)}, "weight: got shape \\[0\\]"), ({"weight_offset": 1e38}, "weight_offset: got 1e\\+38"),
        ({"over": "token"}, "over: got 'token', allowed are 'head', 'heads'"), ({"order": None}, "order: got None"),
        ({"rounding": "twice"}, "rounding: got 'twice'"),
    ],
)  # fmt: skip
def test_wrong_norms(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Norm(**{"weight": np.ones(4), "eps": 1e-5, **fields})


def test_refusals(device: clrope.DeviceInfo) -> None:
    """One error each, and the output stays as it was."""
    x, norm = np.ones((1, 2, 3, 16), np.float32), Norm(np.ones(16), 1e-5)
    out, config = np.full(x.shape, 7, np.float32), RopeConfig("neox", 16)
    long, heads = Norm(np.ones(48), 1e-5, over="heads"), Norm(np.ones(16), 1e-5, over="heads")
    head = Norm(np.ones(48), 1e-5)
    op = clrope.Rope(config, device)
    chosen = clrope.Rope(config, device, variant=op.plan(x, 0).variants[0])
    shifted = out.reshape(-1)[1:49].reshape(1, 1, 3, 16)
    for kind, text, wrong in (
        (ShapeError, "norm: got a weight of 48 elements, head_dim 16", lambda: op(x, 0, out=out, norm=head)),
        (ShapeError, "norm: got a weight of 16 elements, 3 heads", lambda: op(x, 0, out=out, norm=heads)),
        (ConfigError, "forward=False", lambda: op(x, 0, False, out, norm=norm)),
        (ConfigError, "norm: got 1 for 2 arrays", lambda: op((x, x), 0, norm=norm)),
        (ConfigError, "norm: got tuple", lambda: op(x, 0, out=out, norm=(norm,))),
        (ConfigError, "norm: got ndarray", lambda: op(x, 0, out=out, norm=norm.weight)),
        (ConfigError, "which only rotates", lambda: chosen(x, 0, out=out, norm=norm)),
        (ConfigError, "norm: got None", lambda: clrope.rms_norm(x, None, out, device=device)),
        (ShapeError, "overlaps x", lambda: op(out[:, :1], 0, out=shifted, norm=norm)),
    ):
        with pytest.raises(kind, match=text):
            wrong()
        assert (out == 7).all()
    assert same(op(x, 0, norm=long), emulate_norm_rope(x, 0, config, long)).all()
    many = cla.to_device(queue_for(device), np.ones((1, 1, 40, 1024), np.float32))[..., ::2]
    with pytest.raises(ShapeError, match="norm: a sum over 20480 elements that are not contiguous"):
        op(many, 0, norm=Norm(np.ones(20480), 1e-5, over="heads"))
    empty = np.ones((1, 0, 3, 16), np.float32)
    assert op(empty, 0, norm=norm).shape == empty.shape
