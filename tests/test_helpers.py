"""The assertion helper fails when it should, and its message repeats the case."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import helpers
import ml_dtypes
import numpy as np
import pytest
from helpers import POISON, Built, Case, View, assert_rotated, line, touched

import clrope
from clrope.emulation import emulate_rope

CASE = Case(
    {"mode": "neox", "n_dims": 8, "attn_factor": 1.25}, (2, 3, 2, 12), "f16",
    x=View((1, 2, 1, 1), (0, 1, 2, 4), before=5), out=View((1, 1, 2, -1), before=7), seed=3,
)  # fmt: skip


def emulated(case: Case) -> tuple[Any, Built]:
    """What a right device does, without a device."""
    built = case.build()
    config = clrope.RopeConfig.from_dict(case.config)
    want = emulate_rope(built.x, built.positions, config, case.forward, case.layout)
    if built.out is None:
        return want, built
    built.out[...] = want
    return built.out, built


@pytest.mark.parametrize("out", [None, "in place", CASE.out])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_right_results_pass(dtype: str, out: Any) -> None:
    case = dataclasses.replace(CASE, dtype=dtype, out=out)
    got, built = emulated(case)
    assert_rotated(got, built)


@pytest.mark.parametrize("place", [(0, 0, 0, 0), (1, 2, 1, 7), (1, 2, 1, 11)])
def test_a_wrong_element_fails(place: tuple[int, ...]) -> None:
    got, built = emulated(CASE)
    helpers.bits(got)[place] ^= 1
    with pytest.raises(
        AssertionError, match=re.escape(f"1 of 144 elements differ from the emulation, first at {list(place)}")
    ):
        assert_rotated(got, built)


def test_an_output_that_was_not_written_fails() -> None:
    got, built = emulated(CASE)
    got[1, 2, 1, 5:8] = np.full(2, POISON, np.uint8).view(np.float16)[0]
    with pytest.raises(AssertionError, match=r"3 of 144 .* 3 still hold what was there before the call"):
        assert_rotated(got, built)


def test_poison_does_not_pass_for_nan() -> None:
    built = dataclasses.replace(CASE, out=None, values="bits").build()
    built.x[...] = built.x_before[...] = np.nan
    poisoned = np.full(built.x.nbytes, POISON, np.uint8).view(np.float16).reshape(built.x.shape)
    built.parent_before = built.parent.copy()
    with pytest.raises(AssertionError, match="144 of 144 elements differ"):
        assert_rotated(poisoned, built)


def test_copied_bits_of_nan_count() -> None:
    case = dataclasses.replace(CASE, out=None, values="bits")
    built = case.build()
    helpers.bits(built.x)[0, 0, 0, 11] = 0x7E01
    built.x_before, built.parent_before = built.x.copy(), built.parent.copy()
    config = clrope.RopeConfig.from_dict(case.config)
    got = emulate_rope(built.x, built.positions, config)
    assert_rotated(got, built)
    helpers.bits(got)[0, 0, 0, 11] = 0x7E02
    with pytest.raises(AssertionError, match=r"first at \[0, 0, 0, 11\]"):
        assert_rotated(got, built)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
def test_a_wrong_dtype_fails(dtype: Any) -> None:
    got, built = emulated(CASE)
    with pytest.raises(AssertionError, match=f"the result has dtype {np.dtype(dtype)}"):
        assert_rotated(got.astype(dtype), built)


def test_a_wrong_shape_or_kind_fails() -> None:
    got, built = emulated(CASE)
    with pytest.raises(AssertionError, match=r"the result has shape \[2, 3, 2, 11\]"):
        assert_rotated(got[..., :11], built)
    with pytest.raises(AssertionError, match="the result is a list"):
        assert_rotated(got.tolist(), built)


@pytest.mark.parametrize("out", [None, "in place", CASE.out])
def test_a_byte_outside_a_view_fails(out: Any) -> None:
    for name in ("parent", "out_parent"):
        got, built = emulated(dataclasses.replace(CASE, out=out))
        memory = getattr(built, name)
        if memory is None:
            continue
        view = built.x if name == "parent" else built.out
        assert view is not None
        for place in (0, int(np.argmin(touched(memory, view))), memory.size - 1):
            if touched(memory, view)[place]:
                continue
            memory.view(np.uint8)[place * memory.itemsize] ^= 0x80
            with pytest.raises(AssertionError, match=f"element {place} of the memory of (x|out) was changed"):
                assert_rotated(got, built)
            memory.view(np.uint8)[place * memory.itemsize] ^= 0x80
        assert_rotated(got, built)


def test_an_input_changed_out_of_place_fails() -> None:
    got, built = emulated(dataclasses.replace(CASE, out=None))
    helpers.bits(built.x)[1, 1, 1, 1] ^= 1
    with pytest.raises(AssertionError, match="of the memory of x was changed"):
        assert_rotated(got, built)


@pytest.mark.parametrize(("tokens", "limit"), [(3, "2.38e-07"), (30, "6e-08")])
def test_an_emulation_that_is_wrong_is_seen_by_the_oracle(
    monkeypatch: pytest.MonkeyPatch, tokens: int, limit: str
) -> None:
    got, built = emulated(dataclasses.replace(CASE, shape=(2, tokens, 2, 12)))
    wrong = built.x_before.copy()
    monkeypatch.setattr(helpers, "emulate_rope", lambda *_: wrong)
    with pytest.raises(AssertionError, match=rf"NMSE [\d.]+ against the oracle, {limit} is allowed"):
        assert_rotated(wrong, built)
    assert got is not wrong


def test_the_message_repeats_the_case() -> None:
    got, built = emulated(CASE)
    helpers.bits(got)[0, 0, 0, 0] ^= 1
    with pytest.raises(AssertionError) as caught:
        assert_rotated(got, built)
    text = str(caught.value)
    assert f"strides {built.x.strides}, result strides {built.out.strides}, seed 3" in text
    repeat = text.partition("repeat: ")[2]
    assert repeat == line(CASE, None)
    seen: list[Case] = []
    pasted = repeat.replace("run(", "keep(").replace("View, run", "View")
    exec(pasted, {"keep": seen.append})
    assert seen == [CASE]
    again = seen[0].build()
    assert (helpers.bits(again.parent) == helpers.bits(built.parent_before)).all()
    assert (again.positions == built.positions).all()


def test_the_line_runs(device: clrope.DeviceInfo) -> None:
    exec(line(CASE, device), {})


def test_views_lie_where_they_say(rng: np.random.Generator) -> None:
    for _ in range(50):
        rank = int(rng.integers(3, 5))
        shape = tuple(int(n) for n in rng.integers(1, 4, rank))
        view = View(
            tuple(int(n) for n in rng.choice([-3, -2, -1, 1, 2, 3], rank)),
            tuple(int(n) for n in rng.integers(0, 3, rank)),
            tuple(int(n) for n in rng.permutation(rank)), int(rng.integers(0, 5)),
        )  # fmt: skip
        parent, x = view.place(shape, np.dtype(np.float32))
        assert x.shape == shape
        assert np.shares_memory(parent, x)
        assert not x.flags.owndata
        x[...] = np.arange(x.size).reshape(shape)
        assert int(touched(parent, x).sum()) == x.size
        assert (helpers.bits(parent)[~touched(parent, x)] == 0x5A5A5A5A).all()
        for stride, step, n in zip(x.strides, view.steps, shape, strict=True):
            assert n == 1 or (stride > 0) == (step > 0)
