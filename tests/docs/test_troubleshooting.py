"""`docs/troubleshooting.md` quotes every hint, and messages as the package has them.

In the page's tables the columns headed as in `QUOTING` hold quotes: each code span is a text as it begins, with '...'
for each part that varies. A column 'hint' holds whole hints, a column 'health.cause' the causes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

import pytest

from clrope.device.info import Cause

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
QUOTING = ("message", "reason", "warning")
#: Where the page quotes every message. For the other modules the page may show one of several like messages.
WHOLE = ("device/", "runtime.py", "cache_folder.py", "store.py", "io/files.py")
#: Calls, besides those of exceptions, whose texts users see.
SAYS = ("warn_once", "failure", "Health", "Decision", "ChildResult")
REST = "..."
_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")


def normal(text: str) -> str:
    """A text with single blanks, and one '...' for parts that vary next to each other or to a dot."""
    return re.sub(r"\.{3,}", REST, " ".join(text.split()))


def literal(node: ast.AST | None) -> str | None:
    """The text of a string expression, '...' for what varies; None for another expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) or REST if isinstance(part, ast.Constant) else REST for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [literal(side) for side in (node.left, node.right)]
        return None if parts == [None, None] else "".join(REST if part is None else part for part in parts)
    return None


def name_of(node: ast.AST) -> str:
    """The last name of a name, an attribute or a call."""
    if isinstance(node, ast.Call):
        return name_of(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def assigned(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Names with the expressions assigned to them."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    yield from zip(map(name_of, target.elts), node.value.elts, strict=True)
                else:
                    yield name_of(target), node.value


class Package:
    """The texts of the modules of a package, given as sources by path."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.trees = {path: ast.parse(source) for path, source in sources.items()}
        nodes = [node for tree in self.trees.values() for node in ast.walk(tree)]
        self.functions = {
            (path, node.name): node for path, tree in self.trees.items() for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
        }  # fmt: skip
        self.path_of = {id(node): path for path, tree in self.trees.items() for node in ast.walk(tree)}
        constants = [node for tree in self.trees.values() for node in tree.body]
        self.constants = {name: value for node in constants for name, value in assigned(node) if name.isupper()}
        left_out = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # documentation
        left_out |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        self.texts = {normal(text) for node in nodes if id(node) not in left_out and (text := literal(node))}

    def resolve(self, node: ast.AST | None, inside: ast.AST, depth: int = 6) -> set[str]:
        """All texts that an expression can stand for: by names, choices, lists, and functions of the package."""
        text = literal(node)
        if text is not None or node is None or not depth:
            begun = self._begun(node, inside, depth) if isinstance(node, ast.JoinedStr) else set()
            return begun or ({normal(text)} if text else set())
        others: list[ast.AST] = []
        if isinstance(node, ast.Name):
            local = [value for name, value in assigned(inside) if name == node.id]
            others = local or [self.constants[name] for name in [node.id] if name in self.constants]
        elif isinstance(node, ast.IfExp):
            others = [node.body, node.orelse]
        elif isinstance(node, (ast.List, ast.Tuple)):
            others = list(node.elts)
        elif isinstance(node, ast.Dict):
            others = list(node.values)
        elif isinstance(node, ast.Call) and name_of(node) == "join":
            others = list(node.args)
        elif isinstance(node, ast.Call):
            called = self._function(name_of(node), self.path_of[id(node)])
            if called is not None:
                inside = called
                others = [step.value for step in ast.walk(inside) if isinstance(step, ast.Return) and step.value]
        return {text for other in others for text in self.resolve(other, inside, depth - 1)}

    def _begun(self, node: ast.JoinedStr, inside: ast.AST, depth: int) -> set[str]:
        """The texts of an f-string that begins with a variable of known texts."""
        first = node.values[0]
        if not (isinstance(first, ast.FormattedValue) and isinstance(first.value, ast.Name)):
            return set()
        rest = literal(ast.JoinedStr(values=node.values[1:]))
        return {normal(f"{begin}{rest}") for begin in self.resolve(first.value, inside, depth - 1)}

    def _function(self, name: str, path: str) -> ast.FunctionDef | None:
        """The function of that name in a module, or else in any."""
        if (path, name) in self.functions:
            return self.functions[path, name]
        return next((node for (_, other), node in self.functions.items() if other == name), None)

    def _scopes(self, under: tuple[str, ...]) -> Iterator[ast.AST]:
        """Modules' statements and functions, inner functions in their outer ones."""
        for path, tree in self.trees.items():
            if path.startswith(under):
                for node in tree.body:
                    yield from node.body if isinstance(node, ast.ClassDef) else [node]

    def messages(self, *under: str) -> set[str]:
        """What exceptions, warnings and reasons say in the modules whose path begins so."""
        found = set()
        for scope in self._scopes(under or ("",)):
            for node in ast.walk(scope):
                if isinstance(node, ast.Call) and (name_of(node).endswith("Error") or name_of(node) in SAYS):
                    for value in [*node.args, *(keyword.value for keyword in node.keywords)]:
                        found |= self.resolve(value, scope)
            for name, value in assigned(scope):
                if name == "reason":
                    found |= self.resolve(value, scope)
        found = {text.lstrip("; ") for text in found if len(words(text)) > 1 and not text.startswith("what to do:")}
        return found - self.hints()

    def hints(self) -> set[str]:
        """What users are told to do: by `hint=`, by names that end in 'hint', and behind 'what to do:'."""
        found = {text.partition("what to do: ")[2] for text in self.texts}
        for scope in self._scopes(("",)):
            for node in ast.walk(scope):
                if isinstance(node, ast.Call):
                    values = [keyword.value for keyword in node.keywords if keyword.arg == "hint"]
                    values += node.args[3:4] if name_of(node) == "Health" else []
                    found |= {text for value in values for text in self.resolve(value, scope)}
            for name, value in assigned(scope):
                if name.lower().rstrip("s").endswith("hint"):
                    found |= self.resolve(value, scope)
        return {text.lstrip("; ") for text in found if text not in ("", REST)}

    def has(self, quote: str) -> bool:
        """Whether a text of the package begins as quoted."""
        return any(text.lstrip("; ").startswith(beginning(quote)) for text in self.texts)


def words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z]{2,}", text)


def beginning(quote: str) -> str:
    return quote.removesuffix(REST).rstrip()


def quotes(page: str, column: str) -> list[str]:
    """The code spans in all columns of that heading."""
    found, heads = [], []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and not heads:
            heads = cells
        assert not cells or len(cells) == len(heads), f"a row of {len(cells)} cells under {heads}: {line}"
        found += [normal(span) for head, cell in zip(heads, cells, strict=False) if head == column
                  for _, span in _SPAN.findall(cell)]  # fmt: skip
        heads = heads if cells else []
    return found


def unquoted(messages: set[str], page: str) -> list[str]:
    """The messages that no quote begins; a quote counts if it has two words."""
    known = [beginning(quote) for column in QUOTING for quote in quotes(page, column)]
    known = [quote for quote in known if len(words(quote)) > 1]
    return sorted(text for text in messages if not text.startswith(tuple(known)))


@pytest.fixture(scope="module")
def package() -> Package:
    folder = ROOT / "clrope"
    return Package({path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.rglob("*.py")})


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_the_page_has_every_hint_and_no_other(package: Package, page: str) -> None:
    hints = package.hints()
    assert len(hints) > 10
    assert sorted(hints - set(quotes(page, "hint"))) == []
    assert sorted(set(quotes(page, "hint")) - hints) == []


def test_the_page_has_every_cause(page: str) -> None:
    assert sorted(quotes(page, "health.cause")) == sorted(set(get_args(Cause)) - {""})


@pytest.mark.parametrize("column", QUOTING)
def test_what_the_page_quotes_exists(package: Package, page: str, column: str) -> None:
    found = quotes(page, column)
    assert found
    assert [quote for quote in found if not package.has(quote)] == []


def test_the_page_has_every_message_of_devices_cache_and_files(package: Package, page: str) -> None:
    messages = package.messages(*WHOLE)
    assert len(messages) > 60
    assert unquoted(messages, page) == []


SMALL = '''
"""A docstring: not a message."""
HINT = "go there"
FORKED = "device: this process was forked"

def told(x):
    text, x = f"device {x}: it is told", 1
    return f"{text}\\n  what to do: {x}"

def why(path):
    if path:
        return f"it belongs to {path}, another user"
    return ""

def check(x, found):
    text = f"device {x!r}: nothing matches"
    text += f"; {found} and {x}{x} is set"
    if x:
        raise DeviceError(FORKED)
    reason = why(x)
    warn_once(f"{x} is not used: {reason}")
    Health("unhealthy", "error", f"{x} is broken", f"unset {x}, then")
    if x == 3:
        raise DeviceError(told(x))
    raise DeviceError(text + f"\\n  what to do: update {x}")
'''


def test_texts_are_found_in_sources() -> None:
    package = Package({"small.py": SMALL})
    assert package.hints() == {"go there", "update ...", "unset ..., then"}
    messages = package.messages()
    for text in (
        "device: this process was forked", "it belongs to ..., another user", "... is not used: ...", "... is broken",
        "device ...: it is told what to do: ...",
    ):  # fmt: skip
        assert text in messages
    assert package.messages("other.py") == set()
    assert package.has("device ...: nothing ...")
    assert package.has("... and ... is set")
    assert not package.has("A docstring")
    assert not package.has("device ...: something matches")


def test_a_stale_or_missing_quote_is_found() -> None:
    page = "| message | cause |\n|---|---|\n| `` `a` is ... ``<br>`b: got ...` | `c d` |\n\ntext `e f`\n"
    assert quotes(page, "message") == ["`a` is ...", "b: got ..."]
    assert quotes(page, "cause") == ["c d"]
    assert unquoted({"`a` is here", "b: got ..., no", "c d"}, page) == ["`a` is here", "b: got ..., no", "c d"]
    assert unquoted({"it belongs to ..."}, page.replace("b: got", "it belongs")) == []
    with pytest.raises(AssertionError, match="3 cells"):
        quotes(page.replace("`c d`", "`c | d`"), "message")
