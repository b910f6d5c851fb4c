"""Kernels that move bytes and do nothing else: the speed that no rotation of the same bytes can pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import BuildError
from .build import build

if TYPE_CHECKING:
    import pyopencl

    from ..device import DeviceInfo

#: VECTORS of 32 bytes a work-item; SCALE: in place, by a factor that the compiler does not know.
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
#: Bytes of a work-item on a CPU, and elsewhere.
ITEM_BYTES = {"cpu": 16384}
VECTOR_BYTES = 32


def ceiling_launches(context: pyopencl.Context, device: DeviceInfo, x: Any, y: Any, nbytes: int) -> list[Any]:
    """Return bound launches that copy x to y, or scale where they are one buffer; spellings that do not build lack."""
    import numpy as np

    from ..schedule.launch import Launch, local_size_for

    item = ITEM_BYTES.get(device.kind, VECTOR_BYTES)
    while nbytes % item:
        item //= 2
    out = []
    for store in ([], ["-DNONTEMPORAL"]):
        options = [f"-DVECTORS={item // VECTOR_BYTES}", *(["-DSCALE"] if x is y else []), *store]
        try:
            built = build(context, device.cl_device, SOURCE, options)
        except BuildError:
            continue
        size = (nbytes // item,)
        out.append(Launch(built, "ceiling", size, local_size_for(device.kind, 1), [x, y, np.float32(1.0)]))
    return out
