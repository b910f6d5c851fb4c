"""`clrope explain`: what would be launched for a shape, and from which source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError
from .config_options import takes_config
from .exit_code import exit_with_code

if TYPE_CHECKING:
    from ..config import RopeConfig


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explain")(exit_with_code(takes_config(_explain)))


def _explain(
    config: RopeConfig,
    shape: Annotated[str, typer.Option(help="Lengths in the order of --layout, as 1,4096,32,128.")],
    dtype: Annotated[str, typer.Option("--type", help="A storage type, as f16.")] = "f32",
    layout: Annotated[str, typer.Option(help="Order of the axes: any order of b, s, n, d.")] = "bsnd",
    inplace: Annotated[bool, typer.Option("--inplace", help="The output is the input.")] = False,
    backward: Annotated[bool, typer.Option("--backward", help="Rotate back.")] = False,
    device: Annotated[str | None, typer.Option(help="Name or index. Default: the fastest healthy.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> bool:
    """Say what a call would launch: the device, the kernel, its parameters, file and options, how many chunks."""
    import numpy as np

    from ..device import device as find_device
    from ..layout import DTYPES
    from ..operation import Rope

    lengths = _lengths(shape)
    if dtype not in DTYPES:
        raise ConfigError(f"--type: got {dtype!r}, allowed are {', '.join(DTYPES)}")
    chosen = find_device(device)
    # Zeros that nobody touches take no memory.
    x = np.zeros(lengths, DTYPES[dtype])
    plan = Rope(config, chosen).plan(x, 0, not backward, out=x if inplace else None, layout=layout)
    report = _report(plan, config, chosen, x, layout)
    from .output import print_json, print_table

    if as_json:
        print_json(report)
        return True
    print_table(
        "", ["", ""], [[name, value] for name, value in report.items() if name not in ("kernels", "schema", "config")]
    )
    for kernel in report["kernels"]:
        print_table("", ["", ""], [[k, _text(v)] for k, v in kernel.items()])
    return True


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _lengths(text: str) -> list[int]:
    try:
        lengths = [int(part) for part in text.split(",")]
    except ValueError:
        lengths = []
    if len(lengths) not in (3, 4) or min(lengths) < 0:
        raise ConfigError(f"--shape: got {text!r}, 3 or 4 lengths with commas between are needed")
    return lengths


def _report(plan: Any, config: RopeConfig, device: Any, x: Any, layout: str) -> dict[str, Any]:
    from collections import Counter

    from ..kernels.source import kernel_folder, kernel_hash
    from ..layout import dtype_name

    kernels = []
    for (variant, spec), launches in Counter(zip(plan.variants, plan.specs, strict=True)).items():
        kernels.append(
            {
                "kernel": spec.function,
                "source": str(kernel_folder() / spec.file),
                "source_hash": kernel_hash(spec.file),
                "options": list(spec.options),
                "variant": variant.to_dict(),
                "launches": launches,
            }
        )
    tables = "cache_init_ggml.cl" if config.angles == "ggml" else "cache_init.cl"
    fused = bool(kernels) and all(variant.angles == "fused" for variant in plan.variants)
    return {
        "schema": "clrope.explain/1",
        "device": str(device),
        "driver": device.driver_version,
        "memory": "the host's, in place" if device.host_unified else "the device's own, by copies",
        "tensor": f"{dtype_name(x.dtype)} {list(x.shape)} in the order {layout[-x.ndim :]}",
        "mode": config.mode,
        "launches": plan.launches,
        "cos and sin": "computed by the kernel" if fused else f"{kernel_folder() / tables}, kept for the next call",
        "kernels": kernels,
        "config": config.to_dict(),
    }
