"""Health of a device: a child process builds and runs small kernels there; the result is remembered."""

from __future__ import annotations

import hashlib
from typing import Any

from ..store import Store
from .child import run as run_child
from .info import Cause, Health, cpu_key, limits_key
from .probe import BASIC, COPY_SOURCE, source

#: Seconds after which a failed device is probed again: the failure may be temporary (no memory, a busy machine).
FAILURE_KEPT_S = 3600.0
_STORE = Store("health", Health)

HIDDEN_HINT = (
    "call clrope.devices() before anything else asks OpenCL for its platforms in this process "
    "(the OpenCL loader looks for drivers only once)"
)
_HINTS: dict[str, str] = {
    "build": "update or reinstall the driver; another one can be had by `pip install pocl-binary-distribution`, "
    "`pip install 'clrope[intel]'` or `apt-get install pocl-opencl-icd`",
    "crash": "update or remove the driver; clrope goes on without it",
    "timeout": "if the machine was just busy, ask again with refresh=True; CLROPE_PROBE_TIMEOUT sets the seconds",
    "wrong": "do not trust results of this device; update the driver or use another one",
    "hidden": HIDDEN_HINT,
    "error": "update or reinstall the driver",
}
_POCL_HINT = (
    "this PoCL is older than the CPU: `pip install 'clrope[intel]'` or `apt-get install pocl-opencl-icd`; "
    "CLROPE_POCL_CPU=<name> tries another CPU name"
)
_UNPROBED_HINT = (
    "let this process start others (`ulimit -u`, memory, a sandbox), or name the device: it is used unchecked"
)


def failure(cause: str, reason: str) -> Health:
    """Return the unhealthy state for a cause, with its hint."""
    known: Cause = cause if cause in _HINTS else "error"  # type: ignore[assignment]
    hint = _POCL_HINT if "unknown target CPU" in reason else _HINTS[known]
    return Health("unhealthy", known, reason, hint)


def health_key(device_id: list[str], version: str, platform_version: str, driver: list[Any], pocl_cpu: str) -> str:
    """Return the key of a stored result: device, driver file, CPU, PoCL's CPU name, and the probe's kernels."""
    parts = [*device_id, version, platform_version, driver, cpu_key(), pocl_cpu, source(BASIC), COPY_SOURCE]
    return f"{device_id[1]} {hashlib.sha256(repr(parts).encode()).hexdigest()[:20]}"


def remembered(key: str) -> Health | None:
    """Return what is remembered under the key: a failure of processes with the same limits, or else a success."""
    return _STORE.get(_failure_key(key)) or _STORE.get(key)


def _failure_key(key: str) -> str:
    return f"{key} {limits_key()}"


def examine(
    key: str,
    device_id: list[str],
    ordinal: int,
    environment: dict[str, str | None],
    pocl_cpu: str,
    *,
    refresh: bool = False,
) -> Health:
    """Return the device's health: remembered, or from a probe in a child process (1 to 2 seconds)."""
    known = None if refresh else remembered(key)
    if known:
        return known
    job = {"job": "probe", "id": device_id, "ordinal": ordinal, "rate": True, "pocl_cpu": pocl_cpu}
    result = run_child(job, environment)
    if result.outcome == "unavailable":
        return Health("unknown", "", f"not probed: {result.reason}", _UNPROBED_HINT)
    if result.outcome == "ok" and not result.answer["cause"]:
        health = Health("ok", copy_gbs=result.answer["copy_gbs"])
    elif result.outcome == "ok":
        health = failure(result.answer["cause"], result.answer["reason"])
    else:
        health = failure(result.outcome, result.reason)
    if health.ok:
        _STORE.forget(_failure_key(key))
        _STORE.put(key, health)
    else:
        _STORE.put(_failure_key(key), health, keep_s=FAILURE_KEPT_S)
    return health
