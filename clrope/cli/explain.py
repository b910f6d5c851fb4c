"""`clrope explain`: what would be launched for a shape, and from which source."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ..config import RopeConfig
from ..device import device
from ..errors import ConfigError
from ..kernels.source import kernel_folder, kernel_hash
from ..layout import DTYPES, dtype_name
from ..operation import Rope
from .config_options import takes_config
from .options import AsJson, Backward, CallDevices, Layout, Quiet, Types, checked_types, flag, value
from .output import print_fields, print_json


@takes_config
def explain(
    config: RopeConfig,
    shape: Annotated[str, value("SHAPE", "Axis lengths in the order of --layout, such as 1,4096,32,128.")],
    types: Types = None,
    layout: Layout = "bsnd",
    inplace: Annotated[bool, flag("--inplace", "Rotate in place.")] = False,
    backward: Backward = False,
    devices: CallDevices = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show which kernels a call would launch.

    Prints the device, each kernel with its source, parameters and compiler options, and the number of launches.
    Default storage type: f32. With several devices or storage types, --json prints a list.
    """
    lengths = _lengths(shape)
    reports = []
    for chosen in dict.fromkeys([device(name) for name in devices] if devices else [device()]):
        for dtype in checked_types(types) or ["f32"]:
            x = _zeros(lengths, dtype)
            plan = Rope(config, chosen).plan(x, 0, not backward, out=x if inplace else None, layout=layout)
            reports.append(_report(plan, config, x, layout))
    if as_json:
        print_json(reports if len(reports) > 1 else reports[0])
        return
    for number, report in enumerate(reports):
        if number:
            print()
        print_fields((k, v) for k, v in report.items() if k not in ("kernels", "schema", "config"))
        for kernel in report["kernels"]:
            print()
            print_fields((k, _text(v)) for k, v in kernel.items())


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


def _zeros(lengths: list[int], dtype: str) -> npt.NDArray[Any]:
    # Pages of zeros that nobody touches take no memory.
    try:
        return np.zeros(lengths, DTYPES[dtype])
    except (MemoryError, ValueError) as error:
        raise ConfigError(f"--shape: got {lengths}, there is no memory for such a tensor ({error})") from error


def _report(plan: Any, config: RopeConfig, x: Any, layout: str) -> dict[str, Any]:
    kernels = [
        {
            "kernel": spec.function,
            "source": str(kernel_folder() / spec.file),
            "source_hash": kernel_hash(spec.file),
            "options": list(spec.options),
            "variant": variant.to_dict(),
            "launches": launches,
        }
        for (variant, spec), launches in Counter(zip(plan.variants, plan.specs, strict=True)).items()
    ]
    tables = "cache_init_ggml.cl" if config.angles == "ggml" else "cache_init.cl"
    fused = bool(kernels) and all(variant.angles == "fused" for variant in plan.variants)
    return {
        "schema": "clrope.explain/1",
        "device": str(plan.device),
        "driver": plan.device.driver_version,
        "memory": "the host's, in place" if plan.device.host_unified else "the device's own, by copies",
        "tensor": f"{dtype_name(x.dtype)} {list(x.shape)} in the order {layout[-x.ndim :]}",
        "mode": config.mode,
        "launches": plan.launches,
        "cos and sin": "computed by the kernel" if fused else f"{kernel_folder() / tables}, kept for the next call",
        "kernels": kernels,
        "config": config.to_dict(),
    }
