"""Repair of PyPI's PoCL 3.0 on a CPU that its LLVM 14 does not know, or takes for an older one.

An unknown CPU's device is listed (its version ends in `-generic`), but every build fails with `unknown target CPU
'generic'`. An AMD CPU with AVX-512 is taken for `znver3`, which has none: programs with 64-byte vectors then have no
kernels, or end the process.

PoCL's record of the device holds two pointers next to each other: to the target triple and to the CPU name. With a CPU
name that LLVM 14 knows and this CPU can run, PoCL compiles, at full speed. Some names compile kernels that crash or
silently do nothing. So the repair is only for exactly this version and these failures; both texts are checked before
anything is touched; every name is first tried in a child process on kernels whose every value is checked; the answer is
remembered per CPU model and PoCL version.

`CLROPE_POCL_CPU` names the CPU to use (it is tried, too), or is `off`. PoCL's kernel cache does not distinguish CPU
names, hence a separate `POCL_CACHE_DIR` for each name.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..cache_folder import trusted_folder, user_cache_dir
from ..store import Store
from .child import run as run_child
from .info import cpu_fields, cpu_key, limits_key, text
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
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
#: Pointers of the record that are read; the two fields are the 80th and 81st. The record has 129: memory behind it
#: changes, and may point to the same texts.
_RECORD_POINTERS = 96


@dataclass(frozen=True)
class Decision:
    """What to do about a PoCL: the CPU name to give it ('' none), and why."""

    cpu: str
    reason: str


_STORE = Store("pocl", Decision)


def may_need_repair(device: pyopencl.Device) -> bool:
    """Whether this is exactly the PoCL, in exactly the state, that the repair is for."""
    if not _is_pocl_3_0(device.platform):
        return False
    name = current_cpu(device)
    if name == UNKNOWN and os.environ.get(SIMULATE_VARIABLE):
        return True
    return _is_repairable(name) and text(device.version).endswith(f"{TRIPLE}-{name}")


def _is_repairable(name: str) -> bool:
    """Whether a CPU name is PoCL's for an unknown CPU, or of narrower vectors than this CPU's."""
    if name == UNKNOWN:
        return True
    widest = groups_for(cpu_fields().get("flags", "").split())[:1]
    return name in _CANDIDATES[1] and bool(widest) and set(widest[0]) <= set(_CANDIDATES[0])


def repair_cpu(device: pyopencl.Device, cpu: str) -> str:
    """Set the CPU name for PoCL's compiler; return '', or what is not as expected in the record, then left alone."""
    address, name, problem = _locate(device)
    if name == cpu:
        return ""
    if not may_need_repair(device):
        return problem or f"the CPU name is {name!r}"
    _point(address, cpu)
    return ""


def current_cpu(device: pyopencl.Device) -> str:
    """Return the CPU name in PoCL's record of the device, '' if it does not look as expected."""
    return _locate(device)[1]


def simulate_unknown_cpu(devices: Iterable[pyopencl.Device]) -> None:
    """Make a working PoCL 3.0 fail as on an unknown CPU, if `CLROPE_TEST_POCL_GENERIC` is set (tests only)."""
    if not os.environ.get(SIMULATE_VARIABLE):
        return
    for device in devices:
        if _is_pocl_3_0(device.platform):  # not a distribution's newer PoCL next to it
            address, name, _ = _locate(device)
            if name and name == text(device.version).rpartition("-gnu-")[2]:
                _point(address, UNKNOWN)


def _is_pocl_3_0(platform: pyopencl.Platform) -> bool:
    version = platform.version
    right = re.search(r"\bPoCL 3\.0(-rc\d+)?\s", version) and re.search(r"\bLLVM 14\.", version)
    return text(platform.name) == PLATFORM and bool(right)


def _locate(device: pyopencl.Device) -> tuple[int, str, str]:
    """Return (address of the CPU-name field, the name, ''), or (0, '', why) if the record is not as expected."""
    base = device.int_ptr
    texts = [read_text(pointer) for pointer in read_pointers(base, _RECORD_POINTERS)]
    places = [i for i, found in enumerate(texts) if found == TRIPLE]
    if len(places) != 1:
        return 0, "", f"{len(places)} target triples among {len(texts)} fields"
    # The record also holds the device's name, before the triple.
    if text(device.name) not in texts[: places[0]]:
        return 0, "", "the device's name is not before the target triple"
    i = places[0] + 1
    if i >= len(texts) or not _NAME.fullmatch(texts[i]):
        return 0, "", f"behind the target triple is {texts[i : i + 1]}"
    return base + i * ctypes.sizeof(ctypes.c_void_p), texts[i], ""


