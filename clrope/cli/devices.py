"""`clrope devices`: every OpenCL device there is, and what is wrong with those that cannot be used."""

from __future__ import annotations

from typing import Annotated, Any

from ..device import DeviceInfo, device, devices
from ..device.select import INSTALL_HINT
from ..errors import DeviceError
from .options import AsJson, Devices, Quiet, flag
from .output import bytes_text, print_fields, print_json, print_line, print_table


def list_devices(
    names: Devices = None,
    details: Annotated[bool, flag("--details", "Print more about each device, one field a line.")] = False,
    refresh: Annotated[bool, flag("--refresh", "Probe every device again.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """List the OpenCL devices and their health.

    Exit code 2 if no device is healthy.
    """
    found = devices(refresh=refresh)
    if names:
        found = list(dict.fromkeys(device(name) for name in names))
    if as_json:
        print_json({"schema": "clrope.devices/1", "devices": [d.to_dict() for d in found]})
    elif details:
        for number, d in enumerate(found):
            if number:
                print()
            print_fields({"device": d, **_details(d)}.items())
    elif found:
        columns = ["index", "platform", "device", "kind", "#copy GB/s", "health"]
        print_table("", columns, [[d.index, d.platform, d.name, d.kind, _copy(d), _health(d)] for d in found])
    if found and not as_json:
        _explain_health(found, quiet)
    if not found:
        raise DeviceError(f"device: no OpenCL device was found\n  what to do: {INSTALL_HINT}")
    if not any(d.health.ok for d in found):
        raise DeviceError(f"device: none of {len(found)} is healthy\n  what to do: see the list, or {INSTALL_HINT}")


def _details(d: DeviceInfo) -> dict[str, Any]:
    yes = {True: "yes", False: "no"}
    return {
        "platform": d.platform,
        "kind": d.kind,
        "OpenCL": d.opencl_version.removeprefix("OpenCL ").strip(),
        "driver": d.driver_version,
        "compute units": d.compute_units,
        "fp16, fp64": f"{yes[d.fp16]}, {yes[d.fp64]}",
        "vector width": f"{d.native_widths.float} for f32, {d.native_widths.half} for f16",
        "local memory": bytes_text(d.local_mem),
        "global memory": bytes_text(d.global_mem),
        "max allocation": bytes_text(d.max_alloc),
        "unified memory": yes[d.host_unified],
        "copy GB/s": _copy(d),
        "health": _health(d),
        "loader": d.loader or "-",
        "driver library": d.icd or "-",
    }


def _copy(d: DeviceInfo) -> str:
    return "-" if d.health.copy_gbs is None else f"{d.health.copy_gbs:.3g}"


def _health(d: DeviceInfo) -> str:
    return d.health.status + (" (simulator)" if d.simulator else "")


def _explain_health(found: list[DeviceInfo], quiet: bool) -> None:
    """Print the remarks and the reasons for a device that is not healthy."""
    for d in found:
        for note in () if quiet else d.notes:
            print_line(f"{d}: {note}")
        if d.health.reason:
            print_line(f"{d}: {d.health.reason}")
        if d.health.hint:
            print(f"  what to do: {d.health.hint}")
