"""`DeviceInfo` and `Health`: the facts about one OpenCL device, frozen, JSON-ready."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from ..errors import DeviceError
from .procmem import icd_library

if TYPE_CHECKING:
    import pyopencl

Kind = Literal["cpu", "gpu", "accelerator", "custom"]
Status = Literal["ok", "unhealthy", "unknown"]
#: Why a device is unhealthy: `build` a kernel does not compile, `crash` a signal, `timeout` no answer, `wrong` values
#: or no values, `hidden` present but not visible in this process, `error` anything else the driver reported.
Cause = Literal["", "build", "crash", "timeout", "wrong", "hidden", "error"]

#: Simulators: correct, and thousands of times slower than the machine; chosen only by name.
SIMULATORS = ("oclgrind",)


@dataclass(frozen=True)
class Health:
    """Result of the probe: status; if not ok, the cause, the reason and a hint what to do."""

    status: Status
    cause: Cause = ""
    reason: str = ""
    hint: str = ""
    #: Bytes read plus bytes written per second by a copy kernel, in 1e9; None if not measured. A rough figure.
    copy_gbs: float | None = None

    @property
    def ok(self) -> bool:
        """Whether kernels ran there and gave the right values."""
        return self.status == "ok"


#: Elements a vector of each type has; 0 where the type is not supported.
VectorWidths = NamedTuple(  # noqa: UP014 - a field named `int` would hide the type in a class body
    "VectorWidths",
    [("char", int), ("short", int), ("int", int), ("long", int), ("float", int), ("double", int), ("half", int)],
)
_NO_WIDTHS = VectorWidths(0, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class DeviceInfo:
    """One device. Frozen, comparable, and free of OpenCL calls except for `cl_device`.

    Pickled, it is looked for in the other process when it is used there.
    """

    platform: str
    #: -1: not in this process.
    platform_index: int = -1
    device_index: int = -1
    name: str = ""
    vendor: str = ""
    kind: Kind = "custom"
    opencl_version: str = ""
    platform_version: str = ""
    driver_version: str = ""
    opencl_c_version: str = ""
    extensions: tuple[str, ...] = ()
    fp16: bool = False
    fp64: bool = False
    preferred_widths: VectorWidths = _NO_WIDTHS
    native_widths: VectorWidths = _NO_WIDTHS
    compute_units: int = 0
    local_mem: int = 0
    #: Not compared, because PoCL's answers change with the free memory of the machine.
    global_mem: int = field(default=0, compare=False)
    max_alloc: int = field(default=0, compare=False)
    max_work_group_size: int = 0
    #: Work-items that the device runs in step, of which a work-group should be a multiple.
    group_multiple: int = 32
    host_unified: bool = False
    #: Path of the libOpenCL in use.
    loader: str = ""
    #: Path of the driver's library behind the loader.
    icd: str = ""
    health: Health = Health("unknown")
    #: CPU name given to PoCL's compiler in place of one it does not know; '' if it needed none.
    pocl_cpu: str = ""
    #: Remarks that are not errors.
    notes: tuple[str, ...] = ()
    _cl: Any = field(default=None, repr=False, compare=False)
    #: Called with the `pyopencl.Device` before its use; returns '', or why it cannot be used.
    _prepare: Callable[[Any], str] | None = field(default=None, repr=False, compare=False)
    #: Finds the device in the process that it was pickled for.
    _find: Callable[[DeviceInfo], DeviceInfo] | None = field(default=None, repr=False, compare=False)

    def __copy__(self) -> DeviceInfo:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> DeviceInfo:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, ({f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("_cl", "_prepare")},)

    @property
    def here(self) -> DeviceInfo:
        """This device in this process, if it was pickled in another one; raises `DeviceError` if it is not found."""
        return self if self._cl is not None or self._find is None else self._find(self)

    @property
    def key(self) -> str:
        """Stable name of device and driver, under which results of tuning and probing may be kept."""
        parts = [self.platform, self.name, self.driver_version]
        if self.pocl_cpu:
            parts.append(f"cpu={self.pocl_cpu}")
        return " | ".join(parts)

    @property
    def index(self) -> str:
        """'P:D' as accepted by the selector, '-' if the device is not visible in this process."""
        return f"{self.platform_index}:{self.device_index}" if self.platform_index >= 0 else "-"

    @property
    def simulator(self) -> bool:
        """Whether this is a simulator, never chosen unless asked for."""
        return any(word in self.platform.lower() for word in SIMULATORS)

    @property
    def runs_at_once(self) -> bool:
        """Whether it runs commands in the thread that enqueues them, whatever they are to wait for: PoCL's `basic`."""
        return self.platform == "Portable Computing Language" and self.name.startswith("basic")

    @property
    def cl_device(self) -> pyopencl.Device:
        """The `pyopencl.Device`; `DeviceError` if there is none in this process."""
        if self._cl is None and self._find is not None:
            return self._find(self).cl_device
        if self._cl is None:
            raise DeviceError(self.describe_problem())
        problem = self._prepare(self._cl) if self._prepare else ""
        if problem:
            raise DeviceError(
                f"device {self}: PoCL's record of it does not look as it did ({problem}); it was left alone"
            )
        device: pyopencl.Device = self._cl
        return device

    def describe_problem(self) -> str:
        """Return why this device cannot be used and what to do, as the message of an error."""
        reason = self.health.reason or "not visible in this process"
        text = f"device {self.name!r} on {self.platform!r} cannot be used: {reason}"
        return f"{text}\n  what to do: {self.health.hint}" if self.health.hint else text

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary of everything here, plus `key` and `index`."""
        known: dict[str, Any] = msgspec.to_builtins(replace(self, _cl=None, _prepare=None, _find=None))
        del known["_cl"], known["_prepare"], known["_find"]
        widths = {name: getattr(self, name)._asdict() for name in ("preferred_widths", "native_widths")}
        return {"index": self.index, "key": self.key} | known | widths

    def __str__(self) -> str:
        return f"{self.name} [{self.platform}, {self.index}]"


def _unpickled(known: dict[str, Any]) -> DeviceInfo:
    return DeviceInfo(**known)


def text(answer: str) -> str:
    """Return a driver's text without the blanks and NULs that some drivers add."""
    return answer.strip(" \0")


