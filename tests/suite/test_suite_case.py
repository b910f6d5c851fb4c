"""The notation of cases: read, written, refused."""

from __future__ import annotations

from importlib import resources

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clrope import ConfigError
from clrope.suite import Case, parse_case, suite_names
from clrope.suite.case import INTEGERS, POSITIONS, VIEWS
from clrope.suite.registry import by_name, cases_of, chosen_suites, suite
from clrope.suite.rope_trial import CaseLine, draw_positions

TEXT = "ROPE(type=f16,ne_a=[80,32,2,1],n_dims=20,mode=2,n_ctx=512,fs=1.424500,ef=0.000000,af=1.000000,ff=1,v=0)"


def test_a_line_of_the_grid_says_what_it_says() -> None:
    case = parse_case(TEXT + " # NPU: FAIL, NMSE 0.463321724")
    assert parse_case(TEXT + " # as on the NPU (twice)") == case
    assert case == Case("f16", (80, 32, 2, 1), 20, 2, 512, 1.4245, 0.0, 1.0, True, 0)
    assert str(case) == TEXT
    config = case.config(None)
    assert (config.mode, config.n_dims, config.freq_scale, config.n_ctx_orig) == ("neox", 20, 1.4245, 0)
    assert (config.beta_fast, config.beta_slow) == (1.0, 1.0)


