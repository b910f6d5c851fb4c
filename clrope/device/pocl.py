"""Repair of PyPI's PoCL 3.0 on a CPU that its LLVM 14 does not know.

There the device is listed (its version ends in `-generic`), but every build fails with `unknown target CPU 'generic'`.
PoCL's record of the device holds, one behind the other, two pointers to text: the target triple and the CPU name. Set
to a CPU name that LLVM 14 knows and this CPU can run, the second makes it compile, at full speed. Some names compile
kernels that crash or silently do nothing, so: only for exactly this version and this failure, both texts are checked
before anything is touched, every name is first tried in a child process on kernels whose every value is checked, and
the answer is remembered per CPU model and PoCL version.

`CLROPE_POCL_CPU` names the CPU to use (tried all the same), or is `off`. PoCL's kernel cache does not tell CPU names
apart, hence a `POCL_CACHE_DIR` of its own for each name.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..store import Store, cache_dir
from .child import run as run_child
from .info import cpu_fields, cpu_model
from .procmem import read_pointers, read_text

if TYPE_CHECKING:
    import pyopencl

TRIPLE = "x86_64-unknown-linux-gnu"
UNKNOWN = "generic"
PLATFORM = "Portable Computing Language"
FAILURE = f"unknown target CPU '{UNKNOWN}'"

#: Only for this package's own tests: set to 1, every process first gives a working PoCL 3.0 the unknown CPU name, so
#: that the failure and its repair happen on a CPU that LLVM 14 does know.
SIMULATE_VARIABLE = "CLROPE_TEST_POCL_GENERIC"

#: Names LLVM 14 knows, best first, in groups by vector width, each with the CPU flags its code may use. PoCL links a
#: library of built-in functions chosen by the real CPU's vector width, and a name of another width makes calls that do
#: not fit it; hence only names of the widest group that the CPU has, and of one more as a last resort.
_HASWELL = "avx2 fma bmi1 bmi2 f16c movbe"
_SKYLAKE_X = f"{_HASWELL} avx512f avx512bw avx512cd avx512dq avx512vl adx aes"
_CANDIDATES: tuple[dict[str, str], ...] = (
    {
        "skylake-avx512": _SKYLAKE_X,
        "icelake-server": f"{_SKYLAKE_X} avx512_vbmi2 avx512_vnni avx512_bitalg avx512_vpopcntdq gfni vaes",
        "cascadelake": f"{_SKYLAKE_X} avx512_vnni",
    },
    {
        "haswell": _HASWELL,
        "skylake": f"{_HASWELL} adx aes rdseed",
        "x86-64-v3": _HASWELL,
        "znver3": f"{_HASWELL} adx aes rdseed sse4a sha_ni vaes",
    },
    {"sandybridge": "avx aes pclmulqdq", "btver2": "avx aes bmi1 f16c movbe sse4a"},
    {"nehalem": "sse4_2 popcnt", "x86-64-v2": "sse4_2 popcnt"},
    {"x86-64": "sse2"},
)
_RECORD_POINTERS = 256  # the two fields are the 79th and 80th


@dataclass(frozen=True)
class Decision:
    """What to do about a PoCL: the CPU name to give it ('' none), why, and how each name tried came out."""

    cpu: str
    reason: str
    tried: dict[str, str] = field(default_factory=dict, compare=False)


_STORE = Store("pocl", Decision)


def may_need_repair(device: pyopencl.Device) -> bool:
    """Whether this is exactly the PoCL, in exactly the state, that the repair is for."""
    if not _is_pocl_3_0(device.platform):
        return False
    said = device.version.rstrip(" \0").endswith(f"{TRIPLE}-{UNKNOWN}") or bool(os.environ.get(SIMULATE_VARIABLE))
    return said and _find(device, UNKNOWN) is not None


def repair_cpu(device: pyopencl.Device, cpu: str) -> bool:
    """Give PoCL's compiler the CPU name; True if the record now says so, False if it did not look as expected."""
    if _find(device, cpu) is not None:
        return True  # done before
    address = _find(device, UNKNOWN)
    if address is None:
        return False
    _point(address, cpu)
    return True


def current_cpu(device: pyopencl.Device) -> str:
    """Return the CPU name in PoCL's record of the device, '' if it does not look as expected."""
    found = _locate(device)
    return read_text(found[1]) if found else ""


def simulate_unknown_cpu(devices: Iterable[pyopencl.Device]) -> None:
    """Make a working PoCL 3.0 fail as on an unknown CPU, if `CLROPE_TEST_POCL_GENERIC` is set (tests only)."""
    if not os.environ.get(SIMULATE_VARIABLE):
        return
    for device in devices:
        if not _is_pocl_3_0(device.platform):
            continue  # a distribution's newer PoCL next to it
        found = _locate(device)
        known = device.version.rstrip(" \0").rpartition("-gnu-")[2]
        if found and read_text(found[1]) == known:
            _point(found[0], UNKNOWN)


