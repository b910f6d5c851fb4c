"""A preload for a worker (`dask worker --preload`) whose kernels give one wrong bit in each result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from clrope.operation import Rope


def wrong(right: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call whose results have their last element's lowest bit flipped."""

    def call(self: Rope, *arguments: Any, **more: Any) -> Any:
        result = right(self, *arguments, **more)
        for array in result if isinstance(result, tuple) else [result]:
            if isinstance(array, np.ndarray) and array.size:
                last = (-1,) * array.ndim
                first, *rest = array[last].tobytes()
                array[last] = np.frombuffer(bytes([first ^ 1, *rest]), array.dtype)[0]
        return result

    return call


if Rope.__call__.__module__ == Rope.__module__:  # a preload may be run more than once
    Rope.__call__ = wrong(Rope.__call__)  # type: ignore[method-assign]
