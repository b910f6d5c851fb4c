"""Makes the lab's kernels importable by the tests of this folder, and signatures cheap to read."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path

import pytest

from clrope.lab import signature

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def signatures_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read signatures without a child process, each of which takes a second; `test_lab_signatures.py` has it."""
    monkeypatch.setattr(signature, "_in_child", lru_cache(signature.build_facts))
