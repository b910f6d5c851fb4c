"""The suites by name. Activation: a file in `clrope/suite/grids/` that uses `@suite("name")` is a suite; nothing else.

A suite is a function without arguments that yields its lines (`SuiteCase`), always the same ones in the same order:
what changes from run to run are the inputs, which the runner's seed decides.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from ..errors import ConfigError
from .outcome import SuiteCase

Source = Callable[[], Iterable[SuiteCase]]
#: Stands for every suite there is.
ALL = "all"


@dataclass(frozen=True)
class Suite:
    """A named source of cases; `remark` says, when asked, what else the report should tell (what it was judged by)."""

    name: str
    cases: Source
    remark: Callable[[], str]

    @property
    def summary(self) -> str:
        """First line of the source's docstring."""
        return (self.cases.__doc__ or "").strip().partition("\n")[0]


_suites: dict[str, Suite] = {}


def suite(name: str, remark: Callable[[], str] = lambda: "") -> Callable[[Source], Source]:
    """Register a function that yields cases under a name."""

    def register(source: Source) -> Source:
        if name == ALL or (name in _suites and _suites[name].cases is not source):
            raise ConfigError(f"suite: the name {name!r} is taken")
        _suites[name] = Suite(name, source, remark)
        return source

    return register


@lru_cache(maxsize=1)
def _load() -> None:
    from . import grids

    for module in pkgutil.iter_modules(grids.__path__):
        importlib.import_module(f"{grids.__name__}.{module.name}")


def suite_names() -> list[str]:
    """Return the names of all suites."""
    _load()
    return sorted(_suites, key=lambda name: (name != "seed", name))


def chosen_suites(names: Iterable[str]) -> list[Suite]:
    """Return the suites of these names, 'all' for every one; `ConfigError` for an unknown name."""
    known = suite_names()
    out: dict[str, Suite] = {}
    for name in names:
        if name != ALL and name not in known:
            raise ConfigError(f"suite: got {name!r}, allowed are {', '.join([*known, ALL])}")
        for each in known if name == ALL else [name]:
            out[each] = _suites[each]
    return list(out.values())


def cases_of(chosen: Suite, text: str = "") -> Iterator[SuiteCase]:
    """Yield the cases of a suite whose label contains the text (each of its words, if there are several)."""
    words = text.split()
    for case in chosen.cases():
        if all(word in case.label for word in words):
            yield case
