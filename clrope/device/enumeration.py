"""Asking every driver for its devices in a child process first, and finding the driver that crashes, if one does."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from . import child, store
from .health import FAILURE_KEPT_S
from .icd import Icd, Plan


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

    platforms: list[dict[str, Any]] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    #: Library to the dynamic linker's message, for drivers that do not load (the loader passes over them silently).
    unloaded: dict[str, str] = field(default_factory=dict)
    #: Whether the drivers may be loaded into this process (they did not crash the child).
    safe: bool = True


def enumerate_devices(plan: Plan, *, refresh: bool = False) -> tuple[Plan, Enumeration]:
    """Return the plan without the drivers that crash, and what a child process saw under it; remembered."""
    if not child.available():
        return plan, Enumeration()  # no way to be careful
    key = plan.fingerprint()
    entry = None if refresh else store.get("enumeration", key)
    known = _read(entry) if entry else None
    if known is None:
        whole = _ask(plan)
        if whole.outcome == "unavailable":
            return plan, Enumeration()
        known = _find_out(plan, whole)
        store.put("enumeration", key, asdict(known), keep_s=FAILURE_KEPT_S if known.broken or known.unloaded else None)
    if plan.controlled:
        plan = plan.without({b.icd for b in known.broken})
    return plan, known


def _find_out(plan: Plan, whole: child.ChildResult) -> Enumeration:
    if whole.outcome == "ok":
        return Enumeration(whole.answer["platforms"], unloaded=whole.answer["unloaded"])
    # One at a time: which of them fail alone?
    broken: list[Broken] = []
    alone: list[dict[str, Any]] = []
    for icd in plan.icds:
        result = _ask(plan.only(icd))
        if result.outcome == "ok":
            alone += result.answer["platforms"]
        else:
            broken.append(_broken(icd, result))
    if not plan.controlled:
        return Enumeration(alone, broken or [Broken("", "", whole.outcome, whole.reason)], safe=False)
    rest = plan.without({b.icd for b in broken})
    result = _ask(rest) if broken else whole
    if result.outcome == "ok":
        return Enumeration(result.answer["platforms"], broken, result.answer["unloaded"])
    # Each works alone, not all together: take them in one by one, and leave out the one that breaks it.
    kept: list[Icd] = []
    answer: list[dict[str, Any]] = []
    for icd in rest.icds:
        result = _ask(rest.without({i.path for i in rest.icds} - {i.path for i in [*kept, icd]}))
        if result.outcome == "ok":
            kept.append(icd)
            answer = result.answer["platforms"]
        else:
            broken.append(_broken(icd, result))
    # Only drivers outside our reach are left to blame if leaving out none or all changed nothing.
    return Enumeration(answer, broken or [Broken("", "", result.outcome, result.reason)], safe=bool(kept))


def _ask(plan: Plan) -> child.ChildResult:
    job = {"job": "enumerate", "pyopencl_home": plan.pyopencl_home(), "libraries": [i.library for i in plan.icds]}
    return child.run(job, plan.environment())


def _broken(icd: Icd, result: child.ChildResult) -> Broken:
    return Broken(icd.path, icd.library, result.outcome, result.reason)


def _read(entry: dict[str, Any]) -> Enumeration | None:
    try:
        platforms = entry["platforms"]
        for platform in platforms:
            for device in platform["devices"]:
                if len(device["id"]) != 3:
                    return None
        return Enumeration(
            platforms, [Broken(**b) for b in entry["broken"]], dict(entry["unloaded"]), bool(entry["safe"])
        )
    except (KeyError, TypeError, ValueError):
        return None
