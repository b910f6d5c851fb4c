"""Positions on the command line: a number, a list, a range or a file."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ..errors import ShapeError
from .config_options import named_array

POSITIONS_HELP = "First position, list 0,1,2, range a:b (without b), or FILE[:NAME]."
_RANGE = re.compile(r"(-?[0-9]+):(-?[0-9]+)")
#: Positions of a range: more tokens than any tensor in memory has.
_MOST_POSITIONS = 1 << 28
_LIST = re.compile(r"-?[0-9]+(,-?[0-9]+)*")


def read_positions(text: str) -> Any:
    """Return what `clrope.rope` takes as positions."""
    if ends := _RANGE.fullmatch(text):
        begin, end = _position(ends[1]), _position(ends[2])
        if end <= begin:
            raise ShapeError(f"--positions: got {text!r}, the range a:b is a, a+1, ... b-1 and must not be empty")
        if end - begin > _MOST_POSITIONS:
            raise ShapeError(f"--positions: got a range of {end - begin}, at most {_MOST_POSITIONS} are allowed")
        return np.arange(begin, end, dtype=np.int64)
    if _LIST.fullmatch(text):
        numbers = [_position(part) for part in text.split(",")]
        return numbers[0] if len(numbers) == 1 else np.array(numbers, dtype=np.int64)
    return named_array(text, "--positions", "a number, a list 0,1,2, a range a:b")


def _position(text: str) -> int:
    if len(text.strip()) > 20 or not -(1 << 63) <= int(text) < 1 << 63:
        raise ShapeError(f"--positions: got {text.strip()[:40]}, allowed are 64-bit integers")
    return int(text)