def _is_pocl_3_0(platform: pyopencl.Platform) -> bool:
    version = platform.version
    right = re.search(r"\bPoCL 3\.0(-rc\d+)?\s", version) and re.search(r"\bLLVM 14\.", version)
    return platform.name.strip(" \0") == PLATFORM and bool(right)


def _find(device: pyopencl.Device, cpu: str) -> int | None:
    found = _locate(device)
    return found[0] if found and read_text(found[1]) == cpu else None


def _locate(device: pyopencl.Device) -> tuple[int, int] | None:
    """Return (address of the CPU-name field, its value) if the record has exactly one triple and the rest fits."""
    base = device.int_ptr
    pointers = read_pointers(base, _RECORD_POINTERS)
    texts = [read_text(p) for p in pointers]
    places = [i for i, text in enumerate(texts) if text == TRIPLE]
    # The record also names the device, before the triple: a memory block of anything else would not.
    if len(places) != 1 or device.name.strip(" \0") not in texts[: places[0]]:
        return None
    i = places[0] + 1
    if i >= len(texts) or not re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", texts[i]):
        return None
    return base + i * ctypes.sizeof(ctypes.c_void_p), pointers[i]


def _point(address: int, text: str) -> None:
    # Allocated by the C library and never freed here: PoCL may free its field when it is unloaded.
    libc = ctypes.CDLL(None)
    libc.strdup.restype = ctypes.c_void_p
    libc.strdup.argtypes = [ctypes.c_char_p]
    ctypes.c_void_p.from_address(address).value = libc.strdup(text.encode("ascii"))


def candidates(flags: Iterable[str]) -> list[str]:
    """Return the CPU names to try on a CPU with these flags (as in /proc/cpuinfo), best first."""
    have = set(flags)
    groups = [[name for name, needed in group.items() if have.issuperset(needed.split())] for group in _CANDIDATES]
    return [name for group in [g for g in groups if g][:2] for name in group]


def wanted_cpu() -> str:
    """Return `CLROPE_POCL_CPU`: a CPU name, 'off', or '' (find one)."""
    return os.environ.get("CLROPE_POCL_CPU", "").strip()


def cache_environment(cpu: str) -> dict[str, str | None]:
    """Return the environment with PoCL's kernel cache for this CPU name; must hold when PoCL starts."""
    if not cpu:
        return {}
    given = os.environ.get("POCL_CACHE_DIR")
    folder = os.path.join(given, f"clrope-{cpu}") if given else str(cache_dir() / "pocl" / cpu)
    os.makedirs(folder, exist_ok=True)
    return {"POCL_CACHE_DIR": folder}


def decide_cpu(
    device_id: list[str],
    platform_version: str,
    environment: dict[str, str | None],
    pyopencl_home: str | None,
    *,
    refresh: bool = False,
) -> Decision:
    """Find, or remember, the CPU name for a PoCL that `may_need_repair`; tries names in child processes."""
    given = wanted_cpu()
    if given.lower() == "off":
        return Decision("", "the repair is turned off by CLROPE_POCL_CPU=off")
    key = " | ".join([cpu_model(), platform_version, given, os.environ.get(SIMULATE_VARIABLE, "")])
    known = None if refresh else _STORE.get(key)
    if known is not None:
        return known

    def trial(cpu: str) -> dict[str, Any]:
        job = {"job": "probe", "id": device_id, "wide": True, "pocl_cpu": cpu, "pyopencl_home": pyopencl_home}
        result = run_child(job, {**environment, **cache_environment(cpu or UNKNOWN)})
        return result.answer if result.outcome == "ok" else {"cause": result.outcome, "reason": result.reason}

    answer = trial("")
    if FAILURE not in answer.get("reason", ""):
        # Another failure than the one this is for: the device's own probe will tell it.
        if answer["cause"] != "unavailable":
            _STORE.put(key, Decision("", ""), keep_s=3600)
        return Decision("", "")
    names = [given] if given else candidates(cpu_fields().get("flags", "").split())
    tried: dict[str, str] = {}
    for name in names:
        answer = trial(name)
        if not answer["cause"]:
            tried[name] = "ok"
            decision = Decision(name, f"PoCL's LLVM does not know this CPU; {name!r} was tried and works", tried)
            _STORE.put(key, decision)
            return decision
        tried[name] = answer["reason"]
    listing = "; ".join(f"{name}: {why}" for name, why in tried.items())
    decision = Decision("", f"none of the CPU names tried works ({listing})", tried)
    _STORE.put(key, decision, keep_s=3600)
    return decision