def _point(address: int, name: str) -> None:
    # Allocated by the C library and never freed here: PoCL may free its field when it is unloaded.
    libc = ctypes.CDLL(None)
    libc.strdup.restype = ctypes.c_void_p
    libc.strdup.argtypes = [ctypes.c_char_p]
    ctypes.c_void_p.from_address(address).value = libc.strdup(name.encode("ascii"))


def candidates(flags: Iterable[str]) -> list[str]:
    """Return the CPU names to try on a CPU with these flags (as in /proc/cpuinfo), best first."""
    return [name for group in groups_for(flags)[:2] for name in group]


def groups_for(flags: Iterable[str]) -> list[list[str]]:
    """Return the groups of `_CANDIDATES` with the names that such a CPU can run, without empty groups."""
    have = set(flags)
    groups = [[name for name, needed in group.items() if have.issuperset(needed.split())] for group in _CANDIDATES]
    return [group for group in groups if group]


def wanted_cpu() -> str:
    """Return `CLROPE_POCL_CPU`: a CPU name, 'off', or '' (find one)."""
    return os.environ.get("CLROPE_POCL_CPU", "").strip()


def cache_environment(cpu: str) -> dict[str, str | None]:
    """Return the environment with PoCL's kernel cache for this CPU name; must hold when PoCL starts.

    It is next to PoCL's own cache, not in this package's cache directory: PoCL ends the process if a kernel that it has
    just compiled is deleted there.
    """
    if not cpu:
        return {}
    given = os.environ.get("POCL_CACHE_DIR")
    if not given:
        return {"POCL_CACHE_DIR": str(trusted_folder(user_cache_dir("pocl") / f"clrope-{cpu}"))}
    folder = os.path.join(given, f"clrope-{cpu}")
    with contextlib.suppress(OSError):  # PoCL names a directory that it cannot use
        os.makedirs(folder, exist_ok=True)
    return {"POCL_CACHE_DIR": folder}


def decide_cpu(
    device_id: list[str],
    platform_version: str,
    environment: dict[str, str | None],
    *,
    refresh: bool = False,
) -> Decision:
    """Find, or remember, the CPU name for a PoCL that `may_need_repair`; tries names in child processes."""
    given = wanted_cpu()
    if given.lower() == "off":
        return Decision("", "the repair is turned off by CLROPE_POCL_CPU=off")
    if given and not _NAME.fullmatch(given):
        return Decision("", f"CLROPE_POCL_CPU: got {given[:80]!r}, a CPU name of LLVM is needed")
    names = [given] if given else candidates(cpu_fields().get("flags", "").split())
    key = " | ".join([cpu_key(), platform_version, given, os.environ.get(SIMULATE_VARIABLE, "")])
    failure_key = f"{key} | {limits_key()}"
    known = None if refresh else _STORE.get(failure_key) or _STORE.get(key)
    # A name becomes part of a path, and goes to the compiler: no other text of a file does.
    if known is not None and known.cpu in ("", *names):
        return known

    def trial(cpu: str) -> dict[str, Any]:
        job = {"job": "probe", "id": device_id, "wide": True, "pocl_cpu": cpu}
        result = run_child(job, {**environment, **cache_environment(cpu or UNKNOWN)})
        return result.answer if result.outcome == "ok" else {"cause": result.outcome, "reason": result.reason}

    answer = trial("")
    if answer["cause"] in ("", "unavailable", "hidden", "timeout"):
        # It works, or fails in another way, which the probe of the device will report. Each name that is tried on a
        # device that hangs would take the whole time limit.
        if answer["cause"] != "unavailable":
            _STORE.put(failure_key, Decision("", ""), keep_s=3600)
        return Decision("", "")
    unknown = FAILURE in answer["reason"]
    problem = "does not know this CPU" if unknown else "takes this CPU for an older one, with narrower vectors"
    failed = []
    for name in names:
        answer = trial(name)
        if not answer["cause"]:
            decision = Decision(name, f"PoCL's LLVM {problem}; {name!r} was tried and works")
            _STORE.forget(failure_key)
            _STORE.put(key, decision)
            return decision
        failed.append(f"{name}: {answer['reason']}")
        if answer["cause"] == "timeout":
            break
    decision = Decision("", f"none of the CPU names tried works ({'; '.join(failed)})")
    _STORE.put(failure_key, decision, keep_s=3600)
    return decision
