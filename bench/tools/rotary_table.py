"""Every rotary function of the installed transformers, in docs/models.md: `python bench/tools/rotary_table.py`.

Each function is probed as `clrope.interop.transformers.patch` does it; no model is built. With --check nothing is
written, and the exit code is 1 if a table is out of date.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

from clrope.interop.rotary_functions import UnnamedError, candidates, probe

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN = "<!-- functions: from the installed transformers, by `python bench/tools/rotary_table.py` -->\n"
END = "<!-- end -->\n"


class Found(NamedTuple):
    """A function of a Python module of transformers, with its convention or the reason why it has none."""

    module: str
    function: str
    convention: str | None
    reason: str | None


def modules() -> list[str]:
    """Return the folders of transformers' models, each with the names of its Python modules that define models."""
    root = Path(transformers.__file__).parent / "models"
    return sorted(f"{path.parent.name}.{path.stem}" for path in root.glob("*/modeling_*.py"))


def functions_of(module: str) -> list[Found]:
    """Return what probing finds in one Python module. Raises `ImportError` where a package is missing."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = importlib.import_module(f"transformers.models.{module}")
    for name, function in candidates(loaded).items():
        try:
            found.append(Found(module, name, str(probe(function)), None))
        except UnnamedError as error:
            found.append(Found(module, name, None, str(error)))
    return found


def short(module: str) -> str:
    """Return `llama` for `llama.modeling_llama`; other names stay whole."""
    folder, name = module.split(".")
    return folder if name == f"modeling_{folder}" else module


def table(found: list[Found]) -> str:
    """Return the tables: functions by convention, and those that stay unchanged."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in found:
        if one.convention is not None:
            groups[one.convention, one.function].append(short(one.module))
    named = sum(map(len, groups.values()))
    lines = [
        f"transformers {transformers.__version__} has {len(found)} rotary functions; {named} are rotated by clrope:",
        "",
        "| convention | function | number | in |",
        "|---|---|---|---|",
    ]
    for (convention, function), names in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"| {convention} | `{function}` | {len(names)} | {', '.join(names)} |")
    lines += ["", f"{len(found) - named} stay unchanged:", "", "| function | in | why |", "|---|---|---|"]
    lines += [f"| `{one.function}` | {short(one.module)} | {one.reason} |" for one in found if one.convention is None]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether the tables are out of date")
    check = parser.parse_args().check
    transformers.logging.set_verbosity_error()
    found = []
    for module in modules():
        try:
            found += functions_of(module)
        except ImportError as error:
            print(f"{module}: {error}", file=sys.stderr)
    old = PAGE.read_text(encoding="utf-8")
    before, rest = old.split(BEGIN)
    new = before + BEGIN + table(found) + END + rest.split(END, 1)[1]
    if new == old:
        return 0
    print(PAGE.name)
    if not check:
        PAGE.write_text(new, encoding="utf-8")
    return 1 if check else 0


if __name__ == "__main__":
    sys.exit(main())
