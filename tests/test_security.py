"""What SECURITY.md says of the package's code: no pickle, no network, no shell, no code from data."""

from __future__ import annotations

import ast
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


def test_the_package_keeps_what_security_md_says() -> None:
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
