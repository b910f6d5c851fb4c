"""The environment of a result: machine, system, drivers, versions, load. No names of people or hosts."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

from .. import __version__
from ..device import DeviceInfo
from ..device.cache import host_cache_bytes
from ..device.info import cpu_fields, cpu_model, usable_cpus
from ..kernels.source import kernel_folder, kernel_hash
from ..printable import of_name

PACKAGES = ("numpy", "pyopencl", "ml-dtypes", "pocl-binary-distribution", "intel-opencl-rt")
#: Environment variables that change what drivers and libraries do.
VARIABLES = ("POCL_MAX_PTHREAD_COUNT", "POCL_AFFINITY", "POCL_DEVICES", "POCL_MEMORY_LIMIT", "CLROPE_POCL_CPU",
             "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "DPCPP_CPU_NUM_CUS", "CL_CONFIG_CPU_TARGET_ARCH")  # fmt: skip


def load() -> float | None:
    """Return the load of the last minute, None if the system has none."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def environment() -> dict[str, Any]:
    """Return the environment block of a result file, without the devices."""
    installed = {name: found.version for name in PACKAGES for found in importlib.metadata.distributions(name=name)}
    flags = _flags()
    return {
        "cpu": cpu_model(),
        "cpus": usable_cpus(),
        "cpu_features": [f for f in ("avx2", "avx512f", "avx512_fp16", "f16c", "asimdhp", "sve") if f in flags],
        "cache_bytes": host_cache_bytes(),
        "memory_bytes": _memory(),
        "huge_pages": _bracketed(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "compiler": platform.python_compiler(),
        "versions": {"clrope": __version__} | installed,
        "kernels": {path.name: kernel_hash(path.name) for path in sorted(kernel_folder().glob("*.cl"))},
        "variables": {name: of_name(os.environ[name]) for name in VARIABLES if name in os.environ},
        "hypervisor": "hypervisor" in flags,
        "platform": sys.platform,
        "state": machine_state(),
    }


def machine_state(root: Path = Path("/")) -> dict[str, Any]:
    """Return what changes speed without a change of hardware or software; null where the system does not tell.

    governors: of the processors. boost: whether clocks may exceed the nominal one. smt: whether cores run several
    threads. cpu_quota: CPUs that a control group allows, null for no limit. root: of the file system.
    """
    cpu = root / "sys/devices/system/cpu"
    governors = {_line(path) for path in cpu.glob("cpu[0-9]*/cpufreq/scaling_governor")}
    boost, no_turbo = _line(cpu / "cpufreq/boost"), _line(cpu / "intel_pstate/no_turbo")
    smt = _line(cpu / "smt/active")
    return {
        "governors": sorted(g for g in governors if g) or None,
        "boost": boost == "1" if boost is not None else no_turbo == "0" if no_turbo is not None else None,
        "smt": None if smt is None else smt == "1",
        "numa_nodes": len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None,
        "cpu_quota": _quota(root / "sys/fs/cgroup"),
        "numa_balancing": _line(root / "proc/sys/kernel/numa_balancing"),
        "swappiness": _line(root / "proc/sys/vm/swappiness"),
        "clock_source": _line(root / "sys/devices/system/clocksource/clocksource0/current_clocksource"),
    }


def describe(device: DeviceInfo) -> dict[str, Any]:
    """Return a device's block of a result file. Libraries without their folders, which are private."""
    known = device.to_dict()
    kept = ("platform", "name", "vendor", "kind", "opencl_version", "platform_version", "driver_version", "key",
            "compute_units", "max_alloc", "global_mem", "host_unified", "fp16", "fp64", "pocl_cpu")  # fmt: skip
    out = {name: known[name] for name in kept}
    return out | {"loader": Path(device.loader).name, "icd": Path(device.icd).name}


def _flags() -> list[str]:
    fields = cpu_fields()
    return (fields.get("flags") or fields.get("Features") or "").split()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _line(path: Path) -> str | None:
    """Return the first line of a small file, None if there is none."""
    try:
        return path.read_text(encoding="ascii").strip().partition("\n")[0] or None
    except (OSError, ValueError):
        return None


def _quota(group: Path) -> float | None:
    """Return the CPUs that a control group of version 2 or 1 allows."""
    limit, _, period = (_line(group / "cpu.max") or "").partition(" ")
    if not period:
        limit, period = (_line(group / f"cpu/cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
    return round(int(limit) / int(period), 2) if limit.isdigit() and period.isdigit() and int(period) else None


def _bracketed(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").partition("[")[2].partition("]")[0] or None
    except OSError:
        return None
