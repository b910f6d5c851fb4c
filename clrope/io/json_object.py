"""A JSON file that holds an object: configurations of models, and those of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..bounded_read import LARGEST_CONFIG, read_bounded_text
from ..errors import ConfigError
from ..strict_json import parse_json


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a file of at most `LARGEST_CONFIG` bytes; `ConfigError` naming the file if there is none."""
    try:
        data = parse_json(read_bounded_text(path, LARGEST_CONFIG))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not a JSON file ({error})") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: got a JSON {type(data).__name__}, an object is needed")
    return data
