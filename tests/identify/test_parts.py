"""Tensors of which a part is rotated, by one convention or several: what is said of each part is true."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import clrope
from clrope.layout import DTYPES

NEOX = clrope.RopeConfig(mode="neox", freq_base=5e5)
NORMAL = clrope.RopeConfig(mode="normal")
YARN = clrope.RopeConfig(mode="neox", freq_scale=0.25, ext_factor=1.0, n_ctx_orig=4096)
SHAPE = (4, 16, 5, 64)


def rope(x: np.ndarray, config: clrope.RopeConfig, positions: Any = 0, forward: bool = True) -> np.ndarray:
    return clrope.reference.rope(x, positions, config, forward).astype(x.dtype)


def inside(*box: Any, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    mask = np.zeros((*shape[:3], 1), bool)
    mask[box] = True
    return mask


@pytest.mark.parametrize(
    ("box", "where"),
    [
        ((0,), "Batch 0 of 4 is rotated, the others are unchanged: "),
        ((slice(1, 3),), "Batches 1 to 2 of 4 are rotated, the others are unchanged: "),
        ((slice(None), slice(None), slice(3)), "Heads 0 to 2 of 5 are rotated, the others are unchanged: "),
        ((slice(None), slice(9, None)), "Tokens 9 to 15 of 16 are rotated, the others are unchanged: "),
        ((slice(None), slice(9)), "Tokens 0 to 8 of 16 are rotated, the others are unchanged: "),
        ((2, slice(4, 8), 1), "Batch 2 of 4, tokens 4 to 7 of 16, head 1 of 5 are rotated, the rest is unchanged: "),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_part_is_rotated(box: Any, where: str, dtype: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal(SHAPE).astype(dtype)
    found = clrope.identify(x, np.where(inside(*box), rope(x, NEOX), x))
    assert found.best is None
    assert found.sentence == f"{where}NEOX, freq_base 500000."
    (part,) = found.parts
    assert (inside(*np.ix_(part.batches, part.tokens, part.heads)) == inside(*box)).all()
    assert part.hypothesis.config.mode == "neox"
    assert found.to_dict()["parts"][0]["where"] == part.where


def test_parts_of_two_conventions(rng: np.random.Generator) -> None:
    x = rng.standard_normal(SHAPE).astype(np.float32)
    mask = inside(slice(None), slice(None), slice(3))
    found = clrope.identify(x, np.where(mask, rope(x, NEOX), rope(x, NORMAL)), config=NEOX)
    assert (found.best, found.agrees) == (None, False)
    assert found.sentence == (
        "Parts are rotated unlike: heads 0 to 2 of 5: NEOX, freq_base 500000; "
        "heads 3 to 4 of 5: NORMAL, freq_base 10000."
    )


def test_batches_with_offsets_of_their_own(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, *SHAPE[1:])).astype(np.float32)
    found = clrope.identify(x, rope(x, NEOX, np.arange(16) + np.array([[0], [300], [7]])), config=NEOX)
    assert [part.hypothesis.offset for part in found.parts] == [0, 300, 7]
    assert [part.batches for part in found.parts] == [(0,), (1,), (2,)]


@pytest.mark.parametrize("base", [5e5, 31337.0])
def test_positions_that_run_on(base: float, rng: np.random.Generator) -> None:
    x = rng.standard_normal(SHAPE).astype(np.float32)
    config = replace(NEOX, freq_base=base)
    after = rope(x, config, 100 + np.arange(64).reshape(4, 16))
    found = clrope.identify(x, after, 100, config=config)
    assert found.best is not None
    assert found.best.runs_on
    assert found.agrees is False
    assert found.differences == ("positions that run on across batches where the given ones are meant",)
    assert "positions that run on across batches" in clrope.identify(x, after, 100).sentence


def test_rotated_twice(rng: np.random.Generator) -> None:
    x = rng.standard_normal(SHAPE).astype(np.float32)
    for config in (YARN, replace(NEOX, freq_factors=tuple(np.linspace(1, 4, 32)))):
        twice = rope(rope(x, config, 7), config, 7)
        found = clrope.identify(x, twice, 7, config=config)
        assert found.best is not None
        assert found.best.times == 2
        assert found.differences == ("rotated twice where the config means once",)
    for given in (None, NEOX):
        found = clrope.identify(x, rope(rope(x, NEOX), NEOX), config=given)
        assert found.best is not None
        assert found.best.config.freq_scale == 2
        assert "Rotating twice by freq_scale 1 gives the same." in found.sentence


def test_what_nothing_explains(rng: np.random.Generator) -> None:
    x = rng.standard_normal(SHAPE).astype(np.float32)
    noise = x + rng.standard_normal(x.shape).astype(np.float32)
    found = clrope.identify(x, np.where(inside(1), noise, rope(x, NEOX)))
    assert found.sentence == (
        "Batches 0, 2 to 3 of 4 are rotated: NEOX, freq_base 500000. "
        "In batch 1 of 4, values change in a way that was not found."
    )
    found = clrope.identify(x, np.where(inside(1), noise, x))
    assert found.sentence.endswith("keeps the length of all pairs. Values change in batch 1 of 4 only.")
    one = x.copy()
    one[3, 5, 2, 7] += 0.5
    found = clrope.identify(x, one)
    assert found.best is None
    assert "Values change in batch 3 of 4, token 5 of 16, head 2 of 5 only." in found.sentence
    assert "no pair of elements turns" not in clrope.identify(x, np.where(inside(1), 2 * x, x)).sentence
    assert clrope.identify(x, 2 * x).sentence == "None of these: no pair of elements turns; after is before times 2."


def test_one_head_that_was_left_out(rng: np.random.Generator) -> None:
    """A share so small that the error of all is within the limit of bfloat16."""
    x = rng.standard_normal((1, 128, 32, 64)).astype(DTYPES["bf16"])
    after = rope(x, NEOX)
    after[0, 1, 9] = x[0, 1, 9]
    found = clrope.identify(x, after, config=NEOX)
    assert found.best is None
    assert found.agrees is False


def test_pairs_that_turn_too_little_are_named(rng: np.random.Generator) -> None:
    x = rng.standard_normal((1, 8, 4, 64)).astype(np.float16)
    found = clrope.identify(x, rope(x, NEOX), config=NEOX)
    assert "This is what the config says. Pairs " in found.sentence
    assert found.sentence.endswith("to 31 turn too little here to be sure of.")


@pytest.mark.one_in(6)
def test_what_is_said_of_random_parts_is_true(rng: np.random.Generator) -> None:
    for _ in range(8):
        shape = (*(int(rng.integers(1, most)) for most in (5, 20, 7)), 64)
        x = rng.standard_normal(shape).astype(DTYPES[str(rng.choice(["f32", "f16", "bf16"]))])
        box = [np.flatnonzero(rng.random(size) < 0.6) if rng.random() < 0.5 else np.arange(size) for size in shape[:3]]
        mask = np.zeros((*shape[:3], 1), bool)
        mask[np.ix_(*box)] = True
        start = int(rng.choice([0, 100, 5000]))
        other = rope(x, NORMAL, start, forward=False) if rng.random() < 0.3 else x
        after = np.where(mask, rope(x, NEOX, start), other)
        found = clrope.identify(x, after, start)
        unchanged = (x == after).all(axis=3)
        assert found.best or found.parts or unchanged.all(), found
        rest = np.ones(shape[:3], bool)
        for part in found.parts:
            places = np.ix_(part.batches, part.tokens, part.heads)
            h = part.hypothesis
            made = clrope.reference.rope(x, start + h.offset, h.config, h.forward)
            assert clrope.compare(after[places], made[places]).nmse <= h.limit
            rest[places] = False
        if "unchanged" in found.sentence:
            assert unchanged[rest].all(), found
        if found.best:
            h = found.best
            made = clrope.reference.rope(x, start + h.offset, h.config, h.forward)
            assert clrope.compare(after, made).nmse <= h.limit
