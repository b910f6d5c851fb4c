"""`devices()`: every OpenCL device of the machine, with its health, in a stable order.

The order of events: plan which drivers the loader shall see (`icd`), ask them in a child process and leave out one
that crashes (`enumeration`), find a CPU name for a PoCL that needs it (`pocl`), only then ask in this process, probe
each device in a child (`health`). All but the asking in this process is remembered, so it is paid for once a machine.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError
from . import health as health_room
from . import icd, info, pocl, probe, store
from .enumeration import Enumeration, enumerate_devices
from .info import DeviceInfo, Health

if TYPE_CHECKING:
    import pyopencl

_lock = threading.RLock()
_state: _State | None = None


@dataclass
class _State:
    """What was found in this process."""

    pid: int
    devices: list[DeviceInfo]
    #: Whether somebody had queried platforms in this process before, so that no driver could be added.
    started: bool


def devices(refresh: bool = False) -> list[DeviceInfo]:
    """Return all devices of all platforms, then drivers and devices that cannot be used, each with its health.

    The first call on a machine takes some seconds (each device is probed in a child process); what it found is
    remembered, later processes need a fraction of a second, later calls nothing. `refresh=True` probes anew.
    """
    global _state
    with _lock:
        check_fork()
        if _state is None or refresh:
            # One process at a time probes, the others then find what it remembered (and do not disturb its timing).
            with store.locked("discovery", timeout=300.0):
                _state = _discover(refresh)
        return list(_state.devices)


def check_fork() -> None:
    """Raise `DeviceError` in a process forked after OpenCL was started: drivers' threads do not survive that."""
    if _state is not None and _state.pid != os.getpid():
        raise DeviceError(
            "device: this process was forked after OpenCL had been started in its parent, where no driver works; "
            "start it by multiprocessing's 'spawn' or 'forkserver', or call clrope only in the children"
        )


def _discover(refresh: bool) -> _State:
    import pyopencl as cl

    plan = icd.make_plan()
    started = _state.started if _state else icd.already_started(plan)
    plan, seen = enumerate_devices(plan, refresh=refresh)
    if not seen.safe:
        entries = [_broken_entry(plan, b) for b in seen.broken]
        return _State(os.getpid(), [*_out_of_reach(plan, seen), *entries], started)
    environment = plan.environment()
    decisions = _decide_pocl(plan, seen, environment, refresh)
    cpu_environment: dict[str, str | None] = {}
    for decision in decisions.values():
        cpu_environment |= pocl.cache_environment(decision.cpu)

    with icd.applied({**environment, **cpu_environment}, plan.pyopencl_home()):
        platforms = probe.list_platforms(cl)
        found = [(p, d, device) for p, pl in enumerate(platforms) for d, device in enumerate(_devices_of(cl, pl))]
    pocl.simulate(device for _, _, device in found)

    out = []
    counted: Counter[tuple[str, ...]] = Counter()
    for p, d, device in found:
        device_id = probe.identity(device)
        ordinal = counted[tuple(device_id)]
        counted[tuple(device_id)] += 1
        cpu, trouble, notes = _repair(device, decisions, started)
        if trouble:
            health = trouble
        else:
            health = health_room.examine(
                _health_key(device, cpu),
                device_id, ordinal, {**environment, **pocl.cache_environment(cpu)}, plan.pyopencl_home(), cpu,
                refresh=refresh,
            )  # fmt: skip
            why = decisions.get(device.platform.version, pocl.Decision("", "")).reason
            if not health.ok and why and pocl.may_need_repair(device):
                health = replace(health, reason=f"{health.reason}; {why}")
        out.append(info.describe(device, p, d, health=health, loader=plan.loader, pocl_cpu=cpu, notes=notes))
    hidden = _hidden(plan, seen, counted, started)
    if hidden and not started:
        # What is remembered may be out of date (a device taken away): look again before saying so.
        _, seen = enumerate_devices(plan, refresh=True)
        hidden = _hidden(plan, seen, counted, started)
    entries = [_broken_entry(plan, b) for b in seen.broken]
    entries += [_unloaded_entry(plan, library, message) for library, message in seen.unloaded.items()]
    return _State(os.getpid(), [*out, *hidden, *entries, *_passed_over(plan)], started)


def _devices_of(cl: Any, platform: pyopencl.Platform) -> list[pyopencl.Device]:
    try:
        return probe.list_devices(cl, platform)
    except cl.Error:
        return []


def _health_key(device: pyopencl.Device, cpu: str) -> str:
    from . import procmem

    library = procmem.icd_library(device.platform.int_ptr)
    try:
        status = os.stat(library)
        driver: list[Any] = [library, status.st_mtime_ns, status.st_size]
    except OSError:
        driver = [library]
    return health_room.key(probe.identity(device), device.version, device.platform.version, driver, cpu)


def _decide_pocl(
    plan: icd.Plan, seen: Enumeration, environment: dict[str, str | None], refresh: bool
) -> dict[str, pocl.Decision]:
    out: dict[str, pocl.Decision] = {}
    for platform in seen.platforms:
        version = platform["version"]
        for device in platform["devices"]:
            if device["pocl_broken"] and version not in out:
                out[version] = pocl.decide(device["id"], version, environment, plan.pyopencl_home(), refresh=refresh)
    return out