#: Fields of `DeviceInfo` that are one query: PyOpenCL's attribute, and a conversion.
_ANSWERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "name": ("name", text), "vendor": ("vendor", text), "opencl_version": ("version", text),
    "driver_version": ("driver_version", text), "opencl_c_version": ("opencl_c_version", text),
    "compute_units": ("max_compute_units", int), "local_mem": ("local_mem_size", int),
    "global_mem": ("global_mem_size", int), "max_alloc": ("max_mem_alloc_size", int),
    "max_work_group_size": ("max_work_group_size", int), "host_unified": ("host_unified_memory", bool),
}  # fmt: skip


#: Who says how many work-items run in step: OpenCL 3, NVIDIA, AMD.
_MULTIPLES = ("preferred_work_group_size_multiple", "warp_size_nv", "wavefront_width_amd")


def describe(device: pyopencl.Device, platform_index: int, device_index: int, **known: Any) -> DeviceInfo:
    """Describe a `pyopencl.Device`; a query that the driver does not support gives 0, False or ''.

    known: the fields that are not queried: health, loader, pocl_cpu, notes, and how it is used and found.
    """
    import pyopencl as cl

    def ask(name: str, kind: Callable[[Any], Any] = int) -> Any:
        try:
            return kind(getattr(device, name))
        except (cl.Error, AttributeError):
            return kind("" if kind is text else 0)

    def widths(prefix: str) -> VectorWidths:
        return VectorWidths(*(ask(f"{prefix}_vector_width_{t}") for t in VectorWidths._fields))

    extensions = tuple(sorted(set(ask("extensions", text).split())))
    return DeviceInfo(
        text(device.platform.name), platform_index, device_index, **{n: ask(*a) for n, a in _ANSWERS.items()},
        kind=kind_of(ask("type")), platform_version=text(device.platform.version), extensions=extensions,
        fp16="cl_khr_fp16" in extensions, fp64="cl_khr_fp64" in extensions or bool(ask("double_fp_config")),
        preferred_widths=widths("preferred"), native_widths=widths("native"),
        icd=icd_library(device.platform.int_ptr), group_multiple=next(filter(None, map(ask, _MULTIPLES)), 32),
        **known, _cl=device,
    )  # fmt: skip


def absent(platform: str, name: str, health: Health, **known: Any) -> DeviceInfo:
    """Return the entry for a device or driver that is on the machine but not in this process."""
    return DeviceInfo(platform, name=name, health=health, **known)


def kind_of(bits: int) -> Kind:
    """Return the kind for OpenCL's CL_DEVICE_TYPE bits."""
    if bits & 4:
        return "gpu"
    if bits & 8:
        return "accelerator"
    return "cpu" if bits & 2 else "custom"


def cpu_model() -> str:
    """Return this machine's CPU as 'vendor name family-model-stepping' (what CPU drivers compile for)."""
    fields = cpu_fields()
    if fields:
        names = [fields.get(k, "") for k in ("vendor_id", "model name")]
        numbers = "-".join(fields.get(k, "?") for k in ("cpu family", "model", "stepping"))
        return " ".join(part for part in [*names, numbers] if part)
    import platform

    return f"{platform.machine()} {platform.processor()}".strip()


def usable_cpus() -> int:
    """Return the number of processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def cpu_key() -> str:
    """Return what tells processors apart that run different code; clouds give one name to several generations."""
    fields = cpu_fields()
    flags = hashlib.sha256(fields.get("flags", fields.get("Features", "")).encode()).hexdigest()[:12]
    return f"{cpu_model()} {fields.get('cpu family', '')}/{fields.get('model', '')} {flags}"


def limits_key() -> str:
    """Return this process's limits of resources, under which a driver may fail that works in another process."""
    if sys.platform == "win32":
        return ""
    import resource

    names = ("AS", "DATA", "STACK", "NOFILE", "NPROC", "FSIZE", "MEMLOCK", "CPU")
    limits = ((name, getattr(resource, f"RLIMIT_{name}", None)) for name in names)
    return " ".join(f"{name}={resource.getrlimit(number)[0]}" for name, number in limits if number is not None)


def cpu_fields() -> dict[str, str]:
    """Return the first processor's entry of /proc/cpuinfo; empty where there is none."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        lines = (line.partition(":") for line in itertools.takewhile(str.strip, file))
        return {name.strip(): value.strip() for name, _, value in lines}
    return {}
