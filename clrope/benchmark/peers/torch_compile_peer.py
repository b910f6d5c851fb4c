"""torch.compile: the eager peer's function, compiled by Inductor. Inductor needs a C++ compiler."""

from __future__ import annotations

import importlib
import os
import shutil
from typing import Any

from ..entry import Refused
from . import Prepared, Task, torch_eager_peer

packages = ("torch",)


def prepare(task: Task) -> Prepared:
    """Return a call of the compiled function."""
    if not any(shutil.which(compiler) for compiler in (os.environ.get("CXX", "g++"), "g++", "clang++")):
        raise Refused("no C++ compiler was found")
    torch: Any = importlib.import_module("torch")
    # Otherwise torch counts earlier workloads as one function with changing shapes, and stops compiling.
    torch._dynamo.reset()
    return torch_eager_peer.prepare(task, lambda function: torch.compile(function, dynamic=False))
