"""Asking every driver for its devices in a child process first, and finding the driver that crashes, if one does."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from ..store import Store
from .child import ChildResult, available
from .child import run as run_child
from .health import FAILURE_KEPT_S
from .icd import Icd, LoaderPlan


@dataclass(frozen=True)
class SeenDevice:
    """A device as a child process saw it; id: names of platform, device and driver version."""

    id: tuple[str, str, str]
    vendor: str
    version: str
    kind: str
    pocl_broken: bool


@dataclass(frozen=True)
class SeenPlatform:
    """A platform as a child process saw it."""

    name: str
    version: str
    devices: list[SeenDevice]
    error: str = ""


@dataclass(frozen=True)
class Broken:
    """A driver that cannot even be asked for its devices."""

    icd: str
    library: str
    cause: str
    reason: str


@dataclass
class Enumeration:
    """What a fresh process sees under a plan, and which drivers had to be left out for that."""

    platforms: list[SeenPlatform] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    #: Library to the dynamic linker's message, for drivers that do not load (the loader passes over them silently).
    unloaded: dict[str, str] = field(default_factory=dict)
    #: Whether the drivers may be loaded into this process (they did not crash the child).
    safe: bool = True


_STORE = Store("enumeration", Enumeration)


def enumerate_devices(plan: LoaderPlan, *, refresh: bool = False) -> tuple[LoaderPlan, Enumeration]:
    """Return the plan without the drivers that crash, and what a child process saw under it; remembered."""
    if not available():
        return plan, Enumeration()  # no way to be careful
    key = plan.fingerprint()
    known = None if refresh else _STORE.get(key)
    if known is None:
        whole = _ask(plan)
        if whole.outcome == "unavailable":
            return plan, Enumeration()
        known = _find_out(plan, whole)
        _STORE.put(key, known, keep_s=FAILURE_KEPT_S if known.broken or known.unloaded else None)
    if plan.controlled:
        plan = plan.without({b.icd for b in known.broken})
    return plan, known


def _find_out(plan: LoaderPlan, whole: ChildResult) -> Enumeration:
    if whole.outcome == "ok":
        return Enumeration(_platforms(whole), unloaded=whole.answer["unloaded"])
    # One at a time: which of them fail alone?
    broken: list[Broken] = []
    alone: list[SeenPlatform] = []
    for icd in plan.icds:
        result = _ask(plan.only(icd))
        if result.outcome == "ok":
            alone += _platforms(result)
        else:
            broken.append(_broken(icd, result))
    if not plan.controlled:
        return Enumeration(alone, broken or [Broken("", "", whole.outcome, whole.reason)], safe=False)
    rest = plan.without({b.icd for b in broken})
    result = _ask(rest) if broken else whole
    if result.outcome == "ok":
        return Enumeration(_platforms(result), broken, result.answer["unloaded"])
    # Each works alone, not all together: take them in one by one, and leave out the one that breaks it.
    kept: list[Icd] = []
    seen: list[SeenPlatform] = []
    for icd in rest.icds:
        result = _ask(rest.without({i.path for i in rest.icds} - {i.path for i in [*kept, icd]}))
        if result.outcome == "ok":
            kept.append(icd)
            seen = _platforms(result)
        else:
            broken.append(_broken(icd, result))
    # Only drivers outside our reach are left to blame if leaving out none or all changed nothing.
    return Enumeration(seen, broken or [Broken("", "", result.outcome, result.reason)], safe=bool(kept))


def _ask(plan: LoaderPlan) -> ChildResult:
    job = {"job": "enumerate", "pyopencl_home": plan.pyopencl_home(), "libraries": [i.library for i in plan.icds]}
    return run_child(job, plan.environment())


def _broken(icd: Icd, result: ChildResult) -> Broken:
    return Broken(icd.path, icd.library, result.outcome, result.reason)


def _platforms(result: ChildResult) -> list[SeenPlatform]:
    return msgspec.convert(result.answer["platforms"], list[SeenPlatform])
