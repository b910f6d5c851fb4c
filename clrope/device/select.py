"""`device(selector)`: choosing one device by name, kind, index or object, or the healthiest fastest."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import DeviceError
from .discovery import devices, from_cl_device
from .icd import user_variable
from .info import DeviceInfo

if TYPE_CHECKING:
    import pyopencl

    Selector = str | DeviceInfo | pyopencl.Device | pyopencl.Context | pyopencl.CommandQueue | None

#: Short names of platforms: text that the platform's own name contains.
ALIASES = {
    "pocl": "portable computing language",
    "intel": "intel",
    "nvidia": "nvidia",
    "amd": "amd accelerated parallel processing",
    "rusticl": "rusticl",
    "oclgrind": "oclgrind",
}
KINDS = ("gpu", "accelerator", "cpu", "custom")
INSTALL_HINT = (
    "install an OpenCL driver: `pip install pocl-binary-distribution` (x86-64 Linux), `pip install 'clrope[intel]'` "
    "(Intel's CPU runtime, works on AMD too), or `apt-get install pocl-opencl-icd`"
)


def device(selector: Selector = None) -> DeviceInfo:
    """Return one device.

    None: what `CLROPE_DEVICE` says, else `PYOPENCL_CTX` (in PyOpenCL's own syntax), else 'auto'.
    'auto': the healthiest fastest: a GPU, then an accelerator, then the CPU device with the best measured copy rate.
    'cpu', 'gpu', 'accelerator': the fastest healthy one of that kind.
    'pocl', 'intel', 'nvidia', 'amd', 'rusticl', 'oclgrind': the platform; any other text is looked for in the names of
    platforms and devices, without regard to case; the first healthy match is taken, PoCL's `basic` last.
    'P:D' or 'P': by index, as listed by `devices()`; 'text:D' or 'text:text' as well.
    A `DeviceInfo` is checked; a `pyopencl` Device, Context (its first device) or CommandQueue is taken as it is.

    Raises `DeviceError` if nothing fits or what fits is unhealthy, saying what was found and what to do.
    """
    if selector is None:
        named = os.environ.get("CLROPE_DEVICE", "").strip()
        if named:
            return _by_text(named, f"CLROPE_DEVICE={named!r}")
        if "PYOPENCL_CTX" in os.environ:
            return _by_pyopencl(os.environ["PYOPENCL_CTX"])
        return _by_text("auto", "'auto'")
    if isinstance(selector, str):
        return _by_text(selector.strip(), repr(selector))
    if isinstance(selector, DeviceInfo):
        selector = selector.here
        if selector._cl is None or selector.health.status == "unhealthy":
            raise DeviceError(selector.describe_problem())
        return selector
    import pyopencl as cl

    if isinstance(selector, cl.Device):
        return from_cl_device(selector)
    if isinstance(selector, cl.CommandQueue):
        return from_cl_device(selector.device)
    if isinstance(selector, cl.Context):
        return from_cl_device(selector.devices[0])
    raise DeviceError(
        f"device: got {type(selector).__name__}, allowed are a name such as 'auto', 'pocl', 'intel', 'gpu' or '0:0', "
        "a DeviceInfo, or a pyopencl Device, Context or CommandQueue"
    )


def _by_text(text: str, said: str) -> DeviceInfo:
    known = devices()
    lower = text.lower()
    if lower in ("", "auto"):
        usable = _fastest_first([d for d in known if d.health.status != "unhealthy" and not d.simulator])
        if not usable:
            raise DeviceError(_none_healthy(known))
        return usable[0]
    if lower in KINDS:
        matches = _fastest_first([d for d in known if d.kind == lower and not d.simulator])
    else:
        matches = _matches(known, text)
    return _first_healthy(matches, known, said)


def _fastest_first(known: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    rank = {"gpu": 0, "accelerator": 1, "cpu": 2, "custom": 3}
    status = {"ok": 0, "unknown": 1, "unhealthy": 2}
    return sorted(known, key=lambda d: (status[d.health.status], rank[d.kind], -(d.health.copy_gbs or 0.0)))


def _matches(known: Sequence[DeviceInfo], text: str) -> list[DeviceInfo]:
    numbers = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", text)
    if numbers:
        platform, index = int(numbers[1]), numbers[2]
        return [d for d in known if d.platform_index == platform and (index is None or d.device_index == int(index))]
    lower = text.lower()
    if lower in ALIASES:
        return [d for d in known if ALIASES[lower] in d.platform.lower()]
    whole = [d for d in known if lower in d.platform.lower() or lower in d.name.lower()]
    if whole or ":" not in text:
        return whole
    left, _, right = lower.partition(":")
    among = _matches(known, left) if left else list(known)
    if _is_index(right):
        return [d for d in among if d.device_index == int(right)]
    return [d for d in among if right in d.name.lower()]


def _is_index(text: str) -> bool:
    return text.isdecimal() and len(text) < 10  # Python makes no integer of thousands of digits


def _first_healthy(matches: Sequence[DeviceInfo], known: Sequence[DeviceInfo], said: str) -> DeviceInfo:
    for wanted in ("ok", "unknown"):
        for d in sorted(matches, key=lambda d: d.runs_at_once):  # PoCL's `basic` is the first of its platform
            if d.health.status == wanted:
                return d
    if matches:
        raise DeviceError(f"device {said}: {matches[0].describe_problem()}")
    text = f"device {said}: no OpenCL device matches; found: {_listing(known)}"
    if "intel" in said.lower():
        text += "\n  what to do: `pip install 'clrope[intel]'` installs Intel's CPU runtime"
    elif "pocl" in said.lower():
        text += "\n  what to do: `pip install pocl-binary-distribution` or `apt-get install pocl-opencl-icd`"
    elif not known:
        text += f"\n  what to do: {INSTALL_HINT}"
    raise DeviceError(text)


def _by_pyopencl(spec: str) -> DeviceInfo:
    """Follow `pyopencl.choose_devices`: 'P' or 'P:D', each an index or a part of the name; the first of several D."""
    known = devices()
    said = f"PYOPENCL_CTX={spec!r}"
    answers = spec.split(":")
    if len(answers) > 2:
        raise DeviceError(f"device {said}: got {len(answers)} parts, allowed are 'platform' or 'platform:device'")
    here = [d for d in known if d.platform_index >= 0]
    platforms = {d.platform_index: d.platform for d in here}
    first, wanted = answers[0].lower(), "".join(answers[1:]).split(",")[0].lower()
    if _is_index(first) and int(first) in platforms:
        chosen: int | None = int(first)
    else:
        # PyOpenCL takes the last platform whose name fits.
        fitting = [i for i, name in platforms.items() if first in name.lower()]
        chosen = max(fitting, default=None) if first else min(fitting, default=None)
    among = [d for d in here if d.platform_index == chosen]
    if _is_index(wanted) and int(wanted) < len(among):
        matches = [among[int(wanted)]]
    else:
        matches = [d for d in among if wanted in d.name.lower()][:1]
    return _first_healthy(matches, known, said)


def _none_healthy(known: Sequence[DeviceInfo]) -> str:
    if not known:
        text, name = "device: no OpenCL device was found", user_variable()
        if name:
            text += f"; {name}={os.environ[name]!r} is set and decides which drivers are loaded"
        return f"{text}\n  what to do: {INSTALL_HINT}"
    lines = ["device: no healthy OpenCL device; tried:"]
    for d in known:
        reason = d.health.reason or ("a simulator, taken only by name" if d.simulator else d.health.status)
        lines.append(f"  {d}: {reason}")
        if d.health.hint:
            lines.append(f"    what to do: {d.health.hint}")
    lines.append(f"  or {INSTALL_HINT}")
    return "\n".join(lines)


def _listing(known: Sequence[DeviceInfo]) -> str:
    return "; ".join(f"{d} {d.health.status}" for d in known) or "none"
