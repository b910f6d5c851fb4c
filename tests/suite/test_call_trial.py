"""Trials of calls on several tensors: whatever is wrong with a call, or with the memory around, fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import clrope.api
from clrope import DeviceInfo
from clrope.suite.call_trial import Place
from clrope.suite.grids.models import MODELS, ModelLine
from clrope.testing import GUARD

Rope = Callable[..., Any]


def _nothing(real: Rope, x: Any, positions: Any, **rest: Any) -> None:
    """A kernel that does not run."""


def _shifted(real: Rope, x: Any, positions: Any, **rest: Any) -> None:
    real(x, positions + 1, **rest)


def _other_norms(real: Rope, x: Any, positions: Any, **rest: Any) -> None:
    real(x, positions, **rest | {"norm": rest["norm"][::-1]})


def _one_value(real: Rope, x: Any, positions: Any, **rest: Any) -> None:
    real(x, positions, **rest)
    rest["out"][1][0, 2, 1, 5] += 1


def _stray(real: Rope, x: Any, positions: Any, **rest: Any) -> None:
    real(x, positions, **rest)
    _memory(rest["out"][1])[-1] = 7


def _spoils_input(real: Rope, x: Any, positions: Any, **rest: Any) -> None:
    real(x, positions, **rest)
    x[1][0, 0, 0, 0] += 1


def _memory(view: np.ndarray) -> np.ndarray:
    while view.base is not None:
        view = view.base
    return view


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (_nothing, "NMSE inf, limit 4e-12$"),
        (_shifted, r"NMSE [01]\.\d+, limit 4e-12$"),
        (_other_norms, r"NMSE 0\.\d+, limit 4e-12$"),
        (_one_value, r"NMSE \d[^,]*, limit 4e-12$"),
        (_stray, "FAIL, NMSE [^,]+, elements outside the output changed$"),
        (_spoils_input, "FAIL, NMSE [^,]+, elements of the input changed$"),
    ],
)
def test_whatever_is_wrong_with_a_call_fails(
    wrong: Callable[..., None], message: str, device: DeviceInfo, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    (model,) = (m for m in MODELS if m.name == "qwen3-8b")
    trial = ModelLine(model, "f32").prepare(seed)
    good = trial.run(device)
    assert (good.status, good.digest) == ("ok", trial.digest)
    real = clrope.api.rope
    monkeypatch.setattr(clrope.api, "rope", lambda x, p, config, **rest: wrong(real, x, p, **rest, config=config))
    outcome = trial.run(device)
    assert outcome.status == "fail"
    assert re.search(message, outcome.text), outcome.text


def test_heads_of_longer_ones() -> None:
    x = np.arange(2 * 3 * 2 * 4, dtype=np.float32).reshape(2, 3, 2, 4)
    for place in (Place(), Place(step=2), Place(11, 3), Place(9, 1, 2, 5)):
        memory, view = place.put(x)
        width = place.width or 4 * place.step
        assert np.array_equal(view, x)
        assert view.strides == (3 * (2 + place.more_heads) * width * 4, (2 + place.more_heads) * width * 4, width * 4,
                                4 * place.step)  # fmt: skip
        assert memory.size == 2 * 3 * (2 + place.more_heads) * width + 2 * GUARD
        assert np.isnan(memory).sum() == memory.size - x.size
        assert memory[GUARD + place.first] == 0
