"""Suites on devices: right kernels pass, wrong ones do not, whatever is wrong with them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import clrope
import clrope.api
from clrope import DeviceError, DeviceInfo
from clrope.device.info import Health, absent
from clrope.emulation import emulate_rope
from clrope.suite import conformance, ggml_live, parse_case, verify
from clrope.suite.case_outcome import CaseOutcome, nmse_text
from clrope.suite.conformance import Report
from clrope.suite.grids.types import TypeLine
from clrope.suite.rope_trial import CaseLine, RopeTrial
from clrope.suite.wide_values import pairwise_error
from clrope.testing import digest_of, limit_for, nmse

LINE = "ROPE(type=f32,ne_a=[128,40,2,1],n_dims=128,mode=0,n_ctx=512,fs=1.000000,ef=0.000000,af=1.000000,ff=0,v=0)"
PARTIAL = LINE.replace("[128,40,2,1]", "[80,32,2,1]").replace("n_dims=128,mode=0", "n_dims=20,mode=2")

#: A handful of each suite: enough to see that all of it is wired.
SAMPLES = [
    ("seed", "ne_a=[80,32,2,1]"),
    ("ggml", "ne_a=[128,12,2,1] type=f16"),
    ("ggml", "inplace=1 type=f32 ff=1"),
    ("modes", "pos=far"),
    ("modes", "n_offs=20"),
    ("modes", "pos=three"),
    ("types", "type=f16"),
    ("types", "type=bf16"),
    ("layouts", "v=3"),
    ("layouts", "v=5"),
    ("fusion", "type=bf16"),
    ("fusion", "ne=[128,4,2,1]"),
    ("fusion", "ne_a=[128,32,8,3]"),
    ("fusion", "form=HND"),
    ("models", "head_dim=64 type=f16"),
    ("models", "name=deepseek"),
    ("models", "name=qwen"),
]


@pytest.mark.one_in(34)
@pytest.mark.parametrize(("name", "text"), SAMPLES)
def test_suites_pass_on_every_device(name: str, text: str, devices: tuple[DeviceInfo, ...], seed: int) -> None:
    print(f"seed {seed}")
    report = verify([name], [d.index for d in devices], seed=seed, text=text)
    assert report.results
    assert len(report.results) % len(devices) == 0
    bad = [r.line for r in report.results if r.outcome.status != "ok"]
    assert not bad, bad[:3]
    assert report.shared == len(report.results) // len(devices)
    assert not report.differing
    assert report.ok


def test_the_seed_grid_passes_whole(device: DeviceInfo, seed: int) -> None:
    report = verify(["seed"], [device.index], seed=seed)
    (count,) = report.counts()
    assert (count["passed"], count["cases"], count["skipped"]) == (96, 96, 0)
    for result in report.results:
        assert result.outcome.nmse is not None
        assert result.outcome.nmse <= (1e-12 if "type=f32" in result.case else 1e-7)


Rope = Callable[..., Any]


def _nothing(real: Rope, x: Any, positions: Any, config: Any, forward: bool, **rest: Any) -> None:
    """A kernel that does not run."""


def _backwards(real: Rope, x: Any, positions: Any, config: Any, forward: bool, **rest: Any) -> None:
    real(x, positions, config, not forward, **rest)


def _shifted(real: Rope, x: Any, positions: Any, config: Any, forward: bool, **rest: Any) -> None:
    real(x, positions + 1, config, forward, **rest)


def _halved(real: Rope, x: Any, positions: Any, config: Any, forward: bool, **rest: Any) -> None:
    rough = (
        [a.astype(np.float16).astype(a.dtype) for a in x] if isinstance(x, tuple) else x.astype("f2").astype(x.dtype)
    )
    real(rough, positions, config, forward, **rest)


def _one_value(real: Rope, x: Any, positions: Any, config: Any, forward: bool, **rest: Any) -> None:
    real(x, positions, config, forward, **rest)
    rest["out"].flat[rest["out"].size // 2] = np.nan


def _stray(real: Rope, x: Any, positions: Any, config: Any, forward: bool, **rest: Any) -> None:
    real(x, positions, config, forward, **rest)
    base = rest["out"]
    while base.base is not None:
        base = base.base
    base[-1] = 7


def _spoils_input(real: Rope, x: Any, positions: Any, config: Any, forward: bool, **rest: Any) -> None:
    real(x, positions, config, forward, **rest)
    x[0, 0, 0, 0] += 1


def _raises(real: Rope, x: Any, positions: Any, config: Any, forward: bool, **rest: Any) -> None:
    raise DeviceError("the device has gone")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (_nothing, "NMSE inf, limit 1e-12"),
        (_backwards, r"NMSE 1\.\d+, limit|NMSE 0\.\d+, limit"),
        (_shifted, r"NMSE 0\.\d+, limit"),
        (_halved, r"NMSE [\d.e-]+, limit"),
        (_one_value, "NMSE inf, limit"),
        (_stray, "1 elements outside the output changed"),
        (_spoils_input, "1 elements of the input changed"),
        (_raises, "FAIL, the device has gone$"),
    ],
)
def test_whatever_is_wrong_fails(
    wrong: Callable[..., None], message: str, device: DeviceInfo, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    real = clrope.api.rope
    monkeypatch.setattr(clrope.api, "rope", lambda *given, **rest: wrong(real, *given, **rest))
    report = verify(["seed"], [device.index], seed=seed, text="[128,40,2,1] type=f32 ff=0")
    (result,) = report.results
    assert result.case == LINE
    assert result.outcome.status == "fail"
    assert re.search(message, result.line), result.line
    assert result.line.startswith(f"{LINE} # ")
    assert not report.ok
    assert "1 of 1 results failed" in report.failures


@pytest.mark.parametrize(
    ("kind", "lengths"),
    [("f16", "2,1,1,1"), ("f16", "4,1,1,1"), ("bf16", "2,1,1,1"), ("f8e5m2", "2,1,1,1"), ("f8e4m3", "8,2,2,1")],
)
def test_right_bits_of_a_few_elements_pass_and_wrong_ones_do_not(kind: str, lengths: str) -> None:
    text = LINE.replace("f32", kind).replace("128,40,2,1", lengths)
    case = parse_case(text.replace("n_dims=128,mode=0", f"n_dims={lengths[0]},mode=2"))
    for seed in range(100):
        trial = RopeTrial(case, seed)
        (x,) = trial.x.views
        right = emulate_rope(x, trial.positions, trial.config)
        assert trial.check([right], []).status == "ok", seed
        for wrong in (-right, 0 * right, np.full_like(right, np.nan)):
            assert trial.check([wrong], []).status == "fail", seed


def _zero_one_pair(y: np.ndarray, want: np.ndarray) -> None:
    y[0, 3, 1, [5, 37]] = 0


def _other_signs(y: np.ndarray, want: np.ndarray) -> None:
    y[np.isinf(y)] *= -1


def _one_other_sign(y: np.ndarray, want: np.ndarray) -> None:
    y[tuple(np.argwhere(np.isinf(y))[0])] *= -1


def _nan_for_infinity(y: np.ndarray, want: np.ndarray) -> None:
    y[np.isinf(y)] = np.nan


def _infinity_for_nan(y: np.ndarray, want: np.ndarray) -> None:
    y[np.isnan(y)] = np.inf


def _finite_for_infinity(y: np.ndarray, want: np.ndarray) -> None:
    y[np.isinf(y)] = 1


def _finite_for_nan(y: np.ndarray, want: np.ndarray) -> None:
    y[np.isnan(y)] = 1


def _infinity_for_finite(y: np.ndarray, want: np.ndarray) -> None:
    y[0, 3, 1, np.flatnonzero(np.isfinite(want[0, 3, 1]))[0]] = np.inf


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (_zero_one_pair, "in each pair's own length"),
        (_other_signs, "an infinity is NaN or has the other sign"),
        (_one_other_sign, "an infinity is NaN or has the other sign"),
        (_nan_for_infinity, "an infinity is NaN or has the other sign"),
        (_infinity_for_nan, "a NaN is an infinity"),
        (_finite_for_infinity, "which hides it"),
        (_finite_for_nan, "which hides it"),
        (_infinity_for_finite, "a pair of finite elements has a result that is not finite"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_wrong_values_of_any_magnitude_are_found(
    kind: str, wrong: Callable[[np.ndarray, np.ndarray], None], message: str
) -> None:
    text = (
        LINE.replace("f32", kind)
        .replace("[128,40,2,1]", "[64,8,16,1]")
        .replace("n_dims=128,mode=0", "n_dims=64,mode=2")
    )
    trial = RopeTrial(parse_case(text.replace("v=0", "v=0,vals=wide")), 1)
    (x,) = trial.x.views
    right = emulate_rope(x, trial.positions, trial.config)
    assert trial.check([right], []).status == "ok"
    wrong(right, trial.want.reshape(right.shape))
    outcome = trial.check([right], [])
    assert outcome.status == "fail"
    assert message in outcome.detail


def test_infinities_may_be_copied_at_position_0() -> None:
    config = clrope.RopeConfig("neox", n_dims=4)
    x = np.array([np.inf, 2, 3, -np.inf], np.float32).reshape(1, 1, 1, 4)
    with np.errstate(invalid="ignore"):
        want = clrope.reference.rope(x, 0, config)
    assert np.isnan(want).sum() == 2
    assert pairwise_error([x], [want], "f32", config)[0] == 0
    assert pairwise_error([want.astype(np.float32)], [want], "f32", config)[0] == 0
    for place in range(4):
        wrong = x.copy()
        wrong[..., place] = -wrong[..., place] if place in (0, 3) else np.inf
        assert pairwise_error([wrong], [want], "f32", config)[0] == np.inf, place


def test_partial_heads_taken_for_whole_fail_as_in_the_grid(device: DeviceInfo, monkeypatch: Any, seed: int) -> None:
    from dataclasses import replace

    real = clrope.api.rope
    monkeypatch.setattr(
        clrope.api, "rope", lambda x, p, config, *rest, **more: real(x, p, replace(config, n_dims=80), *rest, **more)
    )
    trial = CaseLine(parse_case(PARTIAL)).prepare(seed)
    # What it comes to depends on the positions drawn (0.2 to 1.7, at most 4), so it is computed, not bounded.
    (x,) = trial.x.views
    whole = clrope.reference.rope(x, trial.positions, replace(trial.config, n_dims=80))
    partial = clrope.reference.rope(x, trial.positions, trial.config)
    outcome = trial.run(device)
    assert outcome.status == "fail"
    assert outcome.nmse == pytest.approx(np.mean((whole - partial) ** 2) / np.mean(partial**2), rel=1e-4)


def test_one_bit_apart_is_found(device: DeviceInfo, monkeypatch: Any, seed: int) -> None:
    real = clrope.api.rope

    def nearly(*given: Any, **rest: Any) -> None:
        real(*given, **rest)
        out = rest["out"]
        out[0, 0, 0, 0] = np.nextafter(out[0, 0, 0, 0], np.float32(9))

    monkeypatch.setattr(clrope.api, "rope", nearly)
    report = verify(["seed"], [device.index], seed=seed, text="[128,40,2,1] type=f32 ff=0")
    assert [r.outcome.status for r in report.results] == ["ok"]
    (differing,) = report.differing
    assert differing.startswith(f"seed: {LINE}: NumPy ")
    assert report.failures == ["1 cases differ in their bits"]


@pytest.mark.parametrize(("check", "kind"), [("turn", "f16"), ("turn", "bf16"), ("still", "f16"), ("copy", "bf16")])
def test_types_see_subnormals_flushed(check: Any, kind: str, device: DeviceInfo, monkeypatch: Any, seed: int) -> None:
    real = clrope.api.rope
    line = TypeLine(kind, "neox", check, False)
    assert line.prepare(seed).run(device).text == "OK"

    def flushing(*given: Any, **rest: Any) -> None:
        real(*given, **rest)
        bits = rest["out"].view(np.uint16)
        exponent = 0x7C00 if kind == "f16" else 0x7F80
        bits[(bits & exponent) == 0] &= 0x8000

    monkeypatch.setattr(clrope.api, "rope", flushing)
    outcome = line.prepare(seed).run(device)
    assert outcome.status == "fail"
    assert "values differ, first at" in outcome.detail


def test_types_see_one_nan_bit_lost_in_a_copy(device: DeviceInfo, monkeypatch: Any, seed: int) -> None:
    real = clrope.api.rope

    def quieting(*given: Any, **rest: Any) -> None:
        real(*given, **rest)
        bits = rest["out"].view(np.uint16)
        bits[bits == 0x7C01] = 0x7E01

    monkeypatch.setattr(clrope.api, "rope", quieting)
    assert "1 of 131072 values differ" in TypeLine("f16", "normal", "copy", True).prepare(seed).run(device).detail


def test_the_same_seed_gives_the_same_inputs_alone_or_among_others(device: DeviceInfo) -> None:
    alone = verify(["seed"], [device.index], seed=5, text="[128,40,2,1] type=f16")
    among = verify(["seed"], [device.index], seed=5, text="type=f16 fs=1.0 af=1.0 ef=0.0")
    other = verify(["seed"], [device.index], seed=6, text="[128,40,2,1] type=f16")
    by_case = {r.case: r.outcome.digest for r in among.results}
    assert len(by_case) > len(alone.results) == 2
    for one, another in zip(alone.results, other.results, strict=True):
        assert by_case[one.case] == one.outcome.digest != another.outcome.digest
    drawn = {verify(["seed"], [device.index], text="no such case").seed for _ in range(4)}
    assert len(drawn) == 4


def _broken(name: str = "Broken GPU") -> DeviceInfo:
    return absent("Some Platform", name, Health("unhealthy", "crash", "it crashed", "take it out"))


def test_an_unhealthy_device_is_named_and_fails_only_if_asked_for(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conformance, "devices", lambda: [device, _broken()])
    report = verify(["seed"], text="[128,40,2,1] type=f32")
    assert report.ok
    (broken,) = [t for t in report.targets if t.problem]
    assert broken.name == "Broken GPU [Some Platform]"
    assert "it crashed" in broken.problem
    assert "take it out" in broken.problem

    def find(selector: str) -> DeviceInfo:
        if selector == "broken":
            raise DeviceError(_broken().describe_problem())
        return device

    monkeypatch.setattr(conformance, "find_device", find)
    report = verify(["seed"], ["broken", "0", "again"], text="[128,40,2,1] type=f32")
    assert len(report.used) == 1
    assert len(report.results) == 2
    assert not report.ok
    assert report.failures[0].startswith("device broken: device 'Broken GPU'")


def test_nothing_verified_is_a_failure(device: DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verify(["seed"], [device.index], text="nothing like it").failures == [
        "no case of seed matches 'nothing like it', nothing was verified"
    ]
    monkeypatch.setattr(conformance, "devices", lambda: [_broken()])
    assert verify(["seed"]).failures == ["no healthy device, nothing was verified"]


def test_without_fp64_float64_is_skipped_and_alone_no_success(device: DeviceInfo, monkeypatch: Any) -> None:
    from dataclasses import replace

    monkeypatch.setattr(conformance, "devices", lambda: [replace(device, fp64=False)])
    report = verify(["types"], text="mode=neox check=turn inplace=0")
    texts = {r.case.split(",")[0]: r.outcome.text for r in report.results}
    assert texts.pop("VALUES(type=f64") == "SKIP, the device has no fp64"
    assert set(texts.values()) == {"OK"}
    assert report.ok
    alone = verify(["types"], text="type=f64 check=turn")
    assert alone.failures == ["every case was skipped, nothing was verified"]


def test_the_report_is_strict_json(device: DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clrope.api, "rope", lambda *given, **rest: None)
    report = verify(["seed"], [device.index], seed=3, text="[128,40,2,1] type=f16 ff=0")
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert data["schema"] == "clrope.verify/1"
    assert data["clrope"] == clrope.__version__
    assert (data["seed"], data["ok"], data["suites"]) == (3, False, ["seed"])
    (result,) = data["results"]
    assert (result["nmse"], result["limit"], result["status"]) == ("inf", limit_for("f16", 10240), "fail")
    assert data["devices"][0]["device"]["key"] == device.key
    assert data["summary"][0]["passed"] == 0


def test_ggml_is_compared_with_too(device: DeviceInfo, seed: int) -> None:
    pytest.importorskip("ggml")
    assert "live by ggml" in ggml_live.remark()
    compared = 0
    for text in (
        LINE, LINE.replace("ff=0,v=0", "ff=1,v=1"), LINE.replace("mode=0", "mode=8").replace("f32", "f16"),
        LINE.replace("mode=0", "mode=24").replace("v=0", "v=2"), LINE.replace("ROPE(", "ROPE_BACK("),
        LINE.replace("fs=1.000000,ef=0.000000", "fs=1.424500,ef=0.746500").replace("v=0", "v=1,inplace=1"),
        LINE.replace("mode=0", "mode=40").replace("2,1]", "2,3]"),
    ):  # fmt: skip
        trial = ggml_live.LiveTrial(parse_case(text), seed)
        assert trial.live is not None
        assert trial.run(device).text == "OK", text
        # A check that cannot fail is none.
        trial.live = trial.live * 1.001
        outcome = trial.run(device)
        assert outcome.status == "fail"
        assert "against ggml" in outcome.detail
        compared += 1
    assert compared == 7
    assert not ggml_live.can_compute(parse_case(LINE.replace("n_dims=128", "n_dims=64").replace("v=0", "v=0,n_offs=2")))


def test_without_ggml_the_reference_is_alone(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(ggml_live, "module", lambda: None)
    assert "pip install ggml-python" in ggml_live.remark()
    assert ggml_live.LiveTrial(parse_case(LINE), seed).live is None


def test_digests_see_every_bit_but_those_of_nan() -> None:
    a = np.array([1.0, np.nan, -0.0], np.float32)
    b = a.copy()
    b.view(np.uint32)[1] ^= 1
    assert digest_of([a]) == digest_of([b])
    b[2] = 0.0
    assert digest_of([a]) != digest_of([b])
    assert digest_of([a[::-1]]) == digest_of([a[::-1].copy()]) != digest_of([a])


def test_nmse_is_that_of_compare(rng: np.random.Generator) -> None:
    want = rng.uniform(-1, 1, 1000)
    for kind in ("f2", "f4", "f8"):
        got = (want * 1.25).astype(kind)
        assert nmse(got, want) == pytest.approx(clrope.compare(got, want).nmse)
        for value in (np.nan, np.inf):
            got[7] = value
            assert nmse(got, want) == np.inf
    assert nmse(np.zeros(2), np.zeros(2)) == 0
    assert nmse(np.ones(2), np.zeros(2)) == np.inf


def test_verdicts_in_words() -> None:
    assert CaseOutcome("ok", 1e-15, 1e-12).text == "OK"
    assert CaseOutcome("fail", 0.4633217241, 1e-12).text == "FAIL, NMSE 0.463321724"
    assert CaseOutcome("fail", 1.27e-7, 1e-7, detail="limit 1e-07").text == "FAIL, NMSE 0.000000127, limit 1e-07"
    assert CaseOutcome("fail", 3e-11, 1e-12).text == "FAIL, NMSE 3e-11"
    assert nmse_text(float("inf")) == "inf"
    assert CaseOutcome("skip", detail="no fp64").text == "SKIP, no fp64"
    assert not Report(1, ["seed"], "", []).ok


def test_inputs_are_as_the_grid_says(seed: int) -> None:
    trial = RopeTrial(parse_case(LINE.replace("ff=0", "ff=1")), seed)
    assert trial.x.views[0].shape == (1, 2, 40, 128)
    assert trial.config.freq_factors is not None
    assert all(0.9 <= f <= 1.1 for f in trial.config.freq_factors)
    assert len(set(trial.config.freq_factors)) > 32
    assert 0 <= trial.positions.min() <= trial.positions.max() < 512
    assert trial.positions.dtype == np.int32