def _repair(
    device: pyopencl.Device, decisions: dict[str, pocl.Decision], started: bool
) -> tuple[str, Health | None, tuple[str, ...]]:
    """Apply what was decided; returns the CPU name given, the trouble that forbids it, and remarks."""
    decision = decisions.get(device.platform.version)
    if decision is None or not decision.cpu:
        return "", None, ()
    if started and pocl.wanted():
        # PoCL's ordinary kernel cache is in use already, and it does not tell CPU names apart: what this name
        # compiles would be taken from there by processes that use another one.
        reason = "CLROPE_POCL_CPU is set, but PoCL was started before clrope could give it a kernel cache of its own"
        return "", health_room.failure("hidden", reason), ()
    if pocl.current_cpu(device) == decision.cpu or (pocl.may_need_repair(device) and pocl.repair(device, decision.cpu)):
        return decision.cpu, None, (decision.reason,)
    return "", None, ()


def _broken_entry(plan: icd.Plan, broken: Any) -> DeviceInfo:
    health = health_room.failure(broken.cause, broken.reason)
    name = os.path.basename(broken.icd) or "unknown driver"
    return info.absent(name, broken.library or "?", health, loader=plan.loader, icd=broken.library)


def _unloaded_entry(plan: icd.Plan, library: str, message: str) -> DeviceInfo:
    intel = os.path.basename(library).startswith("libintelocl")
    health = health_room.failure("error", f"the driver's library does not load: {message}")
    if intel:
        health = replace(
            health, hint="`pip install intel-cmplr-lib-rt` (needed by intel-opencl-rt, not declared by it)"
        )
    named = [os.path.basename(i.path) for i in plan.icds if i.library == library]
    name = "Intel(R) OpenCL" if intel else (named or ["?"])[0]
    return info.absent(name, library, health, loader=plan.loader, icd=library)


def _out_of_reach(plan: icd.Plan, seen: Enumeration) -> list[DeviceInfo]:
    names = ", ".join(b.library for b in seen.broken if b.library) or "one of the drivers"
    variable = next((v for v in icd.USER_VARIABLES if os.environ.get(v)), "the loader's directory")
    health = Health(
        "unhealthy", "hidden", f"not loaded, because {names} crashes and is loaded together with it",
        f"take the driver that crashes out of {variable}, or unset it",
    )  # fmt: skip
    return [_absent_entry(plan, platform, device, health) for platform, device in _seen(seen)]


def _hidden(plan: icd.Plan, seen: Enumeration, here: Counter[tuple[str, ...]], started: bool) -> list[DeviceInfo]:
    """Return entries for what a fresh process sees and this one does not."""
    left = here.copy()
    out = []
    for platform, device in _seen(seen):
        key = tuple(device["id"])
        if left[key] > 0:
            left[key] -= 1
            continue
        health = health_room.failure("hidden", "installed, but the OpenCL loader does not show it in this process")
        if started:
            health = replace(health, reason=f"{health.reason}: platforms were queried before clrope could add it")
        out.append(_absent_entry(plan, platform, device, health))
    return out


def _passed_over(plan: icd.Plan) -> list[DeviceInfo]:
    variable = next((v for v in icd.USER_VARIABLES if os.environ.get(v)), "")
    health = Health(
        "unhealthy", "hidden", f"installed, but {variable} is set and decides which drivers are loaded",
        f"unset {variable}, or name the driver there too",
    )  # fmt: skip
    return [
        info.absent("Intel(R) OpenCL", os.path.basename(i.library), health, loader=plan.loader, icd=i.library)
        for i in plan.passed_over
    ]


def _seen(seen: Enumeration) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(platform, device) for platform in seen.platforms for device in platform["devices"]]


def _absent_entry(plan: icd.Plan, platform: dict[str, Any], device: dict[str, Any], health: Health) -> DeviceInfo:
    name, driver = device["id"][1:]
    return info.absent(
        platform["name"], name, health, loader=plan.loader, kind=device["kind"], vendor=device["vendor"],
        version=device["version"], platform_version=platform["version"], driver_version=driver,
    )  # fmt: skip


def from_cl_device(device: pyopencl.Device) -> DeviceInfo:
    """Return what is known of a device the caller brought; it is not probed, and taken as it is."""
    with _lock:
        check_fork()
        if _state is None and pocl.may_need_repair(device):
            devices()
        for known in _state.devices if _state else ():
            if known._cl == device:
                return known
        # A sub-device, or a device of a process in which nothing was discovered.
        import pyopencl as cl

        p = d = -1
        for i, platform in enumerate(probe.list_platforms(cl)):
            if platform == device.platform:
                listed = _devices_of(cl, platform)
                p, d = i, listed.index(device) if device in listed else -1
        health = health_room.remembered(_health_key(device, "")) if d >= 0 else None
        unknown = Health("unknown", "", "not probed; it was given by the caller")
        return info.describe(device, p, d, health=health or unknown, loader=icd.loader_path())
