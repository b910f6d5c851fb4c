"""Numbers and sequences that callers give, checked before they are converted: nothing is cut quietly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from itertools import islice
from typing import Any

from .errors import ConfigError, ErrorMaker, reading, shown
from .integers import is_integer

#: The largest number of elements, heads or positions.
MOST_COUNT = (1 << 63) - 1


def integer(name: str, value: object, least: int, most: int = MOST_COUNT, refuse: ErrorMaker = ConfigError) -> int:
    """Return an integer argument as an int; no bool, float or text is taken for one."""
    if not is_integer(value):
        raise refuse(f"{name}: got {shown(value)} of type {type(value).__name__}, an integer is needed")
    with reading(name, value, refuse):
        number = int(value)
    if number < least:
        raise refuse(f"{name}: got {shown(number)}, the least allowed is {least}")
    if number > most:
        raise refuse(f"{name}: got {shown(number)}, at most {most} is allowed")
    return number


def sequence(name: str, value: object, most: int, refuse: ErrorMaker = ConfigError) -> list[Any]:
    """Return a sequence of up to `most` numbers as a list. Its elements are not looked at."""
    # Sets have no order, mappings give their keys, bytes their numbers.
    if isinstance(value, (str, bytes, bytearray, Set, Mapping)) or not isinstance(value, Iterable):
        raise refuse(f"{name}: got {shown(value)} of type {type(value).__name__}, a sequence of numbers is needed")
    with reading(name, value, refuse):
        found = list(islice(value, most + 1))
    if len(found) > most:
        raise refuse(f"{name}: got more than {most} numbers")
    return found


def listed(argument: str, values: Any, most: int) -> list[Any]:
    """Return the values of a sequence, of an iterator (which may have no end) no more than one too many."""
    with reading(argument, values):
        return list(values if isinstance(values, (list, tuple)) else islice(values, most + 1))
