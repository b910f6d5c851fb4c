"""The variant for a device that was not tuned, from `defaults.json`: good from the first call, and only what was tried.

The file is data: device families (patterns over a device's facts, the first that matches counts), limits of the size
classes, widths of norms, and rows of (family, tuning keys, variant, where that was measured), of which again the first
that matches counts. `clrope tune --write-defaults` writes it.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..device.cache import host_cache_bytes
from ..kernels.variant import STRIDED, Variant
from .database import device_facts
from .records import SizeClass, TuningKey

if TYPE_CHECKING:
    from ..device import DeviceInfo

#: Fields of a tuning key, as the rows name them.
KEY_FIELDS = ("dtype", "pairing", "in_place", "size")
PATH = Path(__file__).parent / "defaults.json"


@cache
def table() -> dict[str, Any]:
    """Return the contents of `defaults.json`."""
    data: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return data


def matches(pattern: dict[str, Any], facts: dict[str, Any]) -> bool:
    """Whether a device's facts match: each text by a regular expression, `float_width` by [least, most]."""
    for name, wanted in pattern.items():
        if name == "float_width":
            least, most = wanted
            if not least <= facts[name] <= most:
                return False
        elif not re.search(wanted, facts[name]):
            return False
    return True


def family_of(facts: dict[str, Any], families: dict[str, Any]) -> str | None:
    """Return the name of the first family that matches."""
    return next((name for name, pattern in families.items() if matches(pattern, facts)), None)


def default_for(device: DeviceInfo, key: TuningKey) -> Variant:
    """Return the default of a device for a tuning key; for a device of no family, the safe one.

    It may not fit a problem (`Variant.fit`), and is not looked up in the tuning database.
    """
    facts = device_facts(device)
    family = family_of(facts, table()["families"])
    for row in table()["rows"]:
        if row["family"] == family and all(getattr(key, name) in row[name] for name in KEY_FIELDS):
            return Variant(**row["variant"])
    return safe_variant(device.kind, key.dtype)


def size_class(device: DeviceInfo, nbytes: int) -> SizeClass:
    """Return the size class of a call that rotates so many bytes on a device."""
    limits = table()["size_classes"]
    if nbytes < medium_bytes(device):
        return "small"
    # On CPUs also from this part of the largest cache on: input and output would take half of it.
    host_cache = host_cache_bytes() if device.kind == "cpu" else 0
    large = limits["large"]
    return "large" if nbytes >= min(large, host_cache // limits["large_part_of_cache"] or large) else "medium"


def medium_bytes(device: DeviceInfo) -> int:
    """Return the bytes from which a call counts as medium: it no longer fits into a core's own cache."""
    facts = device_facts(device)
    rows = table()["size_classes"]["medium"]
    return int(next(row["bytes"] for row in rows if matches(row["device"], facts)))


def norm_width(device: DeviceInfo, dtype: str, store: str) -> int:
    """Return the elements of the vectors of a norm on a CPU: wide ones, as it computes more than a rotation."""
    facts = {**device_facts(device), "dtype": dtype, "store": store}
    return int(next(row["width"] for row in table()["norm_widths"] if matches(row["when"], facts)))


def safe_variant(kind: str, dtype: str) -> Variant:
    """Return the variant for a device kind ('cpu', 'gpu', 'accelerator', ...) that nothing is known of.

    CPUs: vectors of 32 bytes of the computing type, with OpenCL's own functions only. Wider ones change the calling
    convention on a CPU without AVX-512, and that is where drivers were seen to fail. GPUs: adjacent work-items handle
    adjacent vectors. Others: element by element.
    """
    if kind == "gpu":
        return Variant("lanes")
    return Variant(width=4 if dtype == "f64" else 8) if kind == "cpu" else STRIDED
