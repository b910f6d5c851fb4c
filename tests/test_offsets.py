"""Per-batch offsets in the forms that cannot be taken for positions of tokens, wherever positions are taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import same

import clrope
from clrope import Rope, RopeConfig, ShapeError
from clrope.emulation import emulate_rope

NEOX = RopeConfig("neox")
#: As many batches as tokens: the list [0, 500] means tokens here.
FIRST = [0, 500]
EACH = np.array([[0, 1], [500, 501]])
FORMS: dict[str, dict[str, Any]] = {
    "[B, 1]": {"positions": [[0], [500]]},
    "[B, 1], int16": {"positions": np.array([[0], [500]], np.int16)},
    "offsets": {"offsets": FIRST},
    "offsets, uint64": {"offsets": np.array(FIRST, np.uint64)},
}
Call = Callable[..., Any]


def of_a_run(op: Rope, x: np.ndarray, **form: Any) -> Any:
    return op.plan(x, 3).run(**form)


CALLS: dict[str, Call] = {
    "rope": lambda op, x, **form: clrope.rope(x, config=op.config, device=op.device, **form),
    "Rope": lambda op, x, **form: op(x, **form),
    "plan": lambda op, x, **form: op.plan(x, **form).run(),
    "run": of_a_run,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_first_position_of_each_batch(
    device: clrope.DeviceInfo, call: Call, form: dict[str, Any], rng: np.random.Generator
) -> None:
    x = rng.uniform(-1, 1, (2, 2, 3, 16)).astype(np.float32)
    op = Rope(NEOX, device.index)
    for _ in range(2):  # a call like one before takes another way
        assert same(call(op, x, **form), emulate_rope(x, EACH, NEOX)).all()


def test_a_list_of_as_many_tokens_means_tokens(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, (2, 2, 3, 16)).astype(np.float32)
    got = clrope.rope(x, FIRST, NEOX, device=device.index)
    assert same(got, emulate_rope(x, [FIRST, FIRST], NEOX)).all()


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_in_section_modes(devices: Any, batch: int, rng: np.random.Generator) -> None:
    """One token of 3 or 4 batches as well, where [3, 1] and [4, 1] are its rows t, h, w (, e)."""
    config = RopeConfig("mrope", sections=(2, 3, 3))
    first = rng.integers(-500, 500, batch)
    for tokens in (1, 2, 5):
        x = rng.uniform(-1, 1, (batch, tokens, 3, 16)).astype(np.float32)
        rows = np.broadcast_to(first[:, None] + np.arange(tokens), (4, batch, tokens))
        want = emulate_rope(x, rows, config)
        assert same(clrope.rope(x, config=config, offsets=first), want).all()
        if tokens > 1:
            assert same(clrope.rope(x, first[:, None], config), want).all()


def test_of_tables(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, (2, 2, 3, 16)).astype(np.float32)
    cos, sin = rng.uniform(-1, 1, (2, 502, 8)).astype(np.float32)
    want = clrope.rotate(x, cos, sin, EACH, device=device.index)
    for form in FORMS.values():
        assert same(clrope.rotate(x, cos, sin, device=device.index, **form), want).all()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"positions": 0, "offsets": FIRST}, "offsets: given together with positions"),
    ({"offsets": [0, 1, 2]}, r"offsets: got shape \[3\], one per batch is needed: \[2\]"),
    ({"offsets": [[0], [1]]}, r"offsets: got shape \[2, 1\], one per batch is needed"),
    ({"offsets": 7}, r"offsets: got shape \[\], one per batch is needed"),
    ({"offsets": [0.5, 1]}, "offsets: got dtype float64, allowed are the integer dtypes"),
    ({"offsets": [True, False]}, "offsets: got (dtype bool|a bool)"),
    ({"offsets": [0, 2**63]}, "offsets: got 9223372036854775808, allowed are"),
    ({"offsets": [0, 2**63 - 1]}, "offsets: offset 9223372036854775807 with 2 tokens goes beyond 64-bit integers"),
    ({"positions": [[0], [1], [2]]}, r"positions: got shape \[3, 1\], allowed here are an int, .*\[2, 1\] \(an offset"),
]


@pytest.mark.parametrize(("form", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_refused(call: Call, form: dict[str, Any], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        call(Rope(NEOX), np.zeros((2, 2, 3, 16), np.float32), **form)


@pytest.mark.parametrize("call", [CALLS["rope"], CALLS["Rope"], CALLS["plan"]], ids=["rope", "Rope", "plan"])
def test_positions_or_offsets_are_needed(call: Call) -> None:
    with pytest.raises(ShapeError, match=r"positions: not given; an int, an array of integers, .*offsets.* is needed"):
        call(Rope(NEOX), np.zeros((2, 2, 3, 16), np.float32))
