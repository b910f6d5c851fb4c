"""`devices()`: every OpenCL device of the machine, with its health, in a stable order.

The steps: plan which drivers the loader shall see (`icd`), query them in a child process and leave out a driver that
crashes (`enumeration`), find a CPU name for a PoCL that needs one (`pocl`), only then query in this process, probe each
device in a child (`health`). All but the query in this process is remembered.
"""

from __future__ import annotations

import os
import threading
from collections import ChainMap, Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError
from ..store import locked
from .enumeration import Broken, Enumeration, SeenDevice, enumerate_devices
from .health import examine, failure, health_key, remembered
from .icd import LoaderPlan, already_started, applied, loader_path, make_plan, stamp, user_variable
from .info import DeviceInfo, Health, absent, describe
from .pocl import (
    Decision,
    cache_environment,
    current_cpu,
    decide_cpu,
    may_need_repair,
    repair_cpu,
    simulate_unknown_cpu,
    wanted_cpu,
)
from .probe import identity, list_devices, list_platforms
from .procmem import icd_library

if TYPE_CHECKING:
    import pyopencl


FORKED = (
    "device: this process was forked after OpenCL had been started in its parent, where no driver works; "
    "start it by multiprocessing's 'spawn' or 'forkserver', or call clrope only in the children"
)


@dataclass(frozen=True)
class _Listing:
    """The devices found in this process."""

    devices: list[DeviceInfo]
    #: Whether platforms had been queried in this process before, so that no driver could be added.
    started: bool


class Discovery:
    """The devices found in this process, found once."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._found: _Listing | None = None
        #: The process in which OpenCL was, or is being, started.
        self._pid: int | None = None

    def devices(self, refresh: bool = False) -> list[DeviceInfo]:
        """Return all devices of all platforms, then drivers and devices that cannot be used, each with its health.

        The first call on a machine takes some seconds, because each device is probed in a child process. Results are
        remembered for later processes. `refresh=True` probes again.
        """
        self.check_fork()
        with self._lock:
            if self._found is None or refresh:
                # One process at a time probes; the others wait, then read its results.
                with locked("discovery", timeout=300.0, beating=True):
                    self._found = _discover(self._found, refresh)
            return list(self._found.devices)

    def check_fork(self) -> None:
        """Raise `DeviceError` in a process forked after OpenCL was started: drivers' threads do not survive a fork.

        To be called before anything that starts it, and before a lock is taken that is held meanwhile: in a process
        forked while another thread starts OpenCL, nobody would release the lock.
        """
        if self._pid is None:
            self._pid = os.getpid()
        elif self._pid != os.getpid():
            raise DeviceError(FORKED)

    def from_cl_device(self, device: pyopencl.Device) -> DeviceInfo:
        """Return the `DeviceInfo` of a caller's device, which is not probed."""
        self.check_fork()
        with self._lock:
            if self._found is None and may_need_repair(device):
                self.devices()
            known = self._found.devices if self._found else []
            return next((d for d in known if d._cl == device), None) or _describe_unlisted(device)


_DISCOVERY = Discovery()
devices = _DISCOVERY.devices
check_fork = _DISCOVERY.check_fork
from_cl_device = _DISCOVERY.from_cl_device


def _discover(before: _Listing | None, refresh: bool) -> _Listing:
    plan = make_plan()
    started = before.started if before else already_started(plan)
    plan, seen = enumerate_devices(plan, refresh=refresh)
    if not seen.safe:
        entries = [_broken_entry(plan, b) for b in seen.broken]
        return _Listing([*_out_of_reach(plan, seen), *entries], started)
    with plan.environment() as environment:
        out, counted = _query(plan, seen, environment, started, refresh)
    hidden = _hidden(plan, seen, counted, started)
    if hidden and not started:
        # The stored enumeration may be out of date (a device was removed): query again before reporting.
        _, seen = enumerate_devices(plan, refresh=True)
        hidden = _hidden(plan, seen, counted, started)
    entries = [_broken_entry(plan, b) for b in seen.broken]
    entries += [_unloaded_entry(plan, library, message) for library, message in seen.unloaded.items()]
    return _Listing([*out, *hidden, *entries, *_passed_over(plan)], started)


def _query(
    plan: LoaderPlan, seen: Enumeration, environment: dict[str, str | None], started: bool, refresh: bool
) -> tuple[list[DeviceInfo], Counter[tuple[str, ...]]]:
    """Return the devices that this process sees, probed, and how often each identity is among them."""
    import pyopencl as cl

    decisions = _decide_pocl(seen, environment, refresh)
    caches = ChainMap(*(cache_environment(decision.cpu) for decision in decisions.values()))
    with applied({**environment, **caches}):
        platforms = list_platforms(cl)
        found = [(p, d, device) for p, pl in enumerate(platforms) for d, device in enumerate(_devices_of(cl, pl))]
    simulate_unknown_cpu(device for _, _, device in found)

    out = []
    counted: Counter[tuple[str, ...]] = Counter()
    for p, d, device in found:
        device_id = identity(device)
        ordinal = counted[tuple(device_id)]
        counted[tuple(device_id)] += 1
        cpu, problem, notes = _planned_repair(device, decisions, started)
        health = problem or examine(
            _health_key(device, cpu), device_id, ordinal, {**environment, **cache_environment(cpu)}, cpu,
            refresh=refresh,
        )  # fmt: skip
        if not problem:
            why = decisions.get(device.platform.version, Decision("", "")).reason
            if why and may_need_repair(device):
                if not health.ok:
                    health = replace(health, reason=f"{health.reason}; {why}")
                elif not cpu:
                    notes = (f"kernels with vectors of 64 bytes may be wrong: {why}",)
        prepare = partial(repair_cpu, cpu=cpu) if cpu else None
        known = {"health": health, "loader": plan.loader, "pocl_cpu": cpu, "notes": notes}
        out.append(describe(device, p, d, **known, _prepare=prepare, _find=_found_again))
    return out, counted


