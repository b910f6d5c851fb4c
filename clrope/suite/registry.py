"""The suites by name. A file in `clrope/suite/grids/` that uses `@suite("name")` is a suite; no other edit is needed.

A suite is a function without arguments that yields its lines (`SuiteCase`), always the same lines in the same order.
The seed of a run changes the inputs only.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from ..errors import ConfigError
from .case_outcome import SuiteCase

Source = Callable[[], Iterable[SuiteCase]]
#: The name of every suite together.
ALL = "all"


@dataclass(frozen=True)
class Suite:
    """A named source of cases; remark: a sentence for the report, e.g. on a second reference."""

    name: str
    cases: Source
    remark: Callable[[], str]

    @property
    def summary(self) -> str:
        """First line of the source's docstring."""
        return (self.cases.__doc__ or "").strip().partition("\n")[0]


def suite(name: str, remark: Callable[[], str] = lambda: "") -> Callable[[Source], Suite]:
    """Make a suite of a function that yields cases."""
    return lambda source: Suite(name, source, remark)


@cache
def suites() -> dict[str, Suite]:
    """Return the suites of all files in `grids` by name, 'seed' first."""
    grids = importlib.import_module(f"{__package__}.grids")
    modules = [importlib.import_module(f"{grids.__name__}.{m.name}") for m in pkgutil.iter_modules(grids.__path__)]
    return by_name([value for module in modules for value in vars(module).values() if isinstance(value, Suite)])


def by_name(found: Iterable[Suite]) -> dict[str, Suite]:
    """Return suites by name, 'seed' first; `ConfigError` where two have the same name."""
    out: dict[str, Suite] = {}
    for each in sorted(found, key=lambda s: (s.name != "seed", s.name)):
        if each.name == ALL or each.name in out:
            raise ConfigError(f"suite: the name {each.name!r} is taken")
        out[each.name] = each
    return out


def suite_names() -> list[str]:
    """Return the names of all suites."""
    return list(suites())


def chosen_suites(names: Iterable[str | Suite]) -> list[Suite]:
    """Return the suites of these names, 'all' for every one; `ConfigError` for an unknown name. A suite is itself."""
    known = suites()
    out: dict[str, Suite] = {}
    for name in names:
        if isinstance(name, Suite):
            out[name.name] = name
            continue
        if name != ALL and name not in known:
            raise ConfigError(f"suite: got {name!r}, allowed are {', '.join([*known, ALL])}")
        out |= known if name == ALL else {name: known[name]}
    return list(out.values())


def cases_of(chosen: Suite, text: str = "") -> Iterator[SuiteCase]:
    """Yield the cases of a suite whose label contains the text (each of its words, if there are several)."""
    words = text.split()
    for case in chosen.cases():
        if all(word in case.label for word in words):
            yield case
