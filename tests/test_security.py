"""What docs/security.md promises of the package's code: no pickle, no network, no shell, no code from data."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import clrope

ROOT = Path(clrope.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
FORBIDDEN = {
    "pickle", "shelve", "marshal", "dill", "joblib", "socket", "ssl", "http", "urllib", "urllib3", "requests", "httpx",
    "aiohttp", "ftplib", "smtplib", "telnetlib", "huggingface_hub",
}  # fmt: skip


def problems(tree: ast.Module) -> list[str]:
    """Return what a module does that it must not."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in FORBIDDEN]
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in FORBIDDEN:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if called in ("eval", "exec", "os.system", "os.popen"):
                found.append(called)
            if given.get("shell", "False") != "False":
                found.append(f"{called}(shell=...)")
            if called.split(".")[-1] in ("load", "read_array", "write_array") and called.startswith("np."):
                found += [] if given.get("allow_pickle") == "False" else [called]
            if called == "torch.load":
                found.append(called)
    return found


def test_the_package_keeps_its_promises() -> None:
    assert len(FILES) > 100
    found = {str(f.relative_to(ROOT)): problems(ast.parse(f.read_text(encoding="utf-8"))) for f in FILES}
    assert not {name: what for name, what in found.items() if what}


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from urllib.request import urlopen", "import http.client as h", "eval(x)", "np.load(path)",
        "np.load(path, allow_pickle=True)", "subprocess.run(x, shell=True)", "torch.load(path)",
    ],
)  # fmt: skip
def test_the_check_finds(text: str) -> None:
    assert problems(ast.parse(text))


def test_programs_are_built_in_one_place() -> None:
    """`build` takes sources and what it kept, `probe` its own kernels."""
    calls = {
        path.relative_to(ROOT).as_posix(): [
            ast.unparse(node.func).split(".")[-1]
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)
        ]
        for path in FILES
    }
    found = {path for path, names in calls.items() if {"Program", "create_program_with_source"} & set(names)}
    assert found == {"kernels/build.py", "device/probe.py"}


def test_every_promise_names_a_test() -> None:
    text = (ROOT.parent / "docs" / "security.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[^`]+)`", text)
    assert len(named) == text.count("\n| **") >= 10
    for name in named:
        path, _, function = name.partition("::")
        source = (ROOT.parent / path).read_text(encoding="utf-8")
        assert f"def {function or 'test_'}" in source, name
