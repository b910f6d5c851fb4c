"""Kernels that only move bytes: the limit for a rotation of the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BuildError
from ..kernels.build import build
from ..kernels.launch import Launch, LaunchSpec, local_size_for

if TYPE_CHECKING:
    import pyopencl

    from ..device import DeviceInfo

#: VECTORS: vectors of 32 bytes per work-item. SCALE: scale in place, by a factor that the compiler does not know.
SOURCE = """
#ifdef NONTEMPORAL
#define STORE(v, p) __builtin_nontemporal_store(v, p)
#else
#define STORE(v, p) (*(p) = (v))
#endif
__kernel void ceiling(__global const float8 *x, __global float8 *y, const float factor) {
  const size_t first = get_global_id(0) * VECTORS;
  for (int i = 0; i < VECTORS; ++i) {
#ifdef SCALE
    STORE(y[first + i] * factor, y + first + i);
#else
    STORE(x[first + i], y + first + i);
#endif
  }
}
"""
#: Bytes per work-item by kind of device; elsewhere one vector.
ITEM_BYTES = {"cpu": 16384}
VECTOR_BYTES = 32


def ceiling_launches(
    context: pyopencl.Context, device: DeviceInfo, places: Sequence[tuple[Any, Any]], nbytes: int
) -> list[list[Launch]]:
    """Return bound launches for each variant that builds: copies from x to y, or scalings where x is y.

    places: pairs (x, y) of buffers, all in place or none.
    """
    item = ITEM_BYTES.get(device.kind, VECTOR_BYTES)
    while nbytes % item:
        item //= 2
    scale = ["-DSCALE"] if places[0][0] is places[0][1] else []
    out = []
    for store in ([], ["-DNONTEMPORAL"]):
        spec = LaunchSpec(
            "ceiling.cl", "ceiling", (f"-DVECTORS={item // VECTOR_BYTES}", *scale, *store), (nbytes // item,),
            local_size_for(device.kind, 1), (("x", None), ("y", None), ("factor", np.float32(1.0))), SOURCE,
        )  # fmt: skip
        try:
            program = build(context, device.cl_device, spec.text, spec.options)
        except BuildError:
            continue
        launches = [Launch(program, spec) for _ in places]
        for launch, (x, y) in zip(launches, places, strict=True):
            launch.bind({"x": x, "y": y})
        out.append(launches)
    return out
