"""What tuning found, remembered between processes: `tuning.json` in the cache directory.

Layout: `data/tuning.schema.json`. A record's key is the device with its driver, the CPU, the kernels' source and the
purpose, so that a change of any of them makes it unknown, not wrong. Concurrency: written under a lock and replaced
atomically, merged with what is there. A file that cannot be read, or of another version, counts as empty, a damaged
record as absent. Read once a process; `save` and `forget_read` read anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .outcome import SIZES, Purpose, Record
from .source import kernel_hash
from .variants import STRIDED, Pairing, Variant

if TYPE_CHECKING:
    from ..device import DeviceInfo

SCHEMA = "clrope.tuning/3"
FILE = "tuning"
#: Records kept, the newest: those of a dozen devices.
MOST_RECORDS = 576

_lock = threading.Lock()
_read: dict[str, dict[str, Any]] = {}
_known: dict[tuple[str, ...], Known] = {}
_times_forgotten = 0


@dataclass(frozen=True)
class Known:
    """What is known of the spellings of one pairing and storage type on a device."""

    records: tuple[Record, ...] = ()

    def winner(self, in_place: bool, size: str) -> Variant | None:
        """Return the tuned spelling, None without one."""
        for record in self.records:
            if (record.purpose.in_place, record.purpose.size) == (in_place, size):
                return record.winner
        return None

    @property
    def broken(self) -> frozenset[Variant]:
        """Spellings that failed for any purpose: one that crashed out of place is not tried in place."""
        return frozenset(o.variant.spelling for record in self.records for o in record.outcomes if o.broken)


def kernels_hash(pairing: Pairing) -> str:
    """Return 16 hexadecimal digits that change with any source that a spelling of this pairing is built from."""
    files = dict.fromkeys((Variant().source(pairing)[0], STRIDED.source(pairing)[0]))
    return hashlib.sha256(" ".join(map(kernel_hash, files)).encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def _cpu() -> str:
    from ..device.info import cpu_model

    return cpu_model()


def key(device: DeviceInfo, purpose: Purpose) -> str:
    """Return the key of a record."""
    return " | ".join([device.key, _cpu(), kernels_hash(purpose.pairing), str(purpose)])


def known(device: DeviceInfo, dtype: str, pairing: Pairing) -> Known:
    """Return what is remembered for a device, storage type and pairing."""
    place = os.environ.get("CLROPE_CACHE_DIR", "")
    records = _records(place)
    if not records:
        return Known()
    question = (place, device.key, dtype, pairing, kernels_hash(pairing))
    answer = _known.get(question)
    if answer is None:
        answer = _known[question] = _look_up(records, device, dtype, pairing)
    return answer


def _look_up(records: dict[str, Any], device: DeviceInfo, dtype: str, pairing: Pairing) -> Known:
    found = []
    for purpose in purposes(dtype, pairing):
        entry = records.get(key(device, purpose))
        record = _record(entry) if entry is not None else None
        if record is not None and record.purpose == purpose:
            found.append(record)
    return Known(tuple(found))


def purposes(dtype: str, pairing: Pairing) -> list[Purpose]:
    """Return all purposes of a storage type and pairing, the likeliest first."""
    return [Purpose(dtype, pairing, in_place, size) for size in SIZES[::-1] for in_place in (False, True)]


def save(device: DeviceInfo, records: Iterable[Record]) -> None:
    """Remember records, in the place of earlier ones for the same purposes; without a writable cache, do nothing."""
    new = {key(device, r.purpose): {**_place(device), **replace(r, written=time.time()).to_dict()} for r in records}

    def change(entries: dict[str, Any]) -> None:
        for name, entry in new.items():
            entries.pop(name, None)
            entries[name] = entry
        for old in sorted(entries, key=lambda name: _written(entries[name]))[:-MOST_RECORDS]:
            del entries[old]

    _update(change)


def forget(device: DeviceInfo) -> None:
    """Drop every record of a device."""
    _update(lambda entries: [entries.pop(name) for name in list(entries) if name.startswith(device.key + " | ")])


def forget_read() -> None:
    """Read the file anew at the next question."""
    global _times_forgotten
    with _lock:
        _read.clear()
        _known.clear()
        _times_forgotten += 1


def edition() -> tuple[str, int]:
    """Return what changes whenever `known` may answer otherwise than before: where and as of when it was read."""
    return os.environ.get("CLROPE_CACHE_DIR", ""), _times_forgotten


def _update(change: Callable[[dict[str, Any]], object]) -> None:
    import clrope.store as store

    with store.locked(FILE):
        path = store.cache_dir() / f"{FILE}.json"
        entries = _load(os.fspath(path))
        change(entries)
        with suppress(OSError):
            store.write_atomically(path, json.dumps({"schema": SCHEMA, "records": entries}, indent=1))
    forget_read()


def _place(device: DeviceInfo) -> dict[str, str]:
    # For people who read the file.
    return {"device": device.key, "cpu": _cpu()}


def _records(place: str) -> dict[str, Any]:
    # By the variable, not the directory: that costs a few system calls, and this is asked at every call of `rope`.
    with _lock:
        found = _read.get(place)
        if found is None:
            import clrope.store as store

            found = _read[place] = _load(os.fspath(store.cache_dir() / f"{FILE}.json"))
        return found


def _load(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        if data["schema"] == SCHEMA and isinstance(data["records"], dict):
            return {name: entry for name, entry in data["records"].items() if isinstance(entry, dict)}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass  # absent, damaged, of another version, or not ours: the same as nothing remembered
    return {}


def _record(entry: dict[str, Any]) -> Record | None:
    try:
        return Record.from_dict(entry)
    except (ValueError, KeyError, TypeError):
        return None


def _written(entry: dict[str, Any]) -> float:
    written = entry.get("written")
    return float(written) if isinstance(written, (int, float)) else 0.0
