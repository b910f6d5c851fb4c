"""Environment variables, read at every call that depends on them."""

from __future__ import annotations

import os
from typing import Any

#: A look-up through `os.environ` encodes and decodes: 1.3 us, of 20 for a decode step's call.
_DATA: Any = getattr(os.environ, "_data", None) if os.name == "posix" else None


def variable(name: bytes) -> bytes:
    """Return one variable as it is now, b'' if it is not set."""
    if type(_DATA) is dict:
        value: bytes = _DATA.get(name, b"")
        return value
    return os.environ.get(name.decode(), "").encode()
