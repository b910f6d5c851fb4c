"""Random cases: they pass on right kernels, repeat by their seed, and fail on whatever is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import pytest

import clrope
import clrope.api
from clrope import DeviceError, DeviceInfo
from clrope.call.plan import Plan
from clrope.errors import RopeError
from clrope.layout import DTYPES
from clrope.mode import GGML_MODES
from clrope.suite import parse_case, rope_trial, verify
from clrope.suite.case import INTEGERS, POSITIONS, VIEWS
from clrope.suite.fuzz import FAMILY, REFUSALS, FuzzLine, FuzzTrial, case_seed, draw, fuzz_suite


@cache
def plain_seed(seed: int) -> int:
    """The next seed of a case that each device can run, out of place between guards, where each position counts."""
    for own in count(seed):
        drawn = draw(own)
        case = drawn.case
        plain = (case.type, case.angles, case.pos, case.v, case.inplace) == ("f32", "exact", "random", 0, False)
        if plain and case.fs == 1 and not drawn.refusal and drawn.size is None:
            return own
    raise AssertionError


def test_random_cases_pass_and_agree(devices: tuple[DeviceInfo, ...], seed: int) -> None:
    report = verify([fuzz_suite(16, seed)], [d.index for d in devices], seed=seed)
    assert not report.failures, [r.line for r in report.results if r.outcome.status == "fail"][:2]
    assert len(report.results) == 16 * len(devices)
    refused = sum(bool(draw(case_seed(seed, i)).refusal) for i in range(16))
    for row in report.counts():
        assert row["passed"] == row["cases"] == 16 - row["skipped"]
        assert row["refused"] == refused


def test_a_case_has_a_seed_of_its_own() -> None:
    for seed in (0, 5, 2**32 - 1):
        seeds = [case_seed(seed, index) for index in range(4 * FAMILY)]
        assert seeds[0] == seed
        assert len(set(seeds)) == len(seeds)
        assert [s // FAMILY for s in seeds] == [s // FAMILY for s in seeds[::FAMILY] for _ in range(FAMILY)]
        (line,) = fuzz_suite(1, seeds[70]).cases()
        assert line == list(fuzz_suite(71, seed).cases())[70]
        assert line.label.split(" # ")[1].startswith(f"clrope verify --fuzz 1 --seed {seeds[70]}")


def test_everything_is_drawn() -> None:
    """And each drawn case can be written, read back and computed."""
    drawn = [draw(seed) for seed in range(0, 40 * 600, 40)]
    cases = [d.case for d in drawn]
    assert {c.type for c in cases} == set(DTYPES)
    assert {c.mode for c in cases} == set(GGML_MODES.values())
    assert {c.pos for c in cases} == set(POSITIONS)
    assert {c.pt for c in cases} == set(INTEGERS)
    assert {c.v for c in cases} == set(VIEWS)
    assert {d.refusal for d in drawn} == {"", *REFUSALS}
    assert {d.size for d in drawn} == {None, "medium", "large"}
    assert {len(c.lo) for c in cases} == {3, 4}
    assert all(any(c.n_dims < c.ne_a[0] for c in cases if c.mode == mode) for mode in (0, 2, 8, 40))
    assert any(c.n_offs for c in cases)
    assert any(c.ef for c in cases)
    for case in cases:
        assert parse_case(str(case)) == case
        case.config(None).for_head_dim(case.ne_a[0])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", list(REFUSALS))
def test_wrong_calls_are_refused(name: str, device: DeviceInfo, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = FuzzTrial(plain_seed(seed))
    trial.refusal = name
    outcome = trial.run(device)
    assert outcome.refused, outcome
    monkeypatch.setattr(clrope.api, "rope", lambda **call: None)
    assert trial.run(device).detail == f"not refused: {name}"


def _accepts_nothing(real: Any, x: Any, **call: Any) -> Any:
    raise DeviceError("the device has gone")


def _one_value(real: Any, x: Any, **call: Any) -> Any:
    result = real(x, **call)
    for a in result if isinstance(result, tuple) else (result,):
        if isinstance(a, np.ndarray):
            a[(0,) * a.ndim] = 7
    return result


def _stray(real: Any, x: Any, **call: Any) -> Any:
    result = real(x, **call)
    base = call["out"][0] if isinstance(call["out"], tuple) else call["out"]
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    if isinstance(base, np.ndarray):
        base[(0,) * base.ndim] = 7
        base[(-1,) * base.ndim] = 7
    return result


def _spoils_input(real: Any, x: Any, **call: Any) -> Any:
    result = real(x, **call)
    a = x[0] if isinstance(x, tuple) else x
    if isinstance(a, np.ndarray):
        a[(0,) * a.ndim] = 7
    return result


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (_accepts_nothing, "NumPy arrays, given output: DeviceError: the device has gone; "),
        (_one_value, "NumPy arrays, new output: the bits are not NumPy's: "),
        (_stray, "NumPy arrays, given output: 2 elements outside the output changed"),
        (_spoils_input, "NumPy arrays, given output: 1 elements of the input changed"),
    ],
)
def test_whatever_is_wrong_fails(
    wrong: Callable[..., Any], message: str, device: DeviceInfo, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = clrope.api.rope
    monkeypatch.setattr(clrope.api, "rope", lambda x, **call: wrong(real, x, **call))
    own = plain_seed(seed)
    (result,) = verify([fuzz_suite(1, own)], [device.index], seed=own).results
    assert result.outcome.status == "fail"
    assert re.search(message, result.outcome.detail), result.line
    assert f"clrope verify --fuzz 1 --seed {own}" in result.line
    monkeypatch.undo()
    assert FuzzTrial(own).run(device).status == "ok"


def test_a_plan_that_does_not_move_fails(device: DeviceInfo, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Plan.run
    monkeypatch.setattr(Plan, "run", lambda self, x=None, positions=None, **more: real(self, x, **more))
    trial = FuzzTrial(plain_seed(seed))
    trial.other = trial.positions + 1
    outcome = trial.run(device)
    assert outcome.status == "fail"
    assert "given output" not in outcome.detail
    assert "NumPy arrays, plan: " in outcome.detail
    assert "OpenCL arrays, plan: the bits are not NumPy's" in outcome.detail


def test_a_wrong_arithmetic_fails_on_all_devices(
    devices: tuple[DeviceInfo, ...], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = rope_trial.emulate_rope
    monkeypatch.setattr(
        rope_trial, "emulate_rope", lambda x, positions, *rest, **more: real(x, positions + 1, *rest, **more)
    )
    own = plain_seed(seed)
    report = verify([fuzz_suite(1, own)], [d.index for d in devices], seed=own)
    assert len(report.differing) == 1
    assert f"--seed {own}" in report.differing[0]
    assert [r.outcome.status for r in report.results] == ["fail"] * len(devices)


def test_an_unexpected_refusal_fails(device: DeviceInfo, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, *_: Any, **__: Any) -> None:
        raise RopeError("not today")

    monkeypatch.setattr(clrope.Rope, "__call__", refuse)
    outcome = FuzzTrial(plain_seed(seed)).run(device)
    assert outcome.status == "fail"
    assert "NumPy arrays, given output: RopeError: not today" in outcome.detail


def test_packed_positions_are_given_as_bounds(device: DeviceInfo, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = next(
        s for s in count(seed)
        for drawn in [draw(s)]
        if drawn.case.pos == "packed" and drawn.case.type != "f64" and not drawn.refusal and drawn.size is None
    )  # fmt: skip
    trial = FuzzTrial(packed)
    seen: list[Any] = []
    real = clrope.api.rope

    def noted(x: Any, **call: Any) -> Any:
        seen.append(call)
        return real(x, **call)

    monkeypatch.setattr(clrope.api, "rope", noted)
    assert trial.run(device).status == "ok"
    assert seen
    assert all(call["positions"] is None and len(call["cu_seqlens"]) >= 2 for call in seen)
    assert FuzzLine(packed).prepare(0).digest == trial.digest
