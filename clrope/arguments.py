"""Numbers and sequences of callers, checked before they are converted: no one sees that a length was cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from itertools import islice
from typing import Any

from .errors import ConfigError, shown, unreadable
from .integers import is_integer

#: Makes the error for a message.
Refusal = Callable[[str], Exception]

#: The largest number of elements, heads or positions.
MOST_COUNT = (1 << 63) - 1


def integer(name: str, value: object, least: int, most: int = MOST_COUNT, refuse: Refusal = ConfigError) -> int:
    """Return an integer argument as an int; no bool, float or text is taken for one."""
    if not is_integer(value):
        raise refuse(f"{name}: got {shown(value)} of type {type(value).__name__}, an integer is needed")
    try:
        number = int(value)
    except MemoryError:
        raise
    except Exception as error:
        raise refuse(unreadable(name, value, error)) from error
    if number < least:
        raise refuse(f"{name}: got {shown(number)}, the least allowed is {least}")
    if number > most:
        raise refuse(f"{name}: got {shown(number)}, at most {most} is allowed")
    return number


def sequence(name: str, value: object, most: int, refuse: Refusal = ConfigError) -> list[Any]:
    """Return a sequence of up to `most` numbers as a list. Its elements are not looked at."""
    # Sets have no order, mappings give their keys, bytes their numbers.
    if isinstance(value, (str, bytes, bytearray, Set, Mapping)) or not isinstance(value, Iterable):
        raise refuse(f"{name}: got {shown(value)} of type {type(value).__name__}, a sequence of numbers is needed")
    try:
        found = list(islice(value, most + 1))
    except MemoryError:
        raise
    except Exception as error:
        raise refuse(unreadable(name, value, error)) from error
    if len(found) > most:
        raise refuse(f"{name}: got more than {most} numbers")
    return found
