"""What counts as an integer argument."""

from __future__ import annotations

from numbers import Integral
from typing import TypeGuard

import numpy as np


def is_integer(value: object) -> TypeGuard[Integral]:
    """Whether a value is an integer of Python or NumPy: no bool, and no span of time, which NumPy counts among them."""
    return isinstance(value, Integral) and not isinstance(value, (bool, np.bool_, np.timedelta64))
