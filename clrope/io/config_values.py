"""Values of a model's configuration: numbers, objects and names, each with its bounds; errors name the key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from ..arguments import MOST_COUNT
from ..errors import ConfigError, shown, unreadable
from ..integers import is_integer

#: Most elements of a head: an angle table takes its maker longer than a second beyond.
MOST_DIMS = 8192
#: Bounds of real numbers, far beyond any model's: products and powers of them stay finite.
LEAST_REAL, MOST_REAL = 1e-36, 1e36


def real(name: str, value: object) -> float:
    """Return `value` as a finite float, or raise `ConfigError` naming the key."""
    number = math.nan
    # NumPy counts spans of time among the integers.
    if isinstance(value, Real) and not isinstance(value, (bool, np.timedelta64)):
        try:
            number = float(value)
        except OverflowError:  # an integer beyond float64
            pass
        except MemoryError:
            raise
        except Exception as error:
            raise ConfigError(unreadable(name, value, error)) from error
    if not abs(number) <= MOST_REAL:
        raise ConfigError(f"{name}: got {shown(value)}, a finite number is needed, at most {MOST_REAL}")
    return number


def positive(name: str, value: object) -> float:
    """Return `value` as a float above 0, or raise `ConfigError` naming the key."""
    number = real(name, value)
    if number <= 0:
        raise ConfigError(f"{name}: got {shown(value)}, it must be greater than 0")
    if number < LEAST_REAL:
        raise ConfigError(f"{name}: got {shown(value)}, it must be at least {LEAST_REAL}")
    return number


def count(name: str, value: object) -> int:
    """Return `value` as an integer above 0 (10.0 counts as one), or raise `ConfigError` naming the key."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not is_integer(value) or value <= 0:
        raise ConfigError(f"{name}: got {shown(value)}, an integer greater than 0 is needed")
    if int(value) > MOST_COUNT:
        raise ConfigError(f"{name}: got {shown(value)}, at most {MOST_COUNT} is allowed")
    return int(value)


def same(a: object, b: object) -> bool:
    """Whether two values are equal; what has no single answer (an array of several elements) is not."""
    try:
        return bool(a == b)
    except MemoryError:
        raise
    except Exception:
        return False


def layer_name(value: object) -> str:
    """Return the argument `layer_type` as a text, or raise `ConfigError`."""
    if not isinstance(value, str):
        raise ConfigError(f"layer_type: got {shown(value)}, a name is needed")
    return value


def mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return an object of the configuration, empty if it is absent or null."""
    value = data.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key}: got {type(value).__name__}, an object is needed")
    return value


def optional_count(data: Mapping[str, Any], key: str) -> int | None:
    """Return an integer above 0, None if it is absent or null."""
    value = data.get(key)
    return None if value is None else count(key, value)


def needed_count(data: Mapping[str, Any], key: str, why: str) -> int:
    """Return an integer above 0; the error for one that is absent says why it is needed."""
    value = data.get(key)
    if value is None:
        raise ConfigError(f"{key}: missing, {why}")
    return count(key, value)
