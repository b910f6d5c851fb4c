"""`DeviceInfo` and `Health`: what is known of one OpenCL device, frozen, JSON-ready."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..errors import DeviceError
from .procmem import icd_library

if TYPE_CHECKING:
    import pyopencl

Kind = Literal["cpu", "gpu", "accelerator", "custom"]
Status = Literal["ok", "unhealthy", "unknown"]
#: Why a device is unhealthy: `build` a kernel does not compile, `crash` a signal, `timeout` no answer, `wrong` values
#: or no values, `hidden` present but not visible in this process, `error` anything else the driver reported.
Cause = Literal["", "build", "crash", "timeout", "wrong", "hidden", "error"]

#: Simulators: right, and thousands of times slower than the machine; taken only if asked for by name.
SIMULATORS = ("oclgrind",)


@dataclass(frozen=True)
class Health:
    """Result of the probe: status, and if not ok the cause, the reason in words and what to do about it."""

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


@dataclass(frozen=True)
class DeviceInfo:
    """One device. Frozen, comparable, and free of OpenCL calls except for `cl_device`."""

    platform: str
    platform_index: int
    device_index: int
    name: str
    vendor: str
    kind: Kind
    opencl_version: str
    platform_version: str
    driver_version: str
    opencl_c_version: str
    extensions: tuple[str, ...]
    fp16: bool
    fp64: bool
    preferred_widths: VectorWidths
    native_widths: VectorWidths
    compute_units: int
    local_mem: int
    #: What PoCL answers here follows the memory that is free at the moment, which is no part of a device's identity.
    global_mem: int = field(compare=False)
    max_alloc: int = field(compare=False)
    max_work_group_size: int
    host_unified: bool
    #: Path of the libOpenCL in use.
    loader: str
    #: Path of the driver's library behind the loader.
    icd: str
    health: Health
    #: CPU name given to PoCL's compiler in place of one it does not know; '' if it needed none.
    pocl_cpu: str = ""
    #: Remarks that are no fault, in words.
    notes: tuple[str, ...] = ()
    _cl: Any = field(default=None, repr=False, compare=False)

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
    def cl_device(self) -> pyopencl.Device:
        """The `pyopencl.Device`; `DeviceError` if there is none in this process."""
        if self._cl is None:
            raise DeviceError(self.describe_problem())
        device: pyopencl.Device = self._cl
        return device

    def describe_problem(self) -> str:
        """Return why this device cannot be used and what to do, as the message of an error."""
        reason = self.health.reason or "not visible in this process"
        text = f"device {self.name!r} on {self.platform!r} cannot be used: {reason}"
        return f"{text}\n  what to do: {self.health.hint}" if self.health.hint else text

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary of everything here, plus `key` and `index`."""
        out: dict[str, Any] = {"index": self.index, "key": self.key}
        for name in self.__dataclass_fields__:
            if name != "_cl":
                out[name] = getattr(self, name)
        out["extensions"] = list(self.extensions)
        out["notes"] = list(self.notes)
        out["preferred_widths"] = self.preferred_widths._asdict()
        out["native_widths"] = self.native_widths._asdict()
        out["health"] = asdict(self.health)
        return out

    def __str__(self) -> str:
        return f"{self.name} [{self.platform}, {self.index}]"


def describe(
    device: pyopencl.Device,
    platform_index: int,
    device_index: int,
    *,
    health: Health,
    loader: str = "",
    pocl_cpu: str = "",
    notes: tuple[str, ...] = (),
) -> DeviceInfo:
    """Read everything from a `pyopencl.Device`; what a driver does not answer is 0, False or ''."""
    import pyopencl as cl

    def ask(name: str, default: Any) -> Any:
        try:
            value = getattr(device, name)
        except (cl.Error, AttributeError):
            return default
        return value.strip(" \0") if isinstance(value, str) else value

    def widths(prefix: str) -> VectorWidths:
        return VectorWidths(*(int(ask(f"{prefix}_vector_width_{t}", 0)) for t in VectorWidths._fields))

    platform = device.platform
    extensions = tuple(sorted(set(str(ask("extensions", "")).split())))
    return DeviceInfo(
        platform=platform.name.strip(" \0"),
        platform_index=platform_index,
        device_index=device_index,
        name=str(ask("name", "?")),
        vendor=str(ask("vendor", "")),
        kind=kind_of(int(ask("type", 0))),
        opencl_version=str(ask("version", "")),
        platform_version=platform.version.strip(" \0"),
        driver_version=str(ask("driver_version", "")),
        opencl_c_version=str(ask("opencl_c_version", "")),
        extensions=extensions,
        fp16="cl_khr_fp16" in extensions,
        fp64="cl_khr_fp64" in extensions or bool(ask("double_fp_config", 0)),
        preferred_widths=widths("preferred"),
        native_widths=widths("native"),
        compute_units=int(ask("max_compute_units", 0)),
        local_mem=int(ask("local_mem_size", 0)),
        global_mem=int(ask("global_mem_size", 0)),
        max_alloc=int(ask("max_mem_alloc_size", 0)),
        max_work_group_size=int(ask("max_work_group_size", 0)),
        host_unified=bool(ask("host_unified_memory", False)),
        loader=loader,
        icd=icd_library(platform.int_ptr),
        health=health,
        pocl_cpu=pocl_cpu,
        notes=notes,
        _cl=device,
    )


def absent(platform: str, name: str, health: Health, *, loader: str = "", icd: str = "", **known: str) -> DeviceInfo:
    """Return the entry for a device or driver that is on the machine but not in this process."""
    none = VectorWidths(0, 0, 0, 0, 0, 0, 0)
    kind = known.get("kind", "custom")
    return DeviceInfo(
        platform=platform, platform_index=-1, device_index=-1, name=name, vendor=known.get("vendor", ""),
        kind=kind if kind in ("cpu", "gpu", "accelerator") else "custom",  # type: ignore[arg-type]
        opencl_version=known.get("version", ""), platform_version=known.get("platform_version", ""),
        driver_version=known.get("driver_version", ""), opencl_c_version="", extensions=(), fp16=False, fp64=False,
        preferred_widths=none, native_widths=none, compute_units=0, local_mem=0, global_mem=0, max_alloc=0,
        max_work_group_size=0, host_unified=False, loader=loader, icd=icd, health=health,
    )  # fmt: skip


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


def cpu_fields() -> dict[str, str]:
    """Return the first processor's entry of /proc/cpuinfo; empty where there is none."""
    out: dict[str, str] = {}
    path = "/proc/cpuinfo"
    if os.path.exists(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                name, colon, value = line.partition(":")
                if not colon:
                    if out:
                        break
                    continue
                out[name.strip()] = value.strip()
    return out
