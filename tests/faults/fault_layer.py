"""The fault layer: compiled, loaded by the OpenCL loader of this process, and told which call goes wrong."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("fault_layer.c")
#: What a call can do instead: return an error; do its work and return an error; take longer; never return; return
#: success without doing anything; change what it read; give an event that fails.
ACTIONS = {"fail": 1, "late": 2, "delay": 3, "hang": 4, "drop": 5, "corrupt": 6, "event": 7}
KINDS = ("buffers", "events", "kernels", "programs", "queues", "contexts")
LAST = (1 << 62) - 1


@dataclass(frozen=True)
class Fault:
    """What goes wrong: from the `first` to the `last` call of a function. code: OpenCL error."""

    function: str
    first: int = 1
    last: int = 1
    action: str = "fail"
    code: int = -5

    @property
    def variable(self) -> str:
        """The fault for a child process."""
        return f"{self.function}:{self.first}:{self.last}:{ACTIONS[self.action]}:{self.code}"


def compile_layer(folder: Path) -> Path | None:
    """Return the library; None where there is no C compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    library = folder / "layer.so"
    if compiler is None:
        return None
    command = [compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True)
    return library


class Layer:
    """The layer in this process; `OPENCL_LAYERS` named it before the first platform query."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ["OPENCL_LAYERS"])
        for name, result in (("name", ctypes.c_char_p), ("calls", ctypes.c_int64), ("live", ctypes.c_int64)):
            getattr(self._library, f"fault_{name}").restype = result
        self._numbers: dict[str, int] = {}
        while name := self._library.fault_name(len(self._numbers)):
            self._numbers[name.decode()] = len(self._numbers)

    def calls(self) -> dict[str, int]:
        """Return how often each function was called since `clear` or the last fault."""
        counted = {name: self._library.fault_calls(number) for name, number in self._numbers.items()}
        return {name: n for name, n in counted.items() if n}

    def live(self) -> dict[str, int]:
        """Return how many objects of each kind were made and not released."""
        return {kind: self._library.fault_live(number) for number, kind in enumerate(KINDS)}

    def clear(self) -> None:
        """Let all calls be right, and count from 0."""
        self._library.fault_clear()

    @property
    def hits(self) -> int:
        """How many calls went wrong."""
        return int(self._library.fault_hit())

    def arm(self, on: bool) -> None:
        """Count calls, and let them go wrong, from now on; or neither."""
        self._library.fault_arm(int(on))

    @contextmanager
    def set(self, fault: Fault) -> Iterator[None]:
        """Let the calls of a fault go wrong inside."""
        first, last = ctypes.c_int64(fault.first), ctypes.c_int64(fault.last)
        self._library.fault_set(self._numbers[fault.function], first, last, ACTIONS[fault.action], fault.code)
        try:
            yield
        finally:
            self._library.fault_set(self._numbers[fault.function], ctypes.c_int64(LAST), first, 0, 0)
