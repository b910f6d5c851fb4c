"""The tuning database: `tuning.json` in the cache directory, shared between processes.

A record's name is the device with its driver, the CPU, the kernels' source and the tuning key, so that a change of any
of them makes it unknown, not wrong. Each process reads it once; after `save` and `reread` again.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..device.info import cpu_key
from ..kernels.problem import Pairing
from ..kernels.source import kernel_hash
from ..kernels.variant import KERNELS, Variant
from ..store import Snapshot, Store, schema_of
from .records import SIZES, TuningKey, TuningRecord

if TYPE_CHECKING:
    from ..device import DeviceInfo

#: Records kept, the newest: those of a dozen devices.
MOST_RECORDS = 576


@dataclass(frozen=True)
class DeviceFacts:
    """What the families of `defaults.json` are matched by."""

    kind: str
    platform: str
    vendor: str
    name: str
    driver: str
    float_width: int
    arch: str


@dataclass(frozen=True, kw_only=True)
class Entry(TuningRecord):
    """A record with where it was made. device: `DeviceInfo.key`."""

    device: str
    cpu: str
    facts: DeviceFacts


_store = Store("tuning", Entry, schema=6, most=MOST_RECORDS)
#: The records as this process knows them; calls that are kept are valid until they are read again.
snapshot = Snapshot(_store)


@dataclass(frozen=True)
class Known:
    """What is known of the variants for one pairing and storage type on a device."""

    records: tuple[TuningRecord, ...] = ()

    def record(self, key: TuningKey) -> TuningRecord | None:
        """Return the record for a tuning key."""
        return next((record for record in self.records if record.key == key), None)

    @property
    def broken(self) -> frozenset[Variant]:
        """Variants that failed for any key: one that crashed out of place is not tried in place."""
        return frozenset(r.variant.compiled for record in self.records for r in record.results if r.broken)


def kernels_hash() -> str:
    """Return 16 hexadecimal digits that change with any source of the rotation kernels."""
    return hashlib.sha256(" ".join(kernel_hash(k.file) for k in KERNELS.values()).encode()).hexdigest()[:16]


_cpu = cache(cpu_key)


def record_name(device: DeviceInfo, key: TuningKey) -> str:
    """Return the name under which a record is kept."""
    return " | ".join([device.key, _cpu(), kernels_hash(), str(key)])


def known(device: DeviceInfo, dtype: str, pairing: Pairing) -> Known:
    """Return what is known for a device, storage type and pairing."""
    return _look_up(generation(), kernels_hash(), device, dtype, pairing)


@lru_cache(maxsize=256)
def _look_up(_generation: object, _kernels: str, device: DeviceInfo, dtype: str, pairing: Pairing) -> Known:
    entries, found = snapshot.records(), []
    for key in tuning_keys(dtype, pairing) if entries else ():
        record = entries.get(record_name(device, key))
        if record is not None and record.key == key:
            found.append(record)
    return Known(tuple(found))


def tuning_keys(dtype: str, pairing: Pairing) -> list[TuningKey]:
    """Return all tuning keys of a storage type and pairing, the likeliest first."""
    return [TuningKey(dtype, pairing, in_place, size) for size in SIZES[::-1] for in_place in (False, True)]


def save(device: DeviceInfo, records: Iterable[TuningRecord]) -> None:
    """Remember records, in the place of earlier ones for the same keys; without a writable cache, do nothing."""
    origin = {"device": device.key, "cpu": _cpu(), "facts": DeviceFacts(**device_facts(device)), "written": time.time()}
    _store.put_all({record_name(device, r.key): Entry(**{**vars(r), **origin}) for r in records})
    reread()


def forget(device: DeviceInfo | None = None) -> int:
    """Drop every record of a device, or of all devices; return how many there were."""
    count = _store.forget("" if device is None else device.key + " | ")
    reread()
    return count


def place() -> Path:
    """Return the file."""
    return _store.path


def reread() -> None:
    """Read the file again at the next question."""
    snapshot.reread()


def generation() -> tuple[bytes, int]:
    """Return what changes whenever `known` may answer something else than before: where it was read, and when."""
    return snapshot.version


def device_facts(device: DeviceInfo) -> dict[str, Any]:
    """Return what the families of `defaults.json` are matched by."""
    return {
        "kind": device.kind, "platform": device.platform, "vendor": device.vendor, "name": device.name,
        "driver": device.driver_version, "float_width": device.native_widths.float, "arch": platform.machine(),
    }  # fmt: skip


def entries(path: str) -> dict[str, Entry]:
    """Return the sound entries of a file by name; `ValueError` for a file without any."""
    found = _store.read(Path(path))
    if not found:
        raise ValueError(f"{path}: no records of {_store.tag}")
    return found


def schema() -> dict[str, Any]:
    """Return the JSON schema of the file's entries."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": _store.tag,
        "title": "A record of tuning.json in clrope's cache directory", **schema_of(Entry),
    }  # fmt: skip
