"""`clrope devices`: every OpenCL device there is, and what is wrong with those that cannot be used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .exit_code import exit_with_code

if TYPE_CHECKING:
    from ..device import DeviceInfo


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("devices")(exit_with_code(_devices))


def _devices(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything known as JSON.")] = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Probe every device again.")] = False,
) -> bool:
    """List all OpenCL devices with their health. Exit code 1 if no device is healthy."""
    from ..device import devices
    from .output import print_json

    found = devices(refresh=refresh)
    if as_json:
        print_json({"schema": "clrope.devices/1", "devices": [d.to_dict() for d in found]})
    else:
        _show(found)
    return any(d.health.ok for d in found)


def _show(found: list[DeviceInfo]) -> None:
    from ..device.select import INSTALL_HINT
    from .output import bytes_text, print_table

    if not found:
        print(f"no OpenCL device was found; {INSTALL_HINT}")
        return
    yes = {True: "yes", False: "no"}
    print_table(
        "",
        ["index", "platform", "device", "kind", "OpenCL", "driver", "#units", "fp16", "fp64", "vector f32/f16",
         "#local", "#max alloc", "unified", "#copy GB/s", "health"],
        [
            [d.index, d.platform, d.name, d.kind, d.opencl_version.removeprefix("OpenCL ").split(" ")[0],
             d.driver_version, d.compute_units, yes[d.fp16], yes[d.fp64],
             f"{d.native_widths.float}/{d.native_widths.half}", bytes_text(d.local_mem), bytes_text(d.max_alloc),
             yes[d.host_unified], "-" if d.health.copy_gbs is None else f"{d.health.copy_gbs:.3g}",
             d.health.status + (" (simulator)" if d.simulator else "")]
            for d in found
        ],
    )  # fmt: skip
    for d in found:
        for note in d.notes:
            print(f"{d}: {note}")
        if d.health.reason:
            print(f"{d}: {d.health.reason}")
        if d.health.hint:
            print(f"  what to do: {d.health.hint}")
    loaders = sorted({d.loader for d in found if d.loader})
    if loaders:
        print(f"loader: {', '.join(loaders)}")
