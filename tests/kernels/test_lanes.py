"""The kernel for GPUs: which memory its work-items touch together, and its results on every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import copies

import clrope
from clrope import RopeConfig
from clrope.device import DeviceInfo
from clrope.emulation import emulate_rope
from clrope.kernels import lanes, norm_lanes
from clrope.kernels.kernel import Kernel
from clrope.kernels.launch import LaunchSpec
from clrope.kernels.problem import AngleForm, Pairing, PairLayout, Problem
from clrope.kernels.variant import STRIDED, Variant
from clrope.layout import DTYPES, Shape4, TensorView
from clrope.norm import NormForm

SEGMENT = 128
GPU = DeviceInfo("made up", kind="gpu", compute_units=16, max_work_group_size=1024)


def problem(dtype: str, mode: Pairing, shape: Shape4, n_dims: int, n_offs: int = 0, **changes: Any) -> Problem:
    view = TensorView.dense(shape, dtype)
    pairs = PairLayout.of_config(RopeConfig(mode, n_dims, n_offs=n_offs), shape[3])
    return Problem(view.shape, dtype, view.strides, view.strides, pairs, angles=AngleForm(exact=True), **changes)


def number(spec: LaunchSpec, name: str) -> int:
    return int(next(value for other, value in spec.arguments if other == name))


def option(spec: LaunchSpec, name: str) -> int:
    return int(next(o for o in spec.options if o.startswith(f"-D{name}=")).partition("=")[2])


def accesses(spec: LaunchSpec, at: Problem, items: np.ndarray) -> list[np.ndarray]:
    """The bytes at which work-items begin to touch memory, by instruction, as lanes.cl computes them; -1: none."""
    pairs, width, run = at.pairs, option(spec, "W"), option(spec, "RUN")
    count, groups, heads = lanes.lanes_of_head(at), number(spec, "groups"), number(spec, "heads")
    token, lane, group = items // (count * groups), items % count, items // count % groups
    rotates = lane < pairs.pairs // width
    copied = (lane - pairs.pairs // width) * run
    rotated = pairs.window + lane * width * (2 if pairs.pairing == "normal" else 1)
    place = np.where(rotates, rotated, np.where(copied < pairs.window, copied, copied + 2 * pairs.pairs))
    out = []
    for round_number in range(-(-heads // groups)):
        head = group + round_number * groups
        alive = (token < at.shape[1]) & (head < heads)
        begin = (token * at.x_strides[1] + head * at.x_strides[2] + place) * at.itemsize
        out.append(np.where(alive, begin, -1))
        if pairs.pairing == "neox":
            out.append(np.where(alive & rotates, begin + pairs.pairs * at.itemsize, -1))
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize("kernel", [lanes.KERNEL, norm_lanes.KERNEL], ids=lambda kernel: kernel.name)
def test_32_work_items_touch_as_few_segments_as_their_bytes_need(
    dtype: str, mode: Pairing, head_dim: int, heads: int, kernel: Kernel
) -> None:
    norm = NormForm("head", "before", "once", 1e-6, head_dim) if kernel is norm_lanes.KERNEL else None
    at = problem(dtype, mode, (1, 5, heads, head_dim), head_dim, norm=norm)
    if lanes.supports(at, {"angles": "fused"}):
        assert head_dim // 2 * at.itemsize % 16, "halves of whole vectors are supported"
        return
    spec = Variant(kernel).spec(at, GPU)
    touched = np.zeros(5 * heads * head_dim * at.itemsize, np.int32)
    for first in range(0, spec.global_size[0], 32):
        for places in accesses(spec, at, np.arange(first, first + 32)):
            begins = np.sort(places[places >= 0])
            for begin in begins:
                touched[begin : begin + 16] += 1
            # Places that follow each other are a run; no run can do with fewer segments than its first to its last.
            runs = np.split(begins, np.flatnonzero(np.diff(begins) != 16) + 1) if begins.size else []
            least = len({s for run in runs for s in range(run[0] // SEGMENT, (run[-1] + 15) // SEGMENT + 1)})
            assert len({p // SEGMENT for p in begins}) == least
            # A run is a whole half of a head (normal: what 32 vectors hold), so no segment is touched for a part of it.
            half = head_dim * at.itemsize // (2 if mode == "neox" else 1)
            assert len(runs) <= -(-32 * 16 // half) + 1
    assert (touched == 1).all(), "each byte is loaded once"


@pytest.mark.one_in(12)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize(("head_dim", "n_dims", "n_offs"), [(128, 128, 0), (96, 64, 32)])
@pytest.mark.parametrize("angles", ["fused", "cached"])
def test_the_bits_are_those_of_numpy(
    dtype: str, mode: Pairing, head_dim: int, n_dims: int, n_offs: int, angles: str,
    device: clrope.DeviceInfo, rng: np.random.Generator,
) -> None:  # fmt: skip
    if dtype == "f64" and not device.fp64:
        pytest.skip("no float64")
    config = RopeConfig(mode, n_dims, n_offs=n_offs)
    q, k = (rng.uniform(-1, 1, (2, 5, heads, head_dim)).astype(DTYPES[dtype]) for heads in (5, 2))
    positions = rng.integers(0, 100_000, 5)
    op = clrope.Rope(config, device, variant=Variant("lanes", heads_per_item=2, angles=angles))
    plan = op.plan((q, k), positions)
    assert [spec.function for spec in plan.specs] == ["rope_rotate_lanes"] * (2 if copies(device) else 1)
    bits = f"u{q.dtype.itemsize}"
    for x, y in zip((q, k), plan.run(), strict=True):
        assert np.array_equal(y.view(bits), emulate_rope(x, positions, config).view(bits))


def test_what_it_does_not_support_takes_tables_or_another_kernel() -> None:
    at = problem("f16", "neox", (1, 4, 2, 128), 128)
    wanted = Variant("lanes")
    assert wanted.fit(at) == wanted
    tables = problem("f16", "neox", (1, 4, 2, 128), 128)
    assert wanted.fit(Problem(**{**vars(tables), "angles": AngleForm()})) == wanted.changed(angles="cached")
    for other in (
        problem("f16", "neox", (1, 4, 2, 72), 72),  # 36 elements are 4.5 vectors
        problem("f16", "neox", (1, 4, 2, 128), 128, x_alignment=8),
        problem("f16", "neox", (1, 4, 2, 132), 128),  # the second head begins between two vectors
    ):
        assert wanted.fit(other) == STRIDED
    assert "aligned to 8" in str(wanted.unsupported(problem("f16", "neox", (1, 4, 2, 128), 128, y_alignment=8)))


def test_sizes_are_whole_groups_and_long_indices_only_where_they_are_needed() -> None:
    spec = Variant("lanes").spec(problem("f32", "neox", (3, 7, 5, 128), 128), GPU)
    assert spec.local_size == (128, 1)
    assert spec.global_size[0] % 128 == 0
    assert spec.global_size[1] == 3
    assert "-DINDEX=int" in spec.options
    far: Shape4 = (1 << 32, 1 << 20, 128, 1)
    at = problem("f32", "neox", (3, 7, 5, 128), 128)
    assert "-DINDEX=long" in Variant("lanes").spec(Problem(**{**vars(at), "x_strides": far}), GPU).options
