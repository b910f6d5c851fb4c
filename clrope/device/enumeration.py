"""Query of all drivers in a child process, which finds drivers that crash."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from ..store import Store
from .child import ChildResult, available
from .child import run as run_child
from .health import FAILURE_KEPT_S
from .icd import Icd, LoaderPlan
from .info import Kind, limits_key


@dataclass(frozen=True)
class SeenDevice:
    """A device as a child process saw it; id: names of platform, device and driver version."""

    id: tuple[str, str, str]
    vendor: str
    version: str
    kind: Kind
    platform_version: str
    pocl_broken: bool


@dataclass(frozen=True)
class Broken:
    """A driver that fails when it is asked for its devices."""

    icd: str
    library: str
    cause: str
    reason: str


@dataclass
class Enumeration:
    """The devices that a fresh process sees under a plan, and the drivers that had to be left out."""

    devices: list[SeenDevice] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    #: Library to the dynamic linker's message, for drivers that do not load (the loader passes over them silently).
    unloaded: dict[str, str] = field(default_factory=dict)
    #: Whether the drivers may be loaded into this process (they did not crash the child).
    safe: bool = True


_STORE = Store("enumeration", Enumeration, schema=3)


def enumerate_devices(plan: LoaderPlan, *, refresh: bool = False) -> tuple[LoaderPlan, Enumeration]:
    """Return the plan without the drivers that crash, and what a child process saw under it; remembered."""
    if not available():
        return plan, Enumeration()  # no way to be careful
    key = plan.fingerprint()
    failure_key = f"{key} {limits_key()}"
    known = None if refresh else _STORE.get(failure_key) or _STORE.get(key)
    if known is None:
        whole = _ask(plan)
        if whole.outcome == "unavailable":
            return plan, Enumeration()
        known = _find_out(plan, whole)
        if known.broken or known.unloaded:
            _STORE.put(failure_key, known, keep_s=FAILURE_KEPT_S)
        else:
            _STORE.forget(failure_key)
            _STORE.put(key, known)
    if plan.controlled:
        plan = plan.without({b.icd for b in known.broken})
    return plan, known


def _find_out(plan: LoaderPlan, whole: ChildResult) -> Enumeration:
    if whole.outcome == "ok":
        return Enumeration(_devices(whole), unloaded=whole.answer["unloaded"])
    # One after the other, next to the drivers that work so far: some crash only next to another one.
    kept: list[Icd] = []
    broken: list[Broken] = []
    seen: list[SeenDevice] = []
    for icd in plan.icds:
        result = _ask(plan.only(*kept, icd))
        if result.outcome == "ok":
            kept.append(icd)
            seen = _devices(result)
        else:
            broken.append(Broken(icd.path, icd.library, result.outcome, result.reason))
    rest = _ask(plan.without({b.icd for b in broken})) if plan.controlled and broken else whole
    if rest.outcome == "ok":
        return Enumeration(_devices(rest), broken, rest.answer["unloaded"])
    # What still fails cannot be left out: a driver that the user named, or one that this package does not see.
    return Enumeration(seen, broken or [Broken("", "", rest.outcome, rest.reason)], safe=False)


def _ask(plan: LoaderPlan) -> ChildResult:
    with plan.environment() as environment:
        return run_child({"job": "enumerate", "libraries": [i.library for i in plan.icds]}, environment)


def _devices(result: ChildResult) -> list[SeenDevice]:
    return msgspec.convert(result.answer["devices"], list[SeenDevice])
