"""Random configurations, shapes, strides, positions, types, letters and directions (Hypothesis)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import Case, View, bits, examples, run, same, with_largest_allocation
from hypothesis import given
from hypothesis import strategies as st

import clrope
from clrope import RopeConfig
from clrope.emulation import emulate_rope
from clrope.layout import canonical
from clrope.reference import pair_indices

TYPES = ["f16", "bf16", "f32", "f64"]
POSITION_TYPES = ["int64", "int32", "uint8", "int16", "uint64", "int8", "uint16", "uint32"]
#: Half a unit of the last place, relative.
HALF_ULP = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53}

floats = lambda low, high: st.floats(low, high, allow_nan=False, width=32)  # noqa: E731
even = lambda low, high: st.integers(low // 2, high // 2).map(lambda n: 2 * n)  # noqa: E731


@st.composite
def configs(draw: st.DrawFn, head_dim: int, modes: tuple[str, ...] | None = None) -> dict[str, Any]:
    """A configuration that fits heads of head_dim elements."""
    allowed = modes or ("normal", "neox", "mrope", "imrope", *(["vision"] if head_dim % 4 == 0 else []))
    fields: dict[str, Any] = {"mode": draw(st.sampled_from(allowed))}
    if fields["mode"] == "vision":
        pairs = head_dim // 2
    else:
        fields["n_dims"] = draw(even(2, head_dim))
        fields["n_offs"] = draw(even(0, head_dim - fields["n_dims"]))
        pairs = fields["n_dims"] // 2
    if fields["mode"] in ("mrope", "imrope", "vision"):
        sections = st.tuples(*[st.integers(0, 9)] * 4)
        fields["sections"] = draw(sections.filter(lambda s: any(s[:3])))
    if draw(st.booleans()):
        fields["freq_base"] = draw(st.sampled_from([10000.0, 500000.0, 1e6, 100.0]) | floats(1.0625, 1e7))
    if draw(st.booleans()):
        fields["freq_scale"] = draw(floats(0.015625, 4.0))
    if draw(st.booleans()):
        fields["attn_factor"] = draw(floats(0.25, 2.0))
    if draw(st.booleans()):
        fields["freq_factors"] = draw(st.lists(floats(0.5, 32.0), min_size=pairs, max_size=pairs + 2))
    if draw(st.integers(0, 2)) == 0:
        fields["ext_factor"] = draw(floats(0.0625, 1.0))
        fields["n_ctx_orig"] = draw(st.sampled_from([0, 128, 4096, 131072]))
        fields["beta_fast"], fields["beta_slow"] = draw(st.sampled_from([(32.0, 1.0), (1.0, 1.0), (4.0, 0.5)]))
    return fields


@st.composite
def views(draw: st.DrawFn, rank: int) -> View:
    if draw(st.integers(0, 3)) == 0:
        return View()
    element = st.just(1) if draw(st.booleans()) else st.sampled_from([1, -1, 2, -3])
    steps = [draw(st.sampled_from([1, 1, 2, -1, -2, 3])) for _ in range(rank - 1)]
    return View(
        (*steps, draw(element)), tuple(draw(st.integers(0, 3)) for _ in range(rank)),
        tuple(draw(st.permutations(range(rank)))), draw(st.integers(0, 9)),
    )  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rank = draw(st.sampled_from([3, 4, 4]))
    lengths = {"b": draw(st.integers(1, 3)), "s": draw(st.integers(1, 5)), "n": draw(st.integers(1, 4))}
    lengths["d"] = draw(st.integers(2, 40))
    layout = "".join(draw(st.permutations("bsnd"))) if draw(st.booleans()) else "bsnd"
    letters = layout if rank == 4 else layout.replace("b", "")
    fields = draw(configs(lengths["d"]))
    batch = lengths["b"] if rank == 4 else 1
    forms = ["int", "S", "1S"]
    if "sections" in fields:
        forms += ["3S", "4S"] + (["3BS", "4BS"] if rank == 4 else [])
    else:
        forms += ["BS"] if rank == 4 else []
    if rank == 4 and batch != lengths["s"]:
        forms.append("B")
    reach = draw(st.sampled_from([512, 131072, 2**31, 2**63]))
    if draw(st.integers(0, 4)) == 0:
        fields["angles"] = "ggml"
    return Case(
        config=fields, shape=tuple(lengths[c] for c in letters), dtype=draw(st.sampled_from(TYPES)), layout=layout,
        positions=draw(st.sampled_from(forms)),
        position_dtype=draw(st.sampled_from(POSITION_TYPES)),
        low=-reach, high=reach - 1, forward=draw(st.booleans()), x=draw(views(rank)),
        out=draw(st.sampled_from([None, "in place"]) | views(rank)),
        values=draw(st.sampled_from(["uniform", "uniform", "bits"])), seed=draw(st.integers(0, 2**32 - 1)),
    )  # fmt: skip


@pytest.mark.one_in(8)
@examples(200)
@given(case=cases())
def test_every_case_equals_the_emulation(device: clrope.DeviceInfo, case: Case) -> None:
    """Bits of the emulation, error within bounds of the oracle, memory around untouched."""
    run(case, device)


@pytest.mark.one_in(6)
@given(case=cases(), transfer=st.sampled_from(["map", "copy"]), limit=st.integers(1, 6))
def test_chunks_change_nothing(device: clrope.DeviceInfo, case: Case, transfer: Any, limit: int) -> None:
    built, whole = (replace(case, out=None).build() for _ in range(2))
    config = RopeConfig.from_dict(case.config)
    target = with_largest_allocation(device, 4 * 4096 + built.parent.nbytes // limit)
    op = clrope.Rope(config, target)
    try:
        plan = op.plan(built.x, built.positions, forward=case.forward, layout=case.layout, transfer=transfer)
    except clrope.DeviceError as error:
        # Elements of one token far apart: no smaller cut is possible where memory is used in place.
        if transfer == "map" and "one token alone does not fit" in str(error):
            return
        raise
    got = plan.run()
    want = clrope.rope(whole.x, whole.positions, config, case.forward, layout=case.layout, device=device.index)
    assert same(got, want).all(), case


@pytest.mark.one_in(16)
@given(case=cases())
def test_back_is_the_transpose(device: clrope.DeviceInfo, case: Case) -> None:
    """back(forward(x)) is magnitude² x, within what rounding twice allows."""
    built = replace(case, out=None, values="uniform").build()
    config = RopeConfig.from_dict(case.config).for_head_dim(case.length("d"))
    there = clrope.rope(built.x, built.positions, config, layout=case.layout, device=device.index)
    back = clrope.rope(there, built.positions, config, False, layout=case.layout, device=device.index)
    first, second = pair_indices(config)
    x, y = (canonical(a, case.layout).astype(np.float64) for a in (built.x_before, back))
    table = clrope.angles.angle_table(config)
    magnitude = float(table.ggml.magnitude) if config.angles == "ggml" else table.magnitude
    length = np.sqrt(x[..., first] ** 2 + x[..., second] ** 2)
    # cos and sin are right to 1e-7 of the magnitude, one side; results are rounded to the type twice.
    allowed = magnitude**2 * length * (4 * HALF_ULP[case.dtype] + (1e-6 if case.dtype != "f64" else 1e-14))
    if case.dtype == "f16":
        allowed = allowed + 2.0**-24  # subnormals
    for index in (first, second):
        assert (np.abs(y[..., index] - magnitude**2 * x[..., index]) <= allowed).all(), case
    rest = np.setdiff1d(np.arange(case.length("d")), np.concatenate([first, second]))
    assert (y[..., rest] == x[..., rest]).all(), case


@pytest.mark.one_in(10)
@examples(40)
@given(data=st.data(), shift=st.integers(-(2**30), 2**30), seed=st.integers(0, 2**32 - 1))
def test_scores_depend_on_distance_only(device: clrope.DeviceInfo, data: st.DataObject, shift: int, seed: int) -> None:
    """q·k after rotation is unchanged when both positions move by as much."""
    rng = np.random.default_rng(seed)
    head_dim = data.draw(even(4, 64))
    config = RopeConfig.from_dict(data.draw(configs(head_dim)))
    q, k = rng.uniform(-1, 1, (2, 6, 1, head_dim))
    at, behind = rng.integers(-(2**30), 2**30, (2, 6))
    scores = []
    for move in (0, shift):
        rotated = [clrope.rope(t, p + move, config, device=device.index) for t, p in ((q, at), (k, behind))]
        scores.append((rotated[0] * rotated[1]).sum(axis=(1, 2)))
    np.testing.assert_allclose(scores[0], scores[1], rtol=0, atol=1e-12 * head_dim)


@examples(40)
@given(case=cases())
def test_position_0_only_scales(device: clrope.DeviceInfo, case: Case) -> None:
    case = replace(case, out=None, values="uniform", positions="S", low=0, high=0)
    built = case.build()
    config = RopeConfig.from_dict(case.config).for_head_dim(case.length("d"))
    got = clrope.rope(built.x, built.positions, config, case.forward, layout=case.layout, device=device.index)
    real = np.float64 if case.dtype == "f64" else np.float32
    table = clrope.angles.angle_table(config)
    magnitude = real(table.ggml.magnitude if config.angles == "ggml" else table.magnitude)
    want = np.array(built.x_before, order="C")
    part = canonical(want, case.layout)
    index = np.concatenate(pair_indices(config))
    part[..., index] = (part[..., index].astype(real) * magnitude).astype(want.dtype)
    assert ((bits(got) == bits(want)) | (got == want)).all(), case  # 0 and -0 are one


@pytest.mark.one_in(12)
@examples(40)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1), mode=st.sampled_from(["mrope", "imrope"]))
def test_text_in_section_modes_is_neox(device: clrope.DeviceInfo, data: st.DataObject, seed: int, mode: str) -> None:
    """Positions alike on all axes: sections make no difference."""
    rng = np.random.default_rng(seed)
    fields = data.draw(configs(24, (mode,)))
    plain = {**fields, "mode": "neox", "sections": None}
    x = rng.uniform(-1, 1, (2, 4, 2, 24)).astype(np.float32)
    positions = rng.integers(-(2**31), 2**31, 4)
    want = clrope.rope(x, positions, RopeConfig.from_dict(plain), device=device.index)
    for form in (positions, np.tile(positions, (4, 1)), np.tile(positions, (3, 2, 1))):
        assert same(clrope.rope(x, form, RopeConfig.from_dict(fields), device=device.index), want).all()


@given(case=cases())
def test_the_emulation_is_near_the_reference(case: Case) -> None:
    """Without any device: two ways of computing, float64 and float32, agree for every case."""
    built = replace(case, values="uniform").build()
    config = RopeConfig.from_dict(case.config)
    got = emulate_rope(built.x, built.positions, config, case.forward, case.layout).astype(np.float64)
    want = clrope.reference.rope(built.x, built.positions, config, case.forward, case.layout)
    scale = max(1.0, abs(clrope.angles.magnitude_of(config.for_head_dim(case.length("d")))))
    allowed = scale * (2 * HALF_ULP[case.dtype] + (1e-6 if case.dtype != "f64" else 1e-14))
    assert np.abs(got - want).max() <= allowed, case
