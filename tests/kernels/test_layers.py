"""Imports run one way: kernels know nothing of choosing, choosing nothing of tuning, none of them anything of plans."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import clrope

PACKAGE = Path(clrope.__file__).parent
#: Packages, and those modules of clrope that each may import.
ALLOWED = {
    "kernels": {
        "kernels",
        "bounded_read",
        "buffer_place",
        "cache_folder",
        "config",
        "device",
        "errors",
        "layout",
        "norm",
    },
    "select": {"select", "kernels", "device", "environ", "errors", "layout", "store"},
    "tune": {
        "buffer_place",
        "machine_load",
        "timed_outputs",
        "tune",
        "select",
        "kernels",
        "device",
        "call",
        "errors",
        "layout",
        "angles",
        "config",
        "emulation",
        "reference",
        "testing",
    },
}


def imported(file: Path) -> set[str]:
    """The first names, below clrope, of all that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = [file.parent.name] if node.level == 1 else []
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found |= {".".join([*above, name]).split(".")[0] for name in names}
    return found


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_run_one_way(package: str) -> None:
    files = sorted((PACKAGE / package).glob("*.py"))
    assert len(files) > 3
    for file in files:
        assert imported(file) <= ALLOWED[package], file
