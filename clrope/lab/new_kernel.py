"""Kernels to start from: `clrope lab --new NAME --like simple` writes one that is right."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from ..errors import ConfigError, RopeError

_FOLDER = "templates"


def kinds() -> tuple[str, ...]:
    """Return the names of the kernels to start from."""
    return tuple(sorted(f.name.removesuffix(".cl") for f in (files(__package__) / _FOLDER).iterdir()))


def write_new(name: str, like: str) -> Path:
    """Write a kernel file, NAME or NAME.cl, whose function has the file's name, and return its path.

    Raises `ConfigError` for an unknown kind or a name that no function can have, `RopeError` if the file exists.
    """
    if like not in kinds():
        raise ConfigError(f"--like: got {like!r}, allowed are {', '.join(kinds())}")
    path = Path(name if name.endswith(".cl") else f"{name}.cl")
    if not re.fullmatch(r"[A-Za-z_]\w*", path.stem, re.ASCII):
        raise ConfigError(f"--new: got {name!r}, a name of letters, digits and _ is needed: the function has it, too")
    text = (files(__package__) / _FOLDER / f"{like}.cl").read_text(encoding="utf-8").replace("KERNEL", path.stem)
    try:
        with path.open("x", encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
            except BaseException:
                path.unlink()
                raise
    except OSError as error:
        raise RopeError(f"--new: {path}: cannot be written ({error.strerror})") from error
    return path
