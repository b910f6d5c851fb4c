"""The suite 'seed': 96 cases of ggml's test_rope with the errors of a faulty accelerator kernel."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources

from ..case import parse_case
from ..registry import suite
from ..rope_trial import CaseLine


@suite("seed")
def seed() -> Iterator[CaseLine]:
    """96 cases of ggml's test_rope, f32 and f16, NORMAL and NEOX."""
    text = resources.files("clrope.suite").joinpath("seed_grid.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            yield CaseLine(parse_case(line))
