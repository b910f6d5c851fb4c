"""Well-known models by name, from the values in their published `config.json` files (kept in `data/presets.json`)."""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

from ..errors import ConfigError
from .hf import fields_from_hf


@cache
def _entries() -> dict[str, dict[str, Any]]:
    from importlib import resources  # here, because importing this package must stay quick

    text = resources.files(__package__).joinpath("data/presets.json").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = json.loads(text)
    for entry in entries.values():
        same_as = entry["config"].get("same_as")
        if same_as is not None:
            entry["config"] = entries[same_as]["config"]
    return entries


def _entry(name: str) -> dict[str, Any]:
    entries = _entries()
    if not isinstance(name, str):
        raise ConfigError(f"preset: got {name!r:.80} of type {type(name).__name__}, a name is needed")
    if name not in entries:
        import difflib

        near = difflib.get_close_matches(name, entries, n=3, cutoff=0.5)
        hint = f"; close are {', '.join(map(repr, near))}" if near else ""
        raise ConfigError(f"preset: got {name!r}{hint}; known are {', '.join(entries)}")
    return entries[name]


def names() -> list[str]:
    """Return the names of all presets."""
    return list(_entries())


def preset_fields(name: str) -> dict[str, Any]:
    """Return the fields of `RopeConfig` for a well-known model; `ConfigError` with the known names for another."""
    entry = _entry(name)
    return fields_from_hf(entry["config"], entry.get("seq_len"), layer_type=entry.get("layer_type"))


def source(name: str) -> str:
    """Return where a preset's values come from."""
    return str(_entry(name)["source"])


def hf_config(name: str) -> dict[str, Any]:
    """Return the part of the model's `config.json` that a preset is made from, as a new dictionary."""
    return copy.deepcopy(dict(_entry(name)["config"]))