def _devices_of(cl: Any, platform: pyopencl.Platform) -> list[pyopencl.Device]:
    try:
        return list_devices(cl, platform)
    except cl.Error:
        return []


def _health_key(device: pyopencl.Device, cpu: str) -> str:
    library = icd_library(device.platform.int_ptr)
    return health_key(identity(device), device.version, device.platform.version, [library, *stamp(library)], cpu)


def _decide_pocl(seen: Enumeration, environment: dict[str, str | None], refresh: bool) -> dict[str, Decision]:
    broken = {device.platform_version: list(device.id) for device in reversed(seen.devices) if device.pocl_broken}
    return {
        version: decide_cpu(device_id, version, environment, refresh=refresh) for version, device_id in broken.items()
    }


def _planned_repair(
    device: pyopencl.Device, decisions: dict[str, Decision], started: bool
) -> tuple[str, Health | None, tuple[str, ...]]:
    """Return the CPU name that the device gets at its first use, the reason that forbids the repair, and notes."""
    decision = decisions.get(device.platform.version)
    if decision is None or not decision.cpu:
        return "", None, ()
    if started and wanted_cpu():
        # PoCL's default kernel cache is in use already and does not distinguish CPU names: other processes would
        # load kernels compiled for this name.
        reason = "CLROPE_POCL_CPU is set, but PoCL was started before clrope could give it a kernel cache of its own"
        return "", failure("hidden", reason), ()
    if current_cpu(device) == decision.cpu or may_need_repair(device):
        return decision.cpu, None, (decision.reason,)
    return "", None, ()


def _broken_entry(plan: LoaderPlan, broken: Broken) -> DeviceInfo:
    health = failure(broken.cause, broken.reason)
    name = os.path.basename(broken.icd) or "unknown driver"
    return absent(name, broken.library or "?", health, loader=plan.loader, icd=broken.library)


def _unloaded_entry(plan: LoaderPlan, library: str, message: str) -> DeviceInfo:
    intel = os.path.basename(library).startswith("libintelocl")
    health = failure("error", f"the driver's library does not load: {message}")
    if intel:
        hint = "`pip install intel-cmplr-lib-rt` (needed by intel-opencl-rt, not declared by it)"
        health = replace(health, hint=hint)
    named = next((os.path.basename(i.path) for i in plan.icds if i.library == library), "?")
    name = "Intel(R) OpenCL" if intel else named
    return absent(name, library, health, loader=plan.loader, icd=library)


def _out_of_reach(plan: LoaderPlan, seen: Enumeration) -> list[DeviceInfo]:
    names = ", ".join(b.library for b in seen.broken if b.library) or "one of the drivers"
    variable = user_variable() or "the loader's directory"
    health = Health(
        "unhealthy", "hidden", f"not loaded, because {names} crashes and is loaded together with it",
        f"take the driver that crashes out of {variable}, or unset it",
    )  # fmt: skip
    return [_absent_entry(plan, device, health) for device in seen.devices]


def _hidden(plan: LoaderPlan, seen: Enumeration, here: Counter[tuple[str, ...]], started: bool) -> list[DeviceInfo]:
    """Return entries for the devices that a fresh process sees and this process does not."""
    left = here.copy()
    out = []
    why = ": platforms were queried before clrope could add it" if started else ""
    health = failure("hidden", f"installed, but the OpenCL loader does not show it in this process{why}")
    for device in seen.devices:
        if left[device.id] > 0:
            left[device.id] -= 1
        else:
            out.append(_absent_entry(plan, device, health))
    return out


def _passed_over(plan: LoaderPlan) -> list[DeviceInfo]:
    variable = user_variable()
    health = Health(
        "unhealthy", "hidden", f"installed, but {variable} is set and decides which drivers are loaded",
        f"unset {variable}, or name the driver there too",
    )  # fmt: skip
    return [
        absent("Intel(R) OpenCL", os.path.basename(i.library), health, loader=plan.loader, icd=i.library)
        for i in plan.passed_over
    ]


def _absent_entry(plan: LoaderPlan, device: SeenDevice, health: Health) -> DeviceInfo:
    platform, name, driver = device.id
    return absent(
        platform, name, health, loader=plan.loader, kind=device.kind, vendor=device.vendor,
        opencl_version=device.version, platform_version=device.platform_version, driver_version=driver,
    )  # fmt: skip


def _describe_unlisted(device: pyopencl.Device) -> DeviceInfo:
    """Describe a sub-device, or a device of a process in which nothing was discovered."""
    import pyopencl as cl

    platforms = list_platforms(cl)
    p = platforms.index(device.platform) if device.platform in platforms else -1
    listed = _devices_of(cl, device.platform)
    d = listed.index(device) if device in listed else -1
    health = remembered(_health_key(device, "")) if d >= 0 else None
    unknown = Health("unknown", "", "not probed; it was given by the caller")
    return describe(device, p, d, health=health or unknown, loader=loader_path(), _find=_found_again)


def _found_again(known: DeviceInfo) -> DeviceInfo:
    """Return the device of this process that one of another process stands for: at its place, or the first like it."""
    listed = devices()
    alike = [
        d for d in listed
        if d._cl is not None and (d.key, d.kind, d.compute_units) == (known.key, known.kind, known.compute_units)
    ]  # fmt: skip
    for d in alike:
        if d.index == known.index:
            return d
    if not alike:
        raise DeviceError(
            f"device {known}: it was chosen in another process and is not in this one; found: "
            + ("; ".join(map(str, listed)) or "none")
        )
    return alike[0]
