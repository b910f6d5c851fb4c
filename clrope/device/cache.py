"""Sizes of caches, and how many buffers in rotation leave no data in a cache."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .info import DeviceInfo

#: All sets together: at least so many bytes, and so many times the cache.
LEAST_BYTES = 256 << 20
CACHE_MULTIPLE = 4
MOST_SETS = 64


@lru_cache(maxsize=1)
def host_cache_bytes() -> int:
    """Return the size of the largest cache of this machine's CPU, 0 if it cannot be read."""
    return largest_size(Path("/sys/devices/system/cpu/cpu0/cache"))


def largest_size(folder: Path) -> int:
    """Return the largest of the sizes in `index*/size` of a folder, such as '32K'; those that cannot be read are 0."""
    largest = 0
    for path in folder.glob("index*/size"):
        with suppress(OSError, ValueError):  # sandboxes hide or make up files of /sys
            text = path.read_text(encoding="ascii").strip()
            number = int(text.rstrip("KMG") or 0)
            largest = max(largest, number << {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0))
    return largest


def largest_cache(device: DeviceInfo) -> int:
    """Return the bytes of the largest cache between a device and its memory, 0 if it is not known."""
    stated = int(device.cl_device.global_mem_cache_size or 0)
    return max(stated, host_cache_bytes() if device.kind == "cpu" else 0)


def sets_beyond(cache_bytes: int, set_bytes: int) -> int:
    """Return how many sets of `set_bytes`, used in rotation, are out of a cache of `cache_bytes` at their next use."""
    wanted = max(LEAST_BYTES, CACHE_MULTIPLE * cache_bytes)
    return max(1, min(MOST_SETS, -(-wanted // set_bytes)))
