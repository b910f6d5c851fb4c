"""torch.compile: the function of the eager peer through Inductor, which needs a C++ compiler."""

from __future__ import annotations

import importlib
import os
import shutil
from typing import Any

from ..entry import Refused
from . import Prepared, Task, installed, torch_eager_peer

name = "torch_compile"
colour = "#9273c4"


def version() -> str | None:
    """Return torch's version."""
    return installed("torch")


def prepare(task: Task) -> Prepared | Refused:
    """Return a call of the compiled function."""
    if not any(shutil.which(compiler) for compiler in (os.environ.get("CXX", "g++"), "g++", "clang++")):
        return Refused("no C++ compiler was found")
    torch: Any = importlib.import_module("torch")
    # Or the shapes of earlier workloads would count as one function called with ever new shapes.
    torch._dynamo.reset()
    return torch_eager_peer.prepare_with(task, lambda function: torch.compile(function, dynamic=False))
