"""The shape of the package: imports run one way, names are taken once, and nothing mutable lives in a module."""

from __future__ import annotations

import ast
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import clrope

ROOT = Path(clrope.__file__).parent
#: Commands import late, for their start-up time; the suite's torch cases, because torch is optional.
LATE = ("clrope.cli.", "clrope.suite.grids.interop.torch_cases")


def name_of(path: Path) -> str:
    parts = ("clrope", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {name_of(path): (path, ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(ROOT.rglob("*.py"))}


def imported(name: str, node: ast.Import | ast.ImportFrom) -> set[str]:
    """Return the package's modules that a statement imports."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} & TREES.keys()
    package = name if TREES[name][0].stem == "__init__" else name.rpartition(".")[0]
    base = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
    module = ".".join([*base, *([node.module] if node.module else [])])
    inside = {f"{module}.{alias.name}" for alias in node.names} & TREES.keys()
    # `from . import x` needs no more of a package than x, if x is a module.
    whole = {module} & TREES.keys() if len(inside) < len(node.names) else set()
    return (inside | whole) - {name}


def for_types_only(tree: ast.Module) -> set[int]:
    return {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }


def statements(name: str) -> list[tuple[bool, ast.Import | ast.ImportFrom]]:
    """Return (whether it is inside a function, statement) for each import that runs."""
    tree = TREES[name][1]
    skipped = for_types_only(tree)
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    inside = {id(inner) for function in functions for inner in ast.walk(function)}
    found = [n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)) and id(n) not in skipped]
    return [(id(node) in inside, node) for node in found]


def test_imports_run_one_way() -> None:
    graph = {name: set().union(*(imported(name, node) for _, node in statements(name)), set()) for name in TREES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"import circle: {' <- '.join(error.args[1])}") from error


def test_own_modules_are_imported_at_the_top() -> None:
    late = {
        (name, target)
        for name in TREES
        if not name.startswith(LATE)
        for inside, node in statements(name)
        if inside
        for target in imported(name, node)
    }
    assert not late


def test_names_are_taken_once() -> None:
    classes, modules = defaultdict(list), defaultdict(list)
    for name, (path, tree) in TREES.items():
        if path.stem not in ("__init__", "__main__"):
            modules[name.rpartition(".")[2]].append(name)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(name)
    assert not {n: where for n, where in (classes | modules).items() if len(where) > 1}


def test_nothing_mutable_lives_in_a_module() -> None:
    """But the one registry of runtimes, and objects that own what they hold."""
    empty = ("{}", "[]", "set()", "dict()", "list()")
    kinds = ("threading.", "OrderedDict", "weakref.", "collections.", "deque", "cachetools.")
    found = []
    for name, (_, tree) in TREES.items():
        for node in tree.body:
            value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
            text = "" if value is None else ast.unparse(value)
            if text in empty or text.startswith(kinds):
                found.append(f"{name}: {ast.unparse(node)}")
    assert not found