def test_the_seed_grid_is_96_lines_that_write_back_as_they_are() -> None:
    text = resources.files("clrope.suite").joinpath("seed_grid.txt").read_text(encoding="utf-8")
    lines = [line.split(" # ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == 96
    assert [str(parse_case(line)) for line in lines] == lines
    (seed,) = chosen_suites(["seed"])
    assert [case.label for case in cases_of(seed)] == lines


@pytest.mark.parametrize(
    ("name", "count"), [("seed", 96), ("ggml", 868), ("modes", 500), ("types", 72), ("layouts", 200)]
)
def test_every_suite_has_its_cases_once_and_reads_them_back(name: str, count: int) -> None:
    (chosen,) = chosen_suites([name])
    cases = list(cases_of(chosen))
    labels = [case.label for case in cases]
    assert len(labels) == count if name in ("seed", "ggml", "types") else len(labels) >= count
    assert len(set(labels)) == len(labels)
    for case in cases:
        if isinstance(case, CaseLine):
            assert parse_case(case.label) == case.case
    assert chosen.summary


real = st.floats(-4, 4).map(float)


@given(
    st.builds(
        Case, type=st.sampled_from(["f32", "f16", "bf16", "f64"]), ne_a=st.tuples(*[st.integers(1, 9)] * 4),
        n_dims=st.integers(2, 64), mode=st.sampled_from([0, 2, 8, 24, 40]), n_ctx=st.integers(1, 1 << 31), fs=real,
        ef=real, af=real, ff=st.booleans(), v=st.sampled_from(VIEWS), inplace=st.booleans(), n_offs=st.integers(0, 64),
        base=st.floats(1, 1e9), n_ctx_orig=st.integers(0, 1 << 20), bf=real, bs=real,
        sections=st.none() | st.tuples(*[st.integers(0, 64)] * 4), lo=st.sampled_from(["bsnd", "dnsb"]),
        o=st.sampled_from([0, 1]), pos=st.sampled_from(POSITIONS), pt=st.sampled_from(INTEGERS),
        angles=st.sampled_from(["exact", "ggml"]), vals=st.sampled_from(["uniform", "wide"]), forward=st.booleans(),
    )
)  # fmt: skip
def test_any_case_reads_back(case: Case) -> None:
    assert parse_case(str(case)) == case


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SOFT_MAX(type=f32)", r"the form is ROPE\(type=f32"),
        (TEXT.replace("v=0", "w=0"), r"'w=0' in .* each of type, ne_a, .* can be given once"),
        (TEXT.replace("v=0", "v=0,v=0"), "can be given once"),
        (TEXT.replace(",v=0", ""), "has no v$"),
        (TEXT.replace("type=f16,", "").replace("ff=1,", ""), "has no type, ff$"),
        (TEXT.replace("ff=1", "ff=yes"), "'ff=yes' .* allowed is 0 or 1"),
        (TEXT.replace("n_dims=20", "n_dims=x"), "'n_dims=x' .* an integer"),
        (TEXT.replace("[80,32,2,1]", "80"), "'ne_a=80' .* 4 integers in brackets"),
        (TEXT.replace("[80,32,2,1]", "[80,32,2]"), r"'ne_a=\[80,32,2\]' .* 4 integers in brackets"),
        (TEXT.replace("[80,32,2,1]", "[80,0,2,1]"), "ne_a: .* at least 1"),
        (TEXT.replace("n_ctx=512", "n_ctx=0"), r"n_ctx: got 0, 1 to 2\*\*63 is needed"),
        (TEXT.replace("n_ctx=512", "n_ctx=-5"), "n_ctx: got -5"),
        (TEXT.replace("n_ctx=512", f"n_ctx={2**63 + 1}"), "n_ctx: got 9223372036854775809"),
        (TEXT.replace("f16", "f8e4m3").replace("v=0", "v=0,vals=wide"), "vals: got 'wide' with type f8e4m3, .* f16, "),
        (TEXT.replace("f16", "q4_0"), "type: got 'q4_0', allowed are f16, bf16, f32, f64"),
        (TEXT.replace("mode=2", "mode=3"), "mode: got 3"),
        (TEXT.replace("v=0", "v=9"), "v: got 9, allowed are 0, 1"),
        (TEXT.replace("v=0", "v=0,pos=anywhere"), "pos: got 'anywhere'"),
        (TEXT.replace("v=0", "v=0,lo=bsn"), "lo: got 'bsn'"),
        (TEXT.replace("2,1]", "2,3]").replace("v=0", "v=0,lo=snd"), "without b for one batch only"),
        (TEXT.replace("v=0", "v=0,sections=[1,2]"), "4 integers in brackets"),
    ],
)
def test_what_is_no_case_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_case(text)


@pytest.mark.parametrize("pos", [pos for pos in POSITIONS if pos != "three"])
def test_positions_are_drawn_up_to_any_length(pos: str) -> None:
    for length in (1, 2**63):
        text = TEXT.replace("n_ctx=512", f"n_ctx={length}").replace("v=0", f"v=0,pos={pos},pt=int64")
        positions = draw_positions(parse_case(text), np.random.default_rng(1))
        assert length > 1 or pos in ("signed", "far", "huge", "packed") or np.abs(np.int64(positions)).max() <= 1


def test_vision_and_sections_are_set_as_in_ggmls_test() -> None:
    vision = parse_case(TEXT.replace("mode=2", "mode=24").replace("n_dims=20", "n_dims=80")).config(None)
    assert (vision.n_dims, vision.sections) == (40, (20, 20, 0, 0))
    mrope = parse_case(TEXT.replace("mode=2", "mode=8")).config(None)
    assert (mrope.n_dims, mrope.sections) == (20, (6, 6, 6, 0))


def test_suites_are_chosen_by_name() -> None:
    names = suite_names()
    assert names[0] == "seed"
    assert {"seed", "ggml", "modes", "types", "layouts"} <= set(names)
    assert [s.name for s in chosen_suites(["all"])] == names
    assert [s.name for s in chosen_suites(["types", "seed", "types"])] == ["types", "seed"]
    with pytest.raises(ConfigError, match=r"suite: got 'sead', allowed are seed, fusion, ggml, .*all$"):
        chosen_suites(["sead"])
    with pytest.raises(ConfigError, match="suite: the name 'seed' is taken"):
        by_name([*chosen_suites(["types"]), suite("seed")(list), *chosen_suites(["seed"])])
    (seed,) = chosen_suites(["seed"])
    assert [c.label for c in cases_of(seed, "type=f16 mode=2,")] == [
        c.label for c in cases_of(seed) if "type=f16" in c.label and "mode=2," in c.label
    ]
